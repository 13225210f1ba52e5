// sparscale: the command line. Exit 0 done, 1 a run failed, 2 bad input or usage.
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>

#include "base/error.hpp"
#include "experiments/commands/commands.hpp"

int main(int argc, char** argv) {
  using namespace sparscale;
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is reported as a write error
  CLI::App program{
      "How a gradient sparsifier scales, before anyone rents the GPUs.\n\nExample: sparscale run experiments/first-figure.json",
      "sparscale"};
  program.set_version_flag("--version", "sparscale " SPARSCALE_VERSION);
  program.require_subcommand(1);
  experiments::add_run_command(program);
  experiments::add_check_command(program);
  experiments::add_replay_command(program);
  experiments::add_collective_command(program);
  experiments::add_trace_command(program);
  experiments::add_measure_command(program);
  experiments::add_plot_command(program);
  experiments::add_report_command(program);
  experiments::add_compare_command(program);
  experiments::add_answer_command(program);
  experiments::add_list_command(program);
  experiments::add_schema_command(program);
  try {
    program.parse(argc, argv);
    if (std::fflush(stdout) != 0) throw RunError("cannot write to standard output");
    return 0;
  } catch (const CLI::Success& done) {  // --help, --version
    return program.exit(done);
  } catch (const CLI::RuntimeError& error) {  // another program has failed and said why
    return error.get_exit_code();
  } catch (const CLI::ParseError& error) {
    std::string names;
    bool known = argc < 2 || argv[1][0] == '-';
    for (const CLI::App* command : program.get_subcommands({})) {
      known = known || command->get_name() == argv[1];
      names += (names.empty() ? "" : ", ") + command->get_name();
    }
    if (!known) {
      std::fprintf(stderr, "sparscale: expected a subcommand, one of %s, found \"%s\"\n", names.c_str(), argv[1]);
      return 2;
    }
    std::fprintf(stderr, "sparscale: %s (see sparscale --help)\n", error.what());
    return 2;
  } catch (const InputError& error) {
    std::fprintf(stderr, "sparscale: %s\n", error.what());
    return 2;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "sparscale: out of memory\n");
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sparscale: %s\n", error.what());
    return 1;
  }
}
