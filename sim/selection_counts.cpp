#include "sim/selection_counts.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <limits>
#include <memory>
#include <thread>

namespace sparscale::sim {

namespace {

// Elements that are made and added at a time: they stay in the first-level cache.
constexpr std::int64_t made_elements = 4096;

// The places of the k largest magnitudes, equal ones by their elements.
void topk_places(const kernels::Kernels& kernels, std::span<const float> values, kernels::Index k, const traces::ElementOrder* order,
                 std::vector<kernels::Index>& places) {
  places.clear();
  kernels.topk(values, k, 0, places);
  if (order == nullptr || places.empty()) return;
  float least = std::numeric_limits<float>::infinity();
  for (const kernels::Index place : places) least = std::min(least, std::abs(values[static_cast<std::size_t>(place)]));
  if (kernels.count(values, least) == std::ssize(places)) return;
  std::vector<float> in_model_order(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) in_model_order[i] = values[static_cast<std::size_t>(order->place[i])];
  places.clear();
  kernels.topk(in_model_order, k, 0, places);
  for (kernels::Index& place : places) place = order->place[static_cast<std::size_t>(place)];
}

}  // namespace

SelectionCounts topk_selection_counts(traces::GradientSource& source, std::span<const double> learning_rate, bool error_feedback,
                                      kernels::Index k, std::int64_t iterations, int threads) {
  const kernels::Kernels& cpu = kernels::cpu_kernels();
  const auto n = static_cast<std::size_t>(source.gradients());
  SelectionCounts counts(static_cast<std::size_t>(iterations), std::vector<std::uint32_t>(n));
  std::vector<std::unique_ptr<traces::GradientSource>> clones;
  while (std::ssize(clones) + 1 < std::min<std::int64_t>(threads, source.workers())) {
    clones.push_back(source.clone());
    if (clones.back()) continue;
    clones.pop_back();  // these gradients are made by one
    break;
  }
  const bool shared = !clones.empty();
  std::atomic<std::int64_t> next{0};
  std::vector<std::exception_ptr> errors(clones.size() + 1);
  const auto run = [&](std::size_t number) {
    traces::GradientSource& own = number == 0 ? source : *clones[number - 1];
    const traces::ElementOrder* const order = own.order();
    std::vector<float> accumulator(n);
    std::vector<kernels::Index> selected;
    for (std::int64_t w = next++; w < own.workers(); w = next++) {
      std::fill(accumulator.begin(), accumulator.end(), 0.0F);
      for (std::int64_t t = 0; t < iterations; ++t) {
        const float scale = learning_rate.empty() ? 1.0F : static_cast<float>(learning_rate[static_cast<std::size_t>(own.position(t))]);
        if (!error_feedback) std::fill(accumulator.begin(), accumulator.end(), 0.0F);
        const std::int64_t step = own.by_pieces() ? made_elements : own.gradients();
        for (std::int64_t begin = 0; begin < own.gradients(); begin += step) {
          const std::int64_t end = std::min(begin + step, own.gradients());
          cpu.accumulate(own.piece(t, w, begin, end), scale,
                         std::span(accumulator).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
        }
        topk_places(cpu, accumulator, k, order, selected);
        std::vector<std::uint32_t>& of_iteration = counts[static_cast<std::size_t>(t)];
        for (const kernels::Index place : selected) {
          const auto index = static_cast<std::size_t>(order == nullptr ? place : order->element[static_cast<std::size_t>(place)]);
          if (shared)
            std::atomic_ref(of_iteration[index]).fetch_add(1, std::memory_order_relaxed);
          else
            ++of_iteration[index];
        }
        cpu.zero(accumulator, selected);
      }
    }
  };
  {
    std::vector<std::jthread> others;
    const auto guarded = [&](std::size_t number) {
      try {
        run(number);
      } catch (...) {
        errors[number] = std::current_exception();
        next = source.workers();
      }
    };
    for (std::size_t number = 1; number <= clones.size(); ++number) others.emplace_back(guarded, number);
    guarded(0);
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
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
