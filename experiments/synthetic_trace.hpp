// Synthetic traces that an experiment describes instead of naming a folder.
#pragma once

#include <filesystem>
#include <string>

#include "base/json.hpp"

namespace sparscale::experiments {

/// The folder of the trace that `given` (the value of "synthesize" in an experiment, checked against its schema) describes. It is made when
/// it is not there yet, in $SPARSCALE_CACHE, $XDG_CACHE_HOME/sparscale or ~/.cache/sparscale, under a name that is the hash of everything
/// that decides its content; processes that make the same one at once do not disturb each other. `base` is the folder of the experiment, to
/// which a model's file is relative; `place` is where the description stands, for errors. Errors: InputError, RunError (no room for it).
std::filesystem::path synthetic_trace(const Json& given, const std::filesystem::path& base, const std::string& place);

}  // namespace sparscale::experiments
