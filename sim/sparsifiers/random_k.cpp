// Random-k.
// Paper:    Stich et al., NeurIPS 2018; as in hclhkbu/GaussianK-SGD (own indices) and GRACE (shared indices).
// Rule:     k = max(1, trunc(d N)) random indices without replacement. own: every worker draws its own. shared: all draw the same.
//           The authors of the own variant add no residual (residual = false); with residual = true it is their randomkec.
// Exchange: own: all-gather of fp32 values, all-gather of int32 indices; residuals become 0 at the own selection.
//           shared: all-reduce of the values only; residuals become 0 there on all workers. One set of calls per piece (scope).
// Cost:     O(k) draws: nothing next to a top-k. It fails to converge where top-k does.
#include <algorithm>

#include "sim/sparsifiers/common.hpp"

namespace sparscale::sim {
namespace {

class RandomK : public Sparsifier {
 public:
  RandomK(const ReplayShape& shape, const Json& values)
      : shape_(shape),
        schedule_(shape, values),
        shared_(values.at("indices") == "shared"),
        residual_(values.at("residual").get<bool>()),
        replacement_(values.at("replacement").get<bool>()),
        index_bytes_(values.at("index_bytes").get<std::int64_t>()),
        pieces_(segments_of(shape, values)),
        by_scope_(values.at("scope") != "global") {}

  Accumulation accumulation() const override { return Accumulation::plain; }
  bool keeps_residual() const override { return residual_; }

  Selection select(std::int64_t iteration, const AccumulatorView& accumulators, const kernels::Kernels& kernels) override {
    const Index N = shape_.gradients;
    const std::size_t n = static_cast<std::size_t>(shape_.workers);
    const double density = schedule_.density(iteration);
    Selection selection;
    selection.target_k = schedule_.target_k(iteration);
    selection.selected.resize(n);
    WorkLog work(shape_.workers);
    if (residual_) work.all("accumulate", N, N, 0);
    // Nothing here depends on values.
    accumulators.each_worker(
        shape_.workers,
        [&](std::int64_t at) {
          const auto worker = static_cast<std::size_t>(at);
          if (shared_ && worker > 0) return;
          Random random(stream_key(shape_.seed, "random_k", {static_cast<std::uint64_t>(iteration), worker}));
          for (const Segment& piece : pieces_) {
            const Index k = std::max<Index>(1, truncated(density, piece.size()));
            std::vector<Index> drawn;
            if (replacement_) {
              for (Index draw = 0; draw < k; ++draw)
                drawn.push_back(static_cast<Index>(random.below(static_cast<std::uint64_t>(piece.size()))));
              std::sort(drawn.begin(), drawn.end());
              drawn.erase(std::unique(drawn.begin(), drawn.end()), drawn.end());
            } else {
              drawn = random_subset(random, piece.size(), k);
            }
            for (const Index index : drawn) selection.selected[worker].push_back(piece.begin + index);
          }
        },
        [&](std::int64_t worker, WorkerShare& carry) { carry(selection.selected[static_cast<std::size_t>(worker)]); });
    if (shared_) std::fill(selection.selected.begin() + 1, selection.selected.end(), std::vector<Index>(selection.selected.front()));
    selection.exchanged = shared_ ? selection.selected.front() : kernels.unite(selection.selected, N);
    // Drawing with replacement still sends k values.
    for (const Segment& piece : pieces_) {
      const Index k = std::max<Index>(1, truncated(density, piece.size()));
      const std::size_t first_call = selection.exchange.size();
      if (by_scope_) work.set_piece(std::ssize(selection.piece_sizes));
      work.all("gather", k, k, selection.exchange.size());
      if (shared_) {
        selection.exchange.push_back(all_reduce("values", "float32", 4 * static_cast<std::uint64_t>(k)));
      } else {
        for (CollectiveCall& call : gathered_exchange(k, index_bytes_)) selection.exchange.push_back(std::move(call));
        const auto first = std::lower_bound(selection.exchanged.begin(), selection.exchanged.end(), piece.begin);
        const auto last = std::lower_bound(first, selection.exchanged.end(), piece.end);
        work.all("unite", shape_.workers * k, last - first, selection.exchange.size());
      }
      if (residual_) work.all("zero", k, k, selection.exchange.size());
      for (std::size_t call = first_call; by_scope_ && call < selection.exchange.size(); ++call)
        selection.exchange[call].piece = std::ssize(selection.piece_sizes);
      if (by_scope_) selection.piece_sizes.push_back(piece.size());
    }
    selection.contribution = shared_ ? Contribution::at_exchanged : Contribution::at_own_selection;
    if (!residual_) selection.residual = Residual::cleared;
    selection.work = work.take();
    return selection;
  }

 private:
  ReplayShape shape_;
  DensitySchedule schedule_;
  bool shared_, residual_, replacement_;
  std::int64_t index_bytes_;
  std::vector<Segment> pieces_;
  bool by_scope_;
};

}  // namespace

SparsifierInfo describe_random_k() {
  SparsifierInfo info;
  info.name = "random_k";
  info.title = "Random-k";
  info.paper = "Stich et al., NeurIPS 2018";
  info.rule = "k random indices, drawn by each worker for itself or by all together.";
  info.exchange = "own: all-gather of values (4k) and of indices (4k); shared: all-reduce of values (4k)";
  info.cost = "k random draws";
  info.parameters = {
      choice_parameter("indices", {"own", "shared"}, "every worker draws for itself (GaussianK-SGD), or all draw the same (GRACE)"),
      boolean_parameter("residual", false, "error feedback (false: the authors' randomk; true: randomkec, or GRACE with residual memory)"),
      boolean_parameter("replacement", false, "draw with replacement, as GRACE's DDP version does"),
      scope_parameter(),
      bucket_bytes_parameter(),
      density_schedule_parameter(),
      index_bytes_parameter(4)};
  info.exchanges_by_scope = true;
  info.make = [](const ReplayShape& shape, const Json& values) { return std::make_unique<RandomK>(shape, values); };
  return info;
}

}  // namespace sparscale::sim
