#include "experiments/synthetic_trace.hpp"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <vector>

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
    return value == nullptr || *value == '\0' ? fs::path() : fs::absolute(value);
  };
  if (const fs::path folder = set("SPARSCALE_CACHE"); !folder.empty()) return folder;
  if (const fs::path folder = set("XDG_CACHE_HOME"); !folder.empty()) return folder / "sparscale";
  if (const fs::path folder = set("HOME"); !folder.empty()) return folder / ".cache" / "sparscale";
  throw InputError("environment", "", "HOME or SPARSCALE_CACHE, where synthetic traces can be kept", "neither");
}

/// What processes of this machine left that were killed while they made a trace (write_trace names such folders X.tmp.HOST.PROCESS).
void remove_leftovers(const fs::path& folder) {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  const std::string mark = std::string(".tmp.") + host + ".";
  std::error_code code;
  std::vector<fs::path> dead;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    const std::string name = entry.path().filename().string();
    const auto at = name.rfind(mark);
    pid_t process = 0;
    if (at == std::string::npos) continue;
    const char *begin = name.data() + at + mark.size(), *end = name.data() + name.size();
    if (const auto [rest, error] = std::from_chars(begin, end, process); error != std::errc() || rest != end || process <= 0) continue;
    if (::kill(process, 0) != 0 && errno == ESRCH) dead.push_back(entry.path());
  }
  for (const fs::path& left : dead) fs::remove_all(left, code);
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
  if (given.contains("name")) model["name"] = given.at("name");
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
  remove_leftovers(folder.parent_path());
  // It comes into being whole, so one without trace.json has been damaged.
  if (path_exists(folder) && !path_exists(folder / "trace.json")) fs::remove_all(folder, code);
  try {
    traces::synthesize_trace(model, name, options, folder, !full);
  } catch (const std::exception& error) {
    if (path_exists(folder / "trace.json")) return folder;  // another process was faster
    if (dynamic_cast<const InputError*>(&error) != nullptr) {
      // Sizes are options where the command makes a trace, and fields here.
      const std::string message = error.what();
      for (const char* field : {"workers", "iterations", "gradients"})
        if (const std::string option = std::string("--") + field; message.starts_with(option + ": "))
          throw InputError(place + "/" + field + message.substr(option.size()));
      throw;
    }
    throw RunError(std::string(error.what()) + " (synthetic traces are kept in " + cache_folder().string() +
                   ", SPARSCALE_CACHE names another folder)");
  }
  return folder;
}

}  // namespace sparscale::experiments
