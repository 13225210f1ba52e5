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
  text += call.busiest_link_s < spent_s / 2 ? ", mostly latency and waiting; " : ", bound by ";
  return text + "links of class " + call.busiest_class + " (" + call.busiest_link + " transfers for " + duration(call.busiest_link_s) + ")";
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
      if (call < 0 || end_s >= log.calls[static_cast<std::size_t>(call)].end_s[worker]) call = static_cast<std::int64_t>(c);
    }
    if (segment != nullptr && (call < 0 || segment->end_s >= log.calls[static_cast<std::size_t>(call)].end_s[worker])) {
      legs.push_back({worker, -1, segment->begin_s, segment->end_s, segment->name});
      now = segment->begin_s;
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

Json event_trace(const IterationLog& log) {
  double origin_s = log.end_s;
  for (const auto& segments : log.compute)
    if (!segments.empty()) origin_s = std::min(origin_s, segments.front().begin_s);
  for (const IterationLog::Call& call : log.calls)
    for (const double begin_s : call.begin_s) origin_s = std::min(origin_s, begin_s);
  Json events = Json::array();
  const auto name_track = [&](std::size_t worker, int track, const char* name) {
    events.push_back({{"name", "thread_name"}, {"ph", "M"}, {"pid", worker}, {"tid", track}, {"args", {{"name", name}}}});
  };
  const auto add = [&](std::size_t worker, int track, const std::string& name, const char* category, double begin_s, double end_s) {
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
    name_track(worker, 1, "communicate");
    for (const IterationLog::Segment& segment : log.compute[worker]) {
      static constexpr const char* kinds[] = {"forward", "backward", "selection", "other"};
      add(worker, 0, segment.name, kinds[static_cast<std::size_t>(segment.kind)], segment.begin_s, segment.end_s);
    }
    for (const IterationLog::Call& call : log.calls)
      if (call.end_s[worker] > call.begin_s[worker]) {
        add(worker, 1, call.name, "communication", call.begin_s[worker], call.end_s[worker]);
        events.back()["args"] = {{"bytes", call.bytes[worker]}, {"busiest_link", call.busiest_link}};
      }
  }
  return {{"displayTimeUnit", "ms"}, {"traceEvents", events}};
}

std::vector<GoalPart> goal_parts(const IterationLog& log, const Network& network, std::uint64_t gossip_seed) {
  const std::size_t n = log.compute.size();
  std::vector<GoalPart> parts;
  std::vector<double> done_s(n, std::numeric_limits<double>::infinity());
  for (std::size_t worker = 0; worker < n; ++worker) {
    if (!log.compute[worker].empty()) done_s[worker] = log.compute[worker].front().begin_s;
    if (!log.calls.empty()) done_s[worker] = std::min(done_s[worker], log.calls.front().begin_s[worker]);
  }
  const auto compute_until = [&](const std::vector<double>& until_s) {
    std::vector<double> compute_s(n);
    for (std::size_t worker = 0; worker < n; ++worker) compute_s[worker] = std::max(0.0, until_s[worker] - done_s[worker]);
    return compute_s;
  };
  for (const IterationLog::Call& call : log.calls) {
    const CollectiveAlgorithm& algorithm = find_collective(call.operation, call.algorithm);
    parts.push_back({compute_until(call.begin_s), algorithm.make({call.bytes, call.root, network.node_of_worker(), 0, call.round,
                                                                  call.operation == Operation::gossip ? gossip_seed : 1})});
    done_s = call.end_s;
  }
  std::vector<double> end_s = done_s;
  for (std::size_t worker = 0; worker < n; ++worker)
    if (!log.compute[worker].empty()) end_s[worker] = std::max(end_s[worker], log.compute[worker].back().end_s);
  parts.push_back({compute_until(end_s), nullptr});
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
  std::vector<std::int64_t> last;  // what has to be over before the next part

 private:
  std::int64_t labels_ = 0;
  std::string lines_;
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

void add_program(const Program& program, std::vector<Rank>& ranks, std::int64_t first_tag) {
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
          std::vector<std::int64_t> after = mine.empty() ? rank.last : std::vector<std::int64_t>{mine.back()};
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
            operations.push_back(rank.add("send " + std::to_string(transfer.bytes) + "b to " + std::to_string(transfer.peer / lanes) +
                                              " tag " + tag(strand, transfer.peer),
                                          after));
          for (const std::int64_t peer : step.receives) {
            const auto messages = sent.find({peer, strand});
            std::size_t& number = received[{peer, strand}];
            if (messages == sent.end() || number >= messages->second.size())
              throw RunError("worker " + std::to_string(end) + " receives a message that worker " + std::to_string(peer / lanes) +
                             " does not send");
            operations.push_back(rank.add("recv " + std::to_string(messages->second[number++]) + "b from " + std::to_string(peer / lanes) +
                                              " tag " + tag(peer, strand),
                                          after));
          }
          mine.push_back(operations.size() == 1 ? operations.front() : rank.add("calc 0", operations.empty() ? after : operations));
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
    if (!last.empty()) rank.last = last;
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
        ranks[worker].last = {ranks[worker].add("calc " + std::to_string(units), ranks[worker].last)};
    if (!part.program) continue;
    add_program(*part.program, ranks, tag);
    tag += part.program->lanes() * part.program->lanes();
    if (tag > std::numeric_limits<std::int32_t>::max()) throw RunError("a schedule with more tags than GOAL has");
  }
  std::string text = "// One unit of time is " + Json(unit.unit_s).dump() + " s. LogGOPSim -L " + std::to_string(unit.latency) +
                     " -o 0 -g 0 -G 1 -O 0 -S 0\n" +
                     (unit.all_routes ? "// All pairs of workers have this latency and bandwidth.\n"
                                      : "// Routes differ: latency and bandwidth are those from worker 0 to the last one.\n") +
                     "num_ranks " + std::to_string(ends) + "\n";
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    text += "\nrank " + std::to_string(rank) + " {\n" + (ranks[rank].lines().empty() ? "l1: calc 0\n" : ranks[rank].lines()) + "}\n";
  return text;
}

}  // namespace sparscale::sim
