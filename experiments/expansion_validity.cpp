#include "experiments/expansion_validity.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <span>

#include "base/error.hpp"
#include "base/random.hpp"
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

// Mean and relative standard deviation of what different captured workers give.
struct Spread {
  double mean = 0, relative = 0;
};

Spread spread_of(const std::vector<double>& values) {
  Spread spread;
  double squares = 0;
  for (const double value : values) spread.mean += value / static_cast<double>(values.size());
  for (const double value : values) squares += (value - spread.mean) * (value - spread.mean);
  if (spread.mean != 0) spread.relative = std::sqrt(squares / static_cast<double>(values.size() - 1)) / spread.mean;
  return spread;
}

// One quantity of a trace by the number of workers it was measured with, over random sets of them.
class Scatter {
 public:
  Scatter() = default;
  Scatter(std::int64_t of, std::map<std::int64_t, Spread> by_workers) : of_(of), by_workers_(std::move(by_workers)) {}
  bool known(std::int64_t workers) const { return by_workers_.count(workers) != 0; }
  double mean(std::int64_t workers) const { return by_workers_.at(workers).mean; }
  /// Relative standard deviation between sets of so many of the trace's workers.
  Json between_sets(std::int64_t workers) const { return known(workers) ? Json(by_workers_.at(workers).relative) : Json(); }
  /// And between trainings with so many workers: halves of a sample of M scatter as much as samples of M do (sampling without
  /// replacement), and less in proportion to the root of the number.
  Json between_trainings(std::int64_t workers) const {
    if (!known(of_ / 2)) return {};
    return by_workers_.at(of_ / 2).relative * std::sqrt(static_cast<double>(of_) / static_cast<double>(workers));
  }

 private:
  std::int64_t of_ = 0;
  std::map<std::int64_t, Spread> by_workers_;
};

class Report {
 public:
  void add(const traces::Trace& trace, const std::string& sparsifier, double density, std::int64_t captured, std::int64_t workers,
           const std::string& method, const std::string& metric, double truth, double predicted, const Scatter& scatter) {
    const double error = 100 * (predicted / truth - 1);
    const auto percent = [](const Json& relative) { return relative.is_null() ? Json() : Json(100 * relative.get<double>()); };
    const Json sampling = percent(scatter.between_sets(captured));
    Json in_sampling;
    if (sampling.is_number() && sampling.get<double>() > 0) in_sampling = std::abs(error) / sampling.get<double>();
    cases_.push_back({{"trace", trace.info().name},
                      {"sparsifier", sparsifier},
                      {"density", density},
                      {"captured", captured},
                      {"workers", workers},
                      {"method", method},
                      {"metric", metric},
                      {"truth", truth},
                      {"truth_scatter_percent", percent(scatter.between_trainings(workers))},
                      {"predicted", predicted},
                      {"error_percent", error},
                      {"sampling_percent", sampling},
                      {"error_in_sampling", in_sampling}});
  }

  Json finish(std::int64_t seeds) {
    struct Errors {
      double sum = 0, worst = 0, sampling = 0;
      std::int64_t count = 0, with_sampling = 0, within = 0;
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
      if (!entry["sampling_percent"].is_number()) continue;
      const double sampling = entry["sampling_percent"].get<double>();
      errors.sampling += sampling;
      ++errors.with_sampling;
      if (error <= 2 * sampling) ++errors.within;
    }
    Json summary = Json::array();
    for (const std::string& name : order) {
      Json row = keys[name];
      row["cases"] = groups[name].count;
      row["mean_error_percent"] = groups[name].sum / static_cast<double>(groups[name].count);
      row["worst_error_percent"] = groups[name].worst;
      row["mean_sampling_percent"] =
          groups[name].with_sampling > 0 ? Json(groups[name].sampling / static_cast<double>(groups[name].with_sampling)) : Json();
      row["cases_with_sampling"] = groups[name].with_sampling;
      row["cases_within_two_sampling"] = groups[name].within;
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

// Captured workers of a trace, those of `order`.
class ChosenSource final : public traces::GradientSource {
 public:
  ChosenSource(const traces::Trace& trace, std::vector<std::int64_t> order) : trace_(trace), order_(std::move(order)) {}
  std::int64_t workers() const override { return std::ssize(order_); }
  std::int64_t gradients() const override { return trace_.gradients(); }
  std::int64_t position(std::int64_t iteration) const override { return iteration % trace_.iterations(); }
  std::span<const float> gradient(std::int64_t iteration, std::int64_t worker) override {
    return trace_.gradient(position(iteration), order_[static_cast<std::size_t>(worker)]);
  }

 private:
  traces::Trace trace_;
  std::vector<std::int64_t> order_;
};

constexpr std::int64_t repeats = 16;

// Random sets of `workers` of a trace's workers, in random order.
std::unique_ptr<traces::GradientSource> chosen_workers(const traces::Trace& trace, std::int64_t workers, std::int64_t repeat) {
  Random random(stream_key(1, "captured workers of a repeat", {static_cast<std::uint64_t>(workers), static_cast<std::uint64_t>(repeat)}));
  std::vector<std::int64_t> order = random_permutation(trace.workers(), random);
  order.resize(static_cast<std::size_t>(workers));
  return std::make_unique<ChosenSource>(trace, std::move(order));
}

// Numbers of workers that a trace is measured with: those that are predicted from, half of all (the scatter of the truth) and those wanted.
std::vector<std::int64_t> measured_workers(const traces::Trace& trace) {
  std::vector<std::int64_t> list;
  for (const std::int64_t workers : {few[0], few[1], trace.workers() / 2, many[0], many[1]})
    if (workers <= trace.workers() && std::find(list.begin(), list.end(), workers) == list.end()) list.push_back(workers);
  return list;
}

Scatter topk_scatter(const traces::Trace& trace, Index k) {
  std::map<std::int64_t, Spread> spreads;
  for (const std::int64_t workers : measured_workers(trace)) {
    std::vector<double> values;
    for (std::int64_t repeat = 0; repeat < repeats; ++repeat)
      values.push_back(
          topk_build_up(sim::topk_selection_counts(*chosen_workers(trace, workers, repeat), {}, true, k, trace.iterations()), k, workers));
    spreads[workers] = spread_of(values);
  }
  return {trace.workers(), std::move(spreads)};
}

// Local top-k by every method. `truth` by number of workers.
void add_topk(Report& report, const traces::Trace& trace, double density, const std::map<std::int64_t, double>& truth,
              const Scatter& scatter, std::int64_t seeds) {
  const auto k = static_cast<Index>(density * static_cast<double>(trace.gradients()));
  for (const std::int64_t captured : few) {
    if (captured > trace.workers()) continue;
    std::map<std::string, std::map<std::int64_t, double>> by_method;
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
      by_method[method] = predicted;
      by_method[std::string(method) + "+cal"] = calibrated;
      for (const auto& [workers, value] : predicted) {
        report.add(trace, "topk", density, captured, workers, method, "build_up", truth.at(workers), value, scatter);
        report.add(trace, "topk", density, captured, workers, std::string(method) + "+cal", "build_up", truth.at(workers),
                   calibrated[workers], scatter);
      }
    }
    for (const auto& [workers, value] : truth) {
      const double npmle = sim::npmle_union(classes, workers) / static_cast<double>(k);
      report.add(trace, "topk", density, captured, workers, "npmle", "build_up", value, npmle, scatter);
      const std::string chosen = traces::choose_expansion(trace, {.method = "auto", .workers = workers, .captured = captured}).method;
      const auto found = by_method[chosen].find(workers);
      if (found != by_method[chosen].end()) {
        const double projected = found->second, calibrated = by_method[chosen + "+cal"].at(workers);
        report.add(trace, "topk", density, captured, workers, "auto", "build_up", value, projected, scatter);
        report.add(trace, "topk", density, captured, workers, "consensus", "build_up", value, std::cbrt(projected * calibrated * npmle),
                   scatter);
      }
      report.add(trace, "topk", density, captured, workers, "logquad", "build_up", value,
                 sim::log_quadratic_build_up(classes, static_cast<double>(k), workers), scatter);
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
  double density = 0, padding = 0;
};

Means replay_means(const traces::Trace& trace, const std::string& sparsifier, double density,
                   std::unique_ptr<traces::GradientSource> source, std::uint64_t seed) {
  sim::ReplayOptions options;
  options.sparsifier = sparsifier;
  // The traces are small samples: blocks of 32 at least, as the sparsifier demands.
  Json parameters = Json::object();
  if (sparsifier == "exdyna") parameters["blocks"] = std::min<std::int64_t>(1024, trace.gradients() / 32);
  options.parameters = sim::resolve_parameters(sim::find_sparsifier(sparsifier), parameters, "", "");
  options.density = density;
  options.workers = source->workers();
  options.seed = seed;
  options.norms = false;
  // One pass: captured workers cannot be looped without adding the same noise twice (docs/expansion.md). Threshold controllers are still
  // settling then, with captured and with generated workers alike.
  options.iterations = trace.iterations();
  const auto k = static_cast<Index>(density * static_cast<double>(trace.gradients()));
  sim::Replay replay(std::make_unique<ScaledSource>(std::move(source), threshold_factor(trace, k)), trace.info().layers, options);
  Means means;
  for (std::int64_t t = 0; t < options.iterations; ++t) {
    const Json record = replay.next();
    const double share = 1.0 / static_cast<double>(options.iterations);
    means.density += share * record["density"].get<double>();
    if (record["padding"].is_number()) means.padding += share * record["padding"].get<double>();
  }
  return means;
}

void add_sparsifier(Report& report, const traces::Trace& trace, const std::string& sparsifier, double density, std::int64_t seeds) {
  // The truth is the mean over sets of captured workers and their orders (partitions belong to worker numbers).
  std::map<std::int64_t, Spread> densities_of, paddings_of;
  for (const std::int64_t workers : measured_workers(trace)) {
    std::vector<double> found_density, found_padding;
    for (std::int64_t repeat = 0; repeat < repeats; ++repeat) {
      const Means means = replay_means(trace, sparsifier, density, chosen_workers(trace, workers, repeat), 1);
      found_density.push_back(means.density);
      found_padding.push_back(means.padding);
    }
    densities_of[workers] = spread_of(found_density);
    paddings_of[workers] = spread_of(found_padding);
  }
  const Scatter density_scatter(trace.workers(), std::move(densities_of)), padding_scatter(trace.workers(), std::move(paddings_of));
  for (const std::int64_t workers : many) {
    if (workers > trace.workers()) continue;
    for (const std::int64_t captured : few) {
      Means sum;
      for (std::int64_t seed = 1; seed <= seeds; ++seed) {
        const traces::ExpansionOptions expansion{
            .method = "auto", .workers = workers, .captured = captured, .seed = static_cast<std::uint64_t>(seed)};
        const Means means = replay_means(trace, sparsifier, density, traces::make_gradient_source(trace, expansion), expansion.seed);
        sum.density += means.density / static_cast<double>(seeds);
        sum.padding += means.padding / static_cast<double>(seeds);
      }
      report.add(trace, sparsifier, density, captured, workers, "auto", "density", density_scatter.mean(workers), sum.density,
                 density_scatter);
      report.add(trace, sparsifier, density, captured, workers, "auto", "padding", padding_scatter.mean(workers), sum.padding,
                 padding_scatter);
    }
  }
}

// By name, the iterations [from, to) whose mean build-up is compared.
struct Phase {
  std::string metric;
  std::int64_t from = 0, to = 0;
};
std::vector<Phase> phases_of(const LearningRateDrop& drop, std::int64_t positions) {
  constexpr std::int64_t length = 4;
  std::vector<Phase> phases = {{"build_up_before", std::max<std::int64_t>(0, drop.position - length), drop.position}};
  for (const std::int64_t later : {0, 10, 20, 40})
    if (const std::int64_t from = drop.position + later; from < positions)
      phases.push_back({"build_up_after_" + std::to_string(later), from, std::min(from + length, positions)});
  return phases;
}

// Mean build-up of every phase; `workers` of those of the source (all subsets).
std::vector<double> phase_build_ups(traces::GradientSource& source, const std::vector<double>& learning_rate, Index k, std::int64_t workers,
                                    const std::vector<Phase>& phases) {
  const sim::SelectionCounts counts = sim::topk_selection_counts(source, learning_rate, true, k, std::ssize(learning_rate));
  std::vector<double> means;
  for (const Phase& phase : phases) {
    const sim::SelectionCounts part(counts.begin() + phase.from, counts.begin() + phase.to);
    means.push_back(sim::rarefied_union(sim::count_classes(part, source.workers()), workers) / static_cast<double>(k));
  }
  return means;
}

void add_drop(Report& report, const traces::Trace& trace, double density, const LearningRateDrop& drop, std::int64_t seeds) {
  const auto k = static_cast<Index>(density * static_cast<double>(trace.gradients()));
  std::vector<double> learning_rate = trace.info().learning_rate;
  learning_rate.resize(static_cast<std::size_t>(trace.iterations()), 1.0);
  for (std::int64_t t = drop.position; t < trace.iterations(); ++t) learning_rate[static_cast<std::size_t>(t)] *= drop.factor;
  const std::vector<Phase> phases = phases_of(drop, trace.iterations());

  std::vector<std::map<std::int64_t, Spread>> spreads(phases.size());
  for (const std::int64_t workers : measured_workers(trace)) {
    std::vector<std::vector<double>> values(phases.size());
    // Of all workers there is one set, and local top-k does not depend on their order.
    const std::int64_t sets = workers < trace.workers() ? repeats : 2;
    for (std::int64_t repeat = 0; repeat < sets; ++repeat) {
      const auto found = phase_build_ups(*chosen_workers(trace, workers, repeat), learning_rate, k, workers, phases);
      for (std::size_t i = 0; i < phases.size(); ++i) values[i].push_back(found[i]);
    }
    for (std::size_t i = 0; i < phases.size(); ++i) spreads[i][workers] = spread_of(values[i]);
  }
  for (const std::int64_t workers : many) {
    if (workers > trace.workers()) continue;
    const auto all = chosen_workers(trace, trace.workers(), 0);
    const std::vector<double> truth = phase_build_ups(*all, learning_rate, k, workers, phases);
    for (const std::int64_t captured : few) {
      std::vector<double> predicted(phases.size());
      for (std::int64_t seed = 1; seed <= seeds; ++seed) {
        const auto source = traces::make_gradient_source(
            trace, {.method = "auto", .workers = workers, .captured = captured, .seed = static_cast<std::uint64_t>(seed)});
        const auto found = phase_build_ups(*source, learning_rate, k, workers, phases);
        for (std::size_t i = 0; i < phases.size(); ++i) predicted[i] += found[i] / static_cast<double>(seeds);
      }
      for (std::size_t i = 0; i < phases.size(); ++i)
        report.add(trace, "topk", density, captured, workers, "auto", phases[i].metric, truth[i], predicted[i],
                   Scatter(trace.workers(), spreads[i]));
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

LearningRateDrop LearningRateDrop::parse(const std::string& text) {
  LearningRateDrop drop;
  char rest = 0;
  long long position = 0;
  if (std::sscanf(text.c_str(), "%lld:%lf%c", &position, &drop.factor, &rest) != 2 || position < 1 || !(drop.factor > 0) ||
      !std::isfinite(drop.factor))
    throw InputError("--learning-rate-drop", "POSITION:FACTOR, a position >= 1 of the window and a factor > 0", "\"" + text + "\"");
  drop.position = position;
  return drop;
}

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
  if (options.drop && folders.empty())
    throw InputError("--learning-rate-drop", "a folder of traces with all their workers (--traces)", "none");
  for (const fs::path& folder : folders) {
    const traces::Trace trace = traces::Trace::open(folder);
    trace.verify_checksums();
    if (trace.workers() < many[0])
      throw InputError(folder.string(), "/workers", "at least " + std::to_string(many[0]) + " captured workers",
                       std::to_string(trace.workers()));
    if (options.drop && options.drop->position >= trace.iterations())
      throw InputError("--learning-rate-drop",
                       "a position below " + std::to_string(trace.iterations()) + ", the iterations of " + folder.string(),
                       std::to_string(options.drop->position));
    for (const double density : densities) {
      const auto k = static_cast<Index>(density * static_cast<double>(trace.gradients()));
      if (k < 1) continue;
      if (options.drop) {
        add_drop(report, trace, density, *options.drop, options.seeds);
        continue;
      }
      const auto classes = sim::count_classes(counts_of(trace, "captured", trace.workers(), trace.workers(), 1, false, k), trace.workers());
      std::map<std::int64_t, double> truth;
      for (const std::int64_t workers : many)
        if (workers <= trace.workers()) truth[workers] = sim::rarefied_union(classes, workers) / static_cast<double>(k);
      add_topk(report, trace, density, truth, topk_scatter(trace, k), options.seeds);
      for (const std::string& sparsifier : options.sparsifiers) add_sparsifier(report, trace, sparsifier, density, options.seeds);
    }
  }
  if (options.drop) return report.finish(options.seeds);
  const traces::Trace sample = traces::Trace::open(find_trace(truth_sample));
  for (const double density : densities) {
    const Json& stated = sample.info().manifest.at("truth_32_workers").at(number_text(density) + "/cold");
    std::map<std::int64_t, double> truth;
    for (std::size_t i = 0; i < stated["ns"].size(); ++i)
      for (const std::int64_t workers : many)
        if (stated["ns"][i] == workers) truth[workers] = stated["mean_union_over_k"][i].get<double>();
    add_topk(report, sample, density, truth, {}, options.seeds);  // its other workers are not at hand
  }
  return report.finish(options.seeds);
}

std::vector<std::string> expansion_validity_lines(const Json& report) {
  std::vector<std::string> lines;
  lines.push_back(
      "Error of predictions against captured workers, mean |error| (worst) in per cent, by how many times the captured workers; mean of " +
      report["seeds"].dump() + " seeds");
  lines.push_back("after ~: what the choice of the captured workers alone is worth (standard deviation), cases within twice that");
  std::map<std::string, std::map<std::int64_t, std::string>> table;
  std::vector<std::string> order;
  for (const Json& row : report["summary"]) {
    const std::string label = padded(row["sparsifier"].get<std::string>(), 16) + padded(row["metric"].get<std::string>(), 18) +
                              padded(row["method"].get<std::string>(), 12);
    if (table.find(label) == table.end()) order.push_back(label);
    table[label][row["ratio"].get<std::int64_t>()] =
        text("%.1f", row["mean_error_percent"].get<double>()) + text(" (%.1f)", row["worst_error_percent"].get<double>()) +
        (row["mean_sampling_percent"].is_number() ? text(" ~%.1f", row["mean_sampling_percent"].get<double>()) + " " +
                                                        row["cases_within_two_sampling"].dump() + "/" + row["cases_with_sampling"].dump()
                                                  : "");
  }
  lines.push_back(padded("sparsifier", 16) + padded("metric", 18) + padded("method", 12) + padded("2x", 24) + padded("4x", 24) + "8x");
  for (const std::string& label : order)
    lines.push_back(label + padded(table[label][2], 24) + padded(table[label][4], 24) + table[label][8]);
  return lines;
}

std::string expansion_validity_csv(const Json& report) {
  std::string csv =
      "trace,sparsifier,density,captured,workers,method,metric,truth,truth_scatter_percent,predicted,error_percent,sampling_percent,"
      "error_in_sampling\n";
  for (const Json& entry : report["cases"]) {
    std::string line;
    for (const auto& [key, value] : entry.items()) {
      if (!line.empty()) line += ',';
      line += value.is_null()           ? ""
              : value.is_string()       ? value.get<std::string>()
              : value.is_number_float() ? number_text(value.get<double>())
                                        : value.dump();
    }
    csv += line + "\n";
  }
  return csv;
}

}  // namespace sparscale::experiments
