#include "experiments/environment.hpp"

#include <gnu/libc-version.h>
#include <simgrid/engine.h>
#include <simgrid/version.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <thread>

#include "base/files.hpp"
#include "base/machine.hpp"

namespace sparscale::experiments {

namespace {

/// The library that is loaded, which need not be the one that this was compiled with.
std::string simgrid_version() {
  int major = 0, minor = 0, patch = 0;
  sg_version_get(&major, &minor, &patch);
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

}  // namespace

const std::string& program_sha256() {
  static const std::string sum =
      sha256_hex(sha256_hex_of_file("/proc/self/exe") + " simgrid " + simgrid_version() + " glibc " + gnu_get_libc_version());
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
      {"simgrid", simgrid_version()},
      {"glibc", gnu_get_libc_version()},
      {"nlohmann_json", std::to_string(NLOHMANN_JSON_VERSION_MAJOR) + "." + std::to_string(NLOHMANN_JSON_VERSION_MINOR) + "." +
                            std::to_string(NLOHMANN_JSON_VERSION_PATCH)}};
  environment["host"] = system.nodename;
  environment["system"] = std::string(system.sysname) + " " + system.release + " " + system.machine;
  environment["processor"] = cpuinfo("model name");
  environment["cores"] = std::thread::hardware_concurrency();
  return environment;
}

}  // namespace sparscale::experiments
