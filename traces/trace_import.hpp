// Gradients from and to the files of other programs: NumPy arrays and safetensors.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "traces/trace.hpp"

namespace sparscale::traces {

/// Makes a trace at `directory` of array files, whose workers follow each other in the order of the files. A file is
///  * .npy: format version 1, C order, <f4 or <f2, shape [T, n, N], or [T, N] for one worker;
///  * .safetensors: a tensor `grad` of such a shape (F32, F16, BF16; optional `scale` [T] as in traces), or one tensor per layer with the
///    layer's name and the shape [T, n, ...] or [T, ...] with one worker.
/// `description` (called `name` in messages): the list of layers (`name`, `shape`) in parameter order, or an object with `layers` and any
/// other keys of trace.json. `half`: store F16 with a scale. Errors: InputError, RunError as of write_trace().
void import_trace(const std::vector<std::filesystem::path>& files, const Json& description, const std::string& name,
                  const std::filesystem::path& directory, bool half);

/// Writes the gradients of a trace as one array [T, W, N] of float32 to `file` (.npy or .safetensors, by its name), and what import needs
/// beside it to `file`.layers.json. Errors: InputError (other name, file exists), RunError.
void export_trace(const Trace& trace, const std::filesystem::path& file);

}  // namespace sparscale::traces
