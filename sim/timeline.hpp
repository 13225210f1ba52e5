// The timeline: when each worker computes, selects and communicates in one iteration.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "kernels/profile.hpp"
#include "sim/network.hpp"
#include "sim/timeline_options.hpp"

namespace sparscale::sim {

/// One iteration, seconds. The five phases add up to iteration_time_s (docs/timeline.md).
struct IterationTime {
  double iteration_time_s = 0;
  double forward_backward_time_s = 0;
  double selection_time_s = 0;                     // threshold selection, top-k, counting
  double index_exchange_time_s = 0;                // payloads counts, indices, plan; where communication overlaps: only what is waited for
  double value_exchange_time_s = 0;                // payloads values, gradient; likewise
  double other_time_s = 0;                         // accumulate, unite, gather, zero, casts
  double overlapped_time_s = 0;                    // the latest worker communicates and computes at once
  double worker_spread_s = 0;                      // last worker's end - first worker's end
  double bytes_sent_mean = 0, bytes_sent_max = 0;  // per worker
  std::uint64_t messages = 0;
  bool extrapolated = false;          // a kernel time lay outside the profile's range
  bool even_parts = false;            // an all-to-all had equal parts, as the record does not say what goes to whom
  std::vector<std::string> networks;  // back-ends used, sorted, each once

  std::vector<std::uint64_t> bytes_sent, bytes_received;        // per worker
  std::vector<std::uint64_t> receive_buffer_bytes;              // per worker: the largest that a call fills
  std::vector<std::uint64_t> class_bytes, class_busiest_bytes;  // per platforms::LinkClass: over all its links, over the busiest one
};

/// What happened in an iteration, for people and for tools that draw it.
struct IterationLog {
  enum class Kind { forward, backward, selection, other };
  struct Segment {
    double begin_s = 0, end_s = 0;
    Kind kind = Kind::other;
    std::string name;
  };
  struct Call {
    std::string name, payload;
    Operation operation = Operation::all_reduce;
    std::string algorithm;
    std::vector<std::uint64_t> bytes;  // that every worker hands in
    std::int64_t root = 0, round = 0;
    std::int64_t stream = 0;                             // calls of one stream follow one another
    std::vector<std::uint64_t> received;                 // by every worker
    std::optional<SparseStream> stretches;               // CollectiveInput::stream
    std::vector<std::uint64_t> parts;                    // CollectiveInput::parts
    std::vector<double> begin_s, end_s;                  // per worker
    std::vector<std::uint64_t> class_bytes, link_bytes;  // of the topology's links, every crossing counted
    double busiest_link_s = 0;                           // how long its busiest link transfers, alone and at full speed
    std::int64_t busiest_link_id = -1;
    std::string busiest_link, busiest_class;
  };
  double begin_s = 0, end_s = 0;              // of the iteration
  std::vector<std::vector<Segment>> compute;  // per worker, in order
  std::vector<Call> calls;                    // those of one stream in the order of time
};

/// The worker whose time an iteration's phases are: of those that are done within a hundred-thousandth of it of the last one, the one that
/// computes longest. Calls end everywhere at nearly the same time; who waits in one for a slower worker must not be taken for it.
std::size_t last_worker(const std::vector<double>& end_s, const std::vector<double>& computes_s, double iteration_s);

class TimelineState;

/// Times the records of one replay, one after another, in the mode that the options name.
class Timeline {
 public:
  /// The network of a recorded iteration.
  using NetworkAt = std::function<Network&(std::int64_t iteration)>;

  /// `profile` and `network` must outlive the timeline. Errors: InputError on an unknown mode.
  Timeline(const kernels::Profile& profile, Network& network, const TimelineOptions& options);
  Timeline(const kernels::Profile& profile, NetworkAt network, const TimelineOptions& options);
  ~Timeline();

  /// Times the next replay record (its keys workers, exchange, work and, for some modes, sparsifier). Errors: InputError outside the
  /// profile's range, RunError from the network. Cost: O(workers x (work items + layers)) plus the collectives.
  IterationTime time(const Json& record);
  /// Keeps a log of the next iterations.
  void keep_log(bool keep);
  /// Of the last iteration, if it was kept.
  const IterationLog& log() const;

 private:
  std::unique_ptr<TimelineState> state_;
};

}  // namespace sparscale::sim
