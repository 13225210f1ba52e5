#include <memory>

#include "experiments/commands/commands.hpp"

namespace sparscale::experiments {

void add_report_command(CLI::App& program) {
  struct Options {
    std::string directory, out;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand("report", "Write a self-contained HTML report of a result directory");
  command->add_option("directory", options->directory, "Result directory")->required();
  command->add_option("--out", options->out, "HTML file (default: DIR/report.html)");
  command->callback([options] {
    std::vector<std::string> arguments = {options->directory};
    if (!options->out.empty()) arguments.insert(arguments.end(), {"--out", options->out});
    // The program has said what is wrong.
    if (const int status = run_analysis_program("report.py", arguments, true); status != 0) throw CLI::RuntimeError(status == 2 ? 2 : 1);
  });
}

}  // namespace sparscale::experiments
