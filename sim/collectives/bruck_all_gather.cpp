// Bruck's all-gather: in round j, with k = 2^j, worker i sends the first min(k, n - k) blocks that it has, its own first, to worker i - k
// and receives as many from worker i + k. The rotation at the end is a copy in memory and not timed.
#include <bit>

#include "sim/collectives/bruck.hpp"

namespace sparscale::sim {
namespace {

class Bruck : public Program {
 public:
  explicit Bruck(std::span<const std::uint64_t> bytes) : workers_(std::ssize(bytes)), offsets_(offsets_of(bytes)) {}
  std::int64_t workers() const override { return workers_; }
  std::int64_t steps(std::int64_t) const override { return std::bit_width(static_cast<std::uint64_t>(workers_ - 1)); }

  void step(std::int64_t worker, std::int64_t number, Step& step) const override {
    const std::int64_t distance = std::int64_t{1} << number, count = std::min(distance, workers_ - distance);
    step.clear();
    step.sends.push_back({(worker - distance + workers_) % workers_, window(worker, count), worker, count});
    step.receives.push_back((worker + distance) % workers_);
  }

 private:
  // Bytes of `count` blocks from the first one on, round the end.
  std::uint64_t window(std::int64_t first, std::int64_t count) const {
    const std::int64_t end = first + count, over = std::max<std::int64_t>(0, end - workers_);
    return offsets_[static_cast<std::size_t>(end - over)] - offsets_[static_cast<std::size_t>(first)] +
           offsets_[static_cast<std::size_t>(over)];
  }

  std::int64_t workers_;
  std::vector<std::uint64_t> offsets_;
};

}  // namespace

std::unique_ptr<Program> make_bruck(std::span<const std::uint64_t> bytes) { return std::make_unique<Bruck>(bytes); }

CollectiveAlgorithm bruck_all_gather() {
  return {"bruck",
          Operation::all_gather,
          "Bruck's all-gather",
          "MPI_Allgather of short blocks. Bruck, Ho, Kipnis, Upfal, Weathersby, IEEE TPDS 1997",
          "ceil(log2 n) alpha + (n - 1) m / B on equal links, equal blocks",
          [](const CollectiveInput& input) -> std::unique_ptr<Program> {
            check_sizes(input.bytes, "all_gather bruck");
            return make_bruck(input.bytes);
          }};
}

}  // namespace sparscale::sim
