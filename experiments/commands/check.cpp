#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <thread>

#include "base/machine.hpp"
#include "experiments/commands/commands.hpp"
#include "experiments/coverage.hpp"
#include "experiments/experiment.hpp"
#include "experiments/runner.hpp"

namespace sparscale::experiments {

void add_check_command(CLI::App& program) {
  struct Options {
    std::string experiment, out;
    int jobs = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    bool replays = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand("check", "Validate an experiment, count its runs, estimate memory and time; run nothing");
  command->add_option("experiment", options->experiment, "Experiment file, or the name of a ready-made one")->required();
  command->add_option("--out", options->out, "Result directory to look for finished runs in (default: results/NAME)");
  add_number(*command, "--jobs", options->jobs, 1, 4096, "Runs at the same time, for the estimate (default: the number of cores)");
  command->add_flag("--replays", options->replays, "List memory and time of every replay that is to be done, the longest first");
  command->callback([options] {
    const Experiment experiment = Experiment::load(find_experiment(options->experiment));
    const std::filesystem::path directory =
        options->out.empty() ? std::filesystem::path("results") / experiment.name : std::filesystem::path(options->out);
    const Estimate result = estimate(experiment, directory, options->jobs);
    check_memory(experiment, result);
    check_profiles(experiment, directory);
    const auto MB = [](std::uint64_t bytes) { return static_cast<double>(bytes) / 1e6; };
    std::printf("%s: valid\n", experiment.file.c_str());
    std::printf("runs: %zu (%zu finished in %s)\n", result.runs, result.runs_cached, directory.c_str());
    std::printf("replays: %zu (%zu finished), shared by runs that differ in platform, profile, times or collectives\n", result.replays,
                result.replays_cached);
    std::printf("self-checks of the expansion: %zu (%zu finished)\n", result.self_checks, result.self_checks_cached);
    std::printf("memory of the largest replay or self-check to do: %.1f MB; of %d at a time: %.1f MB of %.1f MB available%s\n",
                MB(result.memory_bytes), options->jobs, MB(result.memory_together_bytes), MB(available_memory_bytes()),
                result.memory_together_bytes > available_memory_bytes() ? " (fewer will run together)" : "");
    std::printf("time: about %.0f s of one core (replays %.0f s, self-checks %.0f s, timing %.0f s), %.0f s with %d at a time\n",
                std::ceil(result.time_s), std::ceil(result.replays_time_s), std::ceil(result.self_checks_time_s),
                std::ceil(result.timing_time_s), std::ceil(result.elapsed_s), options->jobs);
    if (!options->replays) return;
    for (const ReplayCost& cost : result.to_do) {
      const ReplayPoint& replay = experiment.replays[cost.replay];
      std::printf("replay %s: %s at n = %lld, density %s, seed %llu, on %s: %.1f MB, about %.1f s\n", replay.key.c_str(),
                  replay.options.sparsifier.c_str(), static_cast<long long>(replay.options.workers),
                  number_text(replay.options.density).c_str(), static_cast<unsigned long long>(replay.options.seed),
                  experiment.traces.at(replay.trace).info().name.c_str(), MB(cost.memory_bytes), cost.time_s);
    }
  });
}

}  // namespace sparscale::experiments
