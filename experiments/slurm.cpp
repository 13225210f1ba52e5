#include "experiments/slurm.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/error.hpp"
#include "base/files.hpp"
#include "experiments/coverage.hpp"

namespace sparscale::experiments {
namespace fs = std::filesystem;
namespace {

/// A word as the shell reads it back.
std::string quoted(const std::string& text) {
  if (!text.empty() &&
      text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+=./:,%@") == std::string::npos)
    return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

/// What a program prints on its standard output. Errors: RunError.
std::string output_of(const std::vector<std::string>& arguments) {
  std::fflush(stdout);
  std::fflush(stderr);
  int ends[2];
  if (::pipe(ends) != 0) throw RunError(std::string("cannot make a pipe: ") + std::strerror(errno));
  const pid_t process = ::fork();
  if (process < 0) throw RunError(std::string("cannot fork: ") + std::strerror(errno));
  if (process == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    ::close(ends[0]);
    ::close(ends[1]);
    std::vector<char*> argv;
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  ::close(ends[1]);
  std::string text;
  std::array<char, 4096> buffer{};
  while (true) {
    const ssize_t count = ::read(ends[0], buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  ::close(ends[0]);
  int status = 0;
  while (::waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127) throw RunError("cannot start " + arguments.front() + "; is Slurm installed here?");
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) throw RunError(arguments.front() + " has refused the job");
  return text;
}

std::string script(const fs::path& directory, const std::string& what, const std::string& arguments) {
  std::string text = "#!/usr/bin/env bash\n# " + what + "; written by 'sparscale run --slurm'.\nset -eu\n";
  for (const char* name : {"SPARSCALE_DATA", "SPARSCALE_CACHE", "SPARSCALE_PYTHON"})
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0')
      text += std::string("export ") + name + "=" + quoted(value) + "\n";
  return text + "exec " + quoted(fs::read_symlink("/proc/self/exe").string()) + " run " + quoted((directory / "experiment.json").string()) +
         " --out " + quoted(directory.string()) + " --jobs \"${SLURM_CPUS_PER_TASK:-1}\" " + arguments + "\n";
}

}  // namespace

void submit_to_slurm(const Experiment& experiment, const RunOptions& run, const SlurmOptions& options) {
  const fs::path directory = fs::absolute(run.directory).lexically_normal();
  check_profiles(experiment, directory);
  prepare_directory(experiment, directory, run.force);
  const std::size_t missing = unfinished_runs(experiment, directory).size();
  const std::size_t tasks = std::min(static_cast<std::size_t>(options.tasks), experiment.replays.size() + experiment.self_checks.size());
  const fs::path folder = directory / "slurm";
  const std::string share = " --no-figures --share \"$SLURM_ARRAY_TASK_ID/" + std::to_string(tasks) + "\"";
  write_file_atomic(folder / "replays.sh", script(directory, "One share of the replays and self-checks", "--stage replays" + share));
  write_file_atomic(folder / "timing.sh", script(directory, "One share of the runs, when the replays are there", "--stage runs" + share));
  write_file_atomic(folder / "results.sh", script(directory, "results.csv of the runs that are there",
                                                  std::string("--stage results") + (options.figures ? "" : " --no-figures")));
  std::string before;
  const auto submit = [&](const std::string& name, bool array) {
    std::vector<std::string> command = {"sbatch", "--parsable", "--job-name=" + experiment.name + "-" + name,
                                        "--output=" + (folder / (array ? name + "-%A_%a.log" : name + "-%j.log")).string()};
    if (array) command.push_back("--array=0-" + std::to_string(tasks - 1));
    // After whatever became of it: what has failed is told by the last job, the rest goes on.
    if (!before.empty()) command.push_back("--dependency=afterany:" + before);
    command.insert(command.end(), options.sbatch.begin(), options.sbatch.end());
    command.push_back((folder / (name + ".sh")).string());
    if (options.dry_run) {
      std::string line;
      for (const std::string& word : command) line += (line.empty() ? "" : " ") + quoted(word);
      std::printf("%s\n", line.c_str());
      before = "JOB_OF_" + name;
      return;
    }
    const std::string answer = output_of(command);  // JOB or JOB;CLUSTER
    before = answer.substr(0, answer.find_first_of(";\n"));
    if (before.empty() || before.find_first_not_of("0123456789") != std::string::npos)
      throw RunError("sbatch has not answered with the number of a job: " + answer.substr(0, answer.find('\n')));
    std::printf("job %s: %s%s\n", before.c_str(), name.c_str(), array ? (", " + std::to_string(tasks) + " tasks").c_str() : "");
  };
  if (missing > 0) {
    submit("replays", true);
    submit("timing", true);
  }
  submit("results", false);
  std::printf("sparscale status %s says what is done\n", quoted(directory.string()).c_str());
}

}  // namespace sparscale::experiments
