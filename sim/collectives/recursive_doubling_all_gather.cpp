// Recursive-doubling all-gather: in round j worker i exchanges all that it has with worker i XOR 2^j. Other numbers of workers than powers
// of two use Bruck's algorithm, as Open MPI does.
#include <bit>

#include "sim/collectives/bruck.hpp"

namespace sparscale::sim {
namespace {

class RecursiveDoublingAllGather : public Program {
 public:
  explicit RecursiveDoublingAllGather(std::span<const std::uint64_t> bytes) : workers_(std::ssize(bytes)), offsets_(offsets_of(bytes)) {}
  std::int64_t workers() const override { return workers_; }
  std::int64_t steps(std::int64_t) const override { return std::countr_zero(static_cast<std::uint64_t>(workers_)); }

  void step(std::int64_t worker, std::int64_t number, Step& step) const override {
    const std::int64_t size = std::int64_t{1} << number, first = worker / size * size, peer = worker ^ size;
    step.clear();
    step.sends.push_back({peer, offsets_[static_cast<std::size_t>(first + size)] - offsets_[static_cast<std::size_t>(first)], first, size});
    step.receives.push_back(peer);
  }

 private:
  std::int64_t workers_;
  std::vector<std::uint64_t> offsets_;
};

}  // namespace

CollectiveAlgorithm recursive_doubling_all_gather() {
  return {"recursive_doubling",
          Operation::all_gather,
          "Recursive-doubling all-gather (Bruck unless n is a power of two)",
          "MPI_Allgather of short blocks in MPICH and Open MPI. Thakur, Rabenseifner, Gropp, IJHPCA 2005",
          "log2 n alpha + (n - 1) m / B on equal links, n a power of two, equal blocks",
          [](const CollectiveInput& input) -> std::unique_ptr<Program> {
            check_sizes(input.bytes, "all_gather recursive_doubling");
            if (!std::has_single_bit(input.bytes.size())) return make_bruck(input.bytes);
            return std::make_unique<RecursiveDoublingAllGather>(input.bytes);
          }};
}

}  // namespace sparscale::sim
