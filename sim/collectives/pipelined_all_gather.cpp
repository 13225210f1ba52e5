// All-gather of unequal blocks round a ring, in chunks: a worker passes a chunk on while others arrive. What is sent first decides how much
// imbalance costs.
//
// round_robin: chunk 0 of every owner, the nearest first, then chunk 1 of every owner, ...: a fixed order, so that a worker waits for the
// chunk whose turn it is although others are there. ready: whatever arrived first, a worker's own block being there from the start: its own
// chunks, then its predecessor's, then those of the one before, in the order in which the predecessor sends them.
#include <limits>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "sim/collectives/parts.hpp"

namespace sparscale::sim {
namespace {

class PipelinedAllGather : public Program {
 public:
  PipelinedAllGather(std::span<const std::uint64_t> bytes, std::uint64_t chunk_bytes, bool round_robin) : workers_(std::ssize(bytes)) {
    std::vector<std::uint64_t> count;
    for (std::int64_t owner = 0; owner < workers_; ++owner) {
      for (const std::uint64_t chunk : cut_into_chunks(bytes[static_cast<std::size_t>(owner)], chunk_bytes)) {
        chunks_.push_back(chunk);
        owners_.push_back(owner);
      }
      count.push_back(chunks_.size() - offsets_of(count).back());
    }
    const std::vector<std::uint64_t> first = offsets_of(count);
    if (chunks_.size() > most_messages / bytes.size())
      throw InputError("chunk_bytes", "larger chunks: at most " + std::to_string(most_messages) + " messages in all",
                       std::to_string(chunks_.size()) + " chunks for " + std::to_string(workers_) + " workers");
    const std::uint64_t rounds = round_robin ? *std::max_element(count.begin(), count.end()) : 1;
    for (std::int64_t worker = 0; worker < workers_; ++worker) {
      std::vector<std::int32_t>& order = order_.emplace_back();
      for (std::uint64_t round = 0; round < rounds; ++round)
        for (std::int64_t distance = 0; distance < workers_ - 1; ++distance) {
          const auto owner = static_cast<std::size_t>((worker - distance + workers_) % workers_);
          const std::uint64_t from = round_robin ? round : 0, to = round_robin ? std::min(count[owner], round + 1) : count[owner];
          for (std::uint64_t chunk = from; chunk < to; ++chunk) order.push_back(static_cast<std::int32_t>(first[owner] + chunk));
        }
    }
    // When each of the chunks that a worker sends has arrived, counted in chunks from its predecessor; 0: its own.
    for (std::int64_t worker = 0; worker < workers_; ++worker) {
      std::vector<std::int32_t> place(chunks_.size(), 0);
      const std::vector<std::int32_t>& arrivals = order_[static_cast<std::size_t>((worker + workers_ - 1) % workers_)];
      for (std::size_t i = 0; i < arrivals.size(); ++i) place[static_cast<std::size_t>(arrivals[i])] = static_cast<std::int32_t>(i + 1);
      std::vector<std::int32_t>& arrived = arrived_.emplace_back();
      for (const std::int32_t chunk : order_[static_cast<std::size_t>(worker)]) arrived.push_back(place[static_cast<std::size_t>(chunk)]);
    }
  }

  std::int64_t workers() const override { return workers_; }
  std::int64_t lanes() const override { return 2; }  // receiving, sending
  std::int64_t blocks() const override { return std::ssize(chunks_); }
  std::int64_t owner(std::int64_t block) const override { return owners_[static_cast<std::size_t>(block)]; }

  std::int64_t steps(std::int64_t strand) const override {
    const std::int64_t sender = strand % 2 == 1 ? strand / 2 : (strand / 2 + workers_ - 1) % workers_;
    return std::ssize(order_[static_cast<std::size_t>(sender)]);
  }

  void step(std::int64_t strand, std::int64_t number, Step& step) const override {
    const std::int64_t worker = strand / 2;
    step.clear();
    if (strand % 2 == 0) {
      step.receives.push_back(2 * ((worker + workers_ - 1) % workers_) + 1);
      return;
    }
    const std::int32_t chunk = order_[static_cast<std::size_t>(worker)][static_cast<std::size_t>(number)];
    step.sends.push_back({2 * ((worker + 1) % workers_), chunks_[static_cast<std::size_t>(chunk)], chunk, 1});
    if (const std::int32_t arrived = arrived_[static_cast<std::size_t>(worker)][static_cast<std::size_t>(number)]; arrived > 0)
      step.after.push_back({0, arrived});
  }

 private:
  static constexpr std::uint64_t most_messages = std::uint64_t{1} << 26;  // 512 MiB
  std::int64_t workers_;
  std::vector<std::uint64_t> chunks_;  // bytes, owner by owner
  std::vector<std::int64_t> owners_;
  std::vector<std::vector<std::int32_t>> order_, arrived_;  // of every worker: the chunks that it sends, and when they are there
};

std::unique_ptr<Program> make(const CollectiveInput& input, bool round_robin, const std::string& name) {
  check_sizes(input.bytes, "all_gather " + name);
  return std::make_unique<PipelinedAllGather>(input.bytes, input.chunk_bytes, round_robin);
}

}  // namespace

CollectiveAlgorithm pipelined_rr_all_gather() {
  return {"pipelined_rr",
          Operation::all_gather,
          "Ring all-gather in chunks, owners in turn",
          "A group of ncclBroadcast that NCCL 2.29 fuses to an AllGatherV (round-robin; that it waits for the chunk whose turn it is is an "
          "assumption)",
          "(n - 1) K (alpha + c / B) on equal links, equal blocks of K chunks of c bytes",
          [](const CollectiveInput& input) { return make(input, true, "pipelined_rr"); }};
}

CollectiveAlgorithm pipelined_ready_all_gather() {
  return {"pipelined_ready",
          Operation::all_gather,
          "Ring all-gather in chunks, whatever arrived first",
          "What a work-conserving all-gatherv could reach; near the floor (sum m_i - min m_i) / B",
          "(n - 1) K (alpha + c / B) on equal links, equal blocks of K chunks of c bytes",
          [](const CollectiveInput& input) { return make(input, false, "pipelined_ready"); }};
}

}  // namespace sparscale::sim
