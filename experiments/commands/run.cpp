#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <thread>

#include "base/error.hpp"
#include "experiments/commands/commands.hpp"
#include "experiments/experiment.hpp"
#include "experiments/runner.hpp"
#include "experiments/slurm.hpp"

namespace sparscale::experiments {
namespace fs = std::filesystem;

void add_run_command(CLI::App& program) {
  struct Options {
    std::string experiment, out;
    int jobs = static_cast<int>(std::max(1U, std::thread::hardware_concurrency())), threads = 0;
    bool force = false, no_figures = false, slurm = false;
    std::string stage = "all", share = "0/1";
    SlurmOptions slurm_options;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand("run", "Run a sweep into a result directory, resuming what is missing, and draw its figures");
  command->add_option("experiment", options->experiment, "Experiment file, or the name of a ready-made one")->required();
  command->add_option("--out", options->out, "Result directory (default: results/NAME)");
  add_number(*command, "--jobs", options->jobs, 1, 4096, "Runs at the same time (default: the number of cores)");
  add_number(*command, "--threads", options->threads, 1, 1024,
             "Threads of each replay (default: the cores that --jobs leaves idle); results do not depend on it");
  command->add_flag("--force", options->force, "Compute again what is there already");
  command->add_flag("--no-figures", options->no_figures, "Leave the figures for 'sparscale plot'");
  CLI::Option* slurm = command->add_flag("--slurm", options->slurm, "Submit it to Slurm as job arrays over the result directory");
  command->add_flag("--dry-run", options->slurm_options.dry_run, "Write Slurm's scripts and print the commands, submit nothing")
      ->needs(slurm);
  add_number(*command, "--tasks", options->slurm_options.tasks, 1, 100000, "Most tasks of a Slurm array (default 32)")->needs(slurm);
  command->add_option("sbatch", options->slurm_options.sbatch, "After --: options for sbatch, such as --partition=short --time=30");
  command->add_option("--stage", options->stage, "Only this part: replays, runs or results (what --slurm submits)")
      ->check(CLI::IsMember({"all", "replays", "runs", "results"}));
  command->add_option("--share", options->share, "Of the stages replays and runs, share I of M, as I/M with 0 <= I < M");
  command->callback([options] {
    const Experiment experiment = Experiment::load(find_experiment(options->experiment));
    RunOptions run;
    run.directory = options->out.empty() ? fs::path("results") / experiment.name : fs::path(options->out);
    run.jobs = options->jobs;
    run.threads = options->threads;
    run.force = options->force;
    static const std::map<std::string, Stage> stages = {
        {"all", Stage::all}, {"replays", Stage::replays}, {"runs", Stage::runs}, {"results", Stage::results}};
    run.stage = stages.at(options->stage);
    const auto slash = options->share.find('/');
    if (slash == std::string::npos) throw InputError("--share", "I/M", options->share);
    run.shares = static_cast<std::size_t>(parse_number("--share", options->share.substr(slash + 1), 1, 1000000));
    run.share =
        static_cast<std::size_t>(parse_number("--share", options->share.substr(0, slash), 0, static_cast<std::int64_t>(run.shares) - 1));
    const bool parts = run.stage == Stage::replays || run.stage == Stage::runs;
    if (run.shares > 1 && !parts) throw InputError("--share", "--stage replays or runs with it", "--stage " + options->stage);
    if (run.stage != Stage::all && (options->force || options->slurm))
      throw InputError("--stage", "neither --force nor --slurm with it", options->force ? "--force" : "--slurm");
    if (!options->slurm && !options->slurm_options.sbatch.empty())
      throw InputError("sbatch", "options for sbatch with --slurm only", options->slurm_options.sbatch.front());
    if (options->slurm) {
      options->slurm_options.figures = !options->no_figures;
      submit_to_slurm(experiment, run, options->slurm_options);
      return;
    }
    if (parts) {
      if (const std::size_t failed_here = run_experiment(experiment, run); failed_here > 0)
        throw RunError(std::to_string(failed_here) + " runs have failed so far (sparscale status " + run.directory.string() + ")");
      return;
    }
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
