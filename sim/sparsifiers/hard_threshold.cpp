// Hard threshold.
// Paper:    Strom, Interspeech 2015; Dutta et al., NeurIPS 2021; as in kljp/micro's and kljp/exdyna's (2023a: kljp/sage's) ThreshReducer.
// Rule:     each worker selects |a| >= lambda; lambda is the same on all workers: 1/(2 sqrt(k)), which only a density schedule changes (the
//           authors' code makes it anew in every call), or given, when there is no k to schedule.
// Exchange: all-gather of one count, all-gather of the indices padded to the largest count, sort and unique, all-reduce of the values at
//           the union. Residuals become 0 at the union. Nothing selected anywhere: the calls are made with nothing in them (the authors'
//           code stops there). 2023a: all-gathers of the size, of the tensors' offsets, of padded values and positions; residuals become 0
//           at the own selection.
// Cost:     one scan of N on every worker; nothing holds the density.
#include <cmath>

#include "sim/sparsifiers/common.hpp"

namespace sparscale::sim {
namespace {

class HardThreshold : public Sparsifier {
 public:
  HardThreshold(const ReplayShape& shape, const Json& values)
      : shape_(shape),
        schedule_(shape, values),
        index_bytes_(index_bytes_by_generation(values)),
        old_(values.at("generation") == "2023a"),
        threshold_(values.at("threshold").get<double>()) {
    if (threshold_ == 0)
      schedule_.require_k("hard_threshold without a given threshold");
    else
      schedule_.require_none("no schedule with a given threshold, which knows no k");
  }

  Accumulation accumulation() const override { return Accumulation::plain; }

  Selection select(std::int64_t iteration, const AccumulatorView& accumulators, const kernels::Kernels& kernels) override {
    const Index N = shape_.gradients;
    const double threshold = threshold_ != 0 ? threshold_ : 1 / (2 * std::sqrt(schedule_.model_k(iteration)));
    Selection selection;
    selection.target_k = schedule_.target_k(iteration);
    selection.selected.resize(static_cast<std::size_t>(shape_.workers));
    accumulators.each_worker(
        shape_.workers,
        [&](std::int64_t worker) {
          select_at_least(accumulators, kernels, worker, 0, N, static_cast<float>(threshold),
                          selection.selected[static_cast<std::size_t>(worker)]);
        },
        [&](std::int64_t worker, WorkerShare& carry) { carry(selection.selected[static_cast<std::size_t>(worker)]); });
    selection.threshold = {threshold};
    WorkLog work(shape_.workers);
    work.all("accumulate", N, N, 0);
    work.each("threshold_select", N, counts_of(selection.selected), 0);
    finish_united_or_gathered(selection, work, shape_, kernels, old_, index_bytes_);
    return selection;
  }

 private:
  ReplayShape shape_;
  DensitySchedule schedule_;
  std::int64_t index_bytes_;
  bool old_;
  double threshold_;  // 0: from k
};

}  // namespace

SparsifierInfo describe_hard_threshold() {
  SparsifierInfo info;
  info.name = "hard_threshold";
  info.title = "Hard threshold";
  info.paper = "Strom, Interspeech 2015; Dutta et al., NeurIPS 2021";
  info.rule = "Each worker selects |a| >= lambda, one constant for all.";
  info.exchange = "all-gather of counts (8), padded all-gather of indices (8m), all-reduce of values at the union (4U)";
  info.cost = "one scan of N on every worker; the density is whatever the residuals make it";
  info.parameters = {
      number_parameter("threshold", 0, ">= 0", Json{{"minimum", 0}}, "lambda; 0: 1/(2 sqrt(k))"),
      density_schedule_parameter("; lambda follows; not with a given threshold"),
      generation_parameter(),
      index_bytes_by_generation_parameter(),
  };
  info.any_order = [](const Json&) { return true; };
  info.make = [](const ReplayShape& shape, const Json& values) { return std::make_unique<HardThreshold>(shape, values); };
  return info;
}

}  // namespace sparscale::sim
