// How often n workers select the same coordinates, and what that says of other numbers of workers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernels.hpp"
#include "traces/expansion.hpp"

namespace sparscale::sim {

/// By iteration, how many workers select each coordinate.
using SelectionCounts = std::vector<std::vector<std::uint32_t>>;

/// Local top-k (k per worker) from a zero residual over the first `iterations` iterations, worker by worker, so that one residual is held
/// and not n. `learning_rate`: per position of the window, or empty for 1; without `error_feedback` the accumulator is the bare gradient.
/// `threads` share the workers, each with an accumulator of its own, where the source can be cloned; the result does not depend on them, nor
/// on the order in which the source hands out elements.
SelectionCounts topk_selection_counts(traces::GradientSource& source, std::span<const double> learning_rate, bool error_feedback,
                                      kernels::Index k, std::int64_t iterations, int threads = 1);

/// Mean over the iterations of how many coordinates exactly c = 0..workers workers select.
std::vector<double> count_classes(const SelectionCounts& counts, std::int64_t workers);

/// Expected union of a random `workers` of the W = classes.size() - 1 workers (exact rarefaction). 1 <= workers <= W.
double rarefied_union(std::span<const double> classes, std::int64_t workers);

/// Build-up of `workers` workers extrapolated from that of W: the logarithm of the build-up as a quadratic of the logarithm of the number
/// of workers, through 0 at one worker, fitted to 2, 4, ... and W workers; it never falls. `k`: selected by one worker. W >= 2.
double log_quadratic_build_up(std::span<const double> classes, double k, std::int64_t workers);

}  // namespace sparscale::sim
