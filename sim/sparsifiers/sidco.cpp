// SIDCo.
// Paper:    Abdelmoniem et al., MLSys 2021 (arXiv 2101.10761); as in the authors' code.
// Rule:     x = |a| / ||a||; a threshold from a fitted distribution of x (exponential; generalised Pareto by moments; gamma first, then
//           Pareto), in M stages: the first for ratio 0.25 when M > 1 and d < 0.25, each later one over what lies above the threshold so
//           far, shifted by its minimum, for an equal share of the rest. x > threshold, strictly. stages = 0: as many as 0.25 per stage
//           needs. stages < 0: one at first; after every 5 selections (pieces, when there are several) a worker changes its number by the
//           mean of selected / wanted: above 1.2 one less, below 0.8 one more; -2 turns this direction round whenever the estimate got
//           worse, -3 whenever it did not move towards 1. Between 1 and ceil(ln d / ln 1/2).
// Exchange: all-gather of fp32 values and of int32 indices. Residuals (gradient_weight a + memory_weight e) become 0 at the own selection.
// Cost:     passes over N for norm and moments, shrinking passes for later stages, one selecting pass.
//
// A vector of zeros has no fit: nothing is selected from it (the authors' code divides 0 by 0). A stage whose subset is empty, or a fit
// that is not finite, keeps the threshold so far. From d >= first_ratio on there is one stage, whatever stages says.
#include <algorithm>
#include <boost/math/special_functions/gamma.hpp>
#include <cmath>
#include <limits>

#include "base/checked.hpp"
#include "sim/sparsifiers/common.hpp"

namespace sparscale::sim {
namespace {

constexpr double log_epsilon = 2.220446049250313e-16;  // keeps ln x finite for zeros
constexpr double tolerance = 0.2;
constexpr int selections_per_update = 5;

struct Moments {
  double minimum = 0, mean = 0, variance = 0;
};

// How far above its start a generalised Pareto distribution with these moments (counted from the start) leaves the wanted ratio.
double pareto_threshold(double mean, double variance, double ratio) {
  const double square = mean * mean / variance;
  const double scale = 0.5 * mean * (square + 1), shape = 0.5 * (square - 1);
  return std::abs(shape) < 1e-12 ? -scale * std::log(ratio) : scale * (1 - std::pow(ratio, shape)) / shape;
}

class Sidco : public Sparsifier {
 public:
  Sidco(const ReplayShape& shape, const Json& values)
      : shape_(shape),
        schedule_(shape, values),
        fit_(values.at("fit").get<std::string>()),
        mode_(values.at("stages").get<std::int64_t>()),
        first_ratio_(values.at("first_ratio").get<double>()),
        stage_ratio_(values.at("stage_ratio").get<double>()),
        residual_(values.at("residual").get<bool>()),
        gradient_weight_(static_cast<float>(values.at("gradient_weight").get<double>())),
        memory_weight_(static_cast<float>(values.at("memory_weight").get<double>())),
        style_{values.at("index_bytes").get<std::int64_t>(), values.at("fused").get<bool>(), 0, false},
        pieces_(segments_of(shape, values)) {
    workers_.resize(static_cast<std::size_t>(shape.workers));
    for (Worker& worker : workers_) worker.stages = mode_ < 0 ? 1 : mode_;
    if (residual_ && memory_weight_ != 0)
      before_.assign(static_cast<std::size_t>(shape.own_workers()) * static_cast<std::size_t>(shape.gradients), 0.0F);
  }

  Accumulation accumulation() const override { return before_.empty() ? Accumulation::plain : Accumulation::stateful; }
  bool keeps_residual() const override { return residual_; }

  void accumulate(std::int64_t worker, Index first, std::span<const float> gradient, float scale, std::span<float> accumulator,
                  const kernels::Kernels& kernels) override {
    if (!before_.empty()) std::copy(accumulator.begin(), accumulator.end(), before_of(worker) + first);
    kernels.accumulate(gradient, scale, accumulator);
  }

  // e' = gradient_weight a + memory_weight e, 0 where it was sent.
  void keep_residual(std::int64_t worker, const Selection& selection, std::span<float> accumulator) override {
    const float* before = before_.empty() ? nullptr : before_of(worker);
    for (std::size_t i = 0; i < accumulator.size(); ++i)
      accumulator[i] = gradient_weight_ * accumulator[i] + (before ? memory_weight_ * before[i] : 0.0F);
    for (const Index index : selection.selected[static_cast<std::size_t>(worker)]) accumulator[static_cast<std::size_t>(index)] = 0;
  }

  Selection select(std::int64_t iteration, const AccumulatorView& accumulators, const kernels::Kernels& kernels) override {
    const Index N = shape_.gradients;
    const std::size_t n = workers_.size();
    const double density = schedule_.density(iteration);
    Selection selection;
    selection.target_k = schedule_.target_k(iteration);
    selection.selected.resize(n);
    std::vector<std::vector<Index>> counts(pieces_.size(), std::vector<Index>(n));
    std::vector<std::int64_t> stages(n);
    WorkLog work(shape_.workers);
    work.all("accumulate", N, N, 0);
    if (pieces_.size() == 1) selection.threshold.resize(n);
    accumulators.each_worker(
        shape_.workers,
        [&](std::int64_t at) {
          const auto worker = static_cast<std::size_t>(at);
          Worker& state = workers_[worker];
          if (mode_ < 0) state.stages = std::min(state.stages, most_stages(density));
          stages[worker] = state.stages;
          std::vector<Index>& own = selection.selected[worker];
          for (std::size_t p = 0; p < pieces_.size(); ++p) {
            const Segment& piece = pieces_[p];
            const float threshold = fitted_threshold(accumulators, kernels, at, piece, density, state.stages, work);
            const Index before = std::ssize(own);
            select_above(accumulators, kernels, at, piece.begin, piece.end, threshold, own);
            counts[p][worker] = std::ssize(own) - before;
            work.one(at, "threshold_select", piece.size(), counts[p][worker], 0);
            if (mode_ < 0) adapt(state, static_cast<double>(counts[p][worker]) / static_cast<double>(piece.size()) / density, density);
            if (pieces_.size() == 1) selection.threshold[worker] = threshold;
          }
        },
        [&](std::int64_t worker, WorkerShare& carry) {
          const auto at = static_cast<std::size_t>(worker);
          carry(stages[at]);
          carry(selection.selected[at]);
          for (auto& of_piece : counts) carry(of_piece[at]);
          if (!selection.threshold.empty()) carry(selection.threshold[at]);
          work.share(worker, carry);
        });
    selection.exchanged = kernels.unite(selection.selected, N);
    const std::vector<Index> all = counts_of(selection.selected);
    work.each_of("gather", all, 0);
    work.each_of("zero", all, 0);
    append_entry_gathers(selection.exchange, counts, pieces_, style_);
    work.all("unite", sum_of(all), std::ssize(selection.exchanged), selection.exchange.size());
    selection.contribution = Contribution::at_own_selection;
    if (!residual_)
      selection.residual = Residual::cleared;
    else if (gradient_weight_ != 1 || memory_weight_ != 0)
      selection.residual = Residual::by_sparsifier;
    selection.details["stages"] = stages;
    selection.work = work.take();
    return selection;
  }

 private:
  float* before_of(std::int64_t worker) { return before_.data() + (worker - shape_.own_begin) * shape_.gradients; }

  struct Worker {
    std::int64_t stages = 1;
    // The search for their number: selected over wanted since the last change, its last mean, the direction.
    double sum = 0, last_estimate = 0;
    std::int64_t selections = 0, direction = 1;
  };

  static std::int64_t most_stages(double density) {
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(std::log(density) / std::log(0.5))));
  }

  void adapt(Worker& state, double ratio, double density) const {
    state.sum += ratio;
    if (++state.selections < selections_per_update) return;
    const double estimate = state.sum / selections_per_update, last = state.last_estimate;
    if (last > 0) {
      const bool worse = std::abs(estimate - 1) > std::abs(last - 1);
      const bool approached = (estimate > last && last < 1 - tolerance) || (estimate < last && last > 1 + tolerance);
      if ((mode_ == -2 && worse) || (mode_ == -3 && !approached)) state.direction *= -1;
    }
    if (estimate > 1 + tolerance) state.stages -= state.direction;
    if (estimate < 1 - tolerance) state.stages += state.direction;
    state.stages = std::clamp<std::int64_t>(state.stages, 1, most_stages(density));
    state.last_estimate = estimate;
    state.sum = 0;
    state.selections = 0;
  }

  // Threshold of |a| in one piece; NaN, which nothing passes, for a vector of zeros.
  float fitted_threshold(const AccumulatorView& accumulators, const kernels::Kernels& kernels, std::int64_t worker, const Segment& piece,
                         double d, std::int64_t stages, WorkLog& work) const {
    const std::span<const float> values = accumulators.range(worker, piece.begin, piece.end);
    const double norm = kernels.l2_norm(values);
    work.one(worker, "l2_norm", piece.size(), piece.size(), 0);
    if (norm == 0) return std::numeric_limits<float>::quiet_NaN();
    const bool one_stage = stages == 1 || d >= first_ratio_;
    double threshold = first_stage(values, norm, one_stage ? d : first_ratio_);
    work.one(worker, "l2_norm", piece.size(), piece.size(), 0);  // the moments: one pass
    if (one_stage) return static_cast<float>(threshold * norm);
    // Later stages: how many, and the ratio of each. stages = 0: stage_ratio each and the rest in the last.
    const double rest = d / first_ratio_;
    const std::int64_t later = stages == 0 ? static_cast<std::int64_t>(std::ceil(std::log(rest) / std::log(stage_ratio_))) : stages - 1;
    const double equal = stages == 0 ? stage_ratio_ : std::pow(rest, 1 / static_cast<double>(later));
    std::vector<Index> kept;
    select_above(accumulators, kernels, worker, piece.begin, piece.end, static_cast<float>(threshold * norm), kept);
    work.one(worker, "threshold_select", piece.size(), std::ssize(kept), 0);
    for (std::int64_t stage = 1; stage <= later && !kept.empty(); ++stage) {
      const double ratio = stages == 0 && stage == later ? rest / std::pow(stage_ratio_, static_cast<double>(later - 1)) : equal;
      const Moments moments = moments_of(values, kept, piece.begin, norm);
      const double excess = moments.mean - moments.minimum;
      const double next =
          moments.minimum + (fit_ == "exponential" ? -excess * std::log(ratio) : pareto_threshold(excess, moments.variance, ratio));
      if (!std::isfinite(next)) break;
      threshold = next;
      work.one(worker, "l2_norm", std::ssize(kept), std::ssize(kept), 0);
      std::erase_if(kept,
                    [&](Index index) { return !(std::abs(values[static_cast<std::size_t>(index - piece.begin)]) / norm > threshold); });
    }
    return static_cast<float>(threshold * norm);
  }

  double first_stage(std::span<const float> values, double norm, double ratio) const {
    const double size = static_cast<double>(values.size());
    double sum = 0, logs = 0;
    for (const float value : values) sum += std::abs(value) / norm;
    const double mean = sum / size;
    double threshold = -mean * std::log(ratio);
    if (fit_ == "pareto") {
      double squares = 0;
      for (const float value : values) squares += (std::abs(value) / norm - mean) * (std::abs(value) / norm - mean);
      const double variance = values.size() > 1 ? squares / (size - 1) : 0;
      const double fitted = pareto_threshold(mean, variance, ratio);
      if (std::isfinite(fitted)) threshold = fitted;
    } else if (fit_ == "gamma_pareto") {
      for (const float value : values) logs += std::log(std::abs(value) / norm + log_epsilon);
      const double s = std::log(mean) - logs / size;
      const double shape = (3 - s + std::sqrt((s - 3) * (s - 3) + 24 * s)) / (12 * s);
      if (std::isfinite(shape) && shape > 0)
        threshold = residual_ ? mean / shape * boost::math::gamma_p_inv(shape, 1 - ratio)
                              : -mean / shape * (std::log(ratio) + std::lgamma(shape));  // the authors' class without residual approximates
    }
    return threshold;
  }

  static Moments moments_of(std::span<const float> values, const std::vector<Index>& kept, Index first, double norm) {
    const auto x = [&](Index index) { return std::abs(values[static_cast<std::size_t>(index - first)]) / norm; };
    Moments moments;
    moments.minimum = x(kept.front());
    double sum = 0, squares = 0;
    for (const Index index : kept) {
      moments.minimum = std::min(moments.minimum, x(index));
      sum += x(index);
    }
    moments.mean = sum / static_cast<double>(kept.size());
    for (const Index index : kept) squares += (x(index) - moments.mean) * (x(index) - moments.mean);
    moments.variance = kept.size() > 1 ? squares / static_cast<double>(kept.size() - 1) : 0;
    return moments;
  }

  ReplayShape shape_;
  DensitySchedule schedule_;
  std::string fit_;
  std::int64_t mode_;  // the parameter stages
  double first_ratio_, stage_ratio_;
  bool residual_;
  float gradient_weight_, memory_weight_;
  GatherStyle style_;
  std::vector<Segment> pieces_;
  std::vector<Worker> workers_;
  std::vector<float> before_;  // residuals of the own workers before the gradients were added, n x N; only with memory_weight
};

}  // namespace

SparsifierInfo describe_sidco() {
  SparsifierInfo info;
  info.name = "sidco";
  info.title = "SIDCo";
  info.paper = "Abdelmoniem et al., MLSys 2021 (arXiv 2101.10761)";
  info.rule = "Each worker selects |a| above a threshold from a fitted sparsity-inducing distribution, in one or more stages.";
  info.exchange = "all-gather of values (4k_i) and of indices (4k_i), sizes differ";
  info.cost = "two passes for norm and moments, shrinking passes for later stages, one selecting pass";
  info.parameters = {
      choice_parameter("fit", {"exponential", "pareto", "gamma_pareto"}, "distribution that is fitted (SIDCo-E, -P, -GP)"),
      integer_parameter(
          "stages", 1, ">= -3", Json{{"minimum", -3}},
          "stages of fitting; 0: as many as needed at 0.25 each; -1, -2, -3: adapted after every 5 selections, starting with one"),
      number_parameter("first_ratio", 0.25, "> 0 and < 1", Json{{"exclusiveMinimum", 0}, {"exclusiveMaximum", 1}},
                       "density of the first of several stages"),
      number_parameter("stage_ratio", 0.25, "> 0 and < 1", Json{{"exclusiveMinimum", 0}, {"exclusiveMaximum", 1}},
                       "density of each later stage within the one before, when stages = 0"),
      boolean_parameter("residual", true,
                        "error feedback; false: the authors' classes without it, whose gamma_pareto takes -B (ln d + ln Gamma(A)) as the "
                        "first threshold instead of the quantile"),
      number_parameter("gradient_weight", 1, ">= 0", Json{{"minimum", 0}}, "w of the residual w a + m e, which is 0 where a was sent"),
      number_parameter("memory_weight", 0, ">= 0", Json{{"minimum", 0}}, "m of the residual; it keeps a second state per worker"),
      scope_parameter(),
      bucket_bytes_parameter(),
      density_schedule_parameter(),
      fused_parameter(true, ""),
      index_bytes_parameter(4)};
  info.make = [](const ReplayShape& shape, const Json& values) { return std::make_unique<Sidco>(shape, values); };
  info.state_bytes = [](const ReplayShape& shape, const Json& values) -> std::uint64_t {
    if (!values.at("residual").get<bool>() || values.at("memory_weight").get<double>() == 0) return 0;
    return checked_multiply(
        checked_multiply(static_cast<std::uint64_t>(shape.own_workers()), static_cast<std::uint64_t>(shape.gradients), "sidco"), 4,
        "sidco");
  };
  return info;
}

}  // namespace sparscale::sim
