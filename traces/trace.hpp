// Captured gradient traces (format version 1: docs/formats.md): open, check, read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.hpp"

namespace sparscale::traces {

struct Layer {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t offset = 0;  // first element in the flattened gradient
  std::int64_t size = 0;    // elements
};

/// What trace.json says, checked.
struct TraceInfo {
  std::string name, model, dataset, licence, optimizer, timing_device;
  std::string data_order;                // "iid", "stateful" or "" when not stated
  std::int64_t gradients = 0;            // N
  std::int64_t full_gradients = 0;       // elements of the model when coordinates were sampled, else N
  std::int64_t workers = 0;              // W
  std::vector<std::int64_t> iterations;  // training iteration of each position; T of them
  std::vector<double> learning_rate;     // one per position, or empty
  std::vector<Layer> layers;
  std::optional<double> forward_time_s, backward_time_s;
  Json manifest;  // trace.json as read
};

/// The JSON Schema of trace.json, format version 1.
const Json& trace_schema();

/// Checks a manifest against the schema and its layers against each other; `file` is what messages call it. Errors: InputError.
TraceInfo read_trace_info(Json manifest, const std::string& file);

/// A trace on disk, memory mapped. Cheap to copy (shared state). Positions t run from 0 to T-1, workers from 0 to W-1.
class Trace {
 public:
  /// Opens a trace directory. Checks the manifest, that layers tile [0, N), that every (iteration, worker) is in exactly one file, file
  /// sizes and tensor headers; not the checksums. Errors: InputError with file and pointer or byte offset.
  static Trace open(const std::filesystem::path& directory);

  const std::filesystem::path& directory() const;
  const TraceInfo& info() const;
  std::int64_t gradients() const { return info().gradients; }
  std::int64_t workers() const { return info().workers; }
  std::int64_t iterations() const { return static_cast<std::int64_t>(info().iterations.size()); }

  /// The whole gradient of one worker, N floats. Zero-copy for F32; F16/BF16 are decoded (and unscaled) once and kept.
  std::span<const float> gradient(std::int64_t position, std::int64_t worker) const;

  /// Compares every file with its SHA-256. Errors: InputError naming the first file that differs. Cost: reads everything.
  void verify_checksums() const;
  /// Refuses NaN and infinity. Errors: InputError naming iteration, worker and layer of the first one and how many there are.
  void verify_finite() const;

  /// The same workers and iterations at some coordinates: runs [from, to) of the gradient, ascending, that give the layers of `info`.
  /// Values are copied once per (position, worker), by whoever asks first, and kept.
  struct Run {
    std::int64_t from = 0, to = 0;
  };
  Trace at_runs(std::vector<Run> runs, TraceInfo info) const;

  /// Memory that gradient() takes over time for decoded values, in bytes: 0 when every file is F32 that can be used in place.
  std::uint64_t decoded_bytes() const;

  /// SHA-256 over the manifest's bytes; the manifest holds the checksums of the data files, so this identifies the content.
  const std::string& content_sha256() const;

 private:
  struct State;
  void copy_runs(std::int64_t position, std::int64_t worker, const std::vector<Run>& runs, float* out) const;
  std::shared_ptr<const State> state_;
};

}  // namespace sparscale::traces
