#include <filesystem>
#include <memory>

#include "base/files.hpp"
#include "experiments/commands/commands.hpp"
#include "experiments/validation.hpp"

namespace sparscale::experiments {

void add_validate_command(CLI::App& program) {
  struct Options {
    std::string what, out;
    bool no_figure = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand("validate", "Compare simulated collectives with measurements of real machines");
  command->add_option("what", options->what, "nccl (public measurements of GPU clusters) or mpi (Open MPI over rate-limited links)")
      ->required()
      ->check(CLI::IsMember({"nccl", "mpi"}));
  command->add_option("--out", options->out, "Folder for validation.csv and the figure (default: only print)");
  command->add_flag("--no-figure", options->no_figure, "Write no figure");
  command->callback([options] {
    const Validation validation = options->what == "nccl" ? validate_nccl() : validate_mpi();
    write_output(validation_text(validation), "");
    if (options->out.empty()) return;
    write_file_atomic(std::filesystem::path(options->out) / "validation.csv", validation_csv(validation));
    if (options->no_figure) return;
    if (const int status = run_analysis_program("validation.py", {options->out}, true); status != 0)
      throw CLI::RuntimeError(status == 2 ? 2 : 1);
  });
}

}  // namespace sparscale::experiments
