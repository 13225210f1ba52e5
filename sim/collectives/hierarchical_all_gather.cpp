// Hierarchical all-gather: the workers of the same local rank gather between the nodes round a ring, then every node gathers what its
// workers have, round a ring inside. Where nodes differ the leaders do it.
#include "sim/collectives/leader.hpp"

namespace sparscale::sim {
namespace {

std::unique_ptr<Program> hierarchical(const CollectiveInput& input) {
  check_sizes(input.bytes, "all_gather hierarchical");
  const auto nodes = nodes_of(input);
  if (!are_equal(nodes)) return leader_all_gather_program(input, "all_gather hierarchical");
  const std::int64_t N = std::ssize(nodes), g = std::ssize(nodes.front());
  const auto turn = [](std::int64_t i, std::int64_t size) { return (i % size + size) % size; };
  const auto at = [&](std::int64_t node, std::int64_t local) {
    return nodes[static_cast<std::size_t>(turn(node, N))][static_cast<std::size_t>(turn(local, g))];
  };
  const auto bytes = [&](std::int64_t worker) { return input.bytes[static_cast<std::size_t>(worker)]; };
  auto program = std::make_unique<WrittenProgram>(N * g, 1);
  std::vector<std::uint64_t> column(static_cast<std::size_t>(g), 0);  // what a local rank holds after the first phase
  for (std::int64_t local = 0; local < g; ++local)
    for (std::int64_t node = 0; node < N; ++node) column[static_cast<std::size_t>(local)] += bytes(at(node, local));
  // Block l N + j is that of local rank l on node j.
  std::vector<std::int64_t> owners;
  for (std::int64_t local = 0; local < g; ++local)
    for (std::int64_t node = 0; node < N; ++node) owners.push_back(at(node, local));
  program->set_owners(owners);
  for (std::int64_t node = 0; node < N; ++node)
    for (std::int64_t local = 0; local < g; ++local) {
      const std::int64_t worker = at(node, local);
      for (std::int64_t s = 0; s < N - 1; ++s) {
        Step& step = program->add(worker);
        step.sends.push_back({at(node + 1, local), bytes(at(node - s, local)), local * N + turn(node - s, N), 1});
        step.receives.push_back(at(node - 1, local));
      }
      for (std::int64_t s = 0; s < g - 1; ++s) {
        Step& step = program->add(worker);
        const std::int64_t of = turn(local - s, g);
        step.sends.push_back({at(node, local + 1), column[static_cast<std::size_t>(of)], of * N, N});
        step.receives.push_back(at(node, local - 1));
      }
    }
  return program;
}

}  // namespace

CollectiveAlgorithm hierarchical_all_gather() {
  return {"hierarchical",
          Operation::all_gather,
          "Hierarchical all-gather: between nodes, then inside them",
          "Horovod's hierarchical all-gather; as leader where nodes have different numbers of workers",
          "(N - 1) (alpha2 + m / B2) + (g - 1) (alpha1 + N m / B1), N nodes of g workers with a NIC each, equal blocks",
          hierarchical};
}

}  // namespace sparscale::sim
