#include <cmath>
#include <ctime>
#include <filesystem>

#include "base/error.hpp"
#include "sim/npmle.hpp"
#include "sim/replay.hpp"
#include "sim/selection_counts.hpp"
#include "tests/catch.hpp"

using namespace sparscale;
using namespace sparscale::sim;

namespace {

traces::Trace sample(const char* name) {
  return traces::Trace::open(std::filesystem::path(SPARSCALE_SOURCE_DIRECTORY) / "traces" / "samples" / name);
}

ReplayOptions options(std::int64_t workers, double density, std::int64_t captured = 0) {
  ReplayOptions options;
  options.sparsifier = "topk";
  options.workers = workers;
  options.density = density;
  options.captured = captured;
  return options;
}

double number(const Json& check, const char* key) { return check.at(key).get<double>(); }

// Expected counts of c = 0..W selections when `coordinates[i]` coordinates are selected with `probability[i]`.
std::vector<double> expected_counts(const std::vector<double>& coordinates, const std::vector<double>& probability, int captured) {
  std::vector<double> counts;
  for (int c = 0; c <= captured; ++c) {
    double sum = 0;
    const double choose = std::round(std::exp(std::lgamma(captured + 1) - std::lgamma(c + 1) - std::lgamma(captured - c + 1)));
    for (std::size_t i = 0; i < coordinates.size(); ++i)
      sum += coordinates[i] * choose * std::pow(probability[i], c) * std::pow(1 - probability[i], captured - c);
    counts.push_back(sum);
  }
  return counts;
}

double expected_union(const std::vector<double>& coordinates, const std::vector<double>& probability, double workers) {
  double sum = 0;
  for (std::size_t i = 0; i < coordinates.size(); ++i) sum += coordinates[i] * (1 - std::pow(1 - probability[i], workers));
  return sum;
}

}  // namespace

TEST_CASE("The maximum-likelihood union is right where the answer is known") {
  // Everyone selects the same: hardly any growth, as eight workers cannot exclude rare coordinates. Nobody selects anything: nothing.
  const double constant = npmle_union(std::vector<double>{9900, 0, 0, 0, 0, 0, 0, 0, 100}, 32);
  CHECK(constant >= 99.9);
  CHECK(constant < 110);
  CHECK(npmle_union(std::vector<double>{100, 0, 0}, 8) == 0);
  // At n = W it gives back what was seen.
  const std::vector<double> seen = {90000, 5000, 2000, 1000, 700, 500, 400, 300, 100};
  CHECK(npmle_union(seen, 8) == Approx(10000).epsilon(0.005));
  // Mixtures from nearly always to rarely, four times the captured workers.
  for (const auto& [coordinates, probability] :
       {std::pair<std::vector<double>, std::vector<double>>{{200, 800, 4000, 95000}, {0.9, 0.3, 0.05, 0.001}},
        {{1000, 9000, 990000}, {0.5, 0.1, 1e-5}},
        {{100000}, {0.01}}}) {
    const auto counts = expected_counts(coordinates, probability, 8);
    const double truth = expected_union(coordinates, probability, 32);
    CHECK(truth > 1.5 * expected_union(coordinates, probability, 8));
    CHECK(npmle_union(counts, 32) == Approx(truth).epsilon(0.07));
  }
}

TEST_CASE("There is nothing to check without virtual workers") {
  CHECK(expansion_self_check(sample("digits-cnn-8w"), options(8, 0.01)).is_null());
  CHECK(expansion_self_check(sample("digits-cnn-8w"), options(4, 0.01, 4)).is_null());
}

TEST_CASE("The self-check of the King James trace agrees with what 8 and 32 captured workers do") {
  const traces::Trace trace = sample("kjv-lstm-8w");
  for (const auto& [density, name, k] : {std::tuple<double, const char*, double>{0.01, "0.01", 342}, {0.001, "0.001", 34}}) {
    const Json check = expansion_self_check(trace, options(32, density));
    double exact = 0;
    for (const Json& count : trace.info().manifest["exact_8_workers"][name]["union8_cold_per_iteration"])
      exact += count.get<double>() / k / 8;
    const double truth = trace.info().manifest["truth_32_workers"][std::string(name) + "/cold"]["mean_union_over_k"][5].get<double>();
    CHECK(check["method"] == "hybrid");
    CHECK(check["captured_workers"] == 8);
    CHECK(check["iterations"] == 8);
    CHECK(number(check, "build_up_captured") == Approx(exact).epsilon(1e-12));
    CHECK(number(check, "build_up_generated") == Approx(exact).epsilon(0.03));
    CHECK(number(check, "build_up_projected") == Approx(truth).epsilon(0.08));
    CHECK(number(check, "build_up_calibrated") == Approx(truth).epsilon(0.08));
    CHECK(number(check, "npmle_build_up") == Approx(truth).epsilon(0.08));
    CHECK(number(check, "calibration_exponent") == Approx(std::log(exact) / std::log(number(check, "build_up_generated"))));
    CHECK(number(check, "build_up_calibrated") ==
          Approx(std::pow(number(check, "build_up_projected"), number(check, "calibration_exponent"))));
    CHECK(number(check, "disagreement") == Approx(number(check, "npmle_build_up") / number(check, "build_up_projected") - 1));
    CHECK(check["warnings"].size() == (std::abs(number(check, "disagreement")) > 0.05 ? 1 : 0));
    CHECK(check.dump() == expansion_self_check(trace, options(32, density)).dump());
  }
}

TEST_CASE("A self-check is the same bytes for any number of threads, and in any order of elements") {
  for (const char* name : {"kjv-lstm-8w", "digits-cnn-8w"}) {
    const traces::Trace trace = sample(name);
    ReplayOptions once = options(20, 0.01, 5);
    once.expansion = "hybrid";
    const std::string one = expansion_self_check(trace, once).dump();
    for (const int threads : {2, 5, 64}) {
      once.threads = threads;
      CHECK(expansion_self_check(trace, once).dump() == one);
    }
    traces::ExpansionOptions made{.method = "hybrid", .workers = 20, .captured = 5, .seed = 1};
    // Many more than are not zero in a row model: ties at zero.
    for (const kernels::Index k : {kernels::Index{1}, trace.gradients() / 100, trace.gradients() - 5}) {
      made.any_order = false;
      const SelectionCounts plain = topk_selection_counts(*traces::make_gradient_source(trace, made), {}, true, k, 2);
      made.any_order = true;
      CHECK(topk_selection_counts(*traces::make_gradient_source(trace, made), {}, true, k, 2, 3) == plain);
    }
  }
}

TEST_CASE("Four digits workers predict eight by every way") {
  const traces::Trace trace = sample("digits-cnn-8w");
  const double truth = number(expansion_self_check(trace, options(9, 0.01)), "build_up_captured");
  const Json check = expansion_self_check(trace, options(8, 0.01, 4));
  CHECK(check["method"] == "boot");
  CHECK(number(check, "build_up_projected") == Approx(truth).epsilon(0.03));
  CHECK(number(check, "npmle_build_up") == Approx(truth).epsilon(0.03));
  CHECK(number(check, "build_up_captured") < 0.65 * truth);
}

TEST_CASE("A disagreement of more than 5 % is a warning") {
  const Json check = expansion_self_check(sample("kjv-lstm-8w"), options(128, 0.01));
  CHECK(std::abs(number(check, "disagreement")) > 0.05);
  REQUIRE(check["warnings"].size() == 1);
  CHECK_THAT(check["warnings"][0].get<std::string>(), StartsWith("the estimate from the captured workers' counts is -"));
  CHECK_THAT(check["warnings"][0].get<std::string>(), ContainsSubstring("for 128 workers (top-k, density 0.01)"));
  // boot is the wrong method for a stateful stream, and the check says so.
  ReplayOptions boot = options(32, 0.001);
  boot.expansion = "boot";
  const Json wrong = expansion_self_check(sample("kjv-lstm-8w"), boot);
  CHECK_FALSE(wrong["warnings"].empty());
}

TEST_CASE("The check follows the residual rule and the learning rate") {
  const traces::Trace trace = sample("digits-cnn-8w");
  const Json with = expansion_self_check(trace, options(16, 0.01));
  ReplayOptions bare = options(16, 0.01);
  bare.error_feedback = false;
  CHECK(number(expansion_self_check(trace, bare), "build_up_captured") < 0.9 * number(with, "build_up_captured"));
  ReplayOptions scaled = options(16, 0.01);
  scaled.lr_in_accumulator = true;
  // A constant learning rate changes nothing but rounding.
  CHECK(number(expansion_self_check(trace, scaled), "build_up_captured") == Approx(number(with, "build_up_captured")).epsilon(1e-3));
}

TEST_CASE("Densities that select nothing are refused") {
  CHECK_THROWS_WITH(expansion_self_check(sample("digits-cnn-8w"), options(16, 1e-5)),
                    "density: expected 0 < density <= 1 and at least one of the 34862 gradients, found 1e-05");
  CHECK_THROWS_AS(expansion_self_check(sample("digits-cnn-8w"), options(16, std::nan(""))), InputError);
  CHECK_THROWS_AS(expansion_self_check(sample("digits-cnn-8w"), options(16, 1.5)), InputError);
}

TEST_CASE("The self-check of 256 workers takes less than a second") {
  const std::clock_t start = std::clock();
  const Json check = expansion_self_check(sample("digits-cnn-8w"), options(256, 0.01));
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  CHECK(number(check, "build_up_projected") > 20);
#ifdef NDEBUG
  CHECK(seconds < 1);  // measured 0.15 s
#else
  CHECK(seconds < 60);
#endif
}

TEST_CASE("The check of a sampled replay runs on its sample") {
  const traces::Trace trace = sample("kjv-lstm-8w");
  ReplayOptions sampled = options(32, 0.01);
  const Json whole = expansion_self_check(trace, sampled);
  const std::uint64_t memory_bytes = expansion_self_check_memory_bytes(trace, sampled);
  CHECK(memory_bytes > (8 + 1) * 4 * 34200ULL);  // counts of eight iterations and an accumulator
  sampled.memory = MemoryChoice::parse("sample:0.5", "memory");
  const Json half = expansion_self_check(trace, sampled);
  CHECK_FALSE(whole.contains("memory"));
  CHECK(half.at("memory") == "sample:0.5");
  CHECK(half != whole);
  CHECK(number(half, "build_up_projected") == Approx(number(whole, "build_up_projected")).epsilon(0.15));
  CHECK(number(half, "build_up_captured") == Approx(number(whole, "build_up_captured")).epsilon(0.15));
  CHECK(half.dump() == expansion_self_check(trace, sampled).dump());
  CHECK(expansion_self_check_memory_bytes(trace, sampled) < memory_bytes / 10 * 8);
}
