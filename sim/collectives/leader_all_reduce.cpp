// All-reduce by leaders.
#include "sim/collectives/leader.hpp"

namespace sparscale::sim {

std::unique_ptr<Program> leader_all_reduce_program(const CollectiveInput& input, const std::string& algorithm) {
  const std::uint64_t bytes = equal_bytes(input.bytes, algorithm);
  const auto nodes = nodes_of(input);
  const std::int64_t N = std::ssize(nodes);
  auto program = std::make_unique<WrittenProgram>(std::ssize(input.bytes), 1);
  std::vector<std::int64_t> cuts{N};  // the leaders' ring and the rings of nodes cut the buffer differently
  for (const auto& members : nodes) cuts.push_back(std::ssize(members));
  const CommonCuts common(cuts);
  program->set_owners(std::vector<std::int64_t>(static_cast<std::size_t>(common.blocks()), 0));
  const auto turn = [](std::int64_t i, std::int64_t size) { return (i % size + size) % size; };
  const auto leader_chunks = split_evenly(bytes, N);
  for (std::int64_t node = 0; node < N; ++node) {
    const auto& members = nodes[static_cast<std::size_t>(node)];
    const std::int64_t g = std::ssize(members), leader = members.front();
    const auto chunks = split_evenly(bytes, g);
    const auto chunk = [&](std::int64_t number, std::int64_t peer) {
      const std::int64_t at = turn(number, g), begin = common.begin(at, g);
      return Transfer{peer, chunks[static_cast<std::size_t>(at)], begin, common.begin(at + 1, g) - begin};
    };
    const auto member = [&](std::int64_t local) { return members[static_cast<std::size_t>(turn(local, g))]; };
    // Round the node: reducing, worker l ends with chunk l + 1; or passing finished chunks on.
    const auto ring = [&](bool reduces) {
      for (std::int64_t local = 0; local < g; ++local)
        for (std::int64_t s = 0; s < g - 1; ++s) {
          Step& step = program->add(member(local));
          step.sends.push_back(chunk(local - s + (reduces ? 0 : 1), member(local + 1)));
          step.receives.push_back(member(local - 1));
          step.reduces = reduces;
        }
    };
    ring(true);
    for (std::int64_t local = 1; local < g; ++local) {
      program->add(member(local)).sends.push_back(chunk(local + 1, leader));
      program->add(leader).receives.push_back(member(local));
    }
    for (std::int64_t s = 0; s < 2 * (N - 1); ++s) {
      Step& step = program->add(leader);
      const std::int64_t at = turn(node - s, N), begin = common.begin(at, N);
      step.sends.push_back({nodes[static_cast<std::size_t>(turn(node + 1, N))].front(), leader_chunks[static_cast<std::size_t>(at)], begin,
                            common.begin(at + 1, N) - begin});
      step.receives.push_back(nodes[static_cast<std::size_t>(turn(node - 1, N))].front());
      step.reduces = s < N - 1;
    }
    for (std::int64_t local = 1; local < g; ++local) {
      program->add(leader).sends.push_back(chunk(local + 1, member(local)));
      program->add(member(local)).receives.push_back(leader);
    }
    ring(false);
  }
  return program;
}

CollectiveAlgorithm leader_all_reduce() {
  return {"leader",
          Operation::all_reduce,
          "All-reduce by leaders: reduce to them, round a ring of them, broadcast in every node",
          "Horovod's hierarchical all-reduce where nodes differ; reduce and broadcast of long buffers as in MPICH",
          "4 (g - 1) (alpha1 + m / (g B1)) + 2 (N - 1) (alpha2 + m / (N B2)), N nodes of g workers",
          [](const CollectiveInput& input) { return leader_all_reduce_program(input, "all_reduce leader"); }};
}

}  // namespace sparscale::sim
