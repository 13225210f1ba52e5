// MiCRO.
// Paper:    Yoon, Oh, HiPC 2023 (arXiv 2310.00967); as in kljp/micro's and kljp/exdyna's MiCROReducer.
// Rule:     the vector is cut once into n contiguous partitions; partition (t + r) mod n is worker r's in iteration t. There it selects
//           |a| >= delta, and one fixed index when there is none. delta follows the global count of the last iteration.
// Exchange: all-gather of one count, all-gather of the indices padded to the largest count (no unique: partitions are disjoint), all-reduce
//           of the values at all selected indices. Residuals become 0 there on all workers.
// Cost:     one scan of N/n on every worker; padding, because layers differ in magnitude and partitions do not move.
#include "base/error.hpp"
#include "sim/sparsifiers/exclusive_ranges.hpp"

namespace sparscale::sim {
namespace {

class Micro : public Sparsifier {
 public:
  Micro(const ReplayShape& shape, const Json& values)
      : shape_(shape),
        schedule_(shape, values),
        index_bytes_(values.at("index_bytes").get<std::int64_t>()),
        controller_(schedule_, values.at("micro_rule") == "intended") {
    schedule_.require_k("micro");
    const Index n = shape.workers, N = shape.gradients;
    if (n > N) throw InputError("workers", "at most " + std::to_string(N) + " for micro (one gradient per partition)", std::to_string(n));
    Index start = 0;
    for (Index p = 0; p < n; ++p) {
      starts_.push_back(start);
      sizes_.push_back(N / n + (p < N % n ? 1 : 0));
      start += sizes_.back();
    }
  }

  Accumulation accumulation() const override { return Accumulation::plain; }

  Selection select(std::int64_t iteration, const AccumulatorView& accumulators, const kernels::Kernels& kernels) override {
    const Index n = shape_.workers;
    std::vector<Index> partition_of_worker;
    std::vector<Segment> ranges;
    for (Index worker = 0; worker < n; ++worker) {
      const Index p = (iteration % n + worker) % n;
      const Index start = starts_[static_cast<std::size_t>(p)];
      partition_of_worker.push_back(p);
      ranges.push_back({start, start + sizes_[static_cast<std::size_t>(p)]});
    }
    Selection selection = select_in_exclusive_ranges(shape_, accumulators, kernels, iteration, ranges,
                                                     controller_.next(iteration, last_count_), index_bytes_);
    selection.target_k = schedule_.target_k(iteration);
    last_count_ = std::ssize(selection.exchanged);
    selection.details["partition_starts"] = starts_;
    selection.details["partition_sizes"] = sizes_;
    add_ranges(selection.details, partition_of_worker, ranges);
    return selection;
  }

 private:
  ReplayShape shape_;
  DensitySchedule schedule_;
  std::int64_t index_bytes_;
  CountController controller_;
  std::vector<Index> starts_, sizes_;
  Index last_count_ = 0;
};

}  // namespace

SparsifierInfo describe_micro() {
  SparsifierInfo info;
  info.name = "micro";
  info.title = "MiCRO";
  info.paper = "Yoon, Oh, HiPC 2023 (arXiv 2310.00967)";
  info.rule = "Each worker selects |a| >= delta in a partition of its own; delta follows the global count.";
  info.exchange = "all-gather of counts (8), padded all-gather of indices (8m), all-reduce of values (4K)";
  info.cost = "one scan of N/n on every worker; padding, because partitions are fixed";
  info.parameters = {micro_rule_parameter(), density_schedule_parameter(controller_note), index_bytes_parameter()};
  info.any_order = [](const Json&) { return true; };
  info.make = [](const ReplayShape& shape, const Json& values) { return std::make_unique<Micro>(shape, values); };
  return info;
}

}  // namespace sparscale::sim
