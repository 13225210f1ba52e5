// Recursive halving reduce-scatter: exchange the half that the other keeps at distances p / 2, ..., 1. Folded for other n than powers of
// two: a live rank then also works for the worker that handed it its buffer, and sends it its chunk in the end. Worker i ends with chunk i.
#include "sim/collectives/folding.hpp"

namespace sparscale::sim {
namespace {

class RecursiveHalving : public FoldedProgram {
 public:
  RecursiveHalving(std::int64_t workers, std::uint64_t bytes)
      : FoldedProgram(workers, bytes), offsets_(offsets_of(split_evenly(bytes, workers))) {}

  void step(std::int64_t worker, std::int64_t number, Step& step) const override {
    FoldedProgram::step(worker, number, step);
    const bool hands_back = worker < 2 * (workers() - live()) && worker % 2 == 1 && number == live_steps() + 1;
    if (hands_back) step.sends.assign(1, chunks(worker - 1, worker, worker - 1));
  }

 private:
  std::int64_t live_steps() const override { return levels(); }
  void live_step(std::int64_t rank, std::int64_t number, Step& step) const override {
    const std::int64_t distance = live() >> (number + 1), peer = rank ^ distance;
    const std::int64_t first = peer / distance * distance;
    step.sends.push_back(chunks(first_chunk(first), first_chunk(first + distance), worker_of(peer)));
    step.receives.push_back(worker_of(peer));
    step.reduces = true;
  }
  // Ranks that work for two workers come first.
  std::int64_t first_chunk(std::int64_t rank) const { return rank + std::min(rank, workers() - live()); }
  Transfer chunks(std::int64_t begin, std::int64_t end, std::int64_t peer) const {
    return {peer, offsets_[static_cast<std::size_t>(end)] - offsets_[static_cast<std::size_t>(begin)], begin, end - begin};
  }

  std::vector<std::uint64_t> offsets_;
};

}  // namespace

CollectiveAlgorithm recursive_halving_reduce_scatter() {
  return {
      "recursive_halving",
      Operation::reduce_scatter,
      "Recursive halving reduce-scatter",
      "MPI_Reduce_scatter of short and medium buffers in MPICH. Thakur, Rabenseifner, Gropp, IJHPCA 2005",
      "log2 n alpha + (n - 1) / n m / B on equal links, n a power of two; else 2 alpha + (1 + 1 / n) m / B more and chunks of two workers",
      [](const CollectiveInput& input) -> std::unique_ptr<Program> {
        const std::uint64_t buffer = equal_bytes(input.bytes, "reduce_scatter recursive_halving");
        return std::make_unique<RecursiveHalving>(std::ssize(input.bytes), buffer);
      }};
}

}  // namespace sparscale::sim
