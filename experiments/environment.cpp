#include "experiments/environment.hpp"

#include <simgrid/engine.h>
#include <simgrid/version.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "base/files.hpp"

namespace sparscale::experiments {
namespace {

std::string field_of(const char* file, const std::string& key) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    if (!line.starts_with(key)) continue;
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    const auto begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

}  // namespace

const std::string& program_sha256() {
  static const std::string sum = sha256_hex_of_file("/proc/self/exe");
  return sum;
}

std::uint64_t available_memory_bytes() {
  const std::string text = field_of("/proc/meminfo", "MemAvailable");
  return text.empty() ? 0 : std::stoull(text) * 1024;
}

Json describe_environment() {
  utsname system{};
  uname(&system);
  Json environment;
  environment["sparscale_version"] = SPARSCALE_VERSION;
  environment["program_sha256"] = program_sha256();
  environment["git_commit"] = SPARSCALE_GIT_COMMIT;
  environment["build_type"] = SPARSCALE_BUILD_TYPE;
  environment["compiler"] = SPARSCALE_COMPILER;
  environment["libraries"] = {
      {"simgrid", std::to_string(SIMGRID_VERSION_MAJOR) + "." + std::to_string(SIMGRID_VERSION_MINOR)},
      {"nlohmann_json", std::to_string(NLOHMANN_JSON_VERSION_MAJOR) + "." + std::to_string(NLOHMANN_JSON_VERSION_MINOR) + "." +
                            std::to_string(NLOHMANN_JSON_VERSION_PATCH)}};
  environment["host"] = system.nodename;
  environment["system"] = std::string(system.sysname) + " " + system.release + " " + system.machine;
  environment["processor"] = field_of("/proc/cpuinfo", "model name");
  environment["cores"] = std::thread::hardware_concurrency();
  return environment;
}

}  // namespace sparscale::experiments
