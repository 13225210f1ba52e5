// Rabenseifner's all-reduce: reduce-scatter by recursive halving (distances p / 2, ..., 1), then all-gather by recursive doubling, back the
// same way. The buffer is cut into p chunks; chunk p - 1 stands for the blocks from p - 1 on.
#include "sim/collectives/folding.hpp"

namespace sparscale::sim {
namespace {

class Rabenseifner : public FoldedProgram {
 public:
  Rabenseifner(std::int64_t workers, std::uint64_t bytes)
      : FoldedProgram(workers, bytes), offsets_(offsets_of(split_evenly(bytes, live()))) {}

 private:
  std::int64_t live_steps() const override { return 2 * levels(); }
  void live_step(std::int64_t rank, std::int64_t number, Step& step) const override {
    const bool halving = number < levels();
    const std::int64_t distance = std::int64_t{1} << (halving ? levels() - 1 - number : number - levels());
    const std::int64_t peer = rank ^ distance;
    // Halving sends the half that the peer keeps, doubling the half that the rank has summed up.
    const std::int64_t first = (halving ? peer : rank) / distance * distance, end = first + distance;
    const std::int64_t last_block = end == live() ? workers() : end;
    step.sends.push_back(
        {worker_of(peer), offsets_[static_cast<std::size_t>(end)] - offsets_[static_cast<std::size_t>(first)], first, last_block - first});
    step.receives.push_back(worker_of(peer));
    step.reduces = halving;
  }

  std::vector<std::uint64_t> offsets_;
};

}  // namespace

CollectiveAlgorithm rabenseifner_all_reduce() {
  return {"rabenseifner",
          Operation::all_reduce,
          "Rabenseifner's all-reduce: recursive halving, then recursive doubling",
          "MPI_Allreduce of long buffers in MPICH and Open MPI. Rabenseifner, ICCS 2004",
          "2 log2 p alpha + 2 (p - 1) / p m / B + 2 [n > p] (alpha + m / B) on equal links, p the largest power of two up to n",
          [](const CollectiveInput& input) -> std::unique_ptr<Program> {
            const std::uint64_t buffer = equal_bytes(input.bytes, "all_reduce rabenseifner");
            return std::make_unique<Rabenseifner>(std::ssize(input.bytes), buffer);
          }};
}

}  // namespace sparscale::sim
