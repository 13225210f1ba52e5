// Replays over several processes beside the same in one.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/catch.hpp"
#include "tests/command.hpp"

namespace sparscale::tests {

/// Why replays cannot run over several processes here; empty when they can.
inline std::string why_no_ranks() {
  if (!std::filesystem::exists(std::filesystem::path(SPARSCALE_PROGRAM).parent_path() / "sparscale-mpi.so"))
    return "the program was built without MPI";
  if (std::system("mpirun --version 2>/dev/null | grep -q 'Open MPI'") != 0) return "no mpirun of Open MPI";
  return "";
}

/// `mpirun -n RANKS sparscale ARGUMENTS`. Containers run as root and may have fewer cores than ranks.
inline CommandResult run_in_ranks(int ranks, const std::string& arguments) {
  const Scratch scratch("ranks");
  const std::string command = "mpirun --allow-run-as-root --oversubscribe -n " + std::to_string(ranks) + " '" + SPARSCALE_PROGRAM + "' " +
                              arguments + " >'" + (scratch / "out").string() + "' 2>'" + (scratch / "err").string() + "' </dev/null";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), slurp(scratch / "out"), slurp(scratch / "err")};
}

/// Checks that so many ranks print what one process prints, which is something.
inline void check_ranks(int ranks, const std::string& arguments, const CommandResult& alone) {
  INFO(ranks << " ranks: " << arguments);
  REQUIRE(alone.status == 0);
  REQUIRE(alone.out.find("\"selected_sum\"") != std::string::npos);
  const CommandResult shared = run_in_ranks(ranks, arguments);
  CHECK(shared.err == alone.err);
  CHECK(shared.status == 0);
  CHECK((shared.out == alone.out));  // not printed: long
}

/// Lines of `text` that start with "sparscale: " (mpirun adds its own).
inline std::string program_lines(const std::string& text) {
  std::string lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    if (text.compare(at, 11, "sparscale: ") == 0) lines += text.substr(at, end - at) + "\n";
    at = end + 1;
  }
  return lines;
}

}  // namespace sparscale::tests
