#include <cstdio>
#include <filesystem>
#include <memory>
#include <thread>

#include "base/error.hpp"
#include "experiments/commands/commands.hpp"
#include "experiments/experiment.hpp"
#include "experiments/runner.hpp"

namespace sparscale::experiments {
namespace fs = std::filesystem;

void add_run_command(CLI::App& program) {
  struct Options {
    std::string experiment, out;
    int jobs = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    bool force = false, no_figures = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand("run", "Run a sweep into a result directory, resuming what is missing, and draw its figures");
  command->add_option("experiment", options->experiment, "Experiment file, or the name of a ready-made one")->required();
  command->add_option("--out", options->out, "Result directory (default: results/NAME)");
  add_number(*command, "--jobs", options->jobs, 1, 4096, "Runs at the same time (default: the number of cores)");
  command->add_flag("--force", options->force, "Compute again what is there already");
  command->add_flag("--no-figures", options->no_figures, "Leave the figures for 'sparscale plot'");
  command->callback([options] {
    const Experiment experiment = Experiment::load(find_experiment(options->experiment));
    RunOptions run;
    run.directory = options->out.empty() ? fs::path("results") / experiment.name : fs::path(options->out);
    run.jobs = options->jobs;
    run.force = options->force;
    const std::size_t failed = run_experiment(experiment, run);
    int plotted = 0;
    std::string reason;
    if (!options->no_figures && failed < experiment.runs.size()) try {
        plotted = run_analysis_program("plot.py", {run.directory.string(), "--quiet"}, true);
      } catch (const RunError& error) {
        plotted = 1;
        reason = std::string(": ") + error.what();
      }
    std::printf("Results: %s\n", (run.directory / "results.csv").c_str());
    if (!options->no_figures && plotted == 0) std::printf("Figures: %s\n", (run.directory / "figures").c_str());
    for (const std::string& line : summary_lines(run.directory)) std::printf("%s\n", line.c_str());
    if (experiment.effective.contains("claims") && failed < experiment.runs.size())
      if (const int status = run_analysis_program("claims.py", {run.directory.string(), "--quiet"}, false); status != 0)
        throw CLI::RuntimeError(status == 2 ? 2 : 1);
    if (failed > 0) throw RunError(std::to_string(failed) + " of " + std::to_string(experiment.runs.size()) + " runs failed");
    if (plotted != 0)
      throw RunError("the figures could not be drawn; the results are complete (sparscale plot " + run.directory.string() + ")" + reason);
  });
}

}  // namespace sparscale::experiments
