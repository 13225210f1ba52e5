#include "traces/trace.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <thread>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/random.hpp"
#include "tests/catch.hpp"
#include "tests/command.hpp"
#include "traces/half.hpp"
#include "traces/trace_report.hpp"
#include "traces/trace_writer.hpp"

using namespace sparscale;
using namespace sparscale::traces;
namespace fs = std::filesystem;

namespace {

Json small_manifest() {
  return parse_json(R"({"schema_version":1,"name":"small","gradients":10,"workers":3,"iterations":[7,8],
    "layers":[{"name":"a","shape":[2,3],"offset":0,"size":6},{"name":"b","shape":[4],"offset":6,"size":4}],
    "learning_rate":[0.5,0.25]})",
                    "small");
}

std::vector<float> small_gradient(std::int64_t t, std::int64_t w) {
  Random random(stream_key(3, "test", {static_cast<std::uint64_t>(t), static_cast<std::uint64_t>(w)}));
  std::vector<float> values(10);
  for (float& value : values) value = static_cast<float>(random.normal() * 0.01);
  return values;
}

void write_small(const fs::path& path, const TraceWriteOptions& options = {},
                 const std::function<void(std::vector<float>&, std::int64_t, std::int64_t)>& change = {}) {
  std::vector<float> values;
  write_trace(
      path, small_manifest(),
      [&](std::int64_t t, std::int64_t w) -> std::span<const float> {
        values = small_gradient(t, w);
        if (change) change(values, t, w);
        return values;
      },
      options);
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

// What is wrong with `path`, without its name.
std::string open_error(const fs::path& path) {
  std::string text = error_of([&] { Trace::open(path); });
  for (std::size_t at = text.find(path.string()); at != std::string::npos; at = text.find(path.string()))
    text.replace(at, path.string().size(), "T");
  return text;
}

void edit_manifest(const fs::path& path, const std::function<void(Json&)>& change) {
  Json manifest = load_json(path / "trace.json");
  change(manifest);
  write_file_atomic(path / "trace.json", manifest.dump(1));
}

// A data file with this header and data, and a manifest that agrees with its size.
void replace_data(const fs::path& path, const std::string& header, const std::string& data, std::uint64_t length) {
  std::string content(8, '\0');
  std::memcpy(content.data(), &length, 8);
  content += header + data;
  write_file_atomic(path / "workers.safetensors", content);
  edit_manifest(path, [&](Json& m) { m["files"][0]["bytes"] = content.size(); });
}

std::string header_error(const std::string& header, std::size_t data_bytes = 240, std::int64_t length = -1) {
  const tests::Scratch folder("trace");
  write_small(folder / "t");
  replace_data(folder / "t", header, std::string(data_bytes, '\0'), length < 0 ? header.size() : static_cast<std::uint64_t>(length));
  return open_error(folder / "t");
}

std::string manifest_error(const std::function<void(Json&)>& change) {
  const tests::Scratch folder("trace");
  write_small(folder / "t");
  edit_manifest(folder / "t", change);
  return open_error(folder / "t");
}

fs::path sample(const char* name) { return fs::path(SPARSCALE_SOURCE_DIRECTORY) / "traces" / "samples" / name; }

}  // namespace

TEST_CASE("The digits sample is used in place, bit for bit") {
  const Trace trace = Trace::open(sample("digits-cnn-8w"));
  CHECK(trace.gradients() == 34862);
  CHECK(trace.workers() == 8);
  CHECK(trace.iterations() == 10);
  CHECK(trace.info().layers.size() == 13);
  CHECK(trace.info().layers[9].name == "fc1.weight");
  CHECK(trace.info().data_order == "iid");
  CHECK(trace.info().learning_rate == std::vector<double>(10, 0.05));
  CHECK(trace.info().full_gradients == 34862);
  REQUIRE(trace.info().forward_time_s);
  CHECK(*trace.info().forward_time_s == Approx(0.001057926500));
  CHECK(trace.decoded_bytes() == 0);
  CHECK(trace.content_sha256() == sha256_hex_of_file(sample("digits-cnn-8w") / "trace.json"));
  const std::string file = read_file(sample("digits-cnn-8w") / "workers.safetensors");
  for (const auto& [t, w] : {std::pair<std::int64_t, std::int64_t>{0, 0}, {4, 3}, {9, 7}}) {
    const auto g = trace.gradient(t, w);
    REQUIRE(g.size() == 34862);
    CHECK(std::memcmp(g.data(), file.data() + 128 + 4 * 34862 * (t * 8 + w), 4 * 34862) == 0);
  }
  trace.verify_checksums();
  trace.verify_finite();
}

TEST_CASE("The King James sample is unscaled F16") {
  const Trace trace = Trace::open(sample("kjv-lstm-8w"));
  CHECK(trace.info().data_order == "stateful");
  CHECK(trace.decoded_bytes() == 4ULL * 8 * 8 * 34200);
  const std::string file = read_file(sample("kjv-lstm-8w") / "workers.safetensors");
  const std::size_t data = 192;
  for (std::int64_t t = 0; t < 8; ++t) {
    float scale = 0;
    std::memcpy(&scale, file.data() + data + 4377600 + 4 * t, 4);
    const auto g = trace.gradient(t, 5);
    bool same = true;
    for (std::size_t i = 0; i < g.size(); ++i) {
      std::uint16_t half = 0;
      std::memcpy(&half, file.data() + data + 2 * (34200 * (static_cast<std::size_t>(t) * 8 + 5) + i), 2);
      const int exponent = (half >> 10) & 31, fraction = half & 1023;
      const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
      same = same && g[i] == static_cast<float>((half & 0x8000 ? -magnitude : magnitude) / scale);
    }
    CHECK(same);
  }
  trace.verify_checksums();
  trace.verify_finite();
}

TEST_CASE("Every half and its float are each other's image") {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const int exponent = (half >> 10) & 31, fraction = half & 1023;
    const float value = float_from_half(half);
    if (exponent == 31) {
      REQUIRE((fraction != 0 ? std::isnan(value) : std::isinf(value)));
      continue;
    }
    const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    REQUIRE(std::abs(static_cast<double>(value)) == magnitude);
    REQUIRE(std::signbit(value) == (half >> 15 == 1));
    REQUIRE(half_from_float(value) == half);
    // Halfway to the next goes to the even one, a little more or less to the nearer one.
    if (exponent < 30) {
      const auto next = static_cast<std::uint16_t>(half + 1);
      const float middle = (value + float_from_half(next)) / 2;
      REQUIRE(half_from_float(middle) == (half % 2 == 0 ? half : next));
      REQUIRE(half_from_float(std::nextafter(middle, value)) == half);
      REQUIRE(half_from_float(std::nextafter(middle, float_from_half(next))) == next);
    }
  }
  CHECK(half_from_float(65519.996F) == 0x7bff);
  CHECK(half_from_float(65520.0F) == 0x7c00);
  CHECK(half_from_float(-std::numeric_limits<float>::infinity()) == 0xfc00);
  CHECK(std::isnan(float_from_half(half_from_float(std::numeric_limits<float>::quiet_NaN()))));
  CHECK(float_from_bfloat16(0x3fc0) == 1.5F);
}

TEST_CASE("What is written reads back, in one file or several") {
  const tests::Scratch folder("trace");
  write_small(folder / "one");
  write_small(folder / "many", {.half = false, .workers_per_file = 2});
  CHECK(fs::exists(folder / "many" / "workers-2.safetensors"));
  for (const char* name : {"one", "many"}) {
    const Trace trace = Trace::open(folder / name);
    trace.verify_checksums();
    for (std::int64_t t = 0; t < 2; ++t)
      for (std::int64_t w = 0; w < 3; ++w) {
        const auto g = trace.gradient(t, w);
        CHECK(std::vector<float>(g.begin(), g.end()) == small_gradient(t, w));
      }
    CHECK_THROWS_AS(trace.gradient(2, 0), InputError);
    CHECK_THROWS_AS(trace.gradient(0, 3), InputError);
  }
  CHECK_THROWS_WITH(write_small(folder / "one"), ContainsSubstring("something that would be overwritten"));
  std::size_t left = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder.path())) ++left;
  CHECK(left == 2);
}

TEST_CASE("Scaled F16 keeps eleven bits of tiny gradients") {
  const tests::Scratch folder("trace");
  write_small(folder / "t", {.half = true, .workers_per_file = 2}, [](std::vector<float>& g, std::int64_t, std::int64_t) {
    for (float& value : g) value *= 1e-9F;
  });
  const Trace trace = Trace::open(folder / "t");
  trace.verify_checksums();
  CHECK(trace.decoded_bytes() == 4 * 2 * 3 * 10);
  for (std::int64_t w = 0; w < 3; ++w) {
    const auto g = trace.gradient(1, w), again = trace.gradient(1, w);
    CHECK(g.data() == again.data());
    const auto truth = small_gradient(1, w);
    for (std::size_t i = 0; i < g.size(); ++i) CHECK(g[i] == Approx(truth[i] * 1e-9).epsilon(0.0005).margin(1e-15));
  }
}

TEST_CASE("A failed write leaves nothing behind") {
  const tests::Scratch folder("trace");
  CHECK_THROWS_WITH(write_trace(folder / "t", small_manifest(), [](std::int64_t, std::int64_t) { return std::span<const float>(); }),
                    "gradient of position 0, worker 0: expected 10 values, found 0");
  Json wrong = small_manifest();
  wrong["layers"][1]["offset"] = 5;
  std::vector<float> values(10);
  CHECK_THROWS_AS(write_trace(folder / "t", wrong, [&](std::int64_t, std::int64_t) { return std::span<const float>(values); }), InputError);
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("BF16, one worker without its axis, unaligned data and further tensors are read") {
  const tests::Scratch folder("trace");
  write_small(folder / "t");
  edit_manifest(folder / "t", [](Json& m) {
    m["workers"] = 1;
    m["files"][0]["workers"] = {0, 1};
  });
  const std::array<std::uint16_t, 20> values = {0x3f80, 0xbf80, 0x4000, 0x3fc0};
  std::string data(reinterpret_cast<const char*>(values.data()), 40);
  std::string header =
      R"({"__metadata__":{"a":"b"},"residual":{"dtype":"F64","shape":[1],"data_offsets":[40,48]},"grad":{"dtype":"BF16","shape":[2,10],"data_offsets":[0,40]}})";
  if (header.size() % 2 == 0) header += ' ';
  replace_data(folder / "t", header, data + std::string(8, '\0'), header.size());
  const Trace bf16 = Trace::open(folder / "t");
  CHECK(bf16.gradient(0, 0)[1] == -1.0F);
  CHECK(bf16.gradient(0, 0)[3] == 1.5F);

  const std::array<float, 20> floats = {1, 2, 3};
  data.assign(reinterpret_cast<const char*>(floats.data()), 80);
  header = R"({"grad":{"dtype":"F32","shape":[2,1,10],"data_offsets":[0,80]}})";
  while (header.size() % 4 != 3) header += ' ';
  replace_data(folder / "t", header, data, header.size());
  const Trace unaligned = Trace::open(folder / "t");
  CHECK(unaligned.decoded_bytes() == 80);
  CHECK(unaligned.gradient(0, 0)[2] == 3.0F);
}

TEST_CASE("Many threads may ask for the same gradient") {
  const Trace trace = Trace::open(sample("kjv-lstm-8w"));
  std::array<double, 4> sums{};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < sums.size(); ++i)
    threads.emplace_back([&trace, &sums, i] {
      for (std::int64_t w = 0; w < 8; ++w)
        for (const float value : trace.gradient(2, w)) sums[i] += std::abs(static_cast<double>(value));
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(sums[0] > 0);
  for (const double sum : sums) CHECK(sum == sums[0]);
}

TEST_CASE("A missing folder, manifest or file is named") {
  const tests::Scratch folder("trace");
  CHECK(open_error(folder / "t") == "T: expected a trace folder, found nothing");
  fs::create_directories(folder / "t");
  CHECK(open_error(folder / "t") == "T/trace.json: expected a file, found none");
  fs::remove_all(folder / "t");
  write_small(folder / "t");
  fs::remove(folder / "t" / "workers.safetensors");
  CHECK_THAT(open_error(folder / "t"), StartsWith("T/workers.safetensors: expected a readable file, found No such file"));
  fs::create_directories(folder / "t" / "workers.safetensors");
  CHECK(open_error(folder / "t") == "T/workers.safetensors: expected a regular file, found something else");
}

TEST_CASE("A truncated, grown or empty data file is refused") {
  const tests::Scratch folder("trace");
  write_small(folder / "t");
  const fs::path file = folder / "t" / "workers.safetensors";
  const auto size = fs::file_size(file);
  const std::string bytes = std::to_string(size);
  fs::resize_file(file, size - 1);
  CHECK(open_error(folder / "t") == "T/workers.safetensors: byte " + std::to_string(size - 1) + ": expected " + bytes +
                                        " bytes as trace.json says at /files/0/bytes, found " + std::to_string(size - 1));
  fs::resize_file(file, size + 5);
  CHECK_THAT(open_error(folder / "t"), StartsWith("T/workers.safetensors: byte " + bytes + ": expected " + bytes));
  fs::resize_file(file, 0);
  CHECK_THAT(open_error(folder / "t"), StartsWith("T/workers.safetensors: byte 0: expected " + bytes));
  fs::resize_file(file, 5);
  edit_manifest(folder / "t", [](Json& m) { m["files"][0]["bytes"] = 5; });
  CHECK(open_error(folder / "t") == "T/workers.safetensors: byte 0: expected 8 bytes of header length, found a file of 5 bytes");
}

TEST_CASE("A broken safetensors header is refused with its place") {
  const std::string good = R"({"grad":{"dtype":"F32","shape":[2,3,10],"data_offsets":[0,240]}})";
  CHECK(header_error(good) == "no error");
  CHECK(header_error(good, 240, 1LL << 62) == "T/workers.safetensors: byte 0: expected a header length of at most " +
                                                  std::to_string(good.size() + 240) + ", found 4611686018427387904");
  CHECK_THAT(header_error(good, 240, 20), StartsWith("T/workers.safetensors: header from byte 8: byte 21: expected JSON"));
  CHECK_THAT(header_error("[1]"), StartsWith("T/workers.safetensors: byte 8: expected a JSON object"));
  CHECK(header_error("{}", 0) == "T/workers.safetensors: header: expected a tensor \"grad\", found none");
  CHECK(header_error(R"({"grad":{"dtype":"I32","shape":[2,3,10],"data_offsets":[0,240]}})") ==
        "T/workers.safetensors: header /grad/dtype: expected F32, F16 or BF16, found I32");
  CHECK(header_error(R"({"grad":{"dtype":"X9","shape":[2,3,10],"data_offsets":[0,240]}})") ==
        "T/workers.safetensors: header /grad/dtype: expected a safetensors element type, found \"X9\"");
  CHECK(header_error(R"({"grad":{"dtype":"F32","shape":[3,2,10],"data_offsets":[0,240]}})") ==
        "T/workers.safetensors: header /grad/shape: expected [2, 3, 10] ([iterations, workers, gradients]), found [3, 2, 10]");
  CHECK(header_error(R"({"grad":{"dtype":"F32","shape":[2,3,-10],"data_offsets":[0,240]}})") ==
        "T/workers.safetensors: header /grad/shape/2: expected an integer >= 0, found -10");
  CHECK(header_error(R"({"grad":{"dtype":"F32","shape":[4611686018427387904,4611686018427387904],"data_offsets":[0,240]}})") ==
        "T/workers.safetensors: header /grad/shape: expected fewer than 2^64 bytes, found [4611686018427387904,4611686018427387904]");
  CHECK(header_error(R"({"grad":{"dtype":"F32","shape":[2,3,10],"data_offsets":[0,244]}})") ==
        "T/workers.safetensors: header /grad/data_offsets: expected a range inside the 240 bytes of data, found [0,244]");
  CHECK_THAT(header_error(R"({"grad":{"dtype":"F32","shape":[2,3,10],"data_offsets":[240,0]}})"),
             ContainsSubstring("expected a range inside"));
  CHECK(header_error(R"({"grad":{"dtype":"F32","shape":[2,3,10],"data_offsets":[0,236]}})") ==
        "T/workers.safetensors: header /grad/data_offsets: expected 240 bytes for F32 [2,3,10], found 236");
  CHECK(header_error(R"({"grad":{"dtype":"F32","shape":[2,3,10]}})") ==
        "T/workers.safetensors: header /grad: expected the key \"data_offsets\", found no such key");
  CHECK(header_error(good, 243) == "T/workers.safetensors: byte " + std::to_string(8 + good.size() + 240) +
                                       ": expected the end of the file, found 3 bytes that belong to no tensor");
  CHECK(
      header_error(
          R"({"grad":{"dtype":"F32","shape":[2,3,10],"data_offsets":[0,240]},"more":{"dtype":"F32","shape":[1],"data_offsets":[236,240]}})") ==
      "T/workers.safetensors: header /more/data_offsets: expected tensors side by side, this one from byte 240 of the data, found 236");
  CHECK(header_error(R"({"grad":{"dtype":"F32","shape":[2,3,10],"data_offsets":[4,244]}})", 244) ==
        "T/workers.safetensors: header /grad/data_offsets: expected tensors side by side, this one from byte 0 of the data, found 4");
  const std::string scaled =
      R"({"grad":{"dtype":"F16","shape":[2,3,10],"data_offsets":[0,120]},"scale":{"dtype":"F32","shape":[2],"data_offsets":[120,128]}})";
  CHECK(header_error(scaled, 128) ==
        "T/workers.safetensors: byte " + std::to_string(8 + scaled.size() + 120) + ": expected a finite scale > 0, found 0");
  CHECK(
      header_error(
          R"({"grad":{"dtype":"F16","shape":[2,3,10],"data_offsets":[0,120]},"scale":{"dtype":"F32","shape":[3],"data_offsets":[120,132]}})",
          132) == "T/workers.safetensors: header /scale/shape: expected [2] ([iterations]), found [3]");
}

TEST_CASE("A wrong manifest is refused with its pointer") {
  CHECK(manifest_error([](Json& m) { m["unknown"] = {{"kept", 1}}; }) == "no error");
  CHECK(manifest_error([](Json& m) { m["schema_version"] = 2; }) == "T/trace.json: /schema_version: expected 1, found 2");
  CHECK(manifest_error([](Json& m) { m.erase("workers"); }) == "T/trace.json: /: expected the key \"workers\", found no such key");
  CHECK(manifest_error([](Json& m) { m["name"] = 5; }) == "T/trace.json: /name: expected string that is not empty, found 5");
  CHECK(manifest_error([](Json& m) { m["data_order"] = "random"; }) ==
        "T/trace.json: /data_order: expected one of iid, stateful, found \"random\"");
  CHECK(manifest_error([](Json& m) { m["gradients"] = -1; }) ==
        "T/trace.json: /gradients: expected integer >= 1 <= 9007199254740992, found -1");
  CHECK_THAT(manifest_error([](Json& m) { m["gradients"] = 18446744073709551615ULL; }),
             StartsWith("T/trace.json: /gradients: expected integer"));
  CHECK_THAT(manifest_error([](Json& m) { m["workers"] = 9007199254740992LL; }),
             StartsWith("T/trace.json: /files: expected every iteration and worker in a file"));
  CHECK_THAT(manifest_error([](Json& m) { m["files"][0]["sha256"] = "abc"; }),
             StartsWith("T/trace.json: /files/0/sha256: expected string matching"));
  CHECK_THAT(manifest_error([](Json& m) { m["files"][0]["bytes"] = "240"; }), StartsWith("T/trace.json: /files/0/bytes: expected integer"));
  CHECK(manifest_error([](Json& m) {
          m["iterations"] = {7, 9};
        }) == "T/trace.json: /iterations/1: expected consecutive iterations, here 8, found 9");
  CHECK(manifest_error([](Json& m) { m["learning_rate"] = {0.1}; }) ==
        "T/trace.json: /learning_rate: expected one per iteration, 2, found 1");
  CHECK(manifest_error([](Json& m) { m["full_gradients"] = 9; }) ==
        "T/trace.json: /full_gradients: expected at least /gradients, 10, found 9");
  CHECK(manifest_error([](Json& m) { m["layers"][1]["offset"] = 5; }) ==
        "T/trace.json: /layers/1/offset: expected 6, the end of the layer before, found 5");
  CHECK(manifest_error([](Json& m) { m["layers"][0]["size"] = 5; }) ==
        "T/trace.json: /layers/0/size: expected 6 as the shape says, found 5");
  CHECK_THAT(manifest_error([](Json& m) {
               m["layers"][1]["shape"] = {1LL << 40, 1LL << 40};
             }),
             StartsWith("T/trace.json: /layers/1/shape: expected fewer than 2^63"));
  CHECK(manifest_error([](Json& m) { m["layers"].erase(1); }) ==
        "T/trace.json: /layers: expected layers that end at /gradients, 10, found 6");
  CHECK(manifest_error([](Json& m) { m["gradients"] = 9; }) ==
        "T/trace.json: /layers/1/size: expected layers that end at /gradients, 9, found a layer up to 6 + 4");
  CHECK(manifest_error([](Json& m) {
          m["forward_time_s"] = {0.1, 0.2, 0.3};
        }) == "T/trace.json: /forward_time_s: expected one time per layer, 2, found 3");
  for (const char* path : {"../t/workers.safetensors", "/etc/passwd", "a/../../x", "sub/", "..", "."})
    CHECK(manifest_error([&](Json& m) { m["files"][0]["path"] = path; }) != "no error");
  CHECK(manifest_error([](Json& m) { m["files"][0]["path"] = "../t/workers.safetensors"; }) ==
        "T/trace.json: /files/0/path: expected a path inside the trace's folder, found \"../t/workers.safetensors\"");
  CHECK(manifest_error([](Json& m) {
          m["files"][0]["workers"] = {0, 4};
        }) == "T/trace.json: /files/0/workers: expected [from, to) with from < to <= 3, found [0,4]");
  CHECK(manifest_error([](Json& m) {
          m["files"][0]["iterations"] = {1, 1};
        }) == "T/trace.json: /files/0/iterations: expected [from, to) with from < to <= 2, found [1,1]");
  CHECK(manifest_error([](Json& m) { m["files"].push_back(m["files"][0]); }) ==
        "T/trace.json: /files/1: expected every iteration and worker in one file, found position 0, worker 0 also in /files/0");
  CHECK(manifest_error([](Json& m) { m["workers"] = 4; }) ==
        "T/trace.json: /files: expected every iteration and worker in a file, 8 pairs, found 6");
  const tests::Scratch folder("trace");
  write_small(folder / "t");
  write_file_atomic(folder / "t" / "trace.json", "{\"schema_version\": 1,");
  CHECK_THAT(open_error(folder / "t"), StartsWith("T/trace.json: byte 22: expected JSON"));
  write_file_atomic(folder / "t" / "trace.json", "{\"a\":" + std::string(200000, '[') + std::string(200000, ']') + "}");
  CHECK(open_error(folder / "t") == "T/trace.json: expected JSON nested at most 500 deep, found deeper nesting");
  write_file_atomic(folder / "t" / "trace.json", "{\"a\":1e999}");
  CHECK(open_error(folder / "t") == "T/trace.json: /a: expected numbers that a double can hold, found number overflow parsing '1e999'");
  write_file_atomic(folder / "t" / "trace.json", "[]");
  CHECK(open_error(folder / "t") == "T/trace.json: /: expected an object, found []");
}

TEST_CASE("Overlapping files are refused, times per layer are summed") {
  const tests::Scratch folder("trace");
  write_small(folder / "t", {.half = false, .workers_per_file = 2});
  edit_manifest(folder / "t", [](Json& m) { m["forward_time_s"] = {0.25, 0.5}; });
  CHECK(*Trace::open(folder / "t").info().forward_time_s == 0.75);
  edit_manifest(folder / "t", [](Json& m) { m["files"][1]["workers"] = {1, 2}; });
  CHECK(open_error(folder / "t") ==
        "T/trace.json: /files/1: expected every iteration and worker in one file, found position 0, worker 1 also in /files/0");
}

TEST_CASE("Random damage to manifest or header is an error in one line or harmless") {
  const tests::Scratch folder("trace");
  const fs::path trace = folder / "t";
  write_small(trace, {.half = true, .workers_per_file = 0});
  const std::string manifest = read_file(trace / "trace.json"), data = read_file(trace / "workers.safetensors");
  Random random(stream_key(1, "damage"));
  const std::string alphabet = "0123456789{}[],:\"-.e\\x \xff";
  int refused = 0;
  for (int i = 0; i < 600; ++i) {
    std::string text = manifest, content = data;
    std::string& victim = i % 2 == 0 ? text : content;
    for (std::uint64_t changes = 1 + random.below(3); changes > 0; --changes) {
      const std::size_t at = random.below(i % 2 == 0 ? victim.size() : 8 + data.find('}') + 2);
      const char byte = i % 4 == 3 ? static_cast<char>(random.below(256)) : alphabet[random.below(alphabet.size())];
      if (random.below(3) == 0)
        victim.erase(at, 1 + random.below(4));
      else
        victim[at] = byte;
    }
    if (i % 2 == 1) {
      // The size is made to agree, so that the header is what is looked at.
      Json changed = parse_json(manifest, "manifest");
      changed["files"][0]["bytes"] = content.size();
      text = changed.dump();
    }
    std::ofstream(trace / "trace.json", std::ios::binary) << text;
    std::ofstream(trace / "workers.safetensors", std::ios::binary) << content;
    try {
      const Trace damaged = Trace::open(trace);
      damaged.gradient(damaged.iterations() - 1, damaged.workers() - 1);
    } catch (const InputError& error) {
      ++refused;
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
    }
  }
  CHECK(refused > 300);
}

TEST_CASE("Changed bytes are found by their checksum") {
  const tests::Scratch folder("trace");
  write_small(folder / "t");
  const fs::path file = folder / "t" / "workers.safetensors";
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(-3, std::ios::end);
  stream.put('\x7f');
  stream.close();
  const Trace trace = Trace::open(folder / "t");
  const std::string expected = load_json(folder / "t" / "trace.json")["files"][0]["sha256"].get<std::string>();
  CHECK(error_of([&] { trace.verify_checksums(); }) ==
        file.string() + ": expected SHA-256 " + expected + " as trace.json says, found " + sha256_hex_of_file(file));
}

TEST_CASE("NaN and infinity are counted and the first is named") {
  for (const bool half : {false, true}) {
    const tests::Scratch folder("trace");
    write_small(folder / "t", {.half = half, .workers_per_file = 0}, [](std::vector<float>& g, std::int64_t t, std::int64_t w) {
      if (t == 1 && w == 1) g[7] = std::numeric_limits<float>::quiet_NaN();
      if (t == 1 && w == 2) g[0] = -std::numeric_limits<float>::infinity();
      if (t == 1 && w == 2) g[1] = std::numeric_limits<float>::quiet_NaN();
    });
    const Trace trace = Trace::open(folder / "t");
    CHECK(error_of([&] { trace.verify_finite(); }) ==
          (folder / "t" / "workers.safetensors").string() +
              ": iteration 8, worker 1, layer b, element 1: expected finite gradients, found nan first, in all 2 NaN and 1 infinite");
  }
}

TEST_CASE("The report gives norms, shares and cosines") {
  const tests::Scratch folder("trace");
  // Worker 0 and 1 point the same way, worker 2 is orthogonal to both; layer a holds 9 / 25 of the energy of worker 0.
  write_small(folder / "t", {}, [](std::vector<float>& g, std::int64_t, std::int64_t w) {
    std::fill(g.begin(), g.end(), 0.0F);
    if (w == 2) {
      g[1] = 5;
    } else {
      g[0] = w == 0 ? 3.0F : 6.0F;
      g[9] = w == 0 ? 4.0F : 8.0F;
    }
  });
  const Json report = trace_report(Trace::open(folder / "t"));
  CHECK(report["gradient_norm_mean"].get<double>() == Approx(20.0 / 3));
  CHECK(report["worker_cosine"].get<double>() == Approx(1.0 / 3));
  CHECK(report["gradient_norm_variation"].get<double>() == Approx(std::sqrt(25.0 / 3) / (20.0 / 3)));
  CHECK(report["zero_share"].get<double>() == Approx(25.0 / 30));
  CHECK(report["layers"][0]["energy_share"].get<double>() == Approx((9 + 36 + 25) / 150.0));
  CHECK(report["layers"][1]["parameter_share"].get<double>() == Approx(0.4));
  CHECK(report["first_iteration"] == 7);
  const auto lines = trace_report_lines(report);
  CHECK(lines[0] == "name                    small");
  CHECK(lines.back() == "b          4           4     40.00 %   53.33 %    0.00 %   83.33 %       4.0      -");
}

TEST_CASE("The report gives tail index, kurtosis and share of the largest") {
  const tests::Scratch folder("trace");
  // Layer a: magnitudes with P(|x| > y) = y^-2, alternating signs; layer b: +-0.5, half of them zero.
  std::vector<float> values;
  for (int i = 0; i < 5000; ++i)
    values.push_back(static_cast<float>((i % 2 == 0 ? 1 : -1) * std::pow((static_cast<double>(i * 2999 % 5000) + 0.5) / 5000, -0.5)));
  for (int i = 0; i < 5000; ++i) values.push_back(i % 2 == 0 ? 0.0F : i % 4 == 1 ? 0.5F : -0.5F);
  write_trace(folder / "t",
              parse_json(R"({"schema_version":1,"name":"tails","gradients":10000,"workers":1,"iterations":[0],
        "layers":[{"name":"a","shape":[5000],"offset":0,"size":5000},{"name":"b","shape":[5000],"offset":5000,"size":5000}]})",
                         "tails"),
              [&](std::int64_t, std::int64_t) { return std::span<const float>(values); });
  const Json layers = trace_report(Trace::open(folder / "t"))["layers"];
  CHECK(layers[0]["tail_index"].get<double>() == Approx(2).epsilon(0.1));
  CHECK(layers[0]["kurtosis"].get<double>() > 20);
  CHECK(layers[0]["top_share"].get<double>() == 1);
  CHECK(layers[0]["zero_share"] == 0);
  CHECK(layers[1]["tail_index"].is_null());  // all alike
  CHECK(layers[1]["kurtosis"].get<double>() == Approx(2));
  CHECK(layers[1]["top_share"] == 0);
  CHECK(layers[1]["zero_share"].get<double>() == Approx(0.5));
}
