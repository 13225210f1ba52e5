// Whether kernel profiles cover what a sweep will ask of them, before hours are spent on its replays.
#pragma once

#include <filesystem>

#include "experiments/experiment.hpp"

namespace sparscale::experiments {

/// Runs each sparsifier of the sweep for two iterations over made-up gradients (shortened where workers x gradients exceed 4 million) and
/// looks up in the profiles of its unfinished runs what it asks for: every operation, and the numbers of elements and the k of a top-k that
/// do not depend on the gradients. What depends on them is found out by the runs themselves. Errors: InputError with the place of the
/// profile in the experiment. Cost: about 20 ms for each sparsifier, density and number of workers.
void check_profiles(const Experiment& experiment, const std::filesystem::path& directory);

}  // namespace sparscale::experiments
