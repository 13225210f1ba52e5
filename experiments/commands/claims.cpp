#include <memory>

#include "experiments/commands/commands.hpp"

namespace sparscale::experiments {

void add_claims_command(CLI::App& program) {
  struct Options {
    std::string directory;
    bool strict = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand("claims", "Compare results with what the experiment's sources claim");
  command->add_option("directory", options->directory, "Result directory")->required();
  command->add_flag("--strict", options->strict, "Exit with 1 when a claim differs that the experiment does not say would differ");
  command->callback([options] {
    std::vector<std::string> arguments = {options->directory};
    if (options->strict) arguments.push_back("--strict");
    if (const int status = run_analysis_program("claims.py", arguments, false); status != 0) throw CLI::RuntimeError(status == 2 ? 2 : 1);
  });
}

}  // namespace sparscale::experiments
