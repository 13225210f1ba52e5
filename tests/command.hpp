// Runs the program as a user would.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace sparscale::tests {

struct CommandResult {
  int status = -1;
  std::string out, err;
};

/// A folder of this object's own, removed at the end: tests run side by side, and each may make several. Every file that a test writes lies
/// in one.
class Scratch {
 public:
  explicit Scratch(const std::string& name) {
    std::string pattern = (std::filesystem::temp_directory_path() / ("sparscale-" + name + "-XXXXXX")).string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot make " + pattern);
    path_ = pattern;
  }
  ~Scratch() {
    std::error_code code;
    std::filesystem::remove_all(path_, code);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline std::string slurp(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

inline void spit(const std::filesystem::path& file, const std::string& content) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << content;
}

/// `sparscale ARGUMENTS`, through the shell.
inline CommandResult run_program(const std::string& arguments) {
  const Scratch scratch("command");
  const std::string command = std::string("'") + SPARSCALE_PROGRAM + "' " + arguments + " >'" + (scratch / "out").string() + "' 2>'" +
                              (scratch / "err").string() + "' </dev/null";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), slurp(scratch / "out"), slurp(scratch / "err")};
}

}  // namespace sparscale::tests
