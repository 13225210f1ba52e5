// Which rows of embeddings the captured workers touch, and whether a worker's data repeat from iteration to iteration.
#pragma once

#include <cstdint>
#include <vector>

#include "traces/trace.hpp"

namespace sparscale::traces {

/// Embedding layers with this many rows; they share which rows a worker touches.
struct RowGroup {
  std::int64_t rows = 0;
  std::vector<std::uint8_t> touched;  // [T, W, rows]: any element of the row is not zero, in any of the group's embeddings
  bool at(std::int64_t position, std::int64_t worker, std::int64_t row, std::int64_t workers) const {
    return touched[static_cast<std::size_t>((position * workers + worker) * rows + row)] != 0;
  }
};

struct RowActivity {
  std::vector<RowGroup> groups;           // by first appearance; empty for a dense model
  std::vector<std::int64_t> group_of;     // per layer: its group when it is an embedding, else -1
  std::vector<std::int64_t> same_height;  // per layer: the group with as many rows as this layer has, else -1
};

/// An embedding is a layer of two or more axes and at least 16 rows (first axis) of which, on average over iterations and workers, more
/// than half are exactly zero. Looks at the first `workers` workers. Cost: reads the rows that are zero, and the start of the others.
RowActivity find_row_activity(const Trace& trace, std::int64_t workers);

/// How much more a worker's rows overlap with its own ones of the next iteration than with another worker's.
struct RowOverlap {
  double ratio = 1;  // own / other; 1 for i.i.d. data
  /// The data are stateful: the ratio is above 1.1, and the difference above three times what counting such rows would scatter.
  bool repeats = false;
};
RowOverlap row_overlap(const RowActivity& activity, std::int64_t positions, std::int64_t workers);

/// For dense models: lag-1 correlation of a worker's deviation from the mean with its own next one, less that with another's,
/// over at most 16,384 coordinates (0: i.i.d.; more than 0.05: stateful). 0 when it cannot be measured (T or W below 2).
double deviation_memory(const Trace& trace, std::int64_t workers);

/// What the trace says of its data order; where it says nothing, what the two measures say.
bool is_stateful(const Trace& trace, const RowActivity& activity, std::int64_t workers);

inline constexpr double stateful_deviation_memory = 0.05;

}  // namespace sparscale::traces
