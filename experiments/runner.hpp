// Runs an experiment into a result directory (docs/results.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "experiments/experiment.hpp"

namespace sparscale::experiments {

struct RunOptions {
  std::filesystem::path directory;
  int jobs = 1;
  bool force = false;  // compute again what is there already
};

/// What a run would do and cost.
struct Estimate {
  std::size_t runs = 0, runs_cached = 0;
  std::size_t replays = 0, replays_cached = 0;
  std::uint64_t memory_bytes = 0;  // of the largest replay that is to be done
  double element_iterations = 0;   // gradients x workers x iterations over the replays to do
  double time_s = 0;               // of one core, rough
};

/// Estimates without running anything. `directory` is looked at for cached results.
Estimate estimate(const Experiment& experiment, const std::filesystem::path& directory);

/// Errors: InputError when the largest replay that is not finished does not fit into the memory that is available.
void check_memory(const Experiment& experiment, const Estimate& estimate);

/// Runs what is missing, writes results.csv, summary.json and the other files. Returns the number of failed runs; their errors are on
/// stderr and in no result. Errors: InputError when the directory holds the results of an experiment with another name or the memory does
/// not suffice; RunError when interrupted.
std::size_t run_experiment(const Experiment& experiment, const RunOptions& options);

/// The summary lines of a finished directory (summary.json).
std::vector<std::string> summary_lines(const std::filesystem::path& directory);

}  // namespace sparscale::experiments
