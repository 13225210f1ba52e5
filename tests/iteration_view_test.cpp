// One iteration as words, as a trace of events and as a GOAL schedule.
#include "sim/iteration_view.hpp"

#include <map>
#include <queue>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "tests/catch.hpp"
#include "tests/timeline_support.hpp"

using namespace sparscale;
using namespace sparscale::sim;
using namespace sparscale::test;

namespace {

// Two workers; the second selects for longer.
IterationLog sequential_log(Network& network) {
  static const kernels::Profile profile = hand_profile();
  TimelineOptions options;
  options.forward_time_s = 10e-6;
  options.backward_time_s = 20e-6;
  Timeline timeline(profile, network, options);
  timeline.keep_log(true);
  timeline.time({{"workers", 2},
                 {"exchange", parse_json(R"([{"op":"all_gather","payload":"indices","dtype":"int64","bytes":[1100000,550000]},
                                             {"op":"all_reduce","payload":"values","dtype":"float32","bytes":400}])",
                                         "exchange")},
                 {"work", parse_json(R"([{"operation":"topk","before_call":0,"elements":[100,1000],"selected":[10,10]},
                                         {"operation":"unite","before_call":1,"elements":100,"selected":10}])",
                                     "work")}});
  return timeline.log();
}

// A reader of GOAL text as txt2bin reads it: operations by label, and what each requires.
struct Goal {
  struct Operation {
    std::string kind;
    std::uint64_t size = 0;
    std::int64_t peer = -1, tag = 0;
    std::size_t cpu = 0;
    std::vector<std::string> requires_labels;
  };
  static constexpr std::size_t cpus = 16;
  std::int64_t num_ranks = 0;
  std::map<std::int64_t, std::map<std::string, Operation>> ranks;

  explicit Goal(const std::string& text) {
    std::istringstream lines(text);
    std::string line;
    std::int64_t rank = -1;
    while (std::getline(lines, line)) {
      std::istringstream words(line);
      std::string word;
      if (!(words >> word) || word == "//") continue;
      if (word == "num_ranks") {
        REQUIRE(words >> num_ranks);
      } else if (word == "rank") {
        REQUIRE(words >> rank);
        ranks[rank];
      } else if (word == "}") {
        rank = -1;
      } else if (word.back() == ':') {
        REQUIRE(rank >= 0);
        Operation operation;
        std::string size, direction, tag;
        REQUIRE(words >> operation.kind >> size);
        operation.size = std::stoull(size);
        if (operation.kind != "calc") {
          REQUIRE(size.back() == 'b');
          REQUIRE(words >> direction >> operation.peer >> tag >> operation.tag);
          REQUIRE(direction == (operation.kind == "send" ? "to" : "from"));
          REQUIRE(tag == "tag");
        }
        if (std::string cpu; words >> cpu) REQUIRE((cpu == "cpu" && words >> operation.cpu && operation.cpu < cpus));
        REQUIRE(ranks[rank].emplace(word.substr(0, word.size() - 1), operation).second);
      } else {
        std::string verb, label;
        REQUIRE(words >> verb >> label);
        REQUIRE(verb == "requires");
        REQUIRE(ranks[rank].contains(label));  // labels are known before they are named
        ranks[rank].at(word).requires_labels.push_back(label);
      }
    }
  }

  // LogGOPSim's rules (its main loop, version of 2023) with o = g = O = S = 0 and G = 1 and no noise: when each host's processors are done.
  // A host's processors and its sending and receiving side are busy until nexto, nextgs and nextgr; a message of s bytes gets to its host L
  // after it was sent and keeps it busy for s - 1; a send is done when its message is matched. Computing counts as done when it begins:
  // what requires it waits for its own processor alone.
  std::vector<std::uint64_t> loggopsim(std::uint64_t L) const {
    struct Event {
      std::uint64_t time, order;
      int type;  // 1 send, 2 recv, 3 calc, 4 message
      std::int64_t host, peer;
      std::string label;
      bool operator<(const Event& other) const { return std::tie(time, order) > std::tie(other.time, other.order); }
    };
    struct Waiting {
      std::int64_t from, tag;
      std::string label;
    };
    const auto n = static_cast<std::size_t>(num_ranks);
    std::vector<std::vector<std::uint64_t>> nexto(n, std::vector<std::uint64_t>(cpus));
    std::vector<std::uint64_t> nextgs(n), nextgr(n);
    std::vector<std::vector<Waiting>> posted(n), arrived(n);
    std::vector<std::map<std::string, std::size_t>> held(n);  // how many operations each still waits for
    std::vector<std::map<std::string, std::vector<std::string>>> wakes(n);
    std::vector<std::vector<std::string>> free(n);
    std::priority_queue<Event> queue;
    std::uint64_t order = 0;
    const auto at = [&](std::int64_t host, const std::string& label) -> const Operation& { return ranks.at(host).at(label); };
    const auto type_of = [](const Operation& operation) { return operation.kind == "send" ? 1 : operation.kind == "recv" ? 2 : 3; };
    const auto issue = [&](std::int64_t host) {
      const auto h = static_cast<std::size_t>(host);
      std::vector<std::string> now;
      now.swap(free[h]);
      std::stable_sort(now.begin(), now.end(),
                       [&](const std::string& a, const std::string& b) { return type_of(at(host, a)) < type_of(at(host, b)); });
      for (const std::string& label : now) {
        const int type = type_of(at(host, label));
        const std::uint64_t free_at = nexto[h][at(host, label).cpu];
        queue.push({type == 1 ? std::max(free_at, nextgs[h]) : free_at, order++, type, host, at(host, label).peer, label});
      }
    };
    const auto finish = [&](std::int64_t host, const std::string& label) {
      const auto h = static_cast<std::size_t>(host);
      for (const std::string& other : wakes[h][label])
        if (--held[h][other] == 0) free[h].push_back(other);
    };
    for (const auto& [rank, operations] : ranks)
      for (const auto& [label, operation] : operations) {
        const auto h = static_cast<std::size_t>(rank);
        held[h][label] = operation.requires_labels.size();
        for (const std::string& other : operation.requires_labels) wakes[h][other].push_back(label);
        if (operation.requires_labels.empty()) free[h].push_back(label);
      }
    for (std::int64_t host = 0; host < num_ranks; ++host) issue(host);
    const auto take = [](std::vector<Waiting>& list, std::int64_t from, std::int64_t tag, Waiting& found) {
      for (std::size_t i = 0; i < list.size(); ++i)
        if (list[i].from == from && list[i].tag == tag) {
          found = list[i];
          list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
          return true;
        }
      return false;
    };
    while (!queue.empty()) {
      Event event = queue.top();
      queue.pop();
      const auto h = static_cast<std::size_t>(event.host);
      std::set<std::int64_t> touched{event.host};
      const Operation& operation = at(event.type == 4 ? event.peer : event.host, event.label);
      std::uint64_t& busy = nexto[h][operation.cpu];
      Waiting other;
      const auto release_sender = [&](std::int64_t sender, const std::string& label) {
        const auto s = static_cast<std::size_t>(sender);
        finish(sender, label);
        touched.insert(sender);
        nexto[s][operation.cpu] = std::max(nexto[s][operation.cpu], event.time);
        nextgs[s] = std::max(nextgs[s], event.time);
      };
      if (event.type == 3) {
        if (busy > event.time) {
          event.time = busy;
          queue.push(event);
          continue;
        }
        busy = event.time + operation.size;
        finish(event.host, event.label);
      } else if (event.type == 1) {
        if (const std::uint64_t ready = std::max(busy, nextgs[h]); ready > event.time) {
          event.time = ready;
          queue.push(event);
          continue;
        }
        busy = event.time;
        nextgs[h] = event.time + operation.size - 1;
        queue.push({event.time + L, order++, 4, event.peer, event.host, event.label});
      } else if (event.type == 2) {
        if (take(arrived[h], operation.peer, operation.tag, other)) {
          release_sender(operation.peer, other.label);
          finish(event.host, event.label);
        } else {
          posted[h].push_back({operation.peer, operation.tag, event.label});
        }
      } else {
        if (const std::uint64_t ready = std::max(busy, nextgr[h]); ready > event.time) {
          event.time = ready;
          queue.push(event);
          continue;
        }
        busy = nextgr[h] = event.time + operation.size - 1;
        if (take(posted[h], event.peer, operation.tag, other)) {
          release_sender(event.peer, event.label);
          finish(event.host, other.label);
        } else {
          arrived[h].push_back({event.peer, operation.tag, event.label});
        }
      }
      for (const std::int64_t host : touched) issue(host);
    }
    for (std::size_t host = 0; host < n; ++host) {
      CHECK(posted[host].empty());
      CHECK(arrived[host].empty());
    }
    std::vector<std::uint64_t> done(n);
    for (std::size_t host = 0; host < n; ++host) done[host] = *std::max_element(nexto[host].begin(), nexto[host].end());
    return done;
  }

  // Runs the schedule: an operation when what it requires is over, a receive when its message has been sent. Returns the time at which each
  // rank is through when a message takes alpha + bytes / bandwidth from when both ends are ready.
  std::vector<double> run(double alpha_s, double bandwidth_Bps) const {
    std::map<std::pair<std::int64_t, std::string>, double> done;
    using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t>;  // from, to, tag
    std::map<Key, std::vector<std::pair<std::string, double>>> sends, receives;
    std::set<std::pair<std::int64_t, std::string>> posted;
    std::vector<double> end(static_cast<std::size_t>(num_ranks), 0);
    std::size_t all = 0;
    for (const auto& [rank, operations] : ranks) all += operations.size();
    for (bool moved = true; moved;) {
      moved = false;
      for (const auto& [rank, operations] : ranks)
        for (const auto& [label, operation] : operations) {
          if (posted.contains({rank, label})) continue;
          double ready = 0;
          bool held = false;
          for (const std::string& other : operation.requires_labels) {
            const auto found = done.find({rank, other});
            held = held || found == done.end();
            if (!held) ready = std::max(ready, found->second);
          }
          if (held) continue;
          posted.insert({rank, label});
          moved = true;
          if (operation.kind == "calc")
            done[{rank, label}] = ready + static_cast<double>(operation.size) / bandwidth_Bps;
          else if (operation.kind == "send")
            sends[{rank, operation.peer, operation.tag}].push_back({label, ready});
          else
            receives[{operation.peer, rank, operation.tag}].push_back({label, ready});
        }
      for (auto& [key, list] : sends) {
        auto& waiting = receives[key];
        const auto [from, to, tag] = key;
        while (!list.empty() && !waiting.empty()) {
          const auto& send = ranks.at(from).at(list.front().first);
          REQUIRE(send.size == ranks.at(to).at(waiting.front().first).size);
          const double over =
              std::max(list.front().second, waiting.front().second) + alpha_s + static_cast<double>(send.size) / bandwidth_Bps;
          done[{from, list.front().first}] = done[{to, waiting.front().first}] = over;
          list.erase(list.begin());
          waiting.erase(waiting.begin());
          moved = true;
        }
      }
    }
    CHECK(done.size() == all);
    for (const auto& [key, time] : done)
      end[static_cast<std::size_t>(key.first)] = std::max(end[static_cast<std::size_t>(key.first)], time);
    return end;
  }
};

}  // namespace

TEST_CASE("The critical path names workers, phases, collectives and classes of links") {
  const auto network = make_network("auto", crossbar(), 2);
  const std::vector<std::string> path = critical_path(sequential_log(*network));
  REQUIRE(path.size() == 4);
  CHECK(path[0] == "worker 1: forward 10 us, backward 20 us, topk 4 us");
  CHECK(path[1] ==
        "all_gather indices (ring_padded), entered last by worker 1: 104 us, bound by links of class nic (node0.nic0.up transfers for 100 "
        "us)");
  CHECK_THAT(path[2], ContainsSubstring("unite 1 us"));
  CHECK_THAT(path[3], ContainsSubstring("all_reduce values (ring), entered last by worker") && ContainsSubstring("mostly latency"));
}

TEST_CASE("The trace of events parses, its events nest and have the timeline's times") {
  const auto network = make_network("auto", crossbar(), 2);
  const IterationLog log = sequential_log(*network);
  const Json trace = parse_json(event_trace(log).dump(), "trace");
  std::map<std::pair<std::int64_t, std::int64_t>, double> until;  // track -> end of its last event
  std::set<std::string> tracks, workers;
  double last = 0, computed = 0;
  std::size_t calls = 0;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "M") {
      (event.at("name") == "thread_name" ? tracks : workers).insert(event.at("args").at("name").get<std::string>());
      continue;
    }
    REQUIRE(event.at("ph") == "X");
    const std::pair track{event.at("pid").get<std::int64_t>(), event.at("tid").get<std::int64_t>()};
    const double begin = event.at("ts").get<double>(), end = begin + event.at("dur").get<double>();
    CHECK(event.at("dur").get<double>() > 0);
    CHECK(begin >= until[track] - 1e-9);  // one after the other on each track
    until[track] = end;
    last = std::max(last, end);
    if (track == std::pair<std::int64_t, std::int64_t>{1, 0}) computed += event.at("dur").get<double>();
    if (event.at("cat") == "communication") {
      CHECK(event.at("args").at("bytes").is_number());
      ++calls;
    }
  }
  CHECK(tracks == std::set<std::string>{"compute", "communicate"});
  CHECK(workers == std::set<std::string>{"worker 0", "worker 1"});
  CHECK(calls == 4);
  CHECK(last == Approx((log.end_s - log.begin_s) * 1e6));
  CHECK(computed == Approx(35));  // worker 1: 10 + 20 + 4 + 1
}

TEST_CASE("A GOAL schedule keeps every byte and order: run by its own rules it takes the timeline's time") {
  const auto network = make_network("auto", crossbar(), 2);
  const IterationLog log = sequential_log(*network);
  const Goal goal(goal_schedule(2, goal_parts(log, *network, TimelineOptions()), goal_unit(network->topology())));
  CHECK(goal.num_ranks == 2);
  std::uint64_t sent = 0, received = 0;
  for (const auto& [rank, operations] : goal.ranks)
    for (const auto& [label, operation] : operations) {
      if (operation.kind == "send") sent += operation.size;
      if (operation.kind == "recv") received += operation.size;
    }
  CHECK(sent == 2 * (1100000 + 400));
  CHECK(received == sent);
  const std::vector<double> end = goal.run(alpha_s, bandwidth_Bps);
  CHECK(end[0] == Approx(log.calls.back().end_s[0]).margin(2 / bandwidth_Bps));  // calc is in whole units
  CHECK(end[1] == Approx(log.calls.back().end_s[1]).margin(2 / bandwidth_Bps));
}

TEST_CASE("Every collective's GOAL schedule can be run to its end") {
  std::size_t compared = 0;
  std::map<std::string, int> equal;  // for how many n
  for (const CollectiveAlgorithm& algorithm : collective_algorithms())
    for (const std::int64_t n : {2, 4, 8}) {
      INFO(operation_name(algorithm.operation) + " " + algorithm.name + " on " + std::to_string(n));
      const auto network = make_network("auto", crossbar(), n);
      const std::vector<std::uint64_t> bytes(static_cast<std::size_t>(n), 4096);
      const std::shared_ptr<const Program> program = algorithm.make(bytes, 0, network->node_of_worker());
      const GoalUnit unit = goal_unit(network->topology());
      CHECK(unit.unit_s == Approx(1 / bandwidth_Bps));
      CHECK(unit.latency == 44000);  // 4 us at 11 GB/s
      CHECK(unit.all_routes);
      const Goal goal(goal_schedule(n, {{std::vector<double>(static_cast<std::size_t>(n), 1e-6), program}}, unit));
      CHECK(goal.num_ranks == n + program->switches());
      const std::vector<double> end = goal.run(alpha_s, bandwidth_Bps);
      const CollectiveTiming timing = network->time(*program, std::vector<double>(static_cast<std::size_t>(n), 1e-6));
      std::map<std::int64_t, std::uint64_t> sent;
      for (const auto& [rank, operations] : goal.ranks)
        for (const auto& [label, operation] : operations)
          if (operation.kind == "send") sent[rank] += operation.size;
      for (std::int64_t worker = 0; worker < n; ++worker) CHECK(sent[worker] == timing.bytes_sent[static_cast<std::size_t>(worker)]);
      if (timing.network != "recurrence" || program->switches() > 0) continue;  // only there messages do not share links
      for (std::int64_t worker = 0; worker < n; ++worker)
        CHECK(end[static_cast<std::size_t>(worker)] == Approx(timing.end_s[static_cast<std::size_t>(worker)]).epsilon(1e-9));
      ++compared;
      // LogGOPSim hands a sender back after L, so where one sends twice in a row the second message is on its way earlier; exchanges, in
      // which every worker waits for a message of the step, take the same time but for the byte of each message that it does not count.
      const std::vector<std::uint64_t> units = goal.loggopsim(unit.latency);
      const double last = static_cast<double>(*std::max_element(units.begin(), units.end())) * unit.unit_s;
      const double ours = *std::max_element(timing.end_s.begin(), timing.end_s.end());
      UNSCOPED_INFO("LogGOPSim's rules give " << last << " s for " << ours);
      CHECK(last <= ours * (1 + 1e-9));
      if (std::abs(last / ours - 1) < 2e-4) ++equal[operation_name(algorithm.operation) + " " + algorithm.name];
    }
  CHECK(compared > 30);
  for (const char* name : {"all_gather ring", "all_gather ring_padded", "all_gather recursive_doubling", "all_gather bruck",
                           "all_gather neighbour_exchange", "all_reduce ring", "all_reduce recursive_doubling", "all_reduce rabenseifner",
                           "reduce_scatter ring", "reduce_scatter recursive_halving", "reduce_scatter pairwise", "all_to_all pairwise"}) {
    INFO(name);
    CHECK(equal[name] == 3);
  }
}

TEST_CASE("By LogGOPSim's rules a stream waits until its calls begin, and for what its own processor does alone") {
  const auto network = make_network("auto", crossbar(), 4);
  const std::vector<std::uint64_t> none(4, 0), some(4, 44000);
  const auto ring = [&](const std::vector<std::uint64_t>& bytes) -> std::shared_ptr<const Program> {
    return find_collective(Operation::all_gather, "ring").make(bytes, 0, network->node_of_worker());
  };
  const GoalUnit unit = goal_unit(network->topology());
  const auto all_at = [](double time_s) { return std::vector<double>(4, time_s); };
  const auto ends_s = [&](const std::vector<GoalPart>& parts) {
    const std::vector<std::uint64_t> units = Goal(goal_schedule(4, parts, unit)).loggopsim(unit.latency);
    return static_cast<double>(*std::max_element(units.begin(), units.end())) * unit.unit_s;
  };
  // Three steps of 4 us and 4 us of bytes: from 10 to 34 us in one stream, from 100 to 124 us in the other, then 5 us more.
  CHECK(ends_s({{all_at(10e-6), ring(some)}, {all_at(100e-6), ring(some), 1}, {all_at(5e-6), nullptr, 1, true}}) ==
        Approx(129e-6).epsilon(1e-4));
  CHECK(ends_s({{all_at(100e-6), ring(some)}, {all_at(10e-6), ring(some), 1}, {all_at(5e-6), nullptr, 0, true}}) ==
        Approx(129e-6).epsilon(1e-4));
  // Messages of 0 bytes take their latency, at the begin as well.
  CHECK(ends_s({{{}, ring(none)}, {all_at(1e-6), ring(none)}}) == Approx(25e-6).epsilon(1e-4));
  // What an iteration with two streams takes where they never meet.
  static const kernels::Profile profile = hand_profile();
  TimelineOptions options;
  options.mode = "layer_wise";
  options.streams = 2;
  options.layers = {{1100, 1e-6, 100e-6}, {11000, 1e-6, 150e-6}, {11000, 1e-6, 10e-6}};
  options.forward_time_s = 3e-6;
  options.backward_time_s = 260e-6;
  Timeline timeline(profile, *network, options);
  timeline.keep_log(true);
  const Json record = {
      {"workers", 4},
      {"exchange", parse_json(R"([{"op":"all_reduce","payload":"gradient","dtype":"float32","bytes":92400}])", "exchange")},
      {"work", Json::array()}};
  const double iteration_s = timeline.time(record).iteration_time_s;
  CHECK(iteration_s == Approx(263e-6 + 6 * (4e-6 + 0.1e-6)));
  CHECK(ends_s(goal_parts(timeline.log(), *network, options)) == Approx(iteration_s).epsilon(1e-4));
}

TEST_CASE("LogGOPSim is told where the routes differ, and of eager messages") {
  const auto network = make_network("auto", platforms::Platform::load(platforms::find_platform("dgx-a100")), 16);
  const GoalUnit unit = goal_unit(network->topology());
  CHECK_FALSE(unit.all_routes);
  CHECK_THAT(goal_schedule(16, {}, unit), ContainsSubstring("// Routes differ") && ContainsSubstring("-O 0 -S 0\n"));
  auto eager = crossbar();
  eager.eager = true;
  CHECK_THAT(goal_schedule(4, {}, goal_unit(make_network("auto", eager, 4)->topology())), ContainsSubstring("-O 0 -S 2147483647\n"));
  CHECK(goal_unit(make_network("auto", crossbar(), 1)->topology()).unit_s == 1e-9);
}
