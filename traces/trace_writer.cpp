#include "traces/trace_writer.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "traces/half.hpp"
#include "traces/trace.hpp"

namespace sparscale::traces {
namespace {

namespace fs = std::filesystem;

class Output {
 public:
  explicit Output(fs::path file) : file_(std::move(file)), handle_(::open(file_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)) {
    if (handle_ < 0) fail();
  }
  ~Output() {
    if (handle_ >= 0) ::close(handle_);
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  void write(const void* data, std::size_t size) {
    const char* next = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t written = ::write(handle_, next, size);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail();
      next += written;
      size -= static_cast<std::size_t>(written);
    }
  }
  void finish() {
    if (::fsync(handle_) != 0) fail();
    const int handle = handle_;
    handle_ = -1;
    if (::close(handle) != 0) fail();
  }

 private:
  [[noreturn]] void fail() const { throw RunError("cannot write " + file_.string() + ": " + std::strerror(errno)); }
  fs::path file_;
  int handle_ = -1;
};

// A folder that is removed again unless it is moved to its place.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(fs::path path) : path_(std::move(path)) {
    std::error_code code;
    fs::remove_all(path_, code);  // left by a process that had this number before and was killed
    fs::create_directories(path_, code);
    if (code) throw RunError("cannot create " + path_.string() + ": " + code.message());
  }
  ~TemporaryFolder() {
    std::error_code code;
    if (!path_.empty()) fs::remove_all(path_, code);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  void move_to(const fs::path& target) {
    std::error_code code;
    fs::rename(path_, target, code);
    if (code) throw RunError("cannot create " + target.string() + ": " + code.message());
    path_.clear();
  }

 private:
  fs::path path_;
};

std::string header_text(std::int64_t positions, std::int64_t workers, std::int64_t gradients, bool half) {
  const std::uint64_t values =
      checked_multiply(checked_multiply(static_cast<std::uint64_t>(positions), static_cast<std::uint64_t>(workers), "iterations x workers"),
                       static_cast<std::uint64_t>(gradients), "iterations x workers x gradients");
  const std::uint64_t grad_bytes = checked_multiply(values, half ? 2 : 4, "bytes of a trace file");
  Json header;
  // The scale stands first, so that both are aligned.
  const std::uint64_t scale_bytes = half ? 4 * static_cast<std::uint64_t>(positions) : 0;
  if (half) header["scale"] = {{"dtype", "F32"}, {"shape", {positions}}, {"data_offsets", {0, scale_bytes}}};
  header["grad"] = {{"dtype", half ? "F16" : "F32"},
                    {"shape", {positions, workers, gradients}},
                    {"data_offsets", {scale_bytes, scale_bytes + grad_bytes}}};
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

float scale_for(float largest) {
  if (!(largest > 0) || !std::isfinite(largest)) return 1;
  return std::ldexp(1.0F, std::clamp(14 - std::ilogb(largest), -126, 127));
}

}  // namespace

void write_trace(const std::filesystem::path& directory, Json manifest,
                 const std::function<std::span<const float>(std::int64_t position, std::int64_t worker)>& gradient,
                 const TraceWriteOptions& options) {
  std::error_code code;
  if (fs::exists(directory, code) && !(fs::is_directory(directory, code) && fs::is_empty(directory, code)))
    throw InputError(directory.string(), "", "no such file or an empty folder", "something that would be overwritten");
  manifest["files"] =
      Json::array({{{"path", "x"}, {"workers", {0, 1}}, {"iterations", {0, 1}}, {"bytes", 1}, {"sha256", std::string(64, '0')}}});
  validate_json(manifest, trace_schema(), directory.string());
  const auto gradients = manifest.at("gradients").get<std::int64_t>();
  const auto workers = manifest.at("workers").get<std::int64_t>();
  const auto positions = static_cast<std::int64_t>(manifest.at("iterations").size());
  const std::int64_t per_file = options.workers_per_file > 0 ? std::min(options.workers_per_file, workers) : workers;
  const auto checked_gradient = [&](std::int64_t t, std::int64_t w) {
    const std::span<const float> values = gradient(t, w);
    if (static_cast<std::int64_t>(values.size()) != gradients)
      throw InputError("gradient of position " + std::to_string(t) + ", worker " + std::to_string(w), std::to_string(gradients) + " values",
                       std::to_string(values.size()));
    return values;
  };

  const fs::path target = fs::absolute(directory).lexically_normal();
  const fs::path clean = target.has_filename() ? target : target.parent_path();
  // Two machines that share a file system may have a process of the same number each.
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  const fs::path working = clean.string() + ".tmp." + host + "." + std::to_string(::getpid());
  TemporaryFolder temporary(working);
  manifest["files"] = Json::array();
  for (std::int64_t from = 0; from < workers; from += per_file) {
    const std::int64_t to = std::min(from + per_file, workers);
    const std::string name = per_file == workers ? "workers.safetensors" : "workers-" + std::to_string(from) + ".safetensors";
    Output output(working / name);
    const std::string header = header_text(positions, to - from, gradients, options.half);
    const std::uint64_t length = header.size();
    output.write(&length, sizeof length);
    output.write(header.data(), header.size());
    std::vector<float> scale;
    if (options.half) {
      for (std::int64_t t = 0; t < positions; ++t) {
        float largest = 0;
        for (std::int64_t w = from; w < to; ++w)
          for (const float value : checked_gradient(t, w))
            if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
        scale.push_back(scale_for(largest));
      }
      output.write(scale.data(), 4 * scale.size());
    }
    std::vector<std::uint16_t> halves(options.half ? static_cast<std::size_t>(gradients) : 0);
    for (std::int64_t t = 0; t < positions; ++t)
      for (std::int64_t w = from; w < to; ++w) {
        const std::span<const float> values = checked_gradient(t, w);
        if (!options.half) {
          output.write(values.data(), values.size_bytes());
          continue;
        }
        for (std::size_t i = 0; i < values.size(); ++i) halves[i] = half_from_float(values[i] * scale[static_cast<std::size_t>(t)]);
        output.write(halves.data(), 2 * halves.size());
      }
    output.finish();
    manifest["files"].push_back({{"path", name},
                                 {"workers", {from, to}},
                                 {"iterations", {0, positions}},
                                 {"bytes", fs::file_size(working / name)},
                                 {"sha256", sha256_hex_of_file(working / name)}});
  }
  write_file_atomic(working / "trace.json", manifest.dump(1) + "\n");
  Trace::open(working);  // what is not a valid trace must not appear under the name
  temporary.move_to(clean);
}

}  // namespace sparscale::traces
