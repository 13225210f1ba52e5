// Binomial broadcast: in round k = 1, 2, 4, ... every worker that has the buffer sends it to the worker k further (ranks count from the
// root).
#include <bit>

#include "sim/collectives/parts.hpp"

namespace sparscale::sim {
namespace {

class BinomialBroadcast : public Program {
 public:
  BinomialBroadcast(std::int64_t workers, std::uint64_t bytes, std::int64_t root) : workers_(workers), bytes_(bytes), root_(root) {}
  std::int64_t workers() const override { return workers_; }

  std::int64_t steps(std::int64_t worker) const override {
    const std::int64_t rank = rank_of(worker);
    std::int64_t count = rank > 0 ? 1 : 0;
    for (std::int64_t distance = first_distance(rank); rank + distance < workers_; distance *= 2) ++count;
    return count;
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
    const std::int64_t distance = first_distance(rank) << (rank > 0 ? number - 1 : number);
    step.sends.push_back({worker_of(rank + distance), bytes_, 0, workers_});
  }

 private:
  std::int64_t rank_of(std::int64_t worker) const { return (worker - root_ + workers_) % workers_; }
  std::int64_t worker_of(std::int64_t rank) const { return (rank + root_) % workers_; }
  // The first power of two above the rank: the distance of its first send.
  static std::int64_t first_distance(std::int64_t rank) { return std::int64_t{1} << std::bit_width(static_cast<std::uint64_t>(rank)); }

  std::int64_t workers_;
  std::uint64_t bytes_;
  std::int64_t root_;
};

}  // namespace

CollectiveAlgorithm binomial_broadcast() {
  return {"binomial",
          Operation::broadcast,
          "Binomial broadcast, one send at a time",
          "MPI_Bcast of short buffers (MPICH). Thakur, Rabenseifner, Gropp, IJHPCA 2005",
          "ceil(log2 n) (alpha + m / B) on equal links",
          [](const CollectiveInput& input) -> std::unique_ptr<Program> {
            const auto bytes = input.bytes;
            const auto n = static_cast<std::int64_t>(bytes.size());
            const std::uint64_t buffer = equal_bytes(bytes, "broadcast binomial");
            const std::int64_t root = root_of(input);
            return std::make_unique<BinomialBroadcast>(n, buffer, root);
          }};
}

}  // namespace sparscale::sim
