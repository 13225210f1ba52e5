// Recursive-doubling all-reduce (butterfly): in round j every worker exchanges the whole buffer with the one that differs in bit j.
#include "sim/collectives/folding.hpp"

namespace sparscale::sim {
namespace {

class RecursiveDoublingAllReduce : public FoldedProgram {
 public:
  using FoldedProgram::FoldedProgram;

 private:
  std::int64_t live_steps() const override { return levels(); }
  void live_step(std::int64_t rank, std::int64_t number, Step& step) const override {
    const std::int64_t peer = worker_of(rank ^ (std::int64_t{1} << number));
    step.sends.push_back({peer, bytes(), 0, workers()});
    step.receives.push_back(peer);
    step.reduces = true;
  }
};

}  // namespace

CollectiveAlgorithm recursive_doubling_all_reduce() {
  return {"recursive_doubling",
          Operation::all_reduce,
          "Recursive-doubling (butterfly) all-reduce",
          "MPI_Allreduce of short buffers; the butterfly of Kim, Yeo, Oh, KTCCS 2021. Thakur, Rabenseifner, Gropp, IJHPCA 2005",
          "(log2 p + 2 [n > p]) (alpha + m / B) on equal links, p the largest power of two up to n",
          [](const CollectiveInput& input) -> std::unique_ptr<Program> {
            const std::uint64_t buffer = equal_bytes(input.bytes, "all_reduce recursive_doubling");
            return std::make_unique<RecursiveDoublingAllReduce>(std::ssize(input.bytes), buffer);
          }};
}

}  // namespace sparscale::sim
