// ExDyna.
// Paper:    Yoon, Oh, arXiv 2402.13781 (CCGrid 2024); as in kljp/exdyna's ExDynaReducer.
// Rule:     MiCRO with 1024 fine blocks; each partition is a run of blocks. After every iteration at most one block crosses each border:
//           from a partition that selected more than 1.05 of the mean to a neighbour that selected less than 0.952 of it.
// Exchange: as MiCRO.
// Cost:     one scan of about N/n on every worker and O(n) of bookkeeping; less padding than MiCRO.
//
// The blocks' size is a multiple of 32, so fewer than 1024 x 32 gradients leave no block, and more workers than blocks leave partitions
// without one: the authors' code stops there, this one refuses and says which parameter helps.
#include "base/error.hpp"
#include "sim/sparsifiers/exclusive_ranges.hpp"

namespace sparscale::sim {
namespace {

constexpr double trigger_high = 1.05, trigger_low = 0.95238;
constexpr Index block_multiple = 32;

class ExDyna : public Sparsifier {
 public:
  ExDyna(const ReplayShape& shape, const Json& values)
      : shape_(shape),
        schedule_(shape, values),
        index_bytes_(values.at("index_bytes").get<std::int64_t>()),
        blocks_(values.at("blocks").get<Index>()),
        smallest_part_(static_cast<double>(blocks_) / static_cast<double>(4 * shape.workers)),
        controller_(schedule_, values.at("micro_rule") == "intended"),
        last_counts_(static_cast<std::size_t>(shape.workers)) {
    schedule_.require_k("exdyna");
    const Index n = shape.workers, N = shape.gradients;
    block_size_ = N / blocks_ - N / blocks_ % block_multiple;
    if (block_size_ == 0)
      throw InputError("blocks",
                       "at most gradients / 32 = " + std::to_string(N / block_multiple) + " blocks for exdyna (blocks are multiples of 32)",
                       std::to_string(blocks_));
    if (n > blocks_)
      throw InputError("workers", "at most one worker per block for exdyna, " + std::to_string(blocks_) + " (parameter blocks)",
                       std::to_string(n));
    remainder_ = N - blocks_ * block_size_;
    Index start = 0;
    for (Index p = 0; p < n; ++p) {
      starts_.push_back(start);
      counts_.push_back(blocks_ / n + (p < blocks_ % n ? 1 : 0));
      start += counts_.back();
    }
  }

  Accumulation accumulation() const override { return Accumulation::plain; }

  Selection select(std::int64_t iteration, const AccumulatorView& accumulators, const kernels::Kernels& kernels) override {
    const Index n = shape_.workers;
    if (iteration > 0) move_blocks(iteration);
    std::vector<Index> partition_of_worker;
    std::vector<Segment> ranges;
    for (Index worker = 0; worker < n; ++worker) {
      const Index p = (iteration % n + worker) % n;
      const Index start = starts_[static_cast<std::size_t>(p)];
      partition_of_worker.push_back(p);
      ranges.push_back({start * block_size_, (start + counts_[static_cast<std::size_t>(p)]) * block_size_ + (p == n - 1 ? remainder_ : 0)});
    }
    Selection selection = select_in_exclusive_ranges(shape_, accumulators, kernels, iteration, ranges,
                                                     controller_.next(iteration, last_count_), index_bytes_);
    selection.target_k = schedule_.target_k(iteration);
    last_count_ = std::ssize(selection.exchanged);
    last_counts_ = counts_of(selection.selected);
    selection.details["block_counts"] = counts_;
    selection.details["block_starts"] = starts_;
    selection.details["block_size"] = block_size_;
    selection.details["block_remainder"] = remainder_;
    add_ranges(selection.details, partition_of_worker, ranges);
    return selection;
  }

 private:
  // Counts of the last iteration, by partition, decide; moves cascade from left to right, the mean and the moved count stay as they were.
  void move_blocks(std::int64_t iteration) {
    const std::size_t n = static_cast<std::size_t>(shape_.workers);
    std::vector<Index> selected(n);
    for (std::size_t worker = 0; worker < n; ++worker)
      selected[(static_cast<std::size_t>(iteration - 1) % n + worker) % n] = last_counts_[worker];
    const double mean = static_cast<double>(last_count_ / shape_.workers);
    const Index moved = static_cast<Index>(static_cast<double>(block_size_ * last_count_) / static_cast<double>(shape_.gradients));
    for (std::size_t i = 0; i + 1 < n; ++i) {
      const double left = static_cast<double>(selected[i]) / mean, right = static_cast<double>(selected[i + 1]) / mean;
      if (left > trigger_high && right < trigger_low) {
        if (static_cast<double>(counts_[i] - 1) < smallest_part_) continue;
        --counts_[i];
        ++counts_[i + 1];
        --starts_[i + 1];
        selected[i] -= moved;
        selected[i + 1] += moved;
      } else if (left < trigger_low && right > trigger_high) {
        if (static_cast<double>(counts_[i + 1] - 1) < smallest_part_) continue;
        ++counts_[i];
        --counts_[i + 1];
        ++starts_[i + 1];
        selected[i] += moved;
        selected[i + 1] -= moved;
      }
    }
  }

  ReplayShape shape_;
  DensitySchedule schedule_;
  std::int64_t index_bytes_;
  Index blocks_, block_size_ = 0, remainder_ = 0;
  double smallest_part_;
  CountController controller_;
  std::vector<Index> counts_, starts_;  // blocks of each partition, first block of each partition
  std::vector<Index> last_counts_;      // selected by each worker in the last iteration
  Index last_count_ = 0;
};

}  // namespace

SparsifierInfo describe_exdyna() {
  SparsifierInfo info;
  info.name = "exdyna";
  info.title = "ExDyna";
  info.paper = "Yoon, Oh, arXiv 2402.13781";
  info.rule = "MiCRO's rule with partitions made of fine blocks that move between neighbours to balance the counts.";
  info.exchange = "all-gather of counts (8), padded all-gather of indices (8m), all-reduce of values (4K)";
  info.cost = "one scan of about N/n on every worker and O(n) of bookkeeping";
  info.parameters = {micro_rule_parameter(),
                     integer_parameter("blocks", 1024, ">= 1", Json{{"minimum", 1}}, "fine blocks that the vector is cut into"),
                     density_schedule_parameter(controller_note), index_bytes_parameter()};
  info.any_order = [](const Json&) { return true; };
  info.make = [](const ReplayShape& shape, const Json& values) { return std::make_unique<ExDyna>(shape, values); };
  return info;
}

}  // namespace sparscale::sim
