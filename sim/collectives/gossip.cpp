// Gossip: instead of a sum over all, every worker gets the model of one or two others, and averages. Block w is worker w's model, or its
// segments.
#include <bit>
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

// Crossover-SGD: every segment goes to a peer of its own, chosen by a random cycle through all workers, so that each receives every segment
// once.
std::unique_ptr<Program> crossover(const CollectiveInput& input) {
  constexpr std::int64_t segments = 8;
  const auto parts = split_evenly(equal_bytes(input.bytes, "gossip crossover"), segments);
  const std::int64_t n = std::ssize(input.bytes), round = round_of(input);
  auto program = std::make_unique<WrittenProgram>(n, 1);
  std::vector<std::int64_t> owners;
  for (std::int64_t worker = 0; worker < n; ++worker) owners.insert(owners.end(), segments, worker);
  program->set_owners(owners);
  for (std::int64_t segment = 0; segment < segments && n > 1; ++segment) {
    Random random(stream_key(input.seed, "crossover", {static_cast<std::uint64_t>(round), static_cast<std::uint64_t>(segment)}));
    const auto cycle = random_permutation(n, random);
    for (std::int64_t i = 0; i < n; ++i) {
      const auto at = [&](std::int64_t j) { return cycle[static_cast<std::size_t>((j + n) % n)]; };
      Step& step = program->add(at(i));
      step.sends.push_back({at(i + 1), parts[static_cast<std::size_t>(segment)], at(i) * segments + segment, 1});
      step.receives.push_back(at(i - 1));
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
          "Eight segments, each to a random peer, load-balanced",
          "Crossover-SGD. Yeo et al., arXiv 2012.15198",
          "8 (alpha + m / (8 B)) on equal links",
          crossover};
}

}  // namespace sparscale::sim
