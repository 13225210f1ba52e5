// Binomial broadcast whose workers send to all their children at once, so that the messages share the sender's link.
#include <bit>

#include "sim/collectives/parts.hpp"

namespace sparscale::sim {
namespace {

class BinomialConcurrentBroadcast : public Program {
 public:
  BinomialConcurrentBroadcast(std::int64_t workers, std::uint64_t bytes, std::int64_t root)
      : workers_(workers), bytes_(bytes), root_(root) {}
  std::int64_t workers() const override { return workers_; }

  std::int64_t steps(std::int64_t worker) const override {
    const std::int64_t rank = rank_of(worker);
    return (rank > 0 ? 1 : 0) + (rank + first_distance(rank) < workers_ ? 1 : 0);
  }

  void step(std::int64_t worker, std::int64_t number, Step& step) const override {
    const std::int64_t rank = rank_of(worker);
    step.sends.clear();
    step.receives.clear();
    step.reduces = false;
    if (rank > 0 && number == 0) {
      step.receives.push_back(worker_of(rank - first_distance(rank) / 2));
      return;
    }
    for (std::int64_t distance = first_distance(rank); rank + distance < workers_; distance *= 2)
      step.sends.push_back({worker_of(rank + distance), bytes_, 0, workers_});
  }

 private:
  std::int64_t rank_of(std::int64_t worker) const { return (worker - root_ + workers_) % workers_; }
  std::int64_t worker_of(std::int64_t rank) const { return (rank + root_) % workers_; }
  // The first power of two above the rank: the distance of its first child.
  static std::int64_t first_distance(std::int64_t rank) { return std::int64_t{1} << std::bit_width(static_cast<std::uint64_t>(rank)); }

  std::int64_t workers_;
  std::uint64_t bytes_;
  std::int64_t root_;
};

}  // namespace

CollectiveAlgorithm binomial_concurrent_broadcast() {
  return {"binomial_concurrent",
          Operation::broadcast,
          "Binomial broadcast, all children at once",
          "MPI_Bcast of Open MPI (binomial): non-blocking sends to all children",
          "l (alpha + (l + 1) m / (2 B)), l = log2 n, for n a power of two on equal links",
          [](const CollectiveInput& input) -> std::unique_ptr<Program> {
            const auto bytes = input.bytes;
            const auto n = static_cast<std::int64_t>(bytes.size());
            const std::uint64_t buffer = equal_bytes(bytes, "broadcast binomial_concurrent");
            const std::int64_t root = root_of(input);
            return std::make_unique<BinomialConcurrentBroadcast>(n, buffer, root);
          }};
}

}  // namespace sparscale::sim
