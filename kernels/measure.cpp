#include "kernels/measure.hpp"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/random.hpp"
#include "kernels/cuda/cuda.hpp"
#include "kernels/measure_device.hpp"
#include "kernels/profile.hpp"

namespace sparscale::kernels {
namespace {

// Densities of the grid. Around 1/4 the CPU top-k changes its method.
const std::vector<double>& grid_densities() {
  static const std::vector<double> densities{0, 1e-4, 1e-3, 1e-2, 0.05, 0.1, 0.249, 0.255, 0.5, 1};
  return densities;
}
const std::vector<double>& held_out_densities() {
  static const std::vector<double> densities{3e-4, 3e-3, 0.02, 0.15, 0.35};
  return densities;
}

double quantile(std::vector<double> sorted, double fraction) {
  std::sort(sorted.begin(), sorted.end());
  const double place = fraction * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

struct Samples {
  std::int64_t repeats = 1;
  std::vector<double> clean_s, disturbed_s;  // of one operation
};

// More repeats until a sample is long enough for the clock.
void calibrate(const MeasuredCase& point, double sample_s, Samples& samples) {
  point.run(1);  // touches the buffers for the first time
  for (;;) {
    const double time_s = point.run(samples.repeats).time_s;
    if (time_s >= sample_s) return;
    const double factor = std::clamp(1.2 * sample_s / std::max(time_s, 1e-9), 2.0, 100.0);
    samples.repeats = static_cast<std::int64_t>(static_cast<double>(samples.repeats) * factor);
  }
}

struct MeasuredPoint {
  ProfileRecord record;
  std::int64_t samples = 0, discarded = 0, bytes = 0;
  bool disturbed = false;
};

// All points of one size, in rounds, so that a slow moment of the machine touches all of them alike. Disturbed samples are used only when
// the machine gives no others, and the point says so.
std::vector<MeasuredPoint> measure_size(MeasuredDevice& device, std::int64_t elements, const std::vector<double>& densities, int wanted) {
  const std::vector<MeasuredCase> cases = device.cases(elements, densities);
  std::vector<Samples> samples(cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) calibrate(cases[i], device.sample_s(), samples[i]);
  for (int round = 0; round < 3 * wanted; ++round)
    for (std::size_t i = 0; i < cases.size(); ++i) {
      if (samples[i].clean_s.size() >= static_cast<std::size_t>(wanted)) continue;
      const MeasuredSample sample = cases[i].run(samples[i].repeats);
      (sample.clean ? samples[i].clean_s : samples[i].disturbed_s).push_back(sample.time_s / static_cast<double>(samples[i].repeats));
    }
  std::vector<MeasuredPoint> measured;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    MeasuredPoint point;
    point.disturbed = samples[i].clean_s.size() < 3;
    std::vector<double> used = samples[i].clean_s;
    if (point.disturbed)
      used.insert(used.end(), samples[i].disturbed_s.begin(), samples[i].disturbed_s.end());
    else
      point.discarded = static_cast<std::int64_t>(samples[i].disturbed_s.size());
    point.samples = static_cast<std::int64_t>(used.size());
    point.bytes = cases[i].bytes;
    point.record = {cases[i].operation,  device.backend(),     cases[i].elements,   cases[i].selected,
                    quantile(used, 0.5), quantile(used, 0.25), quantile(used, 0.75)};
    measured.push_back(point);
  }
  return measured;
}

Json to_json(const MeasuredPoint& point) {
  const ProfileRecord& record = point.record;
  Json json = {{"operation", record.operation},
               {"backend", record.backend},
               {"elements", record.elements},
               {"selected", record.selected},
               {"density", static_cast<double>(record.selected) / static_cast<double>(record.elements)},
               {"median_s", record.median_s},
               {"q25_s", record.q25_s},
               {"q75_s", record.q75_s},
               {"samples", point.samples},
               {"discarded", point.discarded},
               {"bytes", point.bytes}};
  if (point.disturbed) json["disturbed"] = true;
  return json;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

}  // namespace

std::vector<float> measured_values(std::int64_t size, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(size));
  const std::uint64_t key = stream_key(seed, "measure");
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint64_t word = mix64(key + i);
    const double uniform = (static_cast<double>(word >> 12) + 0.5) * 0x1.0p-52;
    const double scale = std::exp2(-static_cast<double>(mix64(key ^ (i >> 16)) % 8) / 2);
    values[i] = static_cast<float>((word & 1U) != 0 ? scale * std::log(uniform) : -scale * std::log(uniform));
  }
  return values;
}

std::int64_t measured_universe(std::int64_t sum) { return std::max(std::int64_t{1} << 25, 2 * sum); }

std::vector<std::vector<std::int64_t>> measured_lists(std::int64_t sum, std::int64_t united, std::int64_t universe) {
  const std::int64_t count = std::max<std::int64_t>(2, (sum + united - 1) / united);
  const std::int64_t stretch = universe / united;
  std::vector<std::vector<std::int64_t>> lists(static_cast<std::size_t>(count));
  for (std::int64_t list = 0; list < count; ++list) {
    const std::int64_t length = sum / count + (list < sum % count ? 1 : 0);
    auto& indices = lists[static_cast<std::size_t>(list)];
    indices.reserve(static_cast<std::size_t>(length));
    // Lists are shifted against each other by fractions of their spacing, so that together they meet each of the `united` places.
    for (std::int64_t i = 0; i < length; ++i) {
      const auto place = static_cast<std::int64_t>(checked_multiply(static_cast<std::uint64_t>(i * count + list),
                                                                    static_cast<std::uint64_t>(united), "measured list")) /
                         (length * count);
      const auto shift = mix64(static_cast<std::uint64_t>(place)) % static_cast<std::uint64_t>(stretch);
      indices.push_back(place * stretch + static_cast<std::int64_t>(shift));
    }
  }
  return lists;
}

std::unique_ptr<MeasuredDevice> measured_device(const std::string& device, const std::string& backend, int threads,
                                                std::int64_t max_elements) {
  if (device == "cpu") return cpu_device(backend, threads, max_elements);
  if (device == "cuda") return cuda::measured_device(max_elements);
  throw InputError("device", "cpu or cuda", "\"" + device + "\"");
}

Json measure_profile(const MeasureOptions& options) {
  if (options.max_elements < 1024) throw InputError("max elements", "at least 1024", std::to_string(options.max_elements));
  if (options.samples < 3) throw InputError("samples", "at least 3", std::to_string(options.samples));
  const auto say = [&](const std::string& line) {
    if (options.progress) options.progress(line);
  };
  const std::unique_ptr<MeasuredDevice> device = measured_device(options.device, options.backend, options.threads, options.max_elements);

  // Long samples vary less and take most of the time.
  const auto samples_for = [&](std::int64_t size) {
    return size > (std::int64_t{1} << 23) ? std::max(3, options.samples / 2) : options.samples;
  };
  std::vector<std::int64_t> sizes{1, 32};
  for (std::int64_t size = 256; size <= options.max_elements; size *= 4) sizes.push_back(size);
  if (sizes.back() < options.max_elements && options.max_elements > 2048) sizes.push_back(options.max_elements);
  Json profile = {{"schema_version", 1},
                  {"name", options.name.empty() ? device->short_name() : options.name},
                  {"device", device->description()},
                  {"origin", "measured"},
                  {"provenance", device->method()},
                  {"context", device->context()}};
  profile["context"]["date"] = today();
  Json records = Json::array();
  std::int64_t disturbed = 0;
  for (const std::int64_t size : sizes) {
    say("measuring " + std::to_string(size) + " elements on " + device->description());
    for (const MeasuredPoint& point : measure_size(*device, size, grid_densities(), samples_for(size))) {
      records.push_back(to_json(point));
      disturbed += point.disturbed ? 1 : 0;
    }
  }
  if (disturbed > 0)
    say("the machine is busy: " + std::to_string(disturbed) + " of " + std::to_string(records.size()) +
        " points have no undisturbed samples; measure again when it is quiet");
  profile["context"]["disturbed_points"] = disturbed;
  profile["records"] = records;

  // How far the interpolation is off at sizes and densities between those of the grid.
  const Profile interpolated = Profile::parse(profile.dump(), "the measured profile");
  std::map<std::string, std::vector<double>> errors;
  std::vector<double> all;
  for (std::size_t i = 1; i + 1 < sizes.size(); i += 2) {
    const auto between =
        static_cast<std::int64_t>(std::llround(std::sqrt(static_cast<double>(sizes[i]) * static_cast<double>(sizes[i + 1]))));
    say("checking " + std::to_string(between) + " elements, which the profile leaves out");
    for (const MeasuredPoint& point : measure_size(*device, between, held_out_densities(), samples_for(between))) {
      const ProfileRecord& record = point.record;
      const double predicted_s = interpolated.time(record.operation, record.elements, record.selected).time_s;
      const double error = std::fabs(predicted_s - record.median_s) / record.median_s;
      errors[record.operation].push_back(error);
      all.push_back(error);
    }
  }
  Json held_out = Json::object();
  for (const auto& [operation, list] : errors)
    held_out[operation] = {{"points", list.size()}, {"error_median", quantile(list, 0.5)}, {"error_p90", quantile(list, 0.9)}};
  Json result = Json::object();
  for (const auto& [key, value] : profile.items()) {
    if (key == "records") {
      result["held_out_error_median"] = quantile(all, 0.5);
      result["held_out_error_p90"] = quantile(all, 0.9);
      result["held_out"] = held_out;
    }
    result[key] = value;
  }
  validate_json(result, profile_schema(), "the measured profile");
  return result;
}

}  // namespace sparscale::kernels
