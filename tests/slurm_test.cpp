// A sweep as jobs: with an sbatch of our own that runs them at once, and state that says what is missing and failed.
#include <cstdlib>

#include "base/json.hpp"
#include "tests/catch.hpp"
#include "tests/command.hpp"

using namespace sparscale;
using namespace sparscale::tests;
namespace fs = std::filesystem;

namespace {

const char* const experiment = R"({"schema_version":1,"name":"jobs","trace":"digits-cnn-8w","sparsifier":["dense","topk","micro"],
  "density":0.01,"workers":[2,4,16],"iterations":2,"platform":["crossbar-100g","nvlink8-ib"],"profile":"cpu-epyc-zen5-1t"})";

/// An sbatch that notes how it was called, runs every task of the array at once, last task first, and answers like the real one.
const char* const fake_sbatch = R"(#!/usr/bin/env bash
set -eu
log=${FAKE_SBATCH_LOG:?}
echo "$*" >> "$log"
for last; do :; done
tasks=
for word; do case $word in --array=0-*) tasks=${word#--array=0-};; esac; done
if [ -n "$tasks" ]; then
  for ((i = tasks; i >= 0; --i)); do SLURM_ARRAY_TASK_ID=$i bash "$last" >> "$log.out" 2>&1 || true; done
else
  bash "$last" >> "$log.out" 2>&1 || true
fi
echo "$((100 + $(wc -l < "$log")));cluster"
)";

struct FakeSlurm {
  explicit FakeSlurm(const Scratch& scratch) : old_path(std::getenv("PATH")) {
    spit(scratch / "bin/sbatch", fake_sbatch);
    fs::permissions(scratch / "bin/sbatch", fs::perms::owner_all);
    ::setenv("PATH", ((scratch / "bin").string() + ":" + old_path).c_str(), 1);
    ::setenv("FAKE_SBATCH_LOG", (scratch / "sbatch.log").c_str(), 1);
  }
  ~FakeSlurm() {
    ::setenv("PATH", old_path.c_str(), 1);
    ::unsetenv("FAKE_SBATCH_LOG");
  }
  std::string old_path;
};

std::size_t count(const fs::path& folder, const std::string& extension) {
  std::size_t files = 0;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code)) files += entry.path().extension() == extension;
  return files;
}

}  // namespace

TEST_CASE("Jobs of Slurm give the results of a run on one machine, byte by byte") {
  const Scratch scratch("slurm");
  spit(scratch / "e.json", experiment);
  const std::string file = "'" + (scratch / "e.json").string() + "'", out = "'" + (scratch / "out").string() + "'";
  const FakeSlurm slurm(scratch);

  // The scripts can be looked at first; nothing is submitted.
  const CommandResult dry =
      run_program("run " + file + " --out " + out + " --slurm --dry-run --tasks 4 -- --partition=short '--comment=a b'");
  INFO(dry.err);
  REQUIRE(dry.status == 0);
  CHECK_FALSE(fs::exists(scratch / "sbatch.log"));
  CHECK_THAT(dry.out, ContainsSubstring("sbatch --parsable --job-name=jobs-replays") && ContainsSubstring("--array=0-3") &&
                          ContainsSubstring("--dependency=afterany:JOB_OF_replays") &&
                          ContainsSubstring("--partition=short '--comment=a b'"));
  const std::string script = slurp(scratch / "out/slurm/replays.sh");
  CHECK(script.starts_with("#!/usr/bin/env bash\n"));
  CHECK_THAT(script, ContainsSubstring("--stage replays --no-figures --share \"$SLURM_ARRAY_TASK_ID/4\""));
  const CommandResult before = run_program("status " + out);
  CHECK(before.status == 3);
  CHECK_THAT(before.out, ContainsSubstring("runs: 18, 0 done, 0 failed, 18 missing"));

  // One share does its part and no more.
  CHECK(run_program("run " + file + " --out " + out + " --stage replays --share 1/4").status == 0);
  const std::size_t some = count(scratch / "out/replays", ".jsonl");
  CHECK(some > 0);
  CHECK(some < 9);
  CHECK_FALSE(fs::exists(scratch / "out/results.csv"));
  CHECK_THAT(run_program("status " + out).out, ContainsSubstring("replays: 9, " + std::to_string(some) + " done"));

  const CommandResult submitted = run_program("run " + file + " --out " + out + " --slurm --no-figures --tasks 4 -- --partition=short");
  INFO(slurp(scratch / "sbatch.log.out"));
  REQUIRE(submitted.status == 0);
  CHECK_THAT(submitted.out, ContainsSubstring("job 101: replays, 4 tasks") && ContainsSubstring("job 102: timing, 4 tasks") &&
                                ContainsSubstring("job 103: results"));
  const std::string log = slurp(scratch / "sbatch.log");
  CHECK_THAT(log, ContainsSubstring("--dependency=afterany:101") && ContainsSubstring("--dependency=afterany:102"));
  CHECK(run_program("status " + out).status == 0);
  CHECK(run_program("run " + file + " --no-figures --out '" + (scratch / "local").string() + "'").status == 0);
  CHECK(slurp(scratch / "out/results.csv") == slurp(scratch / "local/results.csv"));
  CHECK(slurp(scratch / "out/summary.json") == slurp(scratch / "local/summary.json"));
  CHECK(count(scratch / "out/runs", ".json") == 18);

  // Nothing missing: only the results are written again.
  fs::remove(scratch / "out/results.csv");
  CHECK(run_program("status " + out).status == 3);
  const CommandResult again = run_program("run " + file + " --out " + out + " --slurm --no-figures");
  CHECK_THAT(again.out, ContainsSubstring("job 104: results") && !ContainsSubstring("replays"));
  CHECK(run_program("status " + out).status == 0);
}

TEST_CASE("What fails in a job is told with its reason, and the rest is done") {
  const Scratch scratch("slurm");
  // DGC refuses these parameters; as many workers are not tried beforehand.
  spit(scratch / "e.json", R"({"schema_version":1,"name":"jobs","trace":"digits-cnn-8w",
    "sparsifier":["dense",{"name":"dgc","parameters":{"warmup_epochs":1}}],"density":0.01,"workers":128,"iterations":1,
    "platform":["crossbar-100g","nvlink8-ib"],"profile":"cpu-epyc-zen5-1t"})");
  const std::string file = "'" + (scratch / "e.json").string() + "'", out = "'" + (scratch / "out").string() + "'";
  const FakeSlurm slurm(scratch);
  REQUIRE(run_program("run " + file + " --out " + out + " --slurm --no-figures").status == 0);
  const CommandResult status = run_program("status " + out);
  CHECK(status.status == 1);
  CHECK_THAT(status.out, ContainsSubstring("runs: 4, 2 done, 2 failed, 0 missing"));
  CHECK_THAT(status.out, ContainsSubstring("failed: replay of dgc at n = 128 on digits-cnn-8w (2 runs): iterations_per_epoch: expected"));
  const Json json = parse_json(run_program("status --json " + out).out, "status");
  CHECK(json.at("done") == 2);
  CHECK(json.at("failures").at(0).at("runs") == 2);
  CHECK_THAT(slurp(scratch / "out/results.csv"), ContainsSubstring(",dense,") && !ContainsSubstring(",dgc,"));
}

TEST_CASE("Wrong use of jobs is refused") {
  const Scratch scratch("slurm");
  spit(scratch / "e.json", experiment);
  const std::string run = "run '" + (scratch / "e.json").string() + "' --out '" + (scratch / "out").string() + "' ";
  const auto refused = [&](const std::string& arguments, const std::string& text) {
    const CommandResult result = run_program(run + arguments);
    CHECK(result.status == 2);
    CHECK_THAT(result.err, ContainsSubstring(text));
    CHECK_FALSE(fs::exists(scratch / "out"));
  };
  refused("--stage runs --share 4/4", "--share: expected integer >= 0 <= 3");
  refused("--stage runs --share 4", "--share: expected I/M");
  refused("--share 0/2", "--share: expected --stage replays or runs");
  refused("--stage runs --force", "--stage: expected neither --force");
  refused("-- --partition=short", "sbatch: expected options for sbatch with --slurm only");
  refused("--dry-run", "--slurm");
  refused("--stage runs", "experiment.json");  // of a directory that was not prepared
  const CommandResult none = run_program("status '" + scratch.path().string() + "'");
  CHECK(none.status == 2);
  CHECK_THAT(none.err, ContainsSubstring("a result directory with experiment.json"));
  // Without sbatch.
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", "/nonexistent", 1);
  const CommandResult missing = run_program(run + "--slurm");
  ::setenv("PATH", path.c_str(), 1);
  CHECK(missing.status == 1);
  CHECK_THAT(missing.err, ContainsSubstring("cannot start sbatch"));
}
