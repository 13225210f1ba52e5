#include "experiments/environment.hpp"

#include <simgrid/engine.h>
#include <simgrid/version.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <thread>

#include "base/files.hpp"
#include "base/machine.hpp"

namespace sparscale::experiments {

const std::string& program_sha256() {
  static const std::string sum = sha256_hex_of_file("/proc/self/exe");
  return sum;
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
  environment["processor"] = cpuinfo("model name");
  environment["cores"] = std::thread::hardware_concurrency();
  return environment;
}

}  // namespace sparscale::experiments
