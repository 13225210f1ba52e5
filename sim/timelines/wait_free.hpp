// Wait-free backpropagation: a piece of the gradient is exchanged as soon as it is there, while the rest is still being computed.
#pragma once

#include <vector>

#include "sim/timelines/streams.hpp"

namespace sparscale::sim {

/// A piece of the gradient with what is done with it.
struct Piece {
  std::int64_t begin = 0;  // its lowest element: ready when the backward pass, which comes from the end, has passed it
  struct Call {
    std::vector<Kernel> before;
    CollectiveCall call;
  };
  std::vector<Call> calls;
  std::vector<Kernel> after;  // after the last call; without calls: at once
  bool joins = false;         // needs what the calls of all pieces before have brought
};

/// Forward, then backward from the last layer to the first; `pieces` in the order in which they become ready. What comes before a piece's
/// first call runs as soon as the piece is ready, what its later calls need as soon as the computing stream is at the end of a layer. Calls
/// follow one another, piece by piece, or, with several streams, piece p's in stream p modulo their number. All workers start at 0.
void run_wait_free(const std::vector<Piece>& pieces, TimelineContext& context);

}  // namespace sparscale::sim
