#include "sim/iteration_view.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>

#include "base/error.hpp"

namespace sparscale::sim {
namespace {

std::string duration(double seconds) {
  const auto [factor, unit] = seconds >= 1 ? std::pair{1.0, " s"} : seconds >= 1e-3 ? std::pair{1e3, " ms"} : std::pair{1e6, " us"};
  char text[48];
  std::snprintf(text, sizeof text, "%.4g", seconds * factor);
  return text + std::string(unit);
}

// One stay of the critical path on a worker or in a call.
struct Leg {
  std::size_t worker = 0;
  std::int64_t call = -1;
  double begin_s = 0, end_s = 0;
  std::string name;
};

std::string text_of(const IterationLog& log, const Leg& leg) {
  const IterationLog::Call& call = log.calls[static_cast<std::size_t>(leg.call)];
  const double spent_s = leg.end_s - leg.begin_s;
  std::string text = call.name + ", entered last by worker " + std::to_string(leg.worker) + ": " + duration(spent_s);
  if (call.busiest_link_s <= 0) return text + ", latency alone";
  // What calls of other streams put on the same link meanwhile, taken as spread evenly over their time.
  std::map<std::int64_t, double> of_stream_s;
  const auto link = static_cast<std::size_t>(call.busiest_link_id);
  for (const IterationLog::Call& other : log.calls) {
    if (other.stream == call.stream || other.link_bytes.empty()) continue;
    const double begin_s = *std::min_element(other.begin_s.begin(), other.begin_s.end());
    const double end_s = *std::max_element(other.end_s.begin(), other.end_s.end());
    const double meets_s = std::min(end_s, leg.end_s) - std::max(begin_s, leg.begin_s);
    if (meets_s > 0)
      of_stream_s[other.stream] += call.busiest_link_s * static_cast<double>(other.link_bytes[link]) /
                                   static_cast<double>(call.link_bytes[link]) * meets_s / (end_s - begin_s);
  }
  // Links are shared evenly: another stream takes no more of this call's time than the call transfers itself.
  double others_s = 0, held_s = call.busiest_link_s;
  for (const auto& [stream, time_s] : of_stream_s) {
    others_s += time_s;
    held_s += std::min(time_s, call.busiest_link_s);
  }
  text += held_s < spent_s / 2 ? ", mostly latency and waiting; " : ", bound by ";
  text += "links of class " + call.busiest_class + " (" + call.busiest_link + " transfers for " + duration(call.busiest_link_s);
  if (others_s > 0) text += ", and some " + duration(others_s) + " meanwhile for calls of other streams";
  return text + ")";
}

}  // namespace

std::vector<std::string> critical_path(const IterationLog& log) {
  std::vector<Leg> legs;
  const std::size_t n = log.compute.size();
  // The worker that is done last, and with what.
  std::size_t worker = 0;
  double now = -std::numeric_limits<double>::infinity();
  const auto consider = [&](std::size_t of, double end_s) {
    if (end_s <= now) return;
    now = end_s;
    worker = of;
  };
  for (std::size_t of = 0; of < n; ++of) {
    if (!log.compute[of].empty()) consider(of, log.compute[of].back().end_s);
    for (const IterationLog::Call& call : log.calls) consider(of, call.end_s[of]);
  }
  std::int64_t stream = -1;  // of the call that the path has just left
  while (now > log.begin_s) {
    // What ended on this worker last.
    const IterationLog::Segment* segment = nullptr;
    const auto& segments = log.compute[worker];
    const auto after = std::upper_bound(segments.begin(), segments.end(), now, [](double t, const auto& one) { return t < one.end_s; });
    if (after != segments.begin()) segment = &*std::prev(after);
    std::int64_t call = -1;
    for (std::size_t c = 0; c < log.calls.size(); ++c) {
      const double end_s = log.calls[c].end_s[worker];
      if (end_s > now || end_s <= log.calls[c].begin_s[worker]) continue;
      const IterationLog::Call* const best = call < 0 ? nullptr : &log.calls[static_cast<std::size_t>(call)];
      // Of several that ended at once, the one that the call which the path has left follows in its stream.
      const bool follows = best == nullptr || log.calls[c].stream == stream || best->stream != stream;
      if (best == nullptr || end_s > best->end_s[worker] || (end_s == best->end_s[worker] && follows)) call = static_cast<std::int64_t>(c);
    }
    if (segment != nullptr && (call < 0 || segment->end_s >= log.calls[static_cast<std::size_t>(call)].end_s[worker])) {
      legs.push_back({worker, -1, segment->begin_s, segment->end_s, segment->name});
      now = segment->begin_s;
      stream = -1;
      continue;
    }
    if (call < 0) break;
    const IterationLog::Call& made = log.calls[static_cast<std::size_t>(call)];
    const double end_s = made.end_s[worker];
    std::size_t last = worker;
    for (std::size_t of = 0; of < n; ++of)
      if (made.begin_s[of] < end_s && made.begin_s[of] > made.begin_s[last]) last = of;
    legs.push_back({last, call, made.begin_s[last], end_s, {}});
    worker = last;
    now = made.begin_s[last];
    stream = made.stream;
  }
  std::reverse(legs.begin(), legs.end());
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < legs.size();) {
    if (legs[i].call >= 0) {
      lines.push_back(text_of(log, legs[i++]));
      continue;
    }
    std::string line = "worker " + std::to_string(legs[i].worker) + ": ";
    // Phases of one name in a row, and all backward passes of layers, are one.
    bool first = true;
    for (const std::size_t of = legs[i].worker; i < legs.size() && legs[i].call < 0 && legs[i].worker == of;) {
      const auto base = [](const std::string& name) { return name.substr(0, name.find(' ')); };
      const std::string name = base(legs[i].name);
      double spent_s = 0;
      for (; i < legs.size() && legs[i].call < 0 && legs[i].worker == of && base(legs[i].name) == name; ++i)
        spent_s += legs[i].end_s - legs[i].begin_s;
      line += (first ? "" : ", ") + name + " " + duration(spent_s);
      first = false;
    }
    lines.push_back(line);
  }
  return lines;
}

namespace {

std::int64_t streams_of(const IterationLog& log) {
  std::int64_t streams = 1;
  for (const IterationLog::Call& call : log.calls) streams = std::max(streams, call.stream + 1);
  return streams;
}

}  // namespace

Json activity(const IterationLog& log) {
  static constexpr const char* kinds[] = {"forward", "backward", "selection", "other"};
  std::vector<double> ends_s(log.compute.size(), log.begin_s), computes_s(log.compute.size(), 0);
  for (std::size_t worker = 0; worker < ends_s.size(); ++worker) {
    for (const IterationLog::Segment& segment : log.compute[worker]) {
      computes_s[worker] += segment.end_s - segment.begin_s;
      ends_s[worker] = std::max(ends_s[worker], segment.end_s);
    }
    for (const IterationLog::Call& call : log.calls) ends_s[worker] = std::max(ends_s[worker], call.end_s[worker]);
  }
  const std::size_t last = ends_s.empty() ? 0 : last_worker(ends_s, computes_s, log.end_s - log.begin_s);
  const double least_s = (log.end_s - log.begin_s) / 2000;
  struct Piece {
    Json what;
    double begin_s, end_s;
  };
  // Lengthens the last of the pieces, which are all of one lane, or adds one; what lies before the iteration is left out.
  const auto add = [&](std::vector<Piece>& lane, const Json& what, double from_s, double to_s) {
    from_s = std::max(from_s, log.begin_s) - log.begin_s;
    to_s -= log.begin_s;
    if (to_s <= from_s) return;
    if (!lane.empty() && lane.back().what == what && from_s - lane.back().end_s <= least_s)
      lane.back().end_s = std::max(lane.back().end_s, to_s);
    else
      lane.push_back({what, from_s, to_s});
  };
  Json strip = {{"worker", last}, {"end_s", log.end_s - log.begin_s}, {"compute", Json::array()}, {"communicate", Json::array()}};
  const auto write = [&](const char* list, const char* key, const std::vector<Piece>& lane) {
    for (const Piece& piece : lane) strip[list].push_back({{key, piece.what}, {"begin_s", piece.begin_s}, {"end_s", piece.end_s}});
  };
  std::vector<Piece> compute;
  if (!log.compute.empty())
    for (const IterationLog::Segment& segment : log.compute[last])
      add(compute, kinds[static_cast<std::size_t>(segment.kind)], segment.begin_s, segment.end_s);
  write("compute", "kind", compute);
  for (std::int64_t stream = 0; stream < streams_of(log); ++stream) {
    std::vector<Piece> calls;
    for (const IterationLog::Call& call : log.calls)
      if (call.stream == stream) add(calls, stream, call.begin_s[last], call.end_s[last]);
    write("communicate", "stream", calls);
  }
  return strip;
}

Json event_trace(const IterationLog& log) {
  const std::int64_t streams = streams_of(log);
  double origin_s = log.end_s;
  for (const auto& segments : log.compute)
    if (!segments.empty()) origin_s = std::min(origin_s, segments.front().begin_s);
  for (const IterationLog::Call& call : log.calls)
    for (const double begin_s : call.begin_s) origin_s = std::min(origin_s, begin_s);
  Json events = Json::array();
  const auto name_track = [&](std::size_t worker, std::int64_t track, const std::string& name) {
    events.push_back({{"name", "thread_name"}, {"ph", "M"}, {"pid", worker}, {"tid", track}, {"args", {{"name", name}}}});
  };
  const auto add = [&](std::size_t worker, std::int64_t track, const std::string& name, const char* category, double begin_s,
                       double end_s) {
    events.push_back({{"name", name},
                      {"cat", category},
                      {"ph", "X"},
                      {"ts", (begin_s - origin_s) * 1e6},
                      {"dur", (end_s - begin_s) * 1e6},
                      {"pid", worker},
                      {"tid", track}});
  };
  for (std::size_t worker = 0; worker < log.compute.size(); ++worker) {
    events.push_back({{"name", "process_name"}, {"ph", "M"}, {"pid", worker}, {"args", {{"name", "worker " + std::to_string(worker)}}}});
    name_track(worker, 0, "compute");
    for (std::int64_t stream = 0; stream < streams; ++stream)
      name_track(worker, 1 + stream, streams == 1 ? "communicate" : "communicate " + std::to_string(stream + 1));
    for (const IterationLog::Segment& segment : log.compute[worker]) {
      static constexpr const char* kinds[] = {"forward", "backward", "selection", "other"};
      add(worker, 0, segment.name, kinds[static_cast<std::size_t>(segment.kind)], segment.begin_s, segment.end_s);
    }
    for (const IterationLog::Call& call : log.calls)
      if (call.end_s[worker] > call.begin_s[worker]) {
        add(worker, 1 + call.stream, call.name, "communication", call.begin_s[worker], call.end_s[worker]);
        events.back()["args"] = {
            {"bytes", call.bytes[worker]}, {"bytes_received", call.received[worker]}, {"busiest_link", call.busiest_link}};
      }
  }
  return {{"displayTimeUnit", "ms"}, {"traceEvents", events}};
}

std::vector<GoalPart> goal_parts(const IterationLog& log, const Network& network, const TimelineOptions& options) {
  const std::size_t n = log.compute.size();
  std::vector<GoalPart> parts;
  std::vector<double> begin_s(n, std::numeric_limits<double>::infinity());
  for (std::size_t worker = 0; worker < n; ++worker) {
    if (!log.compute[worker].empty()) begin_s[worker] = log.compute[worker].front().begin_s;
    for (const IterationLog::Call& call : log.calls) begin_s[worker] = std::min(begin_s[worker], call.begin_s[worker]);
  }
  std::vector<std::vector<double>> done_s(static_cast<std::size_t>(streams_of(log)), begin_s);
  const auto compute_until = [&](const std::vector<double>& from_s, const std::vector<double>& until_s) {
    std::vector<double> compute_s(n);
    for (std::size_t worker = 0; worker < n; ++worker) compute_s[worker] = std::max(0.0, until_s[worker] - from_s[worker]);
    return compute_s;
  };
  for (const IterationLog::Call& call : log.calls) {
    const CollectiveAlgorithm& algorithm = find_collective(call.operation, call.algorithm);
    std::vector<double>& stream_s = done_s[static_cast<std::size_t>(call.stream)];
    parts.push_back({compute_until(stream_s, call.begin_s),
                     algorithm.make({call.bytes, call.root, network.node_of_worker(), 0, call.round,
                                     call.operation == Operation::gossip ? options.gossip_seed : 1,
                                     call.stretches ? &*call.stretches : nullptr, call.parts, options.gossip_segments}),
                     call.stream});
    stream_s = call.end_s;
  }
  std::vector<double> all_s = done_s.front();
  for (const std::vector<double>& stream_s : done_s)
    for (std::size_t worker = 0; worker < n; ++worker) all_s[worker] = std::max(all_s[worker], stream_s[worker]);
  std::vector<double> end_s = all_s;
  for (std::size_t worker = 0; worker < n; ++worker)
    if (!log.compute[worker].empty()) end_s[worker] = std::max(end_s[worker], log.compute[worker].back().end_s);
  // What comes after all streams stands on the processor of the one that is through last: a processor does not wait for another one's
  // computing.
  for (std::size_t stream = 0; stream < done_s.size(); ++stream) {
    std::vector<double> compute_s = compute_until(all_s, end_s);
    for (std::size_t worker = 0; worker < n; ++worker)
      for (std::size_t other = 0; other < done_s.size(); ++other)
        if (done_s[other][worker] > done_s[stream][worker] || (other < stream && done_s[other][worker] == done_s[stream][worker]))
          compute_s[worker] = 0;
    parts.push_back({compute_s, nullptr, static_cast<std::int64_t>(stream), true});
  }
  return parts;
}

namespace {

// The operations of one rank. An operation that others wait for is named by its label.
class Rank {
 public:
  std::int64_t add(const std::string& operation, const std::vector<std::int64_t>& after) {
    const std::int64_t label = ++labels_;
    lines_ += "l" + std::to_string(label) + ": " + operation + "\n";
    for (const std::int64_t one : after) lines_ += "l" + std::to_string(label) + " requires l" + std::to_string(one) + "\n";
    return label;
  }
  const std::string& lines() const { return lines_; }
  /// What has to be over before the next part of a stream.
  std::vector<std::int64_t> last(std::int64_t stream) const {
    const auto own = last_.find(stream);
    return own == last_.end() ? std::vector<std::int64_t>() : own->second;
  }
  std::vector<std::int64_t> last_of_all() const {
    std::vector<std::int64_t> all;
    for (const auto& [of, labels] : last_) all.insert(all.end(), labels.begin(), labels.end());
    return all;
  }
  void set_last(std::int64_t stream, std::vector<std::int64_t> labels) { last_[stream] = std::move(labels); }

 private:
  std::int64_t labels_ = 0;
  std::string lines_;
  std::map<std::int64_t, std::vector<std::int64_t>> last_;  // by stream
};

// Messages from one strand to another, as they are sent.
std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::uint64_t>> messages_of(const Program& program, std::int64_t strands) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::uint64_t>> messages;
  Step step;
  for (std::int64_t strand = 0; strand < strands; ++strand)
    for (std::int64_t number = 0; number < program.steps(strand); ++number) {
      program.step(strand, number, step);
      for (const Transfer& transfer : step.sends) messages[{strand, transfer.peer}].push_back(transfer.bytes);
    }
  return messages;
}

// A stream has a processor of its own, for its messages too: LogGOPSim lets an operation begin when its own processor is free, whatever the
// processors of those that it requires are still busy with.
std::string processor(std::int64_t stream) { return stream > 0 ? " cpu " + std::to_string(stream) : ""; }

// LogGOPSim counts all bytes of a message but one; of 0 bytes it would count 2^64 - 1.
std::string size_of(std::uint64_t bytes) { return std::to_string(std::max<std::uint64_t>(bytes, 1)) + "b"; }

void add_program(const Program& program, std::vector<Rank>& ranks, std::int64_t first_tag, std::int64_t stream) {
  const std::int64_t lanes = program.lanes(), ends = program.workers() + program.switches();
  const auto sent = messages_of(program, ends * lanes);
  std::map<std::pair<std::int64_t, std::int64_t>, std::size_t> received;
  Step step;
  for (std::int64_t end = 0; end < ends; ++end) {
    Rank& rank = ranks[static_cast<std::size_t>(end)];
    // over[lane][s]: the operation that ends step s. Lanes wait for each other, so each is taken as far as it goes, in turn.
    std::vector<std::vector<std::int64_t>> over(static_cast<std::size_t>(lanes));
    const auto steps_of = [&](std::int64_t lane) { return program.steps(end * lanes + lane); };
    for (bool moved = true; moved;) {
      moved = false;
      for (std::int64_t lane = 0; lane < lanes; ++lane) {
        auto& mine = over[static_cast<std::size_t>(lane)];
        while (std::ssize(mine) < steps_of(lane)) {
          const std::int64_t strand = end * lanes + lane;
          program.step(strand, std::ssize(mine), step);
          std::vector<std::int64_t> after = mine.empty() ? rank.last(stream) : std::vector<std::int64_t>{mine.back()};
          bool held = false;
          for (const After& one : step.after) {
            const auto& other = over[static_cast<std::size_t>(one.lane)];
            held = held || std::ssize(other) < one.steps;
            if (!held && one.steps > 0) after.push_back(other[static_cast<std::size_t>(one.steps - 1)]);
          }
          if (held) break;
          std::vector<std::int64_t> operations;
          const auto tag = [&](std::int64_t from, std::int64_t to) {
            return std::to_string(first_tag + from % lanes * lanes + to % lanes);
          };
          for (const Transfer& transfer : step.sends)
            operations.push_back(rank.add("send " + size_of(transfer.bytes) + " to " + std::to_string(transfer.peer / lanes) + " tag " +
                                              tag(strand, transfer.peer) + processor(stream),
                                          after));
          for (const std::int64_t peer : step.receives) {
            const auto messages = sent.find({peer, strand});
            std::size_t& number = received[{peer, strand}];
            if (messages == sent.end() || number >= messages->second.size())
              throw RunError("worker " + std::to_string(end) + " receives a message that worker " + std::to_string(peer / lanes) +
                             " does not send");
            operations.push_back(rank.add("recv " + size_of(messages->second[number++]) + " from " + std::to_string(peer / lanes) +
                                              " tag " + tag(peer, strand) + processor(stream),
                                          after));
          }
          mine.push_back(operations.size() == 1 ? operations.front()
                                                : rank.add("calc 0" + processor(stream), operations.empty() ? after : operations));
          moved = true;
        }
      }
    }
    std::vector<std::int64_t> last;
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      const auto& mine = over[static_cast<std::size_t>(lane)];
      if (std::ssize(mine) < steps_of(lane)) throw RunError("lanes of worker " + std::to_string(end) + " wait for each other");
      if (!mine.empty()) last.push_back(mine.back());
    }
    if (!last.empty()) rank.set_last(stream, last);
  }
}

}  // namespace

GoalUnit goal_unit(const platforms::Topology& topology) {
  GoalUnit unit;
  const std::int64_t n = topology.workers();
  if (n < 2) return unit;
  const auto first = topology.route(0, n - 1);
  const double latency_s = topology.latency_s(first), bandwidth_Bps = topology.bandwidth_Bps(first);
  unit.unit_s = 1 / bandwidth_Bps;
  unit.eager = topology.eager();
  unit.latency = static_cast<std::uint64_t>(std::llround(latency_s * bandwidth_Bps));
  const auto same = [](double a, double b) { return std::abs(a - b) <= 1e-9 * std::abs(b); };
  for (std::int64_t from = 0; from < n && unit.all_routes; ++from)
    for (std::int64_t to = 0; to < n && unit.all_routes; ++to) {
      if (from == to) continue;
      const auto route = topology.route(from, to);
      unit.all_routes = same(topology.latency_s(route), latency_s) && same(topology.bandwidth_Bps(route), bandwidth_Bps);
    }
  return unit;
}

std::string goal_schedule(std::int64_t workers, const std::vector<GoalPart>& parts, const GoalUnit& unit) {
  std::int64_t ends = workers;
  for (const GoalPart& part : parts)
    if (part.program) ends = std::max(ends, part.program->workers() + part.program->switches());
  std::vector<Rank> ranks(static_cast<std::size_t>(ends));
  std::int64_t tag = 0;  // of a call's first pair of lanes: messages of different calls never match
  for (const GoalPart& part : parts) {
    for (std::size_t worker = 0; worker < part.compute_s.size(); ++worker)
      if (const long long units = std::llround(part.compute_s[worker] / unit.unit_s); units > 0)
        ranks[worker].set_last(part.stream,
                               {ranks[worker].add("calc " + std::to_string(units) + processor(part.stream),
                                                  part.after_all ? ranks[worker].last_of_all() : ranks[worker].last(part.stream))});
    if (!part.program) continue;
    add_program(*part.program, ranks, tag, part.stream);
    tag += part.program->lanes() * part.program->lanes();
    if (tag > std::numeric_limits<std::int32_t>::max()) throw RunError("a schedule with more tags than GOAL has");
  }
  std::string text = "// One unit of time is " + Json(unit.unit_s).dump() + " s. LogGOPSim -L " + std::to_string(unit.latency) +
                     " -o 0 -g 0 -G 1 -O 0 -S " + (unit.eager ? "2147483647" : "0") + "\n" +
                     (unit.all_routes ? "// All pairs of workers have this latency and bandwidth.\n"
                                      : "// Routes differ: latency and bandwidth are those from worker 0 to the last one.\n") +
                     "num_ranks " + std::to_string(ends) + "\n";
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    text += "\nrank " + std::to_string(rank) + " {\n" + (ranks[rank].lines().empty() ? "l1: calc 0\n" : ranks[rank].lines()) + "}\n";
  return text;
}

}  // namespace sparscale::sim
