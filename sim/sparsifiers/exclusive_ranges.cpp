#include "sim/sparsifiers/exclusive_ranges.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace sparscale::sim {

CountController::CountController(const DensitySchedule& schedule, bool intended) : schedule_(schedule), intended_(intended) {}

double CountController::next(std::int64_t iteration, Index last_count) {
  if (iteration == 0) return threshold_ = 1 / (2 * std::sqrt(schedule_.model_k(0)));
  const double ratio = static_cast<double>(last_count) / static_cast<double>(schedule_.k(iteration));
  if (ratio > 1.1)
    threshold_ *= 1.005;
  else if (ratio > 0.909)
    // As coded the test is "ratio > 0", which always holds, so the lower branch is never reached.
    threshold_ *= !intended_ || ratio > 1 ? 1.00125 : 0.99875;
  else
    threshold_ *= 0.995;
  return threshold_;
}

Selection select_in_exclusive_ranges(const ReplayShape& shape, const AccumulatorView& accumulators, const kernels::Kernels& kernels,
                                     std::int64_t iteration, const std::vector<Segment>& ranges, double threshold,
                                     std::int64_t index_bytes) {
  Selection selection;
  selection.selected.resize(static_cast<std::size_t>(shape.workers));
  WorkLog work(shape.workers);
  work.all("accumulate", shape.gradients, shape.gradients, 0);
  accumulators.each_worker(
      shape.workers,
      [&](std::int64_t worker) {
        const Segment& range = ranges[static_cast<std::size_t>(worker)];
        std::vector<Index>& own = selection.selected[static_cast<std::size_t>(worker)];
        select_at_least(accumulators, kernels, worker, range.begin, range.end, static_cast<float>(threshold), own);
        work.one(worker, "threshold_select", range.end - range.begin, std::ssize(own), 0);
        if (own.empty()) own.push_back(range.begin + iteration % (range.end - range.begin));
      },
      [&](std::int64_t worker, WorkerShare& carry) {
        carry(selection.selected[static_cast<std::size_t>(worker)]);
        work.share(worker, carry);
      });
  const std::vector<Index> counts = counts_of(selection.selected);
  const Index united = sum_of(counts);  // the ranges are disjoint
  std::vector<std::size_t> order(ranges.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return ranges[a].begin < ranges[b].begin; });
  selection.exchanged.reserve(static_cast<std::size_t>(united));
  for (const std::size_t worker : order)
    selection.exchanged.insert(selection.exchanged.end(), selection.selected[worker].begin(), selection.selected[worker].end());
  selection.threshold = {threshold};
  selection.exchange = padded_index_exchange(counts, united, index_bytes);
  Index largest = 0;
  for (const Segment& range : ranges) largest = std::max(largest, range.size());
  for (CollectiveCall& call : selection.exchange)
    if (call.payload == "indices") call.index_range = static_cast<std::uint64_t>(largest);  // where the range is known, so is its offset
  work.all("gather", united, united, 2);
  work.all("zero", united, united, 3);
  selection.work = work.take();
  return selection;
}

void add_ranges(Json& details, const std::vector<Index>& partition_of_worker, const std::vector<Segment>& ranges) {
  details["partition_of_worker"] = partition_of_worker;
  Json list = Json::array();
  for (const Segment& range : ranges) list.push_back(Json::array({range.begin, range.end}));
  details["range_of_worker"] = list;
}

Parameter micro_rule_parameter() {
  return choice_parameter("micro_rule", {"code", "intended"},
                          "step of the threshold while the count is within 10 % of k: always up, as the authors' code does, or by the sign "
                          "of the error");
}

}  // namespace sparscale::sim
