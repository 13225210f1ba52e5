// The replay's own bookkeeping: residuals, warm-up, switches, refusals, records.
#include <filesystem>
#include <limits>

#include "base/error.hpp"
#include "base/files.hpp"
#include "tests/catch.hpp"
#include "tests/sparsifier_support.hpp"

using namespace sparscale;
using namespace sparscale::sim;
using namespace sparscale::test;

namespace {

const std::string sample = std::string(SPARSCALE_SOURCE_DIRECTORY) + "/traces/samples/digits-cnn-8w";

std::unique_ptr<traces::GradientSource> table(const std::vector<std::vector<std::vector<float>>>& values) {
  return std::make_unique<MadeGradients>(std::ssize(values.front()), std::ssize(values.front().front()),
                                         [values](std::int64_t t, std::int64_t worker, std::vector<float>& gradient) {
                                           gradient = values[static_cast<std::size_t>(t) % values.size()][static_cast<std::size_t>(worker)];
                                         });
}

}  // namespace

TEST_CASE("The residual is what was not exchanged, at the union of all workers") {
  // k = 1 of N = 4. Worker 0 sends index 0, worker 1 index 3; both lose both.
  Replay replay(table({{{4, 1, 2, 3}, {1, 2, 0, 5}}, {{0, 1.5F, 0, 0}, {0, 0, 0, 0}}}), layers_of_sizes({4}), options_of("topk", 0.25, 2));
  Json record = replay.next();
  CHECK(record.at("union") == 2);
  CHECK(record.at("residual_norm").at(0).get<double>() == Approx(std::sqrt(5.0)).epsilon(1e-12));
  CHECK(record.at("residual_norm").at(1).get<double>() == Approx(2.0).epsilon(1e-12));
  CHECK(record.at("energy_exchanged").get<double>() == Approx((16 + 9 + 1 + 25) / 60.0).epsilon(1e-12));
  CHECK(record.at("density") == 0.5);
  CHECK(record.at("build_up") == 2.0);
  CHECK(record.at("padding") == 1.0);
  // a = {0, 2.5, 2, 0} and {0, 2, 0, 0}.
  record = replay.next();
  CHECK(record.at("union") == 1);
  CHECK(record.at("threshold").dump() == "[2.5,2.0]");
  CHECK(record.at("residual_norm").dump() == "[2.0,0.0]");
}

TEST_CASE("Without error feedback nothing is carried over") {
  auto options = options_of("topk", 0.25, 1);
  options.error_feedback = false;
  Replay replay(table({{{4, 1, 2, 3}}}), layers_of_sizes({4}), options);
  for (int t = 0; t < 3; ++t) CHECK(replay.next().at("threshold") == 4.0);
  Replay fed(table({{{4, 1, 2, 3}}}), layers_of_sizes({4}), options_of("topk", 0.25, 1));
  CHECK(fed.next().at("threshold") == 4.0);
  CHECK(fed.next().at("threshold") == 6.0);
}

TEST_CASE("The learning rate scales gradients inside the accumulator when asked") {
  const traces::Trace trace = traces::Trace::open(sample);
  auto options = options_of("topk", 0.01, 3);
  options.hashes = true;
  options.expansion = "captured";
  Replay outside(trace, options);
  options.lr_in_accumulator = true;
  Replay inside(trace, options);
  const Json a = outside.next(), b = inside.next();
  // The rate is 0.05 in every iteration, so the first selection is the same and the threshold 0.05 of it.
  CHECK(a.at("selected_sha256") == b.at("selected_sha256"));
  CHECK(b.at("threshold").at(1).get<double>() == Approx(0.05 * a.at("threshold").at(1).get<double>()).epsilon(1e-6));
  CHECK(message_of([&] {
          auto made = options_of("topk", 0.25, 1);
          made.lr_in_accumulator = true;
          Replay(table({{{1, 2, 3, 4}}}), layers_of_sizes({4}), made);
        }) == "gradients: lr_in_accumulator: expected a trace with a learning_rate for every iteration, found one without");
}

TEST_CASE("Warm-up runs the same iterations without recording them") {
  const auto options = options_of("exdyna", 0.02, 3, {{"blocks", 64}});
  Replay cold(normal_gradients(3, 3000, 9), layers_of_sizes({3000}), options);
  auto warm_options = options;
  warm_options.warmup = 7;
  Replay warm(normal_gradients(3, 3000, 9), layers_of_sizes({3000}), warm_options);
  for (int t = 0; t < 7; ++t) cold.next();
  for (int t = 0; t < 3; ++t) {
    Json expected = cold.next();
    Json found = warm.next();
    CHECK(expected.at("iteration") == t + 7);
    CHECK(found.at("iteration") == t);
    expected["iteration"] = t;
    CHECK(expected.dump() == found.dump());
  }
}

TEST_CASE("Norms can be left out and change nothing else") {
  auto options = options_of("hard_threshold", 0.02, 3, {{"threshold", 3.0}});
  Replay with(normal_gradients(3, 40000, 9), layers_of_sizes({40000}), options);
  options.norms = false;
  Replay without(normal_gradients(3, 40000, 9), layers_of_sizes({40000}), options);
  for (int t = 0; t < 3; ++t) {
    Json a = with.next(), b = without.next();
    CHECK_FALSE(b.contains("residual_norm"));
    CHECK_FALSE(b.contains("energy_exchanged"));
    CHECK(a.at("energy_exchanged").get<double>() > 0);
    a.erase("residual_norm");
    a.erase("energy_exchanged");
    CHECK(a.dump() == b.dump());
  }
}

TEST_CASE("Dense replays read no gradient and say that everything was sent") {
  auto options = options_of("dense", 0.01, 4);
  options.hashes = true;
  const auto poison = std::make_unique<MadeGradients>(4, 5, [](std::int64_t, std::int64_t, std::vector<float>&) { FAIL("gradient read"); });
  Replay replay(std::make_unique<MadeGradients>(*poison), layers_of_sizes({5}), options);
  const Json record = replay.next();
  CHECK(record.at("target_k") == 5);
  CHECK(record.at("selected").dump() == "[5,5,5,5]");
  CHECK(record.at("union") == 5);
  CHECK(record.at("density") == 1.0);
  CHECK(record.at("build_up") == 1.0);
  CHECK(record.at("padding") == 1.0);
  CHECK(record.at("threshold").is_null());
  CHECK(record.at("residual_norm").dump() == "[0.0,0.0,0.0,0.0]");
  CHECK(record.at("union_sha256") == sha256_hex_of_indices(std::vector<std::int64_t>{0, 1, 2, 3, 4}));
  CHECK(record.at("selected_sha256").size() == 4);
}

TEST_CASE("Non-finite gradients are refused with iteration, worker and layer") {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    Replay replay(table({{{1, 2, 3}, {1, 2, 3}}, {{1, 2, 3}, {1, bad, 3}}}), layers_of_sizes({1, 2}), options_of("topk", 0.4, 2));
    replay.next();
    CHECK(message_of([&] { replay.next(); }) ==
          std::string("gradients: iteration 1, worker 1, layer layer1: expected finite gradients, found ") +
              (std::isnan(bad) ? "nan" : "-inf") + " at gradient 1");
  }
}

TEST_CASE("A replay that does not fit is refused with both numbers before it starts") {
  const traces::Trace trace = traces::Trace::open(sample);
  auto options = options_of("topk", 0.01, 8);
  options.expansion = "captured";
  const std::uint64_t needed = replay_memory_bytes(trace, options);
  CHECK(needed >= 8 * 34862 * 4);
  CHECK(needed < 8 * 34862 * 4 + 12'000'000);
  options.memory_limit_bytes = 1 << 20;
  CHECK_THAT(message_of([&] { Replay(trace, options); }),
             StartsWith("workers: expected a replay that fits in 1 MiB of memory, found one that needs "));
  options.sparsifier = "dense";
  CHECK(replay_memory_bytes(trace, options) == 0);
  CHECK(message_of([&] { Replay(trace, options); }) == "no error");
}

TEST_CASE("Options outside their range are refused") {
  const auto error = [](const std::function<void(ReplayOptions&)>& change) {
    auto options = options_of("topk", 0.25, 1);
    change(options);
    return message_of([&] { Replay(table({{{1, 2, 3, 4}}}), layers_of_sizes({4}), options); });
  };
  CHECK(error([](ReplayOptions&) {}) == "no error");
  CHECK(error([](ReplayOptions& o) { o.density = 0; }) == "density: expected a number > 0 and <= 1, found 0");
  CHECK(error([](ReplayOptions& o) { o.density = std::nan(""); }) == "density: expected a number > 0 and <= 1, found nan");
  CHECK(error([](ReplayOptions& o) { o.density = 1.5; }) == "density: expected a number > 0 and <= 1, found 1.5");
  CHECK(error([](ReplayOptions& o) { o.workers = 0; }) == "workers: expected a number >= 1, found 0");
  CHECK(error([](ReplayOptions& o) { o.workers = 2; }) == "workers: expected 1 as the gradients have, found 2");
  CHECK(error([](ReplayOptions& o) { o.warmup = -1; }) == "warmup: expected a number >= 0, found -1");
  CHECK(error([](ReplayOptions& o) {
          o.parameters = {{"k", 1}};
        }) ==
        "/parameters/k: expected one of the parameters generation, scope, bucket_bytes, density_schedule, index_bytes, fused, found the unknown "
        "parameter \"k\"");
}

TEST_CASE("Records do not depend on the back-end of the kernels or on the order of reading") {
  std::vector<std::string> dumps;
  for (const std::string& kernels : kernels::cpu_kernel_names()) {
    std::string dump;
    for (const char* name : {"topk", "micro", "hard_threshold"}) {
      auto options = options_of(name, 0.01, 5, name == std::string("hard_threshold") ? Json{{"threshold", 3.0}} : Json::object());
      options.kernels = kernels;
      options.hashes = true;
      Replay replay(normal_gradients(5, 50001, 2), layers_of_sizes({50001}), options);
      for (int t = 0; t < 3; ++t) dump += replay.next().dump();
    }
    dumps.push_back(dump);
  }
  for (const std::string& dump : dumps) CHECK(dump == dumps.front());
}

TEST_CASE("Expanded workers are replayed like captured ones") {
  const traces::Trace trace = traces::Trace::open(sample);
  for (const char* method : {"boot", "hybrid"}) {
    INFO(method);
    auto options = options_of("topk", 0.01, 20);
    options.captured = 4;
    options.expansion = method;
    Replay replay(trace, options), again(trace, options);
    CHECK(replay.expansion().method == method);
    CHECK(replay.expansion().captured == 4);
    for (int t = 0; t < 3; ++t) {
      const Json record = replay.next();
      CHECK(record.dump() == again.next().dump());
      CHECK(record.at("build_up").get<double>() > 3);
      CHECK(record.at("build_up").get<double>() < 20);
    }
  }
}
