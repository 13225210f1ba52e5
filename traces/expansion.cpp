#include "traces/expansion.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/random.hpp"
#include "traces/row_activity.hpp"

namespace sparscale::traces {
namespace {

// Positions around t that samples come from: enough of them, and the mean gradient has hardly moved.
constexpr std::int64_t window_positions = 31;
constexpr std::int64_t least_shift = 8, largest_shift = 64;   // ranks
constexpr std::int64_t shift_share = 16;                      // and at most this part of a layer
constexpr std::int64_t bin_elements = 64, largest_bins = 16;  // of the energy correction
// What was compared with captured workers.
constexpr std::int64_t validated_ratio = 16, validated_workers = 4;

std::uint64_t u64(std::int64_t value) { return static_cast<std::uint64_t>(value); }
std::size_t size(std::int64_t value) { return static_cast<std::size_t>(value); }

// Sources whose gradients lie ready: a piece is a part of one.
class ReadySource : public GradientSource {
 public:
  bool by_pieces() const override { return true; }
  bool lies_ready() const override { return true; }
};

class CapturedSource final : public ReadySource {
 public:
  CapturedSource(Trace trace, std::int64_t workers) : trace_(std::move(trace)), workers_(workers) {}
  std::unique_ptr<GradientSource> clone() const override { return std::make_unique<CapturedSource>(*this); }
  std::int64_t workers() const override { return workers_; }
  std::int64_t gradients() const override { return trace_.gradients(); }
  std::int64_t position(std::int64_t iteration) const override { return iteration % trace_.iterations(); }
  std::span<const float> gradient(std::int64_t iteration, std::int64_t worker) override {
    return trace_.gradient(position(iteration), worker);
  }

 private:
  Trace trace_;
  std::int64_t workers_;
};

struct Sample {
  std::int64_t position = 0, worker = 0;
};

// Captured (position, worker) pairs for virtual workers: no two workers have the same one in an iteration, and none has one twice before
// it has had all of them, since the same noise twice would add up in its residual. A pair is the sum (in each of the two numbers, modulo
// its range) of one that belongs to the worker and one that belongs to the iteration; both go through all pairs in random order.
class Pool {
 public:
  Pool(std::int64_t positions, std::int64_t captured, std::int64_t workers, std::uint64_t seed)
      : positions_(positions), captured_(captured), seed_(seed) {
    span_ = std::min(positions, std::max(window_positions, (2 * workers + captured - 1) / captured));
  }

  /// The sample number `index` of `iteration`; `others`: none of the iteration's own position (where the captured workers stand).
  Sample draw(std::int64_t iteration, std::int64_t index, bool others) {
    const std::int64_t own = iteration % positions_, pairs = span_ * captured_;
    const std::int64_t first = std::clamp<std::int64_t>(own - span_ / 2, 0, positions_ - span_);
    others = others && span_ > 1;
    const std::int64_t available = others ? pairs - captured_ : pairs;
    // More workers than samples: a further round of all of them.
    const Orders& orders = orders_of(iteration / pairs, index / available);
    const std::int64_t of_iteration = orders.of_iteration[size(iteration % pairs)];
    std::int64_t place = index % available;
    // What the worker's own pair must be for a sample at the iteration's own position. The places of these, r of them among those handed
    // out, are exchanged with those that are left over.
    const std::int64_t avoided = others ? (own % span_ - of_iteration / captured_ + span_) % span_ : -1;
    if (others && orders.of_worker[size(place)] / captured_ == avoided) {
      std::int64_t before = 0;
      for (std::int64_t w = 0; w < captured_; ++w)
        if (orders.place_of[size(avoided * captured_ + w)] < place) ++before;
      place = available;
      while (orders.of_worker[size(place)] / captured_ == avoided || before-- > 0) ++place;
    }
    const std::int64_t of_worker = orders.of_worker[size(place)];
    // Positions count modulo the span, so that they keep their numbers while the span moves over the window.
    const std::int64_t modulo = (of_worker / captured_ + of_iteration / captured_) % span_;
    return {first + (modulo - first % span_ + span_) % span_, (of_worker + of_iteration) % captured_};
  }

 private:
  struct Orders {
    std::vector<std::int64_t> of_worker, place_of, of_iteration;
  };

  const Orders& orders_of(std::int64_t cycle, std::int64_t round) {
    if (orders_.size() > kept_orders) orders_.clear();
    Orders& orders = orders_[{cycle, round}];
    if (orders.of_worker.empty()) {
      const std::int64_t pairs = span_ * captured_;
      Random random(stream_key(seed_, "expansion samples", {u64(cycle), u64(round)}));
      orders.of_worker = random_permutation(pairs, random);
      orders.of_iteration = random_permutation(pairs, random);
      orders.place_of.resize(size(pairs));
      for (std::int64_t i = 0; i < pairs; ++i) orders.place_of[size(orders.of_worker[size(i)])] = i;
    }
    return orders;
  }

  std::int64_t positions_, captured_, span_ = 0;
  std::uint64_t seed_;
  static constexpr std::size_t kept_orders = 32;
  std::map<std::pair<std::int64_t, std::int64_t>, Orders> orders_;
};

class BootSource final : public ReadySource {
 public:
  BootSource(Trace trace, std::int64_t captured, std::int64_t workers, std::uint64_t seed)
      : trace_(std::move(trace)), workers_(workers), pool_(trace_.iterations(), captured, workers, seed) {}
  std::unique_ptr<GradientSource> clone() const override { return std::make_unique<BootSource>(*this); }
  std::int64_t workers() const override { return workers_; }
  std::int64_t gradients() const override { return trace_.gradients(); }
  std::int64_t position(std::int64_t iteration) const override { return iteration % trace_.iterations(); }
  std::span<const float> gradient(std::int64_t iteration, std::int64_t worker) override {
    const Sample sample = pool_.draw(iteration, worker, false);
    return trace_.gradient(sample.position, sample.worker);
  }

 private:
  Trace trace_;
  std::int64_t workers_;
  Pool pool_;
};

// Captured worker j mod W; each further round of W workers at a time shift of its own, fixed for the whole replay.
class ShiftSource final : public ReadySource {
 public:
  ShiftSource(Trace trace, std::int64_t captured, std::int64_t workers, bool generate_all)
      : trace_(std::move(trace)), captured_(captured), workers_(workers), first_(generate_all ? 1 : 0) {}
  std::unique_ptr<GradientSource> clone() const override { return std::make_unique<ShiftSource>(*this); }
  std::int64_t workers() const override { return workers_; }
  std::int64_t gradients() const override { return trace_.gradients(); }
  std::int64_t position(std::int64_t iteration) const override { return iteration % trace_.iterations(); }
  std::span<const float> gradient(std::int64_t iteration, std::int64_t worker) override {
    const std::int64_t positions = trace_.iterations(), step = (worker / captured_ + first_) % positions;
    // 0, +1, -1, +2, ...: as near as possible.
    const std::int64_t shift = step % 2 == 1 ? (step + 1) / 2 : positions - step / 2;
    return trace_.gradient((position(iteration) + shift) % positions, worker % captured_);
  }

 private:
  Trace trace_;
  std::int64_t captured_, workers_, first_;
};

// out[i] = mean[i] + sign * deviation[i] * shifted[slot[i]], every product and sum rounded, the same bits in each version.
void deviate_plainly(float* out, const float* mean, float sign, const float* deviation, const float* shifted, const std::int32_t* slot,
                     std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = mean[i] + sign * deviation[i] * shifted[slot[i]];
}
#ifdef __x86_64__
__attribute__((target("avx512f"))) void deviate_16(float* out, const float* mean, float sign, const float* deviation, const float* shifted,
                                                   const std::int32_t* slot, std::size_t count) {
  const __m512 signs = _mm512_set1_ps(sign);
  std::size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m512 rank = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), 0xffff, _mm512_loadu_si512(slot + i), shifted, 4);
    const __m512 product = _mm512_mul_ps(_mm512_mul_ps(signs, _mm512_loadu_ps(deviation + i)), rank);
    _mm512_storeu_ps(out + i, _mm512_add_ps(_mm512_loadu_ps(mean + i), product));
  }
  deviate_plainly(out + i, mean + i, sign, deviation + i, shifted, slot + i, count - i);
}
__attribute__((target("avx2"))) void deviate_8(float* out, const float* mean, float sign, const float* deviation, const float* shifted,
                                               const std::int32_t* slot, std::size_t count) {
  const __m256 signs = _mm256_set1_ps(sign);
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 rank = _mm256_i32gather_ps(shifted, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(slot + i)), 4);
    const __m256 product = _mm256_mul_ps(_mm256_mul_ps(signs, _mm256_loadu_ps(deviation + i)), rank);
    _mm256_storeu_ps(out + i, _mm256_add_ps(_mm256_loadu_ps(mean + i), product));
  }
  deviate_plainly(out + i, mean + i, sign, deviation + i, shifted, slot + i, count - i);
}
#endif
using Deviate = void (*)(float*, const float*, float, const float*, const float*, const std::int32_t*, std::size_t);
Deviate fastest_deviate() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f")) return deviate_16;
  if (__builtin_cpu_supports("avx2")) return deviate_8;
#endif
  return deviate_plainly;
}
const Deviate deviate = fastest_deviate();

// The same where deviations and table are in one order: `shifted` is read one after the other.
void deviate_in_order_plainly(float* out, const float* mean, float sign, const float* deviation, const float* shifted, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = mean[i] + sign * deviation[i] * shifted[i];
}
#ifdef __x86_64__
// Asks for what is read once (means and deviations are the same for all workers, and in some cache).
__attribute__((target("avx512f"))) void deviate_in_order_16(float* out, const float* mean, float sign, const float* deviation,
                                                            const float* shifted, std::size_t count) {
  constexpr std::size_t ahead = 1536;
  const __m512 signs = _mm512_set1_ps(sign);
  std::size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    _mm_prefetch(reinterpret_cast<const char*>(shifted + i + ahead), _MM_HINT_T0);
    const __m512 product = _mm512_mul_ps(_mm512_mul_ps(signs, _mm512_loadu_ps(deviation + i)), _mm512_loadu_ps(shifted + i));
    _mm512_storeu_ps(out + i, _mm512_add_ps(_mm512_loadu_ps(mean + i), product));
  }
  deviate_in_order_plainly(out + i, mean + i, sign, deviation + i, shifted + i, count - i);
}
__attribute__((target("avx2"))) void deviate_in_order_8(float* out, const float* mean, float sign, const float* deviation,
                                                        const float* shifted, std::size_t count) {
  const __m256 signs = _mm256_set1_ps(sign);
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 product = _mm256_mul_ps(_mm256_mul_ps(signs, _mm256_loadu_ps(deviation + i)), _mm256_loadu_ps(shifted + i));
    _mm256_storeu_ps(out + i, _mm256_add_ps(_mm256_loadu_ps(mean + i), product));
  }
  deviate_in_order_plainly(out + i, mean + i, sign, deviation + i, shifted + i, count - i);
}
#endif
using DeviateInOrder = void (*)(float*, const float*, float, const float*, const float*, std::size_t);
DeviateInOrder fastest_deviate_in_order() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f")) return deviate_in_order_16;
  if (__builtin_cpu_supports("avx2")) return deviate_in_order_8;
#endif
  return deviate_in_order_plainly;
}
const DeviateInOrder deviate_in_order = fastest_deviate_in_order();

// The largest magnitude; not finite when a value is not.
float largest_magnitude(const float* values, std::size_t count) {
  std::int32_t largest = 0;  // bits of a magnitude are ordered as the magnitudes are, NaN above infinity
  for (std::size_t i = 0; i < count; ++i) {
    std::int32_t bits;
    std::memcpy(&bits, values + i, sizeof bits);
    largest = std::max(largest, bits & 0x7fffffff);
  }
  float value;
  std::memcpy(&value, &largest, sizeof value);
  return value;
}

// What the threads that make gradients of one expansion share; it does not change.
class HybridTables {
 public:
  /// `any_order`: means and deviations in order of rank, see order().
  HybridTables(Trace trace, std::int64_t captured, std::uint64_t seed, bool any_order);
  std::int64_t position(std::int64_t iteration) const { return iteration % positions_; }

 private:
  friend class HybridSource;
  struct Run {
    std::int64_t from = 0, to = 0;  // elements of the layer
    std::int64_t rank = 0;          // in_order_: of the one at place `from`
  };
  // How one layer of a virtual worker is made.
  struct Plan {
    std::int64_t offset = 0, elements = 0, width = 0;  // width: elements of a row
    bool drawn = false;                                // the whole layer is that of the drawn sample
    std::int64_t group = -1;                           // renamed rows: which classes
    std::vector<std::int32_t> renamed;                 // rows taken from one captured worker under another name
    std::vector<Run> dense;                            // the rest: mean + shifted deviation
    std::int64_t table = 0, pad = 0, least = 0;        // the dense part in a sample's table, its margins, the smallest shift
  };
  // The rows of one group that at most half of the captured workers touch in the window, by captured worker and class; the class is the
  // number of captured workers that touch the row.
  struct RowClasses {
    std::int64_t rows = 0;
    std::vector<std::vector<std::vector<std::int32_t>>> touched, untouched;  // [W][class][]
  };

  void classify_rows(const RowGroup& group, std::vector<std::uint8_t>& common);
  void prepare_dense(const Plan& plan);
  // Where mean_ and deviation_ have the dense element of rank r; `element` and `order` as in prepare_dense.
  std::size_t place_of(const Plan& plan, const std::vector<std::int64_t>& element, const std::vector<std::size_t>& order,
                       std::size_t r) const {
    return size(plan.offset + element[in_order_ ? r : order[r]]);
  }
  void rename_rows(const RowClasses& classes, std::int64_t captured_worker, Random& random, std::vector<std::int32_t>& name) const;

  Trace trace_;
  std::int64_t captured_, positions_;
  std::uint64_t seed_;
  bool stateful_ = false, in_order_, finite_ = true;
  // in_order_: the dense elements of a layer stand at the places of its dense elements, by their standard deviation; others at their own.
  ElementOrder order_;
  std::vector<Plan> plans_;
  std::vector<RowClasses> classes_;
  std::int64_t table_elements_ = 0;
  std::vector<float> mean_;         // [T, N]: energy-corrected mean (dense parts); in_order_: by places
  std::vector<float> deviation_;    // [N]: standard deviation over workers, of the window; in_order_: by places
  std::vector<std::int32_t> slot_;  // [N]: where the element stands in a table; in_order_: none
  std::vector<float> tables_;       // [T, W, table]: standardised deviations in order of the standard deviation
};

class HybridSource final : public GradientSource {
 public:
  HybridSource(std::shared_ptr<const HybridTables> tables, std::int64_t workers, bool generate_all)
      : tables_(std::move(tables)),
        workers_(workers),
        generate_all_(generate_all),
        pool_(tables_->positions_, tables_->captured_, workers, tables_->seed_),
        names_(tables_->classes_.size()),
        dense_(tables_->plans_.size()) {}
  std::int64_t workers() const override { return workers_; }
  std::int64_t gradients() const override { return tables_->trace_.gradients(); }
  std::int64_t position(std::int64_t iteration) const override { return tables_->position(iteration); }
  std::span<const float> gradient(std::int64_t iteration, std::int64_t worker) override { return piece(iteration, worker, 0, gradients()); }
  std::span<const float> piece(std::int64_t iteration, std::int64_t worker, std::int64_t begin, std::int64_t end) override;
  bool by_pieces() const override { return true; }
  const ElementOrder* order() const override { return tables_->in_order_ ? &tables_->order_ : nullptr; }
  bool known_finite() const override { return tables_->finite_; }
  bool form(std::int64_t iteration, std::int64_t worker, std::int64_t begin, std::int64_t end, GradientForm& form) override;
  std::unique_ptr<GradientSource> clone() const override { return std::make_unique<HybridSource>(*this); }

 private:
  // How the dense part of one layer is drawn: a sign and a distance in ranks.
  struct Dense {
    float sign = 1;
    std::int64_t distance = 0;
  };

  void prepare(std::int64_t iteration, std::int64_t worker);

  std::shared_ptr<const HybridTables> tables_;
  std::int64_t workers_;
  bool generate_all_;
  Pool pool_;
  // Of the worker and iteration that was asked for last.
  std::int64_t iteration_ = -1, worker_ = -1;
  const float *captured_ = nullptr, *drawn_ = nullptr, *own_ = nullptr, *table_ = nullptr, *mean_ = nullptr;
  std::vector<std::vector<std::int32_t>> names_;  // per group
  std::vector<Dense> dense_;                      // per layer
  std::vector<float> out_;
};

HybridTables::HybridTables(Trace trace, std::int64_t captured, std::uint64_t seed, bool any_order)
    : trace_(std::move(trace)), captured_(captured), positions_(trace_.iterations()), seed_(seed), in_order_(any_order) {
  const RowActivity activity = find_row_activity(trace_, captured_);
  const bool stateful = stateful_ = is_stateful(trace_, activity, captured_);
  std::vector<std::vector<std::uint8_t>> common(activity.groups.size());
  if (stateful)
    for (std::size_t g = 0; g < activity.groups.size(); ++g) classify_rows(activity.groups[g], common[g]);

  for (std::size_t l = 0; l < trace_.info().layers.size(); ++l) {
    const Layer& layer = trace_.info().layers[l];
    Plan plan;
    plan.offset = layer.offset;
    plan.elements = layer.size;
    plan.drawn = !stateful && activity.group_of[l] >= 0;
    // A renamed row has its new name in every layer with as many rows: encoder, decoder and its bias.
    plan.group = stateful ? activity.same_height[l] : -1;
    if (plan.group >= 0) {
      const std::vector<std::uint8_t>& keep = common[size(plan.group)];
      plan.width = layer.size / static_cast<std::int64_t>(keep.size());
      for (std::int64_t r = 0; r < static_cast<std::int64_t>(keep.size()); ++r) {
        if (keep[size(r)] == 0) {
          plan.renamed.push_back(static_cast<std::int32_t>(r));
        } else if (!plan.dense.empty() && plan.dense.back().to == r * plan.width) {
          plan.dense.back().to += plan.width;
        } else {
          plan.dense.push_back({r * plan.width, (r + 1) * plan.width, 0});
        }
      }
    } else if (!plan.drawn) {
      plan.dense.push_back({0, layer.size, 0});
    }
    std::int64_t dense = 0;
    for (Run& run : plan.dense) {
      run.rank = dense;
      dense += run.to - run.from;
    }
    // A small layer's coordinates are not all of like magnitude, so a shift goes less far there. Stateful data have one shift for the whole
    // pass, so it goes as far as it can.
    plan.pad = std::min(largest_shift, dense / (stateful ? 2 : shift_share));
    plan.least = std::min({least_shift, plan.pad, std::max<std::int64_t>(1, stateful ? least_shift : dense / (4 * shift_share))});
    plan.table = table_elements_;
    table_elements_ += dense + 2 * plan.pad;
    plans_.push_back(std::move(plan));
  }
  if (table_elements_ > std::numeric_limits<std::int32_t>::max())
    throw InputError(trace_.directory().string(), "expansion hybrid", "fewer than 2^31 gradients (sample rows of the model)",
                     std::to_string(trace_.gradients()));
  const auto n = size(trace_.gradients());
  mean_.resize(size(positions_) * n);
  deviation_.resize(n);
  tables_.resize(size(positions_ * captured_ * table_elements_));
  if (in_order_) {
    order_.element.resize(n);
    std::iota(order_.element.begin(), order_.element.end(), 0);
    for (const Plan& plan : plans_)
      if (order_.bounds.empty() || order_.bounds.back() < plan.offset) order_.bounds.push_back(plan.offset);
    order_.bounds.push_back(trace_.gradients());
  } else {
    slot_.resize(n);
  }
  for (const Plan& plan : plans_)
    if (!plan.dense.empty()) prepare_dense(plan);
  if (in_order_) {
    order_.place.resize(n);
    for (std::size_t p = 0; p < n; ++p) order_.place[size(order_.element[p])] = static_cast<std::int32_t>(p);
  }
  for (std::int64_t t = 0; t < positions_ && finite_; ++t)
    for (std::int64_t w = 0; w < captured_ && finite_; ++w) finite_ = std::isfinite(largest_magnitude(trace_.gradient(t, w).data(), n));
  // No mean + deviation x rank can overflow.
  const float largest = largest_magnitude(mean_.data(), mean_.size()) +
                        largest_magnitude(deviation_.data(), n) * largest_magnitude(tables_.data(), tables_.size());
  finite_ = finite_ && std::isfinite(largest);
}

void HybridTables::classify_rows(const RowGroup& group, std::vector<std::uint8_t>& common) {
  RowClasses classes;
  classes.rows = group.rows;
  classes.touched.assign(size(captured_), std::vector<std::vector<std::int32_t>>(size(captured_ + 1)));
  classes.untouched = classes.touched;
  common.assign(size(group.rows), 0);
  std::vector<std::uint8_t> seen(size(captured_));
  for (std::int64_t r = 0; r < group.rows; ++r) {
    std::int64_t count = 0;
    for (std::int64_t w = 0; w < captured_; ++w) {
      seen[size(w)] = 0;
      for (std::int64_t t = 0; t < positions_ && seen[size(w)] == 0; ++t) seen[size(w)] = group.at(t, w, r, captured_) ? 1 : 0;
      count += seen[size(w)];
    }
    if (2 * count > captured_) {
      common[size(r)] = 1;
      continue;
    }
    for (std::int64_t w = 0; w < captured_; ++w)
      (seen[size(w)] != 0 ? classes.touched : classes.untouched)[size(w)][size(count)].push_back(static_cast<std::int32_t>(r));
  }
  classes_.push_back(std::move(classes));
}

void HybridTables::prepare_dense(const Plan& plan) {
  std::vector<std::int64_t> element;  // of the layer
  for (const Run& run : plan.dense)
    for (std::int64_t i = run.from; i < run.to; ++i) element.push_back(i);
  const std::size_t count = element.size();
  const double w_count = static_cast<double>(captured_), t_count = static_cast<double>(positions_);
  std::vector<double> mean(size(positions_) * count), noise(size(positions_) * count), variance(count);
  constexpr std::size_t block = 1024;  // sums stay in the first-level cache
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t part = std::min(block, count - begin);
    const std::int64_t* const at = element.data() + begin;
    for (std::int64_t t = 0; t < positions_; ++t) {
      double* m = mean.data() + size(t) * count + begin;
      double* v = noise.data() + size(t) * count + begin;
      for (std::int64_t w = 0; w < captured_; ++w) {
        const float* g = trace_.gradient(t, w).data() + plan.offset;
        for (std::size_t i = 0; i < part; ++i) m[i] += g[at[i]];
      }
      for (std::size_t i = 0; i < part; ++i) m[i] /= w_count;
      for (std::int64_t w = 0; w < captured_; ++w) {
        const float* g = trace_.gradient(t, w).data() + plan.offset;
        for (std::size_t i = 0; i < part; ++i) v[i] += (g[at[i]] - m[i]) * (g[at[i]] - m[i]);
      }
      for (std::size_t i = 0; i < part; ++i) {
        v[i] /= w_count - 1;
        variance[begin + i] += v[i] / t_count;
      }
    }
  }

  std::vector<std::pair<double, std::size_t>> sorted(count);
  for (std::size_t i = 0; i < count; ++i)  // what is no number has an order, too
    sorted[i] = {std::isnan(variance[i]) ? std::numeric_limits<double>::infinity() : variance[i], i};
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::size_t> order(count);
  // By rank: the element, its standard deviation.
  std::vector<std::int64_t> ranked(count);
  std::vector<double> deviation(count);
  for (std::size_t r = 0; r < count; ++r) {
    order[r] = sorted[r].second;
    ranked[r] = element[order[r]];
    deviation[r] = std::sqrt(variance[order[r]]);
  }
  sorted = {};
  for (std::size_t r = 0; r < count; ++r) {
    const std::size_t at = place_of(plan, element, order, r);
    if (in_order_)
      order_.element[at] = static_cast<std::int32_t>(plan.offset + ranked[r]);
    else
      slot_[at] = static_cast<std::int32_t>(plan.table + plan.pad) + static_cast<std::int32_t>(r);
    deviation_[at] = static_cast<float>(deviation[r]);
  }

  // The mean of W workers carries their noise / W, the same for every virtual worker: take its energy out, by bins of like deviation.
  const auto bins = size(std::clamp<std::int64_t>(static_cast<std::int64_t>(count) / bin_elements, 1, largest_bins));
  std::vector<double> centre(count), units(bins);  // by rank: what is left of the mean; what gives the deviations from it their variance
  for (std::int64_t t = 0; t < positions_; ++t) {
    const double* const m = mean.data() + size(t) * count;
    const double* const v = noise.data() + size(t) * count;
    for (std::size_t b = 0; b < bins; ++b) {
      const std::size_t from = count * b / bins, to = count * (b + 1) / bins;
      double energy = 0, noise_energy = 0;
      for (std::size_t r = from; r < to; ++r) {
        centre[r] = m[order[r]];
        energy += centre[r] * centre[r];
        noise_energy += v[order[r]] / w_count;
      }
      const double factor = energy > 0 ? std::sqrt(std::max(0.0, energy - noise_energy) / energy) : 0.0;
      // Of W workers' squared distances from factor x mean, in the mean of the bin.
      const double variance_sum = noise_energy * w_count;
      const double squares = variance_sum * (w_count - 1) / w_count + (1 - factor) * (1 - factor) * energy;
      units[b] = squares > 0 ? std::sqrt(variance_sum / squares) : 0.0;
      for (std::size_t r = from; r < to; ++r) {
        centre[r] *= factor;
        mean_[size(t * trace_.gradients()) + place_of(plan, element, order, r)] = static_cast<float>(centre[r]);
      }
    }

    // Deviations in units of their standard deviation, in its order; the margins mirror the ends, so that a shift needs no test.
    for (std::int64_t w = 0; w < captured_; ++w) {
      const float* const g = trace_.gradient(t, w).data() + plan.offset;
      float* const table = tables_.data() + size((t * captured_ + w) * table_elements_ + plan.table + plan.pad);
      for (std::size_t b = 0; b < bins; ++b)
        for (std::size_t r = count * b / bins, to = count * (b + 1) / bins; r < to; ++r)
          table[r] = deviation[r] > 0 ? static_cast<float>((g[ranked[r]] - centre[r]) * units[b] / deviation[r]) : 0.0F;
      const auto ranks = static_cast<std::int64_t>(count);
      for (std::int64_t i = 0; i < plan.pad; ++i) {
        table[-1 - i] = table[i];
        table[ranks + i] = table[ranks - 1 - i];
      }
    }
  }
}

// Leave one out (Good and Turing): a row that c captured workers touch is, seen from one of these, a row that c - 1 others touch. So a
// further worker is one that touches rows of class c - 1 which this one does not, as many as this one has of class c.
void HybridTables::rename_rows(const RowClasses& classes, std::int64_t captured_worker, Random& random,
                               std::vector<std::int32_t>& name) const {
  std::vector<std::int32_t> from, to;
  name.resize(size(classes.rows));
  std::iota(name.begin(), name.end(), 0);
  for (std::int64_t c = 1; 2 * c <= captured_; ++c) {
    from = classes.touched[size(captured_worker)][size(c)];
    to = classes.untouched[size(captured_worker)][size(c - 1)];
    const std::size_t pairs = std::min(from.size(), to.size());
    for (std::size_t i = 0; i < pairs; ++i) {
      std::swap(from[i], from[i + random.below(from.size() - i)]);
      std::swap(to[i], to[i + random.below(to.size() - i)]);
      name[size(from[i])] = to[i];
      name[size(to[i])] = from[i];
    }
  }
}

// Everything about (iteration, worker) that does not depend on the piece.
void HybridSource::prepare(std::int64_t iteration, std::int64_t worker) {
  if (iteration == iteration_ && worker == worker_) return;
  const HybridTables& tables = *tables_;
  const Trace& trace = tables.trace_;
  iteration_ = iteration;
  worker_ = worker;
  captured_ = nullptr;
  const std::int64_t now = position(iteration), pass = iteration / tables.positions_;
  // The captured workers themselves, but once: in a second pass over the window the same noise would be added again.
  const bool with_captured = !generate_all_ && pass == 0;
  if (with_captured && worker < tables.captured_) {
    captured_ = trace.gradient(now, worker).data();
    return;
  }
  const Sample sample = pool_.draw(iteration, with_captured ? worker - tables.captured_ : worker, with_captured);
  drawn_ = trace.gradient(sample.position, sample.worker).data();
  table_ = tables.tables_.data() + size((sample.position * tables.captured_ + sample.worker) * tables.table_elements_);
  mean_ = tables.mean_.data() + size(now * trace.gradients());

  // Stateful data: one captured worker at another time, with row names, signs and ranks that stay for the pass, so that what a worker's
  // deviations remember of the iterations before is kept.
  if (tables.stateful_) {
    const std::int64_t source = worker % tables.captured_;
    std::int64_t shift = 0;
    if (tables.positions_ > 1) {
      const std::int64_t choices = std::min(tables.positions_, window_positions) - 1;
      Random shifts(stream_key(tables.seed_, "expansion time shifts", {u64(pass), u64(source)}));
      const std::int64_t chosen = random_permutation(choices, shifts)[size(worker / tables.captured_ % choices)];
      shift = chosen % 2 == 0 ? 1 + chosen / 2 : tables.positions_ - 1 - chosen / 2;  // +1, -1, +2, ...
    }
    Random random(stream_key(tables.seed_, "expansion rows", {u64(pass), u64(worker)}));
    for (std::size_t g = 0; g < tables.classes_.size(); ++g) tables.rename_rows(tables.classes_[g], source, random, names_[g]);
    const std::int64_t then = (now + shift) % tables.positions_;
    own_ = trace.gradient(then, source).data();
    table_ = tables.tables_.data() + size((then * tables.captured_ + source) * tables.table_elements_);
  }

  Random random(stream_key(tables.seed_, "expansion shifts", {u64(tables.stateful_ ? pass : iteration), u64(worker)}));
  for (std::size_t p = 0; p < tables.plans_.size(); ++p) {
    const HybridTables::Plan& plan = tables.plans_[p];
    if (plan.drawn || plan.dense.empty()) continue;
    const std::int64_t distance = plan.least + static_cast<std::int64_t>(random.below(u64(plan.pad - plan.least + 1)));
    const std::uint64_t signs = random.next();
    dense_[p] = {(signs & 1) != 0 ? -1.0F : 1.0F, (signs & 2) != 0 ? -distance : distance};
  }
}

std::span<const float> HybridSource::piece(std::int64_t iteration, std::int64_t worker, std::int64_t begin, std::int64_t end) {
  prepare(iteration, worker);
  const auto count = size(end - begin);
  const HybridTables& tables = *tables_;
  if (captured_ != nullptr && !tables.in_order_) return {captured_ + begin, count};
  if (out_.size() < count) out_.resize(count);
  float* const out = out_.data();  // of element `begin`
  if (captured_ != nullptr) {      // once for each captured gradient of a replay
    const std::int32_t* const element = tables.order_.element.data() + begin;
    for (std::size_t i = 0; i < count; ++i) out[i] = captured_[element[i]];
    return {out, count};
  }
  // The layers that the piece touches.
  auto plan = std::upper_bound(tables.plans_.begin(), tables.plans_.end(), begin,
                               [](std::int64_t at, const HybridTables::Plan& one) { return at < one.offset + one.elements; });
  for (; plan != tables.plans_.end() && plan->offset < end; ++plan) {
    // Of the layer: the part [from, to).
    const std::int64_t from = std::max(begin - plan->offset, std::int64_t{0}), to = std::min(end - plan->offset, plan->elements);
    if (from >= to) continue;
    const std::int64_t shift = plan->offset - begin;  // of the layer's elements in the piece
    if (plan->drawn) {
      std::memcpy(out + shift + from, drawn_ + plan->offset + from, size(to - from) * sizeof(float));
      continue;
    }
    auto row = plan->renamed.begin();
    if (plan->width > 0) row = std::lower_bound(plan->renamed.begin(), plan->renamed.end(), static_cast<std::int32_t>(from / plan->width));
    for (; row != plan->renamed.end() && *row * plan->width < to; ++row) {
      const std::int64_t first = std::max(*row * plan->width, from), last = std::min((*row + 1) * plan->width, to);
      const std::int64_t name = names_[size(plan->group)][size(*row)];
      std::memcpy(out + shift + first, own_ + plan->offset + (name - *row) * plan->width + first, size(last - first) * sizeof(float));
    }
    if (plan->dense.empty()) continue;
    const Dense& drawn = dense_[size(plan - tables.plans_.begin())];
    const float sign = drawn.sign;
    const float* const shifted = table_ + drawn.distance;
    const float* const m = mean_ + plan->offset;
    const float* const deviation = tables.deviation_.data() + plan->offset;
    const std::int32_t* const slot = tables.in_order_ ? nullptr : tables.slot_.data() + plan->offset;
    auto run = std::upper_bound(plan->dense.begin(), plan->dense.end(), from,
                                [](std::int64_t at, const HybridTables::Run& one) { return at < one.to; });
    for (; run != plan->dense.end() && run->from < to; ++run) {
      const std::int64_t first = std::max(run->from, from), last = std::min(run->to, to);
      if (tables.in_order_) {
        const float* const ranks = shifted + plan->table + plan->pad + run->rank + (first - run->from);
        deviate_in_order(out + shift + first, m + first, sign, deviation + first, ranks, size(last - first));
        continue;
      }
      deviate(out + shift + first, m + first, sign, deviation + first, shifted, slot + first, size(last - first));
    }
  }
  return {out, count};
}

bool HybridSource::form(std::int64_t iteration, std::int64_t worker, std::int64_t begin, std::int64_t end, GradientForm& form) {
  const HybridTables& tables = *tables_;
  if (!tables.in_order_ || !tables.finite_) return false;
  prepare(iteration, worker);
  if (captured_ != nullptr) return false;
  const auto plan = std::upper_bound(tables.plans_.begin(), tables.plans_.end(), begin,
                                     [](std::int64_t at, const HybridTables::Plan& one) { return at < one.offset + one.elements; });
  if (plan == tables.plans_.end()) return false;
  const std::int64_t from = begin - plan->offset, to = end - plan->offset;
  const auto run = std::upper_bound(plan->dense.begin(), plan->dense.end(), from,
                                    [](std::int64_t at, const HybridTables::Run& one) { return at < one.to; });
  if (run == plan->dense.end() || from < run->from || run->to < to) return false;
  const Dense& drawn = dense_[size(plan - tables.plans_.begin())];
  form = {table_ + drawn.distance + plan->table + plan->pad + run->rank + (from - run->from), mean_ + begin,
          tables.deviation_.data() + begin, drawn.sign};
  return true;
}

std::string ratio_text(double ratio) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", ratio);
  return text;
}

}  // namespace

std::span<const float> GradientSource::piece(std::int64_t iteration, std::int64_t worker, std::int64_t begin, std::int64_t end) {
  return gradient(iteration, worker).subspan(size(begin), size(end - begin));
}

ExpansionChoice choose_expansion(const Trace& trace, const ExpansionOptions& options) {
  if (options.method == "npmle" || options.method == "logquad")
    throw InputError("expansion",
                     "a method that makes gradients: " + options.method + " gives a number (self-check, trace expansion-validity)",
                     "\"" + options.method + "\"");
  const auto known = {"auto", "captured", "boot", "hybrid", "shift"};
  if (std::find(known.begin(), known.end(), options.method) == known.end())
    throw InputError("expansion", "one of auto, captured, boot, hybrid, shift", "\"" + options.method + "\"");
  if (options.workers < 1 || options.workers > (std::int64_t{1} << 31))
    throw InputError("workers", "1 to 2^31", std::to_string(options.workers));
  if (options.captured < 0 || options.captured > trace.workers())
    throw InputError("captured workers", "1 to " + std::to_string(trace.workers()) + ", the workers in the trace " + trace.info().name,
                     std::to_string(options.captured));
  const std::int64_t n = options.workers;
  ExpansionChoice choice;
  choice.captured = options.captured > 0 ? options.captured : trace.workers();
  choice.ratio = static_cast<double>(n) / static_cast<double>(choice.captured);
  choice.pool = choice.captured * trace.iterations();
  const std::string captured = std::to_string(choice.captured), pool = std::to_string(choice.pool), workers = std::to_string(n);

  if (trace.info().manifest.contains("synthetic"))
    choice.warnings.push_back("the trace " + trace.info().name + " is synthetic: made from a description, not captured");
  choice.method = options.method;
  if (options.method == "auto" && n <= choice.captured) choice.method = "captured";
  if (choice.method == "captured") {
    if (n > choice.captured) throw InputError("workers", "at most the " + captured + " captured workers with expansion captured", workers);
    return choice;
  }
  const RowActivity activity = find_row_activity(trace, choice.captured);
  const bool stateful = is_stateful(trace, activity, choice.captured);
  if (options.method == "auto") {
    choice.method = !stateful && choice.pool >= 2 * n ? "boot" : "hybrid";
    // One worker shows no spread between workers.
    if (choice.captured == 1) choice.method = "boot";
  }
  if ((choice.method == "boot" || choice.method == "shift") && choice.pool < n)
    throw InputError("workers",
                     "at most " + pool + " with expansion " + choice.method + " (" + captured + " captured workers x " +
                         std::to_string(trace.iterations()) + " iterations: a sample for every worker)",
                     workers);
  if (choice.method == "hybrid" && choice.captured < 2) throw InputError("captured workers", "at least 2 for expansion hybrid", captured);

  const auto warn = [&](bool outside, const std::string& text) {
    choice.validated = choice.validated && !outside;
    choice.warnings.push_back(text);
  };
  if (n > validated_ratio * choice.captured)
    warn(true, workers + " workers are " + ratio_text(choice.ratio) + " times the " + captured +
                   " captured ones: expansion was compared with captured workers up to 16 times");
  if (n > choice.captured && choice.captured < validated_workers)
    warn(true, "only " + captured + " captured workers: expansion was compared with captured workers from 4 on");
  if (choice.pool < n)
    warn(true, "only " + pool + " captured samples (workers x iterations) for " + workers + " workers: build-up is underestimated");
  else if (choice.pool < 2 * n && n > choice.captured)
    warn(false,
         "only " + pool + " captured samples (workers x iterations) for " + workers + " workers: at least twice as many are advised");
  if (choice.method == "boot" && stateful)
    warn(false, "boot ignores that a worker's data follow on from iteration to iteration: hybrid was closer for such traces");
  if (trace.info().data_order == "iid" && !activity.groups.empty() && row_overlap(activity, trace.iterations(), choice.captured).repeats)
    warn(false, "the trace says that its data are i.i.d., but a worker's rows repeat more than by chance");
  return choice;
}

std::uint64_t expansion_memory_bytes(const Trace& trace, const ExpansionOptions& options) {
  const ExpansionChoice choice = choose_expansion(trace, options);
  const std::uint64_t n = u64(trace.gradients()), positions = u64(trace.iterations());
  const auto pool_entries = checked_multiply(u64(std::max(options.workers, choice.pool)), 2, "expansion samples");
  std::uint64_t bytes = trace.decoded_bytes() + checked_multiply(8 * 64, pool_entries, "expansion samples");
  if (choice.method != "hybrid") return bytes;
  std::uint64_t largest = 0, table = 0;
  for (const Layer& layer : trace.info().layers) {
    largest = std::max(largest, u64(layer.size));
    table += u64(layer.size) + 2 * u64(largest_shift);
  }
  bytes += checked_multiply(checked_multiply(u64(choice.pool), table, "expansion tables"), 4, "expansion tables");
  bytes += checked_multiply(n, 4 * positions + 16, "expansion means");  // deviations, an order and its reverse or slots, a gradient
  bytes += checked_multiply(largest, 16 * positions + 72, "expansion scratch");
  return bytes;
}

std::unique_ptr<GradientSource> make_gradient_source(const Trace& trace, const ExpansionOptions& options, bool generate_all) {
  const ExpansionChoice choice = choose_expansion(trace, options);
  if (choice.method == "captured") return std::make_unique<CapturedSource>(trace, options.workers);
  if (choice.method == "shift") return std::make_unique<ShiftSource>(trace, choice.captured, options.workers, generate_all);
  if (choice.method == "boot") return std::make_unique<BootSource>(trace, choice.captured, options.workers, options.seed);
  return std::make_unique<HybridSource>(std::make_shared<HybridTables>(trace, choice.captured, options.seed, options.any_order),
                                        options.workers, generate_all);
}

}  // namespace sparscale::traces
