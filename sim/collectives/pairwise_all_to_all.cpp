// Pairwise all-to-all: in step s = 1, ..., n - 1 worker i sends to worker i + s and receives from worker i - s (mod n).
#include "sim/collectives/parts.hpp"

namespace sparscale::sim {
namespace {

class PairwiseAllToAll : public Program {
 public:
  explicit PairwiseAllToAll(std::span<const std::uint64_t> bytes) : workers_(static_cast<std::int64_t>(bytes.size())) {
    for (const std::uint64_t sent : bytes) parts_.push_back(workers_ > 1 ? split_evenly(sent, workers_ - 1) : std::vector<std::uint64_t>());
  }
  std::int64_t workers() const override { return workers_; }
  std::int64_t steps(std::int64_t) const override { return workers_ - 1; }

  void step(std::int64_t worker, std::int64_t number, Step& step) const override {
    const std::int64_t distance = number + 1, to = (worker + distance) % workers_;
    step.sends.assign(1, {to, parts_[static_cast<std::size_t>(worker)][static_cast<std::size_t>(number)], to, 1});
    step.receives.assign(1, (worker - distance + workers_) % workers_);
    step.reduces = true;  // the receiver holds its chunk of every worker
  }

 private:
  std::int64_t workers_;
  std::vector<std::vector<std::uint64_t>> parts_;  // what each worker sends, by distance
};

}  // namespace

CollectiveAlgorithm pairwise_all_to_all() {
  return {"pairwise",
          Operation::all_to_all,
          "Pairwise all-to-all, one partner at a time",
          "MPI_Alltoall of large buffers; the rotated sends of Ok-Topk (Li, Hoefler, PPoPP 2022). Thakur, Rabenseifner, Gropp, IJHPCA 2005",
          "(n - 1) alpha + max_i m_i / B on equal links when sizes are equal",
          [](const CollectiveInput& input) -> std::unique_ptr<Program> {
            const auto bytes = input.bytes;
            check_sizes(bytes, "all_to_all pairwise");
            return std::make_unique<PairwiseAllToAll>(bytes);
          }};
}

}  // namespace sparscale::sim
