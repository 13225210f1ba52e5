// Writes traces (format version 1: docs/formats.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "base/json.hpp"

namespace sparscale::traces {

struct TraceWriteOptions {
  /// Half the bytes: F16 with one power of two per iteration and file that brings the largest magnitude to [2^14, 2^15).
  bool half = false;
  /// Workers per data file; 0: all in one.
  std::int64_t workers_per_file = 0;
};

/// Writes a new trace folder. `manifest`: trace.json without "files" (checked like one that is read). `gradient(position, worker)` gives N
/// floats, valid until the next call; it is called twice per worker with `half`, in order of position, then worker. The folder appears
/// whole under its name or not at all. Errors: InputError (folder exists and is not empty, wrong manifest, wrong length), RunError (cannot
/// write).
void write_trace(const std::filesystem::path& directory, Json manifest,
                 const std::function<std::span<const float>(std::int64_t position, std::int64_t worker)>& gradient,
                 const TraceWriteOptions& options = {});

}  // namespace sparscale::traces
