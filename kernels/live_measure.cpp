#include "kernels/live_measure.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "base/error.hpp"
#include "kernels/measure_device.hpp"
#include "kernels/profile.hpp"

namespace sparscale::kernels {
namespace {

constexpr double kSample_s = 2e-4;  // shortest sample that the clock resolves well enough

// Time follows from the number of elements alone.
bool by_elements(const std::string& operation) { return operation != "threshold_select" && operation != "topk" && operation != "unite"; }

}  // namespace

LiveMeasurement::LiveMeasurement(const std::string& backend, int threads, int samples)
    : kernels_(cpu_kernels(backend, threads)), threads_(threads), samples_(samples) {}

void LiveMeasurement::add(std::span<const float> accumulator, std::span<const LiveCall> calls, std::span<const std::vector<Index>> lists,
                          std::span<const Index> exchanged) {
  scratch_.assign(accumulator.begin(), accumulator.end());
  const std::span<float> scratch(scratch_);
  for (const LiveCall& call : calls) {
    if (call.elements <= 0) continue;
    const std::string& operation = call.operation;
    const auto n = static_cast<std::size_t>(call.elements);
    if (operation != "unite" && n > accumulator.size())
      throw InputError("live measurement", operation + " over at most " + std::to_string(accumulator.size()) + " elements",
                       std::to_string(n));
    const auto key = std::make_tuple(operation, call.elements, by_elements(operation) ? call.elements : call.selected);
    Point& point = points_[key];
    if (point.clean_s.size() >= static_cast<std::size_t>(4 * samples_)) continue;  // the same call again and again: known well enough
    const std::span<const float> values = operation == "unite" ? accumulator : accumulator.first(n);
    float threshold = std::numeric_limits<float>::infinity();
    if (operation == "threshold_select" || operation == "count") {
      picked_.clear();
      kernels_.topk(values, call.selected, 0, picked_);
      for (const Index index : picked_) threshold = std::min(threshold, std::fabs(values[static_cast<std::size_t>(index)]));
    }
    std::vector<Index> places;
    if (operation == "zero" || operation == "gather") {
      places.assign(exchanged.begin(), exchanged.end());
      if (places.size() != n) {
        places.resize(n);
        for (std::size_t i = 0; i < n; ++i) places[i] = static_cast<Index>(i * (accumulator.size() / n));
      }
      gathered_.resize(n);
    }
    const std::map<std::string, std::function<void()>> work{
        {"accumulate", [&] { kernels_.accumulate(values, 1e-9F, scratch.first(n)); }},
        {"threshold_select",
         [&] {
           picked_.clear();
           kernels_.threshold_select(values, threshold, 0, picked_);
         }},
        {"topk",
         [&] {
           picked_.clear();
           kernels_.topk(values, call.selected, 0, picked_);
         }},
        {"count", [&] { static_cast<void>(kernels_.count(values, threshold)); }},
        {"l2_norm", [&] { static_cast<void>(kernels_.l2_norm(values)); }},
        {"cast_half", [&] { kernels_.cast_half(scratch.first(n)); }},
        {"zero", [&] { kernels_.zero(scratch, places, 0); }},
        {"gather", [&] { kernels_.gather(accumulator, places, 0, gathered_); }},
        {"unite", [&] { picked_ = kernels_.unite(lists, std::ssize(accumulator)); }},
    };
    const auto found = work.find(operation);
    if (found == work.end()) throw InputError("live measurement", "an operation that it knows", "\"" + operation + "\"");
    found->second();  // touches the buffers for the first time
    std::int64_t repeats = 1;
    const auto run = [&] {
      const MeasuredSample sample = timed_on_cpu(threads_, [&] {
        for (std::int64_t i = 0; i < repeats; ++i) found->second();
      });
      return std::pair(sample.time_s / static_cast<double>(repeats), sample.clean);
    };
    const double first_s = run().first;
    repeats = std::clamp<std::int64_t>(static_cast<std::int64_t>(std::ceil(kSample_s / std::max(first_s, 1e-9))), 1, 1000000);
    for (int i = 0; i < samples_; ++i) {
      const auto [time_s, clean] = run();
      (clean ? point.clean_s : point.disturbed_s).push_back(time_s);
    }
  }
}

Json LiveMeasurement::profile(const std::string& name, const std::string& what) const {
  if (points_.empty()) throw InputError("live measurement", "a sparsifier that runs kernels on accumulators", "no kernel call");
  const std::unique_ptr<MeasuredDevice> device = cpu_device(kernels_.name().substr(0, kernels_.name().find('.', 4)), threads_, 1);
  Json records = Json::array();
  for (const auto& [key, point] : points_) {
    const auto& [operation, elements, selected] = key;
    const bool disturbed = point.clean_s.size() < 3;
    std::vector<double> used = point.clean_s;
    if (disturbed) used.insert(used.end(), point.disturbed_s.begin(), point.disturbed_s.end());
    std::sort(used.begin(), used.end());
    const auto quantile = [&](double fraction) {
      return std::max(used[static_cast<std::size_t>(std::llround(fraction * static_cast<double>(used.size() - 1)))], 1e-12);
    };
    Json record = {{"operation", operation},
                   {"backend", kernels_.name()},
                   {"elements", elements},
                   {"selected", std::min(selected, elements)},
                   {"median_s", quantile(0.5)},
                   {"q25_s", quantile(0.25)},
                   {"q75_s", quantile(0.75)},
                   {"samples", used.size()},
                   {"discarded", disturbed ? 0 : point.disturbed_s.size()}};
    if (disturbed) record["disturbed"] = true;
    records.push_back(record);
  }
  Json profile = {{"schema_version", 1},
                  {"name", name},
                  {"device", device->description()},
                  {"origin", "measured"},
                  {"provenance", "measured by sparscale on " + what + "; " + device->method()},
                  {"context", device->context()},
                  {"records", records}};
  validate_json(profile, profile_schema(), "the measured profile");
  return profile;
}

}  // namespace sparscale::kernels
