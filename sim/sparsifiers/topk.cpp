// Local Top-k.
// Paper:    Aji, Heafield, EMNLP 2017; Stich et al., NeurIPS 2018; as in kljp/exdyna's (2023a: kljp/sage's) TopKReducer.
// Rule:     each worker selects its k = trunc(d N) largest |a|, ties to the lower index. k = 0 selects nothing. By layer or bucket (and in
//           generation 2023a, which goes by layer): max(1, trunc(d N_piece)) of each piece.
// Exchange: all-gather of k indices, sort and unique, all-reduce of the values at the union of U indices. Residuals become 0 at the union.
//           By layer or bucket with fused = false, each piece has these calls of its own, one piece after the other.
//           2023a: all-gather of values and of indices; residuals become 0 at the own selection.
// Cost:     top-k over N on every worker; k <= U <= min(N, n k): the build-up grows with n.
#include <algorithm>

#include "base/error.hpp"
#include "sim/sparsifiers/common.hpp"

namespace sparscale::sim {
namespace {

class TopK : public Sparsifier {
 public:
  TopK(const ReplayShape& shape, const Json& values)
      : shape_(shape),
        schedule_(shape, values),
        index_bytes_(index_bytes_by_generation(values)),
        old_(values.at("generation") == "2023a"),
        pieces_(segments_of(shape, values)) {
    if (old_ && values.at("scope") == "bucket")
      throw InputError("scope", "layer or the default with generation 2023a, which goes tensor by tensor", "bucket");
    if (old_) pieces_ = layer_segments(shape);
    by_piece_ = old_ || values.at("scope") != "global";
    alone_ = !values.at("fused").get<bool>();
    if (alone_ && (old_ || !by_piece_))
      throw InputError("fused", "true unless scope is layer or bucket and generation is current", "false");
  }

  Accumulation accumulation() const override { return Accumulation::plain; }

  Selection select(std::int64_t iteration, const AccumulatorView& accumulators, const kernels::Kernels& kernels) override {
    const Index N = shape_.gradients;
    const double density = schedule_.density(iteration);
    std::vector<Index> counts;  // of each piece
    for (const Segment& piece : pieces_) {
      const Index k = truncated(density, piece.size());
      counts.push_back(by_piece_ ? std::max<Index>(1, k) : k);
    }
    const Index k = sum_of(counts);
    Selection selection;
    selection.target_k = schedule_.target_k(iteration);
    if (alone_) selection.target_k = k;
    selection.selected.resize(static_cast<std::size_t>(shape_.workers));
    if (!by_piece_) selection.threshold.resize(selection.selected.size());
    accumulators.each_worker(
        shape_.workers,
        [&](std::int64_t worker) {
          const auto at = static_cast<std::size_t>(worker);
          std::vector<Index>& own = selection.selected[at];
          for (std::size_t p = 0; p < pieces_.size(); ++p) {
            const float least = accumulators.topk(worker, pieces_[p].begin, pieces_[p].end, counts[p], kernels, own);
            if (!by_piece_) selection.threshold[at] = least;
          }
        },
        [&](std::int64_t worker, WorkerShare& carry) {
          const auto at = static_cast<std::size_t>(worker);
          carry(selection.selected[at]);
          if (!by_piece_) carry(selection.threshold[at]);
        });
    selection.exchanged = kernels.unite(selection.selected, N);
    const Index united = std::ssize(selection.exchanged);
    WorkLog work(shape_.workers);
    work.all("accumulate", N, N, 0);
    for (std::size_t p = 0; p < pieces_.size(); ++p) {
      if (by_piece_ && !old_) {
        work.set_piece(static_cast<std::int64_t>(p));
        selection.piece_sizes.push_back(pieces_[p].size());
      }
      work.all("topk", pieces_[p].size(), counts[p], 0);
    }
    work.set_piece(-1);
    if (old_) {
      selection.exchange = gathered_exchange(k, index_bytes_);
      selection.contribution = Contribution::at_own_selection;
      work.all("gather", k, k, 0);
      work.all("zero", k, k, 0);
      work.all("unite", shape_.workers * k, united, 2);
    } else {
      selection.exchange = {all_gather("indices", index_dtype(index_bytes_), static_cast<std::uint64_t>(k * index_bytes_)),
                            all_reduce("values", "float32", 4 * static_cast<std::uint64_t>(united))};
      work.all("unite", shape_.workers * k, united, 1);
      work.all("gather", united, united, 1);
      work.all("zero", united, united, 2);
    }
    selection.work = work.take();
    return selection;
  }

 private:
  ReplayShape shape_;
  DensitySchedule schedule_;
  std::int64_t index_bytes_;
  bool old_;
  std::vector<Segment> pieces_;
  bool by_piece_ = false, alone_ = false;  // alone: this is one of the pieces, with an exchange of its own
};

}  // namespace

SparsifierInfo describe_topk() {
  SparsifierInfo info;
  info.name = "topk";
  info.title = "Local Top-k";
  info.paper = "Aji, Heafield, EMNLP 2017; Stich et al., NeurIPS 2018";
  info.rule = "Each worker selects its k largest |a|.";
  info.exchange = "all-gather of indices (8k), all-reduce of values at the union (4U)";
  info.cost = "top-k over N on every worker; U grows with n";
  info.parameters = {generation_parameter(),
                     scope_parameter(),
                     bucket_bytes_parameter(),
                     density_schedule_parameter(),
                     index_bytes_by_generation_parameter(),
                     fused_parameter(true, " (scope layer or bucket)")};
  info.exchanges_by_scope = true;
  info.any_order = [](const Json&) { return true; };
  info.make = [](const ReplayShape& shape, const Json& values) -> std::unique_ptr<Sparsifier> {
    if (values.at("fused").get<bool>()) return std::make_unique<TopK>(shape, values);
    return make_by_scope(shape, values, [&](const ReplayShape& part) { return std::make_unique<TopK>(part, values); });
  };
  return info;
}

}  // namespace sparscale::sim
