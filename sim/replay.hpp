// Replay: a trace through a sparsifier over n workers, iteration by iteration. Knows nothing of networks or times.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "sim/residuals.hpp"
#include "traces/expansion.hpp"
#include "traces/trace.hpp"

namespace sparscale::sim {

struct Selection;
class Ranks;

struct ReplayOptions {
  std::string sparsifier;
  Json parameters = Json::object();  // resolved (resolve_parameters)
  double density = 0.01;             // 0 < d <= 1
  std::int64_t workers = 1;
  std::int64_t captured = 0;  // first so many captured workers; 0 = all
  std::string expansion = "auto";
  std::uint64_t seed = 1;
  std::int64_t iterations = 0;     // recorded iterations; 0 = the trace's T
  std::int64_t warmup = 0;         // iterations before the first recorded one
  std::int64_t warmup_window = 0;  // positions of the window that they loop over; 0: as sim/warmup.hpp says
  bool error_feedback = true;      // false: a = g
  bool lr_in_accumulator = false;  // a = e + lr * g
  bool hashes = false;
  bool index_gaps = false;  // delta_bytes in the exchange: how long the lists of indices are when their distances are written
  bool norms = true;        // residual_norm and energy_exchanged in the records; they cost one more pass over the accumulators
  std::string kernels = "auto";
  /// Accumulators may lie in another order than the model's where gradients are made faster in that (hybrid, SparsifierInfo::any_order).
  /// The records are the same up to the last bits of norms.
  bool any_order = true;
  std::uint64_t memory_limit_bytes = 0;  // refuse above this; 0 = the machine's available memory
  MemoryChoice memory;                   // how residuals are kept; without residuals or norms in the records with recompute
  int threads = 1;                       // workers are shared among so many; records do not depend on it
  Ranks* ranks = nullptr;                // processes that share the workers, all with the same options; null: this one has all
  /// Called for each (with ranks: own) worker of each recorded iteration (from 0) when its accumulator (N values) is complete, before it
  /// becomes a residual. Not for dense exchanges, which have none.
  std::function<void(std::int64_t iteration, std::int64_t worker, std::span<const float> accumulator, const Selection& selection)>
      observer = nullptr;
};

/// Bytes that a replay will hold (residuals as options.memory says, selections, sparsifier, decoded trace, generator), estimated before
/// anything is allocated; with ranks, those of this one. Errors: InputError (bad options).
std::uint64_t replay_memory_bytes(const traces::Trace& trace, const ReplayOptions& options);

class Replay {
 public:
  /// Errors: InputError (bad options, non-finite gradients on the way, not enough memory).
  Replay(const traces::Trace& trace, const ReplayOptions& options);
  /// The same over gradients made elsewhere (synthetic ones, tests). `layers` tile [0, N). options.captured and options.expansion are not
  /// used.
  Replay(std::unique_ptr<traces::GradientSource> source, std::vector<traces::Layer> layers, const ReplayOptions& options);
  ~Replay();
  const traces::ExpansionChoice& expansion() const;
  /// Runs the warm-up (once), then one recorded iteration and returns its record (design of the keys: docs/formats.md). `iteration` counts
  /// from 0 at the first recorded iteration. With ranks only the first one makes records, the others return null.
  Json next();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Build-up of generated against captured workers at n = W, calibration and second opinion (docs/expansion.md). Keys: method,
/// captured_workers, build_up_captured, build_up_generated, calibration_exponent, npmle_build_up, logquad_build_up, build_up_consensus,
/// disagreement, warnings ... Null when n <= W.
/// Where the replay samples rows (options.memory), so does the check; the key memory says so.
Json expansion_self_check(const traces::Trace& trace, const ReplayOptions& options);

/// What it takes at most, as replay_memory_bytes() for a replay.
std::uint64_t expansion_self_check_memory_bytes(const traces::Trace& trace, const ReplayOptions& options);

}  // namespace sparscale::sim
