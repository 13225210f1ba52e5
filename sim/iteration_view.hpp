// An iteration for people and for other tools: its critical path in words, as a trace of events, as a schedule of messages.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "sim/timeline.hpp"

namespace sparscale::sim {

/// What the end of the iteration waited for, from its begin on, a line for each worker and call: which worker, which phases, which
/// collective, which class of links. Inside a call the path goes to the worker that entered it last (of those that entered before it was
/// over).
std::vector<std::string> critical_path(const IterationLog& log);

/// What the worker that is done last does during the iteration, in seconds from its begin: {worker, end_s, compute: [{kind, begin_s,
/// end_s}], communicate: [{stream, begin_s, end_s}]}, stream by stream in order. Pieces of a kind that follow one another are one, as are
/// those with a gap of less than a two-thousandth of the iteration between them, which no figure shows.
Json activity(const IterationLog& log);

/// Chrome's trace format (Perfetto, chrome://tracing): a process per worker with the tracks compute and communicate (one for each stream of
/// calls); ts and dur in microseconds from the first event.
Json event_trace(const IterationLog& log);

/// A part of a schedule: how long each worker computes (one per worker or none), then a message program (or none).
struct GoalPart {
  std::vector<double> compute_s;
  std::shared_ptr<const Program> program;
  std::int64_t stream = 0;  // parts of one stream follow one another
  bool after_all = false;   // it begins when all streams are through
};

/// What LogGOPSim has to be told. Its parameters are whole numbers for all pairs of ranks, so a byte takes one unit of time: unit_s, from
/// the bandwidth of the route from worker 0 to the last one.
struct GoalUnit {
  double unit_s = 1e-9;       // 1 ns for a single worker
  std::uint64_t latency = 0;  // of that route, in units: L, with o = g = O = 0 and G = 1
  bool all_routes = true;     // all pairs of workers have this latency and bandwidth
  bool eager = false;         // messages are sent eagerly: S as large as it can be, else 0
};
/// Cost O(workers^2) routes.
GoalUnit goal_unit(const platforms::Topology& topology);

/// GOAL text for LogGOPSim (its txt2bin reads it): two lines of comment with unit and parameters, a rank per worker, further ones for
/// aggregating switches. Messages of a step start when those of the step before are through. Cost O(messages). Errors: RunError when a
/// message is received that nobody sends.
std::string goal_schedule(std::int64_t workers, const std::vector<GoalPart>& parts, const GoalUnit& unit);
/// The calls of an iteration with the time between them as computing, their messages as large as those that were timed. `options`: those of
/// the timeline.
std::vector<GoalPart> goal_parts(const IterationLog& log, const Network& network, const TimelineOptions& options);

}  // namespace sparscale::sim
