// Where a replay keeps n x N residuals: in memory, in memory as halves, in a file, or nowhere.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernels.hpp"

namespace sparscale::sim {

using kernels::Index;

/// How a replay may save memory (docs/formats.md, "Memory of a replay").
struct MemoryChoice {
  enum class Mode {
    full,      // n x N floats
    sample,    // the same over a fraction of the coordinates, by whole rows
    f16,       // n x N halves
    disk,      // n x N floats in a file that is mapped
    recompute  // none: accumulators are summed again from the gradients when they are read
  };
  Mode mode = Mode::full;
  double fraction = 1;           // of the coordinates, with sample
  std::filesystem::path folder;  // of the file, with disk

  /// As it stands in options and records: "full", "sample:0.1", "f16", "disk:FOLDER", "recompute".
  std::string text() const;
  /// The reverse; "disk" takes the folder for temporary files. Errors: InputError naming the choices; `place` is where the text stands.
  static MemoryChoice parse(const std::string& text, const std::string& place);
};

/// The choices, for messages.
extern const char* const memory_choices;

/// n x N numbers that start at zero. Different workers may be used at the same time.
class Residuals {
 public:
  /// `largest`: magnitude of gradients, for the scale of halves. Errors: InputError (no room in the folder), RunError.
  /// `workers` are those from `first_worker` on.
  Residuals(MemoryChoice::Mode mode, std::int64_t first_worker, std::int64_t workers, Index gradients, const std::filesystem::path& folder,
            float largest);
  ~Residuals();
  Residuals(const Residuals&) = delete;
  Residuals& operator=(const Residuals&) = delete;

  /// The floats themselves, on a cache line; null when they are halves.
  float* in_place(std::int64_t worker) const { return floats_ == nullptr ? nullptr : floats_ + (worker - first_worker_) * stride_; }
  /// Halves: elements [first, first + size) as floats, and back. Storing rounds `values` to what is kept. Errors: RunError (overflow).
  void load(std::int64_t worker, Index first, std::span<float> values) const;
  void store(std::int64_t worker, Index first, std::span<float> values);
  void zero(std::int64_t worker, std::span<const Index> indices);
  /// In a file: this worker is not needed for a while.
  void release(std::int64_t worker) const;

 private:
  std::int64_t first_worker_;
  Index gradients_, stride_ = 0;  // stride: of a worker's floats
  float* floats_ = nullptr;
  bool in_file_ = false;
  std::vector<std::uint16_t> halves_;
  float scale_ = 1;
  void* mapped_ = nullptr;
  std::size_t mapped_bytes_ = 0;
};

}  // namespace sparscale::sim
