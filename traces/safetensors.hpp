// The header of a safetensors file: 8 bytes of little-endian length, that many bytes of JSON, then the data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace sparscale::traces {

struct Tensor {
  std::string name;
  std::string dtype;  // F32, F16, BF16, ...
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0;  // of the first byte, from the start of the file
  std::uint64_t bytes = 0;
};

/// Reads the header of a whole file held in memory. Every tensor lies inside the file, has as many bytes as dtype and shape say, and the
/// tensors tile the data without gap, overlap or trailing bytes. Errors: InputError with the place in `file`.
std::vector<Tensor> read_safetensors_header(std::span<const std::byte> content, const std::string& file);

}  // namespace sparscale::traces
