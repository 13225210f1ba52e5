// DGC: deep gradient compression.
// Paper:    Lin et al., ICLR 2018 (arXiv 1712.01887); as in synxlin/deep-gradient-compression.
// Rule:     momentum correction: u = m u + g, v += u (Nesterov: u = m (u + g), v += u + g); v is what is sparsified, and u and v become 0
//           where they are sent. Tensor by tensor, for those with more than one dimension; the others are all-reduced densely. The
//           threshold is the smallest of the top ceil(d samples) of a strided 1 % sample, |v| >= threshold. Up to 10 corrections: more than
//           1.3 of the wanted number: the exact top among these (resample) or a threshold 1.3 times as high; fewer than 0.8: 0.8 of the
//           threshold. The list is cut to the first ceil(d N_l) indices by position.
//           variant = grace (GRACE's DGC): tensors of any dimension; a sample of trunc(s N_l) places drawn with replacement, the threshold
//           its trunc(s d N_l)-th largest (both at least 1); up to 10 corrections: above 1.3 d N_l 1.3 times the threshold, below 0.7 d N_l
//           0.7 of it; all that pass are sent. Its clipping does not work in its authors' code and is refused.
// Exchange: all-gather of fp32 (fp16) values and int64 (int32) indices of unequal size, all-reduce of the dense tensors; grace: all-gather
// of
//           two sizes first, then both padded.
// Cost:     two passes of state, a sample, one pass per test.
//
// Dense tensors count as sent: they are in every worker's selection and in the union. Warm-up over w epochs: d^((e+1)/(w+1)) in epoch e.
// Clipping (clip_norm, off by default): before it is accumulated the gradient of a sparse tensor is scaled down to that L2 norm, by each
// worker for itself.
#include <algorithm>
#include <cmath>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "sim/sparsifiers/common.hpp"

namespace sparscale::sim {
namespace {

class Dgc : public Sparsifier {
 public:
  Dgc(const ReplayShape& shape, const Json& values)
      : shape_(shape),
        schedule_(shape, values),
        momentum_(static_cast<float>(values.at("momentum").get<double>())),
        nesterov_(values.at("nesterov").get<bool>()),
        masking_(values.at("momentum_masking").get<bool>()),
        resample_(values.at("resample").get<bool>()),
        half_(values.at("fp16_values").get<bool>()),
        sample_ratio_(values.at("sample_ratio").get<double>()),
        clip_norm_(values.at("clip_norm").get<double>()),
        grace_(values.at("variant") == "grace"),
        warmup_epochs_(values.at("warmup_epochs").get<std::int64_t>()),
        epoch_iterations_(values.at("iterations_per_epoch").get<std::int64_t>()),
        style_{values.at("index_bytes").get<std::int64_t>(), values.at("fused").get<bool>(), grace_ ? 16U : 0U, grace_} {
    if (grace_ && clip_norm_ != 0) throw InputError("clip_norm", "0 with variant grace", number_text(clip_norm_));
    if (warmup_epochs_ > 0 && epoch_iterations_ == 0)
      throw InputError("iterations_per_epoch", "a number >= 1 when warmup_epochs is given", "0");
    for (const traces::Layer& layer : shape.layers) {
      if (layer.size == 0) continue;
      const Segment piece{layer.offset, layer.offset + layer.size};
      (grace_ || layer.shape.size() > 1 ? pieces_ : dense_).push_back(piece);
    }
    clip_.resize(static_cast<std::size_t>(shape.workers));
    momentum_state_.assign(static_cast<std::size_t>(shape.own_workers()) * static_cast<std::size_t>(shape.gradients), 0.0F);
  }

  // Norm and coefficient in float32, as the authors' tensors are.
  bool sees_gradient(std::int64_t) const override { return clip_norm_ != 0; }
  void see_gradient(std::int64_t worker, std::span<const float> gradient, const kernels::Kernels& kernels) override {
    std::vector<float>& clip = clip_[static_cast<std::size_t>(worker)];
    clip.clear();
    for (const Segment& piece : pieces_) {
      const auto norm = static_cast<float>(
          kernels.l2_norm(gradient.subspan(static_cast<std::size_t>(piece.begin), static_cast<std::size_t>(piece.size()))));
      clip.push_back(std::min(1.0F, static_cast<float>(clip_norm_) / (norm + 1e-6F)));
    }
  }

  void accumulate(std::int64_t worker, Index first, std::span<const float> gradient, float scale, std::span<float> accumulator,
                  const kernels::Kernels&) override {
    if (clip_norm_ == 0) {
      add(worker, first, gradient, scale, accumulator);
      return;
    }
    // Between two sparse tensors nothing is clipped.
    const Index last = first + std::ssize(gradient);
    Index done = first;
    const auto add_until = [&](Index end, float factor) {
      end = std::min(end, last);
      if (end <= done) return;
      const auto from = static_cast<std::size_t>(done - first), size = static_cast<std::size_t>(end - done);
      add(worker, done, gradient.subspan(from, size), scale * factor, accumulator.subspan(from, size));
      done = end;
    };
    for (std::size_t p = 0; p < pieces_.size(); ++p) {
      add_until(pieces_[p].begin, 1);
      add_until(pieces_[p].end, clip_[static_cast<std::size_t>(worker)][p]);
    }
    add_until(last, 1);
  }

  void add(std::int64_t worker, Index first, std::span<const float> gradient, float scale, std::span<float> accumulator) {
    float* u = momentum_of(worker) + first;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const float g = scale * gradient[i];
      if (nesterov_) {
        u[i] = (u[i] + g) * momentum_;
        accumulator[i] += u[i] + g;
      } else {
        u[i] = momentum_ * u[i] + g;
        accumulator[i] += u[i];
      }
    }
  }

  Selection select(std::int64_t iteration, const AccumulatorView& accumulators, const kernels::Kernels& kernels) override {
    const Index N = shape_.gradients;
    const std::size_t n = static_cast<std::size_t>(shape_.workers);
    const double density = density_at(iteration);
    Selection selection;
    if (schedule_.given() || warmup_epochs_ > 0) selection.target_k = truncated(density, N);
    selection.selected.resize(n);
    std::vector<std::vector<Index>> counts(pieces_.size(), std::vector<Index>(n));
    WorkLog work(shape_.workers);
    work.all("accumulate", N, N, 0);
    work.all("accumulate", N, N, 0);  // two states
    accumulators.each_worker(
        shape_.workers,
        [&](std::int64_t at) {
          const auto worker = static_cast<std::size_t>(at);
          std::vector<Index>& own = selection.selected[worker];
          for (std::size_t p = 0; p < pieces_.size(); ++p) {
            const Segment& piece = pieces_[p];
            // One stream per tensor: the samples of one do not depend on the sizes of the others.
            Random random(stream_key(shape_.seed, "dgc", {static_cast<std::uint64_t>(iteration), worker, p}));
            std::vector<Index> chosen = grace_ ? select_in_grace(accumulators, kernels, at, piece, density, random, work)
                                               : select_in(accumulators, kernels, at, piece, density, random, work);
            counts[p][worker] = std::ssize(chosen);
            own.insert(own.end(), chosen.begin(), chosen.end());
          }
          float* u = momentum_of(at);
          accumulators.range(at, 0, N);  // u is complete
          if (masking_)
            for (const Index index : own) u[index] = 0;
          for (const Segment& piece : dense_) {
            std::fill(u + piece.begin, u + piece.end, 0.0F);  // momentum of dense tensors belongs to the optimizer
            for (Index index = piece.begin; index < piece.end; ++index) own.push_back(index);
          }
          std::sort(own.begin(), own.end());
        },
        [&](std::int64_t worker, WorkerShare& carry) {
          const auto at = static_cast<std::size_t>(worker);
          carry(selection.selected[at]);
          for (auto& of_piece : counts) carry(of_piece[at]);
          work.share(worker, carry);
        });
    selection.exchanged = kernels.unite(selection.selected, N);
    std::vector<Index> sent(n, 0);
    for (const auto& sizes : counts)
      for (std::size_t worker = 0; worker < n; ++worker) sent[worker] += sizes[worker];
    work.each_of("gather", sent, 0);
    work.each_of("zero", sent, 0);
    append_entry_gathers(selection.exchange, counts, pieces_, style_);
    Index dense_elements = 0;
    for (const Segment& piece : dense_) {
      dense_elements += piece.size();
      if (!style_.fused) selection.exchange.push_back(all_reduce("gradient", "float32", 4 * static_cast<std::uint64_t>(piece.size())));
    }
    if (style_.fused && dense_elements > 0)
      selection.exchange.push_back(all_reduce("gradient", "float32", 4 * static_cast<std::uint64_t>(dense_elements)));
    if (half_)
      for (CollectiveCall& call : selection.exchange)
        if (call.dtype == "float32") {
          call.dtype = "float16";
          for (std::uint64_t& bytes : call.bytes) bytes /= 2;
        }
    work.all("unite", sum_of(sent), std::ssize(selection.exchanged) - dense_elements, selection.exchange.size());
    selection.contribution = Contribution::at_own_selection;
    selection.details["dense_elements"] = dense_elements;
    selection.work = work.take();
    return selection;
  }

 private:
  float* momentum_of(std::int64_t worker) { return momentum_state_.data() + (worker - shape_.own_begin) * shape_.gradients; }

  double density_at(std::int64_t iteration) const {
    const double density = schedule_.density(iteration);
    if (warmup_epochs_ == 0) return density;
    const std::int64_t epoch = iteration / epoch_iterations_;
    if (epoch >= warmup_epochs_) return density;
    return std::max(density, std::pow(density, static_cast<double>(epoch + 1) / static_cast<double>(warmup_epochs_ + 1)));
  }

  // Every stride-th element of a tensor from a random start; `number` is what the authors count as their number (the last one may be
  // extra).
  std::vector<float> sample(std::span<const float> values, double density, Random& random, Index& number) const {
    const Index size = std::ssize(values), enough = static_cast<Index>(std::ceil(2 / density));
    const Index wanted = std::max(static_cast<Index>(std::ceil(sample_ratio_ * static_cast<double>(size))), enough);
    Index stride = 1;
    if (sample_ratio_ < 1 && size > enough) {
      stride = static_cast<Index>(std::ceil(static_cast<double>(size) / static_cast<double>(wanted) / 32)) * 32 + 1;
      while (stride > 1 && size / stride < wanted) stride -= 8;  // 1 + a multiple of 8
    }
    number = size / stride;
    std::vector<float> samples;
    for (Index index = stride > 1 ? static_cast<Index>(random.below(static_cast<std::uint64_t>(stride))) : 0; index < size; index += stride)
      samples.push_back(std::abs(values[static_cast<std::size_t>(index)]));
    return samples;
  }

  std::vector<Index> select_in(const AccumulatorView& accumulators, const kernels::Kernels& kernels, std::int64_t worker,
                               const Segment& piece, double density, Random& random, WorkLog& work) const {
    const std::span<const float> values = accumulators.range(worker, piece.begin, piece.end);
    const Index wanted = static_cast<Index>(std::ceil(density * static_cast<double>(piece.size())));
    Index number = 0;
    std::vector<float> samples = sample(values, density, random, number);
    const Index top = std::min<Index>(std::ssize(samples), static_cast<Index>(std::ceil(density * static_cast<double>(number))));
    std::nth_element(samples.begin(), samples.begin() + (top - 1), samples.end(), std::greater<>());
    float threshold = samples[static_cast<std::size_t>(top - 1)];
    work.one(worker, "gather", std::ssize(samples), std::ssize(samples), 0);
    work.one(worker, "topk", std::ssize(samples), top, 0);
    std::vector<Index> chosen;
    const auto mask = [&] {
      chosen.clear();
      kernels.threshold_select(values, threshold, piece.begin, chosen);
      work.one(worker, "threshold_select", piece.size(), std::ssize(chosen), 0);
    };
    mask();
    for (int loop = 0; loop < 10 && number < piece.size(); ++loop) {
      const double count = static_cast<double>(chosen.size());
      if (count > 1.3 * static_cast<double>(wanted)) {
        if (resample_) {
          keep_largest(values, piece.begin, wanted, kernels, chosen);
          work.one(worker, "topk", static_cast<Index>(count), wanted, 0);
          break;
        }
        threshold *= 1.3F;
      } else if (count < 0.8 * static_cast<double>(wanted)) {
        threshold *= 0.8F;
      } else {
        break;
      }
      mask();
    }
    if (std::ssize(chosen) > wanted) chosen.resize(static_cast<std::size_t>(wanted));
    return chosen;
  }

  std::vector<Index> select_in_grace(const AccumulatorView& accumulators, const kernels::Kernels& kernels, std::int64_t worker,
                                     const Segment& piece, double density, Random& random, WorkLog& work) const {
    const std::span<const float> values = accumulators.range(worker, piece.begin, piece.end);
    const double size = static_cast<double>(piece.size()), wanted = density * size;
    std::vector<float> samples(static_cast<std::size_t>(std::max(1.0, std::trunc(sample_ratio_ * size))));
    for (float& sampled : samples) sampled = std::abs(values[random.below(static_cast<std::uint64_t>(piece.size()))]);
    const Index top = std::min<Index>(std::ssize(samples), static_cast<Index>(std::max(1.0, std::trunc(sample_ratio_ * density * size))));
    std::nth_element(samples.begin(), samples.begin() + (top - 1), samples.end(), std::greater<>());
    float threshold = samples[static_cast<std::size_t>(top - 1)];
    work.one(worker, "gather", std::ssize(samples), std::ssize(samples), 0);
    work.one(worker, "topk", std::ssize(samples), top, 0);
    std::vector<Index> chosen;
    for (int loop = 0;; ++loop) {
      chosen.clear();
      kernels.threshold_select(values, threshold, piece.begin, chosen);
      work.one(worker, "threshold_select", piece.size(), std::ssize(chosen), 0);
      const double count = static_cast<double>(chosen.size());
      if (loop == 10 || (count <= 1.3 * wanted && count >= 0.7 * wanted)) return chosen;
      threshold *= count > wanted ? 1.3F : 0.7F;
    }
  }

  static void keep_largest(std::span<const float> values, Index first, Index wanted, const kernels::Kernels& kernels,
                           std::vector<Index>& chosen) {
    std::vector<float> candidates(chosen.size());
    kernels.gather(values, chosen, first, candidates);
    std::vector<Index> places;
    kernels.topk(candidates, wanted, 0, places);
    for (Index& place : places) place = chosen[static_cast<std::size_t>(place)];
    chosen = std::move(places);
  }

  ReplayShape shape_;
  DensitySchedule schedule_;
  float momentum_;
  bool nesterov_, masking_, resample_, half_;
  double sample_ratio_, clip_norm_;
  bool grace_;
  std::int64_t warmup_epochs_, epoch_iterations_;
  GatherStyle style_;
  std::vector<Segment> pieces_, dense_;
  std::vector<std::vector<float>> clip_;  // per worker, one factor per sparse tensor
  std::vector<float> momentum_state_;     // u of the own workers, n x N; v is the accumulator
};

}  // namespace

SparsifierInfo describe_dgc() {
  SparsifierInfo info;
  info.name = "dgc";
  info.title = "Deep gradient compression";
  info.paper = "Lin et al., ICLR 2018 (arXiv 1712.01887)";
  info.rule = "Tensor by tensor, |v| at or above a threshold from a sample; v accumulates momentum-corrected gradients.";
  info.exchange = "all-gather of values (4k_i) and of indices (8k_i), sizes differ; all-reduce of one-dimensional tensors";
  info.cost = "two passes of state, a 1 % sample, one pass per test";
  info.parameters = {
      choice_parameter(
          "variant", {"dgc", "grace"},
          "the authors' code, or GRACE's: tensors of any dimension, a sample drawn with replacement, no resampling and no cut"),
      number_parameter("momentum", 0.9, ">= 0 and < 1", Json{{"minimum", 0}, {"exclusiveMaximum", 1}}, "m of the momentum correction"),
      boolean_parameter("nesterov", false, "Nesterov's form of the correction"),
      boolean_parameter("momentum_masking", true, "u becomes 0 where entries are sent"),
      number_parameter("sample_ratio", 0.01, ">= 0.01 and <= 1", Json{{"minimum", 0.01}, {"maximum", 1}},
                       "fraction of a tensor that is sampled"),
      number_parameter(
          "clip_norm", 0, ">= 0", Json{{"minimum", 0}},
          "largest L2 norm of a sparse tensor's gradient; what is above is scaled down before it is accumulated; 0: no clipping"),
      boolean_parameter("resample", true, "exact top among too many, instead of a higher threshold (dgc)"),
      integer_parameter("warmup_epochs", 0, ">= 0", Json{{"minimum", 0}},
                        "epochs w over which the density falls to d (the authors' wm5: 5)"),
      integer_parameter("iterations_per_epoch", 0, ">= 0", Json{{"minimum", 0}}, "needed with warmup_epochs"),
      density_schedule_parameter(),
      boolean_parameter("fp16_values", false, "values, also those of dense tensors, travel in half precision"),
      fused_parameter(true, " (Horovod's tensor fusion)"),
      index_bytes_parameter()};
  info.make = [](const ReplayShape& shape, const Json& values) { return std::make_unique<Dgc>(shape, values); };
  info.state_bytes = [](const ReplayShape& shape, const Json&) {
    return checked_multiply(
        checked_multiply(static_cast<std::uint64_t>(shape.own_workers()), static_cast<std::uint64_t>(shape.gradients), "dgc"), 4, "dgc");
  };
  return info;
}

}  // namespace sparscale::sim
