// From experiment, records and times to rows and summary, on numbers made up here; and what a result directory may reuse.
#include "experiments/results.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "base/error.hpp"
#include "base/files.hpp"
#include "experiments/runner.hpp"
#include "tests/catch.hpp"
#include "tests/command.hpp"
#include "traces/trace_writer.hpp"

using namespace sparscale;
using namespace sparscale::experiments;
using namespace sparscale::tests;
namespace fs = std::filesystem;

namespace {

Json small() {
  return parse_json(R"({"schema_version":1,"name":"small","trace":"digits-cnn-8w","sparsifier":["dense","topk"],"density":0.01,
    "workers":[2,4,8],"iterations":2,"platform":"crossbar-100g","profile":"cpu-epyc-zen5-1t"})",
                    "small");
}

Experiment load(const Scratch& scratch, const Json& document) {
  spit(scratch / "e.json", document.dump());
  return Experiment::load(scratch / "e.json");
}

const Json captured = {{"method", "captured"}, {"validated", true}, {"warnings", Json::array()}};

// A run's document whose records have these unions (of 34,862 gradients, target 348) and whose iterations take these times.
Json document_of(const Experiment& experiment, const RunPoint& run, const std::vector<double>& unions, const std::vector<double>& times_s,
                 const Json& expansion = captured, const Json& self_check = {}) {
  std::vector<Json> records;
  for (const double united : unions)
    records.push_back({{"target_k", 348},
                       {"selected_sum", 2 * united},
                       {"selected_max", united},
                       {"union", united},
                       {"density", united / 34862},
                       {"build_up", united / 348},
                       {"padding", united > 0 ? Json(1.0) : Json()},
                       {"threshold", {0.5, nullptr, 1.5}},
                       {"residual_norm", {1.0, 3.0}}});
  std::vector<sim::IterationTime> times;
  for (const double time_s : times_s) {
    sim::IterationTime time;
    time.iteration_time_s = time_s;
    time.forward_backward_time_s = time_s;
    times.push_back(time);
  }
  return run_document(experiment, run, expansion, self_check, records, times);
}

const Json& selection_of(const Json& document) { return document.at("summary").at("selection"); }

// Every run takes `time_s(sparsifier, parameters, workers)`.
template <typename Time>
Json summary_of(const Experiment& experiment, const Time& time_s) {
  std::vector<Json> documents;
  for (const RunPoint& run : experiment.runs) {
    const sim::ReplayOptions& options = experiment.replays.at(run.replay).options;
    documents.push_back(document_of(experiment, run, {348}, {time_s(options.sparsifier, options.parameters, options.workers)}));
  }
  return summarise(experiment, documents);
}

std::size_t files_in(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

}  // namespace

TEST_CASE("Means and quantiles are those of the series; what is undefined in one iteration is empty") {
  const Scratch scratch("results");
  const Experiment experiment = load(scratch, small());
  const RunPoint& run = experiment.runs.back();
  const Json document = document_of(experiment, run, {348, 696, 1044, 348}, {1e-3, 2e-3, 3e-3, 6e-3});
  CHECK(selection_of(document).at("build_up_mean") == 1.75);
  CHECK(selection_of(document).at("build_up_p05") == 1.0);
  CHECK(selection_of(document).at("build_up_p95").get<double>() == Approx(2.85));  // 0.85 of the way from 2 to 3
  CHECK(selection_of(document).at("threshold_mean") == 1.0);
  CHECK(selection_of(document).at("residual_norm_mean") == 2.0);
  CHECK(selection_of(document).at("build_up_calibrated_mean").is_null());
  const Json& time = document.at("summary").at("time");
  CHECK(time.at("iteration_time_s_mean").get<double>() == Approx(3e-3));
  CHECK(time.at("iteration_time_s_p05").get<double>() == Approx(1.15e-3));
  // 8 workers, forward and backward as measured with the trace.
  const double alone_s = run.timeline.forward_time_s + run.timeline.backward_time_s;
  CHECK(alone_s == Approx(0.002385).epsilon(1e-3));
  CHECK(time.at("speed_up").get<double>() == Approx(8 * alone_s / 3e-3));

  // Many iterations, in some of which nobody selects anything: no order of numbers that are none.
  std::vector<double> unions(200, 348);
  for (std::size_t i = 0; i < unions.size(); i += 3) unions[i] = 0;
  const Json sparse = document_of(experiment, run, unions, std::vector<double>(200, 1e-3));
  for (const char* column : {"padding_mean", "padding_p05", "padding_p95"}) CHECK(selection_of(sparse).at(column).is_null());
  CHECK(selection_of(sparse).at("build_up_p05") == 0.0);
  CHECK(selection_of(sparse).at("build_up_p95") == 1.0);
  const std::string csv = results_csv({sparse});
  CHECK(csv.find("nan") == std::string::npos);
}

TEST_CASE("The calibration is applied to projected local Top-k only") {
  const Scratch scratch("results");
  Json e = small();
  e["sparsifier"] = {"topk", "micro"};
  e["workers"] = 16;
  const Experiment experiment = load(scratch, e);
  REQUIRE(experiment.runs.size() == 2);
  const Json projected = {{"method", "boot"}, {"validated", true}, {"warnings", {"one"}}};
  const Json check = {{"calibration_exponent", 0.5}, {"warnings", {"two"}}};
  const Json topk = document_of(experiment, experiment.runs[0], {4 * 348}, {1e-3}, projected, check);
  CHECK(selection_of(topk).at("build_up_calibrated_mean").get<double>() == Approx(2));
  CHECK(topk.at("warnings") == Json({"one", "two"}));
  CHECK(topk.at("key").at("counts_origin") == "projected");
  const Json micro = document_of(experiment, experiment.runs[1], {4 * 348}, {1e-3}, projected, check);
  CHECK(selection_of(micro).at("build_up_calibrated_mean").is_null());
}

TEST_CASE("Projected local Top-k has the consensus of the estimates and their range") {
  const Scratch scratch("results");
  Json e = small();
  e["sparsifier"] = {"topk", "micro"};
  e["workers"] = 16;
  const Experiment experiment = load(scratch, e);
  const Json projected = {{"method", "boot"}, {"validated", true}, {"warnings", Json::array()}};
  // Of the self-check's 9: a calibrated 27, 3 from the counts, and 9, their geometric mean, as consensus.
  const Json check = {{"calibration_exponent", 1.5}, {"build_up_projected", 9.0}, {"build_up_calibrated", 27.0},
                      {"npmle_build_up", 3.0},       {"build_up_consensus", 9.0}, {"warnings", Json::array()}};
  const Json topk = selection_of(document_of(experiment, experiment.runs[0], {4 * 348}, {1e-3}, projected, check));
  CHECK(topk.at("build_up_mean").get<double>() == Approx(4));
  CHECK(topk.at("build_up_consensus_mean").get<double>() == Approx(4));
  CHECK(topk.at("build_up_estimate_low").get<double>() == Approx(2));
  CHECK(topk.at("build_up_estimate_high").get<double>() == Approx(8));
  const Json captured = {{"method", "captured"}, {"validated", true}, {"warnings", Json::array()}};
  for (const Json& other : {document_of(experiment, experiment.runs[1], {4 * 348}, {1e-3}, projected, check),
                            document_of(experiment, experiment.runs[0], {4 * 348}, {1e-3}, captured, Json())})
    for (const char* column : {"build_up_consensus_mean", "build_up_estimate_low", "build_up_estimate_high"})
      CHECK(selection_of(other).at(column).is_null());
}

TEST_CASE("Captured workers that pass over the trace more than once carry a warning") {
  const Scratch scratch("results");
  Json e = small();
  e["workers"] = 8;
  for (const auto& [warmup, warned] : {std::pair{8, false}, std::pair{9, true}}) {
    e["warmup_iterations"] = warmup;  // and 2 recorded ones, of 10
    const Experiment experiment = load(scratch, e);
    CHECK(document_of(experiment, experiment.runs[0], {1}, {1}).at("warnings").empty());  // dense
    const Json warnings = document_of(experiment, experiment.runs[1], {1}, {1}).at("warnings");
    CHECK(warnings.size() == (warned ? 1 : 0));
    if (warned) CHECK_THAT(warnings.at(0).get<std::string>(), ContainsSubstring("1.10 passes over the same 10 iterations"));
  }
}

TEST_CASE("A warm-up before a fall of the learning rate passes over those iterations alone") {
  const Scratch scratch("results");
  Json manifest = {{"schema_version", 1}, {"name", "fall"}, {"gradients", 400}, {"workers", 4}};
  manifest["layers"] = {{{"name", "all"}, {"shape", {400}}, {"offset", 0}, {"size", 400}}};
  for (int t = 0; t < 10; ++t) {
    manifest["iterations"].push_back(t);
    manifest["learning_rate"].push_back(t < 6 ? 0.1 : 0.01);
  }
  const std::vector<float> values(400, 1.0F);
  traces::write_trace(scratch / "fall", manifest, [&](std::int64_t, std::int64_t) -> std::span<const float> { return values; });
  Json e = small();
  e["trace"] = (scratch / "fall").string();
  e["sparsifier"] = "topk";
  e["workers"] = 4;
  e["lr_in_accumulator"] = true;
  e["compute"] = {{"forward_time_s", 0.01}, {"backward_time_s", 0.02}, {"origin", "assumed: a test"}};
  const auto warning = [&](int warmup, int iterations) -> std::string {
    e["warmup_iterations"] = warmup;
    e["iterations"] = iterations;
    const Experiment experiment = load(scratch, e);
    const Json warnings = document_of(experiment, experiment.runs.at(0), {1}, {1}).at("warnings");
    for (const Json& one : warnings)
      if (const auto text = one.get<std::string>(); text.find(" passes over ") != std::string::npos) return text;
    return "";
  };
  // Six positions before the fall: a warm-up over the last four of them and the window's first two have each once.
  CHECK(warning(4, 2).empty());
  CHECK_THAT(warning(4, 3), ContainsSubstring("1.17 passes over the same 6 iterations"));
  CHECK_THAT(warning(6, 10), ContainsSubstring("2.00 passes over the same 6 iterations"));
  CHECK_THAT(warning(6, 12), ContainsSubstring("2.33 passes over the same 6 iterations"));
  // Without a warm-up the window is all there is.
  CHECK(warning(0, 10).empty());
  CHECK_THAT(warning(0, 12), ContainsSubstring("1.20 passes over the same 10 iterations"));
}

TEST_CASE("Break-even points lie where the times cross, in both logarithms") {
  const Scratch scratch("results");
  Json e = small();
  // A baseline in buckets is no second "dense", whichever stands first.
  e["sparsifier"] = parse_json(R"([{"name":"dense","parameters":{"bucket_bytes":4096}},"dense","topk",
                                   {"name":"dense","parameters":{"bucket_bytes":1024}}])",
                               "sparsifiers");
  const Experiment experiment = load(scratch, e);
  const Json summary = summary_of(experiment, [](const std::string& name, const Json& parameters, std::int64_t n) {
    if (name == "topk") return n == 2 ? 4e-3 : 1e-3;  // against dense: 4 times as long at 2, half at 4 and at 8
    return parameters.at("bucket_bytes") == 0 ? (n == 2 ? 1e-3 : 2e-3) : 1.0;
  });
  REQUIRE(summary.at("break_even").size() == 1);
  const Json& entry = summary.at("break_even").at(0);
  CHECK(entry.at("baseline") == "dense");
  CHECK(entry.at("wins_at") == Json({4, 8}));
  CHECK(entry.at("loses_at") == Json({2}));
  REQUIRE(entry.at("points").size() == 1);
  // log 4 at n = 2, -log 2 at n = 4: two thirds of the way from log 2 to log 4.
  CHECK(entry.at("points").at(0).at("workers").get<double>() == Approx(2 * std::pow(2, 2.0 / 3)));
  CHECK(entry.at("points").at(0).at("direction") == "wins_above");
}

TEST_CASE("The lines of a summary tell apart what the sweep varies") {
  const Scratch scratch("results");
  Json e = small();
  e["density"] = {0.001, 0.01};
  e["all_gather"] = {"ring", "ring_padded"};
  const Experiment experiment = load(scratch, e);
  const Json summary =
      summary_of(experiment, [](const std::string& name, const Json&, std::int64_t) { return name == "topk" ? 1e-3 : 2e-3; });
  REQUIRE(summary.at("lines").size() == 5);
  const auto line = [&](std::size_t number) { return summary.at("lines").at(number).get<std::string>(); };
  CHECK_THAT(line(0), ContainsSubstring("target of 0.1 %") && ContainsSubstring("target of 1 %") && !ContainsSubstring("all_gather"));
  CHECK_THAT(line(2), ContainsSubstring("topk (density 0.001, all_gather ring) on crossbar-100g at every n") &&
                          ContainsSubstring("topk (density 0.01, all_gather ring_padded) on crossbar-100g at every n"));
  CHECK_THAT(line(3),
             ContainsSubstring("dense (all_gather ring) 2.00 ms") && ContainsSubstring("topk (density 0.01, all_gather ring) 1.00 ms"));
  CHECK(summary.at("lines") == summary_of(experiment, [](const std::string& name, const Json&, std::int64_t) {
                                 return name == "topk" ? 1e-3 : 2e-3;
                               }).at("lines"));
  // One value of everything: nothing to tell.
  const Json plain =
      summary_of(load(scratch, small()), [](const std::string& name, const Json&, std::int64_t) { return name == "topk" ? 1e-3 : 2e-3; });
  CHECK(plain.at("lines").at(2) == "Faster than the dense fp32 exchange: topk on crossbar-100g at every n.");
}

TEST_CASE("The effective experiment has every parameter and every default") {
  const Scratch scratch("results");
  const Experiment experiment = load(scratch, small());
  const Json& sparsifiers = experiment.effective.at("sparsifier");
  CHECK(sparsifiers.at(0) == Json{{"name", "dense"}, {"parameters", {{"bucket_bytes", 0}}}});
  CHECK(sparsifiers.at(1).at("parameters").at("generation") == "current");
  for (const auto& [key, rule] : experiment_schema().at("properties").items())
    if (rule.contains("default")) CHECK(experiment.effective.contains(key));
  const Experiment again = load(scratch, experiment.effective);
  REQUIRE(again.runs.size() == experiment.runs.size());
  for (std::size_t i = 0; i < again.runs.size(); ++i) CHECK(again.runs[i].key == experiment.runs[i].key);
}

TEST_CASE("A shipped trace is that one, whatever the working folder holds") {
  const Scratch scratch("results");
  fs::create_directories(scratch / "elsewhere/digits-cnn-8w");
  spit(scratch / "elsewhere/digits-cnn-8w/trace.json", "{}");
  spit(scratch / "experiment/e.json", small().dump());
  const fs::path before = fs::current_path();
  fs::current_path(scratch / "elsewhere");
  CHECK_NOTHROW(Experiment::load(scratch / "experiment/e.json"));
  fs::current_path(before);
  // Beside the experiment it is meant.
  fs::copy(scratch / "elsewhere/digits-cnn-8w", scratch / "experiment/digits-cnn-8w");
  CHECK_THROWS_WITH(Experiment::load(scratch / "experiment/e.json"), ContainsSubstring("experiment/digits-cnn-8w/trace.json"));
}

TEST_CASE("A result that was asked for otherwise is not reused, and not lost") {
  const Scratch scratch("resume");
  Json e = small();
  e["sparsifier"] = "topk";
  e["workers"] = {8, 16};
  e["expansion"] = "boot";
  const RunOptions options{scratch / "out", 2, false};
  REQUIRE(run_experiment(load(scratch, e), options) == 0);
  // At n = 16 auto takes boot as well: the replay is the same, the result says auto.
  e["expansion"] = "auto";
  REQUIRE(run_experiment(load(scratch, e), options) == 0);
  const std::string resumed = slurp(scratch / "out/results.csv");
  REQUIRE(run_experiment(load(scratch, e), {scratch / "fresh", 1, false}) == 0);
  CHECK(resumed == slurp(scratch / "fresh/results.csv"));
  CHECK_THAT(resumed, ContainsSubstring(",boot,auto,"));
  CHECK(files_in(scratch / "fresh/replays") == 5);  // two replays with their headers, one self-check
  CHECK(files_in(scratch / "out/replays") == 8);    // and at n = 8 that of boot, with a self-check that has nothing to compare
  // Both at once: every curve has all its points.
  e["expansion"] = {"auto", "boot"};
  CHECK(load(scratch, e).runs.size() == 4);
}

TEST_CASE("Bands: least and largest over seeds, and with the quartiles of the kernel times") {
  const Scratch scratch("bands");
  Json e = small();
  e["sparsifier"] = "topk";
  e["workers"] = 16;
  e["replicates"] = 3;
  e["expansion"] = "boot";
  REQUIRE(run_experiment(load(scratch, e), {scratch / "out", 2, false}) == 0);
  std::vector<double> build_up, low, high;
  std::vector<std::string> header;
  std::istringstream lines(slurp(scratch / "out/results.csv"));
  for (std::string line; std::getline(lines, line);) {
    std::vector<std::string> cells;
    std::istringstream stream(line);
    for (std::string cell; std::getline(stream, cell, ',');) cells.push_back(cell);
    if (header.empty()) {
      header = cells;
      continue;
    }
    const auto at = [&](const std::string& name) {
      return cells.at(static_cast<std::size_t>(std::find(header.begin(), header.end(), name) - header.begin()));
    };
    CHECK(at("seeds") == "3");
    if (at("metric_group") == "selection") {
      build_up.push_back(std::stod(at("build_up_mean")));
      low.push_back(std::stod(at("build_up_seed_low")));
      high.push_back(std::stod(at("build_up_seed_high")));
    } else if (at("metric_group") == "time") {
      CHECK(std::stod(at("selection_time_s_kernel_low")) < std::stod(at("selection_time_s")));
      CHECK(std::stod(at("selection_time_s_kernel_high")) > std::stod(at("selection_time_s")));
      CHECK(std::stod(at("iteration_time_s_kernel_low")) < std::stod(at("iteration_time_s_mean")));
      CHECK(std::stod(at("iteration_time_s_kernel_high")) > std::stod(at("iteration_time_s_mean")));
    }
  }
  REQUIRE(build_up.size() == 3);
  CHECK(*std::min_element(build_up.begin(), build_up.end()) < *std::max_element(build_up.begin(), build_up.end()));
  for (const double value : low) CHECK(value == *std::min_element(build_up.begin(), build_up.end()));
  for (const double value : high) CHECK(value == *std::max_element(build_up.begin(), build_up.end()));
}

TEST_CASE("Half a replay, another program's result and a damaged file are computed again") {
  const Scratch scratch("resume");
  Json e = small();
  e["sparsifier"] = "topk";
  e["workers"] = 2;
  const Experiment experiment = load(scratch, e);
  const RunOptions options{scratch / "out", 1, false};
  REQUIRE(run_experiment(experiment, options) == 0);
  const std::string csv = slurp(scratch / "out/results.csv");
  const fs::path run = scratch / "out/runs" / (experiment.runs[0].key + ".json");
  const fs::path records = scratch / "out/replays" / (experiment.replays[0].key + ".jsonl");
  const fs::path header = scratch / "out/replays" / (experiment.replays[0].key + ".json");
  const std::string good_run = slurp(run), good_records = slurp(records);

  SECTION("a run cut short") { spit(run, good_run.substr(0, good_run.size() / 2)); }
  SECTION("another program's run") {
    Json document = parse_json(good_run, "run");
    document["program_sha256"] = std::string(64, '0');
    document["summary"]["time"]["iteration_time_s_mean"] = 1;
    spit(run, document.dump());
  }
  SECTION("another run under this name") {
    Json document = parse_json(good_run, "run");
    document["identity"]["density"] = 0.02;
    spit(run, document.dump());
  }
  SECTION("records without the header that is written last") {
    fs::remove(run);
    fs::remove(header);
    spit(records, good_records.substr(0, good_records.find('\n') + 1));
  }
  SECTION("a header without records") {
    fs::remove(run);
    fs::remove(records);
  }
  CHECK(estimate(experiment, scratch / "out").runs_cached == 0);
  CHECK(run_experiment(experiment, options) == 0);
  CHECK(slurp(scratch / "out/results.csv") == csv);
  CHECK(slurp(run) == good_run);
  CHECK(slurp(records) == good_records);
}

TEST_CASE("Records that are missing lines fail the run instead of shortening it") {
  const Scratch scratch("resume");
  Json e = small();
  e["sparsifier"] = "topk";
  e["workers"] = {2, 4};
  const Experiment experiment = load(scratch, e);
  REQUIRE(run_experiment(experiment, {scratch / "out", 1, false}) == 0);
  const fs::path records = scratch / "out/replays" / (experiment.replays[0].key + ".jsonl");
  const std::string good = slurp(records);
  spit(records, good.substr(0, good.find('\n') + 1));
  fs::remove(scratch / "out/runs" / (experiment.runs[0].key + ".json"));
  CHECK(run_experiment(experiment, {scratch / "out", 1, false}) == 1);
  CHECK_FALSE(fs::exists(scratch / "out/runs" / (experiment.runs[0].key + ".json")));
  const std::string csv = slurp(scratch / "out/results.csv");
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 1 + 3);
  CHECK(run_experiment(experiment, {scratch / "out", 1, 0, true}) == 0);
  CHECK(slurp(records) == good);
}
