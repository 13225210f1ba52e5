// Gaussian-k.
// Paper:    Shi et al., arXiv 1911.08772; as in hclhkbu/GaussianK-SGD (variant gk), kljp/GaussianK-SGD (gkfork), Shigangli/Ok-Topk (ok).
// Rule:     threshold mean + |z| sd of the signed a, z the d/2 quantile of the normal distribution; |a| > threshold, strictly. Corrections:
//           gk: at most 3 tests; fewer than 2k/3 halve it, more than 4k/3 multiply it by 1.5. The list of the last test is sent, a
//           threshold changed after it is not used. gkfork: at most 100 tests over a shrinking set of candidates; too few: they are taken,
//           the others stay candidates at a tenth of the threshold; too many: they alone stay candidates at twice the threshold. ok: at
//           most 20 steps of 2 %, in one direction, while the count is outside [floor(3k/4), floor(5k/4)]. k = max(1, trunc(d N)).
// Exchange: all-gather of fp32 values and of int32 indices (ok: of int32 counts first). Residuals become 0 at the own selection.
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
        ok_(values.at("variant") == "ok"),
        fork_(values.at("variant") == "gkfork"),
        style_{values.at("index_bytes").get<std::int64_t>(), values.at("fused").get<bool>(), 0, false},
        pieces_(segments_of(shape, values)) {}

  Accumulation accumulation() const override { return Accumulation::plain; }

  Selection select(std::int64_t iteration, const AccumulatorView& accumulators, const kernels::Kernels& kernels) override {
    const Index N = shape_.gradients;
    const std::size_t n = static_cast<std::size_t>(shape_.workers);
    const double density = schedule_.density(iteration);
    // d / 2 = 1/2 gives z = 0; d = 1 selects what lies above the mean.
    const double z = -boost::math::quantile(boost::math::normal(), density / 2);
    Selection selection;
    selection.target_k = schedule_.target_k(iteration);
    selection.selected.resize(n);
    std::vector<std::vector<Index>> counts(pieces_.size(), std::vector<Index>(n));
    WorkLog work(shape_.workers);
    work.all("accumulate", N, N, 0);
    if (pieces_.size() == 1) selection.threshold.resize(n);
    accumulators.each_worker(
        shape_.workers,
        [&](std::int64_t at) {
          const auto worker = static_cast<std::size_t>(at);
          for (std::size_t p = 0; p < pieces_.size(); ++p) {
            const Segment& piece = pieces_[p];
            const Index k = std::max<Index>(1, truncated(density, piece.size()));
            const double first = first_threshold(accumulators.range(at, piece.begin, piece.end), z);
            work.one(at, "l2_norm", piece.size(), piece.size(), 0);  // the moments: one pass
            std::vector<Index>& own = selection.selected[worker];
            const Index before = std::ssize(own);
            double used = first;
            if (fork_) {
              used = select_from_candidates(accumulators, kernels, at, piece, k, first, own, work);
            } else {
              const auto count = [&](double threshold) {
                const Index found = count_above(accumulators, kernels, at, piece.begin, piece.end, static_cast<float>(threshold));
                work.one(at, "count", piece.size(), found, 0);
                return found;
              };
              used = ok_ ? stepped_threshold(count, k, first) : halved_threshold(count, k, first);
              select_above(accumulators, kernels, at, piece.begin, piece.end, static_cast<float>(used), own);
              work.one(at, "threshold_select", piece.size(), std::ssize(own) - before, 0);
            }
            counts[p][worker] = std::ssize(own) - before;
            if (pieces_.size() == 1) selection.threshold[worker] = static_cast<float>(used);
          }
        },
        [&](std::int64_t worker, WorkerShare& carry) {
          const auto at = static_cast<std::size_t>(worker);
          carry(selection.selected[at]);
          for (auto& of_piece : counts) carry(of_piece[at]);
          if (!selection.threshold.empty()) carry(selection.threshold[at]);
          work.share(worker, carry);
        });
    selection.exchanged = kernels.unite(selection.selected, N);
    const std::vector<Index> all = counts_of(selection.selected);
    work.each_of("gather", all, 0);
    work.each_of("zero", all, 0);
    if (ok_) selection.exchange.push_back(all_gather("counts", "int32", 4 * (style_.fused ? 1 : pieces_.size())));
    append_entry_gathers(selection.exchange, counts, pieces_, style_);
    work.all("unite", sum_of(all), std::ssize(selection.exchanged), selection.exchange.size());
    selection.contribution = Contribution::at_own_selection;
    selection.work = work.take();
    return selection;
  }

 private:
  template <class Count>
  static double halved_threshold(const Count& count, Index k, double threshold) {
    double used = threshold;
    for (int test = 0; test < 3; ++test) {
      used = threshold;
      const Index found = count(used);
      if (too_few(found, k))
        threshold *= 0.5;
      else if (too_many(found, k))
        threshold *= 1.5;
      else
        break;
    }
    return used;
  }

  // The last of the 20 steps is used, though it is not tested again.
  template <class Count>
  static double stepped_threshold(const Count& count, Index k, double threshold) {
    const Index low = 3 * k / 4, high = 5 * k / 4;
    Index found = count(threshold);
    const bool lower = found<low, raise = found> high;
    for (int step = 0; step < 20 && ((lower && found < low) || (raise && found > high)); ++step) {
      threshold = lower ? threshold / 1.02 : threshold * 1.02;
      found = count(threshold);
    }
    return threshold;
  }

  // Appends the selected indices, ascending; returns the last threshold that was tested.
  static double select_from_candidates(const AccumulatorView& accumulators, const kernels::Kernels& kernels, std::int64_t worker,
                                       const Segment& piece, Index k, double threshold, std::vector<Index>& own, WorkLog& work) {
    const std::span<const float> values = accumulators.range(worker, piece.begin, piece.end);
    const auto magnitude = [&](Index index) { return std::abs(values[static_cast<std::size_t>(index - piece.begin)]); };
    std::vector<Index> taken, candidates;
    bool all = true, last_large = false;  // all: the candidates are the whole piece, which is not written out
    double used = threshold;
    for (int test = 0; test < 100; ++test) {
      used = threshold;
      const float limit = static_cast<float>(threshold);
      std::vector<Index> above;
      if (all)
        select_above(accumulators, kernels, worker, piece.begin, piece.end, limit, above);
      else
        std::copy_if(candidates.begin(), candidates.end(), std::back_inserter(above), [&](Index i) { return magnitude(i) > limit; });
      work.one(worker, "threshold_select", all ? piece.size() : std::ssize(candidates), std::ssize(above), 0);
      const Index together = std::ssize(taken) + std::ssize(above);
      last_large = too_many(together, k);
      if (last_large) {
        candidates = std::move(above);
        all = false;
        threshold *= 2;
        continue;
      }
      taken.insert(taken.end(), above.begin(), above.end());
      if (!too_few(together, k)) break;
      if (all && !above.empty()) {
        for (Index index = piece.begin; index < piece.end; ++index)
          if (!(magnitude(index) > limit)) candidates.push_back(index);
        all = false;
      } else if (!all) {
        std::erase_if(candidates, [&](Index i) { return magnitude(i) > limit; });
      }
      threshold *= 0.1;
    }
    if (last_large && too_few(std::ssize(taken), k)) taken.insert(taken.end(), candidates.begin(), candidates.end());
    std::sort(taken.begin(), taken.end());
    own.insert(own.end(), taken.begin(), taken.end());
    return used;
  }

  static bool too_few(Index count, Index k) { return static_cast<double>(count) < 2 * static_cast<double>(k) / 3; }
  static bool too_many(Index count, Index k) { return static_cast<double>(count) > 4 * static_cast<double>(k) / 3; }

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
  bool ok_, fork_;
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
  info.cost =
      "one pass for the moments, up to 3 (ok: 21) counting passes, one selecting pass; gkfork: up to 100 over fewer and fewer candidates";
  info.parameters = {choice_parameter("variant", {"gk", "gkfork", "ok"},
                                      "corrections: GaussianK-SGD's three coarse tests, its fork's up to 100 over shrinking candidates, or "
                                      "Ok-Topk's twenty fine steps"),
                     scope_parameter(),
                     bucket_bytes_parameter(),
                     fused_parameter(true, ""),
                     density_schedule_parameter(" (the authors' code: 0.015625, 0.004, 0.001 in the first epochs, never below 0.001)"),
                     index_bytes_parameter(4)};
  info.make = [](const ReplayShape& shape, const Json& values) { return std::make_unique<GaussianK>(shape, values); };
  return info;
}

}  // namespace sparscale::sim
