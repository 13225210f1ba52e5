#include "experiments/progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace sparscale::experiments {
namespace {

std::string duration(double seconds) {
  char text[32];
  if (seconds < 100)
    std::snprintf(text, sizeof text, "%.0f s", std::ceil(seconds));
  else
    std::snprintf(text, sizeof text, "%.0f min", std::ceil(seconds / 60));
  return text;
}

}  // namespace

Progress::Progress(std::string what, std::size_t total, double total_weight)
    : what_(std::move(what)), total_(total), total_weight_(total_weight), start_(std::chrono::steady_clock::now()) {
  const char* term = std::getenv("TERM");
  terminal_ = ::isatty(STDERR_FILENO) == 1 && term != nullptr && std::strcmp(term, "dumb") != 0;
  if (total_ > 0) draw();
}

Progress::~Progress() {
  if (terminal_ && total_ > 0) std::fputs("\n", stderr);
}

void Progress::step(const std::string& label, double weight, bool failed) {
  ++done_;
  done_weight_ += weight;
  if (failed) {
    ++failed_;
    message("failed: " + label);
  }
  draw();
}

void Progress::message(const std::string& text) { std::fprintf(stderr, terminal_ ? "\r\033[K%s\n" : "%s\n", text.c_str()); }

void Progress::draw() {
  const double share = total_weight_ > 0 ? std::min(1.0, done_weight_ / total_weight_) : 1.0;
  const double elapsed_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  std::string rest;
  if (done_ > 0) {
    char rate[64];
    std::snprintf(rate, sizeof rate, ", %.1f per s", static_cast<double>(done_) / std::max(elapsed_s, 1e-3));
    rest += rate;
  }
  if (done_ > 0 && done_ < total_ && share > 0) rest += ", " + duration(elapsed_s * (1 - share) / share) + " left";
  if (failed_ > 0) rest += ", " + std::to_string(failed_) + " failed";
  if (terminal_) {
    constexpr int width = 30;
    std::string bar(static_cast<std::size_t>(std::lround(share * width)), '#');
    bar.resize(width, '.');
    std::fprintf(stderr, "\r\033[K%-8s [%s] %zu/%zu%s", what_.c_str(), bar.c_str(), done_, total_, rest.c_str());
    std::fflush(stderr);
    return;
  }
  // In a log: one line for every tenth of the work.
  const int tenth = done_ == total_ ? 10 : static_cast<int>(share * 10);
  if (tenth == last_tenth_ && done_ != total_) return;
  last_tenth_ = tenth;
  std::fprintf(stderr, "%s: %zu of %zu%s\n", what_.c_str(), done_, total_, rest.c_str());
}

}  // namespace sparscale::experiments
