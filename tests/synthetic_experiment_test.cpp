// Experiments that describe a synthetic trace instead of naming a folder.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/files.hpp"
#include "base/json.hpp"
#include "tests/catch.hpp"
#include "tests/command.hpp"

using namespace sparscale;
using namespace sparscale::tests;

namespace {

Json experiment(const Json& trace) {
  return {{"schema_version", 1},
          {"name", "made"},
          {"trace", trace},
          {"sparsifier", {"dense", "topk"}},
          {"density", 0.1},
          {"workers", {2, 4}},
          {"iterations", 2},
          {"platform", "crossbar-100g"},
          {"profile", "a100-modelled"},
          {"compute", {{"forward_time_s", 0.01}, {"backward_time_s", 0.02}, {"origin", "assumed: test"}}}};
}

Json description(const Json& model) { return {{"synthesize", {{"model", model}, {"workers", 4}, {"iterations", 2}, {"seed", 7}}}}; }

const Json small = {{"schema_version", 1}, {"name", "small"}, {"layers", {{{"name", "w"}, {"shape", {40, 50}}}}}};

/// The program with a cache of its own.
CommandResult run_with_cache(const Scratch& scratch, const std::string& arguments) {
  ::setenv("SPARSCALE_CACHE", (scratch / "cache").c_str(), 1);
  const CommandResult result = run_program(arguments);
  ::unsetenv("SPARSCALE_CACHE");
  return result;
}

std::vector<std::filesystem::path> cached(const Scratch& scratch) {
  std::vector<std::filesystem::path> folders;
  for (const auto& entry : std::filesystem::directory_iterator(scratch / "cache/traces")) folders.push_back(entry.path());
  return folders;
}

}  // namespace

TEST_CASE("A described trace is made once, and is that of the command with the same numbers") {
  const Scratch scratch("described");
  spit(scratch / "e.json", experiment(description(small)).dump());
  spit(scratch / "small.json", small.dump());
  const std::string run = "run '" + (scratch / "e.json").string() + "' --no-figures --jobs 1 --out '";
  REQUIRE(run_with_cache(scratch, run + (scratch / "r").string() + "'").status == 0);
  REQUIRE(cached(scratch).size() == 1);
  const std::filesystem::path folder = cached(scratch)[0];
  const auto made = std::filesystem::last_write_time(folder / "trace.json");
  REQUIRE(run_with_cache(scratch, run + (scratch / "again").string() + "'").status == 0);
  CHECK(cached(scratch).size() == 1);
  CHECK(std::filesystem::last_write_time(folder / "trace.json") == made);
  CHECK(slurp(scratch / "r/results.csv") == slurp(scratch / "again/results.csv"));
  CHECK(slurp(scratch / "r/results.csv").find(",synthetic-small,") != std::string::npos);

  REQUIRE(run_program("trace synthesize '" + (scratch / "small.json").string() + "' --workers 4 --iterations 2 --seed 7 --out '" +
                      (scratch / "t").string() + "'")
              .status == 0);
  CHECK(slurp(folder / "workers.safetensors") == slurp(scratch / "t/workers.safetensors"));
  CHECK(slurp(folder / "trace.json") == slurp(scratch / "t/trace.json"));
}

TEST_CASE("The effective experiment keeps the description, with the model of a file in it") {
  const Scratch scratch("described");
  spit(scratch / "models/small.json", small.dump());
  spit(scratch / "e.json", experiment({description("models/small.json"), "digits-cnn-8w"}).dump());
  REQUIRE(
      run_with_cache(scratch, "run '" + (scratch / "e.json").string() + "' --no-figures --out '" + (scratch / "r").string() + "'").status ==
      0);
  const Json effective = load_json(scratch / "r/experiment.json");
  CHECK(effective.at("trace").at(0).at("synthesize").at("model") == small);
  CHECK(effective.at("trace").at(0).at("synthesize").at("seed") == 7);
  CHECK(effective.at("trace").at(1) == "digits-cnn-8w");
  // It can be run elsewhere, without the file, and gives the same bytes.
  std::filesystem::remove_all(scratch / "models");
  std::filesystem::remove_all(scratch / "cache");
  std::filesystem::create_directories(scratch / "elsewhere");
  std::filesystem::rename(scratch / "r/experiment.json", scratch / "elsewhere/e.json");
  REQUIRE(run_with_cache(scratch,
                         "run '" + (scratch / "elsewhere/e.json").string() + "' --no-figures --out '" + (scratch / "again").string() + "'")
              .status == 0);
  CHECK(slurp(scratch / "r/results.csv") == slurp(scratch / "again/results.csv"));
}

TEST_CASE("A wrong description is refused with its place") {
  const Scratch scratch("described");
  const auto error_of = [&](const Json& trace) {
    spit(scratch / "e.json", experiment(trace).dump());
    const CommandResult result = run_with_cache(scratch, "check '" + (scratch / "e.json").string() + "'");
    CHECK(result.status == 2);
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    return result.err;
  };
  CHECK_THAT(error_of(description("none")), ContainsSubstring("e.json: /trace: none: expected a file, or one of the models bert-large, "));
  Json wrong = small;
  wrong["parameters"] = 1999;
  Json few = description(small);
  few["synthesize"]["gradients"] = 3;
  CHECK_THAT(error_of(few),
             ContainsSubstring("e.json: /trace/synthesize/gradients: expected at least 50: one row of every larger layer and "
                               "the others, found 3"));
  CHECK_THAT(error_of({description(small), few}), ContainsSubstring("e.json: /trace/1/synthesize/gradients: expected at least 50"));
  CHECK_THAT(error_of({description(small), description(wrong)}),
             ContainsSubstring("/trace/1/synthesize/model: /parameters: expected 2000 as the layers have, found 1999"));
  wrong = small;
  wrong["layers"] = Json::array();
  CHECK_THAT(error_of(description(wrong)), ContainsSubstring("/trace/synthesize/model: /layers: "));
  Json none = description(small);
  none["synthesize"]["workers"] = 0;
  CHECK_THAT(error_of(none), ContainsSubstring("/trace"));
}

TEST_CASE("A damaged cache is named, a trace without trace.json and what killed processes left are made anew") {
  const Scratch scratch("described");
  spit(scratch / "e.json", experiment(description(small)).dump());
  const std::string check = "check '" + (scratch / "e.json").string() + "'";
  REQUIRE(run_with_cache(scratch, check).status == 0);
  const std::filesystem::path folder = cached(scratch).at(0);
  const std::string data = slurp(folder / "workers.safetensors"), manifest = slurp(folder / "trace.json");

  std::string wrong = data;
  wrong.back() = static_cast<char>(wrong.back() ^ 1);
  spit(folder / "workers.safetensors", wrong);
  const CommandResult refused = run_with_cache(scratch, check);
  CHECK(refused.status == 2);
  CHECK(std::count(refused.err.begin(), refused.err.end(), '\n') == 1);
  CHECK_THAT(refused.err, ContainsSubstring("(the cached synthetic trace is damaged: delete its folder to have it made again)"));

  std::filesystem::remove(folder / "trace.json");
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  const std::string left = folder.string() + ".tmp." + host + ".";
  constexpr int no_process = 2147483646;  // beyond the numbers that Linux gives
  spit(left + std::to_string(no_process) + "/workers.safetensors", "x");
  spit(left + std::to_string(::getpid()) + "/workers.safetensors", "x");  // a process that is there
  spit(folder.string() + ".tmp.elsewhere." + std::to_string(no_process) + "/workers.safetensors", "x");
  REQUIRE(run_with_cache(scratch, check).status == 0);
  CHECK(slurp(folder / "workers.safetensors") == data);
  CHECK(slurp(folder / "trace.json") == manifest);
  CHECK_FALSE(std::filesystem::exists(left + std::to_string(no_process)));
  CHECK(std::filesystem::exists(left + std::to_string(::getpid())));
  CHECK(cached(scratch).size() == 3);
}
