// Gossip: instead of a sum over all, every worker gets the model of one or two others, and averages. Block w is worker w's model, or its
// segments.
#include <bit>
#include <map>
#include <numeric>

#include "base/error.hpp"
#include "base/random.hpp"
#include "sim/collectives/parts.hpp"

namespace sparscale::sim {
namespace {

std::int64_t round_of(const CollectiveInput& input) {
  if (input.round < 0) throw InputError("gossip round", "at least 0", std::to_string(input.round));
  return input.round;
}

// Stochastic gradient push: one peer at distance 2^i, i going through 0, ..., floor(log2(n - 1)) from round to round.
std::unique_ptr<Program> exponential(const CollectiveInput& input) {
  const std::uint64_t bytes = equal_bytes(input.bytes, "gossip exponential");
  const std::int64_t n = std::ssize(input.bytes), round = round_of(input);
  auto program = std::make_unique<WrittenProgram>(n, 1);
  if (n == 1) return program;
  const std::int64_t distance = std::int64_t{1} << (round % std::bit_width(static_cast<std::uint64_t>(n - 1)));
  for (std::int64_t worker = 0; worker < n; ++worker) {
    Step& step = program->add(worker);
    step.sends.push_back({(worker + distance) % n, bytes, worker, 1});
    step.receives.push_back((worker - distance + n) % n);
  }
  return program;
}

// D-PSGD on a ring: to one neighbour, then to the other.
std::unique_ptr<Program> neighbours(const CollectiveInput& input) {
  const std::uint64_t bytes = equal_bytes(input.bytes, "gossip ring_neighbours");
  const std::int64_t n = std::ssize(input.bytes);
  auto program = std::make_unique<WrittenProgram>(n, 1);
  for (std::int64_t worker = 0; worker < n && n > 1; ++worker)
    for (const std::int64_t side : {1, -1}) {
      if (side < 0 && n == 2) continue;  // both neighbours are the same
      Step& step = program->add(worker);
      step.sends.push_back({(worker + side + n) % n, bytes, worker, 1});
      step.receives.push_back((worker - side + n) % n);
    }
  return program;
}

std::int64_t segments_of(const CollectiveInput& input) {
  if (input.segments < 1 || input.segments > most_segments)
    throw InputError("gossip segments", "1 to " + std::to_string(most_segments), std::to_string(input.segments));
  return input.segments;
}

std::vector<std::int64_t> random_cycle(const CollectiveInput& input, std::int64_t round, std::int64_t segment, std::int64_t size) {
  Random random(stream_key(input.seed, "crossover", {static_cast<std::uint64_t>(round), static_cast<std::uint64_t>(segment)}));
  return random_permutation(size, random);
}

// Crossover-SGD: every segment goes to a peer of its own, chosen by a random cycle through all workers, so that each receives every segment
// once.
std::unique_ptr<Program> crossover(const CollectiveInput& input) {
  const std::int64_t segments = segments_of(input);
  const auto parts = split_evenly(equal_bytes(input.bytes, "gossip crossover"), segments);
  const std::int64_t n = std::ssize(input.bytes), round = round_of(input);
  auto program = std::make_unique<WrittenProgram>(n, 1);
  std::vector<std::int64_t> owners;
  for (std::int64_t worker = 0; worker < n; ++worker) owners.insert(owners.end(), static_cast<std::size_t>(segments), worker);
  program->set_owners(owners);
  for (std::int64_t segment = 0; segment < segments && n > 1; ++segment) {
    const auto cycle = random_cycle(input, round, segment, n);
    for (std::int64_t i = 0; i < n; ++i) {
      const auto at = [&](std::int64_t j) { return cycle[static_cast<std::size_t>((j + n) % n)]; };
      Step& step = program->add(at(i));
      step.sends.push_back({at(i + 1), parts[static_cast<std::size_t>(segment)], at(i) * segments + segment, 1});
      step.receives.push_back(at(i - 1));
    }
  }
  return program;
}

// The same between nodes: a ring all-reduce in every node, its leader exchanges segments with other leaders, and passes what it got down a
// chain in its node. Blocks: the models of the nodes, one after the other, each in the pieces that segments and chunks have in common.
std::unique_ptr<Program> crossover_hierarchical(const CollectiveInput& input) {
  const std::uint64_t bytes = equal_bytes(input.bytes, "gossip crossover_hierarchical");
  const std::int64_t round = round_of(input), segments = segments_of(input);
  const auto nodes = nodes_of(input);
  const std::int64_t N = std::ssize(nodes);
  auto program = std::make_unique<WrittenProgram>(std::ssize(input.bytes), 1);
  std::vector<std::int64_t> cuts{segments};
  for (const auto& members : nodes) cuts.push_back(std::ssize(members));
  const CommonCuts common(cuts);
  std::vector<std::int64_t> owners;  // the leaders
  for (const auto& members : nodes) owners.insert(owners.end(), static_cast<std::size_t>(common.blocks()), members.front());
  program->set_owners(std::move(owners));
  // Part `number` of `parts` of a node's model.
  std::map<std::int64_t, std::vector<std::uint64_t>> sizes;
  const auto part = [&](std::int64_t node, std::int64_t number, std::int64_t parts, std::int64_t peer) {
    const std::int64_t begin = common.begin(number, parts);
    auto& of = sizes[parts];
    if (of.empty()) of = split_evenly(bytes, parts);
    return Transfer{peer, of[static_cast<std::size_t>(number)], node * common.blocks() + begin, common.begin(number + 1, parts) - begin};
  };
  for (std::int64_t node = 0; node < N; ++node) {
    const auto& members = nodes[static_cast<std::size_t>(node)];
    const std::int64_t g = std::ssize(members);
    const auto member = [&](std::int64_t local) { return members[static_cast<std::size_t>((local + g) % g)]; };
    for (std::int64_t local = 0; local < g; ++local)
      for (std::int64_t s = 0; s < 2 * (g - 1); ++s) {
        Step& step = program->add(member(local));
        step.sends.push_back(part(node, ((local - s) % g + g) % g, g, member(local + 1)));
        step.receives.push_back(member(local - 1));
        step.reduces = s < g - 1;
      }
  }
  std::vector<std::vector<std::int64_t>> from(static_cast<std::size_t>(N));  // whose segments a node gets
  for (std::int64_t segment = 0; segment < segments && N > 1; ++segment) {
    const auto cycle = random_cycle(input, round, segment, N);
    for (std::int64_t i = 0; i < N; ++i) {
      const auto at = [&](std::int64_t j) { return cycle[static_cast<std::size_t>((j + N) % N)]; };
      const auto leader = [&](std::int64_t node) { return nodes[static_cast<std::size_t>(node)].front(); };
      Step& step = program->add(leader(at(i)));
      step.sends.push_back(part(at(i), segment, segments, leader(at(i + 1))));
      step.receives.push_back(leader(at(i - 1)));
      from[static_cast<std::size_t>(at(i))].push_back(at(i - 1));
    }
  }
  for (std::int64_t node = 0; node < N && N > 1; ++node) {
    const auto& members = nodes[static_cast<std::size_t>(node)];
    const std::int64_t g = std::ssize(members);
    for (std::int64_t local = 0; local < g && g > 1; ++local)
      for (std::int64_t t = 0; t <= segments; ++t) {
        const bool receives = local > 0 && t < segments;
        const std::int64_t passed = local > 0 ? t - 1 : t;
        const bool sends = local + 1 < g && passed >= 0 && passed < segments;
        if (!receives && !sends) continue;
        Step& step = program->add(members[static_cast<std::size_t>(local)]);
        if (sends)
          step.sends.push_back(part(from[static_cast<std::size_t>(node)][static_cast<std::size_t>(passed)], passed, segments,
                                    members[static_cast<std::size_t>(local + 1)]));
        if (receives) step.receives.push_back(members[static_cast<std::size_t>(local - 1)]);
      }
  }
  return program;
}

}  // namespace

CollectiveAlgorithm exponential_gossip() {
  return {"exponential",
          Operation::gossip,
          "One peer, at distance 2^i in round i",
          "Stochastic gradient push. Assran et al., ICML 2019",
          "alpha + m / B on equal links",
          exponential};
}

CollectiveAlgorithm ring_neighbours_gossip() {
  return {"ring_neighbours",
          Operation::gossip,
          "Both neighbours on a ring, one after the other",
          "D-PSGD. Lian et al., NeurIPS 2017",
          "2 (alpha + m / B) on equal links, n > 2",
          neighbours};
}

CollectiveAlgorithm crossover_gossip() {
  return {"crossover",
          Operation::gossip,
          "Segments (8 unless told otherwise), each to a random peer, load-balanced",
          "Crossover-SGD. Yeo et al., arXiv 2012.15198",
          "S (alpha + m / (S B)) on equal links, S segments",
          crossover};
}

CollectiveAlgorithm crossover_hierarchical_gossip() {
  return {"crossover_hierarchical",
          Operation::gossip,
          "All-reduce in every node, segments between leaders, and down a chain in every node",
          "Hierarchical Crossover-SGD. Yeo et al., arXiv 2012.15198",
          "2 (g - 1) (alpha1 + m / (g B1)) + S (alpha2 + m / (S B2)) + [g > 1] (S + g - 2) (alpha1 + m / (S B1)), N > 1 nodes of g workers",
          crossover_hierarchical};
}

}  // namespace sparscale::sim
