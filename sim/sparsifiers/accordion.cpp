// Accordion with Top-k.
// Paper:    Agarwal et al., MLSys 2021 (arXiv 2010.16248); as in kljp's AccordionTopKReducer (variant kljp) and uw-mad-dash/Accordion
//           (variant original).
// Rule:     tensor by tensor, each worker selects its x N_l largest |a|, x low or high. Now and then worker 0 decides for each tensor: high
//           at the start, after a drop of the learning rate, or when a norm of its local gradient differs from that of the last decision by
//           more than half of it (or that was 0); else low.
//           kljp: max(1, trunc(x N_l)); decides every switch_iterations, from the gradient of that one iteration. original: trunc(x N_l) of
//           tensors with more than one dimension, the others are all-reduced; decides at the end of every epoch whose number is a multiple
//           of switch_iterations / epoch_iterations (10 in the authors' code), from the gradients summed over that epoch, and a difference
//           of exactly half counts as high.
// Exchange: in deciding iterations a broadcast of one fp32 per tensor (kljp: before, original: after the rest). kljp: all-gather of values
//           and of int32 indices; residuals become 0 at the own selection. original: for every tensor all-gathers of int64 indices and of
//           values, or the all-reduce; no residual (the authors' reducer never writes it).
// Cost:     a top-k over every tensor on every worker; original: another N additions on worker 0.
//
// Densities default to the replay's, which a schedule may change, and ten times that. In the authors' main program a tensor is exchanged
// whole until the first decision, unless it is told a density to start with; here epoch 0 is high.
#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "sim/sparsifiers/common.hpp"

namespace sparscale::sim {
namespace {

class Accordion : public Sparsifier {
 public:
  Accordion(const ReplayShape& shape, const Json& values)
      : shape_(shape),
        schedule_(shape, values),
        original_(values.at("variant") == "original"),
        low_(values.at("density_low").get<double>()),
        high_(values.at("density_high").get<double>()),
        change_(values.at("change").get<double>()),
        period_(values.at("switch_iterations").get<std::int64_t>()),
        epoch_(values.at("epoch_iterations").get<std::int64_t>()),
        index_bytes_(values.at("index_bytes").get<std::int64_t>()),
        pieces_(layer_segments(shape)),
        is_high_(pieces_.size(), true),
        last_norm_(pieces_.size(), 0),
        norm_(pieces_.size(), 0) {
    if (low_ != 0) schedule_.require_none("no schedule with a given density_low, which holds throughout");
    if (epoch_ == 0) epoch_ = std::max<std::int64_t>(1, period_ / 10);
    if (original_ && epoch_ > period_)
      throw InputError("epoch_iterations", "at most switch_iterations = " + std::to_string(period_), std::to_string(epoch_));
    if (index_bytes_ == 0) index_bytes_ = original_ ? 8 : 4;
    for (const traces::Layer& layer : shape.layers)
      if (layer.size > 0) whole_.push_back(original_ && layer.shape.size() <= 1);
    if (original_) sum_.assign(static_cast<std::size_t>(shape.gradients), 0.0F);
  }

  Accumulation accumulation() const override { return Accumulation::plain; }
  bool keeps_residual() const override { return !original_; }
  bool sees_gradient(std::int64_t worker) const override { return worker == 0 && summing_; }

  // Norms of worker 0's gradient, or of its sum over the epoch, tensor by tensor.
  void see_gradient(std::int64_t worker, std::span<const float> gradient, const kernels::Kernels& kernels) override {
    if (worker != 0) return;
    std::span<const float> values = gradient;
    if (original_) {
      for (std::size_t i = 0; i < sum_.size(); ++i) sum_[i] += gradient[i];
      values = sum_;
    }
    if (!deciding_) return;
    for (std::size_t p = 0; p < pieces_.size(); ++p)
      norm_[p] = kernels.l2_norm(values.subspan(static_cast<std::size_t>(pieces_[p].begin), static_cast<std::size_t>(pieces_[p].size())));
  }

  Selection select(std::int64_t iteration, const AccumulatorView& accumulators, const kernels::Kernels& kernels) override {
    const Index N = shape_.gradients;
    const std::int64_t within = iteration % period_;
    if (original_ && within == 0) std::fill(sum_.begin(), sum_.end(), 0.0F);
    summing_ = original_ ? within < epoch_ : within == 0;
    deciding_ = original_ ? within == epoch_ - 1 : within == 0;
    const double rate = shape_.learning_rate_at(iteration);
    if (original_ && iteration > 0 && rate < last_rate_) std::fill(is_high_.begin(), is_high_.end(), true);

    const double low = low_ != 0 ? low_ : schedule_.density(iteration);
    const double high = high_ != 0 ? high_ : std::min(1.0, 10 * low);
    Selection selection;
    selection.selected.resize(static_cast<std::size_t>(shape_.workers));
    accumulators.range(0, 0, N);
    WorkLog work(shape_.workers);
    if (!original_ && deciding_) {
      decide(iteration == 0 || rate < last_rate_);
      last_rate_ = rate;
      work.one(0, "l2_norm", N, N, 0);
      selection.exchange.push_back(broadcast("plan", "float32", 4 * pieces_.size(), 0));
    }
    if (original_) {
      last_rate_ = rate;
      if (summing_) work.one(0, "accumulate", N, N, 0);
    } else {
      work.all("accumulate", N, N, 0);
    }

    const std::size_t first_gather = selection.exchange.size();
    Index k = 0, dense = 0;
    std::vector<Index> counts;
    for (std::size_t p = 0; p < pieces_.size(); ++p) {
      const Index size = pieces_[p].size();
      const Index wanted = truncated(is_high_[p] ? high : low, size);
      counts.push_back(whole_[p] ? size : original_ ? wanted : std::max<Index>(1, wanted));
      (whole_[p] ? dense : k) += counts.back();
      if (whole_[p]) {
        selection.exchange.push_back(all_reduce("gradient", "float32", 4 * static_cast<std::uint64_t>(size)));
        continue;
      }
      work.all("topk", size, counts.back(), selection.exchange.size());
      if (original_) {
        work.all("gather", counts.back(), counts.back(), selection.exchange.size());
        Exchange gathers = gathered_exchange(counts.back(), index_bytes_);
        std::swap(gathers.front(), gathers.back());  // indices first
        gathers.front().index_range = static_cast<std::uint64_t>(size);
        for (CollectiveCall& call : gathers) selection.exchange.push_back(std::move(call));
      }
    }
    accumulators.each_worker(
        shape_.workers,
        [&](std::int64_t worker) {
          for (std::size_t p = 0; p < pieces_.size(); ++p)
            accumulators.topk(worker, pieces_[p].begin, pieces_[p].end, counts[p], kernels,
                              selection.selected[static_cast<std::size_t>(worker)]);
        },
        [&](std::int64_t worker, WorkerShare& carry) { carry(selection.selected[static_cast<std::size_t>(worker)]); });
    selection.target_k = k + dense;
    selection.exchanged = kernels.unite(selection.selected, N);
    if (!original_) {
      work.all("gather", k, k, first_gather);
      work.all("zero", k, k, first_gather);
      for (CollectiveCall& call : gathered_exchange(k, index_bytes_)) selection.exchange.push_back(std::move(call));
    }
    work.all("unite", shape_.workers * k, std::ssize(selection.exchanged) - dense, selection.exchange.size());
    selection.contribution = Contribution::at_own_selection;
    selection.details["high"] = is_high_;
    if (original_) {
      selection.residual = Residual::cleared;
      selection.details["dense_elements"] = dense;
      if (deciding_) {  // holds from the next iteration on
        work.one(0, "l2_norm", N, N, selection.exchange.size());
        decide(iteration < epoch_);
        selection.exchange.push_back(broadcast("plan", "float32", 4 * pieces_.size(), 0));
      }
    }
    selection.work = work.take();
    return selection;
  }

 private:
  void decide(bool all_high) {
    for (std::size_t p = 0; p < pieces_.size(); ++p) {
      const double ratio = std::abs(last_norm_[p] - norm_[p]) / last_norm_[p];
      is_high_[p] = all_high || last_norm_[p] == 0 || (original_ ? ratio >= change_ : ratio > change_);
      last_norm_[p] = norm_[p];
    }
  }

  ReplayShape shape_;
  DensitySchedule schedule_;
  bool original_;
  double low_, high_;  // 0: the replay's density, ten times the low one
  double change_;
  std::int64_t period_, epoch_, index_bytes_;
  std::vector<Segment> pieces_;
  std::vector<bool> is_high_, whole_;  // whole_: exchanged densely
  std::vector<double> last_norm_, norm_;
  std::vector<float> sum_;  // of worker 0's gradients in this epoch (original)
  double last_rate_ = 0;
  bool deciding_ = false, summing_ = false;
};

}  // namespace

SparsifierInfo describe_accordion() {
  SparsifierInfo info;
  info.name = "accordion";
  info.title = "Accordion with Top-k";
  info.paper = "Agarwal et al., MLSys 2021 (arXiv 2010.16248)";
  info.rule = "Tensor by tensor, Top-k at a low or a high density; high while the gradient's norm changes.";
  info.exchange = "now and then a broadcast (4L); all-gather of values (4k) and of indices (4k; original: 8k, tensor by tensor)";
  info.cost = "a top-k over every tensor on every worker";
  info.parameters = {
      choice_parameter(
          "variant", {"kljp", "original"},
          "kljp: with residual, decides by the gradient of one iteration; original: without residual, tensors of one dimension "
          "dense, decides by the gradients summed over an epoch"),
      number_parameter("density_low", 0, ">= 0 and <= 1", Json{{"minimum", 0}, {"maximum", 1}}, "low density; 0: the replay's density"),
      number_parameter("density_high", 0, ">= 0 and <= 1", Json{{"minimum", 0}, {"maximum", 1}},
                       "high density; 0: ten times the low one, as in kljp's scripts (both authors' classes: 0.1 and 0.99)"),
      density_schedule_parameter("; the low density, and the high one where it is ten times that; not with a given density_low"),
      number_parameter("change", 0.5, ">= 0", Json{{"minimum", 0}}, "relative change of the norm above which a tensor is high"),
      integer_parameter("switch_iterations", 100, ">= 1", Json{{"minimum", 1}}, "iterations between decisions (the authors': 10 epochs)"),
      integer_parameter("epoch_iterations", 0, ">= 0", Json{{"minimum", 0}},
                        "iterations of an epoch (original); 0: a tenth of switch_iterations"),
      Parameter{"index_bytes", 0, "0 | 4 | 8", "bytes of one index on the wire; 0: as the authors send, 4 or (original) 8",
                Json{{"enum", Json::array({0, 4, 8})}}}};
  info.make = [](const ReplayShape& shape, const Json& values) { return std::make_unique<Accordion>(shape, values); };
  info.state_bytes = [](const ReplayShape& shape, const Json& values) -> std::uint64_t {
    return values.at("variant") == "original" ? 4 * static_cast<std::uint64_t>(shape.gradients) : 0;
  };
  return info;
}

}  // namespace sparscale::sim
