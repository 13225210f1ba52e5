#include "traces/trace_report.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>

namespace sparscale::traces {
namespace {

std::string format(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

std::string padded(std::string text, std::size_t width, bool right) {
  if (text.size() < width) text.insert(right ? 0 : text.size(), width - text.size(), ' ');
  return text;
}

std::string shape_text(const Json& shape) {
  std::string text;
  for (const Json& extent : shape) text += (text.empty() ? "" : "x") + extent.dump();
  return text.empty() ? "scalar" : text;
}

constexpr double tail_share = 0.01;
constexpr std::size_t least_tail = 8;  // values; fewer say nothing
constexpr std::int64_t shape_workers = 4;

struct LayerShape {
  double tail_index = 0, kurtosis = 0, top_share = 0;
  std::int64_t tails = 0, kurtoses = 0;
};

// Hill's estimate over the largest 1 % of the magnitudes that are not zero: 1 / mean of ln(x / smallest of them). Few: nothing.
void add_tail(LayerShape& shape, std::vector<float>& magnitudes) {
  const auto count = static_cast<std::size_t>(tail_share * static_cast<double>(magnitudes.size()));
  if (count < least_tail) return;
  std::nth_element(magnitudes.begin(), magnitudes.begin() + static_cast<std::ptrdiff_t>(count), magnitudes.end(), std::greater<>());
  const double edge = magnitudes[count];
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += std::log(magnitudes[i] / edge);
  if (!(sum > 0)) return;
  shape.tail_index += static_cast<double>(count) / sum;
  ++shape.tails;
}

// Tail index, kurtosis and share of the local top 1 % of every layer: first iteration, up to four workers.
std::vector<LayerShape> layer_shapes(const Trace& trace) {
  const std::vector<Layer>& layers = trace.info().layers;
  std::vector<LayerShape> shapes(layers.size());
  const std::int64_t workers = std::min(shape_workers, trace.workers());
  std::vector<float> magnitudes;
  for (std::int64_t w = 0; w < workers; ++w) {
    const std::span<const float> g = trace.gradient(0, w);
    magnitudes.resize(g.size());
    std::transform(g.begin(), g.end(), magnitudes.begin(), [](float value) { return std::abs(value); });
    const auto k = static_cast<std::size_t>(tail_share * static_cast<double>(g.size()));
    float threshold = std::numeric_limits<float>::infinity();
    if (k > 0) {
      std::nth_element(magnitudes.begin(), magnitudes.begin() + static_cast<std::ptrdiff_t>(k - 1), magnitudes.end(), std::greater<>());
      threshold = magnitudes[k - 1];
    }
    for (std::size_t l = 0; l < layers.size(); ++l) {
      const std::span<const float> part = g.subspan(static_cast<std::size_t>(layers[l].offset), static_cast<std::size_t>(layers[l].size));
      magnitudes.clear();
      double second = 0, fourth = 0, top = 0;
      for (const float value : part) {
        const double square = static_cast<double>(value) * value;
        second += square;
        fourth += square * square;
        top += std::abs(value) >= threshold ? 1 : 0;
        if (value != 0) magnitudes.push_back(std::abs(value));
      }
      if (k > 0) shapes[l].top_share += top / static_cast<double>(k) / static_cast<double>(workers);
      if (second > 0) {
        shapes[l].kurtosis += fourth * static_cast<double>(part.size()) / (second * second);
        ++shapes[l].kurtoses;
      }
      add_tail(shapes[l], magnitudes);
    }
  }
  return shapes;
}

}  // namespace

Json trace_report(const Trace& trace) {
  const TraceInfo& info = trace.info();
  const std::int64_t positions = trace.iterations(), workers = trace.workers();
  const auto gradients = static_cast<std::size_t>(trace.gradients());
  std::vector<double> energy(info.layers.size(), 0);
  std::vector<std::uint64_t> layer_zeros(info.layers.size(), 0);
  std::vector<double> direction(gradients);
  double norm_sum = 0, variation_sum = 0, cosine_sum = 0;
  std::uint64_t zeros = 0;
  bool cosine_defined = workers > 1;
  for (std::int64_t t = 0; t < positions; ++t) {
    std::fill(direction.begin(), direction.end(), 0.0);
    double norms = 0, squares = 0;
    for (std::int64_t w = 0; w < workers; ++w) {
      const std::span<const float> g = trace.gradient(t, w);
      double total = 0;
      for (std::size_t l = 0; l < info.layers.size(); ++l) {
        double sum = 0;
        for (std::int64_t i = info.layers[l].offset; i < info.layers[l].offset + info.layers[l].size; ++i) {
          const double value = g[static_cast<std::size_t>(i)];
          sum += value * value;
          layer_zeros[l] += value == 0 ? 1 : 0;
        }
        energy[l] += sum;
        total += sum;
      }
      const double norm = std::sqrt(total);
      norms += norm;
      squares += total;
      if (norm > 0)
        for (std::size_t i = 0; i < gradients; ++i) direction[i] += g[i] / norm;
      else
        cosine_defined = false;
    }
    const double mean = norms / static_cast<double>(workers);
    norm_sum += mean;
    if (workers > 1 && mean > 0) {
      const double n = static_cast<double>(workers);
      variation_sum += std::sqrt(std::max(0.0, squares - n * mean * mean) / (n - 1)) / mean;
      // |sum of unit vectors|^2 = W + 2 x (sum of the cosines of all pairs).
      double length = 0;
      for (const double value : direction) length += value * value;
      cosine_sum += (length - n) / (n * (n - 1));
    }
  }
  for (const std::uint64_t count : layer_zeros) zeros += count;
  const std::vector<LayerShape> shapes = layer_shapes(trace);
  double all = 0;
  for (const double value : energy) all += value;
  const double t = static_cast<double>(positions);

  Json report;
  report["name"] = info.name;
  report["directory"] = trace.directory().string();
  for (const auto& [key, value] : {std::pair<const char*, const std::string&>{"model", info.model},
                                   {"dataset", info.dataset},
                                   {"licence", info.licence},
                                   {"optimizer", info.optimizer},
                                   {"data_order", info.data_order}})
    report[key] = value.empty() ? Json() : Json(value);
  report["gradients"] = trace.gradients();
  report["full_gradients"] = info.full_gradients;
  report["workers"] = workers;
  report["iterations"] = positions;
  report["first_iteration"] = info.iterations.front();
  report["last_iteration"] = info.iterations.back();
  report["forward_time_s"] = info.forward_time_s ? Json(*info.forward_time_s) : Json();
  report["backward_time_s"] = info.backward_time_s ? Json(*info.backward_time_s) : Json();
  report["timing_device"] = info.timing_device.empty() ? Json() : Json(info.timing_device);
  report["content_sha256"] = trace.content_sha256();
  report["gradient_norm_mean"] = norm_sum / t;
  report["gradient_norm_variation"] = workers > 1 ? Json(variation_sum / t) : Json();
  report["worker_cosine"] = cosine_defined ? Json(cosine_sum / t) : Json();
  report["zero_share"] = static_cast<double>(zeros) / (t * static_cast<double>(workers) * static_cast<double>(gradients));
  Json layers = Json::array();
  for (std::size_t l = 0; l < info.layers.size(); ++l)
    layers.push_back({{"name", info.layers[l].name},
                      {"shape", info.layers[l].shape},
                      {"size", info.layers[l].size},
                      {"parameter_share", static_cast<double>(info.layers[l].size) / static_cast<double>(gradients)},
                      {"energy_share", all > 0 ? energy[l] / all : 0.0},
                      {"top_share", shapes[l].top_share},
                      {"zero_share",
                       static_cast<double>(layer_zeros[l]) / (t * static_cast<double>(workers) * static_cast<double>(info.layers[l].size))},
                      {"kurtosis", shapes[l].kurtoses > 0 ? Json(shapes[l].kurtosis / static_cast<double>(shapes[l].kurtoses)) : Json()},
                      {"tail_index", shapes[l].tails > 0 ? Json(shapes[l].tail_index / static_cast<double>(shapes[l].tails)) : Json()}});
  report["layers"] = std::move(layers);
  return report;
}

std::vector<std::string> trace_report_lines(const Json& report) {
  std::vector<std::string> lines;
  const auto add = [&](const std::string& label, const std::string& value) { lines.push_back(padded(label, 24, false) + value); };
  add("name", report.at("name").get<std::string>());
  for (const char* key : {"model", "dataset", "licence", "optimizer", "data_order"})
    if (report.at(key).is_string()) add(key, report.at(key).get<std::string>());
  std::string size = report.at("gradients").dump();
  if (report.at("full_gradients") != report.at("gradients")) size += ", sampled from " + report.at("full_gradients").dump();
  add("gradients (N)", size);
  add("captured workers (W)", report.at("workers").dump());
  add("iterations (T)",
      report.at("iterations").dump() + " (" + report.at("first_iteration").dump() + " to " + report.at("last_iteration").dump() + ")");
  for (const char* key : {"forward_time_s", "backward_time_s"})
    if (report.at(key).is_number())
      add(key, number_text(report.at(key).get<double>()) +
                   (report.at("timing_device").is_string() ? " (" + report.at("timing_device").get<std::string>() + ")" : ""));
  add("mean gradient norm", format("%.6g", report.at("gradient_norm_mean").get<double>()));
  if (report.at("gradient_norm_variation").is_number())
    add("norm variation", format("%.4f (standard deviation over workers / mean)", report.at("gradient_norm_variation").get<double>()));
  if (report.at("worker_cosine").is_number())
    add("worker cosine", format("%.4f (mean over pairs of workers)", report.at("worker_cosine").get<double>()));
  add("exact zeros", format("%.2f %%", 100 * report.at("zero_share").get<double>()));
  add("content SHA-256", report.at("content_sha256").get<std::string>());
  std::size_t name_width = 5, shape_width = 5;
  for (const Json& layer : report.at("layers")) {
    name_width = std::max(name_width, layer.at("name").get_ref<const std::string&>().size());
    shape_width = std::max(shape_width, shape_text(layer.at("shape")).size());
  }
  lines.emplace_back();
  lines.push_back(padded("layer", name_width, false) + "  " + padded("shape", shape_width, true) + padded("size", 12, true) +
                  padded("parameters", 12, true) + padded("energy", 10, true) + padded("top 1 %", 10, true) + padded("zeros", 10, true) +
                  padded("kurtosis", 10, true) + padded("tail", 7, true));
  for (const Json& layer : report.at("layers"))
    lines.push_back(padded(layer.at("name").get<std::string>(), name_width, false) + "  " +
                    padded(shape_text(layer.at("shape")), shape_width, true) + padded(layer.at("size").dump(), 12, true) +
                    padded(format("%.2f %%", 100 * layer.at("parameter_share").get<double>()), 12, true) +
                    padded(format("%.2f %%", 100 * layer.at("energy_share").get<double>()), 10, true) +
                    padded(format("%.2f %%", 100 * layer.at("top_share").get<double>()), 10, true) +
                    padded(format("%.2f %%", 100 * layer.at("zero_share").get<double>()), 10, true) +
                    padded(layer.at("kurtosis").is_null() ? "-" : format("%.1f", layer.at("kurtosis").get<double>()), 10, true) +
                    padded(layer.at("tail_index").is_null() ? "-" : format("%.2f", layer.at("tail_index").get<double>()), 7, true));
  return lines;
}

}  // namespace sparscale::traces
