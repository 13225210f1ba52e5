// Two streams per worker: one that computes, one that communicates, side by side. Computing takes longer while the same worker
// communicates.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/timelines/mode.hpp"

namespace sparscale::sim {

class Streams {
 public:
  using Kind = IterationLog::Kind;

  /// Both streams of every worker are free from its `start_s` on. The context must outlive it.
  Streams(TimelineContext& context, const std::vector<double>& start_s);

  /// Computes `work_s` on a worker, from when its stream is free but not before `ready_s`. All calls that the worker makes until the end of
  /// this must have been timed.
  double compute(std::size_t worker, double ready_s, double work_s, Kind kind, const std::string& name);
  /// The same, but only if it ends at `limit_s` or before; calls that begin at the limit or later may still be unknown.
  bool compute_by(std::size_t worker, double ready_s, double work_s, double limit_s, Kind kind, const std::string& name);
  /// All workers make a call; a worker enters when it is ready and its last call is over. Returns when each is done.
  const std::vector<double>& communicate(const CollectiveCall& call, const std::vector<double>& ready_s, const std::string& algorithm = "");

  double computes_until(std::size_t worker) const { return compute_s_[worker]; }
  const std::vector<double>& communicates_until() const { return communicate_s_; }
  std::size_t workers() const { return compute_s_.size(); }
  /// When both streams of each worker are through.
  std::vector<double> ends() const;

  /// Fills the context's result from begin_s (when the last worker had finished the iteration before) to the last worker's end. The phases
  /// are that worker's: what it computes, and, while it does not, the call that it is in or waits for.
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
  double end_of(std::size_t worker, double begin_s, double work_s) const;

  TimelineContext& context_;
  double slowdown_;
  std::vector<double> compute_s_, communicate_s_;
  std::vector<std::vector<Segment>> segments_;   // per worker, in order
  std::vector<std::vector<Call>> calls_;         // per worker, in order
  mutable std::vector<std::size_t> first_call_;  // the first that can still overlap with computing
};

/// One kernel item of a record (or a part of one), for all workers.
struct Kernel {
  std::string operation;
  std::vector<double> work_s;  // per worker
  void run(Streams& streams, std::size_t worker, double ready_s) const;
};

}  // namespace sparscale::sim
