// density_schedule: the same meaning for every sparsifier whose rule has a density or k that may change from iteration to iteration.
#include <cmath>
#include <numeric>

#include "base/error.hpp"
#include "sim/sparsifiers/common.hpp"
#include "tests/catch.hpp"
#include "tests/sparsifier_support.hpp"

using namespace sparscale;
using namespace sparscale::sim;
using namespace sparscale::test;

namespace {

using Lists = std::vector<std::vector<Index>>;

Json schedule(const std::vector<std::pair<int, double>>& steps) {
  Json list = Json::array();
  for (const auto& [iteration, density] : steps) list.push_back(Json::array({iteration, density}));
  return list;
}

Json with_schedule(Json parameters, const std::vector<std::pair<int, double>>& steps) {
  parameters["density_schedule"] = schedule(steps);
  return parameters;
}

std::vector<std::string> scheduled_names() {
  std::vector<std::string> names;
  for (const SparsifierInfo& info : sparsifiers())
    for (const Parameter& parameter : info.parameters)
      if (parameter.name == "density_schedule") names.push_back(info.name);
  return names;
}

std::vector<std::vector<float>> normal_accumulators(std::int64_t workers, std::int64_t gradients, int iteration) {
  std::vector<std::vector<float>> all;
  for (std::int64_t worker = 0; worker < workers; ++worker) {
    Random random(stream_key(5, "schedule test", {static_cast<std::uint64_t>(iteration), static_cast<std::uint64_t>(worker)}));
    auto& values = all.emplace_back(static_cast<std::size_t>(gradients));
    for (float& value : values) value = static_cast<float>(random.normal());
  }
  return all;
}

void make(const std::string& name, const Json& parameters, double density, std::int64_t gradients) {
  Small(name, parameters, density, 2, {gradients});
}

}  // namespace

TEST_CASE("Every sparsifier that knows a k has a density schedule, the others refuse one") {
  std::vector<std::string> without;
  const std::vector<std::string> with = scheduled_names();
  for (const SparsifierInfo& info : sparsifiers())
    if (std::find(with.begin(), with.end(), info.name) == with.end()) without.push_back(info.name);
  CHECK(without == std::vector<std::string>{"dense", "dense_fp16", "omnireduce", "grace_threshold"});
  for (const std::string& name : without)
    CHECK_THROWS_WITH(make(name, with_schedule(Json::object(), {{0, 0.1}}), 0.1, 1000),
                      ContainsSubstring("the unknown parameter \"density_schedule\""));
}

TEST_CASE("A schedule's iterations count the warm-up, and each density holds from its iteration on") {
  for (const std::string& name : scheduled_names()) {
    INFO(name);
    auto options = options_of(name, 0.01, 2, with_schedule(Json::object(), {{2, 0.02}, {4, 0.0303}}));
    options.warmup = 1;
    Replay replay(normal_gradients(2, 40000, 3), layers_of_sizes({30000, 10000}), options);
    std::vector<Index> k;
    for (int t = 1; t < 6; ++t) k.push_back(replay.next().at("target_k").get<Index>());
    // Accordion's tensors are all at the high density until the second decision: ten times that.
    const Index factor = name == "accordion" ? 10 : 1;
    CHECK(k == std::vector<Index>{400 * factor, 800 * factor, 800 * factor, 1212 * factor, 1212 * factor});
  }
}

TEST_CASE("Under a schedule an iteration is what it is at its density, for rules without a state") {
  const std::vector<std::int64_t> sizes = {900, 60, 0, 2000, 40};
  const std::vector<std::pair<int, double>> steps = {{1, 0.2}, {2, 0.03}, {4, 0.3}};
  const double densities[] = {0.1, 0.2, 0.03, 0.03, 0.3};
  for (const auto& [name, parameters] :
       std::vector<std::pair<std::string, Json>>{{"topk", Json::object()},
                                                 {"topk", {{"scope", "layer"}}},
                                                 {"topk", {{"scope", "layer"}, {"fused", false}}},
                                                 {"topk", {{"generation", "2023a"}}},
                                                 {"hard_threshold", Json::object()},
                                                 {"hard_threshold", {{"generation", "2023a"}}},
                                                 {"deft", Json::object()},
                                                 {"cltk", Json::object()},
                                                 {"cltk", {{"scope", "layer"}, {"cltk_mode", "leader_only"}}},
                                                 {"global_topk", Json::object()},
                                                 {"gtopk", Json::object()},
                                                 {"gtopk", {{"scope", "bucket"}, {"bucket_bytes", 4000}}},
                                                 {"random_k", Json::object()},
                                                 {"random_k", {{"scope", "layer"}, {"indices", "shared"}, {"replacement", true}}},
                                                 {"dgc", {{"variant", "grace"}}},
                                                 {"gaussiank", Json::object()},
                                                 {"gaussiank", {{"scope", "layer"}, {"variant", "ok"}}},
                                                 {"sidco", Json::object()},
                                                 {"sidco", {{"stages", 0}, {"scope", "layer"}, {"fit", "pareto"}}},
                                                 {"accordion", {{"switch_iterations", 1000}}},
                                                 {"topk_dsa", Json::object()},
                                                 {"topk_dsa", {{"scope", "layer"}}},
                                                 {"grace_topk", Json::object()}}) {
    INFO(name << " " << parameters.dump());
    Small scheduled(name, with_schedule(parameters, steps), densities[0], 3, sizes);
    for (int t = 0; t < 5; ++t) {
      INFO("iteration " << t);
      const double density = densities[t];
      const auto accumulators = normal_accumulators(3, 3000, t);
      const Selection found = scheduled.select(t, accumulators);
      Small plain(name, parameters, density, 3, sizes);
      if (name == "accordion") plain.select(0, accumulators);  // where it decides
      if (name == "deft") plain.select(0, accumulators);       // where it describes its fragments
      const Selection expected =
          t == 0 ? Small(name, parameters, density, 3, sizes).select(0, accumulators) : plain.select(t, accumulators);
      REQUIRE(found.selected == expected.selected);
      REQUIRE(found.exchanged == expected.exchanged);
      REQUIRE(found.threshold == expected.threshold);
      REQUIRE(found.details == expected.details);
      REQUIRE(work_to_json(found.work, 3) == work_to_json(expected.work, 3));
      REQUIRE(found.exchange.size() == expected.exchange.size());
      for (std::size_t call = 0; call < found.exchange.size(); ++call)
        REQUIRE(found.exchange[call].to_json() == expected.exchange[call].to_json());
      REQUIRE(found.target_k == expected.target_k.value_or(truncated(density, 3000)));
    }
  }
}

TEST_CASE("The hard threshold follows k") {
  // N = 64: k = 16, 4, 1: lambda = 1/8, 1/4, 1/2.
  Small hard("hard_threshold", with_schedule(Json::object(), {{0, 0.25}, {2, 0.0625}, {3, 0.015625}}), 1.0, 1, {64});
  std::vector<float> values(64, 0.0F);
  values[3] = 0.125F;
  values[5] = -0.25F;
  values[9] = 0.5F;
  values[11] = 0.1249F;
  for (const auto& [threshold, k, selected] : std::vector<std::tuple<double, Index, std::vector<Index>>>{
           {0.125, 16, {3, 5, 9}}, {0.125, 16, {3, 5, 9}}, {0.25, 4, {5, 9}}, {0.5, 1, {9}}, {0.5, 1, {9}}}) {
    static int t = 0;
    const Selection s = hard.select(t++, {values});
    CHECK(s.threshold == std::vector<double>{threshold});
    CHECK(s.target_k == k);
    CHECK(s.selected.front() == selected);
  }
}

TEST_CASE("SAGE starts at the first density and steers towards that of each iteration") {
  // |a| = 1 everywhere: alpha is 1, all of N = 100 pass: the examined density is 1. First threshold 1 / (2 sqrt 25).
  Small sage("sage", with_schedule(Json::object(), {{0, 0.25}, {2, 0.0625}}), 0.01, 1, {100});
  const std::vector<std::vector<float>> ones = {std::vector<float>(100, 1.0F)};
  CHECK(sage.select(0, ones).threshold == std::vector<double>{0.1});
  float threshold = 0.1F;
  for (int t = 1; t < 4; ++t) {
    const double density = t < 2 ? 0.25 : 0.0625, beta = 2 / (1 + std::exp(density - 1));
    const double gamma = t < 2 ? 1 : 1.05;  // 1 / 0.25 is no more than 10, 1 / 0.0625 is
    threshold = threshold * static_cast<float>(beta) * static_cast<float>(gamma);
    const Selection s = sage.select(t, ones);
    CHECK(s.threshold == std::vector<double>{threshold});
    CHECK(s.target_k == (t < 2 ? 25 : 6));
    CHECK(s.details.at("sage").at("gamma").at(0) == gamma);
    CHECK(s.details.at("sage").at("beta").at(0) == beta);
  }
}

TEST_CASE("MiCRO and ExDyna start at the first density and compare the last count with the k of now") {
  for (const auto& [name, parameters] : std::vector<std::pair<std::string, Json>>{{"micro", Json::object()}, {"exdyna", {{"blocks", 1}}}}) {
    INFO(name);
    // N = 64: k = 16, from iteration 2 on 8, from 4 on 32; always 16 large ones.
    Small sparsifier(name, with_schedule(parameters, {{0, 0.25}, {2, 0.125}, {4, 0.5}}), 0.9, 1, {64});
    std::vector<float> values(64, 0.0F);
    std::fill_n(values.begin() + 7, 16, -9.0F);
    double threshold = 0.125;  // 1 / (2 sqrt 16)
    const double factors[] = {1, 1.00125, 1.005, 1.005, 0.995, 0.995};
    const Index k[] = {16, 16, 8, 8, 32, 32};
    for (int t = 0; t < 6; ++t) {
      threshold *= factors[t];
      const Selection s = sparsifier.select(t, {values});
      CHECK(s.threshold == std::vector<double>{threshold});
      CHECK(s.selected.front().size() == 16);
      CHECK(s.target_k == k[t]);
    }
  }
}

TEST_CASE("SIDCo's largest number of stages follows the density") {
  // d = 0.001: up to 10 stages, of which normal data asks for more and more; d = 0.2: up to 3, at once.
  auto options = options_of("sidco", 0.001, 1, with_schedule({{"stages", -1}}, {{27, 0.2}}));
  options.error_feedback = false;
  Replay replay(normal_gradients(1, 50000, 12), layers_of_sizes({50000}), options);
  std::vector<std::int64_t> stages;
  for (int t = 0; t < 28; ++t) stages.push_back(replay.next().at("stages").at(0).get<std::int64_t>());
  CHECK(stages[26] > 3);
  CHECK(stages[27] == 3);
}

TEST_CASE("Accordion's densities follow the schedule where they are the replay's") {
  const auto targets = [](Json parameters) {
    parameters["switch_iterations"] = 2;
    auto options = options_of("accordion", 0.5, 1, with_schedule(parameters, {{0, 0.05}, {3, 0.1}}));
    // Constant gradients: high until the second decision, in iteration 2.
    Replay replay(std::make_unique<MadeGradients>(
                      1, 200, [](std::int64_t, std::int64_t, std::vector<float>& g) { std::fill(g.begin(), g.end(), 1.0F); }),
                  layers_of_sizes({160, 40}), options);
    std::vector<Index> k;
    for (int t = 0; t < 5; ++t) k.push_back(replay.next().at("target_k").get<Index>());
    return k;
  };
  CHECK(targets(Json::object()) == std::vector<Index>{100, 100, 10, 20, 20});
  CHECK(targets({{"density_high", 0.25}}) == std::vector<Index>{50, 50, 10, 20, 20});
  CHECK_THROWS_WITH(make("accordion", with_schedule({{"density_low", 0.1}}, {{0, 0.2}}), 0.1, 100),
                    "density_schedule: expected no schedule with a given density_low, which holds throughout, found a schedule");
}

TEST_CASE("Ok-Topk's thresholds step towards a new k and meet it at the next exact top-k") {
  // VGG: exact every 32 iterations, steps of 1.2 %. Distinct values in every iteration, one worker: k - 1 are strictly above the k-th.
  Small ok("oktopk", with_schedule({{"variant", "vgg"}}, {{30, 0.5}}), 0.1, 1, {200});
  std::vector<float> values(200);
  std::iota(values.begin(), values.end(), 1.0F);  // 1 to 200: the 20th largest is 181, the 100th 101
  double threshold = 181;
  for (int t = 0; t < 34; ++t) {
    const Selection s = ok.select(t, {values});
    INFO("iteration " << t);
    CHECK(s.target_k == (t < 30 ? 20 : 100));
    if (t == 32) threshold = 101;
    CHECK(s.threshold.front() == Approx(threshold).epsilon(1e-12));
    const auto above = static_cast<std::size_t>(200 - std::floor(threshold));
    CHECK(s.selected.front().size() == above);
    // 19 of 20 are enough; of 100 they are less than two thirds.
    if (t == 30 || t == 31) threshold /= 1.012;
  }
  CHECK(threshold == 101);
}

TEST_CASE("A schedule with k = 0 is refused where the rule divides by k, and selects one or nothing elsewhere") {
  for (const char* name : {"hard_threshold", "sage", "micro", "exdyna", "oktopk"}) {
    INFO(name);
    CHECK_THROWS_WITH(make(name, with_schedule(Json::object(), {{5, 0.00001}}), 0.1, 40000),
                      StartsWith("density_schedule: expected trunc(density x gradients) >= 1 for ") &&
                          ContainsSubstring(", found trunc(1e-05 x 40000) = 0"));
    CHECK_THROWS_WITH(make(name, with_schedule(Json::object(), {{5, 0.1}}), 0.00001, 40000),
                      StartsWith("density: expected trunc(density x gradients) >= 1 for "));
    CHECK_NOTHROW(make(name, with_schedule(Json::object(), {{0, 0.1}}), 0.00001, 40000));  // the replay's density never holds
  }
  CHECK_THROWS_WITH(make("hard_threshold", with_schedule({{"threshold", 0.5}}, {{0, 0.1}}), 0.1, 100),
                    "density_schedule: expected no schedule with a given threshold, which knows no k, found a schedule");
  for (const auto& [name, selected] : std::vector<std::pair<std::string, std::size_t>>{
           {"topk", 0}, {"cltk", 0}, {"topk_dsa", 0}, {"global_topk", 1}, {"gtopk", 1}, {"random_k", 1}, {"grace_topk", 1}}) {
    INFO(name);
    const Selection s = Small(name, with_schedule(Json::object(), {{0, 0.01}}), 0.5, 1, {50}).select(0, {std::vector<float>(50, 1.0F)});
    CHECK(s.selected.front().size() == selected);
    CHECK(s.target_k == 0);
  }
  // By layer at least one each, as without a schedule.
  const Selection s =
      Small("cltk", with_schedule({{"scope", "layer"}}, {{0, 0.01}}), 0.5, 1, {50, 250}).select(0, {std::vector<float>(300, 1.0F)});
  CHECK(s.selected == Lists{{0, 50, 51}});
  CHECK(s.target_k == 3);
}

TEST_CASE("Constants of the whole model and memory follow a schedule") {
  ReplayShape shape;
  shape.workers = 4;
  shape.gradients = 1000;
  shape.density = 0.01;
  shape.target_k = 10;
  const auto parameters = [](const char* name, const std::vector<std::pair<int, double>>& steps) {
    return resolve_parameters(find_sparsifier(name), with_schedule(Json::object(), steps), "test", "/parameters");
  };
  const auto bytes = [&](const char* name, const std::vector<std::pair<int, double>>& steps) {
    return find_sparsifier(name).state_bytes(shape, parameters(name, steps));
  };
  // 8 bytes for each of 4 x 100 indices and the union, instead of 4 x 10.
  CHECK(bytes("topk", {{5, 0.1}, {7, 0.02}}) == 8 * (400 + 400 - 40 - 40));
  CHECK(bytes("topk", {{5, 0.001}}) == 0);
  CHECK(bytes("dgc", {{5, 0.1}}) - bytes("dgc", {}) == 8 * (400 + 400 - 40 - 40));

  shape.whole_target_k = 100;  // the 1000 are a tenth of the model
  const DensitySchedule sampled(shape, parameters("micro", {{3, 0.04}}));
  CHECK(sampled.model_k(2) == 100);
  CHECK(sampled.model_k(3) == 400);
  CHECK(sampled.k(2) == 10);
  CHECK(sampled.k(3) == 40);
  CHECK(sampled.target_k(2) == 10);
  CHECK_FALSE(DensitySchedule(shape, parameters("micro", {})).target_k(2).has_value());
}
