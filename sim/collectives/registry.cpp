// The collective algorithms, in the order in which they are listed: one line each, naming the function that its file defines.
#include <algorithm>

#include "base/error.hpp"
#include "sim/collective.hpp"

#define SPARSCALE_COLLECTIVES(LINE)         \
  LINE(ring_all_gather)                     \
  LINE(ring_all_gather_padded)              \
  LINE(recursive_doubling_all_gather)       \
  LINE(bruck_all_gather)                    \
  LINE(neighbour_exchange_all_gather)       \
  LINE(pipelined_rr_all_gather)             \
  LINE(pipelined_ready_all_gather)          \
  LINE(hierarchical_all_gather)             \
  LINE(leader_all_gather)                   \
  LINE(ring_all_reduce)                     \
  LINE(recursive_doubling_all_reduce)       \
  LINE(rabenseifner_all_reduce)             \
  LINE(double_binary_tree_all_reduce)       \
  LINE(hierarchical_all_reduce)             \
  LINE(leader_all_reduce)                   \
  LINE(parameter_server_all_reduce)         \
  LINE(parameter_server_sharded_all_reduce) \
  LINE(in_network_all_reduce)               \
  LINE(ring_reduce_scatter)                 \
  LINE(recursive_halving_reduce_scatter)    \
  LINE(pairwise_reduce_scatter)             \
  LINE(binomial_broadcast)                  \
  LINE(binomial_concurrent_broadcast)       \
  LINE(ring_broadcast)                      \
  LINE(binomial_reduce)                     \
  LINE(pairwise_all_to_all)                 \
  LINE(throttled_all_to_all)                \
  LINE(exponential_gossip)                  \
  LINE(ring_neighbours_gossip)              \
  LINE(crossover_gossip)                    \
  LINE(crossover_hierarchical_gossip)       \
  LINE(streaming_sparse_all_reduce)

namespace sparscale::sim {

#define SPARSCALE_DECLARE(name) CollectiveAlgorithm name();
SPARSCALE_COLLECTIVES(SPARSCALE_DECLARE)
#undef SPARSCALE_DECLARE

const std::vector<CollectiveAlgorithm>& collective_algorithms() {
#define SPARSCALE_ENTRY(name) name(),
  static const std::vector<CollectiveAlgorithm> all = {SPARSCALE_COLLECTIVES(SPARSCALE_ENTRY)};
#undef SPARSCALE_ENTRY
  return all;
}

std::unique_ptr<Program> CollectiveAlgorithm::make(const CollectiveInput& input) const {
  if (!input.parts.empty() && operation != Operation::all_to_all)
    throw InputError("parts of " + operation_name(operation), "none, as only an all_to_all has some", std::to_string(input.parts.size()));
  std::unique_ptr<Program> program = build(input);
  program->set_identity({operation, *std::max_element(input.bytes.begin(), input.bytes.end())});
  return program;
}

const CollectiveAlgorithm& find_collective(Operation operation, const std::string& name) {
  std::string list;
  for (const CollectiveAlgorithm& algorithm : collective_algorithms()) {
    if (algorithm.operation != operation) continue;
    if (algorithm.name == name) return algorithm;
    list += (list.empty() ? "one of " : ", ") + algorithm.name;
  }
  throw InputError("algorithm of " + operation_name(operation), list, "\"" + name + "\"");
}

}  // namespace sparscale::sim
