// The timeline's modes and disturbances on a real trace, through the command line.
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "base/files.hpp"
#include "base/json.hpp"
#include "tests/catch.hpp"
#include "tests/command.hpp"

using namespace sparscale;
using namespace sparscale::tests;
namespace fs = std::filesystem;

namespace {

const char* const experiment = R"({"schema_version":1,"name":"modes","trace":"digits-cnn-8w",
  "sparsifier":["dense","dense_fp16",{"name":"topk","parameters":{"scope":"bucket","bucket_bytes":40000,"fused":false}},
                {"name":"cltk","parameters":{"scope":"bucket","bucket_bytes":40000}}],
  "density":0.01,"workers":4,"warmup_iterations":1,"iterations":3,"extrapolate_profile":true,
  "platform":"crossbar-10g","profile":"cpu-epyc-zen5-1t","device_memory_GB":1e-4,
  "timeline":["sequential",{"mode":"layer_wise","layer_times":"by_elements"},
              {"mode":"ddp_buckets","layer_times":"by_elements","bucket_bytes":40000,"first_bucket_bytes":4000},
              {"mode":"p3","layer_times":"equal","slice_bytes":40000},{"mode":"hybrid","layer_times":"by_elements"}],
  "disturbance":[{},{"stragglers":{"workers":[1],"factor":2}}]})";

}  // namespace

TEST_CASE("Modes and disturbances on a real trace: phases add up, overlap hides what it can, one iteration can be looked at") {
  const Scratch scratch("modes");
  spit(scratch / "modes.json", experiment);
  const std::string file = "'" + (scratch / "modes.json").string() + "'", out = "'" + (scratch / "out").string() + "'";
  REQUIRE(run_program("run " + file + " --no-figures --out " + out).status == 0);
  std::map<std::string, Json> runs;  // sparsifier, mode, disturbed
  for (const auto& entry : fs::directory_iterator(scratch / "out" / "runs")) {
    const Json run = load_json(entry.path());
    const Json& key = run.at("key");
    runs[key.at("sparsifier").get<std::string>() + " " + key.at("timeline").get<std::string>() +
         (key.at("disturbance").empty() ? "" : " disturbed")] = run;
  }
  REQUIRE(runs.size() == 40);
  const auto time = [&](const std::string& run, const char* column) {
    return runs.at(run).at("summary").at("time").at(column).get<double>();
  };
  for (const auto& [name, run] : runs) {
    INFO(name);
    double sum = 0;
    for (const char* phase :
         {"forward_backward_time_s", "selection_time_s", "index_exchange_time_s", "value_exchange_time_s", "other_time_s"})
      sum += time(name, phase);
    CHECK(sum == Approx(time(name, "iteration_time_s_mean")).epsilon(1e-9));
    CHECK(time(name, "exposed_exchange_time_s") ==
          Approx(time(name, "index_exchange_time_s") + time(name, "value_exchange_time_s")).epsilon(1e-12));
    CHECK_FALSE(run.at("critical_path").empty());
    // No byte is lost: what is sent is received, and crosses one NIC on its way out and one on its way in.
    const auto total = [&](const char* key) {
      const Json& bytes = run.at("traffic").at(key);  // one number where all workers have the same
      const auto of_workers = bytes.is_array() ? bytes.get<std::vector<double>>() : std::vector<double>(4, bytes.get<double>());
      return std::accumulate(of_workers.begin(), of_workers.end(), 0.0);
    };
    CHECK(total("bytes_sent_mean") > 0);
    CHECK(total("bytes_received_mean") == Approx(total("bytes_sent_mean")).epsilon(1e-12));
    CHECK(run.at("traffic").at("link_classes").at("nic").at("bytes_mean").get<double>() ==
          Approx(2 * total("bytes_sent_mean")).epsilon(1e-12));
    CHECK(total("bytes_sent_mean") ==
          Approx(4 * run.at("summary").at("traffic").at("bytes_sent_per_worker_mean").get<double>()).epsilon(1e-12));
    // Nothing takes no time or less, nor overlaps with more than what is computed.
    for (std::size_t i = 0; i < run.at("series").at("iteration_time_s").size(); ++i) {
      const auto at = [&](const char* name_of) { return run.at("series").at(name_of).at(i).get<double>(); };
      for (const char* phase :
           {"selection_time_s", "index_exchange_time_s", "value_exchange_time_s", "other_time_s", "overlapped_time_s", "worker_spread_s"})
        CHECK(at(phase) >= 0);
      CHECK(at("forward_backward_time_s") > 0);
      CHECK(at("overlapped_time_s") <= (at("forward_backward_time_s") + at("selection_time_s") + at("other_time_s")) * (1 + 1e-9));
    }
  }
  for (const std::string sparsifier : {"dense", "dense_fp16", "topk", "cltk"}) {
    CHECK(time(sparsifier + " sequential", "overlapped_time_s") == 0);
    CHECK(time(sparsifier + " layer_wise", "overlapped_time_s") > 0);
    // The straggler takes twice as long for forward and backward.
    CHECK(time(sparsifier + " sequential disturbed", "forward_backward_time_s") ==
          Approx(2 * time(sparsifier + " sequential", "forward_backward_time_s")).epsilon(1e-12));
  }
  for (const std::string sparsifier : {"topk", "cltk"}) {
    CHECK(time(sparsifier + " layer_wise", "iteration_time_s_mean") < time(sparsifier + " sequential", "iteration_time_s_mean"));
    for (const char* mode : {" ddp_buckets", " p3", " hybrid"})
      CHECK(time(sparsifier + mode, "iteration_time_s_mean") == time(sparsifier + " sequential", "iteration_time_s_mean"));
  }
  // The same bytes travel however they are ordered.
  const auto traffic = [&](const std::string& run, const char* column) {
    return runs.at(run).at("summary").at("traffic").at(column).get<double>();
  };
  CHECK(runs.at("topk layer_wise").at("traffic") == runs.at("topk sequential").at("traffic"));
  CHECK(traffic("dense ddp_buckets", "bytes_sent_per_worker_mean") ==
        Approx(traffic("dense sequential", "bytes_sent_per_worker_mean")).epsilon(1e-3));
  CHECK(traffic("dense sequential", "receive_buffer_bytes_max") == 4 * 34862);
  CHECK(traffic("dense sequential", "nic_bytes_mean") == 2 * 4 * traffic("dense sequential", "bytes_sent_per_worker_mean"));
  CHECK(runs.at("dense sequential").at("traffic").at("link_classes").at("nic").at("busiest_link_bytes_mean") ==
        traffic("dense sequential", "bytes_sent_per_worker_max"));
  CHECK_THAT(runs.at("dense sequential").at("warnings").dump(), ContainsSubstring("more than the 1e-04 GB of a device"));
  CHECK(runs.at("dense layer_wise").at("key").at("timeline_options") == Json{{"layer_times", "by_elements"}});
  CHECK(runs.at("dense layer_wise disturbed").at("key").at("platform") ==
        R"(crossbar-10g (layer_wise {"layer_times":"by_elements"}, disturbed {"stragglers":{"workers":[1],"factor":2}}))");

  const std::string id = runs.at("topk layer_wise").at("run_id").get<std::string>();
  const std::string trace = (scratch / "trace.json").string(), goal = (scratch / "exchange.goal").string();
  const CommandResult looked =
      run_program("timeline " + out + " --run " + id + " --iteration 1 --perfetto '" + trace + "' --goal '" + goal + "'");
  REQUIRE(looked.status == 0);
  const Json seen = parse_json(looked.out, "timeline");
  const double iteration_s = runs.at("topk layer_wise").at("series").at("iteration_time_s").at(1).get<double>();
  CHECK(seen.at("iteration_time_s").get<double>() == iteration_s);
  double last_us = 0;
  const Json events = load_json(trace);
  for (const Json& event : events.at("traceEvents"))
    if (event.at("ph") == "X") last_us = std::max(last_us, event.at("ts").get<double>() + event.at("dur").get<double>());
  CHECK(last_us == Approx(iteration_s * 1e6));
  CHECK_THAT(read_file(goal), StartsWith("// One unit of time is ") && ContainsSubstring("\nnum_ranks 4\n\nrank 0 {\n"));

  CHECK(run_program("timeline " + out).status == 2);
  CHECK(run_program("timeline " + out + " --run " + id + " --iteration 3").status == 2);
  const Json document = parse_json(experiment, "experiment");
  for (const auto& [field, value, message] :
       {std::tuple{"timeline", R"("fastest")", "/timeline: expected one of sequential"},
        std::tuple{"timeline", R"({"mode":"p3","bucket_bytes":4})", "/timeline/bucket_bytes: expected mode, slice_bytes"},
        std::tuple{"timeline", R"("ddp_buckets")", "/timeline/layer_times: expected forward and backward times of all 13 layers"},
        std::tuple{"timeline", R"("gossip")", "/timeline: expected dense or dense_fp16"},
        std::tuple{"disturbance", R"({"slowed":[{"node":4,"factor":2}]})", "/disturbance/slowed/0/node: expected a node, 0 to 3"},
        std::tuple{"disturbance", R"({"stragglers":{"workers":[4],"factor":2}})", "expected a worker, 0 to 3"}}) {
    INFO(value);
    Json changed = document;
    changed[field] = parse_json(value, "value");
    spit(scratch / "changed.json", changed.dump());
    const CommandResult refused = run_program("check '" + (scratch / "changed.json").string() + "'");
    CHECK(refused.status == 2);
    CHECK_THAT(refused.err, ContainsSubstring(message));
  }
}

TEST_CASE("Several streams of calls on a real trace: the same bytes, phases that add up, one iteration as strips, events and a schedule") {
  const Scratch scratch("streams");
  Json document = parse_json(experiment, "experiment");
  document["name"] = "streams";
  document["sparsifier"] =
      parse_json(R"(["dense","dense_fp16",{"name":"cltk","parameters":{"scope":"bucket","bucket_bytes":40000}}])", "sparsifier");
  document["iterations"] = 2;
  document["disturbance"] = Json::object();
  document["timeline"] = parse_json(
      R"([{"mode":"layer_wise","layer_times":"by_elements"},{"mode":"layer_wise","layer_times":"by_elements","streams":3},
          {"mode":"hybrid","layer_times":"by_elements","by_layer":"kind"},{"mode":"hybrid","layer_times":"by_elements","by_layer":"kind","streams":2}])",
      "timeline");
  spit(scratch / "streams.json", document.dump());
  const std::string file = "'" + (scratch / "streams.json").string() + "'", out = "'" + (scratch / "out").string() + "'";
  REQUIRE(run_program("run " + file + " --no-figures --out " + out).status == 0);
  std::map<std::string, Json> runs;  // sparsifier, mode, streams
  for (const auto& entry : fs::directory_iterator(scratch / "out" / "runs")) {
    const Json run = load_json(entry.path());
    const Json& key = run.at("key");
    runs[key.at("sparsifier").get<std::string>() + " " + key.at("timeline").get<std::string>() +
         (key.at("timeline_options").contains("streams") ? " side by side" : "")] = run;
  }
  REQUIRE(runs.size() == 12);
  const auto time = [&](const std::string& run, const char* column) {
    return runs.at(run).at("summary").at("time").at(column).get<double>();
  };
  for (const auto& [name, run] : runs) {
    INFO(name);
    const auto ends = run.at("series").at("iteration_time_s");
    CHECK(run.at("activity").at("end_s").get<double>() == Approx(ends.back().get<double>()).epsilon(1e-12));
    double exposed_s = 0, now_s = 0, computed_s = 0;
    for (const Json& piece : run.at("activity").at("compute")) {
      exposed_s += std::max(0.0, piece.at("begin_s").get<double>() - now_s);
      now_s = piece.at("end_s").get<double>();
      computed_s += now_s - piece.at("begin_s").get<double>();
    }
    exposed_s += run.at("activity").at("end_s").get<double>() - now_s;
    // But for gaps of less than a two-thousandth that are closed.
    CHECK(exposed_s ==
          Approx(run.at("series").at("exposed_exchange_time_s").back().get<double>()).margin(0.02 * ends.back().get<double>()));
    CHECK(exposed_s + computed_s == Approx(run.at("activity").at("end_s").get<double>()));
    if (!name.ends_with("side by side")) continue;
    const std::string one = name.substr(0, name.size() - std::string(" side by side").size());
    CHECK(run.at("traffic") == runs.at(one).at("traffic"));
    if (name.starts_with("cltk hybrid")) CHECK(time(name, "iteration_time_s_mean") == time(one, "iteration_time_s_mean"));
  }
  CHECK(time("dense hybrid side by side", "iteration_time_s_mean") < time("dense hybrid", "iteration_time_s_mean"));

  const Json& looked_at = runs.at("dense hybrid side by side");
  const std::string trace = (scratch / "trace.json").string(), goal = (scratch / "exchange.goal").string();
  const CommandResult looked = run_program("timeline " + out + " --run " + looked_at.at("run_id").get<std::string>() + " --perfetto '" +
                                           trace + "' --goal '" + goal + "'");
  REQUIRE(looked.status == 0);
  CHECK(parse_json(looked.out, "timeline").at("iteration_time_s") == looked_at.at("series").at("iteration_time_s").back());
  std::set<std::string> tracks;
  const Json events = load_json(trace);
  for (const Json& event : events.at("traceEvents"))
    if (event.at("name") == "thread_name") tracks.insert(event.at("args").at("name").get<std::string>());
  CHECK(tracks == std::set<std::string>{"compute", "communicate 1", "communicate 2"});
  CHECK_THAT(read_file(goal), ContainsSubstring(" cpu 1\n"));

  for (const auto& [trace_name, network, value, message] :
       {std::tuple{"digits-cnn-8w", "auto", R"({"mode":"hybrid","layer_times":"equal","streams":3})",
                   "/timeline/streams: expected at most 2"},
        std::tuple{"digits-cnn-8w", "auto", R"({"mode":"p3","layer_times":"equal","streams":2})",
                   "/timeline/streams: expected mode, slice_bytes"},
        std::tuple{"digits-cnn-8w", "nccl", R"({"mode":"ddp_buckets","layer_times":"equal","streams":2})",
                   "/network: expected auto or simgrid"},
        std::tuple{"kjv-lstm-8w", "auto", R"({"mode":"hybrid","layer_times":"equal","by_layer":"kind"})",
                   "as no layer of the trace is a convolution"}}) {
    INFO(value);
    Json changed = document;
    changed["sparsifier"] = "dense";
    changed["platform"] = "dgx-a100";
    changed["trace"] = trace_name;
    changed["compute"] = {{"forward_time_s", 1e-3}, {"backward_time_s", 2e-3}, {"origin", "made up"}};
    changed["network"] = network;
    changed["timeline"] = parse_json(value, "value");
    spit(scratch / "changed.json", changed.dump());
    const CommandResult refused = run_program("check '" + (scratch / "changed.json").string() + "'");
    CHECK(refused.status == 2);
    CHECK_THAT(refused.err, ContainsSubstring(message));
  }
}

TEST_CASE("Crossover gossip takes its number of segments from the experiment") {
  const Scratch scratch("gossip");
  Json document = parse_json(R"({"schema_version":1,"name":"gossip","trace":"digits-cnn-8w","sparsifier":"dense","density":1,"workers":4,
    "iterations":2,"platform":"crossbar-10g","profile":"cpu-epyc-zen5-1t","timeline":"gossip",
    "gossip":["crossover",{"name":"crossover","segments":1},{"name":"crossover","segments":16},{"name":"crossover","segments":8},
              "exponential"]})",
                             "gossip");
  const auto run = [&](const std::string& command) {
    spit(scratch / "e.json", document.dump());
    return run_program(command + " '" + (scratch / "e.json").string() + "'" +
                       (command == "run" ? " --no-figures --out '" + (scratch / "out").string() + "'" : ""));
  };
  REQUIRE(run("run").status == 0);
  std::map<std::string, Json> runs;
  for (const auto& entry : fs::directory_iterator(scratch / "out" / "runs")) {
    const Json one = load_json(entry.path());
    runs[one.at("key").at("gossip").get<std::string>()] = one;
  }
  REQUIRE(runs.size() == 4);  // 8 segments are the default
  const auto value = [&](const std::string& name, const char* group, const char* column) {
    return runs.at(name).at("summary").at(group).at(column).get<double>();
  };
  CHECK(value("crossover", "traffic", "messages_mean") == 8 * 4);
  CHECK(value("crossover (1 segments)", "traffic", "messages_mean") == 4);
  CHECK(value("crossover (16 segments)", "traffic", "messages_mean") == 16 * 4);
  for (const auto& [name, one] : runs) CHECK(value(name, "traffic", "bytes_sent_per_worker_mean") == 4 * 34862);
  // Each segment costs its latency, 35 us on this platform; one segment is one message, as with the exponential graph.
  CHECK(value("crossover (16 segments)", "time", "iteration_time_s_mean") - value("crossover", "time", "iteration_time_s_mean") ==
        Approx(8 * 35e-6).epsilon(1e-9));
  CHECK(value("crossover (1 segments)", "time", "iteration_time_s_mean") ==
        Approx(value("exponential", "time", "iteration_time_s_mean")).epsilon(1e-12));
  // Exclusions match a name whatever its segments, or one number of them.
  document["exclude"] = Json::array({{{"gossip", "exponential"}}, {{"gossip", {{"name", "crossover"}, {"segments", 16}}}}});
  CHECK_THAT(run("check").out, ContainsSubstring("runs: 2 ("));
  // A name alone has the 8 that it stands for.
  document["exclude"] = Json::array({{{"gossip", {{"name", "crossover"}, {"segments", 8}}}}});
  CHECK_THAT(run("check").out, ContainsSubstring("runs: 3 ("));
  document.erase("exclude");
  for (const auto& [gossip, message] :
       {std::pair{R"({"name":"exponential","segments":4})",
                  "/gossip: expected crossover or crossover_hierarchical, as others have no segments, found \"exponential\""},
        std::pair{R"({"name":"crossing","segments":4})", "found \"crossing\""},
        std::pair{R"({"name":"crossover","segments":0})", "/gossip"}, std::pair{R"({"name":"crossover","segments":65537})", "/gossip"},
        std::pair{R"({"segments":4})", "/gossip"}, std::pair{R"("crossing")", "/gossip: expected one of exponential"}}) {
    INFO(gossip);
    document["gossip"] = parse_json(gossip, "gossip");
    const CommandResult refused = run("check");
    CHECK(refused.status == 2);
    CHECK_THAT(refused.err, ContainsSubstring(message));
  }
  CHECK_THAT(run_program("collective --platform crossbar-10g --workers 4 --op gossip --algorithm crossover --bytes 32 --segments 3").out,
             ContainsSubstring("\"messages\":12"));
  const CommandResult refused =
      run_program("collective --platform crossbar-10g --workers 4 --op gossip --algorithm exponential --bytes 32 --segments 3");
  CHECK(refused.status == 2);
  CHECK_THAT(refused.err, ContainsSubstring("segments: expected none, as only the crossover algorithms of gossip have segments, found 3"));
}
