// Hierarchical all-reduce: reduce-scatter round a ring in every node, a ring all-reduce between the nodes for every local rank, all-gather
// in every node. Whether the inner rings share a NIC is the platform's matter. Where nodes differ the leaders do it.
#include "sim/collectives/leader.hpp"

namespace sparscale::sim {
namespace {

class HierarchicalAllReduce : public Program {
 public:
  HierarchicalAllReduce(const std::vector<std::vector<std::int64_t>>& nodes, std::uint64_t bytes)
      : nodes_(nodes),
        N_(std::ssize(nodes)),
        g_(std::ssize(nodes.front())),
        node_(static_cast<std::size_t>(N_ * g_)),
        local_(node_.size()),
        offsets_(offsets_of(split_evenly(bytes, N_ * g_))) {
    for (std::int64_t node = 0; node < N_; ++node)
      for (std::int64_t local = 0; local < g_; ++local) {
        const auto worker = static_cast<std::size_t>(at(node, local));
        node_[worker] = node;
        local_[worker] = local;
      }
  }
  std::int64_t workers() const override { return N_ * g_; }
  std::int64_t steps(std::int64_t) const override { return 2 * (g_ - 1) + 2 * (N_ - 1); }

  void step(std::int64_t worker, std::int64_t number, Step& step) const override {
    const std::int64_t node = node_[static_cast<std::size_t>(worker)], local = local_[static_cast<std::size_t>(worker)];
    const auto turn = [](std::int64_t i, std::int64_t size) { return (i % size + size) % size; };
    step.clear();
    // Group l is the N blocks l N, ..., l N + N - 1. After the first phase local rank l has summed group l + 1 up over its node.
    const std::int64_t between = number - (g_ - 1);
    if (between >= 0 && between < 2 * (N_ - 1)) {
      send(step, at(turn(node + 1, N_), local), turn(local + 1, g_) * N_ + turn(node - between, N_), 1);
      step.receives.push_back(at(turn(node - 1, N_), local));
      step.reduces = between < N_ - 1;
      return;
    }
    const std::int64_t inside = between < 0 ? number : number - 2 * (N_ - 1);  // counted through both inner phases
    send(step, at(node, turn(local + 1, g_)), turn(local - inside, g_) * N_, N_);
    step.receives.push_back(at(node, turn(local - 1, g_)));
    step.reduces = inside < g_ - 1;
  }

 private:
  std::int64_t at(std::int64_t node, std::int64_t local) const {
    return nodes_[static_cast<std::size_t>(node)][static_cast<std::size_t>(local)];
  }
  void send(Step& step, std::int64_t peer, std::int64_t first, std::int64_t blocks) const {
    step.sends.push_back(
        {peer, offsets_[static_cast<std::size_t>(first + blocks)] - offsets_[static_cast<std::size_t>(first)], first, blocks});
  }

  std::vector<std::vector<std::int64_t>> nodes_;
  std::int64_t N_, g_;
  std::vector<std::int64_t> node_, local_;
  std::vector<std::uint64_t> offsets_;
};

}  // namespace

CollectiveAlgorithm hierarchical_all_reduce() {
  return {"hierarchical",
          Operation::all_reduce,
          "Hierarchical all-reduce: inside nodes, between them, inside again",
          "Horovod's hierarchical all-reduce; as leader where nodes have different numbers of workers",
          "2 (g - 1) (alpha1 + m / (g B1)) + 2 (N - 1) (alpha2 + m / (g N B2)), N nodes of g workers with a NIC each",
          [](const CollectiveInput& input) -> std::unique_ptr<Program> {
            const std::uint64_t buffer = equal_bytes(input.bytes, "all_reduce hierarchical");
            const auto nodes = nodes_of(input);
            if (!are_equal(nodes)) return leader_all_reduce_program(input, "all_reduce hierarchical");
            return std::make_unique<HierarchicalAllReduce>(nodes, buffer);
          }};
}

}  // namespace sparscale::sim
