// CLT-k, the selection of ScaleCom.
// Paper:    Chen et al., ScaleCom, NeurIPS 2020 (arXiv 2104.11125); as in kljp/exdyna's CLTKReducer.
// Rule:     a leader, worker t mod n, selects its k = trunc(d N) largest |a|; all send what they have at these indices. The authors of
//           the code let every worker compute a Top-k and throw away all but the leader's. By layer or bucket (scope) with
//           max(1, trunc(d N_piece)) each, one exchange after the other.
// Exchange: broadcast of k indices from the leader, all-reduce of k values. Residuals become 0 there on all workers. ScaleCom's low-pass
//           filter (residual_filter = beta < 1) keeps e' = (1 - beta) e + beta (a - sent) instead.
// Cost:     top-k over N, on every worker or on the leader while the others wait. No build-up, no padding.
#include <algorithm>

#include "base/checked.hpp"
#include "sim/sparsifiers/common.hpp"

namespace sparscale::sim {
namespace {

class CltK : public Sparsifier {
 public:
  CltK(const ReplayShape& shape, const Json& values)
      : shape_(shape),
        schedule_(shape, values, true),
        index_bytes_(values.at("index_bytes").get<std::int64_t>()),
        all_select_(values.at("cltk_mode") == "all_select"),
        filter_(values.at("residual_filter").get<double>()) {
    if (filter_ < 1) before_.assign(static_cast<std::size_t>(shape.own_workers()) * static_cast<std::size_t>(shape.gradients), 0.0F);
  }

  Accumulation accumulation() const override { return filter_ < 1 ? Accumulation::stateful : Accumulation::plain; }

  Selection select(std::int64_t iteration, const AccumulatorView& accumulators, const kernels::Kernels& kernels) override {
    const Index N = shape_.gradients, k = schedule_.k(iteration);
    const std::int64_t leader = iteration % shape_.workers;
    Selection selection;
    selection.target_k = schedule_.target_k(iteration);
    selection.selected.resize(static_cast<std::size_t>(shape_.workers));
    WorkLog work(shape_.workers);
    work.all("accumulate", N, N, 0);
    selection.threshold.resize(all_select_ ? selection.selected.size() : 1);
    accumulators.each_worker(
        shape_.workers,
        [&](std::int64_t worker) {
          if (!all_select_ && worker != leader) return;
          const auto at = static_cast<std::size_t>(worker);
          std::vector<Index>& own = selection.selected[at];
          selection.threshold[all_select_ ? at : 0] = accumulators.topk(worker, 0, N, k, kernels, own);
          work.one(worker, "topk", N, k, 0);
        },
        [&](std::int64_t worker, WorkerShare& carry) {
          if (!all_select_ && worker != leader) return;
          const auto at = static_cast<std::size_t>(worker);
          carry(selection.selected[at]);
          carry(selection.threshold[all_select_ ? at : 0]);
          work.share(worker, carry);
        });
    selection.exchanged = selection.selected[static_cast<std::size_t>(leader)];
    selection.exchange = {broadcast("indices", index_dtype(index_bytes_), static_cast<std::uint64_t>(index_bytes_ * k), leader),
                          all_reduce("values", "float32", 4 * static_cast<std::uint64_t>(k))};
    work.all("gather", k, k, 1);
    work.all("zero", k, k, 2);
    selection.work = work.take();
    if (filter_ < 1) selection.residual = Residual::by_sparsifier;
    selection.details["leader"] = leader;
    return selection;
  }

  void accumulate(std::int64_t worker, Index first, std::span<const float> gradient, float scale, std::span<float> accumulator,
                  const kernels::Kernels& kernels) override {
    if (filter_ < 1) std::copy(accumulator.begin(), accumulator.end(), before_of(worker) + first);
    kernels.accumulate(gradient, scale, accumulator);
  }

  void keep_residual(std::int64_t worker, const Selection& selection, std::span<float> accumulator) override {
    for (const Index index : selection.exchanged) accumulator[static_cast<std::size_t>(index)] = 0;  // a - sent
    const float kept = static_cast<float>(1 - filter_), added = static_cast<float>(filter_);
    const float* before = before_of(worker);
    for (std::size_t i = 0; i < accumulator.size(); ++i) accumulator[i] = kept * before[i] + added * accumulator[i];
  }

 private:
  float* before_of(std::int64_t worker) { return before_.data() + (worker - shape_.own_begin) * shape_.gradients; }

  ReplayShape shape_;
  DensitySchedule schedule_;
  std::int64_t index_bytes_;
  bool all_select_;
  double filter_;
  std::vector<float> before_;  // residuals of the own workers before the gradients were added, n x N; only with the filter
};

}  // namespace

SparsifierInfo describe_cltk() {
  SparsifierInfo info;
  info.name = "cltk";
  info.title = "CLT-k (ScaleCom)";
  info.paper = "Chen et al., NeurIPS 2020 (arXiv 2104.11125)";
  info.rule = "One worker in turn selects its k largest |a|; all send their values there.";
  info.exchange = "broadcast of indices (8k), all-reduce of values (4k)";
  info.cost = "top-k over N on every worker (all_select) or on the leader while the others wait (leader_only)";
  info.parameters = {
      choice_parameter("cltk_mode", {"all_select", "leader_only"},
                       "who computes a Top-k: every worker, as the authors' code does, or the leader alone, as the paper says"),
      number_parameter(
          "residual_filter", 1, "> 0 and <= 1", Json{{"exclusiveMinimum", 0}, {"maximum", 1}},
          "beta of the low-pass filter on the residual; 1: no filter, as in the authors' code (ScaleCom uses about 0.1 with large "
          "batches)"),
      scope_parameter(),
      bucket_bytes_parameter(),
      density_schedule_parameter(),
      index_bytes_parameter()};
  info.exchanges_by_scope = true;
  info.any_order = [](const Json& values) { return values.at("residual_filter").get<double>() == 1; };
  info.make = [](const ReplayShape& shape, const Json& values) {
    return make_by_scope(shape, values, [&](const ReplayShape& part) { return std::make_unique<CltK>(part, values); });
  };
  info.state_bytes = [](const ReplayShape& shape, const Json& values) -> std::uint64_t {
    if (values.at("residual_filter").get<double>() >= 1) return 0;
    return checked_multiply(
        checked_multiply(static_cast<std::uint64_t>(shape.own_workers()), static_cast<std::uint64_t>(shape.gradients), "cltk"), 4, "cltk");
  };
  return info;
}

}  // namespace sparscale::sim
