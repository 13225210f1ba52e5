// A sweep as jobs of Slurm over one result directory.
#pragma once

#include <string>
#include <vector>

#include "experiments/experiment.hpp"
#include "experiments/runner.hpp"

namespace sparscale::experiments {

struct SlurmOptions {
  std::vector<std::string> sbatch;  // further options for every sbatch call, as they stand
  std::int64_t tasks = 32;          // most tasks of an array
  bool dry_run = false;             // write the scripts and print the commands, submit nothing
  bool figures = true;              // the last job draws them
};

/// Prepares the directory, writes its slurm/replays.sh, timing.sh and results.sh and submits them: an array of replays, an array of timings
/// after it, and a job that writes results.csv after that. Tasks share nothing but the directory: each result is a file of its own that is
/// written under another name and renamed. Prints a line for each job. Errors: as run_experiment before it starts; RunError when sbatch
/// cannot be started or refuses.
void submit_to_slurm(const Experiment& experiment, const RunOptions& run, const SlurmOptions& options);

}  // namespace sparscale::experiments
