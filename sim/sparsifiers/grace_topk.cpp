// GRACE's Top-k.
// Paper:    Xu et al., GRACE, ICDCS 2021; as in sands-lab/grace.
// Rule:     tensor by tensor, each worker selects its max(1, trunc(d N_l)) largest |a|, ties to the lower index.
//           a = beta e + gamma g.
// Exchange: for every tensor an all-gather of values and one of indices: int32 (DDP) or int64 (Horovod). Residuals become 0 at the own
//           selection.
// Cost:     a top-k over every tensor on every worker; two calls per tensor.
#include <algorithm>

#include "sim/sparsifiers/grace.hpp"

namespace sparscale::sim {
namespace {

class GraceTopK : public GraceSparsifier {
 public:
  GraceTopK(const ReplayShape& shape, const Json& values)
      : GraceSparsifier(values), shape_(shape), schedule_(shape, values), values_(values), pieces_(layer_segments(shape)) {}

  Selection select(std::int64_t iteration, const AccumulatorView& accumulators, const kernels::Kernels& kernels) override {
    const double density = schedule_.density(iteration);
    Selection selection;
    selection.target_k = schedule_.target_k(iteration);
    selection.selected.resize(static_cast<std::size_t>(shape_.workers));
    std::vector<std::vector<Index>> counts;
    WorkLog work(shape_.workers);
    work.all("accumulate", shape_.gradients, shape_.gradients, 0);
    for (const Segment& piece : pieces_) {
      const Index k = std::max<Index>(1, truncated(density, piece.size()));
      counts.emplace_back(selection.selected.size(), k);
      work.all("topk", piece.size(), k, 0);
    }
    accumulators.each_worker(
        shape_.workers,
        [&](std::int64_t worker) {
          for (std::size_t p = 0; p < pieces_.size(); ++p)
            accumulators.topk(worker, pieces_[p].begin, pieces_[p].end, counts[p].front(), kernels,
                              selection.selected[static_cast<std::size_t>(worker)]);
        },
        [&](std::int64_t worker, WorkerShare& carry) { carry(selection.selected[static_cast<std::size_t>(worker)]); });
    finish_grace(selection, work, shape_, kernels, counts, values_, false);
    return selection;
  }

 private:
  ReplayShape shape_;
  DensitySchedule schedule_;
  Json values_;
  std::vector<Segment> pieces_;
};

}  // namespace

SparsifierInfo describe_grace_topk() {
  SparsifierInfo info;
  info.name = "grace_topk";
  info.title = "Top-k after GRACE";
  info.paper = "Xu et al., GRACE, ICDCS 2021";
  info.rule = "Tensor by tensor, each worker selects its max(1, d N_l) largest |a|.";
  info.exchange = "per tensor: all-gather of values (4k_l) and of indices (4k_l or 8k_l)";
  info.cost = "a top-k over every tensor, two calls per tensor";
  info.parameters = {grace_variant_parameter("int32 indices (ddp) or int64 (horovod)"),
                     grace_residual_parameter(),
                     grace_beta_parameter(),
                     grace_gamma_parameter(),
                     density_schedule_parameter(),
                     fused_parameter(false, " (Horovod may fuse them)")};
  info.make = [](const ReplayShape& shape, const Json& values) { return std::make_unique<GraceTopK>(shape, values); };
  return info;
}

}  // namespace sparscale::sim
