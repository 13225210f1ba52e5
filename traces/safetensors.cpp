#include "traces/safetensors.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <string_view>

#include "base/error.hpp"
#include "base/json.hpp"

namespace sparscale::traces {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data are little-endian and used in place");

constexpr std::uint64_t length_bytes = 8;
// The limit of the reference implementation: it keeps a broken length from asking for all memory.
constexpr std::uint64_t largest_header_bytes = 100'000'000;

std::uint64_t element_bytes(const std::string& dtype) {
  static const std::map<std::string, std::uint64_t> sizes = {{"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1},
                                                             {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},
                                                             {"U32", 4},  {"F32", 4}, {"I64", 8}, {"U64", 8},     {"F64", 8}};
  const auto found = sizes.find(dtype);
  return found == sizes.end() ? 0 : found->second;
}

std::uint64_t natural(const Json& value, const std::string& file, const std::string& place) {
  if (!value.is_number_unsigned()) throw InputError(file, place, "an integer >= 0", brief(value));
  return value.get<std::uint64_t>();
}

Tensor read_tensor(const std::string& name, const Json& entry, std::uint64_t data_start, std::uint64_t data_bytes,
                   const std::string& file) {
  const std::string place = "header /" + name;
  if (!entry.is_object()) throw InputError(file, place, "an object with dtype, shape and data_offsets", brief(entry));
  for (const char* key : {"dtype", "shape", "data_offsets"})
    if (!entry.contains(key)) throw InputError(file, place, "the key \"" + std::string(key) + "\"", "no such key");
  Tensor tensor;
  tensor.name = name;
  const Json& dtype = entry.at("dtype");
  if (!dtype.is_string() || element_bytes(dtype.get<std::string>()) == 0)
    throw InputError(file, place + "/dtype", "a safetensors element type", brief(dtype));
  tensor.dtype = dtype.get<std::string>();
  const Json& shape = entry.at("shape");
  if (!shape.is_array()) throw InputError(file, place + "/shape", "an array of integers", brief(shape));
  std::uint64_t bytes = element_bytes(tensor.dtype);
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const std::uint64_t extent = natural(shape[i], file, place + "/shape/" + std::to_string(i));
    if (__builtin_mul_overflow(bytes, extent, &bytes) || extent > (1ULL << 53))
      throw InputError(file, place + "/shape", "fewer than 2^64 bytes", brief(shape));
    tensor.shape.push_back(static_cast<std::int64_t>(extent));
  }
  const Json& offsets = entry.at("data_offsets");
  if (!offsets.is_array() || offsets.size() != 2)
    throw InputError(file, place + "/data_offsets", "an array of two integers", brief(offsets));
  const std::uint64_t begin = natural(offsets[0], file, place + "/data_offsets/0");
  const std::uint64_t end = natural(offsets[1], file, place + "/data_offsets/1");
  if (end > data_bytes || begin > end)
    throw InputError(file, place + "/data_offsets", "a range inside the " + std::to_string(data_bytes) + " bytes of data", brief(offsets));
  if (end - begin != bytes)
    throw InputError(file, place + "/data_offsets", std::to_string(bytes) + " bytes for " + tensor.dtype + " " + brief(shape),
                     std::to_string(end - begin));
  tensor.offset = data_start + begin;
  tensor.bytes = bytes;
  return tensor;
}

}  // namespace

std::vector<Tensor> read_safetensors_header(std::span<const std::byte> content, const std::string& file) {
  if (content.size() < length_bytes)
    throw InputError(file, "byte 0", "8 bytes of header length", "a file of " + std::to_string(content.size()) + " bytes");
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, content.data(), length_bytes);
  const std::uint64_t rest = content.size() - length_bytes;
  if (header_bytes > std::min(rest, largest_header_bytes))
    throw InputError(file, "byte 0", "a header length of at most " + std::to_string(std::min(rest, largest_header_bytes)),
                     std::to_string(header_bytes));
  const std::string_view text(reinterpret_cast<const char*>(content.data()) + length_bytes, header_bytes);
  const Json header = parse_json(text, file + ": header from byte 8");
  if (!header.is_object()) throw InputError(file, "byte 8", "a JSON object of tensors", brief(header));
  const std::uint64_t data_start = length_bytes + header_bytes;
  std::vector<Tensor> tensors;
  for (const auto& [name, entry] : header.items())
    if (name != "__metadata__") tensors.push_back(read_tensor(name, entry, data_start, rest - header_bytes, file));
  std::vector<const Tensor*> order;
  for (const Tensor& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(),
            [](const Tensor* a, const Tensor* b) { return a->offset != b->offset ? a->offset < b->offset : a->bytes < b->bytes; });
  std::uint64_t next = data_start;
  for (const Tensor* tensor : order) {
    if (tensor->offset != next)
      throw InputError(file, "header /" + tensor->name + "/data_offsets",
                       "tensors side by side, this one from byte " + std::to_string(next - data_start) + " of the data",
                       std::to_string(tensor->offset - data_start));
    next += tensor->bytes;
  }
  if (next != content.size())
    throw InputError(file, "byte " + std::to_string(next), "the end of the file",
                     std::to_string(content.size() - next) + " bytes that belong to no tensor");
  return tensors;
}

}  // namespace sparscale::traces
