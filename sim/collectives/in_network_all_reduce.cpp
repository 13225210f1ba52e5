// In-network all-reduce: the switch at the root adds up what the workers send, chunk by chunk, and sends every sum to all of them. A worker
// sends and receives the buffer once.
#include "sim/collectives/parts.hpp"

namespace sparscale::sim {
namespace {

class InNetworkAllReduce : public Program {
 public:
  InNetworkAllReduce(std::int64_t workers, std::vector<std::uint64_t> chunks) : workers_(workers), chunks_(std::move(chunks)) {}
  std::int64_t workers() const override { return workers_; }
  std::int64_t switches() const override { return workers_ > 1 ? 1 : 0; }
  std::int64_t lanes() const override { return 2; }  // up, down
  std::int64_t blocks() const override { return std::ssize(chunks_); }
  std::int64_t steps(std::int64_t) const override { return workers_ > 1 ? blocks() : 0; }

  void step(std::int64_t strand, std::int64_t number, Step& step) const override {
    const std::int64_t end = strand / 2, lane = strand % 2;
    const std::uint64_t bytes = chunks_[static_cast<std::size_t>(number)];
    step.clear();
    if (end < workers_) {
      if (lane == 0)
        step.sends.push_back({2 * workers_, bytes, number, 1});
      else
        step.receives.push_back(2 * workers_ + 1);
      return;
    }
    step.reduces = lane == 0;
    for (std::int64_t worker = 0; worker < workers_; ++worker) {
      if (lane == 0)
        step.receives.push_back(2 * worker);
      else
        step.sends.push_back({2 * worker + 1, bytes, number, 1});
    }
    if (lane == 1) step.after.push_back({0, number + 1});
  }

 private:
  std::int64_t workers_;
  std::vector<std::uint64_t> chunks_;
};

}  // namespace

CollectiveAlgorithm in_network_all_reduce() {
  return {"in_network",
          Operation::all_reduce,
          "All-reduce in the switch at the root (crossbar, fat tree)",
          "SHARP, CollNet. Graham et al., COMHPC 2016",
          "(K + 1) (a + c / B) on equal links, K chunks of c bytes, a the latency from a worker to the switch",
          [](const CollectiveInput& input) -> std::unique_ptr<Program> {
            const std::uint64_t buffer = equal_bytes(input.bytes, "all_reduce in_network");
            return std::make_unique<InNetworkAllReduce>(std::ssize(input.bytes), cut_into_chunks(buffer, input.chunk_bytes));
          }};
}

}  // namespace sparscale::sim
