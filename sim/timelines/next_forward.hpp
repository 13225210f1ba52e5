// Synchronisation that overlaps the rest of the backward pass and the next forward pass: a layer's next forward pass waits for that layer's
// gradient alone.
#pragma once

#include <string>
#include <vector>

#include "sim/timelines/wait_free.hpp"

namespace sparscale::sim {

/// One all-reduce: a layer's gradient or a slice of it.
struct LayerJob {
  std::size_t layer = 0;
  Piece piece;            // one call
  std::string algorithm;  // empty: the one chosen for the operation
  std::int64_t stream = 0;
};

/// From the backward pass of this iteration, whose forward pass is over, to the end of the next forward pass, on clocks that are given and
/// moved on (one per worker). `jobs` in the order in which they become ready. by_priority: the next call is that of the lowest layer among
/// those ready on all workers, and begins everywhere when the last one is over everywhere; else calls go in the order of the jobs and a
/// worker enters when it is ready.
void run_next_forward(const std::vector<LayerJob>& jobs, bool by_priority, TimelineContext& context, std::vector<double>& clock);
/// The same in the order of the jobs, those of different streams side by side.
void run_next_forward_side_by_side(const std::vector<LayerJob>& jobs, TimelineContext& context, std::vector<double>& clock);

}  // namespace sparscale::sim
