// The fields timeline, disturbance and compute of an experiment.
#pragma once

#include <string>

#include "experiments/experiment.hpp"
#include "experiments/sweep.hpp"

namespace sparscale::experiments {

/// Forward and backward times: the point's compute, or the trace's. Errors: InputError; `file` is the experiment's.
void set_compute_times(const Point& point, const traces::Trace& trace, const std::string& file, RunPoint& run);

/// Fills timeline, disturbance and device memory of a run whose compute times, platform, placement, network and collectives are set, and
/// adds what differs from the defaults to its identity. Errors: InputError when the mode does not fit the sparsifier, the trace or the
/// platform.
void set_timeline(const Experiment& experiment, const ReplayPoint& replay, const Point& point, RunPoint& run);

/// Options of a resolved timeline that differ from the defaults of its mode (without mode).
Json changed_timeline_options(const Json& resolved);

}  // namespace sparscale::experiments
