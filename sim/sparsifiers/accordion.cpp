// Accordion with Top-k.
// Paper:    Agarwal et al., MLSys 2021 (arXiv 2010.16248); as in kljp's AccordionTopKReducer.
// Rule:     tensor by tensor, each worker selects its max(1, trunc(x N_l)) largest |a|, x low or high. Every switch_iterations iterations
// worker 0
//           decides for each tensor: high in the first period, after a drop of the learning rate, or when the norm of its local gradient
//           differs from that of the last decision by more than half of it (or that was 0); else low.
// Exchange: in deciding iterations a broadcast of one fp32 per tensor; all-gather of values and of int32 indices. Residuals become 0 at the
// own
//           selection.
// Cost:     a top-k over every tensor on every worker.
//
// The original code (uw-mad-dash/Accordion) compares norms accumulated over an epoch, does not divide by n and keeps no residual: not
// modelled.
#include <algorithm>
#include <cmath>

#include "sim/sparsifiers/common.hpp"

namespace sparscale::sim {
namespace {

class Accordion : public Sparsifier {
 public:
  Accordion(const ReplayShape& shape, const Json& values)
      : shape_(shape),
        low_(values.at("density_low").get<double>()),
        high_(values.at("density_high").get<double>()),
        change_(values.at("change").get<double>()),
        period_(values.at("switch_iterations").get<std::int64_t>()),
        index_bytes_(values.at("index_bytes").get<std::int64_t>()),
        pieces_(layer_segments(shape)),
        is_high_(pieces_.size(), true),
        last_norm_(pieces_.size(), 0) {
    if (low_ == 0) low_ = shape.density;
    if (high_ == 0) high_ = std::min(1.0, 10 * low_);
  }

  void accumulate(std::int64_t worker, Index first, std::span<const float> gradient, float scale, std::span<float> accumulator,
                  const kernels::Kernels& kernels) override {
    kernels.accumulate(gradient, scale, accumulator);
    if (worker != 0 || !deciding_) return;
    // Sum of squares of worker 0's gradient, tensor by tensor.
    const Index last = first + std::ssize(gradient);
    for (std::size_t p = 0; p < pieces_.size(); ++p) {
      const Index begin = std::max(first, pieces_[p].begin), end = std::min(last, pieces_[p].end);
      if (begin >= end) continue;
      const double norm = kernels.l2_norm(gradient.subspan(static_cast<std::size_t>(begin - first), static_cast<std::size_t>(end - begin)));
      squares_[p] += norm * norm;
    }
  }

  Selection select(std::int64_t iteration, const AccumulatorView& accumulators, const kernels::Kernels& kernels) override {
    const Index N = shape_.gradients;
    deciding_ = iteration % period_ == 0;
    squares_.assign(pieces_.size(), 0);
    Selection selection;
    selection.selected.resize(static_cast<std::size_t>(shape_.workers));
    accumulators.range(0, 0, N);
    WorkLog work(shape_.workers);
    if (deciding_) {
      decide(iteration);
      work.one(0, "l2_norm", N, N, 0);
      selection.exchange.push_back(broadcast("plan", "float32", 4 * pieces_.size(), 0));
    }
    deciding_ = false;
    work.all("accumulate", N, N, 0);
    const std::size_t first_gather = selection.exchange.size();
    Index k = 0;
    std::vector<Index> counts;
    for (std::size_t p = 0; p < pieces_.size(); ++p) {
      counts.push_back(std::max<Index>(1, truncated(is_high_[p] ? high_ : low_, pieces_[p].size())));
      k += counts.back();
      work.all("topk", pieces_[p].size(), counts.back(), first_gather);
    }
    for (std::int64_t worker = 0; worker < shape_.workers; ++worker)
      for (std::size_t p = 0; p < pieces_.size(); ++p)
        kernels.topk(accumulators.range(worker, pieces_[p].begin, pieces_[p].end), counts[p], pieces_[p].begin,
                     selection.selected[static_cast<std::size_t>(worker)]);
    selection.target_k = k;
    selection.exchanged = kernels.unite(selection.selected, N);
    work.all("gather", k, k, first_gather);
    work.all("zero", k, k, first_gather);
    for (CollectiveCall& call : gathered_exchange(k, index_bytes_)) selection.exchange.push_back(std::move(call));
    work.all("unite", shape_.workers * k, std::ssize(selection.exchanged), selection.exchange.size());
    selection.contribution = Contribution::at_own_selection;
    selection.details["high"] = is_high_;
    selection.work = work.take();
    return selection;
  }

 private:
  void decide(std::int64_t iteration) {
    const std::vector<double>& rates = shape_.learning_rate;
    const double rate = rates.empty() ? 0 : rates[static_cast<std::size_t>(iteration) % rates.size()];
    for (std::size_t p = 0; p < pieces_.size(); ++p) {
      const double norm = std::sqrt(squares_[p]);
      is_high_[p] = iteration == 0 || rate < last_rate_ || last_norm_[p] == 0 || std::abs(last_norm_[p] - norm) / last_norm_[p] > change_;
      last_norm_[p] = norm;
    }
    last_rate_ = rate;
  }

  ReplayShape shape_;
  double low_, high_, change_;
  std::int64_t period_, index_bytes_;
  std::vector<Segment> pieces_;
  std::vector<bool> is_high_;
  std::vector<double> last_norm_, squares_;
  double last_rate_ = 0;
  bool deciding_ = false;
};

}  // namespace

SparsifierInfo describe_accordion() {
  SparsifierInfo info;
  info.name = "accordion";
  info.title = "Accordion with Top-k";
  info.paper = "Agarwal et al., MLSys 2021 (arXiv 2010.16248)";
  info.rule = "Tensor by tensor, Top-k at a low or a high density; high while the gradient's norm changes.";
  info.exchange = "now and then a broadcast (4L); all-gather of values (4k) and of indices (4k)";
  info.cost = "a top-k over every tensor on every worker";
  info.parameters = {
      number_parameter("density_low", 0, ">= 0 and <= 1", Json{{"minimum", 0}, {"maximum", 1}}, "low density; 0: the replay's density"),
      number_parameter("density_high", 0, ">= 0 and <= 1", Json{{"minimum", 0}, {"maximum", 1}},
                       "high density; 0: ten times the low one, as in the authors' scripts (their class: 0.1 and 0.99)"),
      number_parameter("change", 0.5, ">= 0", Json{{"minimum", 0}}, "relative change of the norm above which a tensor is high"),
      integer_parameter("switch_iterations", 100, ">= 1", Json{{"minimum", 1}}, "iterations between decisions (the authors': 10 epochs)"),
      index_bytes_parameter(4)};
  info.make = [](const ReplayShape& shape, const Json& values) { return std::make_unique<Accordion>(shape, values); };
  return info;
}

}  // namespace sparscale::sim
