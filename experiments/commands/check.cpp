#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "experiments/commands/commands.hpp"
#include "experiments/experiment.hpp"
#include "experiments/runner.hpp"

namespace sparscale::experiments {

void add_check_command(CLI::App& program) {
  struct Options {
    std::string experiment, out;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand("check", "Validate an experiment, count its runs, estimate memory and time; run nothing");
  command->add_option("experiment", options->experiment, "Experiment file, or the name of a ready-made one")->required();
  command->add_option("--out", options->out, "Result directory to look for finished runs in (default: results/NAME)");
  command->callback([options] {
    const Experiment experiment = Experiment::load(find_experiment(options->experiment));
    const std::filesystem::path directory =
        options->out.empty() ? std::filesystem::path("results") / experiment.name : std::filesystem::path(options->out);
    const Estimate result = estimate(experiment, directory);
    check_memory(experiment, result);
    std::printf("%s: valid\n", experiment.file.c_str());
    std::printf("runs: %zu (%zu finished in %s)\n", result.runs, result.runs_cached, directory.c_str());
    std::printf("replays: %zu (%zu finished)\n", result.replays, result.replays_cached);
    std::printf("memory of the largest replay to do: %.1f MB\n", static_cast<double>(result.memory_bytes) / 1e6);
    std::printf("time: about %.0f s of one core\n", std::ceil(result.time_s));
  });
}

}  // namespace sparscale::experiments
