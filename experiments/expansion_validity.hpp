// How well the build-up of many captured workers is predicted from a few of them (docs/fidelity.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.hpp"

namespace sparscale::experiments {

/// From position `position` of the window on, learning rates are `factor` times what the trace says (1 where it says nothing).
struct LearningRateDrop {
  std::int64_t position = 0;
  double factor = 1;
  /// "POSITION:FACTOR". Errors: InputError.
  static LearningRateDrop parse(const std::string& text);
};

struct ExpansionValidityOptions {
  std::filesystem::path traces;  // folder of traces with 16 workers or more; empty: only the shipped sample that carries its truth
  std::vector<std::string> sparsifiers = {"hard_threshold", "micro", "exdyna", "deft", "cltk"};  // besides local top-k
  std::int64_t seeds = 3;
  std::optional<LearningRateDrop> drop = {};  // instead of all else: local top-k before and after it
};

/// `cases`: trace, sparsifier, density, captured, workers, method, metric (build_up, density, padding), truth, truth_scatter_percent,
/// predicted, error_percent, sampling_percent, error_in_sampling. sampling_percent: relative standard deviation of the quantity between
/// sets of `captured` of the trace's workers, so the error of a method that knows exactly how it grows from these to all;
/// truth_scatter_percent: the same between trainings with `workers` workers; null where the trace's other workers are not at hand.
/// Local top-k from a zero residual, mean over the window, by every method, `<generator>+cal` (calibrated), the fits and
/// `consensus` (geometric mean of what `auto` chooses, the same calibrated, and npmle); the truth of fewer
/// workers than a trace has is the exact mean over all subsets. Other sparsifiers: replay with captured workers (mean over sets and orders
/// of them) against `auto`. With a drop: build_up_before (the four iterations before it) and build_up_after_0, 10, 20, 40 (four from so
/// many after it), learning rate in the accumulator, by `auto`. `summary`: mean and worst absolute error, mean of sampling_percent and
/// number of cases within twice that, by sparsifier, metric, method and ratio. Errors: InputError.
Json expansion_validity(const ExpansionValidityOptions& options);

std::vector<std::string> expansion_validity_lines(const Json& report);
std::string expansion_validity_csv(const Json& report);

}  // namespace sparscale::experiments
