#include "sim/timeline_options.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.hpp"
#include "base/random.hpp"
#include "sim/timelines/mode.hpp"

namespace sparscale::sim {
namespace {

Window window_from(const Json& json, const std::string& file, const std::string& place) {
  Window window;
  if (!json.contains("iterations")) return window;
  window.from = json.at("iterations").at(0).get<std::int64_t>();
  window.to = json.at("iterations").at(1).get<std::int64_t>();
  if (window.to <= window.from) throw InputError(file, place + "/iterations", "[from, to) with from < to", json.at("iterations").dump());
  return window;
}

// Default of every option that a mode can have, as it stands in experiments.
const Json& option_defaults() {
  static const Json defaults = [] {
    const TimelineOptions options;
    return Json{{"bucket_bytes", options.bucket_bytes},         {"first_bucket_bytes", options.first_bucket_bytes},
                {"slice_bytes", options.slice_bytes},           {"by_layer", options.by_layer},
                {"overlap_slowdown", options.overlap_slowdown}, {"layer_times", "given"},
                {"gossip_seed", options.gossip_seed},           {"streams", options.streams}};
  }();
  return defaults;
}

}  // namespace

std::vector<double> Disturbance::factors(std::int64_t iteration, std::int64_t workers) const {
  std::vector<double> factors(static_cast<std::size_t>(workers), 1);
  for (std::size_t worker = 0; jitter && worker < factors.size(); ++worker) {
    Random random(stream_key(jitter->seed, "jitter", {worker, static_cast<std::uint64_t>(iteration)}));
    if (jitter->distribution == "uniform") {
      factors[worker] = 1 + jitter->spread * (2 * random.uniform() - 1);
    } else if (jitter->distribution == "lognormal") {
      const double variance = std::log1p(jitter->spread * jitter->spread);  // of the logarithm; the mean is 1
      factors[worker] = std::exp(std::sqrt(variance) * random.normal() - variance / 2);
    } else {
      factors[worker] = 1 - jitter->spread * std::log1p(-random.uniform());
    }
  }
  if (stragglers && stragglers->window.holds(iteration)) {
    std::vector<std::int64_t> slow = stragglers->workers;
    if (stragglers->fraction > 0) {
      Random random(stream_key(stragglers->seed, "stragglers"));
      slow = random_permutation(workers, random);
      slow.resize(static_cast<std::size_t>(std::llround(stragglers->fraction * static_cast<double>(workers))));
    }
    for (const std::int64_t worker : slow) factors[static_cast<std::size_t>(worker)] *= stragglers->factor;
  }
  return factors;
}

void Disturbance::check_workers(std::int64_t workers, const std::string& file, const std::string& place) const {
  if (!stragglers) return;
  for (std::size_t i = 0; i < stragglers->workers.size(); ++i)
    if (stragglers->workers[i] >= workers)
      throw InputError(file, place + "/stragglers/workers/" + std::to_string(i), "a worker, 0 to " + std::to_string(workers - 1),
                       std::to_string(stragglers->workers[i]));
}

Disturbance Disturbance::from_json(const Json& json, const std::string& file, const std::string& place) {
  Disturbance disturbance;
  if (json.contains("jitter")) {
    const Json& given = json.at("jitter");
    Jitter jitter;
    jitter.distribution = given.at("distribution").get<std::string>();
    jitter.spread = given.at("spread").get<double>();
    jitter.seed = given.value("seed", jitter.seed);
    if (jitter.distribution == "uniform" && jitter.spread >= 1)
      throw InputError(file, place + "/jitter/spread", "less than 1 with the distribution uniform", number_text(jitter.spread));
    disturbance.jitter = jitter;
  }
  if (json.contains("stragglers")) {
    const Json& given = json.at("stragglers");
    const std::string at = place + "/stragglers";
    if (given.contains("workers") == given.contains("fraction"))
      throw InputError(file, at, "one of workers and fraction", given.contains("workers") ? "both" : "neither");
    if (given.contains("seed") && !given.contains("fraction"))
      throw InputError(file, at + "/seed", "no seed, as the workers are given", brief(given.at("seed")));
    Stragglers stragglers;
    if (given.contains("workers")) stragglers.workers = given.at("workers").get<std::vector<std::int64_t>>();
    stragglers.fraction = given.value("fraction", 0.0);
    stragglers.seed = given.value("seed", stragglers.seed);
    stragglers.factor = given.at("factor").get<double>();
    stragglers.window = window_from(given, file, at);
    disturbance.stragglers = stragglers;
  }
  if (json.contains("slowed")) {
    const Json& list = json.at("slowed");
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Json& given = list[i];
      const std::string at = place + "/slowed/" + std::to_string(i);
      if (given.contains("node") == given.contains("link"))
        throw InputError(file, at, "one of node and link", given.contains("node") ? "both" : "neither");
      Slowed slowed;
      slowed.node = given.value("node", slowed.node);
      slowed.link = given.value("link", slowed.link);
      slowed.factor = given.at("factor").get<double>();
      slowed.window = window_from(given, file, at);
      disturbance.slowed.push_back(slowed);
    }
  }
  return disturbance;
}

Json resolve_timeline(const Json& given, const std::string& file, const std::string& place) {
  const bool is_name = given.is_string();
  const std::string name = is_name ? given.get<std::string>() : given.at("mode").get<std::string>();
  const TimelineModeInfo* mode = nullptr;
  std::string names;
  for (const TimelineModeInfo& one : timeline_modes()) {
    if (one.name == name) mode = &one;
    names += (names.empty() ? "one of " : ", ") + one.name;
  }
  if (mode == nullptr) throw InputError(file, place + (is_name ? "" : "/mode"), names, "\"" + name + "\"");
  Json resolved = {{"mode", name}};
  for (const std::string& option : mode->options) resolved[option] = option_defaults().at(option);
  if (is_name) return resolved;
  for (const auto& [key, value] : given.items()) {
    if (!resolved.contains(key)) {
      std::string options;
      for (const std::string& option : mode->options) options += ", " + option;
      throw InputError(file, place + "/" + key, "mode" + options + " as the mode is " + name, "\"" + key + "\"");
    }
    resolved[key] = value;
  }
  if (resolved.contains("streams") && resolved.at("streams").get<std::int64_t>() > mode->most_streams)
    throw InputError(file, place + "/streams", "at most " + std::to_string(mode->most_streams) + " as the mode is " + name,
                     brief(resolved.at("streams")));
  return resolved;
}

void apply_timeline(const Json& resolved, TimelineOptions& options) {
  options.mode = resolved.at("mode").get<std::string>();
  options.bucket_bytes = resolved.value("bucket_bytes", options.bucket_bytes);
  options.first_bucket_bytes = resolved.value("first_bucket_bytes", options.first_bucket_bytes);
  options.slice_bytes = resolved.value("slice_bytes", options.slice_bytes);
  options.by_layer = resolved.value("by_layer", options.by_layer);
  options.overlap_slowdown = resolved.value("overlap_slowdown", options.overlap_slowdown);
  options.streams = resolved.value("streams", options.streams);
  options.gossip_seed = resolved.value("gossip_seed", options.gossip_seed);
}

std::vector<LayerTime> layer_times(const std::vector<std::int64_t>& elements, const std::vector<double>& forward_s,
                                   const std::vector<double>& backward_s, const std::string& layer_times, const std::string& file,
                                   const std::string& place) {
  const std::size_t count = elements.size();
  if (layer_times == "given" && (forward_s.size() != count || backward_s.size() != count))
    throw InputError(file, place,
                     "forward and backward times of all " + std::to_string(count) +
                         " layers (in /compute or the trace), or layer_times by_elements or equal",
                     std::to_string(forward_s.size()) + " and " + std::to_string(backward_s.size()));
  const auto total = [](const std::vector<double>& times) { return std::accumulate(times.begin(), times.end(), 0.0); };
  const auto all = static_cast<double>(std::accumulate(elements.begin(), elements.end(), std::int64_t{0}));
  std::vector<LayerTime> layers(count);
  for (std::size_t l = 0; l < count; ++l) {
    layers[l].elements = elements[l];
    const double share = layer_times == "equal" ? 1 / static_cast<double>(count) : static_cast<double>(elements[l]) / all;
    layers[l].forward_s = layer_times == "given" ? forward_s[l] : share * total(forward_s);
    layers[l].backward_s = layer_times == "given" ? backward_s[l] : share * total(backward_s);
  }
  return layers;
}

}  // namespace sparscale::sim
