#include "sim/selection_counts.hpp"

#include <algorithm>
#include <cmath>

namespace sparscale::sim {

SelectionCounts topk_selection_counts(traces::GradientSource& source, std::span<const double> learning_rate, bool error_feedback,
                                      kernels::Index k, std::int64_t iterations) {
  const kernels::Kernels& cpu = kernels::cpu_kernels();
  const auto n = static_cast<std::size_t>(source.gradients());
  SelectionCounts counts(static_cast<std::size_t>(iterations), std::vector<std::uint32_t>(n));
  std::vector<float> accumulator(n);
  std::vector<kernels::Index> selected;
  for (std::int64_t w = 0; w < source.workers(); ++w) {
    std::fill(accumulator.begin(), accumulator.end(), 0.0F);
    for (std::int64_t t = 0; t < iterations; ++t) {
      const float scale = learning_rate.empty() ? 1.0F : static_cast<float>(learning_rate[static_cast<std::size_t>(source.position(t))]);
      if (!error_feedback) std::fill(accumulator.begin(), accumulator.end(), 0.0F);
      cpu.accumulate(source.gradient(t, w), scale, accumulator);
      selected.clear();
      cpu.topk(accumulator, k, 0, selected);
      for (const kernels::Index index : selected) ++counts[static_cast<std::size_t>(t)][static_cast<std::size_t>(index)];
      cpu.zero(accumulator, selected);
    }
  }
  return counts;
}

std::vector<double> count_classes(const SelectionCounts& counts, std::int64_t workers) {
  std::vector<double> classes(static_cast<std::size_t>(workers + 1), 0.0);
  for (const auto& iteration : counts)
    for (const std::uint32_t count : iteration) classes[count] += 1.0 / static_cast<double>(counts.size());
  return classes;
}

double rarefied_union(std::span<const double> classes, std::int64_t workers) {
  const auto captured = static_cast<std::int64_t>(classes.size()) - 1;
  double sum = 0;
  for (std::int64_t c = 1; c <= captured; ++c) {
    // None of the `workers` is among the c that select it: C(W - c, n) / C(W, n).
    double missed = 1;
    for (std::int64_t i = 0; i < workers; ++i)
      missed *= std::max(0.0, static_cast<double>(captured - c - i)) / static_cast<double>(captured - i);
    sum += classes[static_cast<std::size_t>(c)] * (1 - missed);
  }
  return sum;
}

double log_quadratic_build_up(std::span<const double> classes, double k, std::int64_t workers) {
  const auto captured = static_cast<std::int64_t>(classes.size()) - 1;
  // Least squares of y = a x + b x^2.
  double xx = 0, xxx = 0, xxxx = 0, xy = 0, xxy = 0;
  for (std::int64_t n = 2;; n = std::min(2 * n, captured)) {
    const double x = std::log(static_cast<double>(n)), y = std::log(std::max(1.0, rarefied_union(classes, n) / k));
    xx += x * x;
    xxx += x * x * x;
    xxxx += x * x * x * x;
    xy += x * y;
    xxy += x * x * y;
    if (n >= captured) break;
  }
  const double determinant = xx * xxxx - xxx * xxx;
  double a = xy / xx, b = 0;
  if (determinant > 1e-12 * xx * xxxx) {
    a = (xy * xxxx - xxy * xxx) / determinant;
    b = std::min(0.0, (xxy * xx - xy * xxx) / determinant);
    if (b == 0) a = xy / xx;
  }
  double x = std::log(static_cast<double>(workers));
  if (b < 0) x = std::min(x, -a / (2 * b));  // beyond its top a build-up does not fall again
  return std::exp(a * x + b * x * x);
}

}  // namespace sparscale::sim
