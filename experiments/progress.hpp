// Progress on stderr: a bar on a terminal, plain lines otherwise.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace sparscale::experiments {

class Progress {
 public:
  /// `total_weight`: the sum of the weights that step() will be given.
  Progress(std::string what, std::size_t total, double total_weight);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /// One more is over.
  void step(const std::string& label, double weight, bool failed);
  /// A line of its own, above the bar.
  void message(const std::string& text);

 private:
  void draw();

  std::string what_;
  std::size_t total_, done_ = 0, failed_ = 0;
  double total_weight_, done_weight_ = 0;
  bool terminal_;
  std::chrono::steady_clock::time_point start_;
  int last_tenth_ = -1;
};

}  // namespace sparscale::experiments
