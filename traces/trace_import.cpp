#include "traces/trace_import.hpp"

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string_view>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "traces/encoding.hpp"
#include "traces/mapping.hpp"
#include "traces/safetensors.hpp"
#include "traces/trace_writer.hpp"

namespace sparscale::traces {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "arrays are little-endian");

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

// A part of every gradient in a file: all of it, or one layer.
struct Part {
  const std::byte* data = nullptr;
  Encoding encoding = Encoding::f32;
  std::int64_t offset = 0, size = 0;  // in the flattened gradient
};

struct ArrayFile {
  std::unique_ptr<Mapping> mapping;
  std::int64_t iterations = 0, workers = 0;
  std::vector<Part> parts;
  std::vector<float> scale;
};

struct Array {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0;
};

// The header of a .npy file is a Python dictionary with three known keys: read by hand, and nothing else is accepted.
class NpyHeader {
 public:
  NpyHeader(std::string_view text, std::string file, std::uint64_t start) : text_(text), file_(std::move(file)), start_(start) {}

  Array read() {
    Array array;
    bool has_descr = false, has_order = false, has_shape = false;
    expect('{');
    while (!accept('}')) {
      const std::string key = quoted();
      expect(':');
      bool* seen = key == "descr" ? &has_descr : key == "fortran_order" ? &has_order : key == "shape" ? &has_shape : nullptr;
      if (seen == nullptr || *seen) fail("the keys descr, fortran_order and shape once each", '"' + key + '"');
      *seen = true;
      if (key == "descr") {
        const std::string descr = quoted();
        if (descr != "<f4" && descr != "<f2") fail("descr <f4 or <f2", descr);
        array.dtype = descr == "<f4" ? "F32" : "F16";
      } else if (key == "fortran_order") {
        if (word() != "False") fail("fortran_order False (C order)", "another one");
      } else {
        expect('(');
        while (!accept(')')) {
          array.shape.push_back(number());
          if (!accept(',')) {
            expect(')');
            break;
          }
        }
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    if (!has_descr || !has_order || !has_shape) fail("the keys descr, fortran_order and shape", "a header without one of them");
    if (space(); at_ != text_.size()) fail("the end of the header", "more text");
    return array;
  }

 private:
  [[noreturn]] void fail(const std::string& expected, const std::string& found) const {
    throw InputError(file_, "byte " + std::to_string(start_ + at_), expected, found);
  }
  void space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }
  bool accept(char wanted) {
    space();
    if (at_ >= text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) {
    if (!accept(wanted)) fail(std::string("'") + wanted + "'", at_ < text_.size() ? std::string(1, text_[at_]) : "the end of the header");
  }
  std::string quoted() {
    space();
    const char quote = at_ < text_.size() ? text_[at_] : ' ';
    if (quote != '\'' && quote != '"') fail("a quoted text", at_ < text_.size() ? std::string(1, quote) : "the end of the header");
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) fail("a closing quote", "none");
    std::string value(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return value;
  }
  std::string word() {
    space();
    const std::size_t first = at_;
    while (at_ < text_.size() && std::isalpha(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
    return std::string(text_.substr(first, at_ - first));
  }
  std::int64_t number() {
    space();
    std::int64_t value = 0;
    const std::size_t first = at_;
    for (; at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0; ++at_)
      if (__builtin_mul_overflow(value, std::int64_t{10}, &value) || __builtin_add_overflow(value, text_[at_] - '0', &value))
        fail("a number below 2^63", "a larger one");
    if (at_ == first) fail("a number", at_ < text_.size() ? std::string(1, text_[at_]) : "the end of the header");
    return value;
  }

  std::string_view text_;
  std::string file_;
  std::uint64_t start_;
  std::size_t at_ = 0;
};

Array read_npy_header(std::span<const std::byte> content, const std::string& file) {
  constexpr std::size_t start = 10;
  if (content.size() < start || std::memcmp(content.data(), "\x93NUMPY", 6) != 0)
    throw InputError(file, "byte 0", "a .npy file (\\x93NUMPY)", content.size() < start ? "a shorter file" : "other bytes");
  if (content[6] != std::byte{1})
    throw InputError(file, "byte 6", ".npy format version 1", "version " + std::to_string(std::to_integer<int>(content[6])));
  std::uint16_t length = 0;
  std::memcpy(&length, content.data() + 8, 2);
  if (content.size() - start < length)
    throw InputError(file, "byte 8", "a header length of at most " + std::to_string(content.size() - start), std::to_string(length));
  Array array = NpyHeader({reinterpret_cast<const char*>(content.data()) + start, length}, file, start).read();
  array.offset = start + length;
  std::uint64_t bytes = encoding_bytes(*encoding_of(array.dtype));
  for (const std::int64_t extent : array.shape)
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes))
      throw InputError(file, "shape", "fewer than 2^64 bytes", shape_text(array.shape));
  if (content.size() - array.offset != bytes)
    throw InputError(file, "byte " + std::to_string(array.offset),
                     std::to_string(bytes) + " bytes of data for " + array.dtype + " " + shape_text(array.shape),
                     std::to_string(content.size() - array.offset));
  return array;
}

// [T, n, rest...] or [T, rest...]; sets or checks T and n.
void set_extent(ArrayFile& file, const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& rest, const std::string& name,
                const std::string& place) {
  std::int64_t iterations = 0, workers = 0;
  const auto ends_with_rest = [&](std::size_t first) {
    return shape.size() == first + rest.size() && std::equal(rest.begin(), rest.end(), shape.begin() + static_cast<std::ptrdiff_t>(first));
  };
  if (ends_with_rest(2)) {
    iterations = shape[0];
    workers = shape[1];
  } else if (ends_with_rest(1)) {
    iterations = shape[0];
    workers = 1;
  }
  if (iterations < 1 || workers < 1) {
    std::string wanted;
    for (const std::int64_t extent : rest) wanted += ", " + std::to_string(extent);
    throw InputError(name, place, "[iterations, workers" + wanted + "] or [iterations" + wanted + "]", shape_text(shape));
  }
  if (file.iterations != 0 && (iterations != file.iterations || workers != file.workers))
    throw InputError(name, place, std::to_string(file.iterations) + " iterations of " + std::to_string(file.workers) + " workers as before",
                     shape_text(shape));
  file.iterations = iterations;
  file.workers = workers;
}

ArrayFile open_array_file(const fs::path& path, const std::vector<Layer>& layers, std::int64_t gradients) {
  const std::string name = path.string();
  ArrayFile file;
  if (path.extension() != ".npy" && path.extension() != ".safetensors")
    throw InputError(name, "", "a file with the extension .npy or .safetensors", '"' + path.extension().string() + '"');
  file.mapping = std::make_unique<Mapping>(path);
  const std::span<const std::byte> content = file.mapping->content();
  if (path.extension() == ".npy") {
    const Array array = read_npy_header(content, name);
    set_extent(file, array.shape, {gradients}, name, "shape");
    file.parts.push_back({content.data() + array.offset, *encoding_of(array.dtype), 0, gradients});
    return file;
  }
  std::map<std::string, Tensor> tensors;
  for (Tensor& tensor : read_safetensors_header(content, name)) tensors.emplace(tensor.name, tensor);
  const auto add = [&](const Tensor& tensor, const std::vector<std::int64_t>& shape, std::int64_t offset, std::int64_t size) {
    const std::string place = "header /" + tensor.name;
    const std::optional<Encoding> encoding = encoding_of(tensor.dtype);
    if (!encoding) throw InputError(name, place + "/dtype", "F32, F16 or BF16", tensor.dtype);
    set_extent(file, tensor.shape, shape, name, place + "/shape");
    file.parts.push_back({content.data() + tensor.offset, *encoding, offset, size});
  };
  if (const auto grad = tensors.find("grad"); grad != tensors.end()) {
    add(grad->second, {gradients}, 0, gradients);
    if (const auto scale = tensors.find("scale"); scale != tensors.end()) {
      if (scale->second.dtype != "F32" || scale->second.shape != std::vector<std::int64_t>{file.iterations})
        throw InputError(name, "header /scale", "F32 " + shape_text({file.iterations}),
                         scale->second.dtype + " " + shape_text(scale->second.shape));
      file.scale.resize(static_cast<std::size_t>(file.iterations));
      std::memcpy(file.scale.data(), content.data() + scale->second.offset, scale->second.bytes);
      for (const float value : file.scale)
        if (!(std::isfinite(value) && value > 0)) throw InputError(name, "tensor scale", "finite scales > 0", number_text(value));
    }
    return file;
  }
  for (const Layer& layer : layers) {
    const auto found = tensors.find(layer.name);
    if (found == tensors.end()) throw InputError(name, "header", "a tensor \"grad\", or one named \"" + layer.name + "\"", "neither");
    add(found->second, layer.shape, layer.offset, layer.size);
  }
  if (tensors.size() != layers.size())
    throw InputError(name, "header", "tensors of the " + std::to_string(layers.size()) + " layers only", std::to_string(tensors.size()));
  return file;
}

// The layers of a description, with offsets.
Json described_layers(const Json& layers, const std::string& name, const std::string& place, std::vector<Layer>& out) {
  if (!layers.is_array() || layers.empty()) throw InputError(name, place, "a list of layers", brief(layers));
  Json complete = Json::array();
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::string at = (place == "/" ? "" : place) + "/" + std::to_string(i);
    const Json& layer = layers[i];
    if (!layer.is_object() || !layer.contains("name") || !layer["name"].is_string() || !layer.contains("shape") ||
        !layer["shape"].is_array())
      throw InputError(name, at, "an object with name and shape", brief(layer));
    Layer read;
    read.name = layer["name"].get<std::string>();
    read.offset = offset;
    read.size = 1;
    for (const Json& extent : layer["shape"]) {
      if (!extent.is_number_unsigned() || extent.get<std::uint64_t>() == 0 || extent.get<std::uint64_t>() > (1ULL << 53))
        throw InputError(name, at + "/shape", "a list of integers >= 1", brief(layer["shape"]));
      read.shape.push_back(extent.get<std::int64_t>());
      if (__builtin_mul_overflow(read.size, read.shape.back(), &read.size))
        throw InputError(name, at + "/shape", "fewer than 2^63 elements", brief(layer["shape"]));
    }
    if (__builtin_add_overflow(offset, read.size, &offset)) throw InputError(name, at, "fewer than 2^63 gradients", "more");
    Json entry = layer;
    entry["offset"] = read.offset;
    entry["size"] = read.size;
    for (const char* key : {"offset", "size"})
      if (layer.contains(key) && layer[key] != entry[key]) throw InputError(name, at + "/" + key, entry[key].dump(), brief(layer[key]));
    complete.push_back(std::move(entry));
    for (const Layer& other : out)
      if (other.name == read.name) throw InputError(name, at + "/name", "every name once", '"' + read.name + '"');
    out.push_back(std::move(read));
  }
  return complete;
}

void write_stream(std::ofstream& out, const fs::path& file, const void* data, std::size_t bytes) {
  if (!out.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes)))
    throw RunError("cannot write " + file.string() + ": " + std::strerror(errno));
}

}  // namespace

void import_trace(const std::vector<fs::path>& files, const Json& description, const std::string& name, const fs::path& directory,
                  bool half) {
  std::vector<Layer> layers;
  Json manifest = Json::object();
  manifest["schema_version"] = 1;
  manifest["name"] = directory.filename().empty() ? directory.parent_path().filename().string() : directory.filename().string();
  if (description.is_object()) {
    if (!description.contains("layers")) throw InputError(name, "/", "the key \"layers\"", "no such key");
    manifest["layers"] = described_layers(description["layers"], name, "/layers", layers);
    for (const auto& [key, value] : description.items())
      if (key != "layers" && key != "files") manifest[key] = value;
  } else {
    manifest["layers"] = described_layers(description, name, "/", layers);
  }
  const std::int64_t gradients = layers.back().offset + layers.back().size;
  if (files.empty()) throw InputError("import", "at least one file", "none");
  std::vector<ArrayFile> arrays;
  std::vector<std::pair<std::size_t, std::int64_t>> where;  // file and worker in it, per worker
  for (const fs::path& path : files) {
    arrays.push_back(open_array_file(path, layers, gradients));
    if (arrays.back().iterations != arrays.front().iterations)
      throw InputError(path.string(), "", std::to_string(arrays.front().iterations) + " iterations as " + files.front().string() + " has",
                       std::to_string(arrays.back().iterations));
    for (std::int64_t w = 0; w < arrays.back().workers; ++w) where.emplace_back(arrays.size() - 1, w);
  }
  const std::int64_t positions = arrays.front().iterations;
  const auto set = [&](const char* key, const Json& value) {
    if (manifest.contains(key) && manifest[key] != value)
      throw InputError(name, "/" + std::string(key), value.dump() + " as the arrays have", brief(manifest[key]));
    manifest[key] = value;
  };
  set("gradients", gradients);
  set("workers", where.size());
  if (!manifest.contains("iterations")) {
    std::vector<std::int64_t> iterations(static_cast<std::size_t>(positions));
    std::iota(iterations.begin(), iterations.end(), 0);
    manifest["iterations"] = iterations;
  } else if (!manifest["iterations"].is_array() || static_cast<std::int64_t>(manifest["iterations"].size()) != positions) {
    throw InputError(name, "/iterations", std::to_string(positions) + " iterations as the arrays have", brief(manifest["iterations"]));
  }
  std::vector<float> values(static_cast<std::size_t>(gradients));
  write_trace(directory, std::move(manifest),
              [&](std::int64_t t, std::int64_t w) {
                const auto [index, worker] = where[static_cast<std::size_t>(w)];
                const ArrayFile& file = arrays[index];
                const float scale = file.scale.empty() ? 1.0F : file.scale[static_cast<std::size_t>(t)];
                for (const Part& part : file.parts)
                  decode_values(
                      part.encoding,
                      part.data + static_cast<std::size_t>((t * file.workers + worker) * part.size) * encoding_bytes(part.encoding),
                      static_cast<std::size_t>(part.size), scale, values.data() + part.offset);
                return std::span<const float>(values);
              },
              {.half = half, .workers_per_file = 0});
}

void export_trace(const Trace& trace, const fs::path& file) {
  const bool npy = file.extension() == ".npy";
  if (!npy && file.extension() != ".safetensors")
    throw InputError("--out", "a file name that ends in .npy or .safetensors", '"' + file.string() + '"');
  const fs::path layers_file = file.string() + ".layers.json", temporary = file.string() + ".tmp";
  for (const fs::path& path : {file, layers_file})
    if (fs::exists(path)) throw InputError(path.string(), "", "no such file", "one that would be overwritten");
  const std::int64_t positions = trace.iterations(), workers = trace.workers();
  const std::uint64_t bytes =
      checked_multiply(checked_multiply(static_cast<std::uint64_t>(positions * workers), static_cast<std::uint64_t>(trace.gradients()),
                                        "iterations x workers x gradients"),
                       4, "bytes of the array");
  std::string head;
  if (npy) {
    std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + std::to_string(positions) + ", " +
                         std::to_string(workers) + ", " + std::to_string(trace.gradients()) + "), }";
    header.append(63 - (10 + header.size()) % 64, ' ');
    header += '\n';
    const auto length = static_cast<std::uint16_t>(header.size());
    head = std::string("\x93NUMPY\x01\x00", 8) + std::string(reinterpret_cast<const char*>(&length), 2) + header;
  } else {
    std::string header =
        Json{{"grad", {{"dtype", "F32"}, {"shape", {positions, workers, trace.gradients()}}, {"data_offsets", {0, bytes}}}}}.dump();
    header.append((8 - header.size() % 8) % 8, ' ');
    const std::uint64_t length = header.size();
    head = std::string(reinterpret_cast<const char*>(&length), 8) + header;
  }
  try {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    if (!out) throw RunError("cannot write " + temporary.string() + ": " + std::strerror(errno));
    write_stream(out, temporary, head.data(), head.size());
    for (std::int64_t t = 0; t < positions; ++t)
      for (std::int64_t w = 0; w < workers; ++w) {
        const std::span<const float> values = trace.gradient(t, w);
        write_stream(out, temporary, values.data(), values.size_bytes());
      }
    out.close();
    if (!out) throw RunError("cannot write " + temporary.string() + ": " + std::strerror(errno));
    Json description = trace.info().manifest;
    description.erase("files");
    write_file_atomic(layers_file, description.dump(1) + "\n");
    fs::rename(temporary, file);
  } catch (...) {
    std::error_code code;
    fs::remove(temporary, code);
    throw;
  }
}

}  // namespace sparscale::traces
