// Ring all-reduce: a reduce-scatter round the ring, then an all-gather round the ring.
//
// Step s of the first half sends chunk (i - s), step s of the second half chunk (i + 1 - s): with s counted through, both are (i - s) mod
// n.
#include "sim/collectives/parts.hpp"

namespace sparscale::sim {

CollectiveAlgorithm ring_all_reduce() {
  return {"ring",
          Operation::all_reduce,
          "Ring all-reduce: reduce-scatter, then all-gather",
          "ncclAllReduce (Ring), MPI_Allreduce of large buffers. Patarasuk, Yuan, JPDC 2009",
          "2 (n - 1) (alpha + m / (n B)) on equal links",
          [](const CollectiveInput& input) -> std::unique_ptr<Program> {
            const auto bytes = input.bytes;
            const auto n = static_cast<std::int64_t>(bytes.size());
            const std::uint64_t buffer = equal_bytes(bytes, "all_reduce ring");
            return std::make_unique<RingProgram>(split_evenly(buffer, n), 2 * (n - 1), n - 1);
          }};
}

}  // namespace sparscale::sim
