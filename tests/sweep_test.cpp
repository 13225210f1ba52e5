// What an experiment stands for: axes, named axes, zip, exclusions, replicates, inheritance; and what is seen before anything runs.
#include "experiments/sweep.hpp"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "base/error.hpp"
#include "base/files.hpp"
#include "experiments/coverage.hpp"
#include "experiments/runner.hpp"
#include "sim/sparsifier.hpp"
#include "tests/catch.hpp"
#include "tests/command.hpp"

using namespace sparscale;
using namespace sparscale::experiments;
using namespace sparscale::tests;
namespace fs = std::filesystem;

namespace {

Json small() {
  return parse_json(R"({"schema_version":1,"name":"small","trace":"digits-cnn-8w","sparsifier":"topk","density":0.01,
    "workers":2,"iterations":2,"platform":"crossbar-100g","profile":"cpu-epyc-zen5-1t"})",
                    "small");
}

Experiment load(const Scratch& scratch, const Json& document, const std::string& name = "e.json") {
  spit(scratch / name, document.dump());
  return Experiment::load(scratch / name);
}

/// The one line of the refusal.
std::string refusal(const Scratch& scratch, const Json& document) {
  try {
    load(scratch, document);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

const ReplayPoint& replay_of(const Experiment& experiment, const RunPoint& run) { return experiment.replays.at(run.replay); }

}  // namespace

TEST_CASE("Every field but the few that describe the sweep is an axis, and a list of two doubles the runs") {
  const Scratch scratch("sweep");
  const std::set<std::string> not_axes = {"schema_version", "name", "title", "extends", "axes", "zip", "exclude", "replicates", "claims"};
  Json platform = load_json(fs::path(SPARSCALE_SOURCE_DIRECTORY) / "platforms/catalogue/crossbar-100g.json");
  platform["name"] = "mine";
  spit(scratch / "p.json", platform.dump());
  fs::copy(fs::path(SPARSCALE_SOURCE_DIRECTORY) / "traces/samples/digits-cnn-8w", scratch / "t", fs::copy_options::recursive);
  Json manifest = load_json(scratch / "t/trace.json");
  manifest["name"] = "mine";
  manifest["learning_rate"] = Json::array();
  for (std::size_t i = 0; i < manifest.at("iterations").size(); ++i) manifest["learning_rate"].push_back(0.1);
  spit(scratch / "t/trace.json", manifest.dump());
  const Json time = {{"forward_time_s", 0.001}, {"backward_time_s", 0.002}, {"origin", "assumed"}};
  Json slower = time;
  slower["forward_time_s"] = 0.002;
  // field -> a second value beside the first (that of the experiment below, or its default)
  const std::map<std::string, std::pair<Json, Json>> values = {{"trace", {"t", "digits-cnn-8w"}},
                                                               {"sparsifier", {"topk", "micro"}},
                                                               {"density", {0.01, 0.02}},
                                                               {"workers", {16, 2}},
                                                               {"captured_workers", {0, 4}},
                                                               {"expansion", {"auto", "shift"}},
                                                               {"seed", {1, 2}},
                                                               {"warmup_iterations", {0, 1}},
                                                               {"iterations", {2, 3}},
                                                               {"error_feedback", {true, false}},
                                                               {"lr_in_accumulator", {false, true}},
                                                               {"memory", {"full", "f16"}},
                                                               {"platform", {"crossbar-100g", "p.json"}},
                                                               {"profile", {"cpu-epyc-zen5-1t", "v100-modelled"}},
                                                               {"extrapolate_profile", {false, true}},
                                                               {"compute", {time, slower}},
                                                               {"all_gather", {"ring_padded", "ring"}},
                                                               {"all_reduce", {"ring", "recursive_doubling"}},
                                                               {"broadcast", {"binomial", "binomial_concurrent"}},
                                                               {"reduce_scatter", {"ring", "ring"}},
                                                               {"reduce", {"binomial", "binomial"}},
                                                               {"all_to_all", {"pairwise", "throttled"}},
                                                               {"gossip", {"exponential", "ring_neighbours"}},
                                                               {"network", {"auto", "simgrid"}}};
  const std::set<std::string> of_times = {"platform",  "profile", "extrapolate_profile", "compute", "all_gather", "all_reduce",
                                          "broadcast", "network", "reduce_scatter",      "reduce",  "all_to_all", "gossip"};
  Json e = small();
  e["workers"] = 16;
  e["trace"] = "t";
  e["compute"] = time;
  REQUIRE(load(scratch, e).runs.size() == 1);
  for (const auto& [field, rule] : experiment_schema().at("properties").items()) {
    INFO(field);
    const bool is_axis = std::find(axis_fields().begin(), axis_fields().end(), field) != axis_fields().end();
    CHECK(is_axis == !not_axes.contains(field));
    if (!is_axis || !values.contains(field)) continue;  // fields added later have tests of their own
    Json two = e;
    two[field] = {values.at(field).first, values.at(field).second};
    std::string refused;
    try {
      const Experiment experiment = load(scratch, two);
      const bool differ = two.at(field).at(0) != two.at(field).at(1);  // of some operations there is one algorithm
      CHECK(experiment.runs.size() == (differ ? 2 : 1));
      CHECK(experiment.replays.size() == (of_times.contains(field) ? 1 : 2));
      if (experiment.effective.at(field).is_array()) CHECK(experiment.effective.at(field).size() == 2);
    } catch (const InputError& error) {
      refused = error.what();
    }
    CHECK(refused.empty());
    INFO(refused);
  }
  CHECK(values.size() >= 23);
}

TEST_CASE("A list of a sparsifier's parameter is an axis; a parameter whose value is a list is not") {
  const Scratch scratch("sweep");
  Json e = small();
  e["sparsifier"] = parse_json(R"([{"name":"micro","parameters":{"micro_rule":["code","intended"],"index_bytes":[4,8]}},
    {"name":"topk","parameters":{"density_schedule":[[0,0.1],[2,0.01]]}}])",
                               "s");
  const Experiment experiment = load(scratch, e);
  REQUIRE(experiment.runs.size() == 5);
  std::vector<std::string> seen;
  for (const RunPoint& run : experiment.runs) {
    const Json& parameters = replay_of(experiment, run).options.parameters;
    seen.push_back(parameters.contains("micro_rule") ? parameters.at("micro_rule").get<std::string>() + parameters.at("index_bytes").dump()
                                                     : parameters.at("density_schedule").dump());
  }
  CHECK(seen == std::vector<std::string>{"code4", "code8", "intended4", "intended8", "[[0,0.1],[2,0.01]]"});
  CHECK(experiment.effective.at("sparsifier").at(0).at("parameters").at("micro_rule") == Json{"code", "intended"});
  CHECK(load(scratch, experiment.effective).runs.size() == 5);
  e["sparsifier"] = parse_json(R"({"name":"micro","parameters":{"micro_rule":["code","maybe"]}})", "s");
  CHECK_THAT(refusal(scratch, e), ContainsSubstring("e.json: /sparsifier/parameters/micro_rule") && ContainsSubstring("found \"maybe\""));
  e["sparsifier"] = parse_json(R"({"name":"micro","parameters":{"micro_rule":[]}})", "s");
  CHECK_THAT(refusal(scratch, e), ContainsSubstring("/sparsifier/parameters/micro_rule: expected at least one value"));
}

TEST_CASE("Zip pairs axes; named axes set several fields and label the runs") {
  const Scratch scratch("sweep");
  Json e = small();
  e["density"] = {0.001, 0.01, 0.1};
  e["workers"] = {2, 4, 8};
  e["seed"] = {1, 2};
  e.erase("platform");
  e.erase("profile");
  e["axes"] = parse_json(R"({"machine":{"old":{"platform":"crossbar-100g","profile":"cpu-epyc-zen5-1t"},
                                        "new":{"platform":"nvlink8-ib","profile":"v100-modelled"}}})",
                         "axes");
  CHECK(load(scratch, e).runs.size() == 3 * 3 * 2 * 2);
  e["zip"] = parse_json(R"([["density","workers"]])", "zip");
  const Experiment experiment = load(scratch, e);
  REQUIRE(experiment.runs.size() == 3 * 2 * 2);
  CHECK(experiment.replays.size() == 3 * 2);
  const std::map<std::int64_t, double> density = {{2, 0.001}, {4, 0.01}, {8, 0.1}};
  for (const RunPoint& run : experiment.runs) {
    const sim::ReplayOptions& options = replay_of(experiment, run).options;
    CHECK(options.density == density.at(options.workers));
    CHECK(run.labels.at("machine") == (run.platform == "crossbar-100g" ? "old" : "new"));
    CHECK((run.platform == "crossbar-100g") == (run.profile == "cpu-epyc-zen5-1t"));
  }
  // A named axis can be zipped too.
  e["zip"] = parse_json(R"([["seed","machine"],["workers","density"]])", "zip");
  const Experiment both = load(scratch, e);
  REQUIRE(both.runs.size() == 3 * 2);
  for (const RunPoint& run : both.runs) CHECK(replay_of(both, run).options.seed == (run.labels.at("machine") == "old" ? 1U : 2U));

  SECTION("lists of different lengths") {
    e["zip"] = parse_json(R"([["density","seed"]])", "zip");
    CHECK_THAT(refusal(scratch, e), ContainsSubstring("/zip/0/1: expected an axis with as many values as density, 3, found seed with 2"));
  }
  SECTION("not an axis") {
    e["zip"] = parse_json(R"([["density","wrokers"]])", "zip");
    CHECK_THAT(refusal(scratch, e),
               ContainsSubstring("/zip/0/1: expected one of the axes machine, trace") && ContainsSubstring("\"wrokers\""));
  }
  SECTION("an axis in two zips") {
    e["zip"] = parse_json(R"([["density","workers"],["seed","density"]])", "zip");
    CHECK_THAT(refusal(scratch, e), ContainsSubstring("/zip/1/1") && ContainsSubstring("which stands at /zip/0/0 too"));
  }
  SECTION("a field that is given outside the named axis too") {
    e["platform"] = "crossbar-100g";
    CHECK_THAT(refusal(scratch, e), ContainsSubstring("/axes/machine/old/platform") && ContainsSubstring("platform at /platform"));
  }
  SECTION("a field that another named axis sets too") {
    e["axes"]["other"] = {{"x", {{"profile", "v100-modelled"}}}};
    CHECK_THAT(refusal(scratch, e), ContainsSubstring("/axes/other/x/profile") && ContainsSubstring("profile at /axes/machine"));
  }
  SECTION("values that set different fields") {
    e["axes"]["machine"]["new"].erase("profile");
    CHECK_THAT(refusal(scratch, e), ContainsSubstring("/axes/machine/new: expected the fields that the other values of this axis set"));
  }
  SECTION("an unknown field") {
    e["axes"]["machine"]["new"]["colour"] = "red";
    CHECK_THAT(refusal(scratch, e), ContainsSubstring("/axes/machine/new/colour"));
  }
  SECTION("a list as the value of a name") {
    e["axes"]["machine"]["new"]["platform"] = {"crossbar-100g", "nvlink8-ib"};
    CHECK_THAT(refusal(scratch, e), ContainsSubstring("/axes/machine/new/platform"));
  }
  SECTION("the name of a field") {
    e["axes"]["density"] = {{"x", {{"broadcast", "binomial"}}}};
    CHECK_THAT(refusal(scratch, e), ContainsSubstring("/axes/density: expected a name that is not one of the fields"));
  }
  SECTION("nobody gives the platform") {
    e["axes"]["machine"]["old"].erase("platform");
    e["axes"]["machine"]["new"].erase("platform");
    CHECK_THAT(refusal(scratch, e), ContainsSubstring("expected the key \"platform\""));
  }
}

TEST_CASE("Exclusions leave out what matches all their fields, and must leave something out") {
  const Scratch scratch("sweep");
  Json e = small();
  e["sparsifier"] = parse_json(R"(["dense","topk",{"name":"micro","parameters":{"micro_rule":["code","intended"]}}])", "s");
  e["workers"] = {2, 4, 8};
  e["platform"] = {"crossbar-100g", "nvlink8-ib"};
  CHECK(load(scratch, e).runs.size() == 4 * 3 * 2);
  e["exclude"] = parse_json(R"([{"sparsifier":"micro","workers":[4,8]}])", "exclude");
  CHECK(load(scratch, e).runs.size() == 4 * 3 * 2 - 2 * 2 * 2);
  e["exclude"] = parse_json(R"([{"sparsifier":{"name":"micro","parameters":{"micro_rule":"intended"}}}])", "exclude");
  CHECK(load(scratch, e).runs.size() == 3 * 3 * 2);
  e["exclude"] = parse_json(R"([{"sparsifier":["dense","topk"],"platform":"nvlink8-ib"},{"workers":8}])", "exclude");
  const Experiment experiment = load(scratch, e);
  CHECK(experiment.runs.size() == 2 * 2 * 2 + 2 * 2);
  for (const RunPoint& run : experiment.runs) {
    const sim::ReplayOptions& options = replay_of(experiment, run).options;
    CHECK(options.workers != 8);
    CHECK((options.sparsifier == "micro" || run.platform == "crossbar-100g"));
  }
  CHECK(load(scratch, experiment.effective).runs.size() == experiment.runs.size());
  SECTION("a rule that matches nothing") {
    e["exclude"] = parse_json(R"([{"workers":8},{"sparsifier":"dense","workers":16}])", "exclude");
    CHECK_THAT(refusal(scratch, e), ContainsSubstring("e.json: /exclude/1: expected fields of at least one run"));
  }
  SECTION("an unknown field") {
    e["exclude"] = parse_json(R"([{"wrokers":"8"}])", "exclude");
    CHECK_THAT(refusal(scratch, e), ContainsSubstring("/exclude/0/wrokers") && ContainsSubstring("the unknown key"));
  }
  SECTION("everything") {
    e["exclude"] = parse_json(R"([{"workers":[2,4,8]}])", "exclude");
    CHECK_THAT(refusal(scratch, e), ContainsSubstring("/exclude: expected rules that leave at least one run"));
  }
  SECTION("by the name of a named axis") {
    e.erase("platform");
    e.erase("exclude");
    e["axes"] = parse_json(R"({"net":{"slow":{"platform":"crossbar-100g"},"fast":{"platform":"nvlink8-ib"}}})", "axes");
    e["exclude"] = parse_json(R"([{"net":"fast","workers":2}])", "exclude");
    CHECK(load(scratch, e).runs.size() == 4 * 3 * 2 - 4);
  }
}

TEST_CASE("Replicate seeds are derived, written out, and the same for ever") {
  const Scratch scratch("sweep");
  Json e = small();
  e["seed"] = 7;
  e["replicates"] = 4;
  const Experiment experiment = load(scratch, e);
  REQUIRE(experiment.runs.size() == 4);
  const Json& seeds = experiment.effective.at("seed");
  REQUIRE(seeds.size() == 4);
  CHECK(seeds.at(0) == 7);
  std::set<std::uint64_t> distinct;
  for (std::size_t i = 0; i < 4; ++i) {
    distinct.insert(seeds.at(i).get<std::uint64_t>());
    CHECK(seeds.at(i).get<std::uint64_t>() < (std::uint64_t{1} << 53));
    CHECK(replay_of(experiment, experiment.runs[i]).options.seed == seeds.at(i).get<std::uint64_t>());
  }
  CHECK(distinct.size() == 4);
  CHECK(replicate_seed(1, 1) == 5441801637357790U);
  CHECK(replicate_seed(1, 2) == 1625226007590337U);
  CHECK(experiment.effective.at("replicates") == 1);
  const Experiment again = load(scratch, experiment.effective);
  REQUIRE(again.runs.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) CHECK(again.runs[i].key == experiment.runs[i].key);
  e["seed"] = {1, 2};
  CHECK_THAT(refusal(scratch, e), ContainsSubstring("/replicates: expected 1, as seed has values of its own, found 4"));
}

TEST_CASE("An experiment that extends another: objects merged, lists replaced, null removes, paths from where they stand") {
  const Scratch scratch("sweep");
  Json platform = load_json(fs::path(SPARSCALE_SOURCE_DIRECTORY) / "platforms/catalogue/crossbar-100g.json");
  platform["name"] = "mine";
  spit(scratch / "common/p.json", platform.dump());
  Json base = small();
  base["name"] = "base";
  base["workers"] = {2, 4, 8};
  base["platform"] = "./p.json";  // beside base.json
  base["sparsifier"] = parse_json(R"({"name":"micro","parameters":{"micro_rule":"intended","index_bytes":4}})", "s");
  base["compute"] = {{"forward_time_s", 0.001}, {"backward_time_s", 0.002}, {"origin", "assumed"}};
  spit(scratch / "common/base.json", base.dump());
  Json middle = {{"schema_version", 1}, {"name", "middle"}, {"extends", "base.json"}, {"density", {0.001, 0.01}}};
  spit(scratch / "common/middle.json", middle.dump());
  Json e = {{"schema_version", 1},
            {"name", "mine"},
            {"extends", "common/middle.json"},
            {"workers", {2}},
            {"sparsifier", {{"name", "micro"}, {"parameters", {{"index_bytes", 8}}}}},
            {"compute", {{"forward_time_s", 0.005}}}};
  const Experiment experiment = load(scratch, e);
  CHECK(experiment.name == "mine");
  REQUIRE(experiment.runs.size() == 2);  // 2 densities of middle.json, 1 number of workers of its own
  CHECK(replay_of(experiment, experiment.runs[0]).options.density == 0.001);
  CHECK(replay_of(experiment, experiment.runs[0]).options.parameters ==
        Json{{"micro_rule", "intended"}, {"density_schedule", Json::array()}, {"index_bytes", 8}});
  CHECK(experiment.runs[0].timeline.forward_time_s == 0.005);
  CHECK(experiment.runs[0].timeline.backward_time_s == 0.002);
  CHECK(experiment.platforms.at(experiment.runs[0].platform).name == "mine");
  // What is written down refers to nothing.
  CHECK_FALSE(experiment.effective.contains("extends"));
  spit(scratch / "elsewhere/effective.json", experiment.effective.dump());
  const Experiment again = Experiment::load(scratch / "elsewhere/effective.json");
  REQUIRE(again.runs.size() == 2);
  CHECK(again.runs[0].key == experiment.runs[0].key);
  // The parents' hashes are kept.
  REQUIRE(experiment.parents.size() == 2);
  CHECK(experiment.parents[0].first == fs::canonical(scratch / "common/middle.json").string());
  CHECK(experiment.parents[1].second == sha256_hex_of_file(scratch / "common/base.json"));
  prepare_directory(experiment, scratch / "out", false);
  CHECK(load_json(scratch / "out/environment.json")
            .at("inputs_sha256")
            .at("extended experiment " + fs::canonical(scratch / "common/base.json").string()) ==
        sha256_hex_of_file(scratch / "common/base.json"));

  SECTION("another sparsifier does not take the parameters of the first") {
    e["sparsifier"] = {{"name", "topk"}, {"parameters", {{"index_bytes", 4}}}};
    CHECK(load(scratch, e).runs.size() == 2);
  }
  SECTION("null removes") {
    e["compute"] = nullptr;
    CHECK(load(scratch, e).runs[0].timeline.forward_time_s == Approx(0.00105793).epsilon(1e-5));
    e["title"] = nullptr;
    CHECK_THAT(refusal(scratch, e), ContainsSubstring("e.json: /title: expected a value, as there is none to remove"));
  }
  SECTION("an error in a parent names it") {
    base["densty"] = 1;
    spit(scratch / "common/base.json", base.dump());
    CHECK_THAT(refusal(scratch, e), ContainsSubstring("common/base.json: /densty"));
  }
  SECTION("a name in a parent that is not found names it") {
    base["profile"] = {"cpu-epyc-zen5-1t", "abacus"};
    spit(scratch / "common/base.json", base.dump());
    CHECK_THAT(refusal(scratch, e), ContainsSubstring("common/base.json: /profile/1") && ContainsSubstring("abacus"));
  }
  SECTION("a density in a parent that is too small names it") {
    middle["density"] = {0.01, 1e-9};
    spit(scratch / "common/middle.json", middle.dump());
    CHECK_THAT(refusal(scratch, e), ContainsSubstring("common/middle.json: /density/1: expected a density of at least 1 / 34862"));
  }
  SECTION("an incomplete object") {
    e["compute"]["origin"] = nullptr;
    CHECK_THAT(refusal(scratch, e), ContainsSubstring("/compute: expected the key \"origin\""));
  }
  SECTION("no name of its own") {
    e.erase("name");
    CHECK_THAT(refusal(scratch, e), ContainsSubstring("e.json: /: expected the key \"name\""));
  }
  SECTION("a missing file") {
    middle["extends"] = "nothing.json";
    spit(scratch / "common/middle.json", middle.dump());
    CHECK_THAT(refusal(scratch, e), ContainsSubstring("common/middle.json: /extends: expected an experiment file, found no file"));
  }
  SECTION("a cycle") {
    base["extends"] = "../e.json";
    spit(scratch / "common/base.json", base.dump());
    CHECK_THAT(refusal(scratch, e), ContainsSubstring("common/base.json: /extends: expected a file that does not extend this one in turn"));
  }
  SECTION("itself") {
    e["extends"] = "e.json";
    CHECK_THAT(refusal(scratch, e), ContainsSubstring("e.json: /extends"));
  }
}

TEST_CASE("Runs that differ in platform, profile, times or collectives share their replay, and a replay is made once") {
  const Scratch scratch("sweep");
  Json e = small();
  e["sparsifier"] = {"topk", "micro"};
  e["platform"] = {"crossbar-100g", "nvlink8-ib"};
  e["profile"] = {"cpu-epyc-zen5-1t", "v100-modelled"};
  e["all_gather"] = {"ring_padded", "ring"};
  e["network"] = {"auto", "simgrid"};
  const Experiment experiment = load(scratch, e);
  CHECK(experiment.runs.size() == 2 * 2 * 2 * 2 * 2);
  CHECK(experiment.replays.size() == 2);
  REQUIRE(run_experiment(experiment, {scratch / "out", 2, false}) == 0);
  std::size_t replays = 0, runs = 0;
  for (const auto& entry : fs::directory_iterator(scratch / "out/replays")) replays += entry.path().extension() == ".jsonl";
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(scratch / "out/runs")) ++runs;
  CHECK(replays == 2);
  CHECK(runs == 32);
  // Everything is there; of a larger sweep only the rest is to be done.
  Estimate now = estimate(experiment, scratch / "out");
  CHECK(now.runs_cached == 32);
  CHECK(now.replays_cached == 2);
  CHECK(now.time_s == 0);
  e["all_reduce"] = {"ring", "recursive_doubling"};
  now = estimate(load(scratch, e), scratch / "out");
  CHECK(now.runs == 64);
  CHECK(now.runs_cached == 32);
  CHECK(now.replays_cached == 2);
  CHECK(now.to_do.empty());
  e["workers"] = {2, 8};
  now = estimate(load(scratch, e), scratch / "out", 3);
  CHECK(now.replays == 4);
  REQUIRE(now.to_do.size() == 2);
  const std::uint64_t one = now.to_do[0].memory_bytes, other = now.to_do[1].memory_bytes;
  CHECK(one >= 8 * 34862 * 4);  // the residuals alone
  CHECK(now.memory_bytes == std::max(one, other));
  CHECK(now.memory_together_bytes == one + other);
  CHECK(now.elapsed_s == Approx(std::max(now.to_do[0].time_s, now.time_s / 3)));
  // A sample of the rows takes its share of the time.
  const double in_full_s = now.replays_time_s;
  e["memory"] = "sample:0.1";
  now = estimate(load(scratch, e), scratch / "out", 3);
  CHECK(now.replays_time_s == Approx(0.1 * in_full_s * (8 + 2) / 8));  // in full n = 2 is there already
}

TEST_CASE("What a profile does not cover is refused before anything runs") {
  const Scratch scratch("sweep");
  Json profile = load_json(fs::path(SPARSCALE_SOURCE_DIRECTORY) / "kernels/profiles/cpu-epyc-zen5-1t.json");
  profile["name"] = "mine";
  Json e = small();
  e["profile"] = {"cpu-epyc-zen5-1t", "./mine.json"};
  const auto keep = [&](const auto& wanted) {
    Json records = Json::array();
    for (const Json& record : profile.at("records"))
      if (wanted(record)) records.push_back(record);
    REQUIRE(records.size() < profile.at("records").size());
    REQUIRE_FALSE(records.empty());
    Json changed = profile;
    changed["records"] = records;
    spit(scratch / "mine.json", changed.dump());
  };
  const auto refused = [&] {
    spit(scratch / "e.json", e.dump());
    const std::string arguments = " '" + (scratch / "e.json").string() + "' --out '" + (scratch / "out").string() + "'";
    const CommandResult check = run_program("check" + arguments), run = run_program("run --no-figures" + arguments);
    CHECK(check.status == 2);
    CHECK(run.status == 2);
    CHECK(check.err == run.err);
    CHECK_FALSE(fs::exists(scratch / "out"));
    return check.err;
  };
  SECTION("a hole: an operation that is missing") {
    keep([](const Json& record) { return !record.at("operation").get<std::string>().starts_with("topk"); });
    CHECK_THAT(refused(), ContainsSubstring("e.json: /profile/1: ") && ContainsSubstring("mine.json: operation: expected one of") &&
                              ContainsSubstring("found \"topk\", for topk at n = 2"));
    e["extrapolate_profile"] = true;  // does not help: there is nothing to start from
    CHECK_THAT(refused(), ContainsSubstring("found \"topk\""));
  }
  SECTION("gradients that are longer than what was measured") {
    keep([](const Json& record) { return record.at("elements").get<std::int64_t>() < 34862; });
    CHECK_THAT(refused(), ContainsSubstring("e.json: /profile/1: ") && ContainsSubstring("elements = 34862"));
    e["workers"] = 256;  // where gradients are shortened for the look
    CHECK_THAT(refused(), ContainsSubstring("elements = 34862"));
    e["extrapolate_profile"] = true;
    CHECK_NOTHROW(check_profiles(load(scratch, e), scratch / "out"));
  }
  SECTION("parameters that a sparsifier refuses") {
    e["profile"] = "cpu-epyc-zen5-1t";
    e["sparsifier"] = parse_json(R"(["topk",{"name":"dgc","parameters":{"warmup_epochs":1}}])", "s");
    CHECK_THAT(refused(),
               ContainsSubstring("e.json: /sparsifier/1: iterations_per_epoch: expected a number >= 1 when warmup_epochs is given"));
  }
}

TEST_CASE("A synthetic trace can be a value of a named axis and of an exclusion") {
  const Scratch scratch("sweep");
  const auto synthetic = [](int seed) {
    Json made = {{"synthesize", {{"model", "resnet18"}, {"workers", 2}, {"iterations", 2}, {"gradients", 50000}, {"seed", seed}}}};
    if (seed != 1) made["synthesize"]["name"] = "resnet18-" + std::to_string(seed);
    return made;
  };
  Json e = small();
  e.erase("trace");
  e["axes"] = {{"data", {{"one", {{"trace", synthetic(1)}}}, {"two", {{"trace", "digits-cnn-8w"}}}}}};
  e["workers"] = {1, 2};
  e["compute"] = {{"forward_time_s", 0.001}, {"backward_time_s", 0.002}, {"origin", "assumed"}};
  e["exclude"] = Json::array({{{"trace", synthetic(1)}, {"workers", 2}}});
  ::setenv("SPARSCALE_CACHE", (scratch / "cache").c_str(), 1);
  const Experiment experiment = load(scratch, e);
  CHECK(experiment.runs.size() == 3);
  CHECK(experiment.effective.at("axes").at("data").at("one").at("trace") == synthetic(1));
  CHECK(load(scratch, experiment.effective).runs.size() == 3);
  // Two of one model have a name each, as results go by it.
  e["axes"]["data"]["two"]["trace"] = synthetic(2);
  std::set<std::string> names;
  for (const auto& [folder, trace] : load(scratch, e).traces) names.insert(trace.info().name);
  CHECK(names == std::set<std::string>{"synthetic-resnet18", "synthetic-resnet18-2"});
  e["axes"]["data"]["two"]["trace"]["synthesize"].erase("name");
  e.erase("exclude");
  CHECK_THAT(refusal(scratch, e), ContainsSubstring("/axes/data/two/trace: expected a trace with a name of its own in it"));
  ::unsetenv("SPARSCALE_CACHE");
}

TEST_CASE("Of a synthetic trace that is extended, single keys are replaced, and a model's file counts from where it is written") {
  const Scratch scratch("sweep");
  ::setenv("SPARSCALE_CACHE", (scratch / "cache").c_str(), 1);
  const auto model = [](const char* name, int elements) {
    return Json{{"schema_version", 1}, {"name", name}, {"layers", {{{"name", "w"}, {"shape", {elements}}}}}}.dump();
  };
  spit(scratch / "common/m.json", model("theirs", 1000));
  spit(scratch / "m.json", model("mine", 2000));
  Json base = small();
  base["trace"] = {{"synthesize", {{"model", "./m.json"}, {"workers", 4}, {"iterations", 2}}}};
  base["compute"] = {{"forward_time_s", 0.001}, {"backward_time_s", 0.002}, {"origin", "assumed"}};
  spit(scratch / "common/base.json", base.dump());
  const auto trace_of = [&](const Json& synthesize) {
    const Experiment experiment =
        load(scratch, {{"schema_version", 1}, {"name", "mine"}, {"extends", "common/base.json"}, {"trace", {{"synthesize", synthesize}}}});
    const traces::Trace& trace = experiment.traces.begin()->second;
    return trace.info().name + " " + std::to_string(trace.gradients()) + " " + std::to_string(trace.workers());
  };
  CHECK(trace_of({{"workers", 3}}) == "synthetic-theirs 1000 3");
  CHECK(trace_of({{"model", "./m.json"}}) == "synthetic-mine 2000 4");
  ::unsetenv("SPARSCALE_CACHE");
  base["trace"]["synthesize"].erase("model");
  CHECK_THAT(refusal(scratch, base), ContainsSubstring("e.json: /trace/synthesize: expected the key \"model\", found no such key"));
}

TEST_CASE("Claims that no result can answer are refused before anything runs") {
  const Scratch scratch("sweep");
  const auto said = [&](const std::string& claim) {
    Json e = small();
    e["claims"] = Json::array({parse_json(claim, "claim")});
    e["claims"][0]["claim"] = e["claims"][0]["source"] = "x";
    return refusal(scratch, e);
  };
  const std::string file = (scratch / "e.json").string() + ": /claims/0";
  CHECK(
      said(
          R"({"value":{"column":"speed_up","where":{"workers":[2,4],"labels":{"a":"b"},"value_encoding":"fp16"}},"over":2,"at_least":0})") ==
      "accepted");
  CHECK(said(R"({"value":{"column":"speed"},"at_least":0})") ==
        file + "/value/column: expected a column with numbers of results.csv ('sparscale list columns'), found \"speed\"");
  CHECK(said(R"({"value":{"column":"workers"},"at_least":0})") ==
        file + "/value/column: expected a column with numbers of results.csv ('sparscale list columns'), found \"workers\"");
  CHECK_THAT(said(R"({"value":{"series":"speed_up"},"at_least":0})"),
             ContainsSubstring(file + "/value/series: expected one of build_up, "));
  CHECK(said(R"({"value":{"series":"padding","from":2,"to":2},"at_least":0})") == file + "/value/to: expected more than from, 2, found 2");
  // The run has as many iterations as small() says.
  const auto iterations = small().at("iterations").get<int>();
  const auto series = [&](int from, int to, const std::string& where) {
    return said(R"({"value":{"series":"padding","from":)" + std::to_string(from) +
                (to > 0 ? ",\"to\":" + std::to_string(to) : std::string()) + where + R"(},"at_least":0})");
  };
  CHECK(series(0, iterations, "") == "accepted");
  CHECK(series(0, iterations + 1, "") == file + "/value/to: expected at most " + std::to_string(iterations) +
                                             ", as many iterations as its runs record, found " + std::to_string(iterations + 1));
  CHECK(series(iterations - 1, 0, "") == "accepted");
  CHECK(series(iterations, 0, "") == file + "/value/from: expected less than " + std::to_string(iterations) +
                                         ", as many iterations as its runs record, found " + std::to_string(iterations));
  CHECK(series(0, iterations + 1, R"(,"where":{"platform":"x"})") == file + "/value/to: expected at most " + std::to_string(iterations) +
                                                                         ", as many iterations as its runs record, found " +
                                                                         std::to_string(iterations + 1));
  CHECK(series(0, iterations + 1, R"(,"where":{"sparsifier":"none"})") == "accepted");  // no run: not run
  CHECK(said(R"({"value":{"column":"speed_up"},"over":{"column":"speed_up","where":{"nodes":2}},"at_least":0})") ==
        file + "/over/where/nodes: expected a key column of results.csv ('sparscale list columns'), found none of this name");
  CHECK(said(R"({"value":{"column":"speed_up","where":{"workers":"2"}},"at_least":0})") ==
        file + "/value/where/workers: expected a number or a list of them, found \"2\"");
  CHECK(said(R"({"value":{"column":"speed_up"},"over":0,"at_least":0})") == file + "/over: expected a number other than 0, found 0");
  CHECK(said(R"({"value":{"column":"speed_up"},"at_least":2,"at_most":1})") == file + "/at_most: expected at least at_least, 2, found 1");
}

TEST_CASE("The series that a claim may name are those that runs have") {
  const Scratch scratch("sweep");
  const Experiment experiment = load(scratch, small());
  RunOptions options;
  options.directory = scratch / "out";
  REQUIRE(run_experiment(experiment, options) == 0);
  for (const auto& [name, values] : load_json(scratch / "out/runs" / (experiment.runs[0].key + ".json")).at("series").items()) {
    Json e = small();
    e["claims"] = {{{"claim", "x"}, {"source", "x"}, {"value", {{"series", name}}}, {"at_least", 0}}};
    CHECK(refusal(scratch, e) == "accepted");
  }
}

TEST_CASE("Of the runs of one replay, one that fails fails alone, with its own reason") {
  const Scratch scratch("sweep");
  Json e = small();
  e["sparsifier"] = "gtopk";  // its reduce is no call of NCCL's
  e["platform"] = "dgx-a100";
  e["network"] = {"nccl", "auto"};
  const Experiment experiment = load(scratch, e);
  REQUIRE(experiment.replays.size() == 1);
  REQUIRE(experiment.runs.size() == 2);
  RunOptions options;
  options.directory = scratch / "out";
  CHECK(run_experiment(experiment, options) == 1);
  CHECK(fs::exists(scratch / "out/runs" / (experiment.runs[1].key + ".json")));
  const Status now = status(experiment, scratch / "out");
  CHECK(now.done == 1);
  REQUIRE(now.failures.size() == 1);
  CHECK(now.failures[0].what == "timing of gtopk at n = 2 on digits-cnn-8w on dgx-a100 with cpu-epyc-zen5-1t, network nccl");
  CHECK_THAT(now.failures[0].reason, ContainsSubstring("for the operation reduce, found nccl"));
}

TEST_CASE("Results of an input that has changed do not stand beside the new one's description") {
  const Scratch scratch("sweep");
  Json platform = load_json(fs::path(SPARSCALE_SOURCE_DIRECTORY) / "platforms/catalogue/crossbar-100g.json");
  spit(scratch / "p.json", platform.dump());
  Json e = small();
  e["platform"] = "./p.json";
  RunOptions options;
  options.directory = scratch / "out";
  REQUIRE(run_experiment(load(scratch, e), options) == 0);
  spit(scratch / "out/report.html", "of these results");
  prepare_directory(load(scratch, e), options.directory, false);
  CHECK(fs::exists(scratch / "out/results.csv"));
  CHECK(fs::exists(scratch / "out/report.html"));
  platform["node"]["nics"]["bandwidth_GBps"] = 1;
  spit(scratch / "p.json", platform.dump());
  prepare_directory(load(scratch, e), options.directory, false);
  CHECK_FALSE(fs::exists(scratch / "out/results.csv"));
  CHECK_FALSE(fs::exists(scratch / "out/summary.json"));
  CHECK_FALSE(fs::exists(scratch / "out/report.html"));
  // The copy that makes the directory complete is the new one.
  CHECK(load_json(scratch / "out/inputs/platforms" / (platform.at("name").get<std::string>() + ".json")) == platform);
}

TEST_CASE("Records of a replay that are not those that were written are refused") {
  const Scratch scratch("sweep");
  const Experiment experiment = load(scratch, small());
  RunOptions options;
  options.directory = scratch / "out";
  REQUIRE(run_experiment(experiment, options) == 0);
  const fs::path records = scratch / "out/replays" / (experiment.replays[0].key + ".jsonl"),
                 run = scratch / "out/runs" / (experiment.runs[0].key + ".json");
  std::string text = slurp(records);
  const std::string before = slurp(run);
  text.replace(text.find("\"union\":") + 8, 1, "9");
  spit(records, text);
  fs::remove(run);
  CHECK(run_experiment(experiment, options) == 1);
  CHECK_FALSE(fs::exists(run));
  CHECK_THAT(status(experiment, scratch / "out").failures.at(0).reason, ContainsSubstring("found others (--force computes them again)"));
  options.force = true;
  CHECK(run_experiment(experiment, options) == 0);
  CHECK(slurp(run) == before);
}

TEST_CASE("A sweep that is too large is refused before it is formed") {
  const Scratch scratch("sweep");
  Json e = small();
  Json seeds = Json::array(), densities = Json::array();
  for (int i = 0; i < 2000; ++i) {
    seeds.push_back(i);
    densities.push_back(0.001 + 1e-5 * i);
  }
  e["seed"] = seeds;
  e["density"] = densities;
  CHECK_THAT(refusal(scratch, e), ContainsSubstring("e.json: /: expected a sweep of at most 1000000 points"));
}
