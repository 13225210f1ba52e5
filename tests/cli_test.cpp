// Bad input gives exit 2 and one line that says where and what; good input does what it says.
#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "base/files.hpp"
#include "base/json.hpp"
#include "tests/catch.hpp"
#include "tests/command.hpp"

using namespace sparscale;
using namespace sparscale::tests;
namespace fs = std::filesystem;

namespace {

const fs::path source = SPARSCALE_SOURCE_DIRECTORY;

Json small_experiment() {
  return parse_json(R"({"schema_version":1,"name":"small","trace":"digits-cnn-8w","sparsifier":["dense","topk"],"density":0.01,
    "workers":[2,4],"iterations":2,"platform":"crossbar-100g","profile":"cpu-epyc-zen5-1t"})",
                    "small");
}

/// Exit 2, nothing on stdout, one line on stderr with each of the texts.
void check_refused(const CommandResult& result, const std::vector<std::string>& texts) {
  INFO("stderr: " << result.err);
  CHECK(result.status == 2);
  CHECK(result.out.empty());
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  for (const std::string& text : texts) CHECK_THAT(result.err, ContainsSubstring(text));
}

CommandResult check_experiment(const Json& document) {
  const Scratch scratch("experiment");
  spit(scratch / "e.json", document.dump());
  return run_program("check '" + (scratch / "e.json").string() + "' --out '" + (scratch / "out").string() + "'");
}

fs::path copy_sample(const Scratch& scratch) {
  fs::copy(source / "traces/samples/digits-cnn-8w", scratch / "trace", fs::copy_options::recursive);
  return scratch / "trace";
}

}  // namespace

TEST_CASE("A valid experiment is counted and estimated without running it") {
  const Scratch scratch("check");
  spit(scratch / "e.json", small_experiment().dump());
  const CommandResult result = run_program("check '" + (scratch / "e.json").string() + "' --out '" + (scratch / "out").string() + "'");
  CHECK(result.status == 0);
  CHECK_THAT(result.out, ContainsSubstring("runs: 4 (0 finished"));
  CHECK_THAT(result.out, ContainsSubstring("memory of the largest replay or self-check to do: "));
  CHECK_FALSE(fs::exists(scratch / "out"));
}

TEST_CASE("Experiments with wrong fields are refused") {
  Json e = small_experiment();
  SECTION("unknown key") {
    e["densty"] = 0.01;
    check_refused(check_experiment(e), {"/densty", "the unknown key \"densty\""});
  }
  SECTION("wrong type") {
    e["workers"] = "four";
    check_refused(check_experiment(e), {"/workers", "integer >= 1", "\"four\""});
  }
  SECTION("density 0") {
    e["density"] = 0;
    check_refused(check_experiment(e), {"/density", "> 0 <= 1", "found 0"});
  }
  SECTION("density above 1, in a list") {
    e["density"] = {0.1, 1.5};
    check_refused(check_experiment(e), {"/density/1", "> 0 <= 1", "found 1.5"});
  }
  SECTION("workers 0") {
    e["workers"] = {2, 0};
    check_refused(check_experiment(e), {"/workers/1", "integer >= 1", "found 0"});
  }
  SECTION("unknown sparsifier") {
    e["sparsifier"] = {"dense", "topkk"};
    check_refused(check_experiment(e), {"/sparsifier/1", "topk", "\"topkk\""});
  }
  SECTION("unknown parameter of a sparsifier") {
    e["sparsifier"] = parse_json(R"([{"name":"micro","parameters":{"micro_rul":"code"}}])", "x");
    check_refused(check_experiment(e), {"/sparsifier/0/parameters/micro_rul", "micro_rule"});
  }
  SECTION("parameter outside its range") {
    e["sparsifier"] = parse_json(R"([{"name":"micro","parameters":{"micro_rule":"maybe"}}])", "x");
    check_refused(check_experiment(e), {"/sparsifier/0/parameters/micro_rule", "intended", "\"maybe\""});
  }
  SECTION("unknown platform") {
    e["platform"] = "crossbar-1g";
    check_refused(check_experiment(e), {"/platform", "crossbar-1g"});
  }
  SECTION("unknown profile") {
    e["profile"] = "abacus";
    check_refused(check_experiment(e), {"/profile", "abacus"});
  }
  SECTION("unknown collective") {
    e["all_gather"] = "telegraph";
    check_refused(check_experiment(e), {"/all_gather", "ring_padded", "\"telegraph\""});
  }
  SECTION("missing trace") {
    e["trace"] = "no/such/trace";
    check_refused(check_experiment(e), {"/trace", "no/such/trace", "no such directory"});
  }
  SECTION("more captured workers than the trace has") {
    e["captured_workers"] = 9;
    check_refused(check_experiment(e), {"/captured_workers", "at most the trace's 8 workers", "found 9"});
  }
  SECTION("missing key") {
    e.erase("density");
    check_refused(check_experiment(e), {"the key \"density\""});
  }
  SECTION("a schema version of the future") {
    e["schema_version"] = 2;
    check_refused(check_experiment(e), {"/schema_version", "found 2"});
  }
}

TEST_CASE("Two different files with one name inside are refused, the same one twice is not") {
  const Scratch scratch("names");
  Json platform = load_json(source / "platforms/catalogue/crossbar-100g.json");
  spit(scratch / "same.json", slurp(source / "platforms/catalogue/crossbar-100g.json"));
  platform["node"]["nics"]["latency_us"] = 50;
  spit(scratch / "p.json", platform.dump());
  Json profile = load_json(source / "kernels/profiles/v100-modelled.json");
  profile["provenance"] = "another";
  spit(scratch / "k.json", profile.dump());
  fs::copy(source / "traces/samples/digits-cnn-8w", scratch / "trace", fs::copy_options::recursive);
  Json manifest = load_json(scratch / "trace/trace.json");
  manifest["note"] = "another";
  spit(scratch / "trace/trace.json", manifest.dump());
  Json e = small_experiment();
  SECTION("platform") {
    e["platform"] = {"crossbar-100g", (scratch / "p.json").string()};
    check_refused(check_experiment(e), {"/platform/1", "a name of its own", "\"crossbar-100g\", which crossbar-100g has too"});
  }
  SECTION("profile") {
    e["profile"] = {"v100-modelled", (scratch / "k.json").string()};
    check_refused(check_experiment(e), {"/profile/1", "a name of its own", "\"v100-modelled\""});
  }
  SECTION("trace") {
    e["trace"] = {(scratch / "trace").string(), "digits-cnn-8w"};
    check_refused(check_experiment(e), {"/trace/1", "a name of its own", "\"digits-cnn-8w\", which " + (scratch / "trace").string()});
  }
  SECTION("the same platform by name and by path") {
    e["platform"] = {"crossbar-100g", (scratch / "same.json").string()};
    const CommandResult result = check_experiment(e);
    CHECK(result.status == 0);
    CHECK_THAT(result.out, ContainsSubstring("runs: 4 ("));
  }
}

TEST_CASE("What cannot be looked at, named or stored is bad input") {
  const std::string longest(3000, 'a');
  Json e = small_experiment();
  SECTION("a path longer than the system allows") {
    e["trace"] = longest;
    check_refused(check_experiment(e), {"/trace", "File name too long"});
    check_refused(run_program("check " + longest), {longest, "no such file"});
    check_refused(run_program("trace info " + longest), {"File name too long"});
  }
  SECTION("a name longer than a folder's") {
    e["name"] = std::string(101, 'a');
    check_refused(check_experiment(e), {"/name", "at most 100 characters"});
  }
  SECTION("a path that JSON cannot hold") {
    const Scratch scratch("bytes");
    const fs::path folder = scratch / "d\xff";
    fs::create_directories(folder);
    fs::copy(source / "platforms/catalogue/crossbar-100g.json", folder / "p.json");
    e["platform"] = "p.json";
    spit(folder / "e.json", e.dump());
    check_refused(run_program("check '" + (folder / "e.json").string() + "'"), {"/platform", "UTF-8"});
  }
  SECTION("a number beyond a double, with its place") {
    const Scratch scratch("overflow");
    std::string text = e.dump();
    text.replace(text.find("[2,4]"), 5, "[2,1e400]");
    spit(scratch / "e.json", text);
    check_refused(run_program("check '" + (scratch / "e.json").string() + "'"), {"e.json: /workers/1: ", "1e400"});
  }
  SECTION("times that leave no digits for the exchange") {
    e["compute"] = {{"forward_time_s", 1e6}, {"backward_time_s", 1}, {"origin", "assumed"}};
    check_refused(check_experiment(e), {"/compute/forward_time_s", "<= 100000"});
  }
  SECTION("a bandwidth that makes times infinite") {
    const Scratch scratch("slow");
    Json platform = load_json(source / "platforms/catalogue/crossbar-100g.json");
    platform["node"]["nics"]["bandwidth_GBps"] = 5e-324;
    spit(scratch / "p.json", platform.dump());
    e["platform"] = (scratch / "p.json").string();
    check_refused(check_experiment(e), {"p.json: /node/nics/bandwidth_GBps", ">= 1e-09"});
  }
  SECTION("more workers than the platform has devices") {
    const Scratch scratch("nodes");
    Json platform = load_json(source / "platforms/catalogue/crossbar-100g.json");
    platform["max_nodes"] = 3;
    platform["provenance"]["max_nodes"] = "assumed: a test";
    spit(scratch / "p.json", platform.dump());
    e["platform"] = (scratch / "p.json").string();
    check_refused(check_experiment(e), {"/workers/1", "p.json: /max_nodes", "at most 3 workers", "found 4"});
  }
  SECTION("replays larger than the memory, before anything is written") {
    const Scratch scratch("memory");
    e["workers"] = 1048576;
    spit(scratch / "e.json", e.dump());
    check_refused(run_program("run '" + (scratch / "e.json").string() + "' --out '" + (scratch / "out").string() + "'"),
                  {"/workers", "MB of memory available"});
    CHECK_FALSE(fs::exists(scratch / "out"));
  }
}

TEST_CASE("Numbers of options are read exactly or not at all") {
  const std::string replay = "replay --trace digits-cnn-8w --sparsifier topk ";
  check_refused(run_program(replay + "--workers 2 --seed -1"), {"--seed: expected integer >= 0, found -1"});
  check_refused(run_program(replay + "--workers 2 --seed 99999999999999999999999"), {"--seed", "<= 9223372036854775807"});
  check_refused(run_program(replay + "--workers 2 --iterations 99999999999999999999"), {"--iterations", "<= 1000000"});
  check_refused(run_program(replay + "--workers 99999999999999999999"), {"--workers", "<= 1048576"});
  check_refused(run_program(replay + "--workers 0x2"), {"--workers", "found 0x2"});
  check_refused(run_program(replay + "--workers 2.0"), {"--workers", "found 2.0"});
  const std::string collective = "collective --platform crossbar-100g --op all_gather --algorithm ring ";
  check_refused(run_program(collective + "--workers 99999999999999999999 --bytes 1"), {"--workers", "<= 1048576"});
  check_refused(run_program(collective + "--workers 2 --bytes 99999999999999999999"), {"--bytes", "<= 9223372036854775807"});
  check_refused(run_program(collective + "--workers 2 --bytes -1"), {"--bytes: expected integer >= 0, found -1"});
  check_refused(run_program(collective + "--workers 2"), {"--bytes", "neither"});
  // Decimal, also with a leading zero.
  const CommandResult ten = run_program(collective + "--workers 010 --bytes 1");
  CHECK(ten.status == 0);
  CHECK(parse_json(ten.out, "collective").at("workers") == 10);
}

TEST_CASE("An empty value stands for no default") {
  check_refused(run_program("replay --trace digits-cnn-8w --sparsifier topk --workers 2 --out ''"), {"--out", "not empty"});
  check_refused(run_program("replay --trace digits-cnn-8w --sparsifier topk --workers 2 --out="), {"--out", "not empty"});
  check_refused(run_program("collective --platform crossbar-100g --workers 2 --op all_gather --algorithm '' --bytes 1"),
                {"--algorithm", "not empty"});
}

TEST_CASE("A broken experiment file is refused with its byte") {
  const Scratch scratch("broken");
  spit(scratch / "e.json", "{\"schema_version\": 1,");
  check_refused(run_program("check '" + (scratch / "e.json").string() + "'"), {"e.json: byte 22"});
  check_refused(run_program("run '" + (scratch / "none.json").string() + "'"), {"none.json"});
}

TEST_CASE("A platform with zero bandwidth is refused with file and pointer") {
  const Scratch scratch("platform");
  Json platform = load_json(source / "platforms/catalogue/crossbar-100g.json");
  platform["node"]["nics"]["bandwidth_GBps"] = 0;
  spit(scratch / "p.json", platform.dump());
  Json e = small_experiment();
  e["platform"] = (scratch / "p.json").string();
  check_refused(check_experiment(e), {"p.json: /node/nics/bandwidth_GBps", ">= 1e-09", "found 0"});
}

TEST_CASE("Damaged traces are refused") {
  const Scratch scratch("trace");
  const fs::path trace = copy_sample(scratch);
  const fs::path data = trace / "workers.safetensors";
  SECTION("missing data file") {
    fs::remove(data);
    check_refused(run_program("trace verify '" + trace.string() + "'"), {"workers.safetensors"});
  }
  SECTION("truncated") {
    fs::resize_file(data, fs::file_size(data) - 1);
    check_refused(run_program("trace verify '" + trace.string() + "'"), {"workers.safetensors", "11155968", "11155967"});
  }
  SECTION("one bit flipped") {
    std::fstream file(data, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(5000000);
    file.put('\x01');
    file.close();
    check_refused(run_program("trace verify '" + trace.string() + "'"),
                  {"workers.safetensors", "24c0265a6b7b7e744cb8f6bea64ae3346c887b3701deffdc94036dff338599ec"});
    Json e = small_experiment();
    e["trace"] = trace.string();
    check_refused(check_experiment(e), {"workers.safetensors", "24c0265a"});
  }
  SECTION("no manifest") {
    fs::remove(trace / "trace.json");
    check_refused(run_program("trace info '" + trace.string() + "'"), {"trace.json"});
  }
  SECTION("manifest of the wrong kind") {
    Json manifest = load_json(trace / "trace.json");
    manifest["workers"] = "eight";
    spit(trace / "trace.json", manifest.dump());
    check_refused(run_program("trace info '" + trace.string() + "'"), {"trace.json", "/workers", "\"eight\""});
  }
}

TEST_CASE("Replay refuses what it cannot do") {
  const std::string base = "replay --trace digits-cnn-8w --sparsifier topk ";
  check_refused(run_program(base + "--workers 0"), {"--workers", "integer >= 1", "found 0"});
  check_refused(run_program(base + "--workers 2 --density 0"), {"--density", "> 0 <= 1", "found 0"});
  check_refused(run_program(base + "--workers 2 --density 1.01"), {"--density", "found 1.01"});
  check_refused(run_program(base + "--workers two"), {"--workers"});
  check_refused(run_program(base + "--workers 2 --seed -1"), {"--seed", "integer >= 0", "found -1"});
  check_refused(run_program(base + "--workers 2 --set index_bytes=1e999"), {"--set/index_bytes", "1e999"});
  check_refused(run_program(base + "--workers 2 --set 'index_bytes={\"a\":1,\"a\":2}'"), {"--set index_bytes", "twice"});
  check_refused(run_program(base + "--workers 2 --set index_bytes=5"), {"--set/index_bytes", "5"});
  check_refused(run_program(base + "--workers 2 --set index_bytes"), {"--set", "KEY=VALUE"});
  check_refused(run_program(base + "--workers 200 --expansion boot"), {"200"});
  check_refused(run_program(base + "--workers 200 --expansion captured"), {"200"});
  check_refused(run_program(base + "--workers 2 --captured 9"), {"9"});
  check_refused(run_program("replay --trace digits-cnn-8w --sparsifier nothing --workers 2"), {"nothing", "topk"});
}

TEST_CASE("Usage errors are one line and exit 2") {
  check_refused(run_program("collective --platform crossbar-100g --workers 2000000000 --op all_gather --algorithm ring --bytes 1"),
                {"workers", "<= 1048576", "found 2000000000"});
  check_refused(run_program(""), {"subcommand"});
  check_refused(run_program("fly"), {"fly"});
  check_refused(run_program("run"), {"experiment"});
  check_refused(run_program("list cakes"), {"cakes"});
  check_refused(run_program("run x.json --jobs 0"), {"--jobs"});
}

TEST_CASE("Help and lists show what is there") {
  const CommandResult help = run_program("--help");
  CHECK(help.status == 0);
  for (const char* command : {"run", "check", "replay", "collective", "trace", "measure", "plot", "list", "schema"})
    CHECK_THAT(help.out, ContainsSubstring(command));
  for (const char* name : {"dense:", "dense_fp16:", "topk:", "hard_threshold:", "micro:", "exdyna:", "micro_rule = \"code\""})
    CHECK_THAT(run_program("list sparsifiers").out, ContainsSubstring(name));
  CHECK_THAT(run_program("list platforms").out, ContainsSubstring("crossbar-100g"));
  CHECK_THAT(run_program("list profiles").out, ContainsSubstring("cpu-epyc-zen5-1t"));
  CHECK_THAT(run_program("list collectives").out, ContainsSubstring("ring_padded"));
  CHECK_THAT(run_program("list experiments").out, ContainsSubstring("first-figure"));
  CHECK_THAT(run_program("list traces").out, ContainsSubstring("34862 gradients, 8 workers, 10 iterations"));
  for (const char* format : {"experiment", "platform", "profile", "trace"}) {
    const CommandResult schema = run_program(std::string("schema ") + format);
    CHECK(schema.status == 0);
    CHECK(parse_json(schema.out, format).at("type") == "object");
  }
}

TEST_CASE("Replay writes one record per iteration, the same bytes again") {
  const std::string arguments =
      "replay --trace digits-cnn-8w --sparsifier exdyna --workers 24 --density 0.01 --iterations 3 --warmup 2 --seed 7 --hashes";
  const CommandResult first = run_program(arguments), second = run_program(arguments);
  REQUIRE(first.status == 0);
  CHECK(std::count(first.out.begin(), first.out.end(), '\n') == 3);
  CHECK(first.out == second.out);
  const Json record = parse_json(first.out.substr(0, first.out.find('\n')), "record");
  for (const char* key : {"iteration", "sparsifier", "workers", "target_k", "selected", "selected_sum", "selected_max", "union", "density",
                          "build_up", "padding", "threshold", "residual_norm", "exchange", "selected_sha256", "union_sha256"})
    CHECK(record.contains(key));
  CHECK(record.at("selected").size() == 24);
  CHECK(record.at("target_k") == 348);
  const Scratch scratch("replay");
  CHECK(run_program(arguments + " --out '" + (scratch / "r.jsonl").string() + "'").status == 0);
  CHECK(slurp(scratch / "r.jsonl") == first.out);
}

TEST_CASE("A program that does not find its data says so") {
  ::setenv("SPARSCALE_DATA", "/nonexistent", 1);
  const CommandResult version = run_program("--version"), check = run_program("check first-figure");
  ::unsetenv("SPARSCALE_DATA");
  CHECK(version.status == 0);
  CHECK(version.err.empty());
  CHECK(check.status == 2);
  CHECK(std::count(check.err.begin(), check.err.end(), '\n') == 1);
}
