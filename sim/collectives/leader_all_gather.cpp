// All-gather by leaders.
#include "sim/collectives/leader.hpp"

namespace sparscale::sim {

std::unique_ptr<Program> leader_all_gather_program(const CollectiveInput& input, const std::string& algorithm) {
  check_sizes(input.bytes, algorithm);
  const auto nodes = nodes_of(input);
  const std::int64_t N = std::ssize(nodes);
  auto program = std::make_unique<WrittenProgram>(std::ssize(input.bytes), 1);
  // Blocks in the order of nodes, so that those of a node stand together.
  std::vector<std::int64_t> owners, first;
  std::vector<std::uint64_t> node_bytes;
  for (const auto& members : nodes) {
    first.push_back(std::ssize(owners));
    node_bytes.push_back(0);
    for (const std::int64_t worker : members) {
      owners.push_back(worker);
      node_bytes.back() += input.bytes[static_cast<std::size_t>(worker)];
    }
  }
  const auto block_of = [&](std::int64_t node, std::int64_t peer) {
    const auto at = static_cast<std::size_t>((node % N + N) % N);
    return Transfer{peer, node_bytes[at], first[at], std::ssize(nodes[at])};
  };
  for (std::int64_t node = 0; node < N; ++node) {
    const auto& members = nodes[static_cast<std::size_t>(node)];
    const std::int64_t leader = members.front(), g = std::ssize(members);
    const auto leader_of = [&](std::int64_t other) { return nodes[static_cast<std::size_t>((other + N) % N)].front(); };
    for (std::int64_t local = 1; local < g; ++local) {
      const std::int64_t worker = members[static_cast<std::size_t>(local)];
      program->add(worker).sends.push_back(
          {leader, input.bytes[static_cast<std::size_t>(worker)], first[static_cast<std::size_t>(node)] + local, 1});
      program->add(leader).receives.push_back(worker);
    }
    for (std::int64_t s = 0; s < N - 1; ++s) {
      Step& step = program->add(leader);
      step.sends.push_back(block_of(node - s, leader_of(node + 1)));
      step.receives.push_back(leader_of(node - 1));
    }
    // Down the chain: a worker passes a node's blocks on while the next ones arrive.
    for (std::int64_t local = 0; local < g && g > 1; ++local)
      for (std::int64_t t = 0; t <= N; ++t) {
        const bool receives = local > 0 && t < N;
        const std::int64_t passed = local > 0 ? t - 1 : t;
        const bool sends = local + 1 < g && passed >= 0 && passed < N;
        if (!receives && !sends) continue;
        Step& step = program->add(members[static_cast<std::size_t>(local)]);
        if (sends) step.sends.push_back(block_of(node - passed, members[static_cast<std::size_t>(local + 1)]));
        if (receives) step.receives.push_back(members[static_cast<std::size_t>(local - 1)]);
      }
  }
  program->set_owners(std::move(owners));
  return program;
}

CollectiveAlgorithm leader_all_gather() {
  return {"leader",
          Operation::all_gather,
          "All-gather by leaders: to them, round a ring of them, down a chain in every node",
          "Horovod's hierarchical all-gather where nodes differ: one worker of a node carries what all have",
          "(g - 1) (alpha1 + m / B1) + (N - 1) (alpha2 + g m / B2) + [g > 1] (N + g - 2) (alpha1 + g m / B1), N nodes of g workers, equal "
          "blocks",
          [](const CollectiveInput& input) { return leader_all_gather_program(input, "all_gather leader"); }};
}

}  // namespace sparscale::sim
