// Neighbour-exchange all-gather: pairs of neighbours exchange their own blocks, then every worker turns to its other neighbour in each
// round and passes on the two blocks that it received last. An odd number of workers uses the ring, as Open MPI does.
#include "sim/collectives/parts.hpp"

namespace sparscale::sim {
namespace {

class NeighbourExchange : public Program {
 public:
  explicit NeighbourExchange(std::span<const std::uint64_t> bytes) : bytes_(bytes.begin(), bytes.end()) {}
  std::int64_t workers() const override { return std::ssize(bytes_); }
  std::int64_t steps(std::int64_t) const override { return std::ssize(bytes_) / 2; }

  void step(std::int64_t worker, std::int64_t number, Step& step) const override {
    const std::int64_t n = workers();
    const auto at = [n](std::int64_t i) { return ((i % n) + n) % n; };
    const std::int64_t side = (worker % 2 == 0) == (number % 2 == 0) ? 1 : -1, peer = at(worker + side);
    step.clear();
    step.receives.push_back(peer);
    if (number == 0) {
      step.sends.push_back({peer, bytes_[static_cast<std::size_t>(worker)], worker, 1});
      return;
    }
    // What an even worker received last was the own pair in round 0, then the pairs 1 before, 1 after, 2 before, 2 after, ...; an odd one
    // the other way round.
    const std::int64_t pairs = number % 2 == 0 ? -number / 2 : (number - 1) / 2;
    const std::int64_t first = at(worker - worker % 2 + 2 * (worker % 2 == 0 ? pairs : -pairs));
    step.sends.push_back({peer, bytes_[static_cast<std::size_t>(first)] + bytes_[static_cast<std::size_t>(first + 1)], first, 2});
  }

 private:
  std::vector<std::uint64_t> bytes_;
};

}  // namespace

CollectiveAlgorithm neighbour_exchange_all_gather() {
  return {"neighbour_exchange",
          Operation::all_gather,
          "Neighbour-exchange all-gather (ring when n is odd)",
          "MPI_Allgather of medium blocks in Open MPI. Chen, Zhang, Zhang, Yuan, HPC Asia 2005",
          "n / 2 alpha + (n - 1) m / B on equal links, n even, equal blocks",
          [](const CollectiveInput& input) -> std::unique_ptr<Program> {
            check_sizes(input.bytes, "all_gather neighbour_exchange");
            const auto n = std::ssize(input.bytes);
            if (n % 2 != 0)
              return std::make_unique<RingProgram>(std::vector<std::uint64_t>(input.bytes.begin(), input.bytes.end()), n - 1, 0);
            return std::make_unique<NeighbourExchange>(input.bytes);
          }};
}

}  // namespace sparscale::sim
