// The timeline's modes by hand: a few workers and layers, times that can be added up on paper.
#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/random.hpp"
#include "sim/disturbed_networks.hpp"
#include "sim/iteration_view.hpp"
#include "sim/timeline.hpp"
#include "sim/timelines/mode.hpp"
#include "tests/catch.hpp"
#include "tests/timeline_support.hpp"

using namespace sparscale;
using namespace sparscale::sim;
using namespace sparscale::test;

namespace {

// A ring all-reduce of `bytes` on two workers: a step each way.
double ring2_s(double bytes) { return 2 * (alpha_s + bytes / 2 / bandwidth_Bps); }

Json record(std::int64_t workers, const char* exchange, const char* work) {
  return {{"workers", workers}, {"exchange", parse_json(exchange, "exchange")}, {"work", parse_json(work, "work")}};
}

// 1100 gradients: all-reduced whole by the replay.
Json dense(std::int64_t workers) {
  return record(workers, R"([{"op":"all_reduce","payload":"gradient","dtype":"float32","bytes":4400}])", "[]");
}

// Three layers of 100, 800 and 200 gradients; forward 1, 2, 3 us, backward 10, 20, 30 us.
TimelineOptions layered(const std::string& mode) {
  TimelineOptions options;
  options.mode = mode;
  options.layers = {{100, 1e-6, 10e-6}, {800, 2e-6, 20e-6}, {200, 3e-6, 30e-6}};
  options.forward_time_s = 6e-6;
  options.backward_time_s = 60e-6;
  options.bucket_bytes = 2000;
  options.first_bucket_bytes = 800;
  return options;
}

}  // namespace

TEST_CASE("DDP buckets: full ones leave while the backward pass goes on, the rest is exposed") {
  const kernels::Profile profile = hand_profile();
  const auto network = make_network("auto", crossbar(), 2);
  Timeline timeline(profile, *network, layered("ddp_buckets"));
  timeline.keep_log(true);
  const IterationTime time = timeline.time(dense(2));
  // Buckets from the end: 800 B (layer 2; full at once), 3200 B (layer 1), 400 B (layer 0, the rest). Forward 6 us; ready at 36, 56, 66 us.
  const double first = ring2_s(800), second = ring2_s(3200), third = ring2_s(400);
  REQUIRE(timeline.log().calls.size() == 3);
  CHECK(timeline.log().calls[0].begin_s[0] == Approx(36e-6));
  CHECK(timeline.log().calls[1].begin_s[0] == Approx(56e-6));  // after 36 + 8.07, so it does not wait
  CHECK(timeline.log().calls[2].begin_s[1] == Approx(66e-6));  // the second one took until 56 + 8.29 = 64.29
  CHECK(time.iteration_time_s == Approx(66e-6 + third).epsilon(1e-12));
  CHECK(time.forward_backward_time_s == Approx(66e-6));
  CHECK(time.value_exchange_time_s == Approx(third).epsilon(1e-12));
  CHECK(time.overlapped_time_s == Approx(first + second).epsilon(1e-12));
  CHECK(time.messages == 12);
  CHECK(time.bytes_sent_mean == 4400);
  check_phases_add_up(time);

  // One bucket for all: what sequential does.
  TimelineOptions one = layered("ddp_buckets");
  one.first_bucket_bytes = one.bucket_bytes = 1 << 20;
  TimelineOptions sequential = layered("sequential");
  CHECK(Timeline(profile, *network, one).time(dense(2)).iteration_time_s ==
        Approx(Timeline(profile, *network, sequential).time(dense(2)).iteration_time_s).epsilon(1e-12));
}

TEST_CASE("A bucket waits for the one before it") {
  const kernels::Profile profile = hand_profile();
  const auto network = make_network("auto", crossbar(), 2);
  TimelineOptions options = layered("ddp_buckets");
  for (LayerTime& layer : options.layers) layer.backward_s = 1e-6;
  const IterationTime time = Timeline(profile, *network, options).time(dense(2));
  // Ready at 7, 8, 9 us, each call takes more than 8 us.
  CHECK(time.iteration_time_s == Approx(7e-6 + ring2_s(800) + ring2_s(3200) + ring2_s(400)).epsilon(1e-12));
  CHECK(time.overlapped_time_s == Approx(2e-6).epsilon(1e-12));
  check_phases_add_up(time);
}

TEST_CASE("Computing is slowed exactly while communication overlaps") {
  const kernels::Profile profile = hand_profile();
  const auto network = make_network("auto", crossbar(), 2);
  TimelineOptions options = layered("ddp_buckets");
  options.overlap_slowdown = 2;
  const IterationTime time = Timeline(profile, *network, options).time(dense(2));
  // Layer 1 (20 us of work from 36 us) does half the work while the first bucket travels: it is longer by half of that.
  const double first = ring2_s(800), second = ring2_s(3200);
  const double ready1 = 36e-6 + 20e-6 + first / 2, ready0 = ready1 + 10e-6 + second / 2;
  CHECK(time.iteration_time_s == Approx(ready0 + ring2_s(400)).epsilon(1e-12));
  CHECK(time.forward_backward_time_s == Approx(ready0).epsilon(1e-12));
  CHECK(time.overlapped_time_s == Approx(first + second).epsilon(1e-12));
  check_phases_add_up(time);
}

TEST_CASE("A call that outlasts the computing slows it to its end and no further") {
  const kernels::Profile profile = hand_profile();
  const auto network = make_network("auto", crossbar(), 2);
  TimelineOptions options = layered("ddp_buckets");
  options.overlap_slowdown = 4;
  options.layers[1].backward_s = 1e-6;  // 4 us when slowed: ends inside the first call (8.07 us)
  options.layers[0].backward_s = 5e-6;
  const IterationTime time = Timeline(profile, *network, options).time(dense(2));
  const double first = 36e-6 + ring2_s(800), second = first + ring2_s(3200);
  // From 40 us layer 0 needs 20 us at a quarter of the speed; both calls last until 52.37 us, in which (52.37 - 40) / 4 us are done.
  const double ready0 = second + 5e-6 - (second - 40e-6) / 4;
  CHECK(time.iteration_time_s == Approx(ready0 + ring2_s(400)).epsilon(1e-12));
  check_phases_add_up(time);
}

TEST_CASE("Casts of dense fp16 belong to their bucket") {
  const kernels::Profile profile = hand_profile();
  const auto network = make_network("auto", crossbar(), 2);
  TimelineOptions options = layered("ddp_buckets");
  options.layers[1].elements = 1000;
  options.layers[2].elements = 100;
  options.first_bucket_bytes = 200;
  options.bucket_bytes = 1600;
  const IterationTime time = Timeline(profile, *network, options)
                                 .time(record(2, R"([{"op":"all_reduce","payload":"gradient","dtype":"float16","bytes":2400}])",
                                              R"([{"operation":"cast_half","before_call":0,"elements":1200,"selected":1200},
                           {"operation":"cast_half","before_call":1,"elements":1200,"selected":1200}])"));
  // Casts of 100, 1000, 100 elements: 1, 4, 1 us each way. Layer 2 until 36 us, its cast 37; layer 1 until 57 us, when the first bucket is
  // back (45 us): cast back 58, own cast 62; layer 0 until 72 us, when the second bucket is back (70.2 us): 76, own cast 77.
  CHECK(62e-6 + ring2_s(2000) < 72e-6);
  CHECK(time.iteration_time_s == Approx(77e-6 + ring2_s(200) + 1e-6).epsilon(1e-12));
  CHECK(time.other_time_s == Approx(12e-6).epsilon(1e-12));
  check_phases_add_up(time);
}

TEST_CASE("Layer by layer: a piece is selected and exchanged while the next layer is computed") {
  const kernels::Profile profile = hand_profile();
  const auto network = make_network("auto", crossbar(), 2);
  Json made = record(2,
                     R"([{"op":"all_gather","payload":"indices","dtype":"int64","bytes":880,"piece":0},
                         {"op":"all_reduce","payload":"values","dtype":"float32","bytes":440,"piece":0},
                         {"op":"all_gather","payload":"indices","dtype":"int64","bytes":1100,"piece":1},
                         {"op":"all_reduce","payload":"values","dtype":"float32","bytes":880,"piece":1}])",
                     R"([{"operation":"topk","before_call":0,"elements":100,"selected":100,"piece":0},
                         {"operation":"unite","before_call":1,"elements":100,"selected":100,"piece":0},
                         {"operation":"zero","before_call":2,"elements":100,"selected":100,"piece":0},
                         {"operation":"topk","before_call":2,"elements":1000,"selected":1000,"piece":1},
                         {"operation":"unite","before_call":3,"elements":1000,"selected":1000,"piece":1},
                         {"operation":"zero","before_call":4,"elements":1000,"selected":1000,"piece":1}])");
  made["piece_sizes"] = {100, 1000};
  TimelineOptions options = layered("layer_wise");
  Timeline timeline(profile, *network, options);
  timeline.keep_log(true);
  const IterationTime time = timeline.time(made);
  // Piece 1 (layers 1 and 2) is ready at 6 + 30 + 20 = 56 us, selected at 60 us and gathered while layer 0 is computed (60 to 70 us); piece
  // 0 is selected right after (71 us). The gather is over at 64.1 us, so its unite is next.
  const double gather1 = alpha_s + 1100 / bandwidth_Bps, reduce1 = ring2_s(880);
  CHECK(timeline.log().calls[0].begin_s[0] == Approx(60e-6));
  CHECK(60e-6 + gather1 < 70e-6);
  CHECK(timeline.log().calls[0].name == "all_gather indices (ring_padded)");
  // The computing stream: layer 0 until 70, then (the gather is over) the unite of piece 1 until 74, then piece 0's selection until 75.
  // The gather was over when layer 0 ended, and what is awaited goes first.
  CHECK(timeline.log().calls[1].begin_s[0] == Approx(74e-6));
  const double reduced1 = 74e-6 + reduce1;
  CHECK(timeline.log().calls[2].begin_s[0] == Approx(reduced1).epsilon(1e-12));  // selected long before, at 75 us
  // Piece 0's gather starts when piece 1's calls are over; meanwhile piece 1's zeros (4 us) are cleared.
  const double gathered0 = reduced1 + alpha_s + 880 / bandwidth_Bps;
  const double united0 = std::max(gathered0, reduced1 + 4e-6) + 1e-6;
  CHECK(time.iteration_time_s == Approx(united0 + ring2_s(440) + 1e-6).epsilon(1e-12));
  CHECK(time.selection_time_s == Approx(5e-6));
  CHECK(time.other_time_s == Approx(10e-6));
  // Exposed: from 75 us the only thing computed is the zeros, the unite and the last zeros.
  CHECK(time.index_exchange_time_s == Approx(gathered0 - reduced1 - 4e-6).epsilon(1e-9));
  check_phases_add_up(time);
  // Without overlap the same takes all of it.
  const IterationTime after = Timeline(profile, *network, layered("sequential")).time(made);
  CHECK(after.iteration_time_s ==
        Approx(66e-6 + 5e-6 + 10e-6 + gather1 + reduce1 + alpha_s + 880 / bandwidth_Bps + ring2_s(440)).epsilon(1e-12));
  CHECK(time.iteration_time_s < after.iteration_time_s);
}

TEST_CASE("Layer by layer with one exchange for all: only the selection moves") {
  const kernels::Profile profile = hand_profile();
  const auto network = make_network("auto", crossbar(), 2);
  Json made = record(2, R"([{"op":"all_reduce","payload":"values","dtype":"float32","bytes":440}])",
                     R"([{"operation":"accumulate","before_call":0,"elements":1000,"selected":0},
                         {"operation":"topk","before_call":0,"elements":100,"selected":10,"piece":0},
                         {"operation":"topk","before_call":0,"elements":1000,"selected":10,"piece":1},
                         {"operation":"zero","before_call":1,"elements":100,"selected":100}])");
  made["piece_sizes"] = {100, 1000};
  const IterationTime layers = Timeline(profile, *network, layered("layer_wise")).time(made);
  const IterationTime after = Timeline(profile, *network, layered("sequential")).time(made);
  CHECK(layers.iteration_time_s == Approx(after.iteration_time_s).epsilon(1e-12));
  CHECK(layers.selection_time_s == Approx(5e-6));
  CHECK(layers.other_time_s == Approx(5e-6));
  check_phases_add_up(layers);
}

TEST_CASE("Layer by layer refuses what selects from the whole gradient") {
  const TimelineModeInfo& mode = find_timeline_mode("layer_wise");
  CHECK(mode.refuses("dense", Json::object()).empty());
  CHECK(mode.refuses("cltk", {{"scope", "layer"}}).empty());
  CHECK_FALSE(mode.refuses("cltk", {{"scope", "global"}}).empty());
  CHECK_THAT(mode.refuses("exdyna", Json::object()), ContainsSubstring("topk, cltk"));
}

TEST_CASE("Gossip: a worker waits for its peer alone, and clocks are carried over") {
  const kernels::Profile profile = hand_profile();
  const auto network = make_network("auto", crossbar(), 4);
  TimelineOptions options = layered("gossip");
  options.layers.clear();
  options.disturbance =
      Disturbance::from_json(parse_json(R"({"stragglers":{"workers":[0],"factor":2,"iterations":[0,1]}})", "hand"), "", "");
  Timeline timeline(profile, *network, options);
  const double message = alpha_s + 4400 / bandwidth_Bps, compute = 66e-6;
  // Round 0: worker w sends to w + 1. Worker 0 enters at 132 us; 3 (its sender) and 1 (its receiver) wait for it, 2 talks to 1 and 3, which
  // are in the same step, so 2 sends at 66 us already.
  const IterationTime first = timeline.time(dense(4));
  CHECK(first.iteration_time_s == Approx(2 * compute + message).epsilon(1e-12));
  CHECK(first.worker_spread_s == Approx(compute).epsilon(1e-9));  // worker 2 is done at 66 us + message
  // Round 1: w sends to w + 2. Worker 2 is early but meets 0; 1 meets 3; all last ones ended at the same time.
  const IterationTime second = timeline.time(dense(4));
  CHECK(second.iteration_time_s == Approx(compute + message).epsilon(1e-9));
  CHECK(second.worker_spread_s == Approx(0).margin(1e-12));
  check_phases_add_up(first);
  check_phases_add_up(second);
  // The barrier of an all-reduce would have cost everybody the straggler as well, but nobody was idle here in iteration 0 except its peers.
  CHECK(first.messages == 4);
}

TEST_CASE("Hybrid: synchronisation overlaps the next forward pass, butterfly where a ring does not fit") {
  const kernels::Profile profile = hand_profile();
  const auto network = make_network("auto", crossbar(), 4);
  TimelineOptions options = layered("hybrid");
  Timeline timeline(profile, *network, options);
  timeline.keep_log(true);
  const IterationTime time = timeline.time(dense(4));
  // Windows: layer 0 none, layer 1 10 + 1 us, layer 2 30 + 3 us. A ring on four takes 6 (alpha + m / 4 B) > 24 us: it fits layer 2 alone.
  const auto& calls = timeline.log().calls;
  REQUIRE(calls.size() == 3);
  CHECK(calls[0].algorithm == "ring");
  CHECK(calls[1].algorithm == "recursive_doubling");
  CHECK(calls[2].algorithm == "recursive_doubling");
  const auto ring4 = [](double bytes) { return 6 * (alpha_s + bytes / 4 / bandwidth_Bps); };
  const auto butterfly4 = [](double bytes) { return 2 * (alpha_s + bytes / bandwidth_Bps); };
  // Backward: layer 2 until 30 us, 1 until 50, 0 until 60. Calls follow one another.
  const double end2 = 30e-6 + ring4(800), end1 = end2 + butterfly4(3200), end0 = std::max(60e-6, end1) + butterfly4(400);
  CHECK(end2 > 50e-6);
  CHECK(calls[2].end_s[3] == Approx(end0).epsilon(1e-12));
  // Forward of 0 after its own call, then nothing waits.
  CHECK(time.iteration_time_s == Approx(end0 + 6e-6).epsilon(1e-12));
  CHECK(time.value_exchange_time_s == Approx(end0 - 60e-6).epsilon(1e-9));
  check_phases_add_up(time);
  const IterationTime next = timeline.time(dense(4));
  CHECK(next.iteration_time_s == Approx(time.iteration_time_s).epsilon(1e-9));
  options.by_layer = "ring";
  const IterationTime rings = Timeline(profile, *network, options).time(dense(4));
  CHECK(rings.iteration_time_s == Approx(30e-6 + ring4(800) + ring4(3200) + ring4(400) + 6e-6).epsilon(1e-12));
}

TEST_CASE("P3: the slice of the lowest ready layer goes first, and a layer's forward pass waits for its own slices") {
  const kernels::Profile profile = hand_profile();
  const auto network = make_network("auto", crossbar(), 2);
  TimelineOptions options = layered("p3");
  options.layers = {{100, 50e-6, 1e-6}, {800, 2e-6, 1e-6}, {200, 3e-6, 1e-6}};
  options.slice_bytes = 1600;
  Timeline timeline(profile, *network, options);
  timeline.keep_log(true);
  const IterationTime time = timeline.time(dense(2));
  // Ready: layer 2 at 1 us, layer 1 (two slices of 1600 B) at 2, layer 0 at 3. Layer 2's call is under way until 9.07 us; then layer 0
  // goes, then the two slices of layer 1.
  const auto& calls = timeline.log().calls;
  REQUIRE(calls.size() == 4);
  const double end2 = 1e-6 + ring2_s(800), end0 = end2 + ring2_s(400), end1 = end0 + 2 * ring2_s(1600);
  CHECK(calls[0].bytes[0] == 800);
  CHECK(calls[1].bytes[0] == 400);
  CHECK(calls[2].bytes[0] == 1600);
  CHECK(calls[3].bytes[0] == 1600);
  CHECK(calls[3].end_s[0] == Approx(end1).epsilon(1e-12));
  // Layer 0's forward pass (50 us) hides layer 1's slices.
  CHECK(time.iteration_time_s == Approx(end0 + 55e-6).epsilon(1e-12));
  CHECK(time.value_exchange_time_s == Approx(end0 - 3e-6).epsilon(1e-9));
  CHECK(time.overlapped_time_s == Approx(2e-6 + 2 * ring2_s(1600)).epsilon(1e-9));
  check_phases_add_up(time);
  // Slowed by 3 while it overlaps: two thirds of the overlapped forward time are lost.
  options.overlap_slowdown = 3;
  const IterationTime slowed = Timeline(profile, *network, options).time(dense(2));
  // Backward of layers 1 and 0 takes 6 us until 7 us, inside the first call; forward of 0 does a third of what it would in 2 slices' time.
  CHECK(slowed.iteration_time_s == Approx(end0 + 55e-6 + 2 * ring2_s(1600) * 2 / 3).epsilon(1e-12));
}

TEST_CASE("Sparsifiers are sequential, to the bit, where a mode is about dense gradients") {
  const kernels::Profile profile = hand_profile();
  const auto network = make_network("auto", crossbar(), 2);
  Json sparse = record(2, R"([{"op":"all_gather","payload":"indices","dtype":"int64","bytes":[1100,550]}])",
                       R"([{"operation":"topk","before_call":0,"elements":[100,1000],"selected":[10,10]}])");
  sparse["sparsifier"] = "topk";
  const double sequential = Timeline(profile, *network, layered("sequential")).time(sparse).iteration_time_s;
  for (const char* mode : {"ddp_buckets", "p3", "hybrid"}) {
    Timeline timeline(profile, *network, layered(mode));
    timeline.time(sparse);
    CHECK(timeline.time(sparse).iteration_time_s == sequential);
  }
}

TEST_CASE("Stragglers and jitter slow a device for everything, the same on every run") {
  const kernels::Profile profile = hand_profile();
  const auto network = make_network("auto", crossbar(), 2);
  TimelineOptions options = layered("sequential");
  options.disturbance =
      Disturbance::from_json(parse_json(R"({"stragglers":{"workers":[1],"factor":3,"iterations":[1,2]}})", "hand"), "", "");
  const Json one = record(2, "[]", R"([{"operation":"topk","before_call":0,"elements":1000,"selected":10}])");
  Timeline timeline(profile, *network, options);
  CHECK(timeline.time(one).iteration_time_s == Approx(70e-6));
  const IterationTime slow = timeline.time(one);
  CHECK(slow.iteration_time_s == Approx(210e-6));
  CHECK(slow.selection_time_s == Approx(12e-6));
  CHECK(slow.worker_spread_s == Approx(140e-6));
  CHECK(timeline.time(one).iteration_time_s == Approx(70e-6));

  const auto from = [](const char* text) { return Disturbance::from_json(parse_json(text, "hand"), "e.json", "/disturbance"); };
  CHECK(from(R"({"stragglers":{"fraction":0.5,"factor":2,"seed":7}})").factors(0, 5).size() == 5);
  const auto half = from(R"({"stragglers":{"fraction":0.25,"factor":2,"seed":7}})").factors(3, 8);
  CHECK(std::count(half.begin(), half.end(), 2.0) == 2);
  CHECK(std::count(half.begin(), half.end(), 1.0) == 6);
  // Jitter: by hand from the named stream.
  const auto uniform = from(R"({"jitter":{"distribution":"uniform","spread":0.2,"seed":5}})").factors(4, 3);
  Random random(stream_key(5, "jitter", {2, 4}));
  CHECK(uniform[2] == 1 + 0.2 * (2 * random.uniform() - 1));
  double sum = 0, square = 0, added = 0;
  const Disturbance lognormal = from(R"({"jitter":{"distribution":"lognormal","spread":0.3}})");
  const Disturbance exponential = from(R"({"jitter":{"distribution":"exponential","spread":0.1}})");
  constexpr int draws = 20000;
  for (const double factor : lognormal.factors(0, draws)) {
    sum += factor / draws;
    square += factor * factor / draws;
  }
  for (const double factor : exponential.factors(0, draws)) {
    CHECK_FALSE(factor < 1);
    added += (factor - 1) / draws;
  }
  CHECK(sum == Approx(1).margin(0.01));
  CHECK(std::sqrt(square - sum * sum) == Approx(0.3).margin(0.02));
  CHECK(added == Approx(0.1).margin(0.003));
  CHECK_THROWS_AS(from(R"({"jitter":{"distribution":"uniform","spread":1}})"), InputError);
  CHECK_THROWS_AS(from(R"({"stragglers":{"factor":2}})"), InputError);
  CHECK_THROWS_AS(from(R"({"stragglers":{"workers":[1],"factor":2,"iterations":[3,3]}})"), InputError);
  CHECK_THROWS_AS(from(R"({"stragglers":{"workers":[4],"factor":2}})").check_workers(4, "e.json", ""), InputError);
}

TEST_CASE("A node's links are slowed for part of the run") {
  const kernels::Profile profile = hand_profile();
  const Disturbance disturbance = Disturbance::from_json(
      parse_json(R"({"slowed":[{"node":1,"factor":4,"iterations":[1,3]},{"link":"node0.nic0.up","factor":2,"iterations":[2,3]}]})", "hand"),
      "", "");
  check_slowed(disturbance.slowed, platforms::Topology(crossbar(), 2), "", "");
  CHECK_THROWS_AS(check_slowed({{2, "", 2, {}}}, platforms::Topology(crossbar(), 2), "", ""), InputError);
  CHECK_THROWS_AS(check_slowed({{-1, "nic9", 2, {}}}, platforms::Topology(crossbar(), 2), "", ""), InputError);
  for (const char* name : {"recurrence", "simgrid"}) {
    DisturbedNetworks networks(name, crossbar(), 2, disturbance.slowed);
    Timeline timeline(
        profile, [&](std::int64_t iteration) -> Network& { return networks.at(iteration); }, layered("sequential"));
    std::vector<double> exchange;
    for (int i = 0; i < 4; ++i) exchange.push_back(timeline.time(dense(2)).value_exchange_time_s);
    CHECK(exchange[0] == Approx(ring2_s(4400)).epsilon(1e-9));
    CHECK(exchange[1] == Approx(2 * (alpha_s + 2200 / (bandwidth_Bps / 4))).epsilon(1e-9));
    CHECK(exchange[2] == exchange[1]);  // the slowest link counts
    CHECK(exchange[3] == exchange[0]);
  }
  CHECK_THROWS_AS(make_network("nccl", crossbar(), 2, {{0, 2}}), InputError);
}

TEST_CASE("Bytes are counted per worker, per class of links and in receive buffers") {
  const kernels::Profile profile = hand_profile();
  const auto platform = platforms::Platform::load(platforms::find_platform("nvlink8-ib"));
  const auto network = make_network("auto", platform, 16);
  Timeline timeline(profile, *network, layered("sequential"));
  const IterationTime time = timeline.time(record(16, R"([{"op":"all_gather","payload":"indices","dtype":"int64","bytes":800}])", "[]"));
  // A ring of 16 on two nodes: every worker sends 15 blocks to the next; two of the 16 edges cross between the nodes.
  CHECK(time.bytes_sent == std::vector<std::uint64_t>(16, 12000));
  CHECK(time.bytes_received == std::vector<std::uint64_t>(16, 12000));
  CHECK(time.class_bytes[0] == 2 * 16 * 12000);  // out of one device, into another
  CHECK(time.class_bytes[1] == 2 * 2 * 12000);   // two edges, each out of a NIC and into one
  CHECK(time.class_busiest_bytes[1] == 12000);
  CHECK(time.class_bytes[2] + time.class_bytes[3] == 0);
  CHECK(time.receive_buffer_bytes == std::vector<std::uint64_t>(16, 16 * 800));
  // Unequal blocks: padded to the largest, or as they are.
  const Json unequal =
      record(4, R"([{"op":"all_gather","payload":"indices","dtype":"int64","bytes":800,"bytes_unpadded":[800,80,8,16]}])", "[]");
  const auto small = make_network("auto", crossbar(), 4);
  CHECK(Timeline(profile, *small, layered("sequential")).time(unequal).receive_buffer_bytes.front() == 3200);
  TimelineOptions unpadded = layered("sequential");
  unpadded.collectives.all_gather = "ring";
  const IterationTime ring = Timeline(profile, *small, unpadded).time(unequal);
  CHECK(ring.receive_buffer_bytes.front() == 904);
  // Worker 1 receives what worker 0 sends: all but worker 1's own block.
  CHECK(ring.bytes_received == std::vector<std::uint64_t>{904 - 800, 904 - 80, 904 - 8, 904 - 16});
  // A program that is no ring: each of two steps carries the whole buffer both ways.
  TimelineOptions butterfly = layered("sequential");
  butterfly.collectives.all_reduce = "recursive_doubling";
  const IterationTime doubled = Timeline(profile, *small, butterfly).time(dense(4));
  CHECK(doubled.bytes_received == std::vector<std::uint64_t>(4, 8800));
  CHECK(doubled.class_bytes[1] == 2 * 4 * 8800);
  CHECK(doubled.receive_buffer_bytes.back() == 4400);
}
