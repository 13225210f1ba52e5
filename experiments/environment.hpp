// What produced a result: program, libraries, machine.
#pragma once

#include "base/json.hpp"

namespace sparscale::experiments {

/// Versions, build type, compiler, git commit of the source (empty when unknown), host, processor.
Json describe_environment();
/// SHA-256 over the running program and the versions of the libraries that it loads and that reach results (SimGrid, the C library's
/// mathematics): cached results of another program are not reused.
const std::string& program_sha256();

}  // namespace sparscale::experiments
