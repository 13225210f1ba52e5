#include <cstdio>
#include <memory>

#include "base/error.hpp"
#include "experiments/commands/commands.hpp"

namespace sparscale::experiments {

void add_plot_command(CLI::App& program) {
  struct Options {
    std::string directory, style = "double", formats = "pdf,svg,png";
    std::vector<std::string> figures;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand("plot", "Draw figures from a result directory");
  command->add_option("directory", options->directory, "Result directory")->required();
  command->add_option("--figure", options->figures, "Only this figure ('sparscale list figures'); may be given again");
  command->add_option("--style", options->style, "single or double column (default double), or those of IEEE or ACM")
      ->check(CLI::IsMember({"single", "double", "ieee-single", "ieee-double", "acm-single", "acm-double"}));
  command->add_option("--format", options->formats, "Formats, comma separated (default pdf,svg,png)");
  command->callback([options] {
    std::vector<std::string> arguments = {options->directory, "--style", options->style, "--format", options->formats};
    for (const std::string& figure : options->figures) arguments.insert(arguments.end(), {"--figure", figure});
    // The program has said what is wrong.
    if (const int status = run_analysis_program("plot.py", arguments, true); status != 0) throw CLI::RuntimeError(status == 2 ? 2 : 1);
    std::printf("%s/figures\n", options->directory.c_str());
  });
}

}  // namespace sparscale::experiments
