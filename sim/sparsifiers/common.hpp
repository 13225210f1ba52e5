// Parts that several sparsifiers share: parameters, exchange calls, kernel work, tiled selection.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "sim/sparsifier.hpp"

namespace sparscale::sim {

// ---- parameters -------------------------------------------------------------------------------------------------------------------

Parameter choice_parameter(const std::string& name, std::initializer_list<const char*> choices, const std::string& meaning);
Parameter boolean_parameter(const std::string& name, bool default_value, const std::string& meaning);
/// `range` for people; `limits` are the keywords of the JSON Schema that say the same.
Parameter number_parameter(const std::string& name, double default_value, const std::string& range, const Json& limits,
                           const std::string& meaning);
Parameter integer_parameter(const std::string& name, std::int64_t default_value, const std::string& range, const Json& limits,
                            const std::string& meaning);
/// index_bytes: 8 (the authors' int64) or 4.
Parameter index_bytes_parameter(std::int64_t default_value = 8);

/// index_bytes of a sparsifier whose two generations differ: 0 stands for what the authors' code sends, 8 or (generation 2023a) 4.
Parameter index_bytes_by_generation_parameter();
std::int64_t index_bytes_by_generation(const Json& values);
/// generation: current (flat vector, values all-reduced, residual 0 at the union) or 2023a (per tensor, values gathered, residual 0 at the
/// own selection).
Parameter generation_parameter();

// ---- pieces of the vector -----------------------------------------------------------------------------------------------------------

struct Segment {
  Index begin = 0, end = 0;
  Index size() const { return end - begin; }
};

/// scope: global, layer or bucket.
Parameter scope_parameter(const std::string& default_scope = "global");
/// Bytes of gradient in a bucket of scope bucket; 25 MiB is what PyTorch's DistributedDataParallel starts with.
Parameter bucket_bytes_parameter();
/// [0, N) as one piece, one piece per layer, or runs of whole layers of at most bucket_bytes (a larger layer is a bucket of its own).
std::vector<Segment> segments_of(const ReplayShape& shape, const Json& values);
std::vector<Segment> layer_segments(const ReplayShape& shape);

/// A sparsifier over the whole vector (scope global), or one of `make` for each layer or bucket, with k = max(1, trunc(d N_piece)) each,
/// whose exchanges follow one another. The record then has no thresholds, and what the pieces say of themselves under "pieces".
std::unique_ptr<Sparsifier> make_by_scope(const ReplayShape& shape, const Json& values,
                                          const std::function<std::unique_ptr<Sparsifier>(const ReplayShape&)>& make);

/// density_schedule: list of [iteration, density], ascending: from this iteration on this density. Empty: the replay's density throughout.
Parameter density_schedule_parameter(const std::string& note = "");
/// What that parameter says. Iterations are those that Sparsifier::select counts, warm-up included.
class DensitySchedule {
 public:
  /// `of_piece`: the shape is one of make_by_scope's pieces where the scope is not global, so that k is at least 1.
  /// Errors: InputError when iterations do not ascend or a value is out of range.
  DensitySchedule(const ReplayShape& shape, const Json& values, bool of_piece = false);
  bool given() const { return !steps_.empty(); }
  double density(std::int64_t iteration) const;
  /// trunc(d N) with the density of this iteration; without a schedule ReplayShape::target_k.
  Index k(std::int64_t iteration) const;
  /// For Selection::target_k: k of this iteration, nothing without a schedule.
  std::optional<Index> target_k(std::int64_t iteration) const;
  /// k of the whole model, for constants that are made of it. Where the N gradients are a sample it is in proportion to the densities,
  /// less than d_t / d + 1 off.
  double model_k(std::int64_t iteration) const;
  /// Refuses k = 0 in any iteration, for a rule that divides by k. Errors: InputError.
  void require_k(const std::string& sparsifier) const;
  /// Refuses a schedule where given values leave no k to the rule. `expected`: what there should be instead. Errors: InputError.
  void require_none(const std::string& expected) const;

 private:
  // Of the last step at or before the iteration; null: the replay's density.
  const std::pair<std::int64_t, double>* step(std::int64_t iteration) const;

  double density_;
  Index gradients_, target_k_, whole_target_k_, least_k_;
  std::vector<std::pair<std::int64_t, double>> steps_;
};
/// Makes info.state_bytes count the longer lists of selected indices of a schedule that goes above the replay's density; nothing for a
/// sparsifier without the parameter. The registry does it for all.
void count_scheduled_memory(SparsifierInfo& info);

/// trunc(density * size) in double.
Index truncated(double density, Index size);

// ---- selection --------------------------------------------------------------------------------------------------------------------

/// Elements that are handled at a time, so that accumulating and scanning a piece happen while it is in cache.
inline constexpr Index tile_elements = 32768;

/// Appends the indices in [begin, end) with |a| >= threshold, ascending. Cost O(end - begin).
void select_at_least(const AccumulatorView& accumulators, const kernels::Kernels& kernels, std::int64_t worker, Index begin, Index end,
                     float threshold, std::vector<Index>& indices);

/// How many have |a| >= threshold.
Index count_at_least(const AccumulatorView& accumulators, const kernels::Kernels& kernels, std::int64_t worker, Index begin, Index end,
                     float threshold);
/// The same with a strict comparison: |a| > threshold.
void select_above(const AccumulatorView& accumulators, const kernels::Kernels& kernels, std::int64_t worker, Index begin, Index end,
                  float threshold, std::vector<Index>& indices);
Index count_above(const AccumulatorView& accumulators, const kernels::Kernels& kernels, std::int64_t worker, Index begin, Index end,
                  float threshold);

/// Every worker's top k of all gradients: `selection.selected`, ascending, and as `selection.threshold` the least magnitude among them.
void topk_of_all(const AccumulatorView& accumulators, const kernels::Kernels& kernels, const ReplayShape& shape, Index k,
                 Selection& selection);

/// Least |values[index - first]|, not counting NaN; NaN when there are no indices.
float least_magnitude(std::span<const float> values, std::span<const Index> indices, Index first);

std::vector<Index> counts_of(const std::vector<std::vector<Index>>& lists);
Index sum_of(std::span<const Index> counts);
Index max_of(std::span<const Index> counts);

// ---- exchange ---------------------------------------------------------------------------------------------------------------------

CollectiveCall all_gather(const std::string& payload, const std::string& dtype, std::uint64_t bytes);
CollectiveCall all_reduce(const std::string& payload, const std::string& dtype, std::uint64_t bytes);
CollectiveCall broadcast(const std::string& payload, const std::string& dtype, std::uint64_t bytes, std::int64_t root);
/// All-gather of `bytes_per_entry` for each entry; padded to the largest count, as the authors do where sizes differ.
CollectiveCall padded_all_gather(const std::string& payload, const std::string& dtype, std::span<const Index> counts,
                                 std::uint64_t bytes_per_entry);
/// All-to-all of `bytes_per_entry` for each entry that one worker has for another: counts[from * n + to] (the diagonal stays). `ranges`: as
/// in PartnerBytes.
CollectiveCall all_to_all(const std::string& payload, const std::string& dtype, const std::vector<Index>& counts,
                          std::uint64_t bytes_per_entry, std::vector<std::uint64_t> ranges = {}, bool ranges_of_senders = false);
/// All-to-all of one number of 4 bytes to every other worker.
CollectiveCall all_to_all_of_counts(std::int64_t workers);
/// How many of each ascending list lie in every region: counts[list * n + region]. Region r is [starts[r], starts[r + 1]), the last one
/// ends at the end. Cost O(lists x regions x log).
std::vector<Index> counts_by_region(const std::vector<std::vector<Index>>& lists, std::span<const Index> starts);
/// int64 or int32.
std::string index_dtype(std::int64_t index_bytes);

/// Exchange X2 (docs/sparsifiers.md): all-gather of one int64 count, padded all-gather of the indices, all-reduce of `values` floats.
Exchange padded_index_exchange(std::span<const Index> counts, Index values, std::int64_t index_bytes);

/// Exchange X4 of the 2023a generation: one size, first and last offset of every tensor, then values and int32 positions, both padded.
Exchange gathered_exchange_2023a(std::span<const Index> counts, std::size_t tensors, std::int64_t index_bytes);
/// Exchange X4 where every worker sends k entries.
Exchange gathered_exchange(Index k, std::int64_t index_bytes);

/// How entries (value and index) of unequal number are gathered.
struct GatherStyle {
  std::int64_t index_bytes = 4;
  bool fused = true;             // one set of calls for all pieces together, else one per piece
  std::uint64_t size_bytes = 0;  // bytes of the all-gather of sizes before it; 0: none (the library's gather takes unequal sizes)
  bool padded = false;           // to the largest size
};
/// Appends [sizes,] values, indices. `counts[piece][worker]` of these pieces.
void append_entry_gathers(Exchange& exchange, const std::vector<std::vector<Index>>& counts, std::span<const Segment> pieces,
                          const GatherStyle& style);
/// fused: true | false.
Parameter fused_parameter(bool default_value, const std::string& whose);

// ---- kernel work ------------------------------------------------------------------------------------------------------------------

/// Collects the kernels that each worker runs, in order.
class WorkLog {
 public:
  explicit WorkLog(std::int64_t workers) : lists_(static_cast<std::size_t>(workers)) {}
  /// What follows belongs to this piece of the gradient; -1: to all of it.
  void set_piece(std::int64_t piece) { piece_ = piece; }
  void all(const std::string& operation, Index elements, Index selected, std::size_t before_call);
  void each(const std::string& operation, Index elements, std::span<const Index> selected, std::size_t before_call);
  void one(std::int64_t worker, const std::string& operation, Index elements, Index selected, std::size_t before_call);
  /// `elements` as many as selected, for each worker.
  void each_of(const std::string& operation, std::span<const Index> counts, std::size_t before_call);
  /// For AccumulatorView::each_worker: what this worker has run so far.
  void share(std::int64_t worker, WorkerShare& carry);
  std::vector<std::vector<KernelWork>> take() { return std::move(lists_); }

 private:
  std::vector<std::vector<KernelWork>> lists_;
  std::int64_t piece_ = -1;
};

/// What hard_threshold and sage do after selecting: unites, fills exchanged, exchange, contribution and work; `old`: the 2023a generation.
void finish_united_or_gathered(Selection& selection, WorkLog& work, const ReplayShape& shape, const kernels::Kernels& kernels, bool old,
                               std::int64_t index_bytes);

/// Indices in [0, size) that are distinct and uniformly random, ascending. Cost O(count log count). count <= size.
std::vector<Index> random_subset(Random& random, Index size, Index count);

}  // namespace sparscale::sim
