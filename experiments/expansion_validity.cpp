#include "experiments/expansion_validity.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <span>

#include "base/error.hpp"
#include "experiments/experiment.hpp"
#include "sim/npmle.hpp"
#include "sim/replay.hpp"
#include "sim/selection_counts.hpp"
#include "sim/sparsifier.hpp"

namespace sparscale::experiments {
namespace {

namespace fs = std::filesystem;
using kernels::Index;

constexpr double densities[] = {0.01, 0.001};
constexpr std::int64_t few[] = {4, 8}, many[] = {16, 32};
constexpr const char* truth_sample = "kjv-lstm-8w";

double topk_build_up(const sim::SelectionCounts& counts, Index k, std::int64_t workers) {
  return sim::rarefied_union(sim::count_classes(counts, workers), workers) / static_cast<double>(k);
}

class Report {
 public:
  void add(const traces::Trace& trace, const std::string& sparsifier, double density, std::int64_t captured, std::int64_t workers,
           const std::string& method, const std::string& metric, double truth, double predicted) {
    cases_.push_back({{"trace", trace.info().name},
                      {"sparsifier", sparsifier},
                      {"density", density},
                      {"captured", captured},
                      {"workers", workers},
                      {"method", method},
                      {"metric", metric},
                      {"truth", truth},
                      {"predicted", predicted},
                      {"error_percent", 100 * (predicted / truth - 1)}});
  }

  Json finish(std::int64_t seeds) {
    struct Errors {
      double sum = 0, worst = 0;
      std::int64_t count = 0;
    };
    std::map<std::string, Errors> groups;
    std::map<std::string, Json> keys;
    std::vector<std::string> order;
    for (const Json& entry : cases_) {
      Json key = {{"sparsifier", entry["sparsifier"]},
                  {"metric", entry["metric"]},
                  {"method", entry["method"]},
                  {"ratio", entry["workers"].get<std::int64_t>() / entry["captured"].get<std::int64_t>()}};
      const std::string name = key.dump();
      if (keys.emplace(name, key).second) order.push_back(name);
      Errors& errors = groups[name];
      const double error = std::abs(entry["error_percent"].get<double>());
      errors.sum += error;
      errors.worst = std::max(errors.worst, error);
      ++errors.count;
    }
    Json summary = Json::array();
    for (const std::string& name : order) {
      Json row = keys[name];
      row["cases"] = groups[name].count;
      row["mean_error_percent"] = groups[name].sum / static_cast<double>(groups[name].count);
      row["worst_error_percent"] = groups[name].worst;
      summary.push_back(std::move(row));
    }
    return {{"seeds", seeds}, {"summary", std::move(summary)}, {"cases", std::move(cases_)}};
  }

 private:
  Json cases_ = Json::array();
};

sim::SelectionCounts counts_of(const traces::Trace& trace, const std::string& method, std::int64_t captured, std::int64_t workers,
                               std::uint64_t seed, bool generate_all, Index k) {
  const traces::ExpansionOptions options{.method = method, .workers = workers, .captured = captured, .seed = seed};
  const auto source = traces::make_gradient_source(trace, options, generate_all);
  return sim::topk_selection_counts(*source, {}, true, k, trace.iterations());
}

// Local top-k by every method. `truth` by number of workers.
void add_topk(Report& report, const traces::Trace& trace, double density, const std::map<std::int64_t, double>& truth, std::int64_t seeds) {
  const auto k = static_cast<Index>(density * static_cast<double>(trace.gradients()));
  for (const std::int64_t captured : few) {
    if (captured > trace.workers()) continue;
    std::map<std::int64_t, double> hybrid, hybrid_calibrated;
    const auto classes = sim::count_classes(counts_of(trace, "captured", captured, captured, 1, false, k), captured);
    const double shown = sim::rarefied_union(classes, captured) / static_cast<double>(k);
    for (const char* method : {"boot", "hybrid", "shift"}) {
      std::map<std::int64_t, double> predicted, calibrated;
      for (std::int64_t seed = 1; seed <= seeds; ++seed) {
        const double generated =
            topk_build_up(counts_of(trace, method, captured, captured, static_cast<std::uint64_t>(seed), true, k), k, captured);
        const double exponent = generated > 1 && shown > 1 ? std::log(shown) / std::log(generated) : 1;
        for (const auto& [workers, value] : truth) {
          if (workers > captured * trace.iterations()) continue;
          const double projected =
              topk_build_up(counts_of(trace, method, captured, workers, static_cast<std::uint64_t>(seed), false, k), k, workers);
          predicted[workers] += projected / static_cast<double>(seeds);
          calibrated[workers] += std::pow(projected, exponent) / static_cast<double>(seeds);
        }
      }
      if (std::string(method) == "hybrid") {
        hybrid = predicted;
        hybrid_calibrated = calibrated;
      }
      for (const auto& [workers, value] : predicted) {
        report.add(trace, "topk", density, captured, workers, method, "build_up", truth.at(workers), value);
        report.add(trace, "topk", density, captured, workers, std::string(method) + "+cal", "build_up", truth.at(workers),
                   calibrated[workers]);
      }
    }
    for (const auto& [workers, value] : truth) {
      const double npmle = sim::npmle_union(classes, workers) / static_cast<double>(k);
      report.add(trace, "topk", density, captured, workers, "npmle", "build_up", value, npmle);
      if (hybrid.count(workers) != 0)
        report.add(trace, "topk", density, captured, workers, "consensus", "build_up", value,
                   std::cbrt(hybrid[workers] * hybrid_calibrated[workers] * npmle));
      report.add(trace, "topk", density, captured, workers, "logquad", "build_up", value,
                 sim::log_quadratic_build_up(classes, static_cast<double>(k), workers));
    }
  }
}

// Gradients times a factor, so that thresholds that start at a fixed value start where they select about k of these.
class ScaledSource final : public traces::GradientSource {
 public:
  ScaledSource(std::unique_ptr<traces::GradientSource> source, float factor) : source_(std::move(source)), factor_(factor) {}
  std::int64_t workers() const override { return source_->workers(); }
  std::int64_t gradients() const override { return source_->gradients(); }
  std::int64_t position(std::int64_t iteration) const override { return source_->position(iteration); }
  std::span<const float> gradient(std::int64_t iteration, std::int64_t worker) override {
    const std::span<const float> values = source_->gradient(iteration, worker);
    scaled_.resize(values.size());
    std::transform(values.begin(), values.end(), scaled_.begin(), [this](float value) { return factor_ * value; });
    return scaled_;
  }

 private:
  std::unique_ptr<traces::GradientSource> source_;
  float factor_;
  std::vector<float> scaled_;
};

// The factor at which the first captured worker's k-th largest magnitude of the first iteration is 1 / (2 sqrt k), the authors' threshold.
float threshold_factor(const traces::Trace& trace, Index k) {
  const std::span<const float> g = trace.gradient(0, 0);
  std::vector<float> magnitudes(g.size());
  std::transform(g.begin(), g.end(), magnitudes.begin(), [](float value) { return std::abs(value); });
  std::nth_element(magnitudes.begin(), magnitudes.begin() + (k - 1), magnitudes.end(), std::greater<>());
  const double threshold = magnitudes[static_cast<std::size_t>(k - 1)];
  return threshold > 0 ? static_cast<float>(0.5 / std::sqrt(static_cast<double>(k)) / threshold) : 1.0F;
}

struct Means {
  double density = 0, build_up = 0, padding = 0;
};

Means replay_means(const traces::Trace& trace, const std::string& sparsifier, double density, std::int64_t captured, std::int64_t workers,
                   std::uint64_t seed) {
  sim::ReplayOptions options;
  options.sparsifier = sparsifier;
  // The traces are small samples: blocks of 32 at least, as the sparsifier demands.
  Json parameters = Json::object();
  if (sparsifier == "exdyna") parameters["blocks"] = std::min<std::int64_t>(1024, trace.gradients() / 32);
  options.parameters = sim::resolve_parameters(sim::find_sparsifier(sparsifier), parameters, "", "");
  options.density = density;
  options.workers = workers;
  options.seed = seed;
  options.norms = false;
  // One pass: captured workers cannot be looped without adding the same noise twice (docs/expansion.md). Threshold controllers are still
  // settling then, with captured and with generated workers alike.
  options.iterations = trace.iterations();
  const traces::ExpansionOptions expansion{.method = "auto", .workers = workers, .captured = captured, .seed = seed};
  const auto k = static_cast<Index>(density * static_cast<double>(trace.gradients()));
  sim::Replay replay(std::make_unique<ScaledSource>(traces::make_gradient_source(trace, expansion), threshold_factor(trace, k)),
                     trace.info().layers, options);
  Means means;
  for (std::int64_t t = 0; t < options.iterations; ++t) {
    const Json record = replay.next();
    const double share = 1.0 / static_cast<double>(options.iterations);
    means.density += share * record["density"].get<double>();
    if (record["build_up"].is_number()) means.build_up += share * record["build_up"].get<double>();
    if (record["padding"].is_number()) means.padding += share * record["padding"].get<double>();
  }
  return means;
}

void add_sparsifier(Report& report, const traces::Trace& trace, const std::string& sparsifier, double density, std::int64_t seeds) {
  for (const std::int64_t workers : many) {
    if (workers > trace.workers()) continue;
    const Means truth = replay_means(trace, sparsifier, density, workers, workers, 1);
    for (const std::int64_t captured : few) {
      Means sum;
      for (std::int64_t seed = 1; seed <= seeds; ++seed) {
        const Means means = replay_means(trace, sparsifier, density, captured, workers, static_cast<std::uint64_t>(seed));
        sum.density += means.density / static_cast<double>(seeds);
        sum.padding += means.padding / static_cast<double>(seeds);
      }
      report.add(trace, sparsifier, density, captured, workers, "auto", "density", truth.density, sum.density);
      report.add(trace, sparsifier, density, captured, workers, "auto", "padding", truth.padding, sum.padding);
    }
  }
}

std::string text(const char* pattern, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, pattern, value);
  return buffer;
}

std::string padded(std::string value, std::size_t width) {
  if (value.size() < width) value.append(width - value.size(), ' ');
  return value;
}

}  // namespace

Json expansion_validity(const ExpansionValidityOptions& options) {
  if (options.seeds < 1) throw InputError("--seeds", "an integer >= 1", std::to_string(options.seeds));
  for (const std::string& sparsifier : options.sparsifiers) sim::find_sparsifier(sparsifier);
  Report report;
  std::vector<fs::path> folders;
  if (!options.traces.empty()) {
    if (!fs::is_directory(options.traces)) throw InputError(options.traces.string(), "", "a folder of traces", "none");
    for (const auto& entry : fs::directory_iterator(options.traces))
      if (fs::exists(entry.path() / "trace.json")) folders.push_back(entry.path());
    std::sort(folders.begin(), folders.end());
    if (folders.empty()) throw InputError(options.traces.string(), "", "a folder of traces", "no trace in it");
  }
  for (const fs::path& folder : folders) {
    const traces::Trace trace = traces::Trace::open(folder);
    trace.verify_checksums();
    if (trace.workers() < many[0])
      throw InputError(folder.string(), "/workers", "at least " + std::to_string(many[0]) + " captured workers",
                       std::to_string(trace.workers()));
    for (const double density : densities) {
      const auto k = static_cast<Index>(density * static_cast<double>(trace.gradients()));
      if (k < 1) continue;
      const auto classes = sim::count_classes(counts_of(trace, "captured", trace.workers(), trace.workers(), 1, false, k), trace.workers());
      std::map<std::int64_t, double> truth;
      for (const std::int64_t workers : many)
        if (workers <= trace.workers()) truth[workers] = sim::rarefied_union(classes, workers) / static_cast<double>(k);
      add_topk(report, trace, density, truth, options.seeds);
      for (const std::string& sparsifier : options.sparsifiers) add_sparsifier(report, trace, sparsifier, density, options.seeds);
    }
  }
  const traces::Trace sample = traces::Trace::open(find_trace(truth_sample));
  for (const double density : densities) {
    const Json& stated = sample.info().manifest.at("truth_32_workers").at(number_text(density) + "/cold");
    std::map<std::int64_t, double> truth;
    for (std::size_t i = 0; i < stated["ns"].size(); ++i)
      for (const std::int64_t workers : many)
        if (stated["ns"][i] == workers) truth[workers] = stated["mean_union_over_k"][i].get<double>();
    add_topk(report, sample, density, truth, options.seeds);
  }
  return report.finish(options.seeds);
}

std::vector<std::string> expansion_validity_lines(const Json& report) {
  std::vector<std::string> lines;
  lines.push_back(
      "Error of predictions against captured workers, mean |error| (worst) in per cent, by how many times the captured workers; mean of " +
      report["seeds"].dump() + " seeds");
  std::map<std::string, std::map<std::int64_t, std::string>> table;
  std::vector<std::string> order;
  for (const Json& row : report["summary"]) {
    const std::string label = padded(row["sparsifier"].get<std::string>(), 16) + padded(row["metric"].get<std::string>(), 10) +
                              padded(row["method"].get<std::string>(), 12);
    if (table.find(label) == table.end()) order.push_back(label);
    table[label][row["ratio"].get<std::int64_t>()] =
        text("%.1f", row["mean_error_percent"].get<double>()) + text(" (%.1f)", row["worst_error_percent"].get<double>());
  }
  lines.push_back(padded("sparsifier", 16) + padded("metric", 10) + padded("method", 12) + padded("2x", 14) + padded("4x", 14) + "8x");
  for (const std::string& label : order)
    lines.push_back(label + padded(table[label][2], 14) + padded(table[label][4], 14) + table[label][8]);
  return lines;
}

std::string expansion_validity_csv(const Json& report) {
  std::string csv = "trace,sparsifier,density,captured,workers,method,metric,truth,predicted,error_percent\n";
  for (const Json& entry : report["cases"]) {
    std::string line;
    for (const auto& [key, value] : entry.items()) {
      if (!line.empty()) line += ',';
      line += value.is_string() ? value.get<std::string>() : value.is_number_float() ? number_text(value.get<double>()) : value.dump();
    }
    csv += line + "\n";
  }
  return csv;
}

}  // namespace sparscale::experiments
