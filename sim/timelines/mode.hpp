// The interface of the timeline's modes. To add one: write one file in sim/timelines/, add one line to sim/timelines/registry.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "sim/timeline.hpp"

namespace sparscale::sim {

/// What a mode works with in one iteration: kernel times, the network, and where bytes and logs are added up.
class TimelineContext {
 public:
  TimelineContext(const kernels::Profile& profile, const TimelineOptions& options) : profile_(profile), options_(options) {}

  const TimelineOptions& options() const { return options_; }
  std::int64_t iteration() const { return iteration_; }
  std::int64_t workers() const { return workers_; }
  IterationTime& result() { return result_; }
  IterationLog* log() { return keep_log_ ? &log_ : nullptr; }
  Network& network() { return *network_; }
  /// How much longer than stated a worker's device takes.
  double factor(std::size_t worker) const { return factors_.empty() ? 1 : factors_[worker]; }
  /// Kernel time of one worker, with its factor.
  double kernel_s(std::size_t worker, const std::string& operation, std::int64_t elements, std::int64_t selected);

  /// Times one call and adds what it sends to the iteration. An empty algorithm: the one chosen for the operation.
  CollectiveTiming collective(const CollectiveCall& call, const std::vector<double>& start_s, const std::string& algorithm = "");

  /// A call as the back-ends take it.
  struct Prepared {
    const CollectiveAlgorithm* algorithm = nullptr;
    std::vector<std::uint64_t> bytes;  // per worker
    std::int64_t round = 0;
    std::unique_ptr<Program> program;
  };
  /// The call must outlive the program.
  Prepared prepare(const CollectiveCall& call, const std::string& algorithm) const;
  /// Adds a timed call to the iteration and its log.
  void account(const CollectiveCall& call, const Prepared& prepared, const std::vector<double>& begin_s, const CollectiveTiming& timing,
               std::int64_t stream = 0);

 private:
  friend class TimelineState;
  const kernels::Profile& profile_;
  const TimelineOptions& options_;
  std::map<std::tuple<std::string, std::int64_t, std::int64_t>, kernels::KernelTime> kernel_times_;
  Network* network_ = nullptr;
  std::int64_t iteration_ = 0, workers_ = 0;
  std::vector<double> factors_;
  IterationTime result_;
  bool keep_log_ = false;
  IterationLog log_;
  std::vector<std::uint64_t> link_bytes_;
};

/// The state of one mode over the iterations of a replay.
class TimelineMode {
 public:
  virtual ~TimelineMode() = default;
  /// Fills context.result()'s times from one record, and the log where one is kept.
  virtual void time(const Json& record, TimelineContext& context) = 0;
};

struct TimelineModeInfo {
  std::string name, title, source;
  std::vector<std::string> options;  // of TimelineOptions, as named in experiments, that this mode uses
  bool carries_over = false;         // an iteration depends on those before it
  bool needs_layers = false;
  /// Refuses sparsifiers that it cannot time: nothing, or what it expects.
  std::function<std::string(const std::string& sparsifier, const Json& parameters)> refuses;
  std::function<std::unique_ptr<TimelineMode>()> make;
  std::int64_t most_streams = 1;  // that can communicate side by side
};

/// All modes, in the order in which they are listed.
const std::vector<TimelineModeInfo>& timeline_modes();
/// Errors: InputError listing the names.
const TimelineModeInfo& find_timeline_mode(const std::string& name);

// ---- what modes share ---------------------------------------------------------------------------------------------------------------

bool is_selection(const std::string& operation);
/// Payloads counts, indices and plan.
bool carries_indices(const std::string& payload);
/// A number for all workers, or one per worker.
std::int64_t number_of(const Json& numbers, std::size_t worker);
/// Whether the record is of a dense exchange: gradients, all-reduced.
bool is_dense_record(const Json& record);

/// Phases one after another, on clocks that are given and moved on (one per worker).
void run_sequential(const Json& record, TimelineContext& context, std::vector<double>& clock);

}  // namespace sparscale::sim
