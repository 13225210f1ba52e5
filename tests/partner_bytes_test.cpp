// All-to-alls whose parts differ: as text, on the network, in a timeline.
#include "sim/partner_bytes.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/base64.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "base/random.hpp"
#include "sim/collective_command.hpp"
#include "sim/iteration_view.hpp"
#include "sim/network_backends.hpp"
#include "sim/replay.hpp"
#include "sim/sparsifier.hpp"
#include "sim/timeline.hpp"
#include "tests/catch.hpp"
#include "tests/command.hpp"
#include "tests/timeline_support.hpp"
#include "traces/trace.hpp"

using namespace sparscale;
using namespace sparscale::sim;
using namespace sparscale::test;

namespace {

using Numbers = std::vector<std::uint64_t>;

// Everything to one worker, so many bytes from each of the others.
Numbers to_one(std::size_t n, std::size_t receiver, std::uint64_t bytes) {
  Numbers parts(n * n, 0);
  for (std::size_t from = 0; from < n; ++from)
    if (from != receiver) parts[from * n + receiver] = bytes;
  return parts;
}

Numbers sums_of_rows(const Numbers& parts) {
  PartnerBytes all;
  all.bytes = parts;
  return all.sent();
}

CollectiveTiming timed(const std::string& network, const platforms::Platform& platform, const std::string& algorithm, const Numbers& parts,
                       const std::vector<double>& start_s = {}) {
  const Numbers bytes = sums_of_rows(parts);
  const auto n = static_cast<std::int64_t>(bytes.size());
  const auto back_end = make_network(network, platform, n);
  CollectiveInput input{bytes, 0, back_end->node_of_worker()};
  input.parts = parts;
  return back_end->time(*find_collective(Operation::all_to_all, algorithm).make(input),
                        start_s.empty() ? std::vector<double>(bytes.size(), 0.0) : start_s);
}

bool is(double value, double expected) { return std::abs(value - expected) <= 1e-12 * expected; }

}  // namespace

TEST_CASE("Bytes as base 64 and back") {
  const auto text_of = [](const std::string& text) { return base64_of({text.begin(), text.end()}); };
  // RFC 4648, section 10.
  CHECK(text_of("") == "");
  CHECK(text_of("f") == "Zg==");
  CHECK(text_of("fo") == "Zm8=");
  CHECK(text_of("foobar") == "Zm9vYmFy");
  for (const char* text : {"", "Zg==", "Zm8=", "Zm9vYmFy"}) CHECK(base64_of(bytes_of_base64(text, "here")) == text);
  for (const char* wrong : {"Z", "Zg=", "Zg===", "Z===", "Zm 8", "Zm8=Zm8=", "Zm9v\n", "Zm9v*mFy", "Zh==", "Zm9="})
    CHECK_THROWS_AS(bytes_of_base64(wrong, "here"), InputError);
  // More than one of the pieces that are coded at a time.
  std::vector<std::uint8_t> many(3 * (std::size_t{1} << 20) + 5);
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<std::uint8_t>(i * 7 + i / 251);
  CHECK(bytes_of_base64(base64_of(many), "here") == many);
}

TEST_CASE("Numbers are packed: small ones and runs of zeros take a byte") {
  const auto bytes_in = [](const Numbers& numbers) { return bytes_of_base64(packed_numbers(numbers), "here").size(); };
  CHECK(bytes_of_base64(packed_numbers({1, 0, 0, 0, 64, 65}), "here") == std::vector<std::uint8_t>{1, 4, 127, 129, 1});
  CHECK(bytes_in({}) == 0);
  CHECK(bytes_in(Numbers(64, 0)) == 1);
  CHECK(bytes_in(Numbers(65, 0)) == 2);
  Random random(stream_key(1, "packed", {}));
  for (int round = 0; round < 50; ++round) {
    Numbers numbers(random.below(300));
    for (std::uint64_t& one : numbers) one = random.below(3) == 0 ? 0 : random.below(std::uint64_t{1} << random.below(63));
    CHECK(unpacked_numbers(packed_numbers(numbers), numbers.size(), "here") == numbers);
    CHECK_THROWS_AS(unpacked_numbers(packed_numbers(numbers), numbers.size() + 1, "here"), InputError);
    if (!numbers.empty()) CHECK_THROWS_AS(unpacked_numbers(packed_numbers(numbers), numbers.size() - 1, "here"), InputError);
  }
  CHECK_THROWS_WITH(unpacked_numbers(base64_of({1, 129}), 2, "here"), "here: expected 2 packed numbers, found one that breaks off");
  CHECK_THROWS_WITH(unpacked_numbers(base64_of(std::vector<std::uint8_t>(11, 255)), 2, "here"),
                    "here: expected 2 packed numbers, found one above 2^64");
  // A run that is longer than what is left must not be made.
  CHECK_THROWS_WITH(unpacked_numbers(base64_of({254, 255, 255, 255, 255, 255, 127}), 9, "here"),
                    "here: expected 9 packed numbers, found more");
}

TEST_CASE("A call says what goes to whom, and refuses what does not add up") {
  CollectiveCall call;
  call.operation = Operation::all_to_all;
  call.payload = "values";
  call.dtype = "float32";
  call.parts = PartnerBytes::of_counts({7, 2, 0, 1, 7, 4, 0, 0, 7}, 8);  // the diagonal is not sent
  call.parts->ranges = {100, 50, 51};
  call.bytes = call.parts->sent();
  CHECK(call.bytes == Numbers{16, 40, 0});
  CHECK(call.parts->received() == Numbers{8, 16, 32});
  CHECK(call.parts->range(0, 2) == 51);
  const Json json = call.to_json();
  CHECK(json.at("parts").at("unit_bytes") == 8);
  const CollectiveCall read = CollectiveCall::from_json(json, 3);
  CHECK(read.parts->bytes == call.parts->bytes);
  CHECK(read.parts->ranges == call.parts->ranges);
  CHECK_FALSE(read.parts->ranges_of_senders);
  CHECK(read.to_json() == json);

  const auto refused = [](const Json& wrong, const char* why) {
    CHECK_THROWS_WITH(CollectiveCall::from_json(wrong, 3), ContainsSubstring(why));
  };
  Json wrong = json;
  wrong["bytes"] = {16, 40, 8};
  for (Json& one : wrong["bytes"]) one = one.get<std::uint64_t>();
  refused(wrong, "exchange call /parts/counts: expected the 8 bytes that worker 2 sends, found 0");
  wrong = json;
  wrong["parts"]["counts"] = packed_numbers({2, 0, 0, 1, 0, 4, 0, 0, 0});
  refused(wrong, "exchange call /parts/counts: expected nothing from a worker to itself, found 16 bytes of worker 0");
  wrong = json;
  wrong["parts"]["counts"] = packed_numbers({0, 2, 0});
  refused(wrong, "exchange call /parts/counts: expected 9 packed numbers, found 3");
  wrong = json;
  wrong["parts"]["ranges"] = Json::array({1U, 2U});
  refused(wrong, "exchange call /parts/ranges: expected 3 numbers, one per worker, found 2");
  wrong = json;
  wrong["parts"].erase("ranges_of");
  refused(wrong, "exchange call /parts");
  wrong = json;
  wrong["op"] = "all_gather";
  refused(wrong, "exchange call /parts: expected no such key, as the operation is not all_to_all, found all_gather");
  // Sizes that wrap around.
  wrong = json;
  wrong["parts"]["unit_bytes"] = std::uint64_t{1} << 62;
  refused(wrong, "a size below 2^64");
}

TEST_CASE("Totals of a sample are shared out by what senders and receivers have in all") {
  // Receivers 1 : 3 : 4; nothing to oneself.
  const Numbers parts = bytes_from_totals({700, 500, 400}, {100, 300, 400});
  CHECK(parts == Numbers{0, 300, 400, 100, 0, 400, 100, 300, 0});
  Random random(stream_key(2, "totals", {}));
  for (const std::size_t n : {1, 2, 9}) {
    Numbers sent(n), received(n);
    for (std::size_t i = 0; i < n; ++i) {
      sent[i] = n > 1 ? random.below(100000) : 0;
      received[i] = random.below(3) == 0 ? 0 : random.below(100000);
    }
    CHECK(sums_of_rows(bytes_from_totals(sent, received)) == sent);
    const Numbers even = bytes_from_totals(sent, Numbers(n, 0));  // nothing is known
    CHECK(sums_of_rows(even) == sent);
    for (std::size_t i = 0; i < n; ++i) CHECK(even[i * n + i] == 0);
  }
}

TEST_CASE("Everything to one worker: its link takes it all, one message after the other or four at a time") {
  // 10 us of transfer and 4 us of latency a message.
  const platforms::Platform platform = crossbar();
  const double heavy_s = 110000 / bandwidth_Bps;
  const Numbers parts = to_one(4, 2, 110000);
  for (const std::string network : {"recurrence", "simgrid", "auto"}) {
    const CollectiveTiming timing = timed(network, platform, "pairwise", parts);
    // Worker 2 receives from 1, 0 and 3. Worker 0 sends to it in the second step, is in its third one when that is over, and gets an empty
    // message from 1 meanwhile; worker 3 sends in the third.
    const double one = alpha_s + heavy_s;
    const std::vector<double> expected = {2 * one + alpha_s, 2 * one + alpha_s, 3 * one, 3 * one};
    for (std::size_t worker = 0; worker < 4; ++worker) CHECK(is(timing.end_s[worker], expected[worker]));
    CHECK(timing.bytes_sent == Numbers{110000, 110000, 0, 110000});
    CHECK(timing.messages == 12);
  }
  const CollectiveTiming throttled = timed("simgrid", platform, "throttled", parts);
  for (std::size_t worker = 0; worker < 4; ++worker) CHECK(is(throttled.end_s[worker], alpha_s + 3 * heavy_s));
  CHECK(timed("auto", platform, "throttled", parts).network == "simgrid");
  // By totals it would be 3 alpha + H / B: the parts of a third go out one after the other.
  const auto network = make_network("auto", platform, 4);
  const CollectiveTiming even =
      network->time(*find_collective(Operation::all_to_all, "pairwise").make(sums_of_rows(parts), 0), std::vector<double>(4, 0.0));
  CHECK(*std::max_element(even.end_s.begin(), even.end_s.end()) == Approx(3 * alpha_s + heavy_s).epsilon(1e-3));
  // One sender: its link is the bottleneck instead, and the two are the same.
  Numbers from_one(16, 0);
  for (const std::size_t to : {0, 1, 3}) from_one[2 * 4 + to] = 110000;
  CHECK(is(timed("auto", platform, "pairwise", from_one).end_s[2], 3 * (alpha_s + heavy_s)));
  CHECK(is(timed("auto", platform, "throttled", from_one).end_s[2], alpha_s + 3 * heavy_s));
}

TEST_CASE("Parts of any size: SimGrid and recurrence agree, and equal parts are those that are cut evenly") {
  for (const std::size_t n : {2, 3, 7, 12}) {
    Random random(stream_key(3, "parts", {n}));
    Numbers parts(n * n, 0);
    std::vector<double> start(n);
    for (std::size_t i = 0; i < n * n; ++i)
      if (i / n != i % n) parts[i] = random.below(4) == 0 ? 0 : random.below(500000);
    for (double& one : start) one = 1e-4 * random.uniform();
    const CollectiveTiming a = timed("recurrence", crossbar(), "pairwise", parts, start),
                           b = timed("simgrid", crossbar(), "pairwise", parts, start);
    const double last = *std::max_element(b.end_s.begin(), b.end_s.end());
    for (std::size_t worker = 0; worker < n; ++worker) CHECK(std::abs(a.end_s[worker] - b.end_s[worker]) <= 1e-12 * last);
    CHECK(a.bytes_sent == b.bytes_sent);
    CHECK(a.bytes_sent == sums_of_rows(parts));
    for (const std::string algorithm : {"pairwise", "throttled"}) {
      const Numbers even(n, 4000 * (n - 1));
      Numbers same(n * n, 4000);
      for (std::size_t worker = 0; worker < n; ++worker) same[worker * n + worker] = 0;
      const auto network = make_network("auto", crossbar(), static_cast<std::int64_t>(n));
      CHECK(network->time(*find_collective(Operation::all_to_all, algorithm).make(even, 0), start).end_s ==
            timed("auto", crossbar(), algorithm, same, start).end_s);
    }
  }
}

TEST_CASE("Parts that do not fit the workers are refused") {
  const Numbers bytes = {8, 8, 8};
  const auto made = [&](Operation operation, const std::string& algorithm, const Numbers& parts) {
    CollectiveInput input{bytes, 0, {}};
    input.parts = parts;
    find_collective(operation, algorithm).make(input);
  };
  for (const std::string algorithm : {"pairwise", "throttled"}) {
    CHECK_THROWS_WITH(made(Operation::all_to_all, algorithm, Numbers(4, 0)),
                      "all_to_all " + algorithm + " parts: expected 3 for each of 3 workers, found 4 in all");
    CHECK_THROWS_WITH(made(Operation::all_to_all, algorithm, {0, 8, 0, 8, 0, 0, 4, 0, 4}),
                      "all_to_all " + algorithm + " parts: expected nothing from a worker to itself, found 4 bytes of worker 2");
    CHECK_THROWS_WITH(made(Operation::all_to_all, algorithm, {0, 8, 0, 8, 0, 8, 4, 4, 0}),
                      "all_to_all " + algorithm + " parts: expected the 8 bytes of worker 1, found others");
    CHECK_THROWS_AS(made(Operation::all_to_all, algorithm, {0, 8, 0, 8, 0, 0, UINT64_MAX, 9, 0}), InputError);
    CHECK_THROWS_AS(made(Operation::all_to_all, algorithm, {0, 8, 0, 7, 0, 0, 4, 4, 0}), InputError);
  }
  CHECK_THROWS_WITH(made(Operation::all_gather, "ring", Numbers(9, 0)),
                    "parts of all_gather: expected none, as only an all_to_all has some, found 9");
}

TEST_CASE("A timeline times, counts and exports the true parts, and says when it does not know them") {
  const kernels::Profile profile = hand_profile();
  const std::size_t n = 16;
  const std::uint64_t H = 100000;
  const auto platform = platforms::Platform::load(platforms::find_platform("nvlink8-ib"));
  const auto network = make_network("auto", platform, n);
  TimelineOptions options;
  options.forward_time_s = 1e-6;
  CollectiveCall call;
  call.operation = Operation::all_to_all;
  call.payload = "values";
  call.dtype = "float32";
  call.parts = PartnerBytes();
  call.parts->bytes = to_one(n, 0, H);
  call.bytes = call.parts->sent();
  const Json known = call.to_json();
  Json unknown = known;
  unknown.erase("parts");
  const auto record = [&](const Json& one) { return Json{{"workers", n}, {"exchange", Json::array({one})}, {"work", Json::array()}}; };
  Timeline timeline(profile, *network, options);
  timeline.keep_log(true);
  const IterationTime time = timeline.time(record(known));
  CHECK_FALSE(time.even_parts);
  Numbers received(n, 0);
  received[0] = 15 * H;
  CHECK(time.bytes_received == received);
  CHECK(time.receive_buffer_bytes == received);
  // Links of devices: out of 15, into worker 0. NICs: what the second node sends leaves it and enters the first one.
  const auto of = [&](platforms::LinkClass one) { return static_cast<std::size_t>(one); };
  CHECK(time.class_bytes[of(platforms::LinkClass::device)] == 30 * H);
  CHECK(time.class_busiest_bytes[of(platforms::LinkClass::device)] == 15 * H);
  CHECK(time.class_bytes[of(platforms::LinkClass::nic)] == 16 * H);
  CHECK(time.class_busiest_bytes[of(platforms::LinkClass::nic)] == 8 * H);

  // GOAL and the trace of events have them as well.
  const std::string goal = goal_schedule(n, goal_parts(timeline.log(), *network, options), goal_unit(network->topology()));
  const auto times = [&](const std::string& text) {
    std::size_t found = 0;
    for (std::size_t at = goal.find(text); at != std::string::npos; at = goal.find(text, at + 1)) ++found;
    return found;
  };
  CHECK(times("send " + std::to_string(H) + "b to 0 ") == 15);
  CHECK(times("send 1b to ") == 15 * 14 + 15);  // of 0 bytes
  CHECK(times("recv " + std::to_string(H) + "b from ") == 15);
  for (const Json& event : event_trace(timeline.log()).at("traceEvents"))
    if (event.at("ph") == "X" && event.at("cat") == "communication") {
      CHECK(event.at("args").at("bytes") == (event.at("pid") == 0 ? 0 : H));
      CHECK(event.at("args").at("bytes_received") == (event.at("pid") == 0 ? 15 * H : 0));
    }

  // An old record: read, timed as if the parts were equal, and said.
  const IterationTime even = timeline.time(record(unknown));
  CHECK(even.even_parts);
  CHECK(even.iteration_time_s < 0.8 * time.iteration_time_s);
  Json counts = unknown;
  counts["payload"] = "counts";
  CHECK_FALSE(timeline.time(record(counts)).even_parts);  // one number to each
}

TEST_CASE("GOAL schedules of streams have the bytes of the streams") {
  const kernels::Profile profile = hand_profile();
  const auto network = make_network("auto", crossbar(), 3);
  CollectiveCall call;
  call.operation = Operation::sparse_all_reduce;
  call.payload = "values";
  call.dtype = "float32";
  call.stream = SparseStream{{{12, 0}, {24, 36}, {48, 60}}, {72, 84}, 1};
  call.bytes = {12, 60, 108};
  TimelineOptions options;
  options.forward_time_s = 1e-6;
  Timeline timeline(profile, *network, options);
  timeline.keep_log(true);
  timeline.time({{"workers", 3}, {"exchange", Json::array({call.to_json()})}, {"work", Json::array()}});
  const std::string goal = goal_schedule(3, goal_parts(timeline.log(), *network, options), goal_unit(network->topology()));
  for (const char* part : {"send 24b to 0", "send 36b to 0", "send 48b to 0", "send 60b to 0", "send 72b to 1", "send 84b to 2"})
    CHECK_THAT(goal, ContainsSubstring(part));
}

TEST_CASE("The collective command takes what goes to whom from a file") {
  const tests::Scratch scratch("parts");
  const std::string file = (scratch / "m.json").string(),
                    command =
                        "collective --platform crossbar-100g --workers 3 --op all_to_all --algorithm pairwise --bytes-file '" + file + "'";
  tests::spit(scratch / "m.json", "[[0,110000,0],[0,0,0],[0,110000,0]]");
  const auto run = tests::run_program(command);
  REQUIRE(run.status == 0);
  const Json answer = parse_json(run.out, "answer");
  CHECK(answer.at("bytes_sent") == Json{110000, 0, 110000});
  CHECK(answer.at("time_s").get<double>() == Approx(2 * (alpha_s + 110000 / bandwidth_Bps)).epsilon(1e-12));
  tests::spit(scratch / "m.json", "[[0,1],[1,0],[0,0]]");
  CHECK_THAT(tests::run_program(command).err, ContainsSubstring("m.json: /0: expected 3 integers, or as many arrays of them, found 2"));
  tests::spit(scratch / "m.json", "[[1,1,0],[1,0,0],[0,0,0]]");
  CHECK_THAT(tests::run_program(command).err,
             ContainsSubstring("m.json: /0/0: expected 0, as nothing goes from a worker to itself, found 1"));
  tests::spit(scratch / "m.json", "[[0,1,0],[1,0,-1],[0,0,0]]");
  CHECK(tests::run_program(command).status == 2);
  tests::spit(scratch / "m.json", "[1,2,3]");
  CHECK(tests::run_program(command).status == 0);
}

TEST_CASE("A sample of the rows keeps what senders and receivers have, and rows that add up") {
  const traces::Trace trace = traces::Trace::open(data_directory() / "traces" / "samples" / "digits-cnn-8w");
  for (const std::string name : {"oktopk", "topk_dsa", "omnireduce"}) {
    ReplayOptions options;
    options.sparsifier = name;
    options.parameters = resolve_parameters(
        find_sparsifier(name),
        name == "omnireduce" ? Json{{"threshold", 0.01}, {"block_elements", 16}, {"aggregators", 1}} : Json::object(), "", "");
    options.workers = 8;
    options.density = 0.02;
    options.iterations = 1;
    const Json whole = Replay(trace, options).next();
    options.memory = MemoryChoice::parse("sample:0.5", "");
    const Json sample = Replay(trace, options).next();
    INFO(name);
    const auto received = [&](const Json& record) {
      for (const Json& one : record.at("exchange")) {
        const CollectiveCall call = CollectiveCall::from_json(parse_json(one.dump(), "call"), 8);
        if (call.operation == Operation::all_to_all && call.payload == "values") {
          REQUIRE(call.parts.has_value());
          const Numbers sent = call.parts->sent();
          CHECK(sent == call.bytes_of_all(8));
          // Whole entries, of which an encoding of every message loses less than one a worker (the last block is shorter).
          const std::uint64_t entry = call.entry_index_bytes + call.entry_value_bytes;
          if (name != "omnireduce" || record.contains("sampling"))
            for (std::size_t from = 0; from < 8; ++from) {
              std::uint64_t entries = 0;
              for (std::size_t to = 0; to < 8; ++to) entries += call.parts->bytes[8 * from + to] / entry;
              CHECK(entries == sent[from] / entry);
            }
          return call.parts->received();
        }
      }
      return Numbers();
    };
    const Numbers a = received(whole), b = received(sample);
    const auto total = [](const Numbers& numbers) {
      return static_cast<double>(std::accumulate(numbers.begin(), numbers.end(), std::uint64_t{0}));
    };
    CHECK(total(b) == Approx(total(a)).epsilon(0.2));
    // The worker that receives most does so in the sample.
    const auto most = std::max_element(a.begin(), a.end()) - a.begin();
    CHECK(static_cast<double>(b[static_cast<std::size_t>(most)]) > 0.8 * static_cast<double>(*std::max_element(b.begin(), b.end())));
  }
}
