// Pairwise all-to-all: in step s = 1, ..., n - 1 worker i sends to worker i + s and receives from worker i - s (mod n).
#include "sim/collectives/parts.hpp"

namespace sparscale::sim {
namespace {

class PairwiseAllToAll : public Program {
 public:
  explicit PairwiseAllToAll(const CollectiveInput& input)
      : workers_(std::ssize(input.bytes)), bytes_(partner_bytes(input, "all_to_all pairwise")) {}
  std::int64_t workers() const override { return workers_; }
  std::int64_t steps(std::int64_t) const override { return workers_ - 1; }

  void step(std::int64_t worker, std::int64_t number, Step& step) const override {
    const std::int64_t distance = number + 1, to = (worker + distance) % workers_;
    step.sends.assign(1, {to, bytes_[static_cast<std::size_t>(worker * workers_ + to)], to, 1});
    step.receives.assign(1, (worker - distance + workers_) % workers_);
    step.reduces = true;  // the receiver holds its chunk of every worker
  }

 private:
  std::int64_t workers_;
  std::vector<std::uint64_t> bytes_;  // from each worker to each
};

}  // namespace

CollectiveAlgorithm pairwise_all_to_all() {
  return {"pairwise",
          Operation::all_to_all,
          "Pairwise all-to-all, one partner at a time",
          "MPI_Alltoall of large buffers; the rotated sends of Ok-Topk (Li, Hoefler, PPoPP 2022). Thakur, Rabenseifner, Gropp, IJHPCA 2005",
          "(n - 1) alpha + max_i m_i / B on equal links when sizes are equal",
          [](const CollectiveInput& input) -> std::unique_ptr<Program> { return std::make_unique<PairwiseAllToAll>(input); }};
}

}  // namespace sparscale::sim
