// The ready-made experiments: what their sources claim comes out, or differs for the stated reason, and their pages say the same.
#include <cstdlib>

#include "base/files.hpp"
#include "base/json.hpp"
#include "experiments/experiment.hpp"
#include "tests/catch.hpp"
#include "tests/command.hpp"

using namespace sparscale;
using namespace sparscale::tests;

TEST_CASE("The claims of the ready-made experiments come out as their pages say") {
  const Scratch scratch("ready-made");
  ::setenv("SPARSCALE_CACHE", (scratch / "cache").c_str(), 1);
  std::size_t claimed = 0;
  for (const std::string& name : experiments::experiment_names()) {
    INFO(name);
    if (!load_json(experiments::find_experiment(name)).contains("claims")) continue;
    ++claimed;
    const std::string directory = (scratch / name).string();
    const CommandResult run = run_program("run " + name + " --no-figures --out '" + directory + "'");
    INFO(run.out << run.err);
    REQUIRE(run.status == 0);
    CHECK(run_program("claims --strict '" + directory + "'").status == 0);
    CHECK(slurp(scratch / name / "tables/claims.csv").find(",not run,") == std::string::npos);
    CHECK(std::system(("python3 '" SPARSCALE_SOURCE_DIRECTORY "/scripts/update-experiment-pages.py' --check '" + directory + "' >/dev/null").c_str()) == 0);
    std::filesystem::remove_all(scratch / "cache");  // one trace of a large model at a time
    std::filesystem::remove_all(directory);
  }
  CHECK(claimed >= 10);
  ::unsetenv("SPARSCALE_CACHE");
}
