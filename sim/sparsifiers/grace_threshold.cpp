// GRACE's threshold.
// Paper:    Xu et al., GRACE, ICDCS 2021; as in sands-lab/grace.
// Rule:     tensor by tensor. Horovod: |a| > lambda. DDP: |a| >= min(lambda, largest signed a), so a tensor without a positive value is
//           sent whole. a = beta e + gamma g.
// Exchange: for every tensor: DDP: all-gather of two sizes, then of values and int32 indices padded to the largest; Horovod: all-gathers
//           of unequal size, int64 indices. Residuals become 0 at the own selection.
// Cost:     one scan of N (DDP: two); two or three calls per tensor.
#include <algorithm>

#include "sim/sparsifiers/grace.hpp"

namespace sparscale::sim {
namespace {

class GraceThreshold : public GraceSparsifier {
 public:
  GraceThreshold(const ReplayShape& shape, const Json& values)
      : GraceSparsifier(values),
        shape_(shape),
        values_(values),
        ddp_(values.at("variant") == "ddp"),
        threshold_(values.at("threshold").get<double>()),
        pieces_(layer_segments(shape)) {}

  Selection select(std::int64_t, const AccumulatorView& accumulators, const kernels::Kernels& kernels) override {
    Selection selection;
    selection.selected.resize(static_cast<std::size_t>(shape_.workers));
    selection.threshold = {threshold_};
    std::vector<std::vector<Index>> counts(pieces_.size(), std::vector<Index>(selection.selected.size()));
    WorkLog work(shape_.workers);
    work.all("accumulate", shape_.gradients, shape_.gradients, 0);
    accumulators.each_worker(
        shape_.workers,
        [&](std::int64_t worker) {
          std::vector<Index>& own = selection.selected[static_cast<std::size_t>(worker)];
          for (std::size_t p = 0; p < pieces_.size(); ++p) {
            const Segment& piece = pieces_[p];
            const Index before = std::ssize(own);
            const float lambda = static_cast<float>(threshold_);
            if (ddp_) {
              const std::span<const float> values = accumulators.range(worker, piece.begin, piece.end);
              select_at_least(accumulators, kernels, worker, piece.begin, piece.end,
                              std::min(lambda, *std::max_element(values.begin(), values.end())), own);
              work.one(worker, "count", piece.size(), 0, 0);  // the largest value: one pass
            } else {
              select_above(accumulators, kernels, worker, piece.begin, piece.end, lambda, own);
            }
            Index& count = counts[p][static_cast<std::size_t>(worker)];
            count = std::ssize(own) - before;
            work.one(worker, "threshold_select", piece.size(), count, 0);
          }
        },
        [&](std::int64_t worker, WorkerShare& carry) {
          carry(selection.selected[static_cast<std::size_t>(worker)]);
          for (auto& of_piece : counts) carry(of_piece[static_cast<std::size_t>(worker)]);
          work.share(worker, carry);
        });
    finish_grace(selection, work, shape_, kernels, counts, values_, true);
    return selection;
  }

 private:
  ReplayShape shape_;
  Json values_;
  bool ddp_;
  double threshold_;
  std::vector<Segment> pieces_;
};

}  // namespace

SparsifierInfo describe_grace_threshold() {
  SparsifierInfo info;
  info.name = "grace_threshold";
  info.title = "Threshold after GRACE";
  info.paper = "Xu et al., GRACE, ICDCS 2021";
  info.rule = "Tensor by tensor, each worker selects |a| above one constant.";
  info.exchange = "per tensor: (ddp) all-gather of sizes (16), all-gather of values (4k_i) and of indices (4k_i or 8k_i)";
  info.cost = "one or two scans of N, two or three calls per tensor; nothing holds the density";
  info.parameters = {
      number_parameter("threshold", 0.01, ">= 0", Json{{"minimum", 0}}, "lambda"),
      grace_variant_parameter("at-least with the signed maximum, sizes and padding (ddp), or above, unequal sizes (horovod)"),
      grace_residual_parameter(),
      grace_beta_parameter(),
      grace_gamma_parameter(),
      fused_parameter(false, " (Horovod may fuse them)")};
  info.make = [](const ReplayShape& shape, const Json& values) { return std::make_unique<GraceThreshold>(shape, values); };
  return info;
}

}  // namespace sparscale::sim
