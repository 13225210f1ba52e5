// A small experiment through every layer: results, resumption, figures.
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <set>
#include <thread>

#include "base/files.hpp"
#include "base/json.hpp"
#include "tests/catch.hpp"
#include "tests/command.hpp"

using namespace sparscale;
using namespace sparscale::tests;
namespace fs = std::filesystem;

namespace {

const char* const experiment = R"({"schema_version":1,"name":"small","trace":"digits-cnn-8w",
  "sparsifier":["dense","dense_fp16","topk","hard_threshold","micro",{"name":"exdyna","parameters":{"micro_rule":"intended"}}],
  "density":0.01,"workers":[2,8,16],"warmup_iterations":3,"iterations":3,
  "platform":["crossbar-100g","nvlink8-ib"],"profile":"cpu-epyc-zen5-1t"})";

std::vector<std::vector<std::string>> rows_of(const std::string& csv) {
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> row(1);
  bool quoted = false;
  for (std::size_t i = 0; i < csv.size(); ++i) {
    const char c = csv[i];
    if (c == '"') {
      if (quoted && i + 1 < csv.size() && csv[i + 1] == '"')
        row.back() += csv[++i];
      else
        quoted = !quoted;
    } else if (c == ',' && !quoted) {
      row.emplace_back();
    } else if (c == '\n' && !quoted) {
      rows.push_back(row);
      row.assign(1, "");
    } else {
      row.back() += c;
    }
  }
  return rows;
}

std::size_t column(const std::vector<std::vector<std::string>>& rows, const std::string& name) {
  for (std::size_t i = 0; i < rows.front().size(); ++i)
    if (rows.front()[i] == name) return i;
  FAIL("no column " << name);
  return 0;
}

}  // namespace

TEST_CASE("A sweep gives the same bytes for any number of jobs, resumes, and draws figures that show something") {
  const Scratch scratch("sweep");
  spit(scratch / "small.json", experiment);
  const std::string file = "'" + (scratch / "small.json").string() + "'";
  const fs::path one = scratch / "one", two = scratch / "two";

  const CommandResult first = run_program("run " + file + " --jobs 1 --out '" + one.string() + "'");
  INFO(first.err);
  REQUIRE(first.status == 0);
  const CommandResult second = run_program("run " + file + " --jobs 2 --no-figures --out '" + two.string() + "'");
  REQUIRE(second.status == 0);
  const std::string csv = slurp(one / "results.csv");
  CHECK(csv == slurp(two / "results.csv"));
  CHECK(slurp(one / "summary.json") == slurp(two / "summary.json"));

  // 6 sparsifiers x 3 n x 2 platforms, three metric groups each.
  const auto rows = rows_of(csv);
  REQUIRE(rows.size() == 1 + 36 * 3);
  std::set<std::string> runs;
  for (std::size_t i = 1; i < rows.size(); ++i) {
    REQUIRE(rows[i].size() == rows[0].size());
    runs.insert(rows[i][column(rows, "run_id")]);
    const bool projected = rows[i][column(rows, "workers")] == "16" && !rows[i][column(rows, "sparsifier")].starts_with("dense");
    CHECK(rows[i][column(rows, "counts_origin")] == (projected ? "projected" : "captured"));
    CHECK(rows[i][column(rows, "kernel_times_origin")] == "measured");
    if (rows[i][column(rows, "metric_group")] != "time") continue;
    double phases = 0;
    for (const char* phase :
         {"forward_backward_time_s", "selection_time_s", "index_exchange_time_s", "value_exchange_time_s", "other_time_s"})
      phases += std::stod(rows[i][column(rows, phase)]);
    const double total = std::stod(rows[i][column(rows, "iteration_time_s_mean")]);
    CHECK(phases == Approx(total).epsilon(1e-12));
    const double n = std::stod(rows[i][column(rows, "workers")]);
    CHECK(std::stod(rows[i][column(rows, "speed_up")]) ==
          Approx(n * std::stod(rows[i][column(rows, "forward_backward_time_s")]) / total).epsilon(1e-12));
    CHECK(total > 0.002385);  // never below forward + backward
  }
  CHECK(runs.size() == 36);
  for (const std::string& run : runs) CHECK(fs::exists(one / "runs" / (run + ".json")));
  // A platform sweep replays once.
  std::size_t replays = 0;
  for (const auto& entry : fs::directory_iterator(one / "replays")) replays += entry.path().extension() == ".jsonl" ? 1 : 0;
  CHECK(replays == 18);
  for (const char* name : {"experiment.json", "environment.json", "summary.json", "reproduce.sh"}) CHECK(fs::exists(one / name));
  CHECK(load_json(one / "summary.json").at("lines").size() == 5);
  CHECK_THAT(first.out, ContainsSubstring("Figures: "));

  // A second call computes nothing and changes nothing.
  const auto written = fs::last_write_time(one / "runs" / (*runs.begin() + ".json"));
  const CommandResult again = run_program("run " + file + " --no-figures --out '" + one.string() + "'");
  CHECK(again.status == 0);
  CHECK(again.err.empty());
  CHECK(fs::last_write_time(one / "runs" / (*runs.begin() + ".json")) == written);
  CHECK(slurp(one / "results.csv") == csv);
  // What is missing is computed again, and only that.
  fs::remove(one / "runs" / (*runs.begin() + ".json"));
  CHECK(run_program("run " + file + " --no-figures --out '" + one.string() + "'").status == 0);
  CHECK(slurp(one / "results.csv") == csv);

  // The effective experiment stands for the same runs.
  CHECK(run_program("run '" + (one / "experiment.json").string() + "' --no-figures --out '" + (scratch / "three").string() + "'").status ==
        0);
  CHECK(slurp(scratch / "three/results.csv") == csv);
}

TEST_CASE("Every figure is drawn in every format") {
  const Scratch scratch("figures");
  spit(scratch / "small.json", experiment);
  const CommandResult run = run_program("run '" + (scratch / "small.json").string() + "' --out '" + (scratch / "out").string() + "'");
  INFO(run.err);
  REQUIRE(run.status == 0);
  for (const char* figure : {"build_up", "breakdown-platform_crossbar_100g", "breakdown-platform_nvlink8_ib", "speed_up"}) {
    const fs::path base = scratch / "out/figures";
    const std::string pdf = slurp(base / (std::string(figure) + ".pdf")), svg = slurp(base / (std::string(figure) + ".svg")),
                      png = slurp(base / (std::string(figure) + ".png")), csv = slurp(base / (std::string(figure) + ".csv")),
                      caption = slurp(base / (std::string(figure) + ".txt"));
    INFO(figure);
    CHECK(pdf.starts_with("%PDF-"));
    CHECK_THAT(pdf, ContainsSubstring("/Type /Font"));
    CHECK(svg.find("<svg") != std::string::npos);
    // Curves or bars: many drawn paths, not just axes.
    std::size_t paths = 0;
    for (std::size_t at = svg.find("<path "); at != std::string::npos; at = svg.find("<path ", at + 1)) ++paths;
    CHECK(paths > 40);
    CHECK(png.substr(1, 3) == "PNG");
    CHECK(png.size() > 20000);
    CHECK(std::count(csv.begin(), csv.end(), '\n') > 6);
    CHECK_THAT(caption, ContainsSubstring("digits-cnn-8w"));
  }
}

TEST_CASE("A run that fails is named, the others are finished, the exit status is 1") {
  const Scratch scratch("failing");
  // DGC refuses these parameters, which the check before the run does not try at as many workers.
  spit(scratch / "e.json",
       R"({"schema_version":1,"name":"failing","trace":"digits-cnn-8w",
    "sparsifier":["dense",{"name":"dgc","parameters":{"warmup_epochs":1}}],"density":0.01,
    "workers":128,"iterations":1,"platform":"crossbar-100g","profile":"cpu-epyc-zen5-1t"})");
  const std::string out = " --out '" + (scratch / "out").string() + "'";
  const CommandResult result = run_program("run '" + (scratch / "e.json").string() + "' --no-figures" + out);
  CHECK(result.status == 1);
  CHECK_THAT(result.err, ContainsSubstring("failed: replay of dgc at n = 128"));
  CHECK_THAT(result.err, ContainsSubstring("1 of 2 runs failed"));
  CHECK(rows_of(slurp(scratch / "out/results.csv")).size() == 1 + 3);
}

TEST_CASE("A directory holds one experiment") {
  const Scratch scratch("owner");
  Json e = parse_json(R"({"schema_version":1,"name":"mine","trace":"digits-cnn-8w","sparsifier":["dense","topk"],"density":0.01,
    "workers":2,"iterations":2,"platform":"crossbar-100g","profile":"cpu-epyc-zen5-1t"})",
                      "mine");
  const std::string out = " --no-figures --out '" + (scratch / "out").string() + "'";
  const auto run = [&](const Json& document) {
    spit(scratch / "e.json", document.dump());
    return run_program("run '" + (scratch / "e.json").string() + "'" + out);
  };
  REQUIRE(run(e).status == 0);
  const std::string csv = slurp(scratch / "out/results.csv");
  Json other = e;
  other["name"] = "yours";
  const CommandResult refused = run(other);
  CHECK(refused.status == 2);
  CHECK_THAT(refused.err, ContainsSubstring("the experiment \"yours\", found results of \"mine\""));
  CHECK(slurp(scratch / "out/results.csv") == csv);
  CHECK(load_json(scratch / "out/experiment.json").at("name") == "mine");
  // A changed experiment that fails does not leave the results of the old one beside it.
  Json changed = e;
  changed["sparsifier"] = parse_json(R"([{"name":"dgc","parameters":{"warmup_epochs":1}}])", "sparsifier");
  changed["workers"] = 128;
  CHECK(run(changed).status == 1);
  CHECK(rows_of(slurp(scratch / "out/results.csv")).size() == 1);
  REQUIRE(run(e).status == 0);
  CHECK(slurp(scratch / "out/results.csv") == csv);
}

TEST_CASE("A platform's latency changes what depends on it, and nothing is replayed for it") {
  const Scratch scratch("latency");
  Json platform = load_json(fs::path(SPARSCALE_SOURCE_DIRECTORY) / "platforms/catalogue/crossbar-100g.json");
  platform["name"] = "mine";
  spit(scratch / "p.json", platform.dump());
  spit(scratch / "e.json", R"({"schema_version":1,"name":"mine","trace":"digits-cnn-8w","sparsifier":"dense","density":0.01,
    "workers":4,"iterations":1,"platform":"p.json","profile":"cpu-epyc-zen5-1t"})");
  const std::string command = "run '" + (scratch / "e.json").string() + "' --no-figures --out '" + (scratch / "out").string() + "'";
  const auto exchange_time_s = [&] {
    const auto rows = rows_of(slurp(scratch / "out/results.csv"));
    return std::stod(rows.at(2).at(column(rows, "value_exchange_time_s")));
  };
  REQUIRE(run_program(command).status == 0);
  const double before = exchange_time_s();
  platform["node"]["nics"]["latency_us"] = platform["node"]["nics"]["latency_us"].get<double>() + 10;
  spit(scratch / "p.json", platform.dump());
  const CommandResult again = run_program(command);
  REQUIRE(again.status == 0);
  CHECK_THAT(again.err, !ContainsSubstring("replays"));
  // A ring all-reduce of 4 workers has 6 steps, each over two NICs.
  CHECK(exchange_time_s() - before == Approx(6 * 2 * 10e-6).epsilon(1e-9));
}

TEST_CASE("Closed standard streams and missing figures do not harm the results") {
  const Scratch scratch("streams");
  spit(scratch / "e.json", R"({"schema_version":1,"name":"streams","trace":"digits-cnn-8w","sparsifier":["dense","topk"],"density":0.01,
    "workers":[2,4],"iterations":2,"platform":"crossbar-100g","profile":"cpu-epyc-zen5-1t"})");
  const std::string command = std::string("'") + SPARSCALE_PROGRAM + "' run '" + (scratch / "e.json").string() + "' --no-figures --out '";
  CHECK(std::system((command + (scratch / "none").string() + "' <&- >&- 2>&-").c_str()) != 0);  // the summary went nowhere
  CHECK(std::system((command + (scratch / "some").string() + "' <&- >/dev/null 2>&-").c_str()) == 0);
  const CommandResult normal =
      run_program("run '" + (scratch / "e.json").string() + "' --no-figures --out '" + (scratch / "all").string() + "'");
  REQUIRE(normal.status == 0);
  CHECK(slurp(scratch / "none/results.csv") == slurp(scratch / "all/results.csv"));
  CHECK(slurp(scratch / "some/results.csv") == slurp(scratch / "all/results.csv"));
  for (const auto& entry : fs::recursive_directory_iterator(scratch / "none"))
    if (entry.path().extension() == ".json") CHECK_NOTHROW(load_json(entry.path()));

  // Without matplotlib the results are there, and are said to be.
  ::setenv("SPARSCALE_PYTHON", "/bin/false", 1);
  const CommandResult plain = run_program("run '" + (scratch / "e.json").string() + "' --out '" + (scratch / "plain").string() + "'");
  ::unsetenv("SPARSCALE_PYTHON");
  CHECK(plain.status == 1);
  CHECK_THAT(plain.out, ContainsSubstring("Results: "));
  CHECK_THAT(plain.err, ContainsSubstring("the results are complete"));
  CHECK_THAT(plain.err, ContainsSubstring("/bin/false"));
}

TEST_CASE("A killed run leaves no process behind") {
  const Scratch scratch("killed");
  spit(scratch / "e.json", R"({"schema_version":1,"name":"killed","trace":"digits-cnn-8w","sparsifier":["topk","micro"],"density":0.01,
    "workers":256,"iterations":100000,"platform":"crossbar-100g","profile":"cpu-epyc-zen5-1t"})");
  const pid_t program = ::fork();
  if (program == 0) {
    const std::string file = (scratch / "e.json").string(), out = (scratch / "out").string();
    if (std::freopen("/dev/null", "w", stdout) == nullptr || std::freopen("/dev/null", "w", stderr) == nullptr) ::_exit(1);
    ::execl(SPARSCALE_PROGRAM, SPARSCALE_PROGRAM, "run", file.c_str(), "--out", out.c_str(), "--jobs", "2", nullptr);
    ::_exit(127);
  }
  const auto children = [&] {
    std::vector<std::string> ids;
    std::ifstream stream("/proc/" + std::to_string(program) + "/task/" + std::to_string(program) + "/children");
    for (std::string id; stream >> id;) ids.push_back(id);
    return ids;
  };
  const auto wait_until = [](const auto& condition) {
    for (int i = 0; i < 1000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return condition();
  };
  CHECK(wait_until([&] { return children().size() == 2; }));
  const std::vector<std::string> ids = children();
  ::kill(program, SIGKILL);
  int status = 0;
  ::waitpid(program, &status, 0);
  const auto gone = [](const std::string& id) {
    std::ifstream stream("/proc/" + id + "/stat");
    std::string pid, name, state;
    return !(stream >> pid >> name >> state) || state == "Z";
  };
  for (const std::string& id : ids) CHECK(wait_until([&] { return gone(id); }));
}

TEST_CASE("A result directory with files of the user's own is complete: it is reproduced elsewhere, when the files are gone") {
  const Scratch scratch("moved");
  const fs::path data = fs::path(SPARSCALE_SOURCE_DIRECTORY);
  const fs::path project = scratch / "project", moved = scratch / "elsewhere/checkout";
  Json platform = load_json(data / "platforms/catalogue/crossbar-100g.json"),
       profile = load_json(data / "kernels/profiles/v100-modelled.json");
  platform["name"] = "my-net";
  profile["name"] = "my/gpu";
  spit(project / "common/net.json", platform.dump());
  spit(project / "gpu.json", profile.dump());
  fs::create_directories(project / "traces");
  fs::copy(data / "traces/samples/digits-cnn-8w", project / "traces/mine", fs::copy_options::recursive);
  spit(project / "e.json",
       R"({"schema_version":1,"name":"own","trace":"traces/mine","sparsifier":["dense","topk"],"density":0.01,"workers":[2,8],
    "warmup_iterations":1,"iterations":2,"platform":["common/net.json","crossbar-10g"],"profile":["gpu.json","gpu.json+topk.radix"],
    "exclude":[{"platform":"common/net.json","workers":2}]})");
  const auto run = [](const fs::path& file, const fs::path& out) {
    const CommandResult result = run_program("run '" + file.string() + "' --no-figures --out '" + out.string() + "'");
    INFO(result.err);
    REQUIRE(result.status == 0);
  };
  run(project / "e.json", project / "results/own");
  const std::string csv = slurp(project / "results/own/results.csv");
  CHECK(rows_of(csv).size() == 1 + 3 * 2 * 2 * 3);  // 3 of (platform, workers) x 2 sparsifiers x 2 profiles, 3 groups each

  const Json written = load_json(project / "results/own/experiment.json"),
             environment = load_json(project / "results/own/environment.json");
  CHECK(written.at("trace") == "../../traces/mine");
  CHECK(written.at("platform") == Json{"inputs/platforms/my-net.json", "crossbar-10g"});
  CHECK(written.at("profile") == Json{"inputs/profiles/my_gpu.json", "inputs/profiles/my_gpu.json+topk.radix"});
  CHECK(written.at("exclude").at(0).at("platform") == "inputs/platforms/my-net.json");
  CHECK(environment.at("inputs_sha256").at("platform inputs/platforms/my-net.json") == sha256_hex_of_file(project / "common/net.json"));
  CHECK(slurp(project / "results/own/inputs/profiles/my_gpu.json") == profile.dump());
  for (const char* name : {"experiment.json", "environment.json", "reproduce.sh"})
    CHECK_THAT(slurp(project / "results/own" / name), !ContainsSubstring(scratch.path().string()));

  // As a checkout elsewhere, without the files that were copied.
  fs::create_directories(moved.parent_path());
  fs::rename(project, moved);
  fs::remove_all(moved / "common");
  fs::remove(moved / "gpu.json");
  const fs::path out = moved / "results/own";
  CHECK_THAT(run_program("status '" + out.string() + "'").out, ContainsSubstring("runs: 12, 12 done, 0 failed, 0 missing"));
  run(out / "experiment.json", out);  // nothing to do, and nothing is another
  CHECK(slurp(out / "results.csv") == csv);
  CHECK(load_json(out / "experiment.json") == written);
  run(out / "experiment.json", scratch / "again");  // what reproduce.sh does
  CHECK(slurp(scratch / "again/results.csv") == csv);

  // Two different profiles of one name could not both be kept.
  spit(moved / "gpu.json", profile.dump());
  profile["origin"] = "measured";
  spit(moved / "other.json", profile.dump());
  spit(moved / "two.json", R"({"schema_version":1,"name":"two","trace":"traces/mine","sparsifier":"topk","density":0.01,"workers":2,
    "iterations":1,"platform":"crossbar-10g","profile":["gpu.json","other.json+topk.radix"]})");
  const CommandResult refused =
      run_program("run '" + (moved / "two.json").string() + "' --no-figures --out '" + (scratch / "two").string() + "'");
  CHECK(refused.status == 2);
  CHECK_THAT(refused.err, ContainsSubstring("expected a profile with a name of its own in it"));
  CHECK_FALSE(fs::exists(scratch / "two/experiment.json"));
}
