#include <cstdio>
#include <memory>

#include "base/error.hpp"
#include "base/files.hpp"
#include "experiments/commands/commands.hpp"
#include "experiments/experiment.hpp"
#include "experiments/runner.hpp"

namespace sparscale::experiments {

void add_status_command(CLI::App& program) {
  struct Options {
    std::string directory;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand(
      "status",
      "Say which runs of a result directory are done, missing or failed, and why (exit 0 all done, 1 some failed, 3 some missing)");
  command->add_option("directory", options->directory, "Result directory")->required();
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options] {
    const std::filesystem::path directory = options->directory;
    if (!path_exists(directory / "experiment.json"))
      throw InputError(directory.string(), "", "a result directory with experiment.json", "none");
    const Status now = status(Experiment::load(directory / "experiment.json"), directory);
    if (options->json) {
      Json failures = Json::array();
      for (const Status::Failure& failure : now.failures)
        failures.push_back({{"what", failure.what}, {"reason", failure.reason}, {"runs", failure.runs}});
      const Json document = {{"runs", now.runs},
                             {"done", now.done},
                             {"failed", now.failed},
                             {"missing", now.missing},
                             {"replays", now.replays},
                             {"replays_done", now.replays_done},
                             {"results_written", now.results_written},
                             {"failures", failures}};
      write_output(document.dump(1) + "\n", "");
    } else {
      std::string text = "runs: " + std::to_string(now.runs) + ", " + std::to_string(now.done) + " done, " + std::to_string(now.failed) +
                         " failed, " + std::to_string(now.missing) + " missing\nreplays: " + std::to_string(now.replays) + ", " +
                         std::to_string(now.replays_done) +
                         " done\nresults.csv: " + (now.results_written ? "has all runs" : "not written, or not with all runs") + "\n";
      for (const Status::Failure& failure : now.failures)
        text += "failed: " + failure.what + " (" + std::to_string(failure.runs) + " runs): " + failure.reason + "\n";
      write_output(text, "");
    }
    if (now.failed > 0) throw CLI::RuntimeError(1);
    if (now.missing > 0 || !now.results_written) throw CLI::RuntimeError(3);
  });
}

}  // namespace sparscale::experiments
