// Encodings of an exchange: bytes, calls and casts.
#include "sim/wire_format.hpp"

#include <algorithm>
#include <numeric>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/random.hpp"
#include "experiments/experiment.hpp"
#include "experiments/results.hpp"
#include "experiments/runner.hpp"
#include "sim/replay.hpp"
#include "sim/sparsifier.hpp"
#include "tests/catch.hpp"
#include "tests/command.hpp"

using namespace sparscale;
using namespace sparscale::sim;

namespace {

using Indices = std::vector<std::int64_t>;

Json record_of(std::int64_t workers, const char* exchange, const char* work = "[]") {
  return {{"workers", workers}, {"exchange", parse_json(exchange, "exchange")}, {"work", parse_json(work, "work")}};
}

Json coded(const Json& record, const char* values, const char* indices, std::uint64_t gradients, WireUse* used = nullptr) {
  WireUse use;
  Json made = encoded_record(record, WireFormat::from_text(values, indices), gradients, use);
  if (used != nullptr) *used = use;
  return made;
}

}  // namespace

TEST_CASE("Distances of indices take 7 bits a byte") {
  CHECK(delta_bytes_of(Indices{}) == 0);
  CHECK(delta_bytes_of(Indices{0}) == 1);
  CHECK(delta_bytes_of(Indices{127}) == 1);
  CHECK(delta_bytes_of(Indices{128}) == 2);
  CHECK(delta_bytes_of(Indices{5, 6, 133, 134}) == 4);  // distances - 1: 5, 0, 126, 0
  CHECK(delta_bytes_of(Indices{5, 6, 135}) == 4);       // 128 takes two
  CHECK(delta_bytes_of(Indices{(1 << 14) - 1}) == 2);
  CHECK(delta_bytes_of(Indices{1 << 14, (1 << 14) + 1 + (1 << 21)}) == 3 + 4);
}

TEST_CASE("A list of a piece counts from the piece's first gradient") {
  const std::vector<std::int64_t> list = {20000, 20001, 20130};
  CHECK(delta_bytes_of(list) == 3 + 1 + 2);
  CHECK(delta_bytes_of(list, 19000) == 2 + 1 + 2);
  CHECK(delta_bytes_of(list, 20000) == 1 + 1 + 2);
}

TEST_CASE("No list is longer than the bound for its count") {
  Random random(stream_key(1, "wire test", {}));
  for (const std::int64_t range : {1, 100, 129, 5000, 40000, 3000000})
    for (int round = 0; round < 40; ++round) {
      const std::int64_t count = std::min<std::int64_t>(range, 1 + static_cast<std::int64_t>(random.below(1000)));
      Indices indices;
      for (std::int64_t i = 0; i < count; ++i)
        indices.push_back(static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(range))));
      std::sort(indices.begin(), indices.end());
      indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
      const std::uint64_t bytes = delta_bytes_of(indices);
      INFO(range << " " << indices.size());
      CHECK(bytes >= indices.size());
      CHECK(bytes <= index_bytes(WireFormat::Index::delta, indices.size(), static_cast<std::uint64_t>(range)));
    }
  // Reached to within one index when every distance is the shortest that takes two bytes.
  Indices spread;
  for (std::int64_t i = 1; i <= 100; ++i) spread.push_back(129 * i - 1);
  CHECK(delta_bytes_of(spread) == 200);
  CHECK(index_bytes(WireFormat::Index::delta, 100, 12900) == 200);
}

TEST_CASE("Indices take the bytes of their encoding") {
  using Index = WireFormat::Index;
  CHECK(index_bytes(Index::int64, 1000, 1000000) == 8000);
  CHECK(index_bytes(Index::int32, 1000, 1000000) == 4000);
  CHECK(index_bytes(Index::bitmap, 1000, 1000001) == 125001);
  CHECK(index_bytes(Index::delta, 1000, 1000000) == 1000 + 1000 + 61);
  CHECK(index_bytes(Index::delta, 0, 1048576) == 0);
  CHECK_THROWS_AS(index_bytes(Index::int32, 1, std::uint64_t{1} << 32), InputError);
  CHECK_THROWS_AS(index_bytes(Index::int64, 11, 10), InputError);
  CHECK_THROWS_AS(WireFormat::from_text("fp8", "int32"), InputError);
  CHECK_THROWS_AS(WireFormat::from_text("fp16", "int16"), InputError);
}

TEST_CASE("An exchange is recoded call by call, and casts are work") {
  const Json record = record_of(2, R"([{"op":"all_gather","payload":"counts","dtype":"int64","bytes":8},
      {"op":"all_gather","payload":"indices","dtype":"int64","bytes":800,"bytes_unpadded":[800,16]},
      {"op":"all_reduce","payload":"values","dtype":"float32","bytes":400},
      {"op":"all_reduce","payload":"gradient","dtype":"float32","bytes":4000}])",
                                R"([{"operation":"unite","before_call":2,"elements":102,"selected":100},
      {"operation":"zero","before_call":4,"elements":100,"selected":100}])");
  WireUse use;
  const Json made = coded(record, "bf16", "int32", 1000, &use);
  CHECK(made.at("exchange").dump() == R"([{"op":"all_gather","payload":"counts","dtype":"int64","bytes":8},)"
                                      R"({"op":"all_gather","payload":"indices","dtype":"int32","bytes":400,"bytes_unpadded":[400,8]},)"
                                      R"({"op":"all_reduce","payload":"values","dtype":"bfloat16","bytes":200},)"
                                      R"({"op":"all_reduce","payload":"gradient","dtype":"float32","bytes":4000}])");
  CHECK(made.at("work").dump() == R"([{"operation":"unite","before_call":2,"elements":102,"selected":100},)"
                                  R"({"operation":"cast_half","before_call":2,"elements":100,"selected":100},)"
                                  R"({"operation":"cast_half","before_call":3,"elements":100,"selected":100},)"
                                  R"({"operation":"zero","before_call":4,"elements":100,"selected":100}])");
  CHECK((use.values && use.indices && !use.delta_actual && !use.delta_bound));
  CHECK(coded(record, "fp32", "as_sent", 1000, &use) == record);
  CHECK_FALSE((use.values || use.indices));
  // A bit for every gradient; every block is the same then, so there is no padding left.
  const Json bits = coded(record, "fp32", "bitmap", 1000);
  CHECK(bits.at("exchange").at(1).dump() == R"({"op":"all_gather","payload":"indices","dtype":"uint8","bytes":125,"bytes_unpadded":125})");
  CHECK(bits.at("exchange").at(2) == record.at("exchange").at(2));
  CHECK(bits.at("work") == record.at("work"));
}

TEST_CASE("Delta-coded lists have their own lengths, which must be told first") {
  // Two lists of as many indices whose codes differ in length.
  const Json record = record_of(2, R"([{"op":"all_gather","payload":"indices","dtype":"int64","bytes":24,"delta_bytes":[3,5]},
      {"op":"all_reduce","payload":"values","dtype":"float32","bytes":20}])",
                                R"([{"operation":"topk","before_call":0,"elements":1000,"selected":3},
      {"operation":"unite","before_call":1,"elements":6,"selected":5}])");
  WireUse use;
  const Json made = coded(record, "fp32", "delta", 1000, &use);
  CHECK(made.at("exchange").dump() == R"([{"op":"all_gather","payload":"counts","dtype":"int64","bytes":8},)"
                                      R"({"op":"all_gather","payload":"indices","dtype":"uint8","bytes":5,"bytes_unpadded":[3,5]},)"
                                      R"({"op":"all_reduce","payload":"values","dtype":"float32","bytes":20}])");
  CHECK(made.at("work").dump() == R"([{"operation":"topk","before_call":0,"elements":1000,"selected":3},)"
                                  R"({"operation":"unite","before_call":2,"elements":6,"selected":5}])");
  CHECK((use.delta_actual && !use.delta_bound));
  // A broadcast list, after its length; and one whose indices the record does not tell, by the bound: 3 + min(3, 1000 / 128).
  const Json broadcast =
      coded(record_of(3, R"([{"op":"broadcast","payload":"indices","dtype":"int64","bytes":24,"root":2,"delta_bytes":[4]}])"), "fp32",
            "delta", 1000);
  CHECK(broadcast.at("exchange").dump() == R"([{"op":"broadcast","payload":"counts","dtype":"int64","bytes":8,"root":2},)"
                                           R"({"op":"broadcast","payload":"indices","dtype":"uint8","bytes":4,"root":2}])");
  const Json bound = coded(record_of(2, R"([{"op":"all_gather","payload":"counts","dtype":"int64","bytes":8},
      {"op":"all_gather","payload":"indices","dtype":"int32","bytes":[12,0]}])"),
                           "fp32", "delta", 1000, &use);
  CHECK(bound.at("exchange").at(1).dump() == R"({"op":"all_gather","payload":"indices","dtype":"uint8","bytes":[6,0]})");
  CHECK(use.delta_bound);
}

TEST_CASE("Entries and blocks keep what is not recoded") {
  // 10 entries of an index and a value, float64 each.
  const Json entries = record_of(4, R"([{"op":"reduce","payload":"values","dtype":"float64","bytes":160,"entry":[8,8]},
      {"op":"broadcast","payload":"values","dtype":"float64","bytes":160,"root":0,"entry":[8,8]}])");
  CHECK(coded(entries, "fp16", "int32", 1000).at("exchange").at(0).at("bytes") == 60);
  CHECK(coded(entries, "fp16", "as_sent", 1000).at("exchange").at(1).at("bytes") == 100);
  CHECK(coded(entries, "fp32", "int32", 1000).at("exchange").at(0).at("bytes") == 120);
  // Worker 0 receives in two rounds, worker 2 in one; the root alone narrows what it broadcasts.
  CHECK(coded(entries, "fp16", "as_sent", 1000).at("work").dump() ==
        R"([{"operation":"cast_half","before_call":0,"elements":10,"selected":10},)"
        R"({"operation":"cast_half","before_call":1,"elements":[20,0,10,0],"selected":[20,0,10,0]},)"
        R"({"operation":"cast_half","before_call":1,"elements":[10,0,0,0],"selected":[10,0,0,0]},)"
        R"({"operation":"cast_half","before_call":2,"elements":10,"selected":10}])");
  // Three blocks of 16 values and their offsets, the last one with 4 values. Of 1,000 gradients there are 63 blocks, whose numbers are
  // coded: 3 bytes with delta, 8 as bits.
  const Json blocks = record_of(2, R"([{"op":"all_to_all","payload":"values","dtype":"float32","bytes":156,"entry":[4,64]}])");
  CHECK(coded(blocks, "bf16", "as_sent", 1000).at("exchange").at(0).at("bytes") == 12 + 72);
  CHECK(coded(blocks, "bf16", "delta", 1000).at("exchange").at(0).at("bytes") == 3 + 72);
  CHECK(coded(blocks, "fp32", "int32", 1000).at("exchange").at(0).at("bytes") == 156);
  CHECK(coded(blocks, "fp32", "int64", 1000).at("exchange").at(0).at("bytes") == 24 + 144);
  CHECK(coded(blocks, "fp32", "bitmap", 1000).at("exchange").at(0).at("bytes") == 8 + 144);
}

TEST_CASE("Every message of an all-to-all is recoded, from its own range") {
  CollectiveCall call;
  call.operation = Operation::all_to_all;
  call.payload = "values";
  call.dtype = "float32";
  call.entry_index_bytes = call.entry_value_bytes = 4;
  call.parts = PartnerBytes::of_counts({0, 2, 5, 1, 0, 0, 3, 300, 0}, 8);
  call.parts->ranges = {100, 900, 17};
  call.bytes = call.parts->sent();
  const Json record = {{"workers", 3}, {"exchange", Json::array({call.to_json()})}, {"work", Json::array()}};
  using Numbers = std::vector<std::uint64_t>;
  const auto parts = [&](const char* values, const char* indices) {
    const CollectiveCall made = CollectiveCall::from_json(coded(record, values, indices, 1017).at("exchange").at(0), 3);
    CHECK(made.bytes_of_all(3) == made.parts->sent());
    CHECK(made.dtype == "uint8");
    return made.parts->bytes;
  };
  CHECK(parts("fp16", "as_sent") == Numbers{0, 12, 30, 6, 0, 0, 18, 1800, 0});
  CHECK(parts("fp32", "int64") == Numbers{0, 24, 60, 12, 0, 0, 36, 3600, 0});
  // Bits of the receiver's range: 13, 113 and 3 bytes, also where nothing is selected.
  CHECK(parts("fp32", "bitmap") == Numbers{0, 8 + 113, 20 + 3, 4 + 13, 0, 3, 12 + 13, 1200 + 113, 0});
  // Bounds: a byte each, and one more for the distances of 128 and more that fit in the range.
  CHECK(parts("fp16", "delta") == Numbers{0, 4 + 4, 15, 3, 0, 0, 9, 600 + 307, 0});
  // Who receives widens what arrives: 4, 302 and 5 entries.
  CHECK(coded(record, "bf16", "as_sent", 1017).at("work").dump() ==
        R"([{"operation":"cast_half","before_call":0,"elements":[7,1,303],"selected":[7,1,303]},)"
        R"({"operation":"cast_half","before_call":1,"elements":[4,302,5],"selected":[4,302,5]}])");
  // By the sender's range.
  call.parts->ranges_of_senders = true;
  call.parts->bytes = PartnerBytes::of_counts({0, 2, 5, 1, 0, 0, 3, 10, 0}, 8).bytes;
  call.bytes = call.parts->sent();
  const Json moved = {{"workers", 3}, {"exchange", Json::array({call.to_json()})}, {"work", Json::array()}};
  const CollectiveCall made = CollectiveCall::from_json(coded(moved, "fp32", "bitmap", 1017).at("exchange").at(0), 3);
  CHECK(made.parts->bytes == Numbers{0, 8 + 13, 20 + 13, 4 + 113, 0, 113, 12 + 3, 40 + 3, 0});
}

TEST_CASE("Blocks of streams are recoded stretch by stretch") {
  CollectiveCall call;
  call.operation = Operation::sparse_all_reduce;
  call.payload = "values";
  call.dtype = "float32";
  call.entry_index_bytes = 4;
  call.entry_value_bytes = 64;
  call.index_range = 21;  // blocks, 10 and 11 of them in the stretches
  call.stream = SparseStream{{{68, 0}, {136, 68}}, {136, 68}, 0};
  call.bytes = {68, 204};
  const Json record = {{"workers", 2}, {"exchange", Json::array({call.to_json()})}, {"work", Json::array()}};
  const auto made = [&](const char* values, const char* indices) {
    return CollectiveCall::from_json(coded(record, values, indices, 336).at("exchange").at(0), 2);
  };
  using Lists = std::vector<std::vector<std::uint64_t>>;
  CHECK(made("fp16", "as_sent").stream->sent_bytes == Lists{{36, 0}, {72, 36}});
  CHECK(made("fp32", "int64").stream->sent_bytes == Lists{{72, 0}, {144, 72}});
  CHECK(made("fp32", "bitmap").stream->sent_bytes == Lists{{64 + 2, 2}, {128 + 2, 64 + 2}});
  CHECK(made("fp32", "delta").stream->back_bytes == std::vector<std::uint64_t>{130, 65});
  CHECK(made("fp32", "delta").bytes == std::vector<std::uint64_t>{65, 195});
}

TEST_CASE("What any sparsifier exchanges can be written in every encoding") {
  const traces::Trace trace = traces::Trace::open(experiments::find_trace("digits-cnn-8w"));
  std::vector<std::pair<std::string, Json>> cases;
  for (const SparsifierInfo& info : sparsifiers()) {
    if (info.dense) continue;
    cases.emplace_back(info.name, Json::object());
    for (const Parameter& parameter : info.parameters) {
      if (parameter.name == "scope") cases.emplace_back(info.name, Json{{"scope", "layer"}});
      const bool scoped = std::any_of(info.parameters.begin(), info.parameters.end(), [](const auto& one) { return one.name == "scope"; });
      if (parameter.name == "fused") {
        cases.emplace_back(info.name, Json{{"fused", !parameter.default_value.get<bool>()}});
        if (scoped) cases.back().second["scope"] = "layer";
      }
      if (parameter.name == "variant" || parameter.name == "generation" ||
          (parameter.name == "exchange" && parameter.schema.contains("enum")))
        for (const Json& one : parameter.schema.at("enum")) cases.emplace_back(info.name, Json{{parameter.name, one}});
    }
  }
  std::size_t written = 0;
  for (const auto& [name, parameters] : cases)
    for (const std::int64_t n : {1, 4}) {
      INFO(name << " " << parameters.dump() << " n = " << n);
      ReplayOptions options;
      options.sparsifier = name;
      options.parameters = resolve_parameters(find_sparsifier(name), parameters, "", "");
      options.workers = n;
      options.iterations = 2;
      Replay replay(trace, options);
      for (int i = 0; i < 2; ++i) {
        const Json record = replay.next();
        for (const char* values : {"fp32", "bf16"})
          for (const char* indices : {"as_sent", "int32", "int64", "delta", "bitmap"}) {
            INFO(values << " " << indices);
            CHECK_NOTHROW(coded(record, values, indices, static_cast<std::uint64_t>(trace.gradients())));
            ++written;
          }
      }
    }
  CHECK(written > 1000);
}

TEST_CASE("A bitmap needs to know which gradients a list is from") {
  const Json two = record_of(2, R"([{"op":"all_gather","payload":"indices","dtype":"int32","bytes":4},
      {"op":"all_gather","payload":"indices","dtype":"int32","bytes":4}])");
  CHECK_THROWS_WITH(
      coded(two, "fp32", "bitmap", 1000),
      "index encoding: expected as_sent, int32, int64 or delta, as the exchange has 2 lists of indices and does not say which "
      "gradients each is from, found bitmap");
  const Json told = record_of(2, R"([{"op":"all_gather","payload":"indices","dtype":"int32","bytes":4,"index_range":800},
      {"op":"all_gather","payload":"indices","dtype":"int32","bytes":4,"index_range":201}])");
  CHECK(coded(told, "fp32", "bitmap", 1000).at("exchange").at(0).at("bytes") == 100);
  CHECK(coded(told, "fp32", "bitmap", 1000).at("exchange").at(1).at("bytes") == 26);
}

TEST_CASE("Recoded calls stay those of their piece, also the lengths before them") {
  const Json record = record_of(2, R"([{"op":"all_gather","payload":"indices","dtype":"int64","bytes":24,"delta_bytes":[3,5],"piece":0},
      {"op":"all_gather","payload":"indices","dtype":"int64","bytes":8,"delta_bytes":[1,2],"piece":3}])");
  const Json made = coded(record, "fp32", "delta", 1000);
  REQUIRE(made.at("exchange").size() == 4);
  for (const std::size_t call : {0, 1, 2, 3}) {
    CHECK(made.at("exchange").at(call).at("piece") == (call < 2 ? 0 : 3));
    // What was made can be read as it is, without having been written to a file.
    CHECK(CollectiveCall::from_json(made.at("exchange").at(call), 2).piece == (call < 2 ? 0 : 3));
  }
  Json sized = record;
  sized["piece_sizes"] = {800, 1, 1, 201};
  CHECK(coded(sized, "fp32", "bitmap", 1003).at("exchange").at(0).at("bytes") == 100);
  CHECK(coded(sized, "fp32", "bitmap", 1003).at("exchange").at(1).at("bytes") == 26);
  CHECK_THROWS_WITH(
      CollectiveCall::from_json({{"op", "all_gather"}, {"payload", "indices"}, {"dtype", "int64"}, {"bytes", 8U}, {"piece", -1}}, 2),
      "exchange call /piece: expected a whole number >= 0, found -1");
}

TEST_CASE("Lists from a worker's own range need bits for the range alone") {
  const traces::Trace trace = traces::Trace::open(experiments::find_trace("digits-cnn-8w"));
  for (const std::string name : {"micro", "exdyna"}) {
    ReplayOptions options;
    options.sparsifier = name;
    options.parameters = resolve_parameters(find_sparsifier(name), Json::object(), "", "");
    options.workers = 8;
    options.iterations = 1;
    const Json record = Replay(trace, options).next();
    std::uint64_t largest = 0;
    for (const Json& range : record.at("range_of_worker"))
      largest = std::max(largest, range.at(1).get<std::uint64_t>() - range.at(0).get<std::uint64_t>());
    const Json made = coded(record, "fp32", "bitmap", static_cast<std::uint64_t>(trace.gradients()));
    INFO(name);
    CHECK(made.at("exchange").at(1).at("bytes") == (largest + 7) / 8);
    CHECK(largest >= 34862 / 8);
    CHECK(largest < 34862 / 2);
  }
}

TEST_CASE("Replays tell how long their lists are, from the indices that were selected") {
  const traces::Trace trace = traces::Trace::open(experiments::find_trace("digits-cnn-8w"));
  for (const std::string name : {"topk", "hard_threshold", "cltk", "micro", "gaussiank"}) {
    ReplayOptions options;
    options.sparsifier = name;
    options.parameters = resolve_parameters(find_sparsifier(name), Json::object(), "", "");
    options.workers = 4;
    options.iterations = 2;
    options.index_gaps = true;
    // What was selected in every iteration, seen from outside.
    std::vector<std::vector<std::uint64_t>> lengths(2, std::vector<std::uint64_t>(4));
    options.observer = [&](std::int64_t iteration, std::int64_t worker, std::span<const float>, const Selection& selection) {
      lengths[static_cast<std::size_t>(iteration)][static_cast<std::size_t>(worker)] =
          delta_bytes_of(selection.selected[static_cast<std::size_t>(worker)]);
    };
    Replay replay(trace, options);
    for (std::size_t i = 0; i < 2; ++i) {
      INFO(name << " " << i);
      const Json record = replay.next();
      int found = 0;
      for (const Json& call : record.at("exchange")) {
        if (call.at("payload") != "indices") continue;
        ++found;
        if (call.at("op") == "broadcast")
          CHECK(call.at("delta_bytes").at(0) == lengths[i][call.at("root").get<std::size_t>()]);
        else
          CHECK(call.at("delta_bytes").get<std::vector<std::uint64_t>>() == lengths[i]);
      }
      CHECK(found == 1);
    }
  }
  // Ok-Topk gathers sums of regions, which are not what a worker selected.
  ReplayOptions options;
  options.sparsifier = "oktopk";
  options.parameters = resolve_parameters(find_sparsifier("oktopk"), {{"variant", "bert"}}, "", "");
  options.workers = 4;
  options.iterations = 1;
  options.index_gaps = true;
  for (const Json& call : Replay(trace, options).next().at("exchange")) CHECK_FALSE(call.contains("delta_bytes"));
  // DGC's dense tensors are in what is selected, not in its lists.
  options.sparsifier = "dgc";
  options.parameters = resolve_parameters(find_sparsifier("dgc"), Json::object(), "", "");
  for (const Json& call : Replay(trace, options).next().at("exchange")) CHECK_FALSE(call.contains("delta_bytes"));
}

TEST_CASE("Encodings, placement and network nccl are part of an experiment and of its results") {
  const tests::Scratch scratch("wire_format");
  Json document = parse_json(R"({"schema_version":1,"name":"wire","trace":"digits-cnn-8w","sparsifier":["dense","topk"],"density":0.01,
    "workers":8,"iterations":2,"platform":"nvlink8-ib","profile":"cpu-epyc-zen5-1t","value_encoding":["fp32","fp16"],
    "index_encoding":["as_sent","int32","delta"],"placement":["platform","consecutive","random:3"]})",
                             "wire");
  tests::spit(scratch / "e.json", document.dump());
  const auto experiment = experiments::Experiment::load(scratch / "e.json");
  // Dense: one encoding; the platform's own placement is consecutive. topk: 2 x 3 encodings.
  CHECK(experiment.runs.size() == 2 * (1 + 6));
  CHECK(experiment.replays.size() == 3);  // dense, topk, topk with lengths of lists
  experiments::RunOptions options;
  options.directory = scratch / "out";
  REQUIRE(experiments::run_experiment(experiment, options) == 0);
  std::map<std::string, double> bytes;
  std::map<std::string, Json> lists;
  for (const auto& run : experiment.runs) {
    const Json result = load_json(scratch / "out" / "runs" / (run.key + ".json"));
    const Json& key = result.at("key");
    CHECK(key.at("placement") == run.placement);
    CHECK(key.at("platform") == (run.placement == "consecutive" ? "nvlink8-ib" : "nvlink8-ib (random:3)"));
    const std::string name = key.at("sparsifier").get<std::string>() + " " + key.at("value_encoding").get<std::string>() + " " +
                             key.at("index_encoding").get<std::string>();
    const double sent = result.at("summary").at("traffic").at("bytes_sent_per_worker_mean").get<double>();
    if (bytes.contains(name)) CHECK(bytes.at(name) == sent);  // whatever the placement
    bytes[name] = sent;
    if (name == "topk fp16 delta") CHECK(key.at("parameters") == Json{{"value_encoding", "fp16"}, {"index_encoding", "delta"}});
    const bool warned = result.at("warnings").dump().find("packing and unpacking") != std::string::npos;
    CHECK(warned == (key.at("index_encoding") != "as_sent"));
  }
  // By hand from the records: k = 348 indices round a ring of 8 and 2 x 7/8 of the union's values.
  Json record;
  for (const auto& replay : experiment.replays)
    if (replay.options.index_gaps) {
      const std::string text = read_file(scratch / "out" / "replays" / (replay.key + ".jsonl"));
      double index = 0, values = 0;
      for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
        record = parse_json(std::string_view(text).substr(at, text.find('\n', at) - at), "record");
        const auto lengths = record.at("exchange").at(0).at("delta_bytes").get<std::vector<double>>();
        index += (7 * *std::max_element(lengths.begin(), lengths.end()) + 7 * 8) / 2;
        values += record.at("exchange").at(1).at("bytes").get<double>() * 7 / 4 / 2;
      }
      CHECK(bytes.at("topk fp32 as_sent") == Approx(7 * 348 * 8 + values).epsilon(1e-9));
      CHECK(bytes.at("topk fp32 int32") == Approx(7 * 348 * 4 + values).epsilon(1e-9));
      CHECK(bytes.at("topk fp32 delta") == Approx(index + values).epsilon(1e-9));
      CHECK(bytes.at("topk fp16 delta") == Approx(index + values / 2).epsilon(1e-9));
    }
  CHECK(load_json(scratch / "out" / "environment.json").at("placements").dump() == R"({"nvlink8-ib":["consecutive","random:3"]})");

  // Network nccl: the algorithms are NCCL's, so a list of them is one run; a platform without its numbers is refused.
  document.update({{"value_encoding", "fp32"},
                   {"index_encoding", "as_sent"},
                   {"placement", "platform"},
                   {"network", "nccl"},
                   {"all_reduce", {"ring", "hierarchical"}},
                   {"platform", "polaris"}});
  tests::spit(scratch / "n.json", document.dump());
  const auto nccl = experiments::Experiment::load(scratch / "n.json");
  REQUIRE(nccl.runs.size() == 2);
  options.directory = scratch / "nccl";
  REQUIRE(experiments::run_experiment(nccl, options) == 0);
  for (const auto& run : nccl.runs) {
    const Json key = load_json(scratch / "nccl" / "runs" / (run.key + ".json")).at("key");
    CHECK(key.at("network") == "nccl");
    CHECK(key.at("all_gather") == "nccl");
    CHECK(key.at("all_reduce") == "nccl");
  }
  document["platform"] = {"polaris", "nvlink8-ib"};
  tests::spit(scratch / "n.json", document.dump());
  CHECK_THROWS_WITH(experiments::Experiment::load(scratch / "n.json"),
                    ContainsSubstring("/platform/1: expected a platform with the key nccl, as network is nccl, found \"nvlink8-ib\""));
  document.update({{"platform", "polaris"}, {"placement", "randomly"}});
  tests::spit(scratch / "n.json", document.dump());
  CHECK_THROWS_WITH(experiments::Experiment::load(scratch / "n.json"), ContainsSubstring("/placement"));
}
