// The sparsifier interface. To add one: write one file in sim/sparsifiers/, add one line to sim/sparsifiers/registry.cpp
// (docs/adding-a-sparsifier.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/json.hpp"
#include "kernels/kernels.hpp"
#include "sim/exchange.hpp"
#include "traces/trace.hpp"

namespace sparscale::sim {

using kernels::Index;

/// Carries what was worked out for a worker to the other processes of a replay: a function that names its results, in order, writes them to
/// a buffer here and reads them from it there.
class WorkerShare {
 public:
  explicit WorkerShare(std::vector<std::byte>& to) : to_(&to) {}
  /// Takes what it reads off the front of `from`.
  explicit WorkerShare(std::span<const std::byte>& from) : from_(&from) {}
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void operator()(T& value) { copy(&value, sizeof value); }
  /// std::vector or std::string.
  template <class List>
  requires std::is_trivially_copyable_v<typename List::value_type>
  void operator()(List& list) {
    std::uint64_t size = list.size();
    copy(&size, sizeof size);
    list.resize(static_cast<std::size_t>(size));
    copy(list.data(), list.size() * sizeof(typename List::value_type));
  }
  bool reading() const { return from_ != nullptr; }

 private:
  void copy(void* data, std::size_t bytes) {
    if (bytes == 0) return;
    if (to_ != nullptr) {
      const auto* begin = static_cast<const std::byte*>(data);
      to_->insert(to_->end(), begin, begin + bytes);
    } else {
      std::memcpy(data, from_->data(), bytes);
      *from_ = from_->subspan(bytes);
    }
  }

  std::vector<std::byte>* to_ = nullptr;
  std::span<const std::byte>* from_ = nullptr;
};

/// The accumulators a = e + g of all workers, handed out by range.
class AccumulatorView {
 public:
  virtual ~AccumulatorView() = default;
  /// values [begin, end) of one worker; valid until the next call. Cheapest when one worker after the other is read, front to back:
  /// gradients are added on the way, while they are in cache.
  virtual std::span<const float> range(std::int64_t worker, Index begin, Index end) const = 0;
  /// Calls work(worker) for each of `workers` workers, on as many threads as the replay has: `work` reads this worker only and writes to
  /// places of its own, so that results do not depend on the number of threads. The first worker's exception is thrown.
  /// `share(worker, carry)` names these places to a replay over several processes (docs/formats.md), where `work` then runs for a process's
  /// own workers only: carry(place), in the same order for all. Without it `work` runs for every worker in every process (it must not
  /// use what accumulate() has changed), and accumulators
  /// travel: the same results, slower.
  virtual void each_worker(std::int64_t workers, const std::function<void(std::int64_t)>& work,
                           const std::function<void(std::int64_t, WorkerShare&)>& share = nullptr) const;
  /// Appends the indices in [begin, end) with |a| >= threshold, ascending (NaN: none): selected while the gradient is added.
  virtual void select_at_least(std::int64_t worker, Index begin, Index end, float threshold, const kernels::Kernels& kernels,
                               std::vector<Index>& indices) const;
  /// How many in [begin, end) have |a| >= threshold.
  virtual Index count_at_least(std::int64_t worker, Index begin, Index end, float threshold, const kernels::Kernels& kernels) const;
  /// values[j] = the value at indices[j], whatever their order.
  virtual void gather(std::int64_t worker, std::span<const Index> indices, std::span<float> values) const;
  /// Appends the indices of the k largest |a| in [begin, end), ascending; ties go to the lower index. Returns the least of these |a|; NaN
  /// for k = 0.
  virtual float topk(std::int64_t worker, Index begin, Index end, Index k, const kernels::Kernels& kernels,
                     std::vector<Index>& indices) const;
};

/// What does not change during a replay.
struct ReplayShape {
  std::int64_t workers = 0;  // n
  Index gradients = 0;       // N
  double density = 0;        // d
  Index target_k = 0;        // trunc(d * N) in double
  Index whole_target_k = 0;  // that of the whole model where the N gradients are a sample of it, else 0
  std::uint64_t seed = 1;
  std::vector<traces::Layer> layers;
  /// Learning rate of every position of the trace's window; empty when the trace does not say.
  std::vector<double> learning_rate;
  /// Where the warm-up goes over a part of the window: those of its iterations, after which the window begins. Else empty.
  std::vector<double> warmup_learning_rate;
  /// That of replay iteration t; 0 when the trace does not say.
  double learning_rate_at(std::int64_t t) const {
    if (learning_rate.empty()) return 0;
    if (t < std::ssize(warmup_learning_rate)) return warmup_learning_rate[static_cast<std::size_t>(t)];
    return learning_rate[static_cast<std::size_t>((t - std::ssize(warmup_learning_rate)) % std::ssize(learning_rate))];
  }
  /// The workers [own_begin, own_end) whose accumulators this process has: all (own_end < 0), or a part in a replay over several processes.
  std::int64_t own_begin = 0, own_end = -1;
  std::int64_t own_workers() const { return own_end < 0 ? workers : own_end - own_begin; }

  /// k of the whole model, for constants that are made of it.
  double model_k() const { return static_cast<double>(whole_target_k > 0 ? whole_target_k : target_k); }
};

/// Kernel time that a worker spends: which operation, over how many elements, with how many selected, and before which call of the exchange
/// (its index; the number of calls for work after the last one).
struct KernelWork {
  std::string operation;  // as in kernel profiles
  Index elements = 0;
  Index selected = 0;
  std::int64_t before_call = 0;
  std::int64_t piece = -1;  // the piece of the gradient that it belongs to (Selection::piece_sizes), -1: all of it
};

/// Which entries of its accumulator a worker adds to the result: those at every exchanged index, those that it selected itself, or those
/// that it selected and that were exchanged in the end.
enum class Contribution { at_exchanged, at_own_selection, at_own_and_exchanged };

/// What a worker keeps: everything that it did not contribute (the contributed entries become zero), nothing, or what the sparsifier leaves
/// in the accumulators itself (Sparsifier::keep_residual).
enum class Residual { rest, cleared, by_sparsifier };

/// What Sparsifier::accumulate is: `plain`, the sum e + scale g that the base class makes; `pure`, another function of the residual and the
/// piece alone, which may be evaluated again; `stateful`, anything else.
enum class Accumulation { plain, pure, stateful };

/// What one iteration selected and sent.
struct Selection {
  std::vector<std::vector<Index>> selected;  // I_r per worker, ascending
  std::vector<Index> exchanged;              // union of what is exchanged, ascending
  Index block_elements = 1;                  // above 1: `selected` and `exchanged` hold blocks of so many elements (the last: what is left)
  bool everything = false;                   // every worker sends all N entries; `selected` and `exchanged` stay empty
  std::vector<double> threshold;             // empty, one for all, or one per worker; NaN: none
  std::optional<Index> target_k;             // k of this iteration when it differs from ReplayShape::target_k (schedules)
  Exchange exchange;
  std::vector<std::vector<KernelWork>> work;  // one list per worker, or one list for all
  /// Elements of the pieces of the gradient, in order, when calls or work belong to pieces that could be exchanged one by one; else empty.
  std::vector<Index> piece_sizes;
  Contribution contribution = Contribution::at_exchanged;
  Residual residual = Residual::rest;
  Json details = Json::object();  // further keys of the record (partitions, leader, ...)
};

class Sparsifier {
 public:
  virtual ~Sparsifier() = default;
  /// One iteration. `iteration` counts 0, 1, 2, ... and includes the warm-up.
  virtual Selection select(std::int64_t iteration, const AccumulatorView& accumulators, const kernels::Kernels& kernels) = 0;

  /// Lets the replay select while it accumulates (plain), and not store what it can make again (plain, pure).
  virtual Accumulation accumulation() const { return Accumulation::stateful; }
  /// False when every iteration's residual is cleared (Residual::cleared): then none is stored.
  virtual bool keeps_residual() const { return true; }
  /// Whether see_gradient is to be called for this worker in this iteration.
  virtual bool sees_gradient(std::int64_t /*worker*/) const { return false; }
  /// A worker's whole gradient of this iteration, before any of it is accumulated: for what depends on all of it (its norm). Called once
  /// per worker and iteration, when select first reads that worker. Not yet checked for non-finite values.
  virtual void see_gradient(std::int64_t worker, std::span<const float> gradient, const kernels::Kernels& kernels);
  /// Adds a piece of a worker's gradient, elements [first, first + size), to its residual, in place. Replace it for other memories
  /// (momentum correction). Every element of a worker passes once per iteration, front to back (more than once where accumulation() says
  /// that it may); different workers at the same time.
  virtual void accumulate(std::int64_t worker, Index first, std::span<const float> gradient, float scale, std::span<float> accumulator,
                          const kernels::Kernels& kernels);
  /// Only for Residual::by_sparsifier: turns the worker's accumulator (N elements) into its next residual, in place.
  virtual void keep_residual(std::int64_t worker, const Selection& selection, std::span<float> accumulator);
};

struct Parameter {
  std::string name;
  Json default_value;
  std::string range;  // for people: "code | intended", "4 | 8", "> 0"
  std::string meaning;
  Json schema;  // JSON Schema of one value
};

struct SparsifierInfo {
  std::string name, title, paper, rule, exchange, cost;
  std::vector<Parameter> parameters;
  /// Dense exchanges keep no residual and select nothing.
  bool dense = false;
  /// Calls and work say which piece of the gradient they belong to when the parameter scope is layer or bucket.
  bool exchanges_by_scope = false;
  /// Whether, with these parameters, select() takes what it needs from the other functions of its view rather than range(), accumulation()
  /// is plain and nothing else looks at positions in accumulators or gradients. Then the replay may keep accumulators in another order of
  /// elements, in which gradients are made faster. Null: no.
  std::function<bool(const Json& values)> any_order = nullptr;
  /// Makes one replay's state. `values` has every parameter of `parameters`, checked.
  std::function<std::unique_ptr<Sparsifier>(const ReplayShape& shape, const Json& values)> make;
  /// Memory of that state beyond the residuals, when it is not small.
  std::function<std::uint64_t(const ReplayShape& shape, const Json& values)> state_bytes = nullptr;
};

/// All sparsifiers, in the order in which they are listed.
const std::vector<SparsifierInfo>& sparsifiers();
/// Errors: InputError listing the names.
const SparsifierInfo& find_sparsifier(const std::string& name);
/// The reference of all sparsifiers as text: name, paper, rule, exchange, cost, parameters with defaults and ranges. `sparscale list
/// sparsifiers` prints it, docs/sparsifiers.md holds it.
std::string sparsifier_reference();
/// Defaults overridden by `given`. Errors: InputError on an unknown parameter or a value outside its range; `place` is where `given`
/// stands.
Json resolve_parameters(const SparsifierInfo& info, const Json& given, const std::string& file, const std::string& place);

/// Kernel work as it stands in replay records: a list of {operation, before_call, elements, selected}, elements and selected one number for
/// all workers or one per worker (0 elements: this worker does not run it). Within a worker the order is that of the list.
Json work_to_json(const std::vector<std::vector<KernelWork>>& work, std::int64_t workers);
/// The reverse, one list per worker. Errors: InputError.
std::vector<std::vector<KernelWork>> work_from_json(const Json& json, std::int64_t workers);

}  // namespace sparscale::sim
