// The measured facts that need large vectors or many iterations.
#include <algorithm>
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

namespace {

// Log-normal scales of 50 equal bands of the vector: 0.00245 exp(z), z normal. With these z the published numbers come out; the band
// at 18,000 of 100,000 elements is 30 times as large as the median one, so that one of 8 partitions has half of what is selected.
constexpr double bands[50] = {2.0409,  -2.5557, 0.4181,  -0.5678, -0.4526, -0.2156, -2.0200, -0.2319, -0.8652, 3.3230,
                              0.2258,  -0.3526, -0.2813, -0.6680, -1.0552, -0.3908, 0.4819,  -0.2386, 0.9578,  -0.1998,
                              0.0243,  1.5458,  0.5451,  -0.5052, -0.1828, 0.5405,  1.9351,  -0.2696, -0.2436, 1.0023,
                              -0.8865, -0.2917, 0.8825,  0.5804,  0.0915,  0.6701,  -2.8282, 1.0213,  -0.9596, -1.6686,
                              0.2764,  0.7005,  -0.4448, -1.0764, 0.0261,  -0.0527, 1.4056,  0.7474,  0.1938,  1.1116};

struct Course {
  std::vector<double> ratio, padding;  // selected / wanted and padding of every iteration
  static double mean(const std::vector<double>& values, std::size_t from) {
    return std::accumulate(values.begin() + static_cast<std::ptrdiff_t>(from), values.end(), 0.0) /
           static_cast<double>(values.size() - from);
  }
  double quantile(double fraction, std::size_t from) const {
    std::vector<double> tail(ratio.begin() + static_cast<std::ptrdiff_t>(from), ratio.end());
    std::sort(tail.begin(), tail.end());
    return tail[static_cast<std::size_t>(fraction * static_cast<double>(tail.size() - 1))];
  }
};

// n = 8, N = 100,000, d = 0.01, stationary gradients.
Course course(const std::string& name, const char* rule, bool error_feedback, int iterations) {
  auto options = options_of(name, 0.01, 8, {{"micro_rule", rule}});
  options.error_feedback = error_feedback;
  options.norms = false;
  Replay replay(pooled_gradients(8, 100000, 3, 32, [](std::int64_t, std::size_t i) { return 0.00245 * std::exp(bands[i / 2000]); }),
                layers_of_sizes({100000}), options);
  Course found;
  for (int t = 0; t < iterations; ++t) {
    const Json record = replay.next();
    found.ratio.push_back(record.at("selected_sum").get<double>() / 1000);
    found.padding.push_back(record.at("padding").get<double>());
  }
  return found;
}

}  // namespace

TEST_CASE("MiCRO on stationary gradients of 50 scale bands does what its authors' class does there") {
  // Measured with the authors' class: K/k starts at 3.9, comes within 10 % after 378 iterations and settles at 0.938 (5 to 95 %: 0.88 to
  // 0.99), at 0.928 without error feedback; padding 4.22.
  const Course code = course("micro", "code", true, 1600);
  CHECK(code.ratio.front() == Approx(3.9).margin(0.1));
  const auto within = std::find_if(code.ratio.begin(), code.ratio.end(), [](double ratio) { return std::abs(ratio - 1) < 0.1; });
  CHECK(within - code.ratio.begin() == Approx(378).margin(8));
  CHECK(Course::mean(code.ratio, 800) == Approx(0.938).margin(0.004));
  CHECK(code.quantile(0.05, 800) == Approx(0.88).margin(0.01));
  CHECK(code.quantile(0.95, 800) == Approx(0.99).margin(0.015));
  CHECK(Course::mean(code.padding, 800) == Approx(4.22).margin(0.05));
  CHECK(Course::mean(course("micro", "code", false, 1600).ratio, 600) == Approx(0.928).margin(0.003));
  const Course intended = course("micro", "intended", true, 1200);
  CHECK(Course::mean(intended.ratio, 700) == Approx(1.000).margin(0.01));
  CHECK(intended.quantile(0.05, 700) == Approx(0.95).margin(0.01));
  CHECK(intended.quantile(0.95, 700) == Approx(1.06).margin(0.015));
}

TEST_CASE("ExDyna on the same gradients settles at the same number and pads less and less") {
  // The authors' class: padding 3.36 at first, 2.69 after 1500 iterations.
  const Course code = course("exdyna", "code", true, 1700);
  CHECK(code.padding.front() == Approx(3.36).margin(0.15));
  CHECK(Course::mean(code.padding, 1500) == Approx(2.69).margin(0.1));
  CHECK(Course::mean(code.ratio, 1000) == Approx(0.94).margin(0.01));
  CHECK(Course::mean(course("exdyna", "intended", true, 1200).ratio, 700) == Approx(1.000).margin(0.01));
}
