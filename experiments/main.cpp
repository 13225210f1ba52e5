// sparscale: the command line. Exit 0 done, 1 a run failed, 2 bad input or usage.
#include <fcntl.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

#include "base/error.hpp"
#include "experiments/commands/commands.hpp"
#include "sim/ranks.hpp"

namespace {

// With a standard stream closed, the next file opened would take its place and messages would end up in results.
void keep_standard_streams() {
  for (int stream = 0; stream <= 2; ++stream)
    if (::fcntl(stream, F_GETFD) == -1) {
      // Opened so that using it stays an error. The lowest free number is this one.
      if (::open("/dev/null", stream == 0 ? O_WRONLY : O_RDONLY) != stream) std::_Exit(1);
    }
}

// An empty value is nearly always a shell variable that was not set; it must not stand for a default.
void refuse_empty_values(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.empty()) throw sparscale::InputError(i > 1 ? argv[i - 1] : "sparscale", "a value that is not empty", "an empty one");
    if (argument.starts_with("--") && argument.find('=') == argument.size() - 1)
      throw sparscale::InputError(argument.substr(0, argument.size() - 1), "a value that is not empty", "an empty one");
  }
}

}  // namespace

int main(int argc, char** argv) {
  using namespace sparscale;
  keep_standard_streams();
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is reported as a write error
  // Several processes that mpirun has started with the same arguments say once what is wrong with them.
  const bool other_rank = argc > 1 && std::string(argv[1]) == "replay" && sim::Ranks::rank_in_environment() > 0;
  CLI::App program{
      "How a gradient sparsifier scales, before anyone rents the GPUs.\n\nExample: sparscale run experiments/first-figure.json",
      "sparscale"};
  program.set_version_flag("--version", "sparscale " SPARSCALE_VERSION);
  program.require_subcommand(1);
  experiments::add_run_command(program);
  experiments::add_check_command(program);
  experiments::add_status_command(program);
  experiments::add_replay_command(program);
  experiments::add_collective_command(program);
  experiments::add_timeline_command(program);
  experiments::add_trace_command(program);
  experiments::add_measure_command(program);
  experiments::add_plot_command(program);
  experiments::add_report_command(program);
  experiments::add_compare_command(program);
  experiments::add_answer_command(program);
  experiments::add_claims_command(program);
  experiments::add_list_command(program);
  experiments::add_schema_command(program);
  experiments::add_validate_command(program);
  experiments::add_completion_command(program);
  try {
    refuse_empty_values(argc, argv);
    program.parse(argc, argv);
    if (std::fflush(stdout) != 0) throw RunError("cannot write to standard output");
    return 0;
  } catch (const CLI::Success& done) {  // --help, --version
    const int status = program.exit(done);
    if (std::cout.flush()) return status;
    std::fprintf(stderr, "sparscale: cannot write to standard output\n");
    return 1;
  } catch (const CLI::RuntimeError& error) {  // another program has failed and said why
    return error.get_exit_code();
  } catch (const CLI::ParseError& error) {
    if (other_rank) return 0;
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
    if (other_rank) return 0;
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
