// Calls side by side: what they take from each other on links that they share, by hand, and timelines with several streams of calls.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/random.hpp"
#include "sim/concurrent_calls.hpp"
#include "sim/iteration_view.hpp"
#include "sim/merged_program.hpp"
#include "sim/timeline.hpp"
#include "sim/timelines/mode.hpp"
#include "tests/catch.hpp"
#include "tests/timeline_support.hpp"

using namespace sparscale;
using namespace sparscale::sim;
using namespace sparscale::test;

namespace {

// One message from a worker to another.
class Message : public Program {
 public:
  Message(std::int64_t workers, std::int64_t from, std::int64_t to, std::uint64_t bytes)
      : workers_(workers), from_(from), to_(to), bytes_(bytes) {}
  std::int64_t workers() const override { return workers_; }
  std::int64_t steps(std::int64_t worker) const override { return worker == from_ || worker == to_ ? 1 : 0; }
  void step(std::int64_t worker, std::int64_t, Step& step) const override {
    step.clear();
    if (worker == from_)
      step.sends.push_back({to_, bytes_, 0, 1});
    else
      step.receives.push_back(from_);
  }

 private:
  std::int64_t workers_, from_, to_;
  std::uint64_t bytes_;
};

std::vector<double> all_at(std::int64_t n, double time_s) { return std::vector<double>(static_cast<std::size_t>(n), time_s); }

std::unique_ptr<Program> all_reduce(const std::string& name, std::int64_t n, std::uint64_t bytes) {
  return find_collective(Operation::all_reduce, name).make(std::vector<std::uint64_t>(static_cast<std::size_t>(n), bytes), 0);
}

constexpr double us = 1e-6;
constexpr std::uint64_t bytes_us = 11000;  // what a link carries in a microsecond

Approx close(double value) { return Approx(value).epsilon(1e-10); }

// An all-reduce of `bytes` on two workers, alone: by ring two steps of half of it, by butterfly one of it.
double ring2_s(double bytes) { return 2 * (alpha_s + bytes / 2 / bandwidth_Bps); }

Json dense(std::int64_t workers, std::int64_t elements) {
  return {
      {"workers", workers},
      {"exchange",
       Json::array(
           {{{"op", "all_reduce"}, {"payload", "gradient"}, {"dtype", "float32"}, {"bytes", static_cast<std::uint64_t>(4 * elements)}}})},
      {"work", Json::array()}};
}

// Layer 1, fully connected: a ring of 4.4 MB, 2 (4 + 200) us alone, ready after 10 us. Layer 0, a convolution: a butterfly of 44 kB, 4 + 4
// us alone, ready after 50 us more. Forward 20 and 30 us.
TimelineOptions two_kinds(std::int64_t streams) {
  TimelineOptions options;
  options.mode = "hybrid";
  options.by_layer = "kind";
  options.streams = streams;
  options.layers = {{11000, 20 * us, 50 * us, true}, {1100000, 30 * us, 10 * us, false}};
  options.forward_time_s = 50 * us;
  options.backward_time_s = 60 * us;
  return options;
}

}  // namespace

TEST_CASE("Calls over links of their own take what each takes alone, and the recurrence may time them") {
  const Message first(4, 0, 1, 100 * bytes_us), second(4, 2, 3, 30 * bytes_us);
  for (const char* name : {"auto", "simgrid"}) {
    const auto network = make_network(name, crossbar(), 4);
    const auto timings = ConcurrentCalls(*network).time(std::vector<ConcurrentCall>{{&first, all_at(4, 0)}, {&second, all_at(4, 5 * us)}});
    CHECK(timings[0].timing.end_s[0] == close(104 * us));
    CHECK(timings[0].timing.end_s[1] == close(104 * us));
    CHECK(timings[0].timing.end_s[2] == 0);  // has nothing to do in it
    CHECK(timings[1].timing.end_s[3] == close(39 * us));
    CHECK(timings[1].timing.end_s[0] == 5 * us);
    CHECK(timings[0].timing.network == (std::string(name) == "auto" ? "recurrence" : "simgrid"));
    CHECK(timings[0].timing.bytes_sent == std::vector<std::uint64_t>{100 * bytes_us, 0, 0, 0});
  }
}

TEST_CASE("Two equal calls on one link take twice as long, a short one beside a long one twice its own time") {
  const auto network = make_network("auto", crossbar(), 2);
  ConcurrentCalls calls(*network);
  const Message long_one(2, 0, 1, 100 * bytes_us), short_one(2, 0, 1, 30 * bytes_us), back(2, 1, 0, 100 * bytes_us);
  const auto equal = calls.time(std::vector<ConcurrentCall>{{&long_one, all_at(2, 0)}, {&long_one, all_at(2, 0)}});
  CHECK(equal[0].timing.end_s[1] == close(204 * us));
  CHECK(equal[1].timing.end_s[0] == close(204 * us));
  CHECK(equal[0].timing.network == "simgrid");
  CHECK(equal[0].timing.messages == 1);
  const auto unequal = calls.time(std::vector<ConcurrentCall>{{&long_one, all_at(2, 0)}, {&short_one, all_at(2, 0)}});
  CHECK(unequal[1].timing.end_s[1] == close(64 * us));
  CHECK(unequal[0].timing.end_s[1] == close(134 * us));
  // The two directions of a link are apart.
  const auto duplex = calls.time(std::vector<ConcurrentCall>{{&long_one, all_at(2, 0)}, {&back, all_at(2, 0)}});
  CHECK(duplex[0].timing.end_s[0] == close(104 * us));
  CHECK(duplex[1].timing.end_s[0] == close(104 * us));
}

TEST_CASE("Calls that start at other times share for as long as they meet") {
  const auto network = make_network("auto", crossbar(), 2);
  ConcurrentCalls calls(*network);
  const Message long_one(2, 0, 1, 100 * bytes_us), short_one(2, 0, 1, 30 * bytes_us);
  // The sender of the short one is ready at 20 us, its receiver at 40 us: its bytes flow from 44 us, until 104 us at half the speed.
  const auto skewed = calls.time(std::vector<ConcurrentCall>{{&long_one, all_at(2, 0)}, {&short_one, {20 * us, 40 * us}}});
  CHECK(skewed[1].begin_s == std::vector<double>{20 * us, 40 * us});
  CHECK(skewed[1].timing.end_s[0] == close(104 * us));
  CHECK(skewed[0].timing.end_s[0] == close(134 * us));
  // Two short ones in a row beside the long one: the second starts when the first is over (64 us), its bytes flow from 68 us, until 128 us.
  const auto row =
      calls.time(std::vector<ConcurrentCall>{{&long_one, all_at(2, 0)}, {&short_one, all_at(2, 0)}, {&short_one, all_at(2, 0), 1}});
  CHECK(row[1].timing.end_s[0] == close(64 * us));
  CHECK(row[2].begin_s[0] == close(64 * us));
  CHECK(row[2].timing.end_s[0] == close(128 * us));
  CHECK(row[0].timing.end_s[0] == close(164 * us));
  // One that is ready late waits for no other, and one that follows waits for it.
  const auto late =
      calls.time(std::vector<ConcurrentCall>{{&short_one, all_at(2, 500 * us)}, {&long_one, all_at(2, 0)}, {&short_one, all_at(2, 0), 0}});
  CHECK(late[1].timing.end_s[0] == close(104 * us));
  CHECK(late[0].timing.end_s[0] == close(534 * us));
  CHECK(late[2].timing.end_s[0] == close(568 * us));
  CHECK(late[2].timing.network == "recurrence");  // nothing meets
}

TEST_CASE("Calls that meet only because others share are found") {
  const auto network = make_network("auto", crossbar(), 2);
  const Message long_one(2, 0, 1, 100 * bytes_us), short_one(2, 0, 1, 40 * bytes_us);
  // Alone the long one would be over at 104 us; beside the short one it is at 144 us. The third, ready at 124 us, shares from 128 us with
  // the 16 us that are left of the long one.
  const auto timings = ConcurrentCalls(*network).time(
      std::vector<ConcurrentCall>{{&long_one, all_at(2, 0)}, {&short_one, all_at(2, 0)}, {&short_one, all_at(2, 124 * us)}});
  CHECK(timings[1].timing.end_s[0] == close(84 * us));
  CHECK(timings[0].timing.end_s[0] == close(160 * us));
  CHECK(timings[2].timing.end_s[0] == close(184 * us));
}

TEST_CASE("Any number of messages on one link share it as the definition of fair shares says") {
  const auto network = make_network("auto", crossbar(), 2);
  ConcurrentCalls calls(*network);
  Random random(17);
  for (int round = 0; round < 20; ++round) {
    const std::size_t count = 2 + random.below(6);
    std::vector<Message> messages;
    std::vector<ConcurrentCall> together;
    std::vector<double> flows_s, left_s, end_s(count, -1);  // when its bytes begin to flow, and what they take alone
    for (std::size_t i = 0; i < count; ++i) messages.emplace_back(2, 0, 1, (1 + random.below(200)) * bytes_us);
    for (std::size_t i = 0; i < count; ++i) {
      const double ready_s = static_cast<double>(random.below(300)) * us;
      together.push_back({&messages[i], all_at(2, ready_s)});
      flows_s.push_back(ready_s + alpha_s);
      Step step;
      messages[i].step(0, 0, step);
      left_s.push_back(static_cast<double>(step.sends.front().bytes) / bandwidth_Bps);
    }
    for (double now_s = 0;;) {
      std::size_t flowing = 0;
      double next_s = INFINITY;
      for (std::size_t i = 0; i < count; ++i) flowing += end_s[i] < 0 && flows_s[i] <= now_s ? 1 : 0;
      for (std::size_t i = 0; i < count; ++i) {
        if (end_s[i] >= 0) continue;
        next_s = std::min(next_s, flows_s[i] <= now_s ? now_s + left_s[i] * static_cast<double>(flowing) : flows_s[i]);
      }
      if (next_s == INFINITY) break;
      for (std::size_t i = 0; i < count; ++i) {
        if (end_s[i] >= 0 || flows_s[i] > now_s) continue;
        left_s[i] -= (next_s - now_s) / static_cast<double>(flowing);
        if (left_s[i] < 1e-13) end_s[i] = next_s;
      }
      now_s = next_s;
    }
    const auto timings = calls.time(together);
    for (std::size_t i = 0; i < count; ++i) CHECK(timings[i].timing.end_s[1] == Approx(end_s[i]).epsilon(1e-9));
  }
}

TEST_CASE("Collectives side by side: equal rings take twice the bandwidth term in every step") {
  for (const std::int64_t n : {2, 4, 5}) {
    const auto network = make_network("auto", crossbar(), n);
    const auto ring = all_reduce("ring", n, 1000000 * static_cast<std::uint64_t>(n));
    const auto timings =
        ConcurrentCalls(*network).time(std::vector<ConcurrentCall>{{ring.get(), all_at(n, 3 * us)}, {ring.get(), all_at(n, 3 * us)}});
    const double expected = 3 * us + 2 * static_cast<double>(n - 1) * (alpha_s + 2 * 1000000 / bandwidth_Bps);
    for (std::int64_t worker = 0; worker < n; ++worker)
      for (const auto& timing : timings) CHECK(timing.timing.end_s[static_cast<std::size_t>(worker)] == close(expected));
  }
}

TEST_CASE("Every algorithm runs beside a ring, sends its bytes, and is over in time") {
  for (const std::string name : {"crossbar-100g", "nvlink8-ib", "eager"})
    for (const CollectiveAlgorithm& algorithm : collective_algorithms()) {
      const std::int64_t n = 8;
      auto platform = platforms::Platform::load(platforms::find_platform(name == "eager" ? "crossbar-100g" : name));
      platform.eager = name == "eager";
      const auto network = make_network("auto", platform, n);
      INFO(operation_name(algorithm.operation) + " " + algorithm.name + " on " + name);
      const std::vector<std::uint64_t> bytes(static_cast<std::size_t>(n), 64000);
      const auto program = algorithm.make(bytes, 0, network->node_of_worker());
      const auto ring = all_reduce("ring", n, 64000);
      const double alone_s = [&] {
        const auto end_s = network->time(*program, all_at(n, 0)).end_s;
        return *std::max_element(end_s.begin(), end_s.end());
      }();
      const auto timings = ConcurrentCalls(*network).time(std::vector<ConcurrentCall>{
          {ring.get(), all_at(n, 0)}, {program.get(), all_at(n, 0)}, {program.get(), all_at(n, 0), 1}, {ring.get(), all_at(n, 0), 0}});
      const auto latest = [&](std::size_t call) {
        return *std::max_element(timings[call].timing.end_s.begin(), timings[call].timing.end_s.end());
      };
      CHECK(timings[1].timing.bytes_sent == network->time(*program, all_at(n, 0)).bytes_sent);
      CHECK(latest(1) >= alone_s * (1 - 1e-9));
      CHECK(latest(2) > latest(1));
      const auto ring_end_s = network->time(*ring, all_at(n, 0)).end_s;
      const double ring_s = *std::max_element(ring_end_s.begin(), ring_end_s.end());
      CHECK(latest(3) >= 2 * ring_s * (1 - 1e-9));
      CHECK(std::max(latest(2), latest(3)) <= (2 * alone_s + 2 * ring_s) * 1.5);
    }
}

TEST_CASE("Calls in groups that meet take what one simulation of all of them takes") {
  Random random(11);
  std::size_t alone = 0, together = 0;
  for (int round = 0; round < 16; ++round) {
    const std::int64_t n = 2 + static_cast<std::int64_t>(random.below(7));
    const auto platform = platforms::Platform::load(platforms::find_platform(round % 2 == 0 ? "crossbar-100g" : "nvlink8-ib"));
    const auto network = make_network("auto", platform, n), reference = make_network("simgrid", platform, n);
    const std::vector<std::string> names{"ring", "recursive_doubling", "rabenseifner", "double_binary_tree"};
    std::vector<std::unique_ptr<Program>> programs;
    std::vector<ConcurrentCall> calls;
    std::vector<const Program*> merged;
    std::vector<std::int64_t> after;
    std::vector<double> start_s;
    for (int call = 0; call < 8; ++call) {
      programs.push_back(all_reduce(names[random.below(names.size())], n, 1000 + random.below(400000)));
      std::vector<double> ready_s = all_at(n, random.uniform() * 800 * us);
      for (double& t : ready_s) t += random.uniform() * 10 * us;
      start_s.insert(start_s.end(), ready_s.begin(), ready_s.end());
      after.push_back(call < 2 ? -1 : call - 1 - static_cast<std::int64_t>(random.below(2)));
      merged.push_back(programs.back().get());
      calls.push_back({programs.back().get(), std::move(ready_s), after.back()});
    }
    const auto timings = ConcurrentCalls(*network).time(calls);
    const CollectiveTiming all = reference->time(MergedProgram(merged, after), start_s);
    for (std::size_t call = 0; call < calls.size(); ++call) {
      (timings[call].timing.network == "recurrence" ? alone : together) += 1;
      for (std::size_t worker = 0; worker < static_cast<std::size_t>(n); ++worker)
        CHECK(timings[call].timing.end_s[worker] == Approx(all.end_s[call * static_cast<std::size_t>(n) + worker]).epsilon(1e-9));
    }
  }
  CHECK(alone > 10);
  CHECK(together > 30);
}

TEST_CASE("Without a meeting calls are timed as if each were alone, to the bit; alone or together on one worker") {
  const auto network = make_network("auto", crossbar(), 4);
  const auto ring = all_reduce("ring", 4, 440000), butterfly = all_reduce("recursive_doubling", 4, 8800);
  const std::vector<double> first_s{1 * us, 2 * us, 0, 5 * us}, second_s = all_at(4, 1000 * us);
  const auto timings = ConcurrentCalls(*network).time(
      std::vector<ConcurrentCall>{{ring.get(), second_s}, {butterfly.get(), first_s}, {ring.get(), first_s, 1}});
  CHECK(timings[0].timing.end_s == network->time(*ring, second_s).end_s);
  CHECK(timings[0].timing.network == "recurrence");
  const auto alone = make_network("auto", crossbar(), 1);
  const auto nothing = all_reduce("ring", 1, 440000);
  const auto one = ConcurrentCalls(*alone).time(
      std::vector<ConcurrentCall>{{nothing.get(), {3 * us}}, {nothing.get(), {4 * us}}, {nothing.get(), {1 * us}, 0}});
  CHECK(one[0].timing.end_s == std::vector<double>{3 * us});
  CHECK(one[1].timing.end_s == std::vector<double>{4 * us});
  CHECK(one[2].timing.end_s == std::vector<double>{3 * us});
}

TEST_CASE("Times that are remembered are those of the same calls at the same distance") {
  const auto network = make_network("simgrid", crossbar(), 2);
  const Message long_one(2, 0, 1, 100 * bytes_us), short_one(2, 0, 1, 30 * bytes_us);
  const auto end_s = [&](double short_ready_s, std::int64_t after) {
    const auto timings = ConcurrentCalls(*network).time(
        std::vector<ConcurrentCall>{{&long_one, all_at(2, 0)}, {&short_one, all_at(2, short_ready_s), after}});
    return std::vector<double>{timings[0].timing.end_s[0], timings[1].timing.end_s[0]};
  };
  const std::vector<double> first = end_s(0, -1), later = end_s(40 * us, -1), behind = end_s(0, 0), again = end_s(0, -1);
  CHECK(first == again);
  CHECK(later[1] == close(104 * us));
  CHECK(first[1] == close(64 * us));
  CHECK(behind[0] == close(104 * us));
  CHECK(behind[1] == close(138 * us));
  // A merged program and one of the same messages in one call are told apart.
  const auto ring = all_reduce("ring", 2, 22000);
  const double one_s = network->time(*ring, all_at(2, 0)).end_s[0];
  const MergedProgram merged({ring.get(), ring.get()}, {-1, 0});
  const auto both = network->time(merged, std::vector<double>(4, 0)).end_s;
  CHECK(both[0] == close(one_s));
  CHECK(both[2] == close(2 * one_s));
  // A network that was asked other things before answers the same.
  const auto fresh = make_network("simgrid", crossbar(), 2);
  const auto timings =
      ConcurrentCalls(*fresh).time(std::vector<ConcurrentCall>{{&long_one, all_at(2, 0)}, {&short_one, all_at(2, 40 * us)}});
  CHECK(timings[1].timing.end_s[0] == later[1]);
  CHECK_THROWS_AS(ConcurrentCalls(*fresh).time(std::vector<ConcurrentCall>{{&long_one, all_at(2, 0), 0}}), RunError);
  const auto recurrence = make_network("recurrence", crossbar(), 2);
  CHECK_THROWS_AS(ConcurrentCalls(*recurrence).time(std::vector<ConcurrentCall>{{&long_one, all_at(2, 0)}, {&short_one, all_at(2, 0)}}),
                  InputError);
}

TEST_CASE("Hybrid with two streams: the butterfly does not wait behind the ring, and both take their share") {
  const kernels::Profile profile = hand_profile();
  const auto network = make_network("auto", crossbar(), 2);
  Timeline timeline(profile, *network, two_kinds(2));
  timeline.keep_log(true);
  const IterationTime time = timeline.time(dense(2, 1111000));
  // The ring begins at 10 us. The butterfly begins at 60 us, its 4 us of bytes flow from 64 to 72 us and hold the ring up by 4 us.
  const auto& calls = timeline.log().calls;
  REQUIRE(calls.size() == 2);
  CHECK(calls[0].algorithm == "ring");
  CHECK(calls[0].stream == 1);
  CHECK(calls[1].stream == 0);
  CHECK(calls[0].end_s[0] == close(422 * us));
  CHECK(calls[1].begin_s[1] == close(60 * us));
  CHECK(calls[1].end_s[1] == close(72 * us));
  // Forward of layer 0 from 72 to 92 us, of layer 1 from 422 us.
  CHECK(time.iteration_time_s == close(452 * us));
  CHECK(time.value_exchange_time_s == close(342 * us));
  CHECK(time.overlapped_time_s == close(70 * us));
  CHECK(time.networks == std::vector<std::string>{"simgrid"});
  CHECK(time.bytes_sent_mean == 4400000 + 44000);
  check_phases_add_up(time);
  CHECK(timeline.time(dense(2, 1111000)).iteration_time_s == close(452 * us));

  const std::vector<std::string> path = critical_path(timeline.log());
  REQUIRE(path.size() == 3);
  CHECK(path[0] == "worker 0: backward 10 us");
  CHECK(
      path[1] ==
      "all_reduce gradient (ring), entered last by worker 0: 412 us, bound by links of class nic (node0.nic0.up transfers for 400 us, and "
      "some 4 us meanwhile for calls of other streams)");
  CHECK(path[2] == "worker 0: forward 30 us");
  const Json strip = activity(timeline.log());
  const auto pieces = [&](const char* list, const char* key) {
    std::string text;
    for (const Json& piece : strip.at(list))
      text += piece.at(key).dump() + " " + std::to_string(std::lround(piece.at("begin_s").get<double>() * 1e6)) + "-" +
              std::to_string(std::lround(piece.at("end_s").get<double>() * 1e6)) + " ";
    return text;
  };
  // The log is of the second iteration, whose times count from its begin.
  CHECK(pieces("compute", "kind") == "\"backward\" 0-60 \"forward\" 72-92 \"forward\" 422-452 ");
  CHECK(pieces("communicate", "stream") == "0 60-72 1 10-422 ");
  CHECK(strip.at("worker") == 0);
  CHECK(strip.at("end_s").get<double>() == close(452 * us));
  const Json trace = event_trace(timeline.log());
  std::set<std::string> tracks;
  std::set<std::int64_t> used;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("name") == "thread_name") tracks.insert(event.at("args").at("name").get<std::string>());
    if (event.value("cat", "") == "communication") used.insert(event.at("tid").get<std::int64_t>());
  }
  CHECK(tracks == std::set<std::string>{"compute", "communicate 1", "communicate 2"});
  CHECK(used == std::set<std::int64_t>{1, 2});

  // One stream: the butterfly of layer 0 waits for the ring (418 us).
  const IterationTime one = Timeline(profile, *network, two_kinds(1)).time(dense(2, 1111000));
  CHECK(one.iteration_time_s == close((10 + 408 + 8 + 50) * us));
}

TEST_CASE("Computing that is slowed by calls side by side, whose starts depend on it in turn") {
  const kernels::Profile profile = hand_profile();
  const auto network = make_network("auto", crossbar(), 2);
  TimelineOptions options = two_kinds(2);
  options.overlap_slowdown = 2;
  Timeline timeline(profile, *network, options);
  timeline.keep_log(true);
  const IterationTime time = timeline.time(dense(2, 1111000));
  // Backward of layer 0 takes 100 us beside the ring; forward of layer 0 40 us, whether one call is under way or two.
  CHECK(timeline.log().calls[1].begin_s[0] == close(110 * us));
  CHECK(timeline.log().calls[1].end_s[0] == close(122 * us));
  CHECK(time.iteration_time_s == close(452 * us));
  CHECK(time.overlapped_time_s == close(140 * us));
  CHECK(time.forward_backward_time_s == close((10 + 100 + 40 + 30) * us));
  check_phases_add_up(time);
}

TEST_CASE("The rule of the hybrid with two streams counts what a ring waits for") {
  const kernels::Profile profile = hand_profile();
  const auto network = make_network("auto", crossbar(), 2);
  TimelineOptions options = two_kinds(2);
  options.by_layer = "window";
  options.layers = {{11000, 20 * us, 50 * us, true},
                    {11000, 20 * us, 50 * us, true},
                    {11000, 20 * us, 300 * us, true},
                    {1100000, 500 * us, 10 * us, false}};
  const auto algorithms = [&] {
    Timeline timeline(profile, *network, options);
    timeline.keep_log(true);
    timeline.time(dense(2, 1133000));
    std::vector<std::string> names;
    for (const IterationLog::Call& call : timeline.log().calls) names.push_back(call.algorithm);
    return names;
  };
  // A ring of 44 kB takes 12 us alone. The window of layer 3 is 460 us (its ring: 408 us, until 418 us), of layer 2 140 us from 310 us on:
  // a ring behind that of layer 3 would end at 430 us of 450. Layer 1, ready at 360 us, is needed at 430 us and would end at 442 us.
  CHECK(algorithms() == std::vector<std::string>{"ring", "ring", "recursive_doubling", "recursive_doubling"});
  options.streams = 1;
  CHECK(algorithms() == std::vector<std::string>{"ring", "ring", "ring", "recursive_doubling"});
}

TEST_CASE("DDP buckets in two streams: buckets take turns, and share what they meet on") {
  const kernels::Profile profile = hand_profile();
  const auto network = make_network("auto", crossbar(), 2);
  TimelineOptions options;
  options.mode = "ddp_buckets";
  options.streams = 2;
  options.layers = {{1100000, 1 * us, 0}, {1100000, 2 * us, 0}, {1100000, 3 * us, 30 * us}};
  options.forward_time_s = 6 * us;
  options.backward_time_s = 30 * us;
  options.bucket_bytes = options.first_bucket_bytes = 1000;
  Timeline timeline(profile, *network, options);
  timeline.keep_log(true);
  const IterationTime time = timeline.time(dense(2, 3300000));
  // All are ready at 36 us. The first two share every step of their rings; the third follows the first.
  const double both_s = 36 * us + 2 * (alpha_s + 400 * us);
  const auto& calls = timeline.log().calls;
  REQUIRE(calls.size() == 3);
  CHECK(calls[0].end_s[0] == close(both_s));
  CHECK(calls[1].end_s[1] == close(both_s));
  CHECK(calls[2].stream == 0);
  CHECK(calls[2].end_s[0] == close(both_s + ring2_s(4400000)));
  CHECK(time.iteration_time_s == close(both_s + ring2_s(4400000)));
  check_phases_add_up(time);
}

TEST_CASE("Where calls do not meet, several streams give the times of one; kernels between calls included") {
  const kernels::Profile profile = hand_profile();
  const auto network = make_network("auto", crossbar(), 2);
  // Half precision: casts before and after each bucket, which take computing from the backward pass.
  Json halves = dense(2, 1200);
  halves["exchange"][0]["dtype"] = "float16";
  halves["exchange"][0]["bytes"] = 2400U;
  halves["work"] = parse_json(R"([{"operation":"cast_half","before_call":0,"elements":1200,"selected":1200},
                                  {"operation":"cast_half","before_call":1,"elements":1200,"selected":1200}])",
                              "work");
  Json pieces = {{"workers", 2},
                 {"exchange", parse_json(R"([{"op":"all_gather","payload":"indices","dtype":"int64","bytes":880,"piece":0},
                                             {"op":"all_reduce","payload":"values","dtype":"float32","bytes":440,"piece":0},
                                             {"op":"all_gather","payload":"indices","dtype":"int64","bytes":1100,"piece":1},
                                             {"op":"all_reduce","payload":"values","dtype":"float32","bytes":880,"piece":1}])",
                                         "exchange")},
                 {"work", parse_json(R"([{"operation":"topk","before_call":0,"elements":100,"selected":100,"piece":0},
                                         {"operation":"unite","before_call":1,"elements":100,"selected":100,"piece":0},
                                         {"operation":"zero","before_call":2,"elements":100,"selected":100,"piece":0},
                                         {"operation":"topk","before_call":2,"elements":1000,"selected":1000,"piece":1},
                                         {"operation":"unite","before_call":3,"elements":1000,"selected":1000,"piece":1},
                                         {"operation":"zero","before_call":4,"elements":1000,"selected":1000,"piece":1}])",
                                     "work")},
                 {"piece_sizes", {100, 1100}}};
  for (const auto& [mode, record] : {std::pair{"ddp_buckets", halves}, std::pair{"layer_wise", halves}, std::pair{"layer_wise", pieces}})
    for (const double slowdown : {1.0, 1.5}) {
      INFO(mode << " " << slowdown);
      TimelineOptions options;
      options.mode = mode;
      options.layers = {{100, 1 * us, 10 * us}, {0, 0, 35 * us}, {0, 0, 35 * us}, {1000, 2 * us, 90 * us}, {100, 3 * us, 30 * us}};
      options.forward_time_s = 6 * us;
      options.backward_time_s = 200 * us;
      options.first_bucket_bytes = 200;
      options.bucket_bytes = 2000;
      options.overlap_slowdown = slowdown;
      const IterationTime one = Timeline(profile, *network, options).time(record);
      options.streams = 3;
      Timeline timeline(profile, *network, options);
      timeline.keep_log(true);
      const IterationTime three = timeline.time(record);
      CHECK(one.overlapped_time_s > 0);
      CHECK(three.iteration_time_s == Approx(one.iteration_time_s).epsilon(1e-12));
      CHECK(three.overlapped_time_s == Approx(one.overlapped_time_s).epsilon(1e-12));
      CHECK(three.other_time_s == Approx(one.other_time_s).epsilon(1e-12));
      CHECK(three.networks == std::vector<std::string>{"recurrence"});
      CHECK(three.bytes_sent == one.bytes_sent);
      check_phases_add_up(three);
      Timeline again(profile, *network, options);
      CHECK(again.time(record).iteration_time_s == three.iteration_time_s);
      // A schedule for LogGOPSim: calls of a stream after one another, waiting in a stream on a processor of its own.
      const std::string goal = goal_schedule(2, goal_parts(timeline.log(), *network, options), goal_unit(network->topology()));
      CHECK(goal.find(" cpu 1\n") != std::string::npos);
      std::uint64_t sent = 0;
      for (std::size_t at = goal.find("send "); at != std::string::npos; at = goal.find("send ", at + 1))
        sent += std::stoull(goal.substr(at + 5));
      CHECK(sent == one.bytes_sent[0] + one.bytes_sent[1]);
    }
}

TEST_CASE("Pieces side by side: what is awaited first is computed first, and what needs all pieces waits for all") {
  const kernels::Profile profile = hand_profile();
  const auto network = make_network("auto", crossbar(), 2);
  // Piece 1 (ready at 36 us) gathers 2.2 MB for long, piece 0 (ready at 56 us) a little; then an all-reduce over the whole.
  const Json record = {{"workers", 2},
                       {"exchange", parse_json(R"([{"op":"all_gather","payload":"indices","dtype":"int64","bytes":22000,"piece":0},
                                                   {"op":"all_gather","payload":"indices","dtype":"int64","bytes":2200000,"piece":1},
                                                   {"op":"all_reduce","payload":"values","dtype":"float32","bytes":22000}])",
                                               "exchange")},
                       {"work", parse_json(R"([{"operation":"unite","before_call":1,"elements":100,"selected":100,"piece":0},
                                               {"operation":"unite","before_call":2,"elements":1000,"selected":1000,"piece":1},
                                               {"operation":"gather","before_call":2,"elements":100,"selected":100}])",
                                           "work")},
                       {"piece_sizes", {100, 1000}}};
  TimelineOptions options;
  options.mode = "layer_wise";
  options.streams = 2;
  options.layers = {{100, 3 * us, 20 * us}, {1000, 3 * us, 30 * us}};
  options.forward_time_s = 6 * us;
  options.backward_time_s = 50 * us;
  Timeline timeline(profile, *network, options);
  timeline.keep_log(true);
  const IterationTime time = timeline.time(record);
  // Piece 1: from 36 us, bytes from 40 us, 200 us and 2 us of the other's. Piece 0: from 56 us, bytes from 60 to 64 us.
  const auto& log = timeline.log();
  REQUIRE(log.calls.size() == 3);
  CHECK(log.calls[0].end_s[0] == close(242 * us));
  CHECK(log.calls[1].begin_s[0] == close(56 * us));
  CHECK(log.calls[1].end_s[0] == close(64 * us));
  // Unite of piece 0 at 64 us, of piece 1 from 242 to 246 us; the gather for the whole until 247 us.
  CHECK(log.calls[2].begin_s[1] == close(247 * us));
  CHECK(time.iteration_time_s == close(247 * us + ring2_s(22000)));
  CHECK(time.index_exchange_time_s == close((8 + 242 - 65) * us));
  check_phases_add_up(time);
}

TEST_CASE("Timelines with streams end on times that fit, whatever the layers, workers and links") {
  const kernels::Profile profile = hand_profile();
  const auto nodes = platforms::Platform::load(platforms::find_platform("nvlink8-ib"));
  Random random(5);
  for (int round = 0; round < 24; ++round) {
    const std::int64_t n = 2 + static_cast<std::int64_t>(random.below(round % 2 == 0 ? 6 : 15));
    const auto network = make_network("auto", round % 2 == 0 ? crossbar() : nodes, n);
    TimelineOptions options;
    options.mode = std::vector<std::string>{"ddp_buckets", "layer_wise", "hybrid"}[random.below(3)];
    options.by_layer = std::vector<std::string>{"window", "fastest", "kind"}[random.below(3)];
    options.streams = options.mode == "hybrid" ? 2 : 2 + static_cast<std::int64_t>(random.below(3));
    options.overlap_slowdown = round % 3 == 0 ? 1 : 1.4;
    options.bucket_bytes = 20000;
    options.first_bucket_bytes = 4000;
    const std::size_t layers = 3 + random.below(8);
    std::int64_t elements = 0;
    for (std::size_t l = 0; l < layers; ++l) {
      options.layers.push_back({100 + static_cast<std::int64_t>(random.below(900)), random.uniform() * 10 * us, random.uniform() * 20 * us,
                                random.below(2) == 0});
      elements += options.layers.back().elements;
      options.forward_time_s += options.layers.back().forward_s;
      options.backward_time_s += options.layers.back().backward_s;
    }
    if (round % 4 < 2)
      options.disturbance = Disturbance::from_json(parse_json(R"({"jitter":{"distribution":"uniform","spread":0.5}})", "hand"), "", "");
    options.extrapolate_profile = true;
    Json record = dense(n, elements);
    record["exchange"][0]["dtype"] = "float16";
    record["exchange"][0]["bytes"] = static_cast<std::uint64_t>(2 * elements);
    for (const int before : {0, 1})
      record["work"].push_back({{"operation", "cast_half"}, {"before_call", before}, {"elements", elements}, {"selected", elements}});
    INFO(round << " " << options.mode << " n = " << n << " streams " << options.streams);
    Timeline timeline(profile, *network, options);
    timeline.keep_log(true);
    for (int iteration = 0; iteration < 2; ++iteration) {
      const IterationTime time = timeline.time(record);
      check_phases_add_up(time);
      const IterationLog& log = timeline.log();
      for (std::size_t worker = 0; worker < static_cast<std::size_t>(n); ++worker) {
        std::map<std::int64_t, double> over_s;
        for (const IterationLog::Call& call : log.calls) {
          // Calls of a stream follow one another; each begins where computing, the iteration or its stream let it.
          REQUIRE(call.end_s[worker] > call.begin_s[worker]);
          if (over_s.contains(call.stream)) CHECK(call.begin_s[worker] >= over_s[call.stream]);
          bool let = over_s.contains(call.stream) && call.begin_s[worker] == over_s[call.stream];
          for (const IterationLog::Segment& segment : log.compute[worker])
            let = let || std::abs(segment.end_s - call.begin_s[worker]) <= 1e-11 * call.begin_s[worker];
          CHECK(let);
          over_s[call.stream] = call.end_s[worker];
        }
        for (std::size_t i = 1; i < log.compute[worker].size(); ++i)
          CHECK(log.compute[worker][i].begin_s >= log.compute[worker][i - 1].end_s);
      }
      CHECK_FALSE(critical_path(log).empty());
    }
  }
}

TEST_CASE("Clocks that have come far do not keep starts from fitting") {
  const kernels::Profile profile = hand_profile();
  const auto network = make_network("auto", platforms::Platform::load(platforms::find_platform("nvlink8-ib")), 4);
  TimelineOptions options;
  options.mode = "hybrid";
  options.by_layer = "kind";
  options.streams = 2;
  options.overlap_slowdown = 3;
  for (int l = 0; l < 8; ++l) options.layers.push_back({1000 + 777 * l, (3 + l % 3) * us, (5 + l % 4) * us, l % 2 == 0});
  options.forward_time_s = options.backward_time_s = 0;
  std::int64_t elements = 0;
  for (const LayerTime& layer : options.layers) {
    options.forward_time_s += layer.forward_s;
    options.backward_time_s += layer.backward_s;
    elements += layer.elements;
  }
  Timeline plain(profile, *network, options);
  options.disturbance.stragglers = Stragglers{{0, 1, 2, 3}, 0, 1, 1e6, Window{0, 1}};  // a first iteration of minutes
  Timeline far(profile, *network, options);
  for (int iteration = 0; iteration < 5; ++iteration) {
    const double plain_s = plain.time(dense(4, elements)).iteration_time_s, far_s = far.time(dense(4, elements)).iteration_time_s;
    if (iteration == 0) CHECK(far_s > 1e4 * plain_s);
    if (iteration > 1) CHECK(far_s == Approx(plain_s).epsilon(1e-9));
  }
}

TEST_CASE("A short call is not said to be bound by a link that others use most of its time") {
  const kernels::Profile profile = hand_profile();
  const auto network = make_network("auto", crossbar(), 2);
  TimelineOptions options;
  options.mode = "layer_wise";
  options.streams = 2;
  options.layers = {{1100, 1 * us, 402 * us}, {1100000, 1 * us, 10 * us}};
  options.forward_time_s = 2 * us;
  options.backward_time_s = 412 * us;
  Timeline timeline(profile, *network, options);
  timeline.keep_log(true);
  // The long call from 12 to 420.2 us; the short one from 414 us on, bytes from 418 to 418.4 us and from 422.4 us.
  CHECK(timeline.time(dense(2, 1101100)).iteration_time_s == close(422.6 * us));
  CHECK(timeline.log().calls[0].end_s[0] == close(420.2 * us));
  const std::vector<std::string> path = critical_path(timeline.log());
  REQUIRE(path.size() == 2);
  CHECK(path[1] ==
        "all_reduce gradient (ring), entered last by worker 0: 8.6 us, mostly latency and waiting; links of class nic (node0.nic0.up "
        "transfers for 0.4 us, and some 6.075 us meanwhile for calls of other streams)");
}

TEST_CASE("Phases are those of the straggler, whichever worker it is, and not of those that wait for it in a call") {
  const kernels::Profile profile = hand_profile();
  const auto network = make_network("auto", crossbar(), 4);
  for (const std::int64_t elements : {4400, 4401})  // equal blocks; unequal ones, which end at nearly the same time
    for (const char* mode : {"ddp_buckets", "layer_wise", "sequential"})
      for (const int straggler : {0, 1, 2, 3}) {
        INFO(elements << " " << mode << " " << straggler);
        TimelineOptions options;
        options.mode = mode;
        options.layers = {{elements, 10 * us, 10 * us}};
        options.forward_time_s = options.backward_time_s = 10 * us;
        options.disturbance.stragglers = Stragglers{{straggler}, 0, 1, 4, {}};
        Json record = dense(4, elements);
        record["exchange"][0]["dtype"] = "float16";
        record["exchange"][0]["bytes"] = static_cast<std::uint64_t>(2 * elements);
        Timeline timeline(profile, *network, options);
        timeline.keep_log(true);
        const IterationTime time = timeline.time(record);
        CHECK(time.forward_backward_time_s == close(80 * us));
        // Six steps of 4 us and 2200 bytes.
        CHECK(time.value_exchange_time_s == Approx(6 * (4 + 0.2) * us).epsilon(1e-3));
        CHECK(time.overlapped_time_s == 0);
        check_phases_add_up(time);
        const Json strip = activity(timeline.log());
        CHECK(strip.at("worker") == straggler);
        CHECK(strip.at("communicate").at(0).at("begin_s").get<double>() == close(80 * us));
      }
}

TEST_CASE("Streams are for the modes that have them") {
  const auto resolve = [](const char* text) { return resolve_timeline(parse_json(text, "hand"), "e.json", "/timeline"); };
  CHECK(resolve(R"("hybrid")").at("streams") == 1);
  CHECK(resolve(R"({"mode":"ddp_buckets","streams":16})").at("streams") == 16);
  CHECK_THROWS_AS(resolve(R"({"mode":"hybrid","streams":3})"), InputError);
  CHECK_THROWS_AS(resolve(R"({"mode":"p3","streams":2})"), InputError);
  CHECK_THROWS_AS(resolve(R"({"mode":"sequential","streams":1})"), InputError);
}
