#include "experiments/synthetic_trace.hpp"

#include <cstdlib>

#include "base/error.hpp"
#include "base/files.hpp"
#include "traces/synthesis.hpp"

namespace sparscale::experiments {
namespace fs = std::filesystem;
namespace {

/// Goes up whenever the same description makes another trace.
constexpr int synthesis_version = 1;

fs::path cache_folder() {
  const auto set = [](const char* name) -> fs::path {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  if (const fs::path folder = set("SPARSCALE_CACHE"); !folder.empty()) return folder;
  if (const fs::path folder = set("XDG_CACHE_HOME"); !folder.empty()) return folder / "sparscale";
  if (const fs::path folder = set("HOME"); !folder.empty()) return folder / ".cache" / "sparscale";
  throw InputError("environment", "", "HOME or SPARSCALE_CACHE, where synthetic traces can be kept", "neither");
}

}  // namespace

fs::path synthetic_trace(const Json& given, const fs::path& base, const std::string& place) {
  Json model = given.at("model");
  std::string name = place + "/model";
  if (model.is_string()) {
    name = model.get<std::string>();
    const bool is_file = name.find('/') != std::string::npos || name.ends_with(".json");
    if (is_file && !fs::path(name).is_absolute()) name = (base / name).string();
    model = traces::load_model(name);
  } else {
    traces::check_model(model, name);
  }
  traces::SynthesisOptions options;
  options.workers = given.value("workers", options.workers);
  options.iterations = given.value("iterations", options.iterations);
  options.gradients = given.value("gradients", options.gradients);
  options.seed = given.value("seed", options.seed);
  const bool full = given.value("full", false);
  const Json identity = {{"version", synthesis_version},
                         {"model", model},
                         {"workers", options.workers},
                         {"iterations", options.iterations},
                         {"gradients", options.gradients},
                         {"seed", options.seed},
                         {"full", full}};
  const fs::path folder = cache_folder() / "traces" / sha256_hex(identity.dump()).substr(0, 16);
  if (path_exists(folder / "trace.json")) return folder;
  std::error_code code;
  fs::create_directories(folder.parent_path(), code);
  try {
    traces::synthesize_trace(model, name, options, folder, !full);
  } catch (const std::exception&) {
    if (!path_exists(folder / "trace.json")) throw;  // another process was faster
  }
  return folder;
}

}  // namespace sparscale::experiments
