// Padded ring all-gather: every block is padded to the largest one, then gathered with equal sizes.
#include <algorithm>

#include "sim/collectives/parts.hpp"

namespace sparscale::sim {

CollectiveAlgorithm ring_all_gather_padded() {
  return {"ring_padded",
          Operation::all_gather,
          "Ring all-gather of blocks padded to the largest",
          "ncclAllGather and torch.distributed.all_gather of padded tensors, what published sparsifiers do. Thakur et al., IJHPCA 2005",
          "(n - 1) (alpha + max_i m_i / B) on equal links",
          [](const CollectiveInput& input) -> std::unique_ptr<Program> {
            const auto bytes = input.bytes;
            check_sizes(bytes, "all_gather ring_padded");
            const auto n = static_cast<std::int64_t>(bytes.size());
            const std::uint64_t largest = *std::max_element(bytes.begin(), bytes.end());
            return std::make_unique<RingProgram>(std::vector<std::uint64_t>(bytes.size(), largest), n - 1, 0);
          }};
}

}  // namespace sparscale::sim
