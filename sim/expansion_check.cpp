// Whether generated workers build up like captured ones (docs/expansion.md).
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "kernels/kernels.hpp"
#include "sim/npmle.hpp"
#include "sim/replay.hpp"
#include "sim/selection_counts.hpp"
#include "traces/row_sample.hpp"

namespace sparscale::sim {
namespace {

using kernels::Index;

// Elements that the window may cost for all n workers; beyond that only its first iterations are used, at least four.
constexpr std::int64_t element_budget = std::int64_t{1} << 31;
constexpr std::int64_t least_iterations = 4;
constexpr double largest_disagreement = 0.05;

// Union / k, mean over the iterations.
double build_up(const SelectionCounts& counts, Index k) {
  double sum = 0;
  for (const std::vector<std::uint32_t>& iteration : counts)
    sum += static_cast<double>(iteration.size() - static_cast<std::size_t>(std::count(iteration.begin(), iteration.end(), 0U)));
  return sum / static_cast<double>(k) / static_cast<double>(counts.size());
}

std::string percent(double ratio) {
  char text[32];
  std::snprintf(text, sizeof text, "%+.1f %%", 100 * ratio);
  return text;
}

// Iterations of the window that are used.
std::int64_t iterations_of(const traces::Trace& trace, std::int64_t workers) {
  return std::min(trace.iterations(), std::max(least_iterations, element_budget / trace.gradients() / workers));
}

}  // namespace

std::uint64_t expansion_self_check_memory_bytes(const traces::Trace& trace, const ReplayOptions& options) {
  if (options.memory.mode == MemoryChoice::Mode::sample) {
    ReplayOptions over_sample = options;
    over_sample.memory.mode = MemoryChoice::Mode::full;
    return expansion_self_check_memory_bytes(traces::sample_rows(trace, options.memory.fraction, options.seed).trace, over_sample);
  }
  // Counts per iteration; for each thread an accumulator, what a selection of it needs at most and a gradient; one generator at a time.
  const auto threads = static_cast<std::uint64_t>(std::min<std::int64_t>(options.threads, options.workers));
  const auto vectors = static_cast<std::uint64_t>(iterations_of(trace, options.workers)) + 4 * threads;
  return checked_multiply(4 * vectors, static_cast<std::uint64_t>(trace.gradients()), "bytes of a self-check") +
         traces::expansion_memory_bytes(
             trace, {.method = options.expansion, .workers = options.workers, .captured = options.captured, .seed = options.seed});
}

Json expansion_self_check(const traces::Trace& trace, const ReplayOptions& options) {
  if (options.memory.mode == MemoryChoice::Mode::sample) {
    ReplayOptions over_sample = options;
    over_sample.memory.mode = MemoryChoice::Mode::full;
    Json check = expansion_self_check(traces::sample_rows(trace, options.memory.fraction, options.seed).trace, over_sample);
    if (!check.is_null()) check["memory"] = options.memory.text();
    return check;
  }
  traces::ExpansionOptions expansion{
      .method = options.expansion, .workers = options.workers, .captured = options.captured, .seed = options.seed, .any_order = true};
  const traces::ExpansionChoice choice = traces::choose_expansion(trace, expansion);
  if (options.workers <= choice.captured) return {};
  const bool valid = options.density > 0 && options.density <= 1;
  const Index k = valid ? static_cast<Index>(options.density * static_cast<double>(trace.gradients())) : 0;
  if (k < 1)
    throw InputError("density", "0 < density <= 1 and at least one of the " + std::to_string(trace.gradients()) + " gradients",
                     number_text(options.density));
  expansion.method = choice.method;
  const std::int64_t iterations = iterations_of(trace, options.workers);

  const bool scaled = options.lr_in_accumulator && !trace.info().learning_rate.empty();
  const std::vector<double> learning_rate = scaled ? trace.info().learning_rate : std::vector<double>();
  const auto counts_of = [&](const std::unique_ptr<traces::GradientSource>& source) {
    return topk_selection_counts(*source, learning_rate, options.error_feedback, k, iterations, options.threads);
  };
  // One generator at a time: that of hybrid holds several times the trace.
  const double projected = build_up(counts_of(traces::make_gradient_source(trace, expansion)), k);
  expansion.workers = choice.captured;
  const double generated = build_up(counts_of(traces::make_gradient_source(trace, expansion, true)), k);
  expansion.method = "captured";
  const auto captured_counts = counts_of(traces::make_gradient_source(trace, expansion));
  const double captured = build_up(captured_counts, k);

  const std::vector<double> classes = count_classes(captured_counts, choice.captured);
  const double npmle = npmle_union(classes, options.workers) / static_cast<double>(k);
  // One worker shows nothing to extrapolate from.
  const Json logquad = choice.captured > 1 ? Json(log_quadratic_build_up(classes, static_cast<double>(k), options.workers)) : Json();
  const double exponent = generated > 1 && captured > 1 ? std::log(captured) / std::log(generated) : 1.0;
  const double disagreement = npmle / projected - 1;

  Json warnings = Json::array();
  if (std::abs(generated / captured - 1) > largest_disagreement)
    warnings.push_back("generated workers build up " + percent(generated / captured - 1) + " against the " +
                       std::to_string(choice.captured) + " captured ones (top-k, density " + number_text(options.density) + ")");
  if (std::abs(disagreement) > largest_disagreement)
    warnings.push_back("the estimate from the captured workers' counts is " + percent(disagreement) + " against the projection for " +
                       std::to_string(options.workers) + " workers (top-k, density " + number_text(options.density) + ")");
  return {{"method", choice.method},
          {"captured_workers", choice.captured},
          {"workers", options.workers},
          {"density", options.density},
          {"iterations", iterations},
          {"build_up_captured", captured},
          {"build_up_generated", generated},
          {"calibration_exponent", exponent},
          {"build_up_projected", projected},
          {"build_up_calibrated", std::pow(projected, exponent)},
          {"build_up_consensus", std::cbrt(projected * std::pow(projected, exponent) * npmle)},
          {"npmle_build_up", npmle},
          {"logquad_build_up", logquad},
          {"disagreement", disagreement},
          {"warnings", std::move(warnings)}};
}

}  // namespace sparscale::sim
