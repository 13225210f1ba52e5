// Experiments: one strict JSON document, and the runs that it stands for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "experiments/sweep.hpp"
#include "kernels/profile.hpp"
#include "platforms/platform.hpp"
#include "sim/replay.hpp"
#include "sim/timeline.hpp"
#include "sim/wire_format.hpp"
#include "traces/trace.hpp"

namespace sparscale::experiments {

/// One replay: everything that decides the records, nothing of platforms or times.
struct ReplayPoint {
  std::string trace;  // as named in the experiment
  sim::ReplayOptions options;
  Json identity;                 // canonical: what the key is the hash of
  std::string key;               // name of its files under replays/
  std::string sparsifier_place;  // FILE: POINTER, for errors
};

/// The comparison of generated with captured workers that belongs to a projected replay; the same for all sparsifiers.
struct SelfCheckPoint {
  std::string trace;
  sim::ReplayOptions options;
  Json identity;
  std::string key;
};

/// One run: a replay on a platform with a kernel profile.
struct RunPoint {
  std::size_t replay = 0;         // index into Experiment::replays
  std::int64_t self_check = -1;   // index into Experiment::self_checks, -1 when nothing is projected
  std::string platform, profile;  // as named in the experiment
  sim::TimelineOptions timeline;
  std::string profile_place;                              // FILE: POINTER of the profile, for errors
  std::vector<double> forward_times_s, backward_times_s;  // one, or one per layer
  std::string compute_origin;
  Json timeline_field, disturbance_field;  // as written out
  double device_memory_GB = 0;             // 0: not stated
  std::string network;
  sim::WireFormat wire;
  std::string value_encoding, index_encoding;  // the same as text
  std::string placement;                       // as text
  Json identity;
  std::string key;               // the run_id
  Json labels = Json::object();  // named axis -> name of its value, where all points of the sweep that are this run agree
};

struct Experiment {
  std::string name, title, file;
  Json effective;  // every default written out, nothing inherited any more, files as absolute paths (in a result directory: relative to it)
  std::vector<std::pair<std::string, std::string>> parents;  // files that were extended, with their SHA-256
  std::map<std::string, traces::Trace> traces;
  std::map<std::string, platforms::Platform> platforms;
  std::map<std::string, kernels::Profile> profiles;
  std::vector<ReplayPoint> replays;
  std::vector<SelfCheckPoint> self_checks;
  std::vector<RunPoint> runs;  // in the order of the product, each once

  /// The platform of a run with the run's placement.
  platforms::Platform platform_of(const RunPoint& run) const;

  /// Loads an experiment, opens what it names (traces with their checksums verified) and forms the product. Errors: InputError with file
  /// and JSON pointer.
  static Experiment load(const std::filesystem::path& file);
};

/// A trace directory by path (relative to `base`) or the name of a shipped sample. Errors: InputError listing the samples.
std::filesystem::path find_trace(const std::string& name_or_path, const std::filesystem::path& base = {});
/// Shipped sample traces and ready-made experiments, sorted.
std::vector<std::string> sample_trace_names();
std::vector<std::string> experiment_names();
/// An experiment file by path or the name of a ready-made one.
std::filesystem::path find_experiment(const std::string& name_or_path);

}  // namespace sparscale::experiments
