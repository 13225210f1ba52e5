#include <filesystem>
#include <memory>

#include "experiments/commands/commands.hpp"

namespace sparscale::experiments {
namespace {

struct Options {
  std::string directory, sparsifier, baseline = "dense", platform, workers, efficiency, along;
  bool json = false;
};

void answer(const std::string& question, const Options& options) {
  std::vector<std::string> arguments = {question, "--dir", options.directory};
  for (const auto& [name, value] :
       {std::pair{"--sparsifier", options.sparsifier}, std::pair{"--against", options.baseline}, std::pair{"--platform", options.platform},
        std::pair{"--workers", options.workers}, std::pair{"--efficiency", options.efficiency}, std::pair{"--along", options.along}})
    if (!value.empty() && (question == "crossover" || std::string(name) != "--against")) arguments.insert(arguments.end(), {name, value});
  // The stored replays are timed again by this very program.
  if (question == "bandwidth") arguments.insert(arguments.end(), {"--program", std::filesystem::read_symlink("/proc/self/exe").string()});
  if (options.json) arguments.push_back("--json");
  if (const int status = run_analysis_program("answer.py", arguments, false); status != 0) throw CLI::RuntimeError(status == 2 ? 2 : 1);
}

}  // namespace

void add_answer_command(CLI::App& program) {
  auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand("answer", "Answer a question from a result directory");
  command->require_subcommand(1);
  CLI::App* crossover =
      command->add_subcommand("crossover", "At which n, NIC bandwidth or density one exchange becomes faster than another");
  CLI::App* best = command->add_subcommand("best", "Which exchange has the shortest iteration, and why");
  CLI::App* bandwidth = command->add_subcommand("bandwidth", "Which bandwidth of the NICs an efficiency needs at n workers");
  for (CLI::App* one : {crossover, best, bandwidth}) {
    one->add_option("--dir", options->directory, "Result directory")->required();
    one->add_option("--sparsifier", options->sparsifier, "Only this sparsifier");
    one->add_option("--platform", options->platform, "Only this platform");
    one->add_flag("--json", options->json, "Print JSON");
  }
  crossover->add_option("--against", options->baseline, "What it is compared with (default dense)");
  crossover->add_option("--along", options->along,
                        "Along workers, bandwidth or density only (default: all along which the results have several values)");
  crossover->add_option("--workers", options->workers, "With bandwidth and density: at this number of workers only");
  best->add_option("--workers", options->workers, "Number of workers (default: the largest)");
  bandwidth->add_option("--efficiency", options->efficiency, "Speed-up / n that is wanted, between 0 and 1")->required();
  bandwidth->add_option("--workers", options->workers, "Number of workers")->required();
  bandwidth->callback([options] { answer("bandwidth", *options); });
  crossover->callback([options] { answer("crossover", *options); });
  best->callback([options] { answer("best", *options); });
}

}  // namespace sparscale::experiments
