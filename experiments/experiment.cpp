#include "experiments/experiment.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.hpp"
#include "base/files.hpp"
#include "experiments/results.hpp"
#include "experiments/synthetic_trace.hpp"
#include "experiments/timeline_fields.hpp"
#include "sim/collective.hpp"
#include "sim/sparsifier.hpp"
#include "sim/warmup.hpp"
#include "traces/synthesis.hpp"

namespace sparscale::experiments {
namespace fs = std::filesystem;
namespace {

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

/// A value of the sparsifier axis, checked: every parameter written out.
struct SparsifierValue {
  std::string name;
  Json parameters;
};

const sim::SparsifierInfo& sparsifier_info(const Written& written) {
  const bool bare = written.value.is_string();
  const auto name = (bare ? written.value : written.value.at("name")).get<std::string>();
  std::vector<std::string> names;
  for (const sim::SparsifierInfo& candidate : sim::sparsifiers()) {
    names.push_back(candidate.name);
    if (candidate.name == name) return candidate;
  }
  throw InputError(written.file, written.pointer + (bare ? "" : "/name"), "one of " + join(names), '"' + name + '"');
}

bool fits(const Json& value, const Json& schema) {
  try {
    validate_json(value, schema, "");
    return true;
  } catch (const InputError&) {
    return false;
  }
}

/// The values that one value stands for: a parameter that is a list (and does not take a list as its value) is an axis.
std::vector<Written> expand_sparsifier(const Written& written) {
  const sim::SparsifierInfo& info = sparsifier_info(written);
  std::vector<Json> parameters{Json::object()};
  if (written.value.is_object() && written.value.contains("parameters"))
    for (const auto& [key, value] : written.value.at("parameters").items()) {
      const auto known = std::find_if(info.parameters.begin(), info.parameters.end(),
                                      [&name = key](const sim::Parameter& parameter) { return parameter.name == name; });
      const bool is_axis = value.is_array() && known != info.parameters.end() && !fits(value, known->schema);
      const std::string place = written.pointer + "/parameters/" + key;
      if (is_axis && value.empty()) throw InputError(written.file, place, "at least one value", "[]");
      std::vector<Json> more;
      for (const Json& before : parameters)
        for (const Json& one : is_axis ? value : Json::array({value})) {
          more.push_back(before);
          more.back()[key] = one;
        }
      parameters = std::move(more);
      if (parameters.size() > 100000) throw InputError(written.file, place, "at most 100000 combinations of parameters", "more");
    }
  std::vector<Written> values;
  for (const Json& one : parameters)
    values.push_back(
        {{{"name", info.name}, {"parameters", sim::resolve_parameters(info, one, written.file, written.pointer + "/parameters")}},
         written.file,
         written.pointer});
  return values;
}

/// A field that names an algorithm: the name itself, or an object with it and options (gossip).
std::string algorithm_name(const Json& value) { return value.is_object() ? value.at("name").get<std::string>() : value.get<std::string>(); }

std::int64_t gossip_segments(const Json& value) {
  return value.is_object() ? value.at("segments").get<std::int64_t>() : sim::default_segments;
}

void check_collective(sim::Operation operation, const Json& value, const Written& place) {
  std::vector<std::string> names;
  const std::string wanted = algorithm_name(value);
  if (value.is_object() && !wanted.starts_with("crossover"))
    throw InputError(place.file, place.pointer, "crossover or crossover_hierarchical, as others have no segments", brief(value.at("name")));
  for (const sim::CollectiveAlgorithm& algorithm : sim::collective_algorithms()) {
    if (algorithm.operation != operation) continue;
    names.push_back(algorithm.name);
    if (algorithm.name == wanted) return;
  }
  throw InputError(place.file, place.pointer + (value.is_object() ? "/name" : ""), "one of " + join(names), brief(Json(wanted)));
}

/// Whether a point has the value that an exclusion asks for. Sparsifiers match by name and by the parameters that are asked for.
bool matches(const Json& wish, const Json& value) {
  if (wish.is_array()) return std::any_of(wish.begin(), wish.end(), [&](const Json& one) { return matches(one, value); });
  if (wish.is_object() && wish.contains("segments"))  // of gossip, which has some where they are not named, too
    return algorithm_name(wish) == algorithm_name(value) && gossip_segments(wish) == gossip_segments(value);
  if (!value.is_object() || !value.contains("name")) return wish == value;
  if (wish.is_string()) return wish == value.at("name");
  if (!wish.contains("name") || wish.at("name") != value.at("name")) return false;
  if (!wish.contains("parameters")) return true;
  for (const auto& [key, parameter] : wish.at("parameters").items())
    if (!value.at("parameters").contains(key) || value.at("parameters").at(key) != parameter) return false;
  return true;
}

/// The exclusions of a document: which of them a point matches.
class Exclusions {
 public:
  explicit Exclusions(const Document& document) : document_(document), rules_(document.json().value("exclude", Json::array())) {
    used_.resize(rules_.size(), false);
    const Json axes = document.json().value("axes", Json::object());
    std::vector<std::string> names = axis_fields();
    for (const auto& [name, values] : axes.items()) names.push_back(name);
    for (std::size_t i = 0; i < rules_.size(); ++i)
      for (const auto& [key, wish] : rules_[i].items())
        if (std::find(names.begin(), names.end(), key) == names.end()) {
          const std::string place = place_of(i) + "/" + key;
          throw InputError(document.file_of(place), place, "one of the axes " + join(names), "the unknown key " + brief(key));
        }
  }
  bool match(const Point& point) {
    bool any = false;
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      bool all = true;
      for (const auto& [key, wish] : rules_[i].items())
        all = all && (point.labels.contains(key) ? matches(wish, point.labels.at(key))
                                                 : point.contains(key) && matches(wish, point.at(key).value));
      if (all) used_[i] = true;
      any = any || all;
    }
    return any;
  }
  /// Errors: InputError for a rule that left nothing out, which is nearly always a slip.
  void check_used() const {
    for (std::size_t i = 0; i < rules_.size(); ++i)
      if (!used_[i]) throw InputError(document_.file_of(place_of(i)), place_of(i), "fields of at least one run", brief(rules_[i]));
  }

 private:
  static std::string place_of(std::size_t i) { return "/exclude/" + std::to_string(i); }
  const Document& document_;
  Json rules_;
  std::vector<bool> used_;
};

/// Dense exchanges do not depend on what is selected: density 1, no expansion, no warm-up, so that one run stands for all.
sim::ReplayOptions replay_options(const Point& point, const SparsifierValue& sparsifier, const traces::Trace& trace) {
  const bool dense = sim::find_sparsifier(sparsifier.name).dense;
  sim::ReplayOptions options;
  options.sparsifier = sparsifier.name;
  options.parameters = sparsifier.parameters;
  options.workers = point.at("workers").value.get<std::int64_t>();
  options.iterations = point.at("iterations").value.get<std::int64_t>();
  if (options.iterations == 0) options.iterations = trace.iterations();
  options.captured = trace.workers();
  options.density = 1;
  if (dense) return options;
  options.error_feedback = point.at("error_feedback").value.get<bool>();
  options.lr_in_accumulator = point.at("lr_in_accumulator").value.get<bool>();
  if (options.lr_in_accumulator && trace.info().learning_rate.empty())
    throw InputError(point.at("lr_in_accumulator").file, point.at("lr_in_accumulator").pointer,
                     "false, as the trace " + trace.info().name + " has no learning_rate", "true");
  const Written& memory = point.at("memory");
  options.memory = sim::MemoryChoice::parse(memory.value.get<std::string>(), memory.file + ": " + memory.pointer);
  const Written& captured = point.at("captured_workers");
  if (captured.value.get<std::int64_t>() > trace.workers())
    throw InputError(captured.file, captured.pointer, "at most the trace's " + std::to_string(trace.workers()) + " workers",
                     brief(captured.value));
  if (captured.value.get<std::int64_t>() > 0) options.captured = captured.value.get<std::int64_t>();
  const Written& density = point.at("density");
  options.density = density.value.get<double>();
  if (static_cast<std::int64_t>(options.density * static_cast<double>(trace.gradients())) < 1)
    throw InputError(
        density.file, density.pointer,
        "a density of at least 1 / " + std::to_string(trace.gradients()) + ", one of the gradients of the trace " + trace.info().name,
        brief(density.value));
  options.expansion = point.at("expansion").value.get<std::string>();
  options.seed = point.at("seed").value.get<std::uint64_t>();
  options.warmup = point.at("warmup_iterations").value.get<std::int64_t>();
  return options;
}

/// What an experiment names, found: a name that is not found is the experiment's mistake, so its place stands in the error.
template <typename Find>
auto at_place(const Written& place, const Find& find) {
  try {
    return find();
  } catch (const InputError& error) {
    throw InputError(place.file + ": " + place.pointer + ": " + std::string(error.what()));
  }
}

/// Opens everything that a field names, once each. Names of shipped data stay names, so that an effective experiment can be used
/// elsewhere; files, which are relative to the experiment's file that names them, become absolute.
template <typename FindPath, typename Open>
void open_all(Document& document, const std::string& field, const FindPath& find_path, const Open& open) {
  std::set<std::string> opened;
  document.visit_field(field, [&](Json& value, const Written& place, bool in_exclusion) {
    const auto name = value.get<std::string>();
    const fs::path folder = fs::absolute(place.file).parent_path();
    const fs::path found = at_place(place, [&] { return find_path(name, folder); });
    if (is_path(name) || found == resolve_file(name, folder)) value = fs::absolute(found).lexically_normal().string();
    if (!is_utf8(value)) throw InputError(place.file, place.pointer, "a file whose path is UTF-8, as it must stand in JSON", brief(value));
    if (!in_exclusion && opened.insert(value.get<std::string>()).second) open(value.get<std::string>(), found);
  });
}

/// Results go by the names inside these files: two different ones of one name could not be told apart.
template <typename NameAndSum>
void check_names(Document& document, const std::string& field, const NameAndSum& name_and_sum) {
  std::map<std::string, std::pair<std::string, std::string>> seen;  // name -> SHA-256, where
  document.visit_field(field, [&](Json& value, const Written& place, bool in_exclusion) {
    if (in_exclusion) return;
    const auto [name, sum] = name_and_sum(value.get<std::string>());
    const auto& first = seen.try_emplace(name, sum, value.get<std::string>()).first->second;
    if (first.first != sum)
      throw InputError(place.file, place.pointer, "a " + field + " with a name of its own in it (results go by it)",
                       '"' + name + "\", which " + first.second + " has too");
  });
}

/// Whether a run has what a term's `where` names. Of keys that are known before it runs; `all_known`: whether they all were.
bool may_match(const Experiment& experiment, const RunPoint& run, const Json& where, bool& all_known) {
  const ReplayPoint& replay = experiment.replays.at(run.replay);
  const sim::ReplayOptions& options = replay.options;
  const Json known = {{"trace", experiment.traces.at(replay.trace).info().name},
                      {"sparsifier", options.sparsifier},
                      {"density", options.density},
                      {"workers", options.workers},
                      {"captured_workers", options.captured},
                      {"seed", options.seed},
                      {"iterations", options.iterations},
                      {"warmup_iterations", options.warmup},
                      {"error_feedback", options.error_feedback},
                      {"lr_in_accumulator", options.lr_in_accumulator},
                      {"network_requested", run.network},
                      {"value_encoding", run.value_encoding},
                      {"index_encoding", run.index_encoding}};
  for (const auto& [key, wish] : where.items()) {
    if (!known.contains(key)) {
      all_known = false;
      continue;
    }
    const Json choices = wish.is_array() ? wish : Json::array({wish});
    if (std::find(choices.begin(), choices.end(), known.at(key)) == choices.end()) return false;
  }
  return true;
}

/// Errors: InputError when a claim looks at recorded iterations that its runs do not have.
void check_claimed_iterations(const Experiment& experiment, const Json& claims, const std::string& file) {
  for (std::size_t i = 0; i < claims.size(); ++i)
    for (const char* side : {"value", "over"}) {
      if (!claims[i].contains(side) || !claims[i].at(side).is_object() || !claims[i].at(side).contains("series")) continue;
      const Json& term = claims[i].at(side);
      const char* const key = term.contains("to") ? "to" : "from";
      if (!term.contains(key)) continue;
      const std::int64_t needed = term.at(key).get<std::int64_t>() + (term.contains("to") ? 0 : 1);
      bool all_known = true;
      std::int64_t least = 0, most = 0;
      for (const RunPoint& run : experiment.runs) {
        if (!may_match(experiment, run, term.value("where", Json::object()), all_known)) continue;
        const std::int64_t iterations = experiment.replays.at(run.replay).options.iterations;
        least = least == 0 ? iterations : std::min(least, iterations);
        most = std::max(most, iterations);
      }
      const std::int64_t has = all_known ? least : most;
      if (has > 0 && needed > has)
        throw InputError(
            file, "/claims/" + std::to_string(i) + "/" + side + "/" + key,
            std::string(term.contains("to") ? "at most " : "less than ") + std::to_string(has) + ", as many iterations as its runs record",
            brief(term.at(key)));
    }
}

/// Labels that two points with one run share; a label that they do not share says nothing about the run.
Json shared_labels(const Json& a, const Json& b) {
  Json shared = Json::object();
  for (const auto& [name, label] : a.items())
    if (b.contains(name) && b.at(name) == label) shared[name] = label;
  return shared;
}

}  // namespace

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
  Document document = Document::load(path);
  experiment.name = document.json().at("name").get<std::string>();
  experiment.title = document.json().value("title", experiment.name);
  experiment.parents = document.parents();

  if (document.json().contains("claims")) check_claims(document.json().at("claims"), document.file_of("/claims"), "/claims");

  // Synthetic traces are made now. The effective experiment keeps their descriptions, with the model in them when it came from a file.
  std::map<std::string, Json> described;  // by pointer
  std::set<std::string> cached;           // their folders
  document.visit_field("trace", [&](Json& value, const Written& place, bool) {
    if (!value.is_object()) return;
    const Json& given = value.at("synthesize");
    // A file that extends another may have replaced the model alone.
    const std::string pointer = place.pointer + "/synthesize", written_in = document.file_of(pointer + "/model");
    const fs::path folder = fs::absolute(written_in).parent_path();
    const fs::path made =
        at_place({value, written_in, place.pointer}, [&] { return synthetic_trace(given, folder, written_in + ": " + pointer); });
    Json& description = described[place.pointer];
    description = value;
    if (const Json& model = given.at("model"); model.is_string() && is_path(model.get<std::string>()))
      description["synthesize"]["model"] = traces::load_model(resolve_file(model.get<std::string>(), folder).string());
    value = made.string();
    cached.insert(value.get<std::string>());
  });
  open_all(document, "trace", find_trace, [&](const std::string& name, const fs::path& found) {
    try {
      const traces::Trace trace = traces::Trace::open(found);
      trace.verify_checksums();
      trace.verify_finite();
      experiment.traces.emplace(name, trace);
    } catch (const InputError& error) {
      if (!cached.contains(name)) throw;
      throw InputError(std::string(error.what()) + " (the cached synthetic trace is damaged: delete its folder to have it made again)");
    }
  });
  open_all(
      document, "platform",
      [](const std::string& text, const fs::path& folder) {
        return platforms::find_platform(is_path(text) ? resolve_file(text, folder).string() : text);
      },
      [&](const std::string& name, const fs::path& found) { experiment.platforms.emplace(name, platforms::Platform::load(found)); });
  open_all(
      document, "profile",
      [](const std::string& text, const fs::path& folder) {
        return kernels::find_profile(is_path(kernels::profile_file(text)) ? resolve_file(text, folder).string() : text);
      },
      [&](const std::string& name, const fs::path& found) { experiment.profiles.emplace(name, kernels::Profile::load(found)); });
  using NameAndSum = std::pair<std::string, std::string>;
  check_names(document, "trace", [&](const std::string& at) {
    return NameAndSum(experiment.traces.at(at).info().name, experiment.traces.at(at).content_sha256());
  });
  check_names(document, "platform",
              [&](const std::string& at) { return NameAndSum(experiment.platforms.at(at).name, experiment.platforms.at(at).sha256); });
  check_names(document, "profile", [&](const std::string& at) {
    return NameAndSum(experiment.profiles.at(at).name(), experiment.profiles.at(at).content_sha256());
  });
  for (const auto& [field, operation] :
       {std::pair{"all_gather", sim::Operation::all_gather}, std::pair{"all_reduce", sim::Operation::all_reduce},
        std::pair{"broadcast", sim::Operation::broadcast}, std::pair{"reduce_scatter", sim::Operation::reduce_scatter},
        std::pair{"reduce", sim::Operation::reduce}, std::pair{"all_to_all", sim::Operation::all_to_all},
        std::pair{"gossip", sim::Operation::gossip}})
    document.visit_field(field,
                         [operation = operation](Json& value, const Written& place, bool) { check_collective(operation, value, place); });
  // Every parameter written out; lists of parameters stay lists.
  document.visit_field("sparsifier", [](Json& value, const Written& place, bool in_exclusion) {
    const sim::SparsifierInfo& info = sparsifier_info(place);
    const std::vector<Written> expanded = expand_sparsifier(place);
    if (in_exclusion) return;
    Json parameters = sim::resolve_parameters(info, Json::object(), place.file, place.pointer);
    if (value.is_object() && value.contains("parameters"))
      for (const auto& [key, given] : value.at("parameters").items()) parameters[key] = given;
    value = {{"name", info.name}, {"parameters", parameters}};
  });
  document.visit_field("timeline",
                       [](Json& value, const Written& place, bool) { value = sim::resolve_timeline(value, place.file, place.pointer); });
  experiment.effective = document.json();
  for (const auto& [pointer, description] : described) experiment.effective[Json::json_pointer(pointer)] = description;

  std::map<std::string, std::size_t> replay_of, self_check_of, run_of;
  Exclusions exclusions(document);
  document.for_each_point(expand_sparsifier, [&](const Point& point) {
    if (exclusions.match(point)) return;
    const auto text = [&](const char* key) { return point.at(key).value.get<std::string>(); };
    const std::string trace_name = text("trace");
    const traces::Trace& trace = experiment.traces.at(trace_name);
    const Json& sparsifier = point.at("sparsifier").value;
    const SparsifierValue checked{sparsifier.at("name").get<std::string>(), sparsifier.at("parameters")};
    const bool dense = sim::find_sparsifier(checked.name).dense;

    ReplayPoint replay{
        trace_name, replay_options(point, checked, trace), {}, {}, point.at("sparsifier").file + ": " + point.at("sparsifier").pointer};
    const sim::ReplayOptions& options = replay.options;
    std::string method = "captured";
    if (!dense) {
      const traces::ExpansionOptions expansion{options.expansion, options.workers, options.captured, options.seed};
      method = at_place(point.at("expansion"), [&] { return traces::choose_expansion(trace, expansion); }).method;
    }
    // Dense gradients travel as they are, whatever the encoding of selected ones.
    const std::string value_encoding = dense ? "fp32" : point.at("value_encoding").value.get<std::string>();
    const std::string index_encoding = dense ? "as_sent" : point.at("index_encoding").value.get<std::string>();
    replay.options.index_gaps = index_encoding == "delta";
    if (replay.options.index_gaps && options.memory.mode == sim::MemoryChoice::Mode::sample) {
      const auto& written = point.at("index_encoding");
      throw InputError(written.file, written.pointer,
                       "another encoding than delta with memory " + options.memory.text() +
                           ", as distances between sampled gradients are not those of the model",
                       "\"delta\"");
    }
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
    if (const std::int64_t looped = sim::warmup_positions(trace, options); options.warmup > 0 && looped < trace.iterations())
      replay.identity["warmup_window"] = looped;
    if (options.index_gaps) replay.identity["index_gaps"] = true;  // its records say more
    if (options.memory.mode != sim::MemoryChoice::Mode::full) replay.identity["memory"] = options.memory.text();
    replay.key = short_hash(replay.identity);

    RunPoint run;
    if (method != "captured") {
      SelfCheckPoint check{trace_name, options, replay.identity, {}};
      check.identity["kind"] = "self_check";
      for (const char* key : {"sparsifier", "parameters", "warmup_iterations", "warmup_window", "iterations", "index_gaps", "memory"})
        check.identity.erase(key);
      if (options.memory.mode == sim::MemoryChoice::Mode::sample) check.identity["memory"] = options.memory.text();
      check.key = short_hash(check.identity);
      const auto [place, is_new] = self_check_of.try_emplace(check.key, experiment.self_checks.size());
      if (is_new) experiment.self_checks.push_back(check);
      run.self_check = static_cast<std::int64_t>(place->second);
    }
    const auto [found, is_new] = replay_of.try_emplace(replay.key, experiment.replays.size());
    if (is_new) experiment.replays.push_back(replay);
    run.replay = found->second;

    run.platform = text("platform");
    run.profile = text("profile");
    run.profile_place = point.at("profile").file + ": " + point.at("profile").pointer;
    run.labels = point.labels;
    at_place(point.at("workers"), [&] { experiment.platforms.at(run.platform).check_workers(options.workers); });
    set_compute_times(point, trace, file, run);
    run.timeline.extrapolate_profile = point.at("extrapolate_profile").value.get<bool>();
    run.network = text("network");
    sim::CollectiveChoice& collectives = run.timeline.collectives;
    if (run.network == "nccl") {
      // NCCL chooses for itself: the experiment's algorithms make no difference.
      if (!experiment.platforms.at(run.platform).document.contains("nccl"))
        throw InputError(point.at("platform").file, point.at("platform").pointer, "a platform with the key nccl, as network is nccl",
                         brief(point.at("platform").value));
    } else {
      collectives = {text("all_gather"),
                     text("all_reduce"),
                     text("broadcast"),
                     text("reduce_scatter"),
                     text("reduce"),
                     text("all_to_all"),
                     algorithm_name(point.at("gossip").value)};
      run.timeline.gossip_segments = gossip_segments(point.at("gossip").value);
    }
    run.value_encoding = value_encoding;
    run.index_encoding = index_encoding;
    run.wire = sim::WireFormat::from_text(value_encoding, index_encoding);
    run.placement = text("placement");
    // As it is in the end: the platform's own by name is the same run as by "platform".
    run.placement = at_place(point.at("placement"), [&] { return experiment.platform_of(run).placement.text(); });
    run.identity = replay.identity;
    run.identity["kind"] = "run";
    run.identity["platform_sha256"] = experiment.platforms.at(run.platform).sha256;
    run.identity["profile_sha256"] = experiment.profiles.at(run.profile).content_sha256();
    run.identity["extrapolate_profile"] = run.timeline.extrapolate_profile;
    run.identity["forward_time_s"] = run.timeline.forward_time_s;
    run.identity["backward_time_s"] = run.timeline.backward_time_s;
    run.identity["compute_origin"] = run.compute_origin;
    run.identity["all_gather"] = collectives.all_gather;
    run.identity["all_reduce"] = collectives.all_reduce;
    run.identity["broadcast"] = collectives.broadcast;
    run.identity["reduce_scatter"] = collectives.reduce_scatter;
    run.identity["reduce"] = collectives.reduce;
    run.identity["all_to_all"] = collectives.all_to_all;
    run.identity["gossip"] = collectives.gossip;
    if (run.timeline.gossip_segments != sim::default_segments) run.identity["gossip_segments"] = run.timeline.gossip_segments;
    run.identity["network"] = run.network;
    run.identity["value_encoding"] = run.value_encoding;
    run.identity["index_encoding"] = run.index_encoding;
    run.identity["placement"] = run.placement;
    // It stands in the result, so a result that was asked for otherwise is another one.
    run.identity["expansion_requested"] = options.expansion;
    set_timeline(experiment, replay, point, run);
    run.key = short_hash(run.identity);
    const auto [known, is_new_run] = run_of.try_emplace(run.key, experiment.runs.size());
    if (is_new_run)
      experiment.runs.push_back(run);
    else
      experiment.runs[known->second].labels = shared_labels(experiment.runs[known->second].labels, run.labels);
  });
  exclusions.check_used();
  if (experiment.runs.empty()) throw InputError(document.file_of("/exclude"), "/exclude", "rules that leave at least one run", "none left");
  if (document.json().contains("claims")) check_claimed_iterations(experiment, document.json().at("claims"), document.file_of("/claims"));
  return experiment;
}

}  // namespace sparscale::experiments
