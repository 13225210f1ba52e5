// The measured facts that need large vectors or many iterations.
#include <numeric>

#include "tests/catch.hpp"
#include "tests/sparsifier_support.hpp"

using namespace sparscale;
using namespace sparscale::sim;
using namespace sparscale::test;

TEST_CASE("Build-up of local Top-k at density 0.001 is the expected one") {
  const std::int64_t N = 1000000;
  const std::vector<std::pair<std::int64_t, std::vector<double>>> expected = {
      {2, {1.999, 1.958, 1.584}}, {4, {3.994, 3.772, 2.376}}, {8, {7.972, 7.088, 3.393}}, {16, {15.881, 12.883, 4.649}}};
  const std::vector<double> correlations = {0, 0.5, 0.9};
  for (const auto& [n, values] : expected)
    for (std::size_t c = 0; c < values.size(); ++c) {
      INFO("n = " << n << ", correlation " << correlations[c]);
      const double correlation = correlations[c];
      auto common = std::shared_ptr<traces::GradientSource>(normal_gradients(1, N, 41));
      auto own = std::shared_ptr<traces::GradientSource>(normal_gradients(n, N, 42));
      auto options = options_of("topk", 0.001, n);
      options.error_feedback = false;
      options.norms = false;
      Replay replay(std::make_unique<MadeGradients>(n, N,
                                                    [=](std::int64_t t, std::int64_t worker, std::vector<float>& gradient) {
                                                      const std::span<const float> a = common->gradient(t, 0), b = own->gradient(t, worker);
                                                      for (std::size_t i = 0; i < gradient.size(); ++i)
                                                        gradient[i] = static_cast<float>(std::sqrt(correlation) * a[i] +
                                                                                         std::sqrt(1 - correlation) * b[i]);
                                                    }),
                    layers_of_sizes({N}), options);
      double sum = 0;
      for (int t = 0; t < 2; ++t) sum += replay.next().at("build_up").get<double>();
      CHECK(sum / 2 == Approx(values[c]).epsilon(0.01));
    }
}

TEST_CASE("MiCRO and ExDyna settle at 0.94 of the target as coded, at 1.00 as intended, and ExDyna goes on balancing") {
  // n = 8, N = 100,000, d = 0.01, 50 bands of different scale; a thousand iterations after the transient.
  const auto tail = [](const std::string& name, const char* rule, bool error_feedback) {
    auto options = options_of(name, 0.01, 8, {{"micro_rule", rule}});
    options.warmup = 1000;
    options.error_feedback = error_feedback;
    options.norms = false;
    const auto scale = [](std::int64_t, std::size_t i) {
      Random random(stream_key(5, "band", {i / 2000}));
      return 0.0002 * std::pow(30, random.uniform());
    };
    Replay replay(pooled_gradients(8, 100000, 3, 32, scale), layers_of_sizes({100000}), options);
    double sum = 0, padding = 0;
    for (int t = 0; t < 1000; ++t) {
      const Json record = replay.next();
      sum += record.at("selected_sum").get<double>() / 1000;
      padding += record.at("padding").get<double>();
    }
    return std::make_pair(sum / 1000, padding / 1000);
  };
  const auto [micro, micro_padding] = tail("micro", "code", true);
  const auto [exdyna, exdyna_padding] = tail("exdyna", "code", true);
  CHECK(micro == Approx(0.94).margin(0.01));
  CHECK(exdyna == Approx(0.94).margin(0.01));
  CHECK(tail("micro", "code", false).first == Approx(0.94).margin(0.015));
  CHECK(tail("micro", "intended", true).first == Approx(1.000).margin(0.01));
  CHECK(tail("exdyna", "intended", true).first == Approx(1.000).margin(0.01));
  CHECK(exdyna_padding < micro_padding);
}
