#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/error.hpp"
#include "base/files.hpp"
#include "experiments/commands/commands.hpp"

namespace sparscale::experiments {
namespace {

/// Runs a program with arguments, optionally without its output; its exit status, or -1 when it could not be started.
int run_program(const std::vector<std::string>& arguments, bool quiet) {
  std::fflush(stdout);
  std::fflush(stderr);
  const pid_t process = ::fork();
  if (process < 0) return -1;
  if (process == 0) {
    if (quiet) {
      if (std::freopen("/dev/null", "w", stdout) == nullptr || std::freopen("/dev/null", "w", stderr) == nullptr) ::_exit(127);
    }
    std::vector<char*> argv;
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  int status = 0;
  while (::waitpid(process, &status, 0) < 0)
    if (errno != EINTR) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

}  // namespace

std::int64_t parse_number(const std::string& option, const std::string& text, std::int64_t least, std::int64_t most) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  if (code == std::errc{} && stop == end && value >= least && value <= most) return value;
  std::string range = "integer >= " + std::to_string(least);
  if (most < std::numeric_limits<std::int64_t>::max() || code == std::errc::result_out_of_range) range += " <= " + std::to_string(most);
  throw InputError(option, range, text);
}

void write_output(const std::string& data, const std::string& file) {
  if (!file.empty()) {
    write_file_atomic(file, data);
    return;
  }
  if (std::fwrite(data.data(), 1, data.size(), stdout) != data.size() || std::fflush(stdout) != 0)
    throw RunError(std::string("cannot write to standard output: ") + std::strerror(errno));
}

int run_analysis_program(const std::string& script, const std::vector<std::string>& arguments, bool draws) {
  // Which python3 comes first on the path says nothing about which one has matplotlib.
  std::vector<std::string> candidates;
  if (const char* set = std::getenv("SPARSCALE_PYTHON"); set != nullptr && *set != '\0')
    candidates = {set};
  else
    candidates = {"/usr/bin/python3", "python3", "/usr/local/bin/python3"};
  const std::string needed = draws ? "import matplotlib, numpy" : "import sys; sys.exit(sys.version_info < (3, 9))";
  for (const std::string& python : candidates) {
    if (run_program({python, "-c", needed}, true) != 0) continue;
    std::vector<std::string> command = {python, (data_directory() / "analysis" / script).string()};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return run_program(command, false);
  }
  std::string tried;
  for (const std::string& python : candidates) tried += (tried.empty() ? "" : ", ") + python;
  throw RunError(draws ? "no Python with matplotlib and numpy among " + tried + "; install python3-matplotlib or set SPARSCALE_PYTHON"
                       : "no Python 3.9 or newer among " + tried + "; install python3 or set SPARSCALE_PYTHON");
}

}  // namespace sparscale::experiments
