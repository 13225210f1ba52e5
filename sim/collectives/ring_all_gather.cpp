// Ring all-gather: every worker's own bytes travel once round the ring, forwarded whole.
#include "sim/collectives/parts.hpp"

namespace sparscale::sim {

CollectiveAlgorithm ring_all_gather() {
  return {"ring",
          Operation::all_gather,
          "Ring all-gather of blocks as they are (all-gatherv)",
          "MPI_Allgatherv on a neighbour ring; grouped ncclSend and ncclRecv. Thakur, Rabenseifner, Gropp, IJHPCA 2005",
          "(n - 1) (alpha + max_i m_i / B) on equal links",
          [](const CollectiveInput& input) -> std::unique_ptr<Program> {
            const auto bytes = input.bytes;
            check_sizes(bytes, "all_gather ring");
            const auto n = static_cast<std::int64_t>(bytes.size());
            return std::make_unique<RingProgram>(std::vector<std::uint64_t>(bytes.begin(), bytes.end()), n - 1, 0);
          }};
}

}  // namespace sparscale::sim
