#include "traces/trace_stream.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <new>
#include <vector>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "traces/encoding.hpp"

namespace sparscale::traces {
namespace {

static_assert(std::endian::native == std::endian::little, "streams are little-endian");

constexpr std::uint64_t largest_text = 100'000'000;            // of a head or frame, so that a wrong length does not ask for all memory
constexpr std::uint64_t piece_bytes = std::uint64_t{1} << 26;  // read at a time, for the same reason

}  // namespace

struct StreamSource::State {
  std::FILE* stream = nullptr;
  std::string name;
  TraceInfo info;
  std::int64_t workers = 0;
  std::int64_t current = -1;  // iteration that is held
  std::int64_t training_iteration = 0;
  bool ended = false;
  bool cut = false;          // ended without the length of 0 that a writer ends with
  std::uint64_t offset = 0;  // bytes read
  Encoding encoding = Encoding::f32;
  float scale = 1;
  std::vector<std::byte> data;
  std::vector<float> values;

  std::size_t read(void* out, std::size_t bytes) {
    const std::size_t got = std::fread(out, 1, bytes, stream);
    offset += got;
    return got;
  }

  [[noreturn]] void fail(std::uint64_t at, const std::string& expected, const std::string& found) const {
    throw InputError(name, "byte " + std::to_string(at), expected, found);
  }

  // A length and so much JSON; null at the end of the stream.
  Json read_json(const std::string& what) {
    std::uint64_t length = 0;
    const std::uint64_t start = offset;
    const std::size_t got = read(&length, sizeof length);
    cut = got == 0;
    if (cut || (got == sizeof length && length == 0)) return {};
    if (got < sizeof length) fail(start, "8 bytes of length before the " + what, std::to_string(got) + " bytes");
    if (length > largest_text)
      fail(start, "a length of the " + what + " of at most " + std::to_string(largest_text), std::to_string(length));
    std::string text(length, ' ');
    if (const std::size_t have = read(text.data(), length); have < length)
      fail(start, std::to_string(length) + " bytes of the " + what, std::to_string(have));
    Json json = parse_json(text, name + ": " + what + " at byte " + std::to_string(start + sizeof length));
    if (!json.is_object()) fail(start, "a JSON object", brief(json));
    return json;
  }

  bool next_frame() {
    const std::uint64_t start = offset;
    const Json frame = read_json("frame");
    if (frame.is_null()) {
      ended = true;
      return false;
    }
    const std::string place = "frame at byte " + std::to_string(start);
    if (!frame.contains("iteration") || !frame["iteration"].is_number_unsigned() || frame["iteration"].get<std::uint64_t>() > (1ULL << 53))
      throw InputError(name, place + ", /iteration", "an integer >= 0",
                       frame.contains("iteration") ? brief(frame["iteration"]) : "no such key");
    const auto number = frame["iteration"].get<std::int64_t>();
    if (current >= 0 && number != training_iteration + 1)
      throw InputError(name, place + ", /iteration", "consecutive iterations, here " + std::to_string(training_iteration + 1),
                       std::to_string(number));
    encoding = Encoding::f32;
    if (frame.contains("dtype")) {
      const std::optional<Encoding> given = frame["dtype"].is_string() ? encoding_of(frame["dtype"].get<std::string>()) : std::nullopt;
      if (!given) throw InputError(name, place + ", /dtype", "F32, F16 or BF16", brief(frame["dtype"]));
      encoding = *given;
    }
    scale = 1;
    if (frame.contains("scale")) {
      const double given = frame["scale"].is_number() ? frame["scale"].get<double>() : 0;
      scale = static_cast<float>(given);
      if (!(std::isfinite(scale) && scale > 0)) throw InputError(name, place + ", /scale", "a finite number > 0", brief(frame["scale"]));
    }
    const std::uint64_t bytes = checked_multiply(
        checked_multiply(static_cast<std::uint64_t>(info.workers), static_cast<std::uint64_t>(info.gradients), "workers x gradients"),
        encoding_bytes(encoding), "bytes of a frame");
    data.clear();
    const std::uint64_t first = offset;
    while (data.size() < bytes) {
      const std::size_t have = data.size(), wanted = static_cast<std::size_t>(std::min(piece_bytes, bytes - have));
      try {
        data.resize(have + wanted);
      } catch (const std::bad_alloc&) {
        throw RunError("not enough memory for " + std::to_string(bytes) + " bytes of a frame of " + name);
      }
      if (const std::size_t got = read(data.data() + have, wanted); got < wanted)
        fail(first, std::to_string(bytes) + " bytes of gradients (iteration " + std::to_string(number) + ")", std::to_string(have + got));
    }
    training_iteration = number;
    ++current;
    return true;
  }
};

StreamSource::StreamSource(std::FILE* stream, std::string name, std::int64_t workers) : state_(std::make_unique<State>()) {
  state_->stream = stream;
  state_->name = std::move(name);
  state_->workers = workers;
  Json head = state_->read_json("head");
  if (head.is_null()) state_->fail(0, "the head of a stream", "the end");
  for (const char* key : {"files", "iterations"})
    if (head.contains(key)) throw InputError(state_->name, "head, /" + std::string(key), "no such key in a stream", brief(head[key]));
  for (const char* key : {"forward_time_s", "backward_time_s", "learning_rate", "loss"}) head.erase(key);  // of a window, not of a stream
  head["iterations"] = {0};
  head["files"] =
      Json::array({{{"path", "x"}, {"workers", {0, 1}}, {"iterations", {0, 1}}, {"bytes", 1}, {"sha256", std::string(64, '0')}}});
  state_->info = read_trace_info(std::move(head), state_->name + ": head");
  if (workers < 1 || workers > state_->info.workers)
    throw InputError("workers", "1 to " + std::to_string(state_->info.workers) + ", the workers of the stream (a stream is not expanded)",
                     std::to_string(workers));
}

StreamSource::~StreamSource() = default;
const TraceInfo& StreamSource::info() const { return state_->info; }
bool StreamSource::cut() const { return state_->ended && state_->cut; }
std::int64_t StreamSource::workers() const { return state_->workers; }
std::int64_t StreamSource::gradients() const { return state_->info.gradients; }

bool StreamSource::has(std::int64_t iteration) {
  if (iteration < state_->current)
    throw InputError(state_->name, "", "iterations in order: a stream cannot go back to " + std::to_string(iteration),
                     std::to_string(state_->current));
  while (state_->current < iteration)
    if (state_->ended || !state_->next_frame()) return false;
  return true;
}

std::span<const float> StreamSource::gradient(std::int64_t iteration, std::int64_t worker) {
  if (!has(iteration))
    throw InputError(state_->name, "byte " + std::to_string(state_->offset), "iteration " + std::to_string(iteration) + " of the stream",
                     "its end after " + std::to_string(state_->current + 1));
  const auto count = static_cast<std::size_t>(state_->info.gradients);
  state_->values.resize(count);
  decode_values(state_->encoding, state_->data.data() + static_cast<std::size_t>(worker) * count * encoding_bytes(state_->encoding), count,
                state_->scale, state_->values.data());
  return state_->values;
}

}  // namespace sparscale::traces
