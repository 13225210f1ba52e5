#include "experiments/timeline_fields.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "sim/disturbed_networks.hpp"
#include "sim/sparsifier.hpp"
#include "sim/timelines/mode.hpp"

namespace sparscale::experiments {
namespace {

/// A number, or one per layer.
std::vector<double> times_of(const Json& value) {
  return value.is_array() ? value.get<std::vector<double>>() : std::vector<double>{value.get<double>()};
}

double sum_of(const std::vector<double>& times) {
  double sum = 0;
  for (const double time : times) sum += time;
  return sum;
}

}  // namespace

void set_compute_times(const Point& point, const traces::Trace& trace, const std::string& file, RunPoint& run) {
  const traces::TraceInfo& info = trace.info();
  if (point.contains("compute")) {
    const Written& place = point.at("compute");
    const Json& compute = place.value;
    for (const char* key : {"forward_time_s", "backward_time_s"}) {
      const Json& value = compute.at(key);
      if (value.is_array() && value.size() != info.layers.size())
        throw InputError(place.file, place.pointer + "/" + key,
                         "a number, or one for each of the " + std::to_string(info.layers.size()) + " layers of the trace " + info.name,
                         std::to_string(value.size()) + " numbers");
      if (!(sum_of(times_of(value)) > 0)) throw InputError(place.file, place.pointer + "/" + key, "a time above 0", "0");
    }
    run.forward_times_s = times_of(compute.at("forward_time_s"));
    run.backward_times_s = times_of(compute.at("backward_time_s"));
    run.compute_origin = compute.at("origin").get<std::string>();
  } else {
    if (!info.forward_time_s || !info.backward_time_s)
      throw InputError(file, "/compute", "forward and backward times, since the trace " + info.name + " has none", "no such key");
    if (!(*info.forward_time_s + *info.backward_time_s > 0))
      throw InputError(file, "/compute", "forward and backward times, since those of the trace " + info.name + " are 0", "no such key");
    run.forward_times_s = times_of(info.manifest.at("forward_time_s"));
    run.backward_times_s = times_of(info.manifest.at("backward_time_s"));
    run.compute_origin =
        "measured with the trace on " + (info.timing_device.empty() ? std::string("a device it does not name") : info.timing_device);
  }
  run.timeline.forward_time_s = sum_of(run.forward_times_s);
  run.timeline.backward_time_s = sum_of(run.backward_times_s);
}

Json changed_timeline_options(const Json& resolved) {
  if (resolved.is_null()) return Json::object();
  const Json defaults = sim::resolve_timeline(resolved.at("mode"), "", "");
  Json changed = Json::object();
  for (const auto& [key, value] : resolved.items())
    if (defaults.at(key) != value) changed[key] = value;
  return changed;
}

void set_timeline(const Experiment& experiment, const ReplayPoint& replay, const Point& point, RunPoint& run) {
  const Written &timeline = point.at("timeline"), &disturbance = point.at("disturbance");
  const std::string &file = timeline.file, &pointer = timeline.pointer;
  run.timeline_field = sim::resolve_timeline(timeline.value, file, pointer);
  sim::apply_timeline(run.timeline_field, run.timeline);
  const sim::TimelineModeInfo& mode = sim::find_timeline_mode(run.timeline.mode);
  if (const std::string expected = mode.refuses(replay.options.sparsifier, replay.options.parameters); !expected.empty()) {
    const bool scoped = replay.options.parameters.contains("scope");
    throw InputError(
        file, pointer, expected + " where the timeline is " + mode.name,
        replay.options.sparsifier + (scoped ? " with scope " + replay.options.parameters.at("scope").get<std::string>() : std::string()));
  }
  if (run.network == "nccl" && mode.name != "sequential" && mode.name != "ddp_buckets" && mode.name != "layer_wise" && mode.name != "p3")
    throw InputError(file, "/network", "auto, simgrid or recurrence where the timeline is " + mode.name, "nccl");
  if (run.network == "nccl" && run.timeline.streams > 1)
    throw InputError(file, "/network", "auto or simgrid where the timeline has several streams, which share links", "nccl");
  if (mode.needs_layers) {
    std::vector<std::int64_t> elements;
    for (const traces::Layer& layer : experiment.traces.at(replay.trace).info().layers) elements.push_back(layer.size);
    const auto how = run.timeline_field.at("layer_times").get<std::string>();
    run.timeline.layers = sim::layer_times(elements, run.forward_times_s, run.backward_times_s, how, file, pointer + "/layer_times");
    const auto& layers = experiment.traces.at(replay.trace).info().layers;
    bool convolution = false;
    for (std::size_t l = 0; l < layers.size(); ++l) {
      if (layers[l].shape.size() > 1) convolution = layers[l].shape.size() > 2;
      run.timeline.layers[l].convolution = convolution;
    }
    if (run.timeline.by_layer == "kind" && mode.name == "hybrid" &&
        std::none_of(layers.begin(), layers.end(), [](const traces::Layer& layer) { return layer.shape.size() > 2; }))
      throw InputError(file, pointer + "/by_layer", "window, fastest, butterfly or ring, as no layer of the trace is a convolution",
                       "\"kind\"");
  }
  if (run.timeline_field != sim::resolve_timeline("sequential", file, pointer)) {
    run.identity["timeline"] = run.timeline_field;
    if (mode.needs_layers) {
      run.identity["forward_times_s"] = run.forward_times_s;
      run.identity["backward_times_s"] = run.backward_times_s;
    }
  }

  run.disturbance_field = disturbance.value;
  run.timeline.disturbance = sim::Disturbance::from_json(disturbance.value, disturbance.file, disturbance.pointer);
  run.timeline.disturbance.check_workers(replay.options.workers, disturbance.file, disturbance.pointer);
  if (!run.timeline.disturbance.slowed.empty()) {
    if (run.network == "nccl")
      throw InputError(disturbance.file, disturbance.pointer + "/slowed", "no such key as the network is nccl, a model of whole machines",
                       "links to slow");
    const platforms::Topology topology(experiment.platform_of(run), replay.options.workers);
    sim::check_slowed(run.timeline.disturbance.slowed, topology, disturbance.file, disturbance.pointer);
  }
  if (!disturbance.value.empty()) run.identity["disturbance"] = disturbance.value;

  const platforms::Platform& platform = experiment.platforms.at(run.platform);
  if (point.contains("device_memory_GB"))
    run.identity["device_memory_GB"] = run.device_memory_GB = point.at("device_memory_GB").value.get<double>();
  else if (platform.document.at("node").contains("device_memory_GB"))
    run.device_memory_GB = platform.document.at("node").at("device_memory_GB").get<double>();
}

}  // namespace sparscale::experiments
