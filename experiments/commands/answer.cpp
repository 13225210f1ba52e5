#include <memory>

#include "experiments/commands/commands.hpp"

namespace sparscale::experiments {
namespace {

struct Options {
  std::string directory, sparsifier, baseline = "dense", platform, workers;
  bool json = false;
};

void answer(const std::string& question, const Options& options) {
  std::vector<std::string> arguments = {question, "--dir", options.directory};
  for (const auto& [name, value] : {std::pair{"--sparsifier", options.sparsifier}, std::pair{"--against", options.baseline},
                                    std::pair{"--platform", options.platform}, std::pair{"--workers", options.workers}})
    if (!value.empty() && !(question == "best" && std::string(name) == "--against")) arguments.insert(arguments.end(), {name, value});
  if (options.json) arguments.push_back("--json");
  if (const int status = run_analysis_program("answer.py", arguments, false); status != 0) throw CLI::RuntimeError(status == 2 ? 2 : 1);
}

}  // namespace

void add_answer_command(CLI::App& program) {
  auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand("answer", "Answer a question from a result directory");
  command->require_subcommand(1);
  CLI::App* crossover = command->add_subcommand("crossover", "At which n one exchange becomes faster than another");
  CLI::App* best = command->add_subcommand("best", "Which exchange has the shortest iteration, and why");
  for (CLI::App* one : {crossover, best}) {
    one->add_option("--dir", options->directory, "Result directory")->required();
    one->add_option("--sparsifier", options->sparsifier, "Only this sparsifier");
    one->add_option("--platform", options->platform, "Only this platform");
    one->add_flag("--json", options->json, "Print JSON");
  }
  crossover->add_option("--against", options->baseline, "What it is compared with (default dense)");
  best->add_option("--workers", options->workers, "Number of workers (default: the largest)");
  crossover->callback([options] { answer("crossover", *options); });
  best->callback([options] { answer("best", *options); });
}

}  // namespace sparscale::experiments
