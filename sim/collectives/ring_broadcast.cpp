// Pipelined broadcast along a ring: the root sends chunk after chunk to its successor, and every worker passes a chunk on while the next
// one arrives.
#include "sim/collectives/parts.hpp"

namespace sparscale::sim {
namespace {

class RingBroadcast : public Program {
 public:
  RingBroadcast(std::int64_t workers, std::vector<std::uint64_t> chunks, std::int64_t root)
      : workers_(workers), chunks_(std::move(chunks)), root_(root) {}
  std::int64_t workers() const override { return workers_; }
  std::int64_t lanes() const override { return 2; }  // receiving, sending
  std::int64_t blocks() const override { return std::ssize(chunks_); }
  std::int64_t owner(std::int64_t) const override { return root_; }

  std::int64_t steps(std::int64_t strand) const override {
    const std::int64_t rank = (strand / 2 - root_ + workers_) % workers_;
    return rank == (strand % 2 == 0 ? 0 : workers_ - 1) ? 0 : blocks();
  }

  void step(std::int64_t strand, std::int64_t number, Step& step) const override {
    const std::int64_t worker = strand / 2;
    step.clear();
    if (strand % 2 == 0) {
      step.receives.push_back(2 * ((worker + workers_ - 1) % workers_) + 1);
      return;
    }
    step.sends.push_back({2 * ((worker + 1) % workers_), chunks_[static_cast<std::size_t>(number)], number, 1});
    if (worker != root_) step.after.push_back({0, number + 1});
  }

 private:
  std::int64_t workers_;
  std::vector<std::uint64_t> chunks_;
  std::int64_t root_;
};

}  // namespace

CollectiveAlgorithm ring_broadcast() {
  return {"ring_pipelined",
          Operation::broadcast,
          "Broadcast along a ring, chunk by chunk",
          "ncclBroadcast; MPI_Bcast of long buffers (pipeline, chain). Thakur, Rabenseifner, Gropp, IJHPCA 2005",
          "(n - 2 + K) (alpha + c / B) on equal links, K chunks of c bytes",
          [](const CollectiveInput& input) -> std::unique_ptr<Program> {
            const std::uint64_t buffer = equal_bytes(input.bytes, "broadcast ring_pipelined");
            return std::make_unique<RingBroadcast>(std::ssize(input.bytes), cut_into_chunks(buffer, input.chunk_bytes), root_of(input));
          }};
}

}  // namespace sparscale::sim
