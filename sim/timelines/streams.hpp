// Streams of a worker: one that computes and one or several that communicate, side by side. Computing takes longer while the same worker
// communicates.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/timelines/mode.hpp"

namespace sparscale::sim {

/// A call of an iteration, all of whose calls are known beforehand.
struct StreamCall {
  CollectiveCall call;
  std::string algorithm;    // empty: the one chosen for the operation
  std::int64_t stream = 0;  // calls of one stream follow one another at every worker, in the order of the list
};

class Streams {
 public:
  using Kind = IterationLog::Kind;

  /// All streams of every worker are free from its `start_s` on; calls are timed one after another, in the order in which they are made.
  /// The context must outlive it.
  Streams(TimelineContext& context, const std::vector<double>& start_s);

  /// The same for calls that are known beforehand and may run side by side. `play` computes: given when each call ends (call_end), as far
  /// as that is known, it says when each worker is ready for each call (call_ready), as far as that can be said. It is played until what it
  /// says fits what the network makes of it. As nothing depends on what is later, every time brings it at least one right time further.
  /// Errors: RunError when calls wait for each other, or when roundings lead starts about for as many passes as there are starts.
  static Streams side_by_side(TimelineContext& context, const std::vector<double>& start_s, const std::vector<StreamCall>& calls,
                              const std::function<void(Streams&)>& play);
  /// For `play`: when the call is over at the worker, if that is known; and when the worker is ready for it.
  std::optional<double> call_end(std::size_t call, std::size_t worker) const;
  void call_ready(std::size_t call, std::size_t worker, double ready_s) { ready_s_[call][worker] = ready_s; }

  /// Computes `work_s` on a worker, from when its stream is free but not before `ready_s`. All calls that the worker makes until the end of
  /// this must have been timed.
  double compute(std::size_t worker, double ready_s, double work_s, Kind kind, const std::string& name);
  /// The same, but only if it ends at `limit_s` or before; calls that begin at the limit or later may still be unknown.
  bool compute_by(std::size_t worker, double ready_s, double work_s, double limit_s, Kind kind, const std::string& name);
  /// All workers make a call; a worker enters when it is ready and its last call is over. Returns when each is done. Not in side_by_side.
  const std::vector<double>& communicate(const CollectiveCall& call, const std::vector<double>& ready_s, const std::string& algorithm = "");

  double computes_until(std::size_t worker) const { return compute_s_[worker]; }
  const std::vector<double>& communicates_until() const { return communicate_s_; }
  std::size_t workers() const { return compute_s_.size(); }
  /// When all streams of each worker are through.
  std::vector<double> ends() const;

  /// Fills the context's result from begin_s (when the last worker had finished the iteration before) to the last worker's end. The phases
  /// are those of last_worker: what it computes, and, while it does not, the call that it is in or waits for (of several the first to end).
  void report(double begin_s) const;

 private:
  struct Segment {
    double begin_s, end_s;
    Kind kind;
  };
  struct Call {
    double begin_s, end_s;
    bool indices;
  };
  struct Known;  // of a call in side_by_side

  double end_of(std::size_t worker, double begin_s, double work_s) const;
  void know(const std::vector<StreamCall>& calls, const std::vector<Known>& known);

  TimelineContext& context_;
  double slowdown_;
  std::vector<double> compute_s_, communicate_s_;
  std::vector<std::vector<Segment>> segments_;   // per worker, in order
  std::vector<std::vector<Call>> calls_;         // per worker, in the order of their ends
  std::vector<std::vector<Call>> busy_;          // per worker, when it communicates at all, in order; empty: as calls_
  mutable std::vector<std::size_t> first_call_;  // the first that can still overlap with computing
  std::vector<std::vector<double>> ready_s_;     // side_by_side: per call and worker, NaN where it is not known
  std::vector<std::vector<double>> end_s_;
};

/// One kernel item of a record (or a part of one), for all workers.
struct Kernel {
  std::string operation;
  std::vector<double> work_s;  // per worker
  void run(Streams& streams, std::size_t worker, double ready_s) const;
};

}  // namespace sparscale::sim
