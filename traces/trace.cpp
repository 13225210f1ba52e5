#include "traces/trace.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <mutex>
#include <new>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "traces/encoding.hpp"
#include "traces/mapping.hpp"
#include "traces/safetensors.hpp"

namespace sparscale::embedded {
extern const char* const trace_schema_text;
}

namespace sparscale::traces {
namespace {

namespace fs = std::filesystem;

struct Range {
  std::int64_t from = 0, to = 0;
  std::int64_t size() const { return to - from; }
};

// One data file: its gradients for a block of positions x workers.
struct DataFile {
  fs::path path;
  std::string sha256;
  Range workers, positions;
  std::unique_ptr<Mapping> mapping;
  const std::byte* gradients = nullptr;
  Encoding encoding = Encoding::f32;
  std::vector<float> scale;  // per position of the block; empty: 1
  bool in_place = false;     // F32, aligned, unscaled

  // Values that are not used in place: decoded once per (position, worker), by whoever asks first.
  mutable std::once_flag allocated;
  mutable std::unique_ptr<float[]> decoded;
  mutable std::unique_ptr<std::once_flag[]> done;
};

void decode(const DataFile& file, std::int64_t block, std::int64_t gradients, float* out) {
  const float scale = file.scale.empty() ? 1.0F : file.scale[static_cast<std::size_t>(block / file.workers.size())];
  decode_values(file.encoding, file.gradients + static_cast<std::size_t>(block * gradients) * encoding_bytes(file.encoding),
                static_cast<std::size_t>(gradients), scale, out);
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

std::string pointer(const char* list, std::size_t index, const char* key) {
  return "/" + std::string(list) + "/" + std::to_string(index) + "/" + key;
}

std::string text_of(const Json& manifest, const char* key) { return manifest.value(key, std::string()); }

std::optional<double> time_of(const Json& manifest, const char* key, std::size_t layers, const std::string& file) {
  if (!manifest.contains(key)) return std::nullopt;
  const Json& value = manifest.at(key);
  if (value.is_number()) return value.get<double>();
  if (value.size() != layers)
    throw InputError(file, "/" + std::string(key), "one time per layer, " + std::to_string(layers), std::to_string(value.size()));
  double sum = 0;
  for (const Json& time : value) sum += time.get<double>();
  return sum;
}

Range read_range(const Json& entry, std::size_t index, const char* key, std::int64_t limit, const std::string& file) {
  const Range range{entry.at(key)[0].get<std::int64_t>(), entry.at(key)[1].get<std::int64_t>()};
  if (range.from >= range.to || range.to > limit)
    throw InputError(file, pointer("files", index, key), "[from, to) with from < to <= " + std::to_string(limit), brief(entry.at(key)));
  return range;
}

void find_tensors(DataFile& file, std::int64_t gradients) {
  const std::string name = file.path.string();
  const std::vector<Tensor> tensors = read_safetensors_header(file.mapping->content(), name);
  const Tensor *grad = nullptr, *scale = nullptr;
  for (const Tensor& tensor : tensors) {
    if (tensor.name == "grad") grad = &tensor;
    if (tensor.name == "scale") scale = &tensor;
  }
  if (grad == nullptr) throw InputError(name, "header", "a tensor \"grad\"", "none");
  const std::optional<Encoding> encoding = encoding_of(grad->dtype);
  if (!encoding) throw InputError(name, "header /grad/dtype", "F32, F16 or BF16", grad->dtype);
  file.encoding = *encoding;
  const std::vector<std::int64_t> full = {file.positions.size(), file.workers.size(), gradients};
  const std::vector<std::int64_t> flat = {file.positions.size(), gradients};
  if (grad->shape != full && !(file.workers.size() == 1 && grad->shape == flat))
    throw InputError(name, "header /grad/shape", shape_text(full) + " ([iterations, workers, gradients])", shape_text(grad->shape));
  file.gradients = file.mapping->content().data() + grad->offset;
  if (scale != nullptr) {
    if (scale->dtype != "F32") throw InputError(name, "header /scale/dtype", "F32", scale->dtype);
    if (scale->shape != std::vector<std::int64_t>{file.positions.size()})
      throw InputError(name, "header /scale/shape", shape_text({file.positions.size()}) + " ([iterations])", shape_text(scale->shape));
    file.scale.resize(static_cast<std::size_t>(file.positions.size()));
    std::memcpy(file.scale.data(), file.mapping->content().data() + scale->offset, scale->bytes);
    for (std::size_t t = 0; t < file.scale.size(); ++t)
      if (!(std::isfinite(file.scale[t]) && file.scale[t] > 0))
        throw InputError(name, "byte " + std::to_string(scale->offset + 4 * t), "a finite scale > 0", number_text(file.scale[t]));
  }
  file.in_place = file.encoding == Encoding::f32 && file.scale.empty() && grad->offset % alignof(float) == 0;
}

void open_data_file(DataFile& file, const fs::path& directory, const Json& entry, std::size_t index, const TraceInfo& info,
                    const std::string& manifest) {
  const fs::path path = entry.at("path").get<std::string>();
  bool inside = path.is_relative() && path.has_filename() && path.string().find('\0') == std::string::npos;
  for (const fs::path& part : path) inside = inside && part != "..";
  if (!inside) throw InputError(manifest, pointer("files", index, "path"), "a path inside the trace's folder", brief(entry.at("path")));
  file.path = directory / path;
  file.sha256 = entry.at("sha256").get<std::string>();
  file.workers = read_range(entry, index, "workers", info.workers, manifest);
  file.positions = read_range(entry, index, "iterations", static_cast<std::int64_t>(info.iterations.size()), manifest);
  file.mapping = std::make_unique<Mapping>(file.path);
  const auto bytes = entry.at("bytes").get<std::uint64_t>();
  const std::uint64_t found = file.mapping->content().size();
  if (found != bytes)
    throw InputError(file.path.string(), "byte " + std::to_string(std::min(found, bytes)),
                     std::to_string(bytes) + " bytes as trace.json says at " + pointer("files", index, "bytes"), std::to_string(found));
  find_tensors(file, info.gradients);
}

bool finite(float value) { return (std::bit_cast<std::uint32_t>(value) & 0x7f800000U) != 0x7f800000U; }

}  // namespace

struct Trace::State {
  fs::path directory;
  TraceInfo info;
  std::string content_sha256;
  std::vector<DataFile> files;
  std::vector<std::int32_t> file_of;  // [T, W]

  // Of a trace at some coordinates of another one.
  std::shared_ptr<const State> whole;
  std::vector<Trace::Run> runs;
  mutable std::vector<std::unique_ptr<float[]>> copies;  // [T, W]
  mutable std::unique_ptr<std::once_flag[]> copied;

  const DataFile& file(std::int64_t position, std::int64_t worker) const {
    return files[static_cast<std::size_t>(file_of[static_cast<std::size_t>(position * info.workers + worker)])];
  }
};

const Json& trace_schema() {
  static const Json schema = parse_json(embedded::trace_schema_text, "trace.schema.json");
  return schema;
}

Trace Trace::open(const std::filesystem::path& directory) {
  std::error_code code;
  if (!fs::is_directory(directory, code))
    throw InputError(directory.string(), "", "a trace folder", fs::exists(directory, code) ? "something else" : "nothing");
  const fs::path manifest_path = directory / "trace.json";
  const std::string manifest_name = manifest_path.string();
  if (!fs::is_regular_file(manifest_path, code)) throw InputError(manifest_name, "", "a file", "none");
  const std::string text = read_file(manifest_path);
  auto state = std::make_shared<State>();
  state->directory = directory;
  state->content_sha256 = sha256_hex(text);
  state->info = read_trace_info(parse_json(text, manifest_name), manifest_name);
  const TraceInfo& info = state->info;
  const auto positions = static_cast<std::int64_t>(info.iterations.size());
  const Json& files = info.manifest.at("files");
  if (files.size() > 1'000'000) throw InputError(manifest_name, "/files", "at most 1000000 files", std::to_string(files.size()));
  state->files = std::vector<DataFile>(files.size());
  std::uint64_t covered = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    open_data_file(state->files[i], directory, files[i], i, info, manifest_name);
    covered += static_cast<std::uint64_t>(state->files[i].workers.size()) * static_cast<std::uint64_t>(state->files[i].positions.size());
  }
  // The files are real, so `covered` is a size that memory can hold; the product of the manifest's numbers need not be.
  const std::uint64_t wanted =
      checked_multiply(static_cast<std::uint64_t>(positions), static_cast<std::uint64_t>(info.workers), "iterations x workers");
  if (covered < wanted)
    throw InputError(manifest_name, "/files", "every iteration and worker in a file, " + std::to_string(wanted) + " pairs",
                     std::to_string(covered));
  state->file_of.assign(static_cast<std::size_t>(wanted), -1);
  for (std::size_t i = 0; i < state->files.size(); ++i)
    for (std::int64_t t = state->files[i].positions.from; t < state->files[i].positions.to; ++t)
      for (std::int64_t w = state->files[i].workers.from; w < state->files[i].workers.to; ++w) {
        std::int32_t& owner = state->file_of[static_cast<std::size_t>(t * info.workers + w)];
        if (owner >= 0)
          throw InputError(manifest_name, "/files/" + std::to_string(i), "every iteration and worker in one file",
                           "position " + std::to_string(t) + ", worker " + std::to_string(w) + " also in /files/" + std::to_string(owner));
        owner = static_cast<std::int32_t>(i);
      }
  Trace trace;
  trace.state_ = std::move(state);
  return trace;
}

TraceInfo read_trace_info(Json manifest, const std::string& file) {
  if (!manifest.is_object()) throw InputError(file, "/", "an object", brief(manifest));
  validate_json(manifest, trace_schema(), file);
  TraceInfo info;
  info.name = text_of(manifest, "name");
  info.model = text_of(manifest, "model");
  info.dataset = text_of(manifest, "dataset");
  info.licence = text_of(manifest, "licence");
  info.optimizer = text_of(manifest, "optimizer");
  info.timing_device = text_of(manifest, "timing_device");
  info.data_order = text_of(manifest, "data_order");
  info.gradients = manifest.at("gradients").get<std::int64_t>();
  info.full_gradients = manifest.value("full_gradients", info.gradients);
  if (info.full_gradients < info.gradients)
    throw InputError(file, "/full_gradients", "at least /gradients, " + std::to_string(info.gradients),
                     std::to_string(info.full_gradients));
  info.workers = manifest.at("workers").get<std::int64_t>();
  info.iterations = manifest.at("iterations").get<std::vector<std::int64_t>>();
  for (std::size_t t = 1; t < info.iterations.size(); ++t)
    if (info.iterations[t] != info.iterations[t - 1] + 1)
      throw InputError(file, "/iterations/" + std::to_string(t),
                       "consecutive iterations, here " + std::to_string(info.iterations[t - 1] + 1), std::to_string(info.iterations[t]));
  if (manifest.contains("learning_rate")) info.learning_rate = manifest.at("learning_rate").get<std::vector<double>>();
  if (!info.learning_rate.empty() && info.learning_rate.size() != info.iterations.size())
    throw InputError(file, "/learning_rate", "one per iteration, " + std::to_string(info.iterations.size()),
                     std::to_string(info.learning_rate.size()));
  const Json& layers = manifest.at("layers");
  std::int64_t next = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    Layer layer;
    layer.name = layers[i].at("name").get<std::string>();
    layer.shape = layers[i].at("shape").get<std::vector<std::int64_t>>();
    layer.offset = layers[i].at("offset").get<std::int64_t>();
    layer.size = layers[i].at("size").get<std::int64_t>();
    std::int64_t elements = 1;
    for (const std::int64_t extent : layer.shape)
      if (__builtin_mul_overflow(elements, extent, &elements))
        throw InputError(file, pointer("layers", i, "shape"), "fewer than 2^63 elements", shape_text(layer.shape));
    if (elements != layer.size)
      throw InputError(file, pointer("layers", i, "size"), std::to_string(elements) + " as the shape says", std::to_string(layer.size));
    if (layer.offset != next)
      throw InputError(file, pointer("layers", i, "offset"), std::to_string(next) + ", the end of the layer before",
                       std::to_string(layer.offset));
    if (layer.size > info.gradients - next)
      throw InputError(file, pointer("layers", i, "size"), "layers that end at /gradients, " + std::to_string(info.gradients),
                       "a layer up to " + std::to_string(next) + " + " + std::to_string(layer.size));
    next += layer.size;
    info.layers.push_back(std::move(layer));
  }
  if (next != info.gradients)
    throw InputError(file, "/layers", "layers that end at /gradients, " + std::to_string(info.gradients), std::to_string(next));
  info.forward_time_s = time_of(manifest, "forward_time_s", info.layers.size(), file);
  info.backward_time_s = time_of(manifest, "backward_time_s", info.layers.size(), file);
  info.manifest = std::move(manifest);
  return info;
}

const std::filesystem::path& Trace::directory() const { return state_->directory; }
const TraceInfo& Trace::info() const { return state_->info; }
const std::string& Trace::content_sha256() const { return state_->content_sha256; }

std::uint64_t Trace::decoded_bytes() const {
  std::uint64_t values = 0;
  if (state_->whole != nullptr) values = static_cast<std::uint64_t>(iterations()) * static_cast<std::uint64_t>(workers());
  for (const DataFile& file : state_->files)
    if (!file.in_place) values += static_cast<std::uint64_t>(file.positions.size()) * static_cast<std::uint64_t>(file.workers.size());
  return checked_multiply(values, 4 * static_cast<std::uint64_t>(gradients()), "decoded gradients");
}

std::span<const float> Trace::gradient(std::int64_t position, std::int64_t worker) const {
  if (position < 0 || position >= iterations() || worker < 0 || worker >= workers())
    throw InputError("trace " + info().name, "position < " + std::to_string(iterations()) + ", worker < " + std::to_string(workers()),
                     "position " + std::to_string(position) + ", worker " + std::to_string(worker));
  if (state_->whole != nullptr) {
    const auto at = static_cast<std::size_t>(position * workers() + worker);
    const auto size = static_cast<std::size_t>(gradients());
    std::call_once(state_->copied[at], [&] {
      Trace whole;
      whole.state_ = state_->whole;
      auto copy = std::make_unique_for_overwrite<float[]>(size);
      float* out = copy.get();
      whole.copy_runs(position, worker, state_->runs, out);
      state_->copies[at] = std::move(copy);
    });
    return {state_->copies[at].get(), size};
  }
  const DataFile& file = state_->file(position, worker);
  const std::int64_t block = (position - file.positions.from) * file.workers.size() + worker - file.workers.from;
  const auto count = static_cast<std::size_t>(gradients());
  const std::size_t first = static_cast<std::size_t>(block) * count;
  if (file.in_place) return {reinterpret_cast<const float*>(file.gradients) + first, count};
  std::call_once(file.allocated, [&] {
    const auto blocks = static_cast<std::size_t>(file.positions.size() * file.workers.size());
    try {
      // Not initialised: pages are taken as they are filled.
      file.decoded = std::make_unique_for_overwrite<float[]>(blocks * count);
      file.done = std::make_unique<std::once_flag[]>(blocks);
    } catch (const std::bad_alloc&) {
      throw RunError("not enough memory for " + std::to_string(blocks * count * 4) + " bytes of decoded gradients of " +
                     file.path.string());
    }
  });
  float* out = file.decoded.get() + first;
  std::call_once(file.done[static_cast<std::size_t>(block)], [&] { decode(file, block, gradients(), out); });
  return {out, count};
}

Trace Trace::at_runs(std::vector<Run> runs, TraceInfo info) const {
  auto state = std::make_shared<State>();
  state->directory = state_->directory;
  state->content_sha256 = state_->content_sha256;
  state->info = std::move(info);
  state->whole = state_;
  state->runs = std::move(runs);
  const auto count = static_cast<std::size_t>(iterations() * workers());
  state->copies.resize(count);
  state->copied = std::make_unique<std::once_flag[]>(count);
  Trace trace;
  trace.state_ = std::move(state);
  return trace;
}

// Values that must be decoded are decoded run by run: the whole gradient is not kept for some of it.
void Trace::copy_runs(std::int64_t position, std::int64_t worker, const std::vector<Run>& runs, float* out) const {
  if (state_->whole != nullptr) {
    const std::span<const float> values = gradient(position, worker);
    for (const Run& run : runs) out = std::copy(values.begin() + run.from, values.begin() + run.to, out);
    return;
  }
  const DataFile& file = state_->file(position, worker);
  const std::int64_t block = (position - file.positions.from) * file.workers.size() + worker - file.workers.from;
  const float scale = file.scale.empty() ? 1.0F : file.scale[static_cast<std::size_t>(block / file.workers.size())];
  for (const Run& run : runs) {
    const auto size = static_cast<std::size_t>(run.to - run.from);
    decode_values(file.encoding, file.gradients + static_cast<std::size_t>(block * gradients() + run.from) * encoding_bytes(file.encoding),
                  size, scale, out);
    out += size;
  }
  // The pages are not needed again: without this they would count as this program's memory.
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto bytes = static_cast<std::uintptr_t>(gradients()) * encoding_bytes(file.encoding);
  const auto begin = reinterpret_cast<std::uintptr_t>(file.gradients) + static_cast<std::uintptr_t>(block) * bytes;
  const std::uintptr_t first = (begin + page - 1) / page * page, last = (begin + bytes) / page * page;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

void Trace::verify_checksums() const {
  for (const DataFile& file : state_->files) {
    const std::span<const std::byte> content = file.mapping->content();
    const std::string found = sha256_hex({reinterpret_cast<const char*>(content.data()), content.size()});
    if (found != file.sha256) throw InputError(file.path.string(), "", "SHA-256 " + file.sha256 + " as trace.json says", found);
  }
}

void Trace::verify_finite() const {
  std::uint64_t nans = 0, infinities = 0;
  std::string file, place, value;
  for (std::int64_t t = 0; t < iterations(); ++t)
    for (std::int64_t w = 0; w < workers(); ++w) {
      const std::span<const float> values = gradient(t, w);
      std::uint64_t bad = 0;
      for (const float v : values) bad += finite(v) ? 0 : 1;
      if (bad == 0) continue;
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (finite(values[i])) continue;
        (std::isnan(values[i]) ? nans : infinities) += 1;
        if (!place.empty()) continue;
        file = state_->file(t, w).path.string();
        value = number_text(values[i]);
        place = "iteration " + std::to_string(info().iterations[static_cast<std::size_t>(t)]) + ", worker " + std::to_string(w);
        for (const Layer& layer : info().layers)
          if (static_cast<std::int64_t>(i) < layer.offset + layer.size) {
            place += ", layer " + layer.name + ", element " + std::to_string(static_cast<std::int64_t>(i) - layer.offset);
            break;
          }
      }
    }
  if (!place.empty())
    throw InputError(file, place, "finite gradients",
                     value + " first, in all " + std::to_string(nans) + " NaN and " + std::to_string(infinities) + " infinite");
}

}  // namespace sparscale::traces
