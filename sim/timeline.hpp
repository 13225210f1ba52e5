// The timeline: when each worker computes, selects and communicates in one iteration.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/json.hpp"
#include "kernels/profile.hpp"
#include "sim/network.hpp"

namespace sparscale::sim {

/// The algorithm that carries out each operation of an exchange.
struct CollectiveChoice {
  std::string all_gather = "ring_padded";
  std::string all_reduce = "ring";
  std::string broadcast = "binomial";
  std::string reduce_scatter = "ring";
  std::string reduce = "binomial";
  std::string all_to_all = "pairwise";
  std::string gossip = "exponential";
  std::string sparse_all_reduce = "streaming";
};

/// What a timeline needs besides the replay records.
struct TimelineOptions {
  double forward_time_s = 0;
  double backward_time_s = 0;
  CollectiveChoice collectives;
  bool extrapolate_profile = false;
};

/// One iteration, seconds. The five phases add up to iteration_time_s: each is the growth of the latest worker's clock during that phase,
/// so a worker that waits for a slower one is charged to what the slower one does.
struct IterationTime {
  double iteration_time_s = 0;
  double forward_backward_time_s = 0;
  double selection_time_s = 0;                     // threshold selection, top-k, counting
  double index_exchange_time_s = 0;                // payloads counts, indices, plan
  double value_exchange_time_s = 0;                // payloads values, gradient
  double other_time_s = 0;                         // accumulate, unite, gather, zero, casts
  double bytes_sent_mean = 0, bytes_sent_max = 0;  // per worker
  std::uint64_t messages = 0;
  bool extrapolated = false;          // a kernel time lay outside the profile's range
  std::vector<std::string> networks;  // back-ends used, sorted, each once
};

/// Phases one after another with blocking calls, as the reference implementations do; every worker enters a call when its own work is done.
/// Source: the timers of those implementations synchronise around every region, so nothing overlaps.
class Timeline {
 public:
  /// `profile` and `network` must outlive the timeline.
  Timeline(const kernels::Profile& profile, Network& network, const TimelineOptions& options);

  /// Times one replay record (its keys workers, exchange, work). Errors: InputError outside the profile's range, RunError from the network.
  /// Cost: O(workers x work items) plus the collectives.
  IterationTime time(const Json& record);

 private:
  kernels::KernelTime kernel_time(const std::string& operation, std::int64_t elements, std::int64_t selected);

  const kernels::Profile& profile_;
  Network& network_;
  TimelineOptions options_;
  std::map<std::tuple<std::string, std::int64_t, std::int64_t>, kernels::KernelTime> kernel_times_;
  std::string last_key_;  // consecutive iterations that send and compute the same take the same time
  IterationTime last_;
};

}  // namespace sparscale::sim
