#include <memory>

#include "experiments/commands/commands.hpp"

namespace sparscale::experiments {

void add_compare_command(CLI::App& program) {
  struct Options {
    std::string first, second, csv, json;
    double tolerance = 0;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand("compare", "Say what differs between two result directories: inputs, parameters, numbers");
  command->add_option("first", options->first, "Result directory")->required();
  command->add_option("second", options->second, "Result directory")->required();
  command->add_option("--csv", options->csv, "Also write every differing number of the runs in both to this CSV file (-: standard output)");
  command->add_option("--json", options->json, "Also write the whole comparison to this JSON file (-: standard output)");
  command->add_option("--tolerance", options->tolerance, "Relative difference up to which numbers count as the same (default 0)")
      ->check(CLI::NonNegativeNumber);
  command->callback([options] {
    std::vector<std::string> arguments = {options->first, options->second, "--tolerance", CLI::detail::to_string(options->tolerance)};
    if (!options->csv.empty()) arguments.insert(arguments.end(), {"--csv", options->csv});
    if (!options->json.empty()) arguments.insert(arguments.end(), {"--json", options->json});
    if (const int status = run_analysis_program("compare.py", arguments, false); status != 0) throw CLI::RuntimeError(status == 2 ? 2 : 1);
  });
}

}  // namespace sparscale::experiments
