// How well the build-up of many captured workers is predicted from a few of them (docs/fidelity.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.hpp"

namespace sparscale::experiments {

struct ExpansionValidityOptions {
  std::filesystem::path traces;  // folder of traces with 16 workers or more; empty: only the shipped sample that carries its truth
  std::vector<std::string> sparsifiers = {"hard_threshold", "micro", "exdyna", "deft", "cltk"};  // besides local top-k
  std::int64_t seeds = 3;
};

/// `cases`: trace, sparsifier, density, captured, workers, method, metric (build_up, density, padding), truth, predicted, error_percent.
/// Local top-k from a zero residual, mean over the window, by every method, `<generator>+cal` (calibrated), the fits and
/// `consensus` (geometric mean of hybrid, hybrid+cal and npmle); the truth of fewer
/// workers than a trace has is the exact mean over all subsets. Other sparsifiers: replay with captured workers against `auto`. `summary`:
/// mean and worst absolute error by sparsifier, metric, method and ratio. Errors: InputError.
Json expansion_validity(const ExpansionValidityOptions& options);

std::vector<std::string> expansion_validity_lines(const Json& report);
std::string expansion_validity_csv(const Json& report);

}  // namespace sparscale::experiments
