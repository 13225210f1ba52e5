#include <filesystem>
#include <memory>

#include "base/files.hpp"
#include "experiments/commands/commands.hpp"
#include "experiments/experiment.hpp"
#include "experiments/runner.hpp"
#include "sim/iteration_view.hpp"

namespace sparscale::experiments {
namespace fs = std::filesystem;

void add_timeline_command(CLI::App& program) {
  struct Options {
    std::string directory, run, perfetto, goal;
    std::int64_t iteration = -1;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command =
      program.add_subcommand("timeline", "One iteration of a run: its critical path in words, as a trace for Perfetto, as a GOAL schedule");
  command->add_option("directory", options->directory, "Result directory")->required();
  command->add_option("--run", options->run, "run_id, as in results.csv (not needed when there is one run)");
  add_number(*command, "--iteration", options->iteration, 0, most_iterations, "Recorded iteration, from 0 (default: the last one)");
  command->add_option("--perfetto", options->perfetto, "Write a trace of events in Chrome's JSON format, for ui.perfetto.dev");
  command->add_option("--goal", options->goal, "Write the exchange as a GOAL schedule, for LogGOPSim");
  command->callback([options] {
    const fs::path directory = options->directory;
    const Experiment experiment = Experiment::load(directory / "experiment.json");
    const TimedIteration timed = time_iteration(experiment, directory, options->run, options->iteration);
    if (!options->perfetto.empty()) write_file_atomic(options->perfetto, sim::event_trace(timed.log).dump() + "\n");
    if (!options->goal.empty()) write_file_atomic(options->goal, timed.goal);
    const RunPoint& run = experiment.runs.at(timed.run);
    const Json document = {{"run_id", run.key},
                           {"iteration_time_s", timed.time.iteration_time_s},
                           {"exposed_exchange_time_s", timed.time.index_exchange_time_s + timed.time.value_exchange_time_s},
                           {"overlapped_time_s", timed.time.overlapped_time_s},
                           {"critical_path", sim::critical_path(timed.log)}};
    write_output(document.dump(1) + "\n", "");
  });
}

}  // namespace sparscale::experiments
