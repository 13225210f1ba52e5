#include "sim/replay.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <exception>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <thread>
#include <unordered_set>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "base/machine.hpp"
#include "kernels/kernels.hpp"
#include "sim/clear_where.hpp"
#include "sim/ranks.hpp"
#include "sim/sparsifier.hpp"
#include "sim/sparsifiers/common.hpp"
#include "sim/warmup.hpp"
#include "sim/wire_format.hpp"
#include "traces/row_sample.hpp"

namespace sparscale::sim {
namespace {

// Elements that are added, checked and normed at a time: a piece of gradient and of residual stay in cache until they are scanned. Norms
// are summed by these pieces, so they do not depend on the order in which a sparsifier reads.
constexpr Index piece_elements = 16384;
// Elements that are made at a time.
constexpr Index made_elements = 4096;

std::string mib(std::uint64_t bytes) { return std::to_string((bytes + (1U << 20) - 1) >> 20) + " MiB"; }

void check_options(const ReplayOptions& options) {
  if (options.workers < 1) throw InputError("workers", "a number >= 1", std::to_string(options.workers));
  if (!(options.density > 0 && options.density <= 1)) throw InputError("density", "a number > 0 and <= 1", number_text(options.density));
  if (options.iterations < 0) throw InputError("iterations", "a number >= 0", std::to_string(options.iterations));
  if (options.warmup < 0) throw InputError("warmup", "a number >= 0", std::to_string(options.warmup));
  if (options.ranks != nullptr && options.workers < options.ranks->size())
    throw InputError("workers", "at least one for each of the " + std::to_string(options.ranks->size()) + " processes",
                     std::to_string(options.workers));
  if (options.threads < 1 || options.threads > 1024) throw InputError("threads", "1 to 1024", std::to_string(options.threads));
}

ReplayShape make_shape(const ReplayOptions& options, Index gradients, std::vector<traces::Layer> layers,
                       std::vector<double> learning_rate) {
  ReplayShape shape;
  shape.workers = options.workers;
  shape.gradients = gradients;
  shape.density = options.density;
  shape.target_k = static_cast<Index>(options.density * static_cast<double>(gradients));
  shape.seed = options.seed;
  shape.own_end = options.workers;
  if (options.ranks != nullptr) {
    shape.own_begin = options.ranks->begin_of(options.ranks->rank(), options.workers);
    shape.own_end = options.ranks->begin_of(options.ranks->rank() + 1, options.workers);
  }
  shape.layers = std::move(layers);
  shape.learning_rate = std::move(learning_rate);
  return shape;
}

std::uint64_t u64(std::int64_t value) { return static_cast<std::uint64_t>(value); }

// Whether residuals are stored, in whatever way. Without error feedback and where every residual is cleared they are not, unless
// accumulating has side effects and so cannot be done again.
bool stores_residuals(const Sparsifier& sparsifier, const ReplayOptions& options) {
  if (sparsifier.accumulation() == Accumulation::stateful) return true;
  return options.memory.mode != MemoryChoice::Mode::recompute && options.error_feedback && sparsifier.keeps_residual();
}

// Residuals, selections and the sparsifier's own state. `stored`: stores_residuals().
std::uint64_t state_bytes(const SparsifierInfo& info, const ReplayShape& shape, const Json& values, const ReplayOptions& options,
                          bool stored) {
  if (info.dense) return 0;
  const std::uint64_t elements = checked_multiply(u64(shape.own_workers()), u64(shape.gradients), "workers x gradients");
  std::uint64_t bytes = info.state_bytes ? info.state_bytes(shape, values) : 0;
  const std::uint64_t indices = checked_multiply(u64(shape.workers), u64(shape.target_k), "workers x k");
  bytes += checked_multiply(8, indices + std::min(indices, u64(shape.gradients)), "selected indices");
  const std::uint64_t each = options.memory.mode == MemoryChoice::Mode::f16 ? 2 : options.memory.mode == MemoryChoice::Mode::disk ? 0 : 4;
  if (stored) bytes += checked_multiply(elements, each, "workers x gradients x " + std::to_string(each) + " bytes");
  if (!stored || each == 2)  // what the threads work in
    bytes += checked_multiply(4 * u64(std::min<std::int64_t>(options.threads, shape.own_workers())), u64(shape.gradients), "accumulators");
  if (options.memory.mode == MemoryChoice::Mode::recompute)  // what was cleared in every iteration
    bytes += checked_multiply(4 * u64(shape.target_k), u64(options.warmup + options.iterations), "cleared indices");
  return bytes;
}

// `sparsifier` of this shape, made to ask it what it keeps, for the estimate. Nothing when its own state is not small.
bool stores_residuals(const SparsifierInfo& info, const ReplayShape& shape, const Json& values, const ReplayOptions& options) {
  if (info.dense) return false;
  try {
    if (info.state_bytes && info.state_bytes(shape, values) > (std::uint64_t{1} << 24)) {
      // The same parameters over fewer workers have the same rules.
      ReplayShape small = shape;
      small.workers = 1;
      small.own_begin = 0;
      small.own_end = 1;
      return stores_residuals(*info.make(small, values), options);
    }
    return stores_residuals(*info.make(shape, values), options);
  } catch (const InputError&) {
    return true;  // refused when the replay is made
  }
}

void check_memory(std::uint64_t needed, const ReplayOptions& options) {
  std::uint64_t allowed = options.memory_limit_bytes != 0 ? options.memory_limit_bytes : available_memory_bytes();
  if (options.ranks != nullptr && options.memory_limit_bytes == 0) allowed /= static_cast<std::uint64_t>(options.ranks->on_this_machine());
  if (needed <= allowed) return;
  const double share = 0.9 * static_cast<double>(allowed) / static_cast<double>(needed);
  const bool sampled = options.memory.mode == MemoryChoice::Mode::sample;
  const std::string where = options.ranks == nullptr ? "" : " in each of " + std::to_string(options.ranks->size()) + " processes";
  throw InputError("workers", "a replay that fits in " + mib(allowed) + " of memory" + where,
                   "one that needs " + mib(needed) + " (memory " + options.memory.text() + "; there are sample:FRACTION, here about " +
                       number_text(std::floor(1000 * share * (sampled ? options.memory.fraction : 1)) / 1000) +
                       ", f16, disk[:FOLDER] and recompute)");
}

// Whether gradients may come in any order: by the sparsifier and its parameters alone, so that the order, and with it the last bits of
// norms, does not depend on anything else.
bool takes_any_order(const ReplayOptions& options) {
  const SparsifierInfo& info = find_sparsifier(options.sparsifier);
  // Recomputed accumulators are read by ranges of the model's order.
  if (options.memory.mode == MemoryChoice::Mode::recompute) return false;
  return options.any_order && info.any_order && info.any_order(resolve_parameters(info, options.parameters, "", "/parameters"));
}

traces::ExpansionOptions expansion_options(const ReplayOptions& options) {
  traces::ExpansionOptions expansion;
  expansion.any_order = takes_any_order(options);
  expansion.method = options.expansion;
  expansion.workers = options.workers;
  expansion.captured = options.captured;
  expansion.seed = options.seed;
  return expansion;
}

// Sum of squares of the values at ascending indices, which become zero. Four lanes: one chain of additions would wait for itself.
double take(std::span<float> values, std::span<const Index> indices) {
  double sums[4] = {0, 0, 0, 0};
  for (std::size_t i = 0; i < indices.size(); ++i) {
    __builtin_prefetch(&values[static_cast<std::size_t>(indices[std::min(i + 48, indices.size() - 1)])], 1);
    float& value = values[static_cast<std::size_t>(indices[i])];
    sums[i % 4] += static_cast<double>(value) * static_cast<double>(value);
    value = 0;
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// bytes_from_totals in whole entries of so many bytes: encodings count the entries of every message. What is less than one goes to who
// receives most.
std::vector<std::uint64_t> entries_from_totals(const std::vector<std::uint64_t>& sent, const std::vector<std::uint64_t>& received,
                                               std::uint64_t entry_bytes) {
  const std::size_t n = sent.size();
  std::vector<std::uint64_t> whole;
  for (const std::uint64_t one : sent) whole.push_back(one / entry_bytes);
  std::vector<std::uint64_t> bytes = bytes_from_totals(whole, received);
  for (std::uint64_t& one : bytes) one *= entry_bytes;
  for (std::size_t from = 0; from < n && n > 1; ++from) {
    std::size_t most = from == 0 ? 1 : 0;
    for (std::size_t to = 0; to < n; ++to)
      if (to != from && received[to] > received[most]) most = to;
    bytes[from * n + most] += sent[from] % entry_bytes;
  }
  return bytes;
}

}  // namespace

std::uint64_t replay_memory_bytes(const traces::Trace& trace, const ReplayOptions& options) {
  check_options(options);
  if (options.memory.mode == MemoryChoice::Mode::sample) {
    ReplayOptions over_sample = options;
    over_sample.memory.mode = MemoryChoice::Mode::full;
    return replay_memory_bytes(traces::sample_rows(trace, options.memory.fraction, options.seed).trace, over_sample);
  }
  const SparsifierInfo& info = find_sparsifier(options.sparsifier);
  const Json values = resolve_parameters(info, options.parameters, "", "/parameters");
  const traces::ExpansionChoice choice = traces::choose_expansion(trace, expansion_options(options));  // checks them
  if (info.dense) return 0;
  const ReplayShape shape = make_shape(options, trace.gradients(), trace.info().layers, trace.info().learning_rate);
  std::uint64_t bytes = state_bytes(info, shape, values, options, stores_residuals(info, shape, values, options)) +
                        traces::expansion_memory_bytes(trace, expansion_options(options));
  if (choice.method == "hybrid" && takes_any_order(options)) {
    // What was exchanged, by places, and for each thread an accumulator in the model's order (for ties).
    const std::uint64_t threads = u64(std::min<std::int64_t>(options.threads, shape.own_workers()));
    bytes += 8 * std::min(checked_multiply(u64(shape.workers), u64(shape.target_k), "workers x k"), u64(shape.gradients));
    bytes += checked_multiply(4 * threads, u64(shape.gradients), "accumulators");
  }
  return bytes;
}

struct Replay::State : public AccumulatorView {
  // What a thread works with. Threads share nothing else that changes but the parts of the worker that each has.
  struct Lane {
    std::unique_ptr<traces::GradientSource> clone;
    traces::GradientSource* source = nullptr;
    std::int64_t current = -1;        // worker that is read
    std::int64_t whole_of = -1;       // worker whose whole gradient is at hand, from sources that make no pieces
    std::span<const float> gradient;  // that one
    // Accumulators of one worker where they are not stored as floats: elements [from, filled), from 0 but with recompute.
    std::vector<float> values;
    std::int64_t held = -1;
    Index from = 0, filled = 0;
    std::unordered_set<const float*> finite;  // pieces that lie ready and have been looked at
    std::vector<float> in_model_order;        // what a range is handed out from where accumulators lie in another order
  };
  // Selects while a piece is accumulated.
  struct Wanted {
    float threshold;
    std::vector<Index>* indices;
  };

  // While it lives, accumulators are those of this process: the other ranks make no such calls.
  struct Alone {
    explicit Alone(State& state) : state_(state), before_(state.together) { state_.together = false; }
    ~Alone() { state_.together = before_; }
    Alone(const Alone&) = delete;
    Alone& operator=(const Alone&) = delete;

   private:
    State& state_;
    bool before_;
  };

  State(const SparsifierInfo& info_in, ReplayShape shape_in, std::string origin_in, const ReplayOptions& options_in)
      : info(info_in),
        shape(std::move(shape_in)),
        origin(std::move(origin_in)),
        options(options_in),
        kernels(kernels::cpu_kernels(options.kernels)),
        together(options.ranks != nullptr) {}

  // ---- what sparsifiers see ----

  std::span<const float> range(std::int64_t worker, Index begin, Index end) const override {
    State* const self = const_cast<State*>(this);
    if (together) return self->range_from_owner(worker, begin, end);
    Lane& own = self->lane();
    self->turn_to(own, worker);
    const Segment places = places_of(begin, end);
    self->seek(own, places.begin);
    self->reach(own, worker, places.end);
    if (order == nullptr) return {values_of(own, worker) + begin, static_cast<std::size_t>(end - begin)};
    own.in_model_order.resize(static_cast<std::size_t>(end - begin));
    const float* const values = values_of(own, worker);
    for (Index i = begin; i < end; ++i)
      own.in_model_order[static_cast<std::size_t>(i - begin)] = values[order->place[static_cast<std::size_t>(i)]];
    return own.in_model_order;
  }

  void each_worker(std::int64_t workers, const std::function<void(std::int64_t)>& work,
                   const std::function<void(std::int64_t, WorkerShare&)>& share) const override {
    State* const self = const_cast<State*>(this);
    if (together && !share) {  // every process does everything
      for (std::int64_t worker = 0; worker < workers; ++worker) work(worker);
      return;
    }
    const std::int64_t begin = std::min(shape.own_begin, workers), end = std::min(shape.own_end, workers);
    const bool shared = together;
    {
      const Alone alone(*self);
      self->finish(self->lane());
      self->in_parallel(begin, end, [&](Lane& own, std::int64_t worker) {
        work(worker);
        if (own.current < 0) self->turn_to(own, worker);  // it was not read
        self->finish(own);
      });
    }
    if (!shared) return;
    std::vector<std::byte> results;
    WorkerShare write(results);
    for (std::int64_t worker = begin; worker < end; ++worker) share(worker, write);
    const std::vector<std::vector<std::byte>> all = options.ranks->gather(results);
    for (int rank = 0; rank < options.ranks->size(); ++rank) {
      if (rank == options.ranks->rank()) continue;
      std::span<const std::byte> rest = all[static_cast<std::size_t>(rank)];
      WorkerShare read(rest);
      const std::int64_t stop = std::min(workers, options.ranks->begin_of(rank + 1, shape.workers));
      for (std::int64_t worker = options.ranks->begin_of(rank, shape.workers); worker < stop; ++worker) share(worker, read);
    }
  }

  void select_at_least(std::int64_t worker, Index begin, Index end, float threshold, const kernels::Kernels& with,
                       std::vector<Index>& indices) const override {
    State* const self = const_cast<State*>(this);
    if (together)
      return self->list_from_owner(worker, indices,
                                   [&](std::vector<Index>& list) { select_at_least(worker, begin, end, threshold, with, list); });
    Lane& own = self->lane();
    self->turn_to(own, worker);
    // About as many as the iteration before.
    if (!last.selected.empty()) {
      const std::size_t before = last.selected[static_cast<std::size_t>(worker)].size();
      indices.reserve(std::max(indices.capacity(), indices.size() + before + before / 8));
    }
    if (order == nullptr) return self->select_places(own, worker, begin, end, threshold, with, indices);
    const Segment places = places_of(begin, end);
    std::vector<Index>& found = work_space().places;
    found.clear();
    self->select_places(own, worker, places.begin, places.end, threshold, with, found);
    add_elements(found, begin, end, indices);
  }

  Index count_at_least(std::int64_t worker, Index begin, Index end, float threshold, const kernels::Kernels& with) const override {
    const Segment places = places_of(begin, end);
    if (together || order == nullptr || places.begin != begin || places.end != end)
      return AccumulatorView::count_at_least(worker, begin, end, threshold, with);
    State* const self = const_cast<State*>(this);
    Lane& own = self->lane();
    self->turn_to(own, worker);
    self->seek(own, begin);
    self->reach(own, worker, end);
    return with.count({values_of(own, worker) + begin, static_cast<std::size_t>(end - begin)}, threshold);
  }

  void gather(std::int64_t worker, std::span<const Index> indices, std::span<float> values) const override {
    if (together || order == nullptr) return AccumulatorView::gather(worker, indices, values);
    State* const self = const_cast<State*>(this);
    Lane& own = self->lane();
    self->turn_to(own, worker);
    self->seek(own, 0);
    self->reach(own, worker, shape.gradients);
    const float* const all = values_of(own, worker);
    for (std::size_t j = 0; j < indices.size(); ++j) values[j] = all[order->place[static_cast<std::size_t>(indices[j])]];
  }

  // Of the places [begin, end), which are the elements where accumulators lie in the model's order.
  void select_places(Lane& own, std::int64_t worker, Index begin, Index end, float threshold, const kernels::Kernels& with,
                     std::vector<Index>& places) {
    seek(own, begin);
    for (Index first = begin; first < end;) {
      const Index piece = first / piece_elements * piece_elements, piece_end = std::min(shape.gradients, piece + piece_elements);
      const Index stop = std::min(end, piece_end);
      reach(own, worker, piece);
      const bool whole = first == piece && stop == piece_end;
      if (whole && progress(own, worker) == piece) {
        const Wanted wanted{threshold, &places};
        add_piece(own, worker, piece, piece_end - piece, &wanted);
      } else {
        reach(own, worker, stop);
        with.threshold_select({values_of(own, worker) + first, static_cast<std::size_t>(stop - first)}, threshold, first, places);
      }
      first = stop;
    }
  }

  // What reaches a bound that the last iteration suggests is selected while it is accumulated; the k largest are among it when it is k or
  // more. So the bound decides the cost, never the result.
  float topk(std::int64_t worker, Index begin, Index end, Index k, const kernels::Kernels& with,
             std::vector<Index>& indices) const override {
    State* const self = const_cast<State*>(this);
    if (together) {
      float least = 0;
      self->list_from_owner(worker, indices, [&](std::vector<Index>& list) { least = topk(worker, begin, end, k, with, list); });
      options.ranks->broadcast(std::as_writable_bytes(std::span(&least, 1)), options.ranks->owner_of(worker, shape.workers));
      return least;
    }
    const bool everywhere = begin == 0 && end == shape.gradients && k > 0 && k < end;
    float* const bound = everywhere ? &self->topk_bound[static_cast<std::size_t>(worker)] : nullptr;
    // The same places for other elements: a tie would go to the lower place.
    const Segment places = places_of(begin, end);
    const bool complete = places.begin == begin && places.end == end;
    std::vector<Index>& found = work_space().chosen;
    found.clear();
    Lane& own = self->lane();
    self->turn_to(own, worker);
    bool unique = order == nullptr || !complete;
    float least = std::numeric_limits<float>::quiet_NaN();
    if (bound != nullptr && *bound > 0) {
      std::vector<Index>& candidates = work_space().candidates;
      std::vector<float>& magnitudes = work_space().magnitudes;
      candidates.clear();
      self->select_places(own, worker, begin, end, *bound, with, candidates);
      if (std::ssize(candidates) >= k) {
        magnitudes.resize(candidates.size());
        with.gather({values_of(own, worker), static_cast<std::size_t>(end)}, candidates, 0, magnitudes);
        with.topk(magnitudes, k, 0, found);
        least = least_magnitude(magnitudes, found, 0);
        if (!unique) unique = with.count(magnitudes, least) == k;
        for (Index& place : found) place = candidates[static_cast<std::size_t>(place)];
      }
    }
    if (found.empty()) {
      if (order == nullptr || !complete) {
        const std::span<const float> values = range(worker, begin, end);
        with.topk(values, k, begin, found);
        least = least_magnitude(values, found, begin);
      } else {
        self->seek(own, begin);
        self->reach(own, worker, end);
        const std::span<const float> values(values_of(own, worker) + begin, static_cast<std::size_t>(end - begin));
        with.topk(values, k, begin, found);
        least = least_magnitude(values, found, begin);
        unique = with.count(values, least) == std::ssize(found);
      }
    }
    if (bound != nullptr) *bound = topk_margin * least;
    if (order != nullptr && complete && unique) {
      add_elements(found, begin, end, indices);
    } else if (order != nullptr && complete) {
      with.topk(range(worker, begin, end), k, begin, indices);
    } else {
      indices.insert(indices.end(), found.begin(), found.end());
    }
    return least;
  }

  // ---- another order of elements ----

  // What one thread reuses.
  struct WorkSpace {
    std::vector<Index> places, chosen, candidates;
    std::vector<float> magnitudes;
    std::vector<std::uint64_t> bits;  // all zero between calls
  };
  static WorkSpace& work_space() {
    static thread_local WorkSpace space;
    return space;
  }

  // The least range of places that has the elements [begin, end).
  Segment places_of(Index begin, Index end) const {
    if (order == nullptr) return {begin, end};
    const std::vector<std::int64_t>& bounds = order->bounds;
    return {*std::prev(std::upper_bound(bounds.begin(), bounds.end(), begin)), *std::lower_bound(bounds.begin(), bounds.end(), end)};
  }

  static constexpr std::size_t prefetched = 24;  // look-ups in memory that are under way at a time
  // Appends the elements in [begin, end) that stand at the places, ascending.
  void add_elements(std::span<const Index> places, Index begin, Index end, std::vector<Index>& elements) const {
    const std::int32_t* const element = order->element.data();
    if (places.size() < 64) {
      const std::size_t old = elements.size();
      for (const Index place : places)
        if (const Index at = element[place]; begin <= at && at < end) elements.push_back(at);
      std::sort(elements.begin() + static_cast<std::ptrdiff_t>(old), elements.end());
      return;
    }
    // A bit for each element: reading them is sorting.
    std::vector<std::uint64_t>& bits = work_space().bits;
    const std::size_t words = static_cast<std::size_t>(end - begin + 63) / 64;
    if (bits.size() < words) bits.resize(words);
    const std::size_t old = elements.size();
    elements.resize(old + places.size() + drained_slack);
    Index* const out = elements.data() + old;
    std::size_t count = 0;
    for (std::size_t i = 0; i < places.size(); ++i) {
      __builtin_prefetch(element + places[std::min(i + prefetched, places.size() - 1)]);
      out[count] = element[places[i]] - begin;
      count += static_cast<std::size_t>(static_cast<std::uint64_t>(out[count]) < static_cast<std::uint64_t>(end - begin));
    }
    for (std::size_t i = 0; i < count; ++i) bits[static_cast<std::size_t>(out[i]) / 64] |= std::uint64_t{1} << (out[i] % 64);
    drain_bits({bits.data(), words}, begin, out);
    elements.resize(old + count);
  }

  // Where ascending elements stand, ascending; `elements` themselves in the model's order.
  std::span<const Index> places_of(std::span<const Index> elements, std::vector<Index>& places) const {
    if (order == nullptr) return elements;
    places.resize(elements.size() + drained_slack);
    std::vector<std::uint64_t>& bits = work_space().bits;
    const std::size_t words = static_cast<std::size_t>(shape.gradients + 63) / 64;
    if (bits.size() < words) bits.resize(words);
    for (const Index element : elements) {
      const auto place = static_cast<std::size_t>(order->place[static_cast<std::size_t>(element)]);
      bits[place / 64] |= std::uint64_t{1} << (place % 64);
    }
    drain_bits({bits.data(), words}, 0, places.data());
    places.resize(elements.size());
    return places;
  }

  // ---- several processes ----

  bool has(std::int64_t worker) const { return shape.own_begin <= worker && worker < shape.own_end; }

  // Elements of one worker's accumulator, which travel from the process that has it to all.
  std::span<const float> range_from_owner(std::int64_t worker, Index begin, Index end) {
    if (has(worker)) {
      const Alone alone(*this);
      const std::span<const float> values = range(worker, begin, end);
      travelling.assign(values.begin(), values.end());
    } else {
      see_elsewhere(worker);
      travelling.resize(static_cast<std::size_t>(end - begin));
    }
    options.ranks->broadcast(std::as_writable_bytes(std::span(travelling)), options.ranks->owner_of(worker, shape.workers));
    return travelling;
  }

  void list_from_owner(std::int64_t worker, std::vector<Index>& indices, const std::function<void(std::vector<Index>&)>& make) {
    std::vector<Index> list;
    if (has(worker)) {
      const Alone alone(*this);
      make(list);
    } else {
      see_elsewhere(worker);
    }
    options.ranks->broadcast_list(list, options.ranks->owner_of(worker, shape.workers));
    indices.insert(indices.end(), list.begin(), list.end());
  }

  // The state of the sparsifier is the same in every process: a gradient that it sees in one is seen in all. Any process can make it.
  void see_elsewhere(std::int64_t worker) {
    Index& seen = reached[static_cast<std::size_t>(worker)];
    if (seen > 0) return;
    seen = shape.gradients;
    if (!sparsifier->sees_gradient(worker)) return;
    lanes.front().whole_of = -1;
    sparsifier->see_gradient(worker, lanes.front().source->gradient(iteration, worker), kernels);
  }

  // What was measured of the workers elsewhere.
  void share_measurements() {
    std::vector<std::byte> own;
    WorkerShare write(own);
    const auto carry = [&](int rank, WorkerShare& share) {
      for (std::int64_t worker = options.ranks->begin_of(rank, shape.workers); worker < options.ranks->begin_of(rank + 1, shape.workers);
           ++worker)
        for (std::vector<double>* const list : {&energy, &sent_energy, &residual_norm}) share((*list)[static_cast<std::size_t>(worker)]);
    };
    carry(options.ranks->rank(), write);
    const std::vector<std::vector<std::byte>> all = options.ranks->gather(own);
    for (int rank = 0; rank < options.ranks->size(); ++rank) {
      std::span<const std::byte> rest = all[static_cast<std::size_t>(rank)];
      WorkerShare read(rest);
      carry(rank, read);
    }
  }

  // ---- accumulating ----

  Lane& lane() { return lanes[lane_number < lanes.size() ? lane_number : 0]; }

  /// work(lane, worker) for each worker in [begin, end), ascending, on all threads; the exception of the first worker that has one.
  void in_parallel(std::int64_t begin, std::int64_t end, const std::function<void(Lane&, std::int64_t)>& work) {
    const std::size_t threads = std::min(lanes.size(), static_cast<std::size_t>(end - begin));
    if (threads <= 1 || lane_number != 0) {
      for (std::int64_t worker = begin; worker < end; ++worker) work(lane(), worker);
      return;
    }
    std::atomic<std::int64_t> next{begin}, first_failed{end};
    std::vector<std::exception_ptr> errors(threads);
    std::vector<std::int64_t> failed(threads, end);
    const auto run = [&](std::size_t number) {
      lane_number = number;
      while (true) {
        const std::int64_t worker = next.fetch_add(1);
        if (worker >= end || worker > first_failed.load()) break;
        try {
          work(lanes[number], worker);
        } catch (...) {
          errors[number] = std::current_exception();
          failed[number] = worker;
          std::int64_t known = first_failed.load();
          while (worker < known && !first_failed.compare_exchange_weak(known, worker)) {
          }
          break;
        }
      }
      lane_number = 0;
    };
    {
      // Started for the call: a program that forks has no threads that would be missing in its children.
      std::vector<std::jthread> others;
      for (std::size_t number = 1; number < threads; ++number) others.emplace_back(run, number);
      run(0);
    }
    const auto first = std::min_element(failed.begin(), failed.end());
    if (*first < end) std::rethrow_exception(errors[static_cast<std::size_t>(first - failed.begin())]);
  }

  float* values_of(const Lane& own, std::int64_t worker) const {
    float* const stored = residuals ? residuals->in_place(worker) : nullptr;
    return stored != nullptr ? stored : const_cast<float*>(own.values.data());
  }
  bool in_place() const { return residuals && residuals->in_place(shape.own_begin) != nullptr; }

  // Elements of the worker's accumulator that are at hand.
  Index progress(const Lane& own, std::int64_t worker) const {
    return in_place() ? reached[static_cast<std::size_t>(worker)] : own.held == worker ? own.filled : 0;
  }

  // A gradient is best made at one go: the worker that this thread read before is finished first.
  void turn_to(Lane& own, std::int64_t worker) {
    if (own.current == worker) return;
    finish(own);
    own.current = worker;
    if (!in_place() && own.held != worker) {
      own.held = worker;
      own.from = own.filled = 0;
    }
    if (reached[static_cast<std::size_t>(worker)] > 0 || !sparsifier->sees_gradient(worker)) return;
    const std::span<const float> gradient = own.source->gradient(iteration, worker);
    if (!own.source->by_pieces()) {
      own.gradient = gradient;
      own.whole_of = worker;
    }
    sparsifier->see_gradient(worker, gradient, kernels);
  }

  // With recompute only what is read is made: the piece that `begin` is in and what follows.
  void seek(Lane& own, Index begin) {
    if (options.memory.mode != MemoryChoice::Mode::recompute || stateful || (own.from <= begin && begin <= own.filled)) return;
    own.from = own.filled = begin / piece_elements * piece_elements;
  }

  void finish(Lane& own) {
    if (own.current < 0) return;
    if (options.memory.mode != MemoryChoice::Mode::recompute || stateful) {
      if (reached[static_cast<std::size_t>(own.current)] < shape.gradients) reach(own, own.current, shape.gradients);
    }
    own.current = -1;
  }

  // Makes the elements [0, end) of a worker's accumulator those of this iteration, at least.
  void reach(Lane& own, std::int64_t worker, Index end) {
    for (Index done = progress(own, worker); done < end; done = progress(own, worker))
      add_piece(own, worker, done, std::min(piece_elements, shape.gradients - done), nullptr);
  }

  std::span<const float> gradient_piece(Lane& own, std::int64_t at, std::int64_t worker, Index first, Index size) {
    if (own.source->by_pieces()) return own.source->piece(at, worker, first, first + size);
    if (own.whole_of != worker || at != iteration) {
      own.gradient = own.source->gradient(at, worker);
      own.whole_of = at == iteration ? worker : -1;
    }
    return own.gradient.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(size));
  }

  float scale_at(std::int64_t at) const { return options.lr_in_accumulator ? static_cast<float>(shape.learning_rate_at(at)) : 1.0F; }
  std::int64_t position(std::int64_t at) const { return lanes.front().source->position(at); }

  // A piece of gradient and of residual stay in cache while they are added, checked, scanned and normed.
  void add_piece(Lane& own, std::int64_t worker, Index first, Index size, const Wanted* wanted) {
    const std::size_t at = static_cast<std::size_t>(worker);
    const std::span<float> sums(values_of(own, worker) + first, static_cast<std::size_t>(size));
    const bool again = first < reached[at];  // these elements have been accumulated in this iteration
    bool zeros_at_once = false;              // entries that are to become zero do so while the gradient is added
    if (options.memory.mode == MemoryChoice::Mode::recompute && !stateful) {
      std::fill(sums.begin(), sums.end(), 0.0F);
      for (std::int64_t before = 0; before < iteration; ++before) {
        kernels.accumulate(gradient_piece(own, before, worker, first, size), scale_at(before), sums);
        const std::vector<std::uint32_t>& zeros = cleared[static_cast<std::size_t>(before)];
        for (auto index = std::lower_bound(zeros.begin(), zeros.end(), static_cast<std::uint32_t>(first));
             index != zeros.end() && *index < first + size; ++index)
          sums[*index - static_cast<std::size_t>(first)] = 0;
      }
    } else if (!residuals || !options.error_feedback) {
      if (!in_place() || !again) std::fill(sums.begin(), sums.end(), 0.0F);
    } else {
      if (!in_place()) residuals->load(worker, first, sums);
      zeros_at_once = !again && plain && in_place() && pending && !pending_bits.empty();
      if (!again && !zeros_at_once) clear_pending(worker, first, sums);
    }
    if (again && residuals && !in_place()) {  // what is stored are the accumulators
      residuals->load(worker, first, sums);
      if (wanted != nullptr) kernels.threshold_select(sums, wanted->threshold, first, *wanted->indices);
      own.filled = first + size;
      return;
    }
    const bool halves = residuals && !in_place();
    // What is made piece by piece is used while it is in the first-level cache.
    const bool made = plain && !halves && own.source->by_pieces() && !own.source->lies_ready();
    Index step = size;
    for (Index begin = first; begin < first + size; begin += step) {
      traces::GradientForm form;
      step = first + size - begin;
      // A layer may end in the piece.
      bool formed = made && own.source->form(iteration, worker, begin, begin + step, form);
      if (made && !formed && step > made_elements) {
        step = made_elements;
        formed = own.source->form(iteration, worker, begin, begin + step, form);
      }
      if (formed) {
        add_plainly({{form.values, static_cast<std::size_t>(step)}, form.mean, form.deviation, form.sign},
                    sums.subspan(static_cast<std::size_t>(begin - first), static_cast<std::size_t>(step)), begin, zeros_at_once, wanted);
        continue;
      }
      const std::span<const float> piece = gradient_piece(own, iteration, worker, begin, step);
      const std::span<float> part = sums.subspan(static_cast<std::size_t>(begin - first), piece.size());
      check_finite(own, worker, begin, piece);
      if (plain && !halves) {
        add_plainly({piece}, part, begin, zeros_at_once, wanted);
        continue;
      }
      sparsifier->accumulate(worker, begin, piece, scale, part, kernels);
      if (halves) residuals->store(worker, begin, part);
      if (wanted != nullptr) kernels.threshold_select(part, wanted->threshold, begin, *wanted->indices);
    }
    if (!in_place()) own.filled = first + size;
    if (again || (options.memory.mode == MemoryChoice::Mode::recompute && !stateful)) return;
    reached[at] = first + size;
    if (measuring) {
      const double norm = kernels.l2_norm(sums);
      energy[at] += norm * norm;
    }
  }

  // The sum of accumulator and gradient, with what is selected of it.
  void add_plainly(kernels::Addend addend, std::span<float> sums, Index first, bool with_zeros, const Wanted* wanted) const {
    if (with_zeros) addend.zeros = {pending_bits.data() + first / 64, (sums.size() + 63) / 64};
    if (wanted == nullptr) return kernels.add(addend, scale, sums);
    kernels.add_select(addend, scale, sums, wanted->threshold, first, *wanted->indices);
  }

  void check_finite(Lane& own, std::int64_t worker, Index first, std::span<const float> piece) const {
    if (own.source->known_finite() || (own.source->lies_ready() && own.finite.contains(piece.data()))) return;
    float largest = 0;
    kernels.block_maxima(piece, std::ssize(piece), {&largest, 1});
    if (!std::isfinite(largest)) refuse_non_finite(worker, first, piece);
    if (own.source->lies_ready()) own.finite.insert(piece.data());
  }

  // Entries that were contributed in the last iteration and are still to become zero.
  void clear_pending(std::int64_t worker, Index first, std::span<float> sums) const {
    if (!pending) return;
    if (!pending_bits.empty() && first % 64 == 0) {
      clear_where(sums, pending_bits.data() + first / 64);
      return;
    }
    const std::vector<Index>& list = order != nullptr                                  ? exchanged_places
                                     : last.contribution == Contribution::at_exchanged ? last.exchanged
                                                                                       : last.selected[static_cast<std::size_t>(worker)];
    const auto begin = std::lower_bound(list.begin(), list.end(), first),
               end = std::lower_bound(begin, list.end(), first + std::ssize(sums));
    for (auto index = begin; index != end; ++index) sums[static_cast<std::size_t>(*index - first)] = 0;
  }

  [[noreturn]] void refuse_non_finite(std::int64_t worker, Index first, std::span<const float> piece) const {
    const auto bad = std::find_if(piece.begin(), piece.end(), [](float x) { return !std::isfinite(x); });
    Index index = first + (bad - piece.begin());
    if (order != nullptr) index = order->element[static_cast<std::size_t>(index)];
    std::string layer = "?";
    for (const traces::Layer& candidate : shape.layers)
      if (index >= candidate.offset && index < candidate.offset + candidate.size) layer = candidate.name;
    std::string when = std::to_string(iteration);
    if (!trace_iterations.empty())
      when += " (the trace's iteration " + std::to_string(trace_iterations[static_cast<std::size_t>(position(iteration))]) + ")";
    throw InputError(origin, "iteration " + when + ", worker " + std::to_string(worker) + ", layer " + layer, "finite gradients",
                     number_text(*bad) + " at gradient " + std::to_string(index));
  }

  const Selection& run_iteration(bool record) {
    const bool recompute = options.memory.mode == MemoryChoice::Mode::recompute;
    measuring = record && options.norms && !info.dense && !recompute;
    if (info.dense) {
      last = sparsifier->select(iteration, *this, kernels);
      ++iteration;
      return last;
    }
    std::fill(reached.begin(), reached.end(), 0);
    std::fill(energy.begin(), energy.end(), 0.0);
    for (Lane& one : lanes) one.current = one.whole_of = one.held = -1;
    scale = scale_at(iteration);
    Selection selection = sparsifier->select(iteration, *this, kernels);
    const Alone alone(*this);
    finish(lanes.front());
    const bool observed = record && options.observer;
    const bool waits = !recompute && !observed && residuals && can_wait(selection);
    // One list for all workers: worth a bit for every gradient, unless it is short.
    const bool by_bits =
        waits && selection.contribution == Contribution::at_exchanged && std::ssize(selection.exchanged) > shape.gradients / 256;
    exchanged_places.clear();
    if (order != nullptr && !by_bits && selection.contribution == Contribution::at_exchanged)
      places_of(selection.exchanged, exchanged_places);
    if (recompute && !stateful) {
      remember_cleared(selection);
    } else {
      const auto keep_one = [&](Lane& own, std::int64_t worker) {
        turn_to(own, worker);
        finish(own);  // what the sparsifier left unread
        if (!observed && !measuring && !residuals) return;
        if (observed || !can_wait(selection)) {
          turn_to(own, worker);
          reach(own, worker, shape.gradients);
          if (observed) options.observer(iteration - options.warmup, worker, range(worker, 0, shape.gradients), selection);
          keep(own, worker, selection);
          own.current = -1;
        }
        if (residuals) residuals->release(worker);
      };
      if (observed)  // in order, one at a time
        for (std::int64_t worker = shape.own_begin; worker < shape.own_end; ++worker) keep_one(lanes.front(), worker);
      else
        in_parallel(shape.own_begin, shape.own_end, keep_one);
      if (measuring && options.ranks != nullptr) share_measurements();
      pending = waits;
      pending_bits.clear();
      if (by_bits && order == nullptr) mark_bits(selection.exchanged, shape.gradients, pending_bits);
      if (by_bits && order != nullptr) {
        pending_bits.assign(static_cast<std::size_t>((shape.gradients + 63) / 64), 0);
        for (const Index element : selection.exchanged) {
          const auto place = static_cast<std::size_t>(order->place[static_cast<std::size_t>(element)]);
          pending_bits[place / 64] |= std::uint64_t{1} << (place % 64);
        }
      }
    }
    last = std::move(selection);
    ++iteration;
    return last;
  }

  // Contributed entries need not become zero before the next iteration passes over the residual anyway.
  bool can_wait(const Selection& selection) const {
    return !measuring && options.error_feedback && selection.residual == Residual::rest && !selection.everything &&
           selection.block_elements == 1 && selection.contribution != Contribution::at_own_and_exchanged &&
           (order == nullptr || selection.contribution == Contribution::at_exchanged);
  }

  void remember_cleared(const Selection& selection) {
    if (selection.residual != Residual::rest || selection.everything || selection.contribution != Contribution::at_exchanged)
      throw InputError("memory", "a sparsifier that clears the exchanged entries on every worker with recompute", info.name);
    const std::vector<Index>& places = order == nullptr ? selection.exchanged : exchanged_places;
    cleared.emplace_back(places.begin(), places.end());
  }

  // Turns one worker's accumulator into its residual; measures what it contributed and what is left.
  void keep(Lane& own, std::int64_t worker, const Selection& selection) {
    const std::size_t at = static_cast<std::size_t>(worker);
    const std::span<float> values(values_of(own, worker), static_cast<std::size_t>(shape.gradients));
    std::vector<Index> made, places;
    std::span<const Index> contributed;
    if (!selection.everything) {
      const bool exchanged = selection.contribution == Contribution::at_exchanged;
      contributed = exchanged ? (order == nullptr ? selection.exchanged : exchanged_places) : selection.selected[at];
      if (selection.contribution == Contribution::at_own_and_exchanged) {
        std::set_intersection(selection.selected[at].begin(), selection.selected[at].end(), selection.exchanged.begin(),
                              selection.exchanged.end(), std::back_inserter(made));
        contributed = made;
      }
      if (selection.block_elements > 1) {
        made = expand(selection, contributed);
        contributed = made;
      }
      if (!exchanged) contributed = places_of(contributed, places);
    }
    double sent = 0;
    if (selection.everything) {
      sent = energy[at];
    } else if (selection.residual == Residual::by_sparsifier) {
      for (const Index index : contributed) {
        const double value = values[static_cast<std::size_t>(index)];
        sent += value * value;
      }
    } else if (measuring) {
      sent = take(values, contributed);
    } else {
      kernels.zero(values, contributed);
    }
    if (selection.residual == Residual::by_sparsifier) sparsifier->keep_residual(worker, selection, values);
    const bool cleared_all = selection.residual == Residual::cleared || selection.everything;
    if (cleared_all) std::fill(values.begin(), values.end(), 0.0F);
    if (residuals && !in_place()) {
      if (selection.residual == Residual::rest && !cleared_all)
        residuals->zero(worker, contributed);
      else
        residuals->store(worker, 0, values);
    }
    own.filled = 0;  // what the thread holds are no accumulators any more
    own.held = -1;
    if (!measuring) return;
    sent_energy[at] = sent;
    const double left = energy[at] - sent;
    if (cleared_all)
      residual_norm[at] = 0;
    else if (selection.residual == Residual::rest && left > 1e-4 * energy[at])  // the difference still carries 11 digits
      residual_norm[at] = std::sqrt(left);
    else
      residual_norm[at] = kernels.l2_norm(values);
  }

  // ---- records ----

  // Blocks as indices.
  std::vector<Index> expand(const Selection& selection, std::span<const Index> blocks) const {
    std::vector<Index> indices;
    for (const Index block : blocks)
      for (Index index = block * selection.block_elements, end = std::min(shape.gradients, index + selection.block_elements); index < end;
           ++index)
        indices.push_back(index);
    return indices;
  }

  // Of an ascending list of indices or blocks.
  Index elements_in(const Selection& selection, const std::vector<Index>& list) const {
    if (list.empty()) return 0;
    return std::min(shape.gradients, (list.back() + 1) * selection.block_elements) - list.back() * selection.block_elements +
           (std::ssize(list) - 1) * selection.block_elements;
  }

  std::string hash_of(const Selection& selection, const std::vector<Index>& list) const {
    return selection.block_elements == 1 ? sha256_hex_of_indices(list) : sha256_hex_of_indices(expand(selection, list));
  }

  Json record(const Selection& selection, std::int64_t number) {
    const std::int64_t n = shape.workers;
    const Index N = shape.gradients;
    const Index target_k = info.dense ? N : selection.target_k.value_or(shape.target_k);
    std::vector<Index> counts(static_cast<std::size_t>(n), N);
    if (!selection.everything)
      for (std::size_t worker = 0; worker < counts.size(); ++worker) counts[worker] = elements_in(selection, selection.selected[worker]);
    const Index sum = std::accumulate(counts.begin(), counts.end(), Index{0});
    const Index largest = *std::max_element(counts.begin(), counts.end());
    const Index united = selection.everything ? N : elements_in(selection, selection.exchanged);
    const auto ratio = [](double a, double b) { return b > 0 ? Json(a / b) : Json(); };

    Json json = {{"iteration", number},
                 {"sparsifier", info.name},
                 {"workers", n},
                 {"target_k", target_k},
                 {"selected", counts},
                 {"selected_sum", sum},
                 {"selected_max", largest},
                 {"union", united},
                 {"density", static_cast<double>(united) / static_cast<double>(N)},
                 {"build_up", ratio(static_cast<double>(united), static_cast<double>(target_k))},
                 {"padding", ratio(static_cast<double>(n) * static_cast<double>(largest), static_cast<double>(sum))}};
    json["threshold"] = nullptr;
    if (selection.threshold.size() == 1) json["threshold"] = number_or_null(selection.threshold.front());
    if (selection.threshold.size() > 1) {
      json["threshold"] = Json::array();
      for (const double threshold : selection.threshold) json["threshold"].push_back(number_or_null(threshold));
    }
    if (options.norms && options.memory.mode != MemoryChoice::Mode::recompute) {
      json["residual_norm"] = residual_norm;
      json["energy_exchanged"] = info.dense ? Json(1.0)
                                            : ratio(std::accumulate(sent_energy.begin(), sent_energy.end(), 0.0),
                                                    std::accumulate(energy.begin(), energy.end(), 0.0));
    }
    json["exchange"] = Json::array();
    const Exchange exchange = options.index_gaps && !selection.everything ? with_delta_bytes(selection) : selection.exchange;
    for (const CollectiveCall& call : exchange) json["exchange"].push_back(call.to_json());
    json["work"] = work_to_json(selection.work, n);
    if (!selection.piece_sizes.empty()) json["piece_sizes"] = selection.piece_sizes;
    for (const auto& [key, value] : selection.details.items()) json[key] = value;
    if (options.hashes) {
      json["selected_sha256"] = Json::array();
      for (std::size_t worker = 0; worker < counts.size(); ++worker)
        json["selected_sha256"].push_back(selection.everything ? hash_of_everything() : hash_of(selection, selection.selected[worker]));
      json["union_sha256"] = selection.everything ? hash_of_everything() : hash_of(selection, selection.exchanged);
    }
    if (options.memory.mode == MemoryChoice::Mode::sample)
      scale_to_whole(json, selection);
    else if (options.memory.mode != MemoryChoice::Mode::full && !info.dense)
      json["memory"] = options.memory.mode == MemoryChoice::Mode::disk ? "disk" : options.memory.text();
    return json;
  }

  // Adds the lengths of delta-coded lists where the calls of payload indices carry, one after the other, exactly what was selected.
  static Exchange with_delta_bytes(const Selection& selection) {
    Exchange exchange = selection.exchange;
    const std::size_t n = selection.selected.size();
    std::vector<std::size_t> done(n, 0);  // how many of a worker's indices earlier calls have carried
    for (CollectiveCall& call : exchange) {
      const bool gather = call.operation == Operation::all_gather, broadcast = call.operation == Operation::broadcast;
      if (call.payload != "indices" || !call.lists_are_selections || !(gather || broadcast)) continue;
      const std::uint64_t width = call.dtype == "int64" ? 8 : 4;
      const std::vector<std::uint64_t> sizes = call.bytes_of_all(static_cast<std::int64_t>(n), true);
      Index begin = 0;  // of the piece that the lists are from
      for (std::int64_t piece = 0; piece < call.piece && piece < std::ssize(selection.piece_sizes); ++piece)
        begin += selection.piece_sizes[static_cast<std::size_t>(piece)];
      // The worker that broadcasts, or every one.
      std::vector<std::uint64_t> lengths;
      for (std::size_t worker = broadcast ? static_cast<std::size_t>(call.root) : 0; worker < n; ++worker) {
        const std::vector<Index>& own = selection.selected[worker];
        const std::size_t count = sizes[worker] / width;
        if (count > own.size() - done[worker]) return selection.exchange;
        lengths.push_back(delta_bytes_of(std::span(own).subspan(done[worker], count), begin));
        if (!broadcast) done[worker] += count;
        if (broadcast) {
          for (std::size_t& other : done) other += count;  // all have the same list
          break;
        }
      }
      call.delta_bytes = std::move(lengths);
    }
    for (std::size_t worker = 0; worker < n; ++worker)
      if (done[worker] != 0 && done[worker] != selection.selected[worker].size()) return selection.exchange;
    return exchange;
  }

  static Json number_or_null(double number) { return std::isfinite(number) ? Json(number) : Json(); }

  const std::string& hash_of_everything() {
    if (everything_sha256.empty()) {
      std::vector<Index> all(static_cast<std::size_t>(shape.gradients));
      std::iota(all.begin(), all.end(), Index{0});
      everything_sha256 = sha256_hex_of_indices(all);
    }
    return everything_sha256;
  }

  // What was counted in a sample of rows, as numbers of the whole model (docs/formats.md, "Memory of a replay").
  void scale_to_whole(Json& json, const Selection& selection) const {
    const double factor = static_cast<double>(whole_gradients) / static_cast<double>(shape.gradients);
    const Index whole_k =
        info.dense ? whole_gradients : truncated_share(selection.target_k ? static_cast<double>(*selection.target_k) * factor : -1);
    // Rows are drawn layer by layer: the union's variance is that between the rows of a layer.
    const double kept = 1 / factor;
    double variance = 0;
    std::size_t row = 0;
    auto index = selection.exchanged.begin();
    for (const std::int64_t rows : rows_of_layer) {
      double sum = 0, squares = 0;
      for (std::int64_t r = 0; r < rows; ++r, ++row) {
        double count = 0;
        const Index end = row_starts[row + 1];
        for (; index != selection.exchanged.end() && *index * selection.block_elements < end; ++index) ++count;
        sum += count;
        squares += count * count;
      }
      const double m = static_cast<double>(rows);
      if (rows > 1) variance += (1 - kept) * std::max(0.0, squares - sum * sum / m) * m / (m - 1);
    }
    const double united = static_cast<double>(selection.exchanged.size());
    const double union_error = united > 0 && !selection.everything ? std::sqrt(variance) / united : 0;

    // Counts of the workers scatter as drawing rows makes them, and as they do in the whole. The first part is taken out: each count is
    // pulled towards the mean, so that their spread, and the padding, is that of the whole. No list more than its
    // own spread allows: what workers hold after an exchange (sums of regions) and what they run kernels over differs by more than drawing.
    std::vector<double> counts;
    for (const Json& count : json.at("selected")) counts.push_back(count.get<double>());
    const double n = static_cast<double>(counts.size());
    const double mean = std::accumulate(counts.begin(), counts.end(), 0.0) / n;
    const double clustered = united > 0 ? std::max(1.0, variance / ((1 - kept) * united)) : 1;  // of selected entries in rows
    const auto drawn = [&](double entries) { return selection.everything ? 0 : (1 - kept) * entries * clustered; };
    const auto pull_of = [&](const std::vector<double>& list, double average) {
      double spread = 0;
      for (const double one : list) spread += (one - average) * (one - average) / static_cast<double>(list.size());
      return spread > 0 ? std::sqrt(std::max(0.0, 1 - drawn(average) / spread)) : 1;
    };
    const double spread_kept = pull_of(counts, mean);
    // One number, or one for each worker, in so many bytes an entry.
    const auto scaled = [&](const Json& value, double entry_bytes = 1) -> Json {
      if (value.is_number()) return std::llround(value.get<double>() * factor);
      std::vector<double> entries;
      for (const Json& one : value) entries.push_back(one.get<double>() / entry_bytes);
      const double average =
          entries.empty() ? 0 : std::accumulate(entries.begin(), entries.end(), 0.0) / static_cast<double>(entries.size());
      const double pull = std::max(spread_kept, pull_of(entries, average));
      Json list = Json::array();
      for (const double one : entries) list.push_back(std::llround((average + (one - average) * pull) * entry_bytes * factor));
      return list;
    };

    const Json selected = scaled(json.at("selected"));
    std::int64_t sum = 0, largest = 0;
    for (const Json& count : selected) {
      sum += count.get<std::int64_t>();
      largest = std::max(largest, count.get<std::int64_t>());
    }
    const auto whole_union = static_cast<Index>(std::llround(json.at("union").get<double>() * factor));
    json["target_k"] = whole_k;
    json["selected"] = selected;
    json["selected_sum"] = sum;
    json["selected_max"] = largest;
    json["union"] = whole_union;
    json["density"] = static_cast<double>(whole_union) / static_cast<double>(whole_gradients);
    json["build_up"] = whole_k > 0 ? Json(static_cast<double>(whole_union) / static_cast<double>(whole_k)) : Json();
    json["padding"] = sum > 0 ? Json(n * static_cast<double>(largest) / static_cast<double>(sum)) : Json();
    if (json.contains("residual_norm"))
      for (Json& norm : json["residual_norm"]) norm = norm.get<double>() * std::sqrt(factor);
    for (Json& call : json["exchange"]) {
      if (call.at("payload") == "counts" || call.at("payload") == "plan") continue;  // do not depend on what is selected
      const CollectiveCall counted = CollectiveCall::from_json(call, static_cast<std::int64_t>(counts.size()));
      std::optional<PartnerBytes> parts = counted.parts;
      if (call.contains("stream")) {
        Json& stream = call["stream"];
        for (Json& own : stream["sent_bytes"]) own = stretched(own, factor);
        stream["back_bytes"] = stretched(stream["back_bytes"], factor);
      }
      for (const char* key : {"index_range", "delta_bytes"})
        if (call.contains(key)) call[key] = scaled(call.at(key));
      const bool padded = call.contains("bytes_unpadded");
      const std::uint64_t entry_bytes = std::max<std::uint64_t>(1, counted.entry_index_bytes + counted.entry_value_bytes);
      const double bytes_each = entry_bytes > 1 ? static_cast<double>(entry_bytes) : counted.dtype.ends_with("64") ? 8 : 4;
      call["bytes"] = scaled(call.at("bytes"), bytes_each);
      if (parts) {
        const Json& bytes = call.at("bytes");
        const std::vector<std::uint64_t> sent = bytes.is_number() ? std::vector<std::uint64_t>(counts.size(), bytes.get<std::uint64_t>())
                                                                  : bytes.get<std::vector<std::uint64_t>>();
        parts->bytes = entries_from_totals(sent, parts->received(), entry_bytes);
        for (std::uint64_t& range : parts->ranges) range = static_cast<std::uint64_t>(std::llround(static_cast<double>(range) * factor));
        call["parts"] = parts->to_json();
      }
      if (!padded) continue;
      call["bytes_unpadded"] = scaled(call.at("bytes_unpadded"), bytes_each);
      std::int64_t most = 0;
      for (const Json& bytes : call["bytes_unpadded"].is_array() ? call["bytes_unpadded"] : Json::array({call["bytes_unpadded"]}))
        most = std::max(most, bytes.get<std::int64_t>());
      call["bytes"] = most;
    }
    for (Json& work : json["work"])
      for (const char* key : {"elements", "selected"}) work[key] = scaled(work.at(key));
    if (json.contains("piece_sizes")) json["piece_sizes"] = stretched(json["piece_sizes"], factor);
    json["memory"] = options.memory.text();
    json["sampling"] = {{"gradients", shape.gradients},
                        {"fraction", kept},
                        {"union_error", union_error},
                        {"selected_error", mean > 0 ? std::sqrt(drawn(mean)) / mean : 0},
                        {"spread_kept", spread_kept}};
  }

  static Json stretched(const Json& list, double factor) {
    Json result = Json::array();
    for (const Json& one : list) result.push_back(std::llround(one.get<double>() * factor));
    return result;
  }

  // k of the whole model; `scheduled` < 0: that of the density.
  Index truncated_share(double scheduled) const {
    return scheduled >= 0 ? static_cast<Index>(std::llround(scheduled))
                          : static_cast<Index>(options.density * static_cast<double>(whole_gradients));
  }

  void prepare(std::unique_ptr<traces::GradientSource> made) {
    const Json values = resolve_parameters(info, options.parameters, "", "/parameters");
    if (options.lr_in_accumulator && shape.learning_rate.empty())
      throw InputError(origin, "lr_in_accumulator", "a trace with a learning_rate for every iteration", "one without");
    const bool stored = stores_residuals(info, shape, values, options);
    check_memory(state_bytes(info, shape, values, options, stored), options);
    sparsifier = info.make(shape, values);
    source = std::move(made);
    residual_norm.assign(static_cast<std::size_t>(shape.workers), 0);
    energy = sent_energy = residual_norm;
    if (info.dense) return;
    plain = sparsifier->accumulation() == Accumulation::plain;
    stateful = sparsifier->accumulation() == Accumulation::stateful;
    if (options.memory.mode == MemoryChoice::Mode::recompute) {
      if (!plain || !options.error_feedback || !sparsifier->keeps_residual())
        throw InputError("memory", "a sparsifier whose residual is a sum of gradients, with error feedback, for recompute", info.name);
      if (shape.gradients > std::numeric_limits<std::uint32_t>::max())
        throw InputError("memory", "fewer than 2^32 gradients with recompute", std::to_string(shape.gradients));
    }
    order = source->order();
    lanes.resize(1);
    lanes.front().source = source.get();
    while (std::ssize(lanes) < std::min<std::int64_t>(options.threads, shape.own_workers())) {
      Lane further;
      further.clone = source->clone();
      if (!further.clone) break;  // these gradients are made by one
      further.source = further.clone.get();
      lanes.push_back(std::move(further));
    }
    reached.assign(static_cast<std::size_t>(shape.workers), 0);
    topk_bound.assign(static_cast<std::size_t>(shape.workers), 0.0F);
    if (stored) {
      float largest = 0;
      if (options.memory.mode == MemoryChoice::Mode::f16)
        for (const float value : source->gradient(0, 0))
          if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
      residuals = std::make_unique<Residuals>(options.memory.mode, shape.own_begin, shape.own_workers(), shape.gradients,
                                              options.memory.folder, largest * (options.lr_in_accumulator ? scale_at(0) : 1.0F));
    }
    if (!in_place())
      for (Lane& one : lanes) one.values.resize(static_cast<std::size_t>(shape.gradients));
  }

  // The next bound of a top-k, of the last iteration's smallest selected magnitude.
  static constexpr float topk_margin = 0.85F;
  static thread_local std::size_t lane_number;

  const SparsifierInfo& info;
  ReplayShape shape;
  std::string origin;  // what messages call the input
  ReplayOptions options;
  const kernels::Kernels& kernels;
  traces::ExpansionChoice choice;
  std::vector<std::int64_t> trace_iterations;
  std::unique_ptr<traces::GradientSource> source;
  std::unique_ptr<Sparsifier> sparsifier;
  Index whole_gradients = 0;  // N of the model where shape has a sample of it
  std::vector<std::int64_t> row_starts, rows_of_layer;

  const traces::ElementOrder* order = nullptr;  // in which accumulators lie; null: the model's
  std::unique_ptr<Residuals> residuals;  // they become accumulators and then the next residuals, in place; none where none are stored
  std::vector<Lane> lanes;
  bool together;                         // all ranks make this call, for a worker that one of them has
  std::vector<float> travelling;         // what a range of that worker's accumulator is handed out from
  bool plain = false, stateful = false;  // Sparsifier::accumulation()
  std::int64_t iteration = 0;
  float scale = 1;
  bool measuring = false;
  bool pending = false;                             // what `last` says was contributed is still in the residuals
  std::vector<std::uint64_t> pending_bits;          // and at which places, when these are the same for all workers
  std::vector<Index> exchanged_places;              // with an order: where `last.exchanged` stand
  Selection last;                                   // of the iteration before
  std::vector<Index> reached;                       // per worker: elements whose gradient was added in this iteration
  std::vector<float> topk_bound;                    // per worker; 0: none
  std::vector<std::vector<std::uint32_t>> cleared;  // recompute: what was exchanged in every iteration
  std::vector<double> energy, sent_energy, residual_norm;
  std::string everything_sha256;
};

thread_local std::size_t Replay::State::lane_number = 0;

Replay::Replay(const traces::Trace& whole, const ReplayOptions& options) {
  check_options(options);
  const SparsifierInfo& info = find_sparsifier(options.sparsifier);
  const bool sampled = options.memory.mode == MemoryChoice::Mode::sample && !info.dense;
  if (sampled && options.hashes) throw InputError("hashes", "no hashes with a sample of the coordinates", "both");
  check_memory(replay_memory_bytes(whole, options), options);
  traces::RowSample sample;
  if (sampled) sample = traces::sample_rows(whole, options.memory.fraction, options.seed);
  const traces::Trace& trace = sampled ? sample.trace : whole;
  ReplayShape shape = make_shape(options, trace.gradients(), trace.info().layers, trace.info().learning_rate);
  if (sampled) shape.whole_target_k = static_cast<Index>(options.density * static_cast<double>(whole.gradients()));
  state_ = std::make_unique<State>(info, std::move(shape), trace.directory().string(), options);
  if (sampled) {
    state_->whole_gradients = whole.gradients();
    state_->row_starts = std::move(sample.row_starts);
    state_->rows_of_layer = std::move(sample.rows_of_layer);
  } else if (options.memory.mode == MemoryChoice::Mode::sample) {
    state_->options.memory.mode = MemoryChoice::Mode::full;  // dense exchanges look at no gradient
  }
  state_->choice = traces::choose_expansion(trace, expansion_options(options));
  state_->trace_iterations = trace.info().iterations;
  // The dense baselines look at no gradient.
  const std::int64_t looped = warmup_positions(trace, options);
  std::unique_ptr<traces::GradientSource> source;
  if (!info.dense) {
    source = warmed_up(traces::make_gradient_source(trace, expansion_options(options)), trace.iterations(), options.warmup, looped);
    if (std::vector<double>& rate = state_->shape.learning_rate; !rate.empty() && looped < trace.iterations())
      for (std::int64_t t = 0; t < options.warmup; ++t)
        state_->shape.warmup_learning_rate.push_back(rate[static_cast<std::size_t>(source->position(t))]);
  }
  state_->prepare(std::move(source));
}

Replay::Replay(std::unique_ptr<traces::GradientSource> source, std::vector<traces::Layer> layers, const ReplayOptions& options) {
  check_options(options);
  const Index gradients = source->gradients();
  if (source->workers() != options.workers)
    throw InputError("workers", std::to_string(source->workers()) + " as the gradients have", std::to_string(options.workers));
  if (options.memory.mode == MemoryChoice::Mode::sample) throw InputError("memory", "a trace for a sample of its rows", "other gradients");
  if (options.warmup_window != 0) throw InputError("warmup window", "a trace for a warm-up on part of it", "other gradients");
  if (options.memory.mode == MemoryChoice::Mode::recompute && !source->clone())
    throw InputError("memory", "gradients that can be made again for recompute", "a stream");
  state_ = std::make_unique<State>(find_sparsifier(options.sparsifier), make_shape(options, gradients, std::move(layers), {}), "gradients",
                                   options);
  state_->choice.method = "captured";
  state_->choice.captured = options.workers;
  state_->prepare(std::move(source));
}

Replay::~Replay() = default;

const traces::ExpansionChoice& Replay::expansion() const { return state_->choice; }

Json Replay::next() {
  while (state_->iteration < state_->options.warmup) state_->run_iteration(false);
  const std::int64_t number = state_->iteration - state_->options.warmup;
  const Selection& selection = state_->run_iteration(true);
  if (state_->options.ranks != nullptr && !state_->options.ranks->first()) return {};
  return state_->record(selection, number);
}

}  // namespace sparscale::sim
