// Gaussian-k.
// Paper:    Shi et al., arXiv 1911.08772; as in hclhkbu/GaussianK-SGD (variant gk) and Shigangli/Ok-Topk (variant ok).
// Rule:     threshold mean + |z| sd of the signed a, z the d/2 quantile of the normal distribution; |a| > threshold, strictly. A few tests
// follow:
//           gk: at most 3; fewer than 2k/3 halve it, more than 4k/3 multiply it by 1.5, the list of the last test is sent and a threshold
//           changed after it is not used. ok: at most 20; outside [3k/4, 5k/4] steps of 2 %. k = max(1, trunc(d N)).
// Exchange: gk: all-gather of fp32 values and of int32 indices. ok: all-gather of int32 counts first. Residuals become 0 at the own
// selection.
//           (gk's combination cuts the joined list into n equal slices, which drops entries: that spoils the update, not what is sent.)
// Cost:     one pass for the moments and one for each test.
#include <algorithm>
#include <boost/math/distributions/normal.hpp>
#include <cmath>

#include "sim/sparsifiers/common.hpp"

namespace sparscale::sim {
namespace {

class GaussianK : public Sparsifier {
 public:
  GaussianK(const ReplayShape& shape, const Json& values)
      : shape_(shape),
        schedule_(shape, values),
        scheduled_(!values.at("density_schedule").empty()),
        ok_(values.at("variant") == "ok"),
        style_{values.at("index_bytes").get<std::int64_t>(), values.at("fused").get<bool>(), 0, false},
        pieces_(segments_of(shape, values)) {}

  Selection select(std::int64_t iteration, const AccumulatorView& accumulators, const kernels::Kernels& kernels) override {
    const Index N = shape_.gradients;
    const std::size_t n = static_cast<std::size_t>(shape_.workers);
    const double density = schedule_.density(iteration);
    // d / 2 = 1/2 gives z = 0; d = 1 selects what lies above the mean.
    const double z = -boost::math::quantile(boost::math::normal(), density / 2);
    Selection selection;
    if (scheduled_) selection.target_k = truncated(density, N);
    selection.selected.resize(n);
    std::vector<std::vector<Index>> counts(pieces_.size(), std::vector<Index>(n));
    WorkLog work(shape_.workers);
    work.all("accumulate", N, N, 0);
    for (std::size_t worker = 0; worker < n; ++worker)
      for (std::size_t p = 0; p < pieces_.size(); ++p) {
        const Segment& piece = pieces_[p];
        const auto at = static_cast<std::int64_t>(worker);
        const double k = static_cast<double>(std::max<Index>(1, truncated(density, piece.size())));
        double threshold = first_threshold(accumulators.range(at, piece.begin, piece.end), z);
        work.one(at, "l2_norm", piece.size(), piece.size(), 0);  // the moments: one pass
        const int tests = ok_ ? 20 : 3;
        // floor(3k/4) and floor(5k/4) are the integer divisions of the ok variant.
        const double low = ok_ ? std::floor(3 * k / 4) : 2 * k / 3, high = ok_ ? std::floor(5 * k / 4) : 4 * k / 3;
        float used = static_cast<float>(threshold);
        for (int test = 0; test < tests; ++test) {
          used = static_cast<float>(threshold);
          const Index count = count_above(accumulators, kernels, at, piece.begin, piece.end, used);
          work.one(at, "count", piece.size(), count, 0);
          if (static_cast<double>(count) < low)
            threshold = ok_ ? threshold / 1.02 : threshold * 0.5;
          else if (static_cast<double>(count) > high)
            threshold *= ok_ ? 1.02 : 1.5;
          else
            break;
        }
        std::vector<Index>& own = selection.selected[worker];
        const Index before = std::ssize(own);
        select_above(accumulators, kernels, at, piece.begin, piece.end, used, own);
        counts[p][worker] = std::ssize(own) - before;
        work.one(at, "threshold_select", piece.size(), counts[p][worker], 0);
        if (pieces_.size() == 1) selection.threshold.push_back(used);
      }
    selection.exchanged = kernels.unite(selection.selected, N);
    const std::vector<Index> all = counts_of(selection.selected);
    work.each_of("gather", all, 0);
    work.each_of("zero", all, 0);
    if (ok_) selection.exchange.push_back(all_gather("counts", "int32", 4 * (style_.fused ? 1 : pieces_.size())));
    append_entry_gathers(selection.exchange, counts, style_);
    work.all("unite", sum_of(all), std::ssize(selection.exchanged), selection.exchange.size());
    selection.contribution = Contribution::at_own_selection;
    selection.work = work.take();
    return selection;
  }

 private:
  static double first_threshold(std::span<const float> values, double z) {
    const double size = static_cast<double>(values.size());
    double sum = 0;
    for (const float value : values) sum += value;
    const double mean = sum / size;
    double squares = 0;
    for (const float value : values) squares += (value - mean) * (value - mean);
    return mean + z * (values.size() > 1 ? std::sqrt(squares / (size - 1)) : 0);
  }

  ReplayShape shape_;
  DensitySchedule schedule_;
  bool scheduled_, ok_;
  GatherStyle style_;
  std::vector<Segment> pieces_;
};

}  // namespace

SparsifierInfo describe_gaussiank() {
  SparsifierInfo info;
  info.name = "gaussiank";
  info.title = "Gaussian-k";
  info.paper = "Shi et al., arXiv 1911.08772";
  info.rule = "Each worker selects |a| above a threshold from a normal fit of a, corrected by a few counts.";
  info.exchange = "all-gather of values (4k_i) and of indices (4k_i), sizes differ";
  info.cost = "one pass for the moments, up to 3 (20) counting passes, one selecting pass";
  info.parameters = {choice_parameter("variant", {"gk", "ok"}, "GaussianK-SGD's three coarse tests, or Ok-Topk's twenty fine ones"),
                     scope_parameter(),
                     bucket_bytes_parameter(),
                     fused_parameter(true, ""),
                     density_schedule_parameter(" (the authors' code: 0.015625, 0.004, 0.001 in the first epochs, never below 0.001)"),
                     index_bytes_parameter(4)};
  info.make = [](const ReplayShape& shape, const Json& values) { return std::make_unique<GaussianK>(shape, values); };
  return info;
}

}  // namespace sparscale::sim
