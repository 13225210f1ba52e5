// OmniReduce.
// Paper:    Fei et al., SIGCOMM 2021; as in the authors' RDMA version.
// Rule:     an all-reduce that skips zero blocks: a block of B elements is sent when some |a| in it is above the threshold (0: nothing is
//           lost), and the first block of every column always; there are 8 x aggregators x queue pairs x blocks per message columns. No
//           residual.
// Exchange: every worker sends its blocks to aggregators, which send every block that some worker has to all. A block costs 4 B + 4 bytes
//           (its next offset). exchange = phases: an all-to-all of the worker's own blocks, then an all-gather of the union in n equal
//           parts; aggregators that are the workers themselves, without the overlap of the two directions that the streaming gives.
//           exchange = streaming: one sparse all-reduce with the blocks of every worker in every stretch of the vector
//           (docs/collectives.md).
// Cost:     one scan of N for the bitmap.
//
// k_i counts the elements of the blocks that worker i sends, the union those of all blocks that come back.
#include <algorithm>

#include "base/checked.hpp"
#include "sim/sparsifiers/common.hpp"

namespace sparscale::sim {
namespace {

class OmniReduce : public Sparsifier {
 public:
  OmniReduce(const ReplayShape& shape, const Json& values)
      : shape_(shape),
        block_(values.at("block_elements").get<Index>()),
        threshold_(static_cast<float>(values.at("threshold").get<double>())),
        streams_(values.at("exchange") == "streaming"),
        aggregators_(std::min(values.at("aggregators").get<Index>(), shape.workers)) {
    const Index aggregators = values.at("aggregators").get<Index>();
    const std::uint64_t aggregating = static_cast<std::uint64_t>(aggregators == 0 ? shape.workers : aggregators);
    columns_ = static_cast<Index>(
        checked_multiply(checked_multiply(8 * aggregating, values.at("queue_pairs").get<std::uint64_t>(), "columns of omnireduce"),
                         values.at("blocks_per_message").get<std::uint64_t>(), "columns of omnireduce"));
  }

  Accumulation accumulation() const override { return Accumulation::plain; }
  bool keeps_residual() const override { return false; }

  Selection select(std::int64_t, const AccumulatorView& accumulators, const kernels::Kernels& kernels) override {
    const Index N = shape_.gradients, n = shape_.workers;
    const Index blocks = (N + block_ - 1) / block_;
    Selection selection;
    std::vector<std::vector<Index>> sent(static_cast<std::size_t>(n));  // blocks
    std::vector<std::uint64_t> bytes(static_cast<std::size_t>(n));
    // Blocks are looked at some at a time, so that accumulating and looking happen while they are in cache.
    const Index together = std::max<Index>(1, tile_elements / block_);
    accumulators.each_worker(
        n,
        [&](std::int64_t worker) {
          std::vector<Index>& own = sent[static_cast<std::size_t>(worker)];
          std::vector<float> largest;
          for (Index first = 0; first < blocks; first += together) {
            const Index last = std::min(blocks, first + together);
            largest.resize(static_cast<std::size_t>(last - first));
            kernels.block_maxima(accumulators.range(worker, first * block_, elements_of(last - 1).end), block_, largest);
            for (Index block = first; block < last; ++block) {
              if (block >= columns_ && !(largest[static_cast<std::size_t>(block - first)] > threshold_)) continue;
              own.push_back(block);
              bytes[static_cast<std::size_t>(worker)] += 4 * static_cast<std::uint64_t>(elements_of(block).size()) + 4;
            }
          }
        },
        [&](std::int64_t worker, WorkerShare& carry) {
          carry(sent[static_cast<std::size_t>(worker)]);
          carry(bytes[static_cast<std::size_t>(worker)]);
        });
    const std::vector<Index> united = kernels.unite(sent, blocks);
    WorkLog work(n);
    work.all("count", N, 0, 0);
    selection.exchange = streams_ ? streaming_exchange(sent, united, bytes, blocks) : exchange_in_phases(sent, united, blocks);
    selection.details["blocks"] = blocks;
    selection.details["blocks_sent"] = counts_of(sent);
    selection.details["blocks_union"] = static_cast<Index>(united.size());
    selection.residual = Residual::cleared;
    selection.contribution = Contribution::at_own_selection;
    selection.work = work.take();
    selection.threshold = {threshold_};
    if (std::all_of(sent.begin(), sent.end(), [&](const auto& own) { return std::ssize(own) == blocks; })) {
      selection.everything = true;
      return selection;
    }
    // As blocks: the indices of nearly full vectors would take twice the memory of the vectors.
    selection.block_elements = block_;
    selection.selected = std::move(sent);
    selection.exchanged = united;
    return selection;
  }

 private:
  Segment elements_of(Index block) const { return {block * block_, std::min(shape_.gradients, (block + 1) * block_)}; }

  // Bytes of these blocks: values and offset each.
  std::uint64_t bytes_of(std::span<const Index> blocks) const {
    std::uint64_t bytes = 0;
    for (const Index block : blocks) bytes += 4 * static_cast<std::uint64_t>(elements_of(block).size()) + 4;
    return bytes;
  }

  CollectiveCall call_of_blocks(Operation operation, std::vector<std::uint64_t> bytes) const {
    CollectiveCall call = all_reduce("values", "float32", 0);
    call.operation = operation;
    call.bytes = std::move(bytes);
    call.entry_index_bytes = 4;
    call.entry_value_bytes = 4 * static_cast<std::uint64_t>(block_);
    return call;
  }

  // Block b is worker (b mod n)'s to aggregate.
  Exchange exchange_in_phases(const std::vector<std::vector<Index>>& sent, const std::vector<Index>& united, Index blocks) const {
    const auto n = static_cast<std::size_t>(shape_.workers);
    PartnerBytes parts;
    parts.bytes.assign(n * n, 0);
    for (std::size_t worker = 0; worker < n; ++worker)
      for (const Index block : sent[worker])
        if (const auto owner = static_cast<std::size_t>(block) % n; owner != worker)
          parts.bytes[worker * n + owner] += bytes_of({&block, 1});
    for (std::size_t owner = 0; owner < n; ++owner)
      parts.ranges.push_back(static_cast<std::uint64_t>(blocks) / n + (owner < static_cast<std::size_t>(blocks) % n ? 1 : 0));
    std::vector<std::uint64_t> back(n, 0);
    for (const Index block : united) back[static_cast<std::size_t>(block) % n] += bytes_of({&block, 1});
    Exchange exchange = {call_of_blocks(Operation::all_to_all, parts.sent()), call_of_blocks(Operation::all_gather, std::move(back))};
    for (CollectiveCall& call : exchange) call.index_range = parts.ranges.front();  // the largest
    if (n > 1) exchange.front().parts = std::move(parts);
    return exchange;
  }

  Exchange streaming_exchange(const std::vector<std::vector<Index>>& sent, const std::vector<Index>& united,
                              const std::vector<std::uint64_t>& bytes, Index blocks) const {
    const auto stretches_of = [&](const std::vector<Index>& list) {
      std::vector<std::uint64_t> stretches;
      auto from = list.begin();
      for (Index stretch = 1; stretch <= stretches_; ++stretch) {
        const auto to = std::lower_bound(from, list.end(), blocks * stretch / stretches_);
        stretches.push_back(bytes_of(std::span(from, to)));
        from = to;
      }
      return stretches;
    };
    SparseStream stream;
    for (const auto& own : sent) stream.sent_bytes.push_back(stretches_of(own));
    stream.back_bytes = stretches_of(united);
    stream.aggregators = aggregators_;
    CollectiveCall call = call_of_blocks(Operation::sparse_all_reduce, bytes);
    call.stream = std::move(stream);
    call.index_range = static_cast<std::uint64_t>(blocks);
    return {call};
  }

  ReplayShape shape_;
  static constexpr Index stretches_ = 8;
  Index block_, columns_ = 0;
  float threshold_;
  bool streams_;
  Index aggregators_;
};

}  // namespace

SparsifierInfo describe_omnireduce() {
  SparsifierInfo info;
  info.name = "omnireduce";
  info.title = "OmniReduce";
  info.paper = "Fei et al., SIGCOMM 2021";
  info.rule = "Blocks with a value above the threshold are sent to aggregators and summed; nothing else is lost or kept.";
  info.exchange = "own blocks to the aggregators (4B + 4 each), the union of blocks back";
  info.cost = "one scan of N";
  info.parameters = {
      integer_parameter("block_elements", 256, ">= 1", Json{{"minimum", 1}},
                        "elements of a block (the authors' examples 256, their option's default 1024)"),
      number_parameter("threshold", 0, ">= 0", Json{{"minimum", 0}}, "a block without |a| above it counts as zero"),
      integer_parameter("aggregators", 0, ">= 0 and <= 1000000", Json{{"minimum", 0}, {"maximum", 1000000}},
                        "aggregators, which set the number of columns; 0: as many as workers"),
      integer_parameter("queue_pairs", 1, ">= 1 and <= 1024", Json{{"minimum", 1}, {"maximum", 1024}},
                        "queue pairs to each aggregator, which multiply the columns"),
      choice_parameter("exchange", {"phases", "streaming"},
                       "an all-to-all and an all-gather, one after the other; or streaming aggregation, simulated message by "
                       "message"),
      integer_parameter("blocks_per_message", 1, ">= 1", Json{{"minimum", 1}}, "blocks that are fused in one message")};
  info.make = [](const ReplayShape& shape, const Json& values) { return std::make_unique<OmniReduce>(shape, values); };
  info.state_bytes = [](const ReplayShape& shape, const Json& values) {  // lists of blocks
    const std::uint64_t blocks = static_cast<std::uint64_t>(shape.gradients) / values.at("block_elements").get<std::uint64_t>() + 1;
    return checked_multiply(checked_multiply(static_cast<std::uint64_t>(shape.workers) + 1, blocks, "omnireduce"), 8, "omnireduce");
  };
  return info;
}

}  // namespace sparscale::sim
