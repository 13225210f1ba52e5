// The collective algorithms, in the order in which they are listed: one line each, naming the function that its file defines.
#include "base/error.hpp"
#include "sim/collective.hpp"

#define SPARSCALE_COLLECTIVES(LINE)   \
  LINE(ring_all_gather)               \
  LINE(ring_all_gather_padded)        \
  LINE(ring_all_reduce)               \
  LINE(ring_reduce_scatter)           \
  LINE(binomial_broadcast)            \
  LINE(binomial_concurrent_broadcast) \
  LINE(binomial_reduce)               \
  LINE(pairwise_all_to_all)

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
