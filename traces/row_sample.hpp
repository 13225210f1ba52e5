// A trace at a fraction of its coordinates, for replays that would not fit in memory.
#pragma once

#include <cstdint>
#include <vector>

#include "traces/trace.hpp"

namespace sparscale::traces {

struct RowSample {
  Trace trace;                              // N' coordinates; layers with fewer rows
  std::vector<std::int64_t> row_starts;     // first element of each kept row in the sample, ascending, and N' at the end
  std::vector<std::int64_t> rows_of_layer;  // kept rows of each layer
  double fraction = 1;                      // N' / N
};

/// Keeps a fraction of every layer's rows (first axis; a layer of one axis has rows of one element), rounded by chance, at least one, by
/// `seed`; rows are cut into equal parts where a layer has too few. Layers with as many rows keep the same ones. 0 < fraction < 1. Memory:
/// 4 N' bytes for each (position, worker) that is read.
RowSample sample_rows(const Trace& trace, double fraction, std::uint64_t seed);

}  // namespace sparscale::traces
