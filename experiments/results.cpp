#include "experiments/results.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "base/error.hpp"
#include "base/files.hpp"
#include "experiments/environment.hpp"
#include "experiments/observed_traffic.hpp"
#include "experiments/timeline_fields.hpp"
#include "sim/iteration_view.hpp"
#include "sim/sparsifier.hpp"

namespace sparscale::experiments {
namespace {

double mean(const std::vector<double>& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// Quantile by linear interpolation between order statistics (the default of numpy.quantile). NaN when one of the values is: it has no
/// place in an order.
double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  for (const double value : values)
    if (std::isnan(value)) return value;
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (at - static_cast<double>(below));
}

/// A number, or the mean of a list's numbers; NaN when there is none (a worker without a threshold has null).
double mean_of(const Json& value) {
  if (value.is_number()) return value.get<double>();
  std::vector<double> numbers;
  if (value.is_array())
    for (const Json& entry : value)
      if (entry.is_number()) numbers.push_back(entry.get<double>());
  return numbers.empty() ? std::nan("") : mean(numbers);
}

std::string csv_field(const Json& value) {
  if (value.is_null()) return "";
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  if (value.is_number_float()) return number_text(value.get<double>());
  if (value.is_number()) return value.dump();
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

Json finite(double value) { return std::isfinite(value) ? Json(value) : Json(); }

/// Parameters that differ from the sparsifier's defaults.
Json changed_parameters(const std::string& sparsifier, const Json& parameters) {
  Json changed = Json::object();
  for (const sim::Parameter& parameter : sim::find_sparsifier(sparsifier).parameters)
    if (parameters.at(parameter.name) != parameter.default_value) changed[parameter.name] = parameters.at(parameter.name);
  return changed;
}

std::string rounded(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*g", digits, value);
  // %g turns to exponents where a person would still read digits.
  if (std::abs(value) >= 1 && std::abs(value) < 1e6)
    std::snprintf(text, sizeof text, "%.*f", value >= 100 ? 0 : value >= 10 ? 1 : 2, value);
  return text;
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, share >= 0.0995 ? "%.0f %%" : "%.1f %%", 100 * share);
  return share > 0 && share < 0.0005 ? "below 0.1 %" : share == 0 ? "0 %" : text;
}

std::string time_text(double seconds) {
  if (seconds >= 1) return rounded(seconds, 3) + " s";
  if (seconds >= 1e-3) return rounded(seconds * 1e3, 3) + " ms";
  return rounded(seconds * 1e6, 3) + " us";
}

std::string join(const std::vector<std::string>& parts, const std::string& separator) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : separator) + part;
  return text;
}

}  // namespace

const std::vector<Column>& result_columns() {
  static const std::vector<Column> columns = {
      {"run_id", "", "name of the run's file in runs/"},
      {"metric_group", "", "selection, time or traffic"},
      {"trace", "", "trace name"},
      {"sparsifier", "", "as in 'sparscale list sparsifiers'"},
      {"parameters", "", "the sparsifier's parameters and the encodings that differ from their defaults, compact JSON"},
      {"density", "", "wanted fraction of gradients"},
      {"workers", "", "n"},
      {"captured_workers", "", "captured workers used"},
      {"expansion", "", "how the workers were made: captured, boot or hybrid"},
      {"expansion_requested", "", "what the experiment asked for: auto or one of them"},
      {"validated", "", "true inside the range that expansion was compared with captured workers"},
      {"labels", "", "names of the values of the experiment's named axes, compact JSON"},
      {"error_feedback", "", "whether residuals are kept"},
      {"memory", "", "how the replay kept residuals: full, sample:FRACTION, f16, disk:FOLDER, recompute"},
      {"lr_in_accumulator", "", "whether the learning rate is in the accumulator"},
      {"platform", "",
       "platform name; in brackets the placement where it is not the platform's own, a timeline that is not sequential, a disturbance"},
      {"profile", "", "kernel profile name"},
      {"network_requested", "", "network back-end that the experiment asked for"},
      {"network", "", "network back-ends that timed the collectives, joined by +; none when nothing was sent"},
      {"all_gather", "", "algorithm of the all-gathers; of all of them, nccl where it is NCCL's choice"},
      {"all_reduce", "", "algorithm of the all-reduces"},
      {"broadcast", "", "algorithm of the broadcasts"},
      {"reduce_scatter", "", "algorithm of the reduce-scatters"},
      {"reduce", "", "algorithm of the reductions to one worker"},
      {"all_to_all", "", "algorithm of the all-to-alls"},
      {"gossip", "", "algorithm of gossip exchanges"},
      {"placement", "", "which worker runs on which device: consecutive, round_robin, random:SEED"},
      {"value_encoding", "", "how float32 values travel"},
      {"index_encoding", "", "how indices travel"},
      {"timeline", "", "how the phases follow one another, as in 'sparscale list timelines'"},
      {"timeline_options", "", "the timeline's options that differ from their defaults, compact JSON"},
      {"disturbance", "", "jitter, stragglers and slowed links, compact JSON"},
      {"seed", "", "seed of the replay"},
      {"seeds", "", "number of runs that differ from this one in the seed alone, itself among them"},
      {"counts_origin", "", "captured (n <= W) or projected (n > W)"},
      {"kernel_times_origin", "", "measured or modelled, and whether extrapolated"},
      {"extrapolate_profile", "", "whether kernel times outside the profile's range were allowed"},
      {"forward_time_s", "", "forward time of one worker"},
      {"backward_time_s", "", "backward time of one worker"},
      {"compute_times_origin", "", "where forward and backward times come from"},
      {"iterations", "", "recorded iterations"},
      {"warmup_iterations", "", "iterations before the first recorded one"},
      {"target_k", "selection", "trunc(density x gradients)"},
      {"selected_sum_mean", "selection", "K, sum over workers"},
      {"selected_max_mean", "selection", "largest count of one worker"},
      {"union_mean", "selection", "U, distinct indices exchanged"},
      {"actual_density_mean", "selection", "U / N"},
      {"actual_density_p05", "selection", "5 % quantile over iterations"},
      {"actual_density_p95", "selection", "95 % quantile over iterations"},
      {"build_up_mean", "selection", "U / target_k"},
      {"build_up_p05", "selection", "5 % quantile over iterations"},
      {"build_up_p95", "selection", "95 % quantile over iterations"},
      {"build_up_calibrated_mean", "selection",
       "local Top-k only: build-up with the number-only calibration of the expansion; empty when not projected"},
      {"build_up_consensus_mean", "selection",
       "projected local Top-k only: build-up by the consensus of the projection, its calibration and the estimate from the captured "
       "workers' counts"},
      {"build_up_estimate_low", "selection", "the least of these three; with the next column the uncertainty of the projection"},
      {"build_up_estimate_high", "selection", "the largest of them"},
      {"build_up_seed_low", "selection", "least build_up_mean of the runs that differ from this one in the seed alone"},
      {"build_up_seed_high", "selection", "largest of them"},
      {"padding_mean", "selection", "n x largest count / sum of counts"},
      {"padding_p05", "selection", "5 % quantile over iterations"},
      {"padding_p95", "selection", "95 % quantile over iterations"},
      {"threshold_mean", "selection", "mean over iterations and workers; empty when there is none"},
      {"residual_norm_mean", "selection", "L2 norm of the residual, mean over workers and iterations"},
      {"energy_exchanged_mean", "selection", "share of the squared accumulator entries that the workers contributed, mean over iterations"},
      {"iteration_time_s_mean", "time", "one iteration"},
      {"iteration_time_s_p05", "time", "5 % quantile over iterations"},
      {"iteration_time_s_p95", "time", "95 % quantile over iterations"},
      {"iteration_time_s_kernel_low", "time",
       "mean with the lower quartile of every kernel time; empty when the profile's times are not measured"},
      {"iteration_time_s_kernel_high", "time", "mean with the upper quartile of every kernel time"},
      {"iteration_time_s_seed_low", "time", "least iteration_time_s_mean of the runs that differ from this one in the seed alone"},
      {"iteration_time_s_seed_high", "time", "largest of them"},
      {"forward_backward_time_s", "time", "mean"},
      {"selection_time_s", "time", "threshold selection, top-k; mean"},
      {"selection_time_s_kernel_low", "time", "mean with the lower quartile of every kernel time"},
      {"selection_time_s_kernel_high", "time", "mean with the upper quartile of every kernel time"},
      {"index_exchange_time_s", "time", "counts, indices, plans; mean"},
      {"value_exchange_time_s", "time", "values, dense gradients; mean"},
      {"other_time_s", "time", "accumulate, unite, gather, zero, casts; mean"},
      {"exposed_exchange_time_s", "time", "waiting for communication: index plus value exchange; mean"},
      {"overlapped_time_s", "time", "communicating while computing, on the worker that is done last; mean"},
      {"worker_spread_s", "time", "last worker's end minus first worker's end; mean"},
      {"speed_up", "time", "n x time of one worker that does not communicate / iteration time"},
      {"bytes_sent_per_worker_mean", "traffic", "mean over workers and iterations"},
      {"bytes_sent_per_worker_max", "traffic", "largest over workers, mean over iterations"},
      {"messages_mean", "traffic", "messages of one iteration"},
      {"bytes_received_per_worker_max", "traffic", "largest over workers, mean over iterations"},
      {"receive_buffer_bytes_max", "traffic", "the largest buffer that a call fills at a worker, over workers and iterations"},
      {"device_link_bytes_mean", "traffic", "bytes over the devices' links (NVLink, PCIe), every crossing counted, mean over iterations"},
      {"nic_bytes_mean", "traffic", "the same over NICs"},
      {"network_link_bytes_mean", "traffic", "the same over the links of the network"},
      {"global_link_bytes_mean", "traffic", "the same over the links between groups of a dragonfly"}};
  return columns;
}

void check_claims(const Json& claims, const std::string& file, const std::string& place) {
  // What run_document writes under "series".
  static const std::set<std::string> series = {"selected_sum",
                                               "selected_max",
                                               "union",
                                               "density",
                                               "build_up",
                                               "padding",
                                               "threshold",
                                               "residual_norm",
                                               "energy_exchanged",
                                               "iteration_time_s",
                                               "selection_time_s",
                                               "forward_backward_time_s",
                                               "index_exchange_time_s",
                                               "value_exchange_time_s",
                                               "other_time_s",
                                               "exposed_exchange_time_s",
                                               "overlapped_time_s",
                                               "worker_spread_s",
                                               "messages",
                                               "bytes_sent_per_worker_mean",
                                               "bytes_sent_per_worker_max",
                                               "bytes_received_per_worker_max",
                                               "device_link_bytes",
                                               "nic_bytes",
                                               "network_link_bytes",
                                               "global_link_bytes"};
  static const std::set<std::string> numbers = {"density",         "workers",    "captured_workers", "seed", "seeds", "forward_time_s",
                                                "backward_time_s", "iterations", "warmup_iterations"};
  static const std::set<std::string> truths = {"validated", "error_feedback", "lr_in_accumulator", "extrapolate_profile"};
  static const std::set<std::string> objects = {"parameters", "labels", "timeline_options", "disturbance"};
  const auto group_of = [](const std::string& name) -> const std::string* {
    for (const Column& column : result_columns())
      if (column.name == name) return &column.group;
    return nullptr;
  };
  const auto check_term = [&](const Json& term, const std::string& here) {
    if (term.contains("column")) {
      const auto name = term.at("column").get<std::string>();
      const std::string* group = group_of(name);
      if (group == nullptr || group->empty())
        throw InputError(file, here + "/column", "a column with numbers of results.csv ('sparscale list columns')",
                         brief(term.at("column")));
    } else if (!series.contains(term.at("series").get<std::string>())) {
      throw InputError(file, here + "/series", "one of " + join({series.begin(), series.end()}, ", "), brief(term.at("series")));
    }
    if (term.contains("to") && term.value("from", std::int64_t{0}) >= term.at("to").get<std::int64_t>())
      throw InputError(file, here + "/to", "more than from, " + std::to_string(term.value("from", std::int64_t{0})), brief(term.at("to")));
    const Json where = term.value("where", Json::object());
    for (const auto& [key, wish] : where.items()) {
      Json::json_pointer last;
      last.push_back(key);
      const std::string there = here + "/where" + last.to_string();
      const std::string* group = group_of(key);
      if (group == nullptr || !group->empty() || key == "run_id" || key == "metric_group")
        throw InputError(file, there, "a key column of results.csv ('sparscale list columns')", "none of this name");
      const bool number = numbers.contains(key), truth = truths.contains(key), object = objects.contains(key);
      for (const Json& one : wish.is_array() ? wish : Json::array({wish}))
        if (number ? !one.is_number() : truth ? !one.is_boolean() : object ? !one.is_object() : !one.is_string())
          throw InputError(file, there,
                           number   ? "a number or a list of them"
                           : truth  ? "true or false"
                           : object ? "an object or a list of them"
                                    : "a text or a list of them",
                           brief(one));
    }
  };
  for (std::size_t i = 0; i < claims.size(); ++i) {
    const Json& claim = claims[i];
    const std::string here = place + "/" + std::to_string(i);
    if (claim.contains("over") && claim.at("over").is_number() && claim.at("over").get<double>() == 0)
      throw InputError(file, here + "/over", "a number other than 0", "0");
    if (claim.contains("at_least") && claim.contains("at_most") && claim.at("at_least").get<double>() > claim.at("at_most").get<double>())
      throw InputError(file, here + "/at_most", "at least at_least, " + claim.at("at_least").dump(), claim.at("at_most").dump());
    for (const char* side : {"value", "over"})
      if (claim.contains(side) && claim.at(side).is_object()) check_term(claim.at(side), here + "/" + side);
  }
}

Json run_document(const Experiment& experiment, const RunPoint& run, const Json& replay_expansion, const Json& self_check,
                  const std::vector<Json>& records, const std::vector<sim::IterationTime>& times, const sim::WireUse& wire,
                  const sim::IterationLog& log, const std::vector<sim::IterationTime>& kernel_low,
                  const std::vector<sim::IterationTime>& kernel_high) {
  const ReplayPoint& replay = experiment.replays.at(run.replay);
  Json expansion = replay_expansion;
  if (sim::find_sparsifier(replay.options.sparsifier).dense) {
    // Everything is sent whatever the gradients are: nothing is projected.
    expansion["method"] = "captured";
    expansion["validated"] = true;
    expansion["warnings"] = Json::array();
  }
  const traces::TraceInfo& trace = experiment.traces.at(replay.trace).info();
  const kernels::Profile& profile = experiment.profiles.at(run.profile);
  const bool projected = expansion.at("method") != "captured";

  std::map<std::string, std::vector<double>> series;
  for (const Json& record : records) {
    for (const char* key : {"selected_sum", "selected_max", "union", "density", "build_up", "padding"})
      series[key].push_back(record.at(key).is_number() ? record.at(key).get<double>() : std::nan(""));
    series["threshold"].push_back(record.contains("threshold") ? mean_of(record.at("threshold")) : std::nan(""));
    series["residual_norm"].push_back(record.contains("residual_norm") ? mean_of(record.at("residual_norm")) : std::nan(""));
    series["energy_exchanged"].push_back(record.contains("energy_exchanged") ? mean_of(record.at("energy_exchanged")) : std::nan(""));
  }
  std::set<std::string> networks;
  bool extrapolated = false;
  for (const sim::IterationTime& time : times) {
    series["iteration_time_s"].push_back(time.iteration_time_s);
    series["forward_backward_time_s"].push_back(time.forward_backward_time_s);
    series["selection_time_s"].push_back(time.selection_time_s);
    series["index_exchange_time_s"].push_back(time.index_exchange_time_s);
    series["value_exchange_time_s"].push_back(time.value_exchange_time_s);
    series["other_time_s"].push_back(time.other_time_s);
    series["exposed_exchange_time_s"].push_back(time.index_exchange_time_s + time.value_exchange_time_s);
    series["overlapped_time_s"].push_back(time.overlapped_time_s);
    series["worker_spread_s"].push_back(time.worker_spread_s);
    series["bytes_sent_per_worker_mean"].push_back(time.bytes_sent_mean);
    series["bytes_sent_per_worker_max"].push_back(time.bytes_sent_max);
    series["bytes_received_per_worker_max"].push_back(
        static_cast<double>(time.bytes_received.empty() ? 0 : *std::ranges::max_element(time.bytes_received)));
    for (std::size_t of = 0; of < platforms::link_classes; ++of)
      series[platforms::link_class_name(static_cast<platforms::LinkClass>(of)) + std::string("_bytes")].push_back(
          of < time.class_bytes.size() ? static_cast<double>(time.class_bytes[of]) : 0);
    series["messages"].push_back(static_cast<double>(time.messages));
    networks.insert(time.networks.begin(), time.networks.end());
    extrapolated = extrapolated || time.extrapolated;
  }

  std::vector<std::string> warnings = expansion.at("warnings").get<std::vector<std::string>>();
  if (self_check.is_object() && self_check.contains("warnings"))
    for (const Json& warning : self_check.at("warnings")) warnings.push_back(warning.get<std::string>());
  // The same gradients again and again add the same noise to the residuals (docs/expansion.md, "Several passes").
  // Where the warm-up goes over the first positions only, these are looked at: the recorded iterations begin with them again.
  const auto window = static_cast<std::int64_t>(trace.iterations.size()), looped = replay.identity.value("warmup_window", window),
             recorded = replay.options.iterations;
  const std::int64_t replayed = replay.options.warmup + recorded / window * looped + std::min(recorded % window, looped);
  if (!projected && !sim::find_sparsifier(replay.options.sparsifier).dense && replay.options.error_feedback && replayed > looped)
    warnings.push_back("counts of captured workers come from " + rounded(static_cast<double>(replayed) / static_cast<double>(looped), 3) +
                       " passes over the same " + std::to_string(looped) +
                       " iterations, whose noise adds up: build-up is overstated (by 2 to 28 % where it was compared)");
  if (const Json* sampling = records.front().contains("sampling") ? &records.front().at("sampling") : nullptr) {
    std::vector<double> unions, counts;
    for (const Json& record : records) {
      unions.push_back(record.at("sampling").at("union_error").get<double>());
      counts.push_back(record.at("sampling").at("selected_error").get<double>());
    }
    warnings.push_back("counts come from a sample of " + percent(sampling->at("fraction").get<double>()) + " of the gradients (memory " +
                       replay.options.memory.text() + "): standard error of the union " + percent(mean(unions)) +
                       ", of one worker's count " + percent(mean(counts)) + " before correction");
  } else if (replay.options.memory.mode == sim::MemoryChoice::Mode::f16) {
    warnings.push_back("residuals are kept as F16 (memory f16): accumulators are rounded to 11 bits in every iteration");
  } else if (replay.options.memory.mode == sim::MemoryChoice::Mode::recompute) {
    warnings.push_back("accumulators are summed again when they are read (memory recompute): no residual norms, no exchanged energy");
  }
  if (extrapolated) warnings.push_back("kernel times extrapolated beyond the profile " + profile.name());
  if (profile.origin() != "measured")
    warnings.push_back("kernel times of the profile " + profile.name() + " are " + profile.origin() + ", not measured");

  if (std::any_of(times.begin(), times.end(), [](const sim::IterationTime& one) { return one.even_parts; }))
    warnings.push_back("the records do not say what goes to whom in an all-to-all: its parts are taken for equal");

  if (wire.values)
    warnings.push_back("values travel as " + run.value_encoding +
                       ": casts are charged, what the rounding does to training is not looked at");
  if (wire.indices && run.index_encoding != "int64")
    warnings.push_back("indices travel as " + run.index_encoding + ": the time of packing and unpacking them is not charged");
  if (wire.delta_bound) warnings.push_back("some delta-coded lists are not known: their lengths are bounds from above");

  Json key;
  key["trace"] = trace.name;
  key["sparsifier"] = replay.options.sparsifier;
  key["parameters"] = changed_parameters(replay.options.sparsifier, replay.options.parameters);
  key["density"] = replay.options.density;
  key["workers"] = replay.options.workers;
  key["captured_workers"] = replay.options.captured;
  key["expansion"] = expansion.at("method");
  key["expansion_requested"] = replay.options.expansion;
  key["validated"] = expansion.at("validated");
  key["error_feedback"] = replay.options.error_feedback;
  key["memory"] = replay.options.memory.text();
  key["lr_in_accumulator"] = replay.options.lr_in_accumulator;
  // An encoding belongs to the exchange and a placement to the machine: curves and tables go by these names.
  if (run.value_encoding != "fp32") key["parameters"]["value_encoding"] = run.value_encoding;
  if (run.index_encoding != "as_sent") key["parameters"]["index_encoding"] = run.index_encoding;
  const platforms::Platform& platform = experiment.platforms.at(run.platform);
  key["platform"] = platform.name + (run.placement == platform.placement.text() ? "" : " (" + run.placement + ")");
  key["placement"] = run.placement;
  key["value_encoding"] = run.value_encoding;
  key["index_encoding"] = run.index_encoding;
  key["profile"] = profile.name();
  key["network_requested"] = run.network;
  key["network"] = networks.empty() ? "none" : join({networks.begin(), networks.end()}, "+");
  const auto algorithm = [&](const std::string& name) { return run.network == "nccl" ? "nccl" : name; };
  key["all_gather"] = algorithm(run.timeline.collectives.all_gather);
  key["all_reduce"] = algorithm(run.timeline.collectives.all_reduce);
  key["broadcast"] = algorithm(run.timeline.collectives.broadcast);
  key["reduce_scatter"] = algorithm(run.timeline.collectives.reduce_scatter);
  key["reduce"] = algorithm(run.timeline.collectives.reduce);
  key["all_to_all"] = algorithm(run.timeline.collectives.all_to_all);
  key["gossip"] = algorithm(run.timeline.collectives.gossip);
  if (run.timeline.gossip_segments != sim::default_segments)
    key["gossip"] = key["gossip"].get<std::string>() + " (" + std::to_string(run.timeline.gossip_segments) + " segments)";
  key["timeline"] = run.timeline.mode;
  key["timeline_options"] = changed_timeline_options(run.timeline_field);
  key["disturbance"] = run.disturbance_field;
  // Times of another timeline are another curve: curves and tables go by the platform's name.
  std::vector<std::string> unlike;
  const auto briefly = [](const Json& json) {  // names of figures' files are made of it
    const std::string text = json.dump();
    return text.size() <= 60 ? text : "#" + sha256_hex(text).substr(0, 8);
  };
  if (run.timeline.mode != "sequential")
    unlike.push_back(run.timeline.mode + (key["timeline_options"].empty() ? "" : " " + briefly(key["timeline_options"])));
  if (!run.disturbance_field.empty()) unlike.push_back("disturbed " + briefly(run.disturbance_field));
  if (!unlike.empty()) key["platform"] = key["platform"].get<std::string>() + " (" + join(unlike, ", ") + ")";
  key["seed"] = replay.options.seed;
  key["counts_origin"] = projected ? "projected" : "captured";
  key["kernel_times_origin"] = profile.origin() + (extrapolated ? ", extrapolated" : "");
  key["extrapolate_profile"] = run.timeline.extrapolate_profile;
  key["forward_time_s"] = run.timeline.forward_time_s;
  key["backward_time_s"] = run.timeline.backward_time_s;
  key["compute_times_origin"] = run.compute_origin;
  key["iterations"] = records.size();
  key["warmup_iterations"] = replay.options.warmup;

  const auto average = [&](const char* name) { return finite(mean(series.at(name))); };
  const auto at_quantile = [&](const char* name, double q) { return finite(quantile(series.at(name), q)); };
  Json selection;
  selection["target_k"] = records.front().at("target_k");
  selection["selected_sum_mean"] = average("selected_sum");
  selection["selected_max_mean"] = average("selected_max");
  selection["union_mean"] = average("union");
  for (const auto& [column, name] :
       {std::pair{"actual_density", "density"}, std::pair{"build_up", "build_up"}, std::pair{"padding", "padding"}}) {
    selection[std::string(column) + "_mean"] = average(name);
    selection[std::string(column) + "_p05"] = at_quantile(name, 0.05);
    selection[std::string(column) + "_p95"] = at_quantile(name, 0.95);
    if (std::string(column) == "build_up") {
      // The calibration was measured on local Top-k; it says nothing about other rules.
      for (const char* estimate : {"calibrated_mean", "consensus_mean", "estimate_low", "estimate_high"})
        selection[std::string("build_up_") + estimate] = Json();
      if (projected && replay.options.sparsifier == "topk" && self_check.is_object() && self_check.contains("calibration_exponent") &&
          self_check.at("calibration_exponent").is_number())
        selection["build_up_calibrated_mean"] =
            finite(std::pow(mean(series.at("build_up")), self_check.at("calibration_exponent").get<double>()));
      // Likewise the other estimates, by how they stand to the self-check's projection.
      if (projected && replay.options.sparsifier == "topk" && self_check.is_object() && self_check.contains("build_up_consensus") &&
          self_check.at("build_up_projected").get<double>() > 1) {
        const double logarithm = std::log(self_check.at("build_up_projected").get<double>()), here = mean(series.at("build_up"));
        std::vector<double> estimates = {here};
        for (const char* other : {"build_up_calibrated", "npmle_build_up"})
          estimates.push_back(std::pow(here, std::log(self_check.at(other).get<double>()) / logarithm));
        selection["build_up_consensus_mean"] =
            finite(std::pow(here, std::log(self_check.at("build_up_consensus").get<double>()) / logarithm));
        selection["build_up_estimate_low"] = finite(std::ranges::min(estimates));
        selection["build_up_estimate_high"] = finite(std::ranges::max(estimates));
      }
    }
  }
  selection["threshold_mean"] = average("threshold");
  selection["residual_norm_mean"] = average("residual_norm");
  selection["energy_exchanged_mean"] = average("energy_exchanged");

  Json time;
  time["iteration_time_s_mean"] = average("iteration_time_s");
  time["iteration_time_s_p05"] = at_quantile("iteration_time_s", 0.05);
  time["iteration_time_s_p95"] = at_quantile("iteration_time_s", 0.95);
  for (const char* phase : {"forward_backward_time_s", "selection_time_s", "index_exchange_time_s", "value_exchange_time_s", "other_time_s",
                            "exposed_exchange_time_s", "overlapped_time_s", "worker_spread_s"})
    time[phase] = average(phase);
  time["speed_up"] = static_cast<double>(replay.options.workers) * (run.timeline.forward_time_s + run.timeline.backward_time_s) /
                     mean(series.at("iteration_time_s"));

  for (const auto& [end, bound] : {std::pair{"_kernel_low", &kernel_low}, std::pair{"_kernel_high", &kernel_high}}) {
    std::vector<double> iteration, of_selection;
    for (const sim::IterationTime& one : *bound) {
      iteration.push_back(one.iteration_time_s);
      of_selection.push_back(one.selection_time_s);
    }
    time[std::string("iteration_time_s") + end] = bound->empty() ? Json() : finite(mean(iteration));
    time[std::string("selection_time_s") + end] = bound->empty() ? Json() : finite(mean(of_selection));
  }

  Json traffic;
  traffic["bytes_sent_per_worker_mean"] = average("bytes_sent_per_worker_mean");
  traffic["bytes_sent_per_worker_max"] = average("bytes_sent_per_worker_max");
  traffic["messages_mean"] = average("messages");
  traffic["bytes_received_per_worker_max"] = average("bytes_received_per_worker_max");
  const ObservedTraffic observed = observe_traffic(times);
  const auto fullest = std::ranges::max_element(observed.receive_buffer_bytes);
  traffic["receive_buffer_bytes_max"] = *fullest;
  if (run.device_memory_GB > 0 && static_cast<double>(*fullest) > run.device_memory_GB * 1e9)
    warnings.push_back("a call of " + replay.options.sparsifier + " at n = " + std::to_string(replay.options.workers) +
                       " fills a receive buffer of " + rounded(static_cast<double>(*fullest) / 1e9, 3) + " GB on worker " +
                       std::to_string(fullest - observed.receive_buffer_bytes.begin()) + ", more than the " +
                       number_text(run.device_memory_GB) + " GB of a device");
  for (const char* link_class : {"device_link", "nic", "network_link", "global_link"})
    traffic[std::string(link_class) + "_bytes_mean"] = average((std::string(link_class) + "_bytes").c_str());

  Json written_series;
  for (const auto& [name, values] : series) {
    Json list = Json::array();
    for (const double value : values) list.push_back(finite(value));
    written_series[name] = list;
  }
  return {{"schema_version", 1},
          {"run_id", run.key},
          {"program_sha256", program_sha256()},
          {"identity", run.identity},
          {"key", key},
          {"all_parameters", replay.options.parameters},
          {"replay", replay.key},
          {"expansion", expansion},
          {"self_check", self_check},
          {"warnings", warnings},
          {"traffic", observed.document},
          {"critical_path", sim::critical_path(log)},
          {"activity", sim::activity(log)},
          {"summary", {{"selection", selection}, {"time", time}, {"traffic", traffic}}},
          {"series", written_series}};
}

namespace {

/// Runs that differ in nothing but the seed.
struct Replicates {
  std::size_t seeds = 0;
  std::map<std::string, std::pair<double, double>> bands;  // quantity -> least and largest mean
};

std::string without_seed(const Json& document) {
  Json identity = document.at("identity");
  identity.erase("seed");
  return identity.dump();
}

std::map<std::string, Replicates> replicates_of(const std::vector<Json>& documents) {
  std::map<std::string, Replicates> all;
  for (const Json& document : documents) {
    Replicates& one = all[without_seed(document)];
    ++one.seeds;
    for (const auto& [group, quantity] : {std::pair{"selection", "build_up"}, std::pair{"time", "iteration_time_s"}}) {
      const Json& value = document.at("summary").at(group).at(std::string(quantity) + "_mean");
      if (!value.is_number()) continue;
      const auto number = value.get<double>();
      const auto place = one.bands.try_emplace(quantity, number, number).first;
      place->second = {std::min(place->second.first, number), std::max(place->second.second, number)};
    }
  }
  return all;
}

}  // namespace

std::string results_csv(const std::vector<Json>& run_documents) {
  const std::map<std::string, Replicates> replicates = replicates_of(run_documents);
  std::string text;
  for (const Column& column : result_columns()) text += (text.empty() ? "" : ",") + column.name;
  text += "\n";
  for (const Json& document : run_documents)
    for (const char* group : {"selection", "time", "traffic"}) {
      bool first = true;
      for (const Column& column : result_columns()) {
        if (!first) text += ',';
        first = false;
        if (column.name == "run_id")
          text += document.at("run_id").get<std::string>();
        else if (column.name == "metric_group")
          text += group;
        else if (column.name == "seeds")
          text += std::to_string(replicates.at(without_seed(document)).seeds);
        else if (const auto band = column.name.find("_seed_"); band != std::string::npos) {
          const auto& bands = replicates.at(without_seed(document)).bands;
          const auto found = bands.find(column.name.substr(0, band));
          if (column.group == group && found != bands.end())
            text += number_text(column.name.ends_with("_low") ? found->second.first : found->second.second);
        } else if (column.name == "labels")  // of the sweep, not of the run
          text += csv_field(document.at("key").value("labels", Json::object()));
        else if (column.group.empty())
          text += csv_field(document.at("key").at(column.name));
        else if (column.group == group)
          text += csv_field(document.at("summary").at(group).at(column.name));
      }
      text += "\n";
    }
  return text;
}

namespace {

/// What an experiment can vary besides the sparsifier and the number of workers.
constexpr const char* curve_keys[] = {"trace",
                                      "density",
                                      "captured_workers",
                                      "expansion_requested",
                                      "seed",
                                      "error_feedback",
                                      "lr_in_accumulator",
                                      "memory",
                                      "warmup_iterations",
                                      "iterations",
                                      "platform",
                                      "profile",
                                      "extrapolate_profile",
                                      "forward_time_s",
                                      "backward_time_s",
                                      "compute_times_origin",
                                      "all_gather",
                                      "all_reduce",
                                      "broadcast",
                                      "reduce_scatter",
                                      "reduce",
                                      "all_to_all",
                                      "gossip",
                                      "network_requested"};

/// Whether it decides what is selected only, so that dense exchanges do not depend on it.
bool is_of_selection(const std::string& name) {
  static const std::set<std::string> names = {"density",        "captured_workers",  "expansion_requested", "seed",
                                              "error_feedback", "lr_in_accumulator", "warmup_iterations",   "memory"};
  return names.contains(name);
}

/// Keys that say which curve a run belongs to: all but the number of workers and what follows from it.
Json curve_of(const Json& key, bool with_sparsifier) {
  Json curve;
  for (const std::string name : curve_keys)
    if (name != "density" || with_sparsifier) curve[name] = key.at(name);
  if (with_sparsifier)
    for (const char* name : {"sparsifier", "parameters"}) curve[name] = key.at(name);
  return curve;
}

using Curve = std::map<std::int64_t, double>;  // workers -> iteration time

double iteration_time(const Json& document) { return document.at("summary").at("time").at("iteration_time_s_mean").get<double>(); }

bool is_dense(const Json& document) { return sim::find_sparsifier(document.at("key").at("sparsifier").get<std::string>()).dense; }

Json break_even(const Curve& sparse, const Curve& dense) {
  Json points = Json::array(), wins = Json::array(), loses = Json::array();
  bool have_previous = false;
  double previous_n = 0, previous_gap = 0;
  for (const auto& [n, time] : sparse) {
    const auto baseline = dense.find(n);
    if (baseline == dense.end()) continue;
    const double gap = std::log(time / baseline->second);  // below 0: the sparsifier is faster
    (gap < 0 ? wins : loses).push_back(n);
    if (have_previous && (gap < 0) != (previous_gap < 0)) {
      const double share = previous_gap / (previous_gap - gap);
      points.push_back({{"workers", std::exp(std::log(previous_n) + share * (std::log(static_cast<double>(n)) - std::log(previous_n)))},
                        {"direction", gap < 0 ? "wins_above" : "wins_below"}});
    }
    have_previous = true;
    previous_n = static_cast<double>(n);
    previous_gap = gap;
  }
  return {{"points", points}, {"wins_at", wins}, {"loses_at", loses}};
}

}  // namespace

Json summarise(const Experiment& experiment, const std::vector<Json>& documents) {
  // Curves of the dense baselines do not depend on seed, density and captured workers (Experiment::load runs them once).
  const auto dense_curve_of = [](const Json& key) {
    Json curve = curve_of(key, false);
    for (const char* name : curve_keys)
      if (is_of_selection(name)) curve.erase(name);
    return curve.dump();
  };
  std::map<std::string, std::map<std::string, Curve>> dense;  // curve -> baseline name -> times
  std::vector<std::pair<std::string, const Json*>> sparse_order;
  std::map<std::string, Curve> sparse;
  for (const Json& document : documents) {
    const Json& key = document.at("key");
    const auto workers = key.at("workers").get<std::int64_t>();
    if (is_dense(document)) {
      // A baseline with other parameters (buckets) is a curve of its own; what sparsifiers are compared with is the plain one.
      if (key.at("parameters") == Json::object())
        dense[dense_curve_of(key)][key.at("sparsifier").get<std::string>()][workers] = iteration_time(document);
    } else {
      const std::string curve = curve_of(key, true).dump();
      if (!sparse.contains(curve)) sparse_order.emplace_back(curve, &key);
      sparse[curve][workers] = iteration_time(document);
    }
  }
  Json break_even_list = Json::array();
  for (const auto& [curve, key] : sparse_order)
    for (const auto& [baseline, times] : dense[dense_curve_of(*key)]) {
      Json entry = curve_of(*key, true);
      entry["parameters"] = key->at("parameters").dump();
      entry["baseline"] = baseline;
      entry.update(break_even(sparse.at(curve), times));
      break_even_list.push_back(entry);
    }

  std::vector<std::string> warnings;
  for (const Json& document : documents)
    for (const Json& warning : document.at("warnings"))
      if (std::find(warnings.begin(), warnings.end(), warning.get<std::string>()) == warnings.end())
        warnings.push_back(warning.get<std::string>());

  // Of what a sweep varies, what tells its runs apart must stand in the lines; `told` is what a line says already.
  std::map<std::string, std::set<std::string>> values_of;
  for (const Json& document : documents)
    for (const char* name : curve_keys)
      if (!is_dense(document) || !is_of_selection(name)) values_of[name].insert(document.at("key").at(name).dump());
  const auto label_of = [&](const Json& key, const std::set<std::string>& told) {
    std::string label = key.at("sparsifier").get<std::string>();
    if (key.at("parameters") != Json::object()) label += " " + key.at("parameters").dump();
    const bool dense_one = sim::find_sparsifier(key.at("sparsifier").get<std::string>()).dense;
    std::vector<std::string> more;
    for (const char* name : curve_keys)
      if (values_of[name].size() > 1 && !told.contains(name) && !(dense_one && is_of_selection(name)))
        more.push_back(std::string(name) + " " + (key.at(name).is_string() ? key.at(name).get<std::string>() : key.at(name).dump()));
    return more.empty() ? label : label + " (" + join(more, ", ") + ")";
  };

  // A line is for a person: of a large sweep it names the first few.
  const auto some = [](const std::vector<std::string>& parts, const char* separator) {
    constexpr std::size_t most = 8;
    if (parts.size() <= most) return join(parts, separator);
    return join({parts.begin(), parts.begin() + most}, separator) + separator + "and " + std::to_string(parts.size() - most) +
           " more (results.csv)";
  };

  std::vector<std::string> lines;
  if (!documents.empty()) {
    std::int64_t most_workers = 0;
    for (const Json& document : documents) most_workers = std::max(most_workers, document.at("key").at("workers").get<std::int64_t>());
    const std::string at_n = "n = " + std::to_string(most_workers);
    const std::string first_platform = documents.front().at("key").at("platform").get<std::string>();
    const Json& first_key = documents.front().at("key");

    // 1: build-up, once per sparsifier (it does not depend on platform and profile).
    const std::set<std::string> of_times = {
        "platform",   "profile",          "extrapolate_profile", "forward_time_s", "backward_time_s", "compute_times_origin",
        "all_gather", "all_reduce",       "broadcast",           "reduce_scatter", "reduce",          "all_to_all",
        "gossip",     "network_requested"};
    std::set<std::string> told = of_times;
    told.insert("density");
    std::vector<std::string> parts;
    std::set<std::string> seen;
    std::string origin;
    for (const Json& document : documents) {
      const Json& key = document.at("key");
      if (is_dense(document) || key.at("workers") != most_workers) continue;
      Json name = curve_of(key, true);
      for (const std::string& other : of_times) name.erase(other);
      if (!seen.insert(name.dump()).second) continue;
      const Json& selection = document.at("summary").at("selection");
      if (!selection.at("build_up_mean").is_number()) continue;
      parts.push_back(label_of(key, told) + " sends " + rounded(selection.at("build_up_mean").get<double>(), 3) + "x its target of " +
                      number_text(key.at("density").get<double>() * 100) + " %");
      origin = key.at("counts_origin").get<std::string>();
    }
    if (!parts.empty()) lines.push_back("Build-up at " + at_n + " (counts " + origin + "): " + some(parts, ", ") + ".");

    // 2: the fastest at the largest n, per platform and profile.
    std::map<std::string, std::vector<const Json*>> groups;
    for (const Json& document : documents)
      if (document.at("key").at("workers") == most_workers)
        groups[document.at("key").at("platform").get<std::string>() + " with " + document.at("key").at("profile").get<std::string>()]
            .push_back(&document);
    parts.clear();
    for (auto& [group, members] : groups) {
      const Json* best = *std::min_element(members.begin(), members.end(),
                                           [](const Json* a, const Json* b) { return iteration_time(*a) < iteration_time(*b); });
      const Json& key = best->at("key");
      parts.push_back("on " + group + " " + label_of(key, {"platform", "profile"}) + " (" + time_text(iteration_time(*best)) +
                      ", speed-up " + rounded(best->at("summary").at("time").at("speed_up").get<double>(), 3) + ")");
    }
    lines.push_back("Fastest iteration at " + at_n + ": " + some(parts, "; ") + ".");

    // 3: where sparsifiers pay against dense fp32.
    parts.clear();
    for (const Json& entry : break_even_list) {
      if (entry.at("baseline") != "dense") continue;
      if (entry.at("wins_at").empty()) continue;
      Json key = entry;
      key["parameters"] = parse_json(entry.at("parameters").get<std::string>(), "summary");
      const std::string who = label_of(key, {"platform"}) + " on " + entry.at("platform").get<std::string>();
      if (entry.at("points").empty()) {
        parts.push_back(who + " at every n");
      } else {
        std::vector<std::string> at;
        for (const Json& point : entry.at("points"))
          at.push_back((point.at("direction") == "wins_above" ? "above n = " : "below n = ") +
                       rounded(point.at("workers").get<double>(), 3));
        parts.push_back(who + " " + join(at, ", "));
      }
    }
    lines.push_back(parts.empty() ? "Break-even: no sparsifier beats the dense fp32 exchange at any n that was run."
                                  : "Faster than the dense fp32 exchange: " + some(parts, "; ") + ".");

    // 4: where the time goes at the largest n.
    parts.clear();
    for (const Json& document : documents) {
      const Json& key = document.at("key");
      if (key.at("workers") != most_workers || key.at("platform") != first_platform || key.at("profile") != first_key.at("profile"))
        continue;
      const Json& time = document.at("summary").at("time");
      const double total = iteration_time(document);
      const double exchange = time.at("index_exchange_time_s").get<double>() + time.at("value_exchange_time_s").get<double>();
      parts.push_back(label_of(key, {"platform", "profile"}) + " " + time_text(total) + " (" + percent(exchange / total) + " exchange, " +
                      percent(time.at("selection_time_s").get<double>() / total) + " selection)");
    }
    lines.push_back("Iteration at " + at_n + " on " + first_platform + ": " + some(parts, ", ") + ".");

    // 5: how far to trust it.
    std::int64_t most_captured = 0, most_validated = 0;
    std::set<std::string> kernel_origins;
    for (const Json& document : documents) {
      const Json& key = document.at("key");
      if (!is_dense(document) && key.at("counts_origin") == "captured")
        most_captured = std::max(most_captured, key.at("workers").get<std::int64_t>());
      if (!is_dense(document) && key.at("validated") == true)
        most_validated = std::max(most_validated, key.at("workers").get<std::int64_t>());
      kernel_origins.insert(key.at("kernel_times_origin").get<std::string>());
    }
    std::string trust = "Trust: counts are captured up to n = " + std::to_string(most_captured);
    if (most_validated > most_captured) trust += ", projected inside the validated range up to n = " + std::to_string(most_validated);
    if (most_workers > std::max(most_validated, most_captured)) trust += ", projected beyond it above";
    trust += "; kernel times " + join({kernel_origins.begin(), kernel_origins.end()}, " / ") + "; collectives simulated; " +
             std::to_string(warnings.size()) + " warning(s) in summary.json.";
    lines.push_back(trust);
  }
  return {{"schema_version", 1},           {"name", experiment.name}, {"title", experiment.title},
          {"break_even", break_even_list}, {"warnings", warnings},    {"lines", lines}};
}

}  // namespace sparscale::experiments
