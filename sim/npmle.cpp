#include "sim/npmle.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace sparscale::sim {
namespace {

constexpr std::size_t grid_points = 70;
constexpr int largest_steps = 3000;
constexpr double settled = 1e-10;  // relative change of the log-likelihood per step

// Weights proportional to probability^-s with the given mean: where the steps start. W + 1 counts do not determine 70 weights, so the start
// matters; a flat one over-estimates, one with everything at the lowest end under-estimates.
std::vector<double> power_law(const std::vector<double>& probability, double mean) {
  std::vector<double> weight(probability.size());
  double low = -10, high = 10, sum = 0;
  for (int i = 0; i < 100; ++i) {
    const double exponent = (low + high) / 2;
    double first = 0;
    sum = 0;
    for (std::size_t j = 0; j < probability.size(); ++j) {
      weight[j] = std::pow(probability[j], -exponent);
      sum += weight[j];
      first += weight[j] * probability[j];
    }
    (first / sum > mean ? low : high) = exponent;
  }
  for (double& value : weight) value /= sum;
  return weight;
}

}  // namespace

double npmle_union(std::span<const double> counts, std::int64_t workers) {
  const std::size_t classes = counts.size();
  const auto captured = static_cast<double>(classes - 1);
  double total = 0;
  for (const double count : counts) total += count;
  if (classes < 2 || total <= 0 || counts[0] >= total) return 0;

  // From far below what W workers can see of all coordinates up to certainty.
  const double lowest = 0.1 / total;
  std::vector<double> probability(grid_points), next(grid_points);
  for (std::size_t j = 0; j < grid_points; ++j)
    probability[j] = std::pow(lowest, 1 - static_cast<double>(j) / static_cast<double>(grid_points - 1));
  double selections = 0;
  for (std::size_t c = 0; c < classes; ++c) selections += counts[c] * static_cast<double>(c);
  std::vector<double> weight = power_law(probability, selections / captured / total);
  // likelihood[j][c]: binomial probability of c selections of W.
  std::vector<double> likelihood(grid_points * classes);
  for (std::size_t j = 0; j < grid_points; ++j)
    for (std::size_t c = 0; c < classes; ++c) {
      const double p = probability[j], hits = static_cast<double>(c), misses = captured - hits;
      const double choose = std::lgamma(captured + 1) - std::lgamma(hits + 1) - std::lgamma(misses + 1);
      likelihood[j * classes + c] = p >= 1 ? (misses == 0 ? 1.0 : 0.0) : std::exp(choose + hits * std::log(p) + misses * std::log1p(-p));
    }
  double last = 0;
  for (int step = 0; step < largest_steps; ++step) {
    std::fill(next.begin(), next.end(), 0.0);
    double log_likelihood = 0;
    for (std::size_t c = 0; c < classes; ++c) {
      if (counts[c] <= 0) continue;
      double mixture = 0;
      for (std::size_t j = 0; j < grid_points; ++j) mixture += weight[j] * likelihood[j * classes + c];
      log_likelihood += counts[c] * std::log(mixture);
      const double share = counts[c] / (total * mixture);
      for (std::size_t j = 0; j < grid_points; ++j) next[j] += share * weight[j] * likelihood[j * classes + c];
    }
    weight.swap(next);
    if (step > 0 && std::abs(log_likelihood - last) <= settled * std::abs(log_likelihood)) break;
    last = log_likelihood;
  }
  double expected = 0;
  for (std::size_t j = 0; j < grid_points; ++j)
    expected += weight[j] * -std::expm1(static_cast<double>(workers) * std::log1p(-std::min(probability[j], 1 - 1e-15)));
  return total * expected;
}

}  // namespace sparscale::sim
