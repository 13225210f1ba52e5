// What produced a result: program, libraries, machine.
#pragma once

#include "base/json.hpp"

namespace sparscale::experiments {

/// Versions, build type, compiler, git commit of the source (empty when unknown), host, processor.
Json describe_environment();
/// SHA-256 of the running program: cached results of another program are not reused.
const std::string& program_sha256();

}  // namespace sparscale::experiments
