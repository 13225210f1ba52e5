// Ring reduce-scatter: the first half of the ring all-reduce. Worker i ends with the sum of chunk (i + 1) mod n.
#include "sim/collectives/parts.hpp"

namespace sparscale::sim {

CollectiveAlgorithm ring_reduce_scatter() {
  return {"ring",
          Operation::reduce_scatter,
          "Ring reduce-scatter",
          "ncclReduceScatter (Ring), MPI_Reduce_scatter_block of large buffers. Patarasuk, Yuan, JPDC 2009",
          "(n - 1) (alpha + m / (n B)) on equal links",
          [](const CollectiveInput& input) -> std::unique_ptr<Program> {
            const auto bytes = input.bytes;
            const auto n = static_cast<std::int64_t>(bytes.size());
            const std::uint64_t buffer = equal_bytes(bytes, "reduce_scatter ring");
            return std::make_unique<RingProgram>(split_evenly(buffer, n), n - 1, n - 1);
          }};
}

}  // namespace sparscale::sim
