// SAGE.
// Paper:    Yoon, Oh, J. Supercomputing 2023; as in kljp/exdyna's (2023a: kljp/sage's) SAGEReducer.
// Rule:     each worker has a threshold of its own, rescaled in every iteration by alpha (ratio of the means of |a| over a random
//           sample), by beta (examined density against d) and by gamma (+-5 % when the examined density is off by more than 10 times).
//           Float32 after the first iteration, products rounded one by one.
// Exchange: all-gather of one count, all-gather of the indices padded to the largest count, sort and unique, all-reduce of the values at
//           the union. Residuals become 0 at the union. 2023a: as hard_threshold's.
// Cost:     two scans of N and about 400 single reads on every worker; every worker's own threshold spreads the counts.
//
// A sample of zeros makes alpha 0, then infinite, and the threshold NaN for ever: the authors' code does that, and faithful = true does it
// too. By default alpha is 1 in an iteration whose sample (or the one before) is all zero, the last mean that was not zero is kept, and the
// record counts these workers in sage/clamped.
#include <cmath>

#include "sim/sparsifiers/common.hpp"
#include "sim/sparsifiers/python_random.hpp"

namespace sparscale::sim {
namespace {

class Sage : public Sparsifier {
 public:
  Sage(const ReplayShape& shape, const Json& values)
      : shape_(shape),
        schedule_(shape, values),
        index_bytes_(index_bytes_by_generation(values)),
        old_(values.at("generation") == "2023a"),
        faithful_(values.at("faithful").get<bool>()),
        first_threshold_(values.at("threshold").get<double>()) {
    if (first_threshold_ == 0) {
      schedule_.require_k("sage without a given first threshold");
      first_threshold_ = 1 / (2 * std::sqrt(schedule_.model_k(0)));
    }
    // Slovin's formula with a margin of 5 %.
    const double N = static_cast<double>(shape.gradients);
    samples_ = static_cast<Index>(N / (1 + N * 0.05 * 0.05));
    if (samples_ < 1) samples_ = 1;
    for (std::int64_t worker = 0; worker < shape.workers; ++worker)
      workers_.push_back({PythonRandom(shape.seed + static_cast<std::uint64_t>(worker)), first_threshold_, 0});
    layers_ = layer_segments(shape);
  }

  Accumulation accumulation() const override { return Accumulation::plain; }

  Selection select(std::int64_t iteration, const AccumulatorView& accumulators, const kernels::Kernels& kernels) override {
    const Index N = shape_.gradients;
    const double density = schedule_.density(iteration);
    Selection selection;
    selection.target_k = schedule_.target_k(iteration);
    selection.selected.resize(static_cast<std::size_t>(shape_.workers));
    const auto n = static_cast<std::size_t>(shape_.workers);
    std::vector<double> alphas(n), betas(n), gammas(n), means(n), examined_densities(n);
    std::vector<Index> examined_counts(n), clamped(n);
    if (iteration > 0) selection.threshold.resize(n);
    accumulators.each_worker(
        shape_.workers,
        [&](std::int64_t worker) {
          const auto at = static_cast<std::size_t>(worker);
          Worker& own = workers_[at];
          const float mean = sample_mean(own.random, accumulators, worker);
          float alpha = 1;
          double beta = 1, gamma = 1, examined = 0;
          if (iteration > 0) {
            alpha = mean / own.last_mean;
            if (!faithful_ && (mean == 0 || own.last_mean == 0)) {
              alpha = 1;
              clamped[at] = 1;
            }
            const float scaled = static_cast<float>(own.threshold) * alpha;
            examined_counts[at] = count_at_least(accumulators, kernels, worker, 0, N, scaled);
            examined = static_cast<double>(examined_counts[at]) / static_cast<double>(N);
            beta = 2 / (1 + std::exp(density - examined));
            const double ratio = examined / density;
            gamma = ratio < 0.1 ? 0.95 : ratio > 10 ? 1.05 : 1;
            own.threshold = scaled * static_cast<float>(beta) * static_cast<float>(gamma);
            selection.threshold[at] = own.threshold;
          }
          if (faithful_ || mean != 0) own.last_mean = mean;
          select_at_least(accumulators, kernels, worker, 0, N, static_cast<float>(own.threshold), selection.selected[at]);
          alphas[at] = alpha;
          betas[at] = beta;
          gammas[at] = gamma;
          means[at] = mean;
          examined_densities[at] = examined;
        },
        [&](std::int64_t worker, WorkerShare& carry) {
          const auto at = static_cast<std::size_t>(worker);
          carry(selection.selected[at]);
          if (iteration > 0) carry(selection.threshold[at]);
          for (auto* list : {&alphas, &betas, &gammas, &means, &examined_densities}) carry((*list)[at]);
          carry(examined_counts[at]);
          carry(clamped[at]);
        });
    if (iteration == 0) selection.threshold = {first_threshold_};
    selection.details["sage"] = {{"alpha", alphas},
                                 {"beta", betas},
                                 {"gamma", gammas},
                                 {"savg", means},
                                 {"density_exam", examined_densities},
                                 {"samp_sz", samples_},
                                 {"clamped", sum_of(clamped)}};
    WorkLog work(shape_.workers);
    work.all("accumulate", N, N, 0);
    work.all("gather", samples_, samples_, 0);
    if (iteration > 0) work.each("count", N, examined_counts, 0);
    work.each("threshold_select", N, counts_of(selection.selected), 0);
    finish_united_or_gathered(selection, work, shape_, kernels, old_, index_bytes_);
    return selection;
  }

 private:
  struct Worker {
    PythonRandom random;
    double threshold;
    float last_mean;
  };

  // Mean of |a| over samples drawn with replacement, summed in float32 in the order of drawing.
  float sample_mean(PythonRandom& random, const AccumulatorView& accumulators, std::int64_t worker) const {
    std::vector<Index> indices;
    for (Index sample = 0; sample < samples_; ++sample) {
      if (old_) {
        const Segment& layer = layers_[random.below(layers_.size())];
        indices.push_back(layer.begin + static_cast<Index>(random.below(static_cast<std::uint64_t>(layer.size()))));
      } else {
        indices.push_back(static_cast<Index>(random.below(static_cast<std::uint64_t>(shape_.gradients))));
      }
    }
    std::vector<float> values(indices.size());
    accumulators.gather(worker, indices, values);
    float sum = 0;
    for (const float value : values) sum += std::abs(value);
    return sum / static_cast<float>(samples_);
  }

  ReplayShape shape_;
  DensitySchedule schedule_;
  std::int64_t index_bytes_;
  bool old_, faithful_;
  double first_threshold_;
  Index samples_ = 0;
  std::vector<Worker> workers_;
  std::vector<Segment> layers_;
};

}  // namespace

SparsifierInfo describe_sage() {
  SparsifierInfo info;
  info.name = "sage";
  info.title = "SAGE";
  info.paper = "Yoon, Oh, J. Supercomputing 2023";
  info.rule = "Each worker selects |a| >= its own threshold, rescaled every iteration from a sample mean and the examined density.";
  info.exchange = "all-gather of counts (8), padded all-gather of indices (8m), all-reduce of values at the union (4U)";
  info.cost = "two scans of N and about 400 single reads on every worker";
  info.parameters = {
      number_parameter("threshold", 0, ">= 0", Json{{"minimum", 0}}, "first threshold; 0: 1/(2 sqrt(k))"),
      density_schedule_parameter("; beta and gamma steer towards it"),
      boolean_parameter("faithful", false, "let a sample of zeros drive the threshold to NaN, as the authors' code does"),
      generation_parameter(),
      index_bytes_by_generation_parameter(),
  };
  info.any_order = [](const Json&) { return true; };
  info.make = [](const ReplayShape& shape, const Json& values) { return std::make_unique<Sage>(shape, values); };
  return info;
}

}  // namespace sparscale::sim
