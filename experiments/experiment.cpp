#include "experiments/experiment.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.hpp"
#include "base/files.hpp"
#include "experiments/synthetic_trace.hpp"
#include "sim/collective.hpp"
#include "sim/sparsifier.hpp"
#include "traces/synthesis.hpp"

namespace sparscale::embedded {
extern const char* const experiment_schema;
}

namespace sparscale::experiments {
namespace fs = std::filesystem;
namespace {

/// The values of an axis with the JSON pointer of each.
struct AxisValue {
  Json value;
  std::string pointer;
};

std::vector<AxisValue> axis(const Json& document, const std::string& key) {
  const Json& value = document.at(key);
  if (!value.is_array()) return {{value, "/" + key}};
  std::vector<AxisValue> values;
  for (std::size_t i = 0; i < value.size(); ++i) values.push_back({value[i], "/" + key + "/" + std::to_string(i)});
  return values;
}

void write_defaults(Json& document, const Json& schema) {
  Json complete = Json::object();
  for (const auto& [key, rule] : schema.at("properties").items()) {
    if (document.contains(key))
      complete[key] = document.at(key);
    else if (rule.contains("default"))
      complete[key] = rule.at("default");
  }
  document = complete;
}

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// Anything that reads a file named in the experiment: a failure inside keeps its own place, a missing file gets the pointer.
fs::path resolve_file(const std::string& value, const fs::path& folder) {
  const fs::path path = value;
  return path.is_absolute() ? path : folder / path;
}

bool is_path(const std::string& value) { return value.find('/') != std::string::npos || value.ends_with(".json"); }

bool is_utf8(const Json& text) {
  try {
    text.dump();
    return true;
  } catch (const Json::type_error&) {
    return false;
  }
}

std::string short_hash(const Json& identity) { return sha256_hex(identity.dump()).substr(0, 16); }

std::vector<std::string> names_in(const fs::path& folder, bool directories, const std::string& extension) {
  std::vector<std::string> names;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    if (directories ? path_exists(entry.path() / "trace.json")
                    : entry.path().extension() == extension && !entry.path().stem().string().ends_with(".schema"))
      names.push_back(directories ? entry.path().filename().string() : entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// A point of the sparsifier axis, checked.
struct SparsifierValue {
  std::string name;
  Json parameters;
};

SparsifierValue sparsifier_value(const AxisValue& axis_value, const std::string& file) {
  SparsifierValue result;
  Json given = Json::object();
  if (axis_value.value.is_string()) {
    result.name = axis_value.value.get<std::string>();
  } else {
    result.name = axis_value.value.at("name").get<std::string>();
    if (axis_value.value.contains("parameters")) given = axis_value.value.at("parameters");
  }
  const sim::SparsifierInfo* info = nullptr;
  std::vector<std::string> names;
  for (const sim::SparsifierInfo& candidate : sim::sparsifiers()) {
    names.push_back(candidate.name);
    if (candidate.name == result.name) info = &candidate;
  }
  const std::string place = axis_value.pointer + (axis_value.value.is_string() ? "" : "/name");
  if (info == nullptr) throw InputError(file, place, "one of " + join(names), '"' + result.name + '"');
  result.parameters = sim::resolve_parameters(*info, given, file, axis_value.pointer + "/parameters");
  return result;
}

void check_collective(sim::Operation operation, const AxisValue& value, const std::string& file) {
  std::vector<std::string> names;
  for (const sim::CollectiveAlgorithm& algorithm : sim::collective_algorithms()) {
    if (algorithm.operation != operation) continue;
    names.push_back(algorithm.name);
    if (algorithm.name == value.value.get<std::string>()) return;
  }
  throw InputError(file, value.pointer, "one of " + join(names), brief(value.value));
}

/// One value of every axis.
using Point = std::map<std::string, AxisValue>;

/// Calls `visit` for every point of the product; the last axis moves fastest.
template <typename Visit>
void for_each_point(const Json& document, const Visit& visit) {
  static const std::vector<std::string> axes = {"trace",      "sparsifier", "density",   "workers",        "captured_workers",
                                                "expansion",  "seed",       "platform",  "profile",        "all_gather",
                                                "all_reduce", "broadcast",  "placement", "value_encoding", "index_encoding"};
  std::vector<std::vector<AxisValue>> values;
  for (const std::string& key : axes) values.push_back(axis(document, key));
  std::vector<std::size_t> at(axes.size(), 0);
  while (true) {
    Point point;
    for (std::size_t i = 0; i < axes.size(); ++i) point.emplace(axes[i], values[i][at[i]]);
    visit(point);
    std::size_t i = axes.size();
    while (i > 0 && ++at[i - 1] == values[i - 1].size()) at[--i] = 0;
    if (i == 0) return;
  }
}

/// Dense exchanges do not depend on what is selected: density 1, no expansion, no warm-up, so that one run stands for all.
sim::ReplayOptions replay_options(const Json& document, const Point& point, const SparsifierValue& sparsifier, const traces::Trace& trace,
                                  const std::string& file) {
  const bool dense = sim::find_sparsifier(sparsifier.name).dense;
  sim::ReplayOptions options;
  options.sparsifier = sparsifier.name;
  options.parameters = sparsifier.parameters;
  options.workers = point.at("workers").value.get<std::int64_t>();
  options.iterations = document.at("iterations").get<std::int64_t>();
  if (options.iterations == 0) options.iterations = trace.iterations();
  options.error_feedback = document.at("error_feedback").get<bool>();
  options.lr_in_accumulator = document.at("lr_in_accumulator").get<bool>();
  options.captured = trace.workers();
  options.density = 1;
  if (dense) return options;
  const AxisValue& captured = point.at("captured_workers");
  if (captured.value.get<std::int64_t>() > trace.workers())
    throw InputError(file, captured.pointer, "at most the trace's " + std::to_string(trace.workers()) + " workers", brief(captured.value));
  if (captured.value.get<std::int64_t>() > 0) options.captured = captured.value.get<std::int64_t>();
  options.density = point.at("density").value.get<double>();
  options.expansion = point.at("expansion").value.get<std::string>();
  options.seed = point.at("seed").value.get<std::uint64_t>();
  options.warmup = document.at("warmup_iterations").get<std::int64_t>();
  return options;
}

/// The experiment's times, or the trace's.
void compute_times(const Json& document, const traces::Trace& trace, const std::string& file, RunPoint& run) {
  if (document.contains("compute")) {
    const Json& compute = document.at("compute");
    run.timeline.forward_time_s = compute.at("forward_time_s").get<double>();
    run.timeline.backward_time_s = compute.at("backward_time_s").get<double>();
    run.compute_origin = compute.at("origin").get<std::string>();
    return;
  }
  const traces::TraceInfo& info = trace.info();
  if (!info.forward_time_s || !info.backward_time_s)
    throw InputError(file, "/compute", "forward and backward times, since the trace " + info.name + " has none", "no such key");
  if (!(*info.forward_time_s + *info.backward_time_s > 0))
    throw InputError(file, "/compute", "forward and backward times, since those of the trace " + info.name + " are 0", "no such key");
  run.timeline.forward_time_s = *info.forward_time_s;
  run.timeline.backward_time_s = *info.backward_time_s;
  run.compute_origin =
      "measured with the trace on " + (info.timing_device.empty() ? std::string("a device it does not name") : info.timing_device);
}

}  // namespace

const Json& experiment_schema() {
  static const Json schema = parse_json(embedded::experiment_schema, "experiment.schema.json");
  return schema;
}

std::vector<std::string> sample_trace_names() { return names_in(data_directory() / "traces" / "samples", true, ""); }
std::vector<std::string> experiment_names() { return names_in(data_directory() / "experiments", false, ".json"); }

fs::path find_trace(const std::string& name_or_path, const fs::path& base) {
  const fs::path sample = data_directory() / "traces" / "samples" / name_or_path;
  const fs::path path = resolve_file(name_or_path, base);
  if (path_exists(path / "trace.json")) return path;
  if (!is_path(name_or_path) && path_exists(sample / "trace.json")) return sample;
  std::error_code code;
  const bool is_there = fs::exists(path, code);
  throw InputError(path.string(), "", "a trace directory with trace.json, or one of the samples " + join(sample_trace_names()),
                   is_there ? "no trace.json in it"
                   : code   ? code.message()
                            : "no such directory");
}

fs::path find_experiment(const std::string& name_or_path) {
  if (path_exists(name_or_path) || is_path(name_or_path)) return name_or_path;
  const fs::path ready_made = data_directory() / "experiments" / (name_or_path + ".json");
  if (path_exists(ready_made)) return ready_made;
  throw InputError(name_or_path, "", "an experiment file, or one of the ready-made " + join(experiment_names()), "no such file");
}

platforms::Platform Experiment::platform_of(const RunPoint& run) const {
  platforms::Platform platform = platforms.at(run.platform);
  if (run.placement != "platform") platform.placement = platforms::Placement::from_text(run.placement);
  return platform;
}

Experiment Experiment::load(const fs::path& path) {
  Experiment experiment;
  experiment.file = path.string();
  const std::string& file = experiment.file;
  Json document = load_json(path);
  validate_json(document, experiment_schema(), file);
  write_defaults(document, experiment_schema());
  experiment.name = document.at("name").get<std::string>();
  experiment.title = document.value("title", experiment.name);
  const fs::path folder = fs::absolute(path).parent_path();

  // What the experiment names, opened once each. A name that is not found is the experiment's mistake: its pointer stands in the error.
  const auto at_pointer = [&](const AxisValue& value, const auto& find) {
    try {
      return find();
    } catch (const InputError& error) {
      throw InputError(file + ": " + value.pointer + ": " + std::string(error.what()));
    }
  };
  // Writes an axis as it stands in the effective experiment and gives the file of every value.
  const auto resolve_axis = [&](const std::string& key, const auto& find_path) {
    std::map<std::string, fs::path> files;
    Json written = Json::array();
    for (AxisValue& value : axis(document, key)) {
      const std::string name = value.value.get<std::string>();
      const fs::path found = at_pointer(value, [&] { return find_path(name); });
      // Names of shipped data stay names, so that an effective experiment can be used elsewhere; files become absolute.
      if (is_path(name) || found == resolve_file(name, folder)) value.value = fs::absolute(found).lexically_normal().string();
      if (!is_utf8(value.value))
        throw InputError(file, value.pointer, "a file whose path is UTF-8, as it must stand in JSON", brief(value.value));
      files.emplace(value.value.get<std::string>(), found);
      written.push_back(value.value);
    }
    document[key] = document.at(key).is_array() ? written : written.at(0);
    return files;
  };
  // Synthetic traces are made now. The effective experiment keeps their descriptions, with the model in them when it came from a file.
  Json described = document.at("trace");
  for (const AxisValue& value : axis(document, "trace")) {
    if (!value.value.is_object()) continue;
    const std::string place = file + ": " + value.pointer + "/synthesize";
    const Json& given = value.value.at("synthesize");
    const fs::path made = at_pointer(value, [&] { return synthetic_trace(given, folder, place); });
    const Json::json_pointer within(value.pointer.substr(std::string("/trace").size()));
    if (const Json& model = given.at("model"); model.is_string() && is_path(model.get<std::string>()))
      described[within]["synthesize"]["model"] = traces::load_model(resolve_file(model.get<std::string>(), folder).string());
    document[Json::json_pointer(value.pointer)] = made.string();
  }
  for (const auto& [name, found] : resolve_axis("trace", [&](const std::string& text) { return find_trace(text, folder); })) {
    const traces::Trace trace = traces::Trace::open(found);
    trace.verify_checksums();
    trace.verify_finite();
    experiment.traces.emplace(name, trace);
  }
  for (const auto& [name, found] : resolve_axis("platform", [&](const std::string& text) {
         return platforms::find_platform(is_path(text) ? resolve_file(text, folder).string() : text);
       }))
    experiment.platforms.emplace(name, platforms::Platform::load(found));
  for (const auto& [name, found] : resolve_axis("profile", [&](const std::string& text) {
         return kernels::find_profile(is_path(text) ? resolve_file(text, folder).string() : text);
       }))
    experiment.profiles.emplace(name, kernels::Profile::load(found));

  // Results go by the names inside these files: two different ones of one name could not be told apart.
  const auto check_names = [&](const std::string& key, const auto& name_and_sum) {
    std::map<std::string, std::pair<std::string, std::string>> seen;  // name -> SHA-256, where
    for (const AxisValue& value : axis(document, key)) {
      const auto [name, sum] = name_and_sum(value.value.get<std::string>());
      const auto& first = seen.try_emplace(name, sum, value.value.get<std::string>()).first->second;
      if (first.first != sum)
        throw InputError(file, value.pointer, "a " + key + " with a name of its own in it (results go by it)",
                         '"' + name + "\", which " + first.second + " has too");
    }
  };
  using NameAndSum = std::pair<std::string, std::string>;
  check_names("trace", [&](const std::string& at) {
    return NameAndSum(experiment.traces.at(at).info().name, experiment.traces.at(at).content_sha256());
  });
  check_names("platform",
              [&](const std::string& at) { return NameAndSum(experiment.platforms.at(at).name, experiment.platforms.at(at).sha256); });
  check_names("profile", [&](const std::string& at) {
    return NameAndSum(experiment.profiles.at(at).name(), experiment.profiles.at(at).content_sha256());
  });
  if (document.at("lr_in_accumulator").get<bool>())
    for (const auto& [name, trace] : experiment.traces)
      if (trace.info().learning_rate.empty())
        throw InputError(file, "/lr_in_accumulator", "false, as the trace " + trace.info().name + " has no learning_rate", "true");

  for (const auto& [key, operation] :
       {std::pair{"all_gather", sim::Operation::all_gather}, std::pair{"all_reduce", sim::Operation::all_reduce},
        std::pair{"broadcast", sim::Operation::broadcast}})
    for (const AxisValue& value : axis(document, key)) check_collective(operation, value, file);
  std::map<std::string, SparsifierValue> sparsifiers;  // by pointer
  Json complete = Json::array();
  for (const AxisValue& value : axis(document, "sparsifier")) {
    const SparsifierValue& checked = sparsifiers.emplace(value.pointer, sparsifier_value(value, file)).first->second;
    complete.push_back({{"name", checked.name}, {"parameters", checked.parameters}});
  }

  std::map<std::string, std::size_t> replay_of, self_check_of;
  std::set<std::string> seen_runs;
  for_each_point(document, [&](const Point& point) {
    const std::string trace_name = point.at("trace").value.get<std::string>();
    const traces::Trace& trace = experiment.traces.at(trace_name);
    const SparsifierValue& sparsifier = sparsifiers.at(point.at("sparsifier").pointer);
    const bool dense = sim::find_sparsifier(sparsifier.name).dense;

    ReplayPoint replay{trace_name, replay_options(document, point, sparsifier, trace, file), {}, {}};
    const sim::ReplayOptions& options = replay.options;
    std::string method = "captured";
    if (!dense) {
      const traces::ExpansionOptions expansion{options.expansion, options.workers, options.captured, options.seed};
      method = at_pointer(point.at("expansion"), [&] { return traces::choose_expansion(trace, expansion); }).method;
    }
    // Dense gradients travel as they are, whatever the encoding of selected ones.
    const std::string value_encoding = dense ? "fp32" : point.at("value_encoding").value.get<std::string>();
    const std::string index_encoding = dense ? "as_sent" : point.at("index_encoding").value.get<std::string>();
    replay.options.index_gaps = index_encoding == "delta";
    replay.identity = {{"kind", "replay"},
                       {"trace_sha256", trace.content_sha256()},
                       {"sparsifier", options.sparsifier},
                       {"parameters", options.parameters},
                       {"density", options.density},
                       {"workers", options.workers},
                       {"captured_workers", options.captured},
                       {"expansion", method},
                       {"seed", options.seed},
                       {"warmup_iterations", options.warmup},
                       {"iterations", options.iterations},
                       {"error_feedback", options.error_feedback},
                       {"lr_in_accumulator", options.lr_in_accumulator}};
    if (options.index_gaps) replay.identity["index_gaps"] = true;  // its records say more
    replay.key = short_hash(replay.identity);

    RunPoint run;
    if (method != "captured") {
      SelfCheckPoint check{trace_name, options, replay.identity, {}};
      check.identity["kind"] = "self_check";
      for (const char* key : {"sparsifier", "parameters", "warmup_iterations", "iterations", "index_gaps"}) check.identity.erase(key);
      check.key = short_hash(check.identity);
      const auto [place, is_new] = self_check_of.try_emplace(check.key, experiment.self_checks.size());
      if (is_new) experiment.self_checks.push_back(check);
      run.self_check = static_cast<std::int64_t>(place->second);
    }
    const auto [place, is_new] = replay_of.try_emplace(replay.key, experiment.replays.size());
    if (is_new) experiment.replays.push_back(replay);
    run.replay = place->second;

    const auto text = [&](const char* key) { return point.at(key).value.get<std::string>(); };
    run.platform = text("platform");
    run.profile = text("profile");
    at_pointer(point.at("workers"), [&] { experiment.platforms.at(run.platform).check_workers(options.workers); });
    compute_times(document, trace, file, run);
    run.timeline.extrapolate_profile = document.at("extrapolate_profile").get<bool>();
    run.network = document.at("network").get<std::string>();
    if (run.network == "nccl") {
      // NCCL chooses for itself: the experiment's algorithms make no difference.
      if (!experiment.platforms.at(run.platform).document.contains("nccl"))
        throw InputError(file, point.at("platform").pointer, "a platform with the key nccl, as network is nccl",
                         brief(point.at("platform").value));
    } else {
      run.timeline.collectives.all_gather = text("all_gather");
      run.timeline.collectives.all_reduce = text("all_reduce");
      run.timeline.collectives.broadcast = text("broadcast");
    }
    run.value_encoding = value_encoding;
    run.index_encoding = index_encoding;
    run.wire = sim::WireFormat::from_text(value_encoding, index_encoding);
    run.placement = text("placement");
    // As it is in the end: the platform's own by name is the same run as by "platform".
    run.placement = at_pointer(point.at("placement"), [&] { return experiment.platform_of(run).placement.text(); });
    run.identity = replay.identity;
    run.identity["kind"] = "run";
    run.identity["platform_sha256"] = experiment.platforms.at(run.platform).sha256;
    run.identity["profile_sha256"] = experiment.profiles.at(run.profile).content_sha256();
    run.identity["extrapolate_profile"] = run.timeline.extrapolate_profile;
    run.identity["forward_time_s"] = run.timeline.forward_time_s;
    run.identity["backward_time_s"] = run.timeline.backward_time_s;
    run.identity["compute_origin"] = run.compute_origin;
    run.identity["all_gather"] = run.timeline.collectives.all_gather;
    run.identity["all_reduce"] = run.timeline.collectives.all_reduce;
    run.identity["broadcast"] = run.timeline.collectives.broadcast;
    run.identity["network"] = run.network;
    run.identity["value_encoding"] = run.value_encoding;
    run.identity["index_encoding"] = run.index_encoding;
    run.identity["placement"] = run.placement;
    // It stands in the result, so a result that was asked for otherwise is another one.
    run.identity["expansion_requested"] = options.expansion;
    run.key = short_hash(run.identity);
    if (seen_runs.insert(run.key).second) experiment.runs.push_back(run);
  });
  experiment.effective = document;
  for (const AxisValue& value : axis(Json{{"trace", described}}, "trace"))
    if (value.value.is_object()) experiment.effective[Json::json_pointer(value.pointer)] = value.value;
  experiment.effective["sparsifier"] = document.at("sparsifier").is_array() ? complete : complete.at(0);
  return experiment;
}

}  // namespace sparscale::experiments
