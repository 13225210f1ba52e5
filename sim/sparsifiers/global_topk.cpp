// Global Top-k: the class that its authors' command line calls gtopk. It is local Top-k over the whole model; Shi's gTop-k is gtopk here.
// Paper:    - (kljp/exdyna's GlobalTopKReducer)
// Rule:     each worker selects its k = max(1, trunc(d N)) largest |a|, ties to the lower index.
// Exchange: all-gather of values, all-gather of indices. Residuals become 0 at the own selection.
// Cost:     top-k over N on every worker; every worker joins n k entries.
#include <algorithm>

#include "sim/sparsifiers/common.hpp"

namespace sparscale::sim {
namespace {

class GlobalTopK : public Sparsifier {
 public:
  GlobalTopK(const ReplayShape& shape, const Json& values)
      : shape_(shape), schedule_(shape, values), index_bytes_(values.at("index_bytes").get<std::int64_t>()) {}

  Accumulation accumulation() const override { return Accumulation::plain; }

  Selection select(std::int64_t iteration, const AccumulatorView& accumulators, const kernels::Kernels& kernels) override {
    const Index N = shape_.gradients, k = std::max<Index>(1, schedule_.k(iteration));
    Selection selection;
    selection.target_k = schedule_.target_k(iteration);
    topk_of_all(accumulators, kernels, shape_, k, selection);
    selection.exchanged = kernels.unite(selection.selected, N);
    selection.exchange = gathered_exchange(k, index_bytes_);
    selection.contribution = Contribution::at_own_selection;
    WorkLog work(shape_.workers);
    work.all("accumulate", N, N, 0);
    work.all("topk", N, k, 0);
    work.all("gather", k, k, 0);
    work.all("zero", k, k, 0);
    work.all("unite", shape_.workers * k, std::ssize(selection.exchanged), 2);
    selection.work = work.take();
    return selection;
  }

 private:
  ReplayShape shape_;
  DensitySchedule schedule_;
  std::int64_t index_bytes_;
};

}  // namespace

SparsifierInfo describe_global_topk() {
  SparsifierInfo info;
  info.name = "global_topk";
  info.title = "Global Top-k (local Top-k with gathered values)";
  info.paper = "kljp/exdyna's GlobalTopKReducer (not gTop-k)";
  info.rule = "Each worker selects its max(1, k) largest |a|; residuals become 0 at the own selection only.";
  info.exchange = "all-gather of values (4k), all-gather of indices (8k)";
  info.cost = "top-k over N on every worker; n k entries to join";
  info.parameters = {density_schedule_parameter(), index_bytes_parameter()};
  info.any_order = [](const Json&) { return true; };
  info.make = [](const ReplayShape& shape, const Json& values) { return std::make_unique<GlobalTopK>(shape, values); };
  return info;
}

}  // namespace sparscale::sim
