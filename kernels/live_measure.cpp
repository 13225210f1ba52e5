#include "kernels/live_measure.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.hpp"
#include "kernels/measure_device.hpp"
#include "kernels/profile.hpp"

namespace sparscale::kernels {

LiveMeasurement::LiveMeasurement(std::unique_ptr<MeasuredDevice> device, int samples) : device_(std::move(device)), samples_(samples) {}

void LiveMeasurement::add(std::span<const float> accumulator, std::span<const LiveCall> calls, std::span<const std::vector<Index>> lists,
                          std::span<const Index> exchanged) {
  bool is_set = false;
  for (const LiveCall& call : calls) {
    if (call.elements <= 0) continue;
    const std::string& operation = call.operation;
    const auto n = static_cast<std::size_t>(call.elements);
    if (operation != "unite" && operation != "random_indices" && n > accumulator.size())
      throw InputError("live measurement", operation + " over at most " + std::to_string(accumulator.size()) + " elements",
                       std::to_string(n));
    const auto key = std::make_tuple(operation, call.elements, depends_on_selected(operation) ? call.selected : call.elements);
    Point& point = points_[key];
    if (point.clean_s.size() >= static_cast<std::size_t>(4 * samples_)) continue;  // the same call again and again: known well enough
    float threshold = std::numeric_limits<float>::infinity();
    if (operation == "threshold_select" || operation == "accumulate_select" || operation == "count") {
      std::vector<Index> top;
      cpu_kernels().topk(accumulator.first(n), call.selected, 0, top);
      for (const Index index : top) threshold = std::min(threshold, std::fabs(accumulator[static_cast<std::size_t>(index)]));
    }
    std::vector<Index> places;
    if (operation == "zero" || operation == "gather" || operation == "scatter_add") {
      places.assign(exchanged.begin(), exchanged.end());
      if (places.size() != n) {
        places.resize(n);
        for (std::size_t i = 0; i < n; ++i) places[i] = static_cast<Index>(i * (accumulator.size() / n));
      }
    }
    if (!std::exchange(is_set, true)) device_->set_data({accumulator, lists});
    const auto work = device_->on_data(operation, call.elements, call.selected, threshold, places);
    if (!work) throw InputError("live measurement", "an operation that the device knows", "\"" + operation + "\"");
    work(1);  // touches the buffers for the first time
    const double first_s = work(1).time_s;
    const auto repeats =
        std::clamp<std::int64_t>(static_cast<std::int64_t>(std::ceil(device_->sample_s() / std::max(first_s, 1e-9))), 1, 1000000);
    for (int i = 0; i < samples_; ++i) {
      const MeasuredSample sample = work(repeats);
      (sample.clean ? point.clean_s : point.disturbed_s).push_back(sample.time_s / static_cast<double>(repeats));
    }
  }
}

Json LiveMeasurement::profile(const std::string& name, const std::string& what) const {
  if (points_.empty()) throw InputError("live measurement", "a sparsifier that runs kernels on accumulators", "no kernel call");
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
                   {"backend", device_->backend()},
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
                  {"device", device_->description()},
                  {"origin", "measured"},
                  {"provenance", "measured by sparscale on " + what + "; " + device_->method()},
                  {"context", device_->context()},
                  {"records", records}};
  validate_json(profile, profile_schema(), "the measured profile");
  return profile;
}

}  // namespace sparscale::kernels
