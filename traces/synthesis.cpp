#include "traces/synthesis.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/random.hpp"
#include "traces/trace_writer.hpp"

namespace sparscale::embedded {
extern const char* const model_schema_text;
}

namespace sparscale::traces {
namespace {

namespace fs = std::filesystem;

constexpr double size_exponent = -0.3;       // of the root mean square over layers, as in the captured convolutional network
constexpr std::int64_t sampled_from = 1024;  // smaller layers are kept whole, as by the capture

std::uint64_t u64(std::int64_t value) { return static_cast<std::uint64_t>(value); }
std::size_t size(std::int64_t value) { return static_cast<std::size_t>(value); }

// Standard normal numbers, both of every pair that Box and Muller's method gives.
class Normals {
 public:
  explicit Normals(std::uint64_t key) : random_(key) {}
  float next() {
    if (has_second_) {
      has_second_ = false;
      return second_;
    }
    const double radius = std::sqrt(-2 * std::log(1 - random_.uniform())), angle = 2 * std::numbers::pi * random_.uniform();
    second_ = static_cast<float>(radius * std::sin(angle));
    has_second_ = true;
    return static_cast<float>(radius * std::cos(angle));
  }

 private:
  Random random_;
  float second_ = 0;
  bool has_second_ = false;
};

std::int64_t kept_count(double share, std::int64_t rows) {
  return std::clamp<std::int64_t>(std::llround(share * static_cast<double>(rows)), 1, rows);
}

fs::path models_directory() { return data_directory() / "traces" / "models"; }

std::int64_t elements(const Json& shape, const std::string& name, const std::string& place) {
  std::int64_t product = 1;
  for (const Json& extent : shape)
    if (__builtin_mul_overflow(product, extent.get<std::int64_t>(), &product))
      throw InputError(name, place, "fewer than 2^63 elements", brief(shape));
  return product;
}

}  // namespace

const Json& model_schema() {
  static const Json schema = parse_json(embedded::model_schema_text, "model.schema.json");
  return schema;
}

std::int64_t check_model(const Json& model, const std::string& name) {
  validate_json(model, model_schema(), name);
  std::int64_t total = 0;
  for (std::size_t l = 0; l < model["layers"].size(); ++l) {
    const Json& layer = model["layers"][l];
    const std::string place = "/layers/" + std::to_string(l);
    if (__builtin_add_overflow(total, elements(layer["shape"], name, place + "/shape"), &total))
      throw InputError(name, place, "fewer than 2^63 gradients in all", "more");
    if (layer.value("kind", "dense") == "dense") continue;
    bool found = false;
    if (!layer["shape"].empty() && model.contains("rows"))
      for (const Json& rows : model["rows"]) found = found || rows["rows"] == layer["shape"][0];
    if (!found) throw InputError(name, place + "/kind", "an entry of /rows with as many rows as the layer", layer["kind"].dump());
  }
  if (model.contains("parameters") && model["parameters"].get<std::int64_t>() != total)
    throw InputError(name, "/parameters", std::to_string(total) + " as the layers have", model["parameters"].dump());
  return total;
}

std::vector<std::string> shipped_models() {
  std::vector<std::string> names;
  std::error_code code;  // without the data there is none
  for (const auto& entry : fs::directory_iterator(models_directory(), code))
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

Json load_model(const std::string& name_or_file) {
  fs::path file = name_or_file;
  if (file.extension() != ".json" || !fs::exists(file)) {
    const std::vector<std::string> shipped = shipped_models();
    if (std::find(shipped.begin(), shipped.end(), name_or_file) != shipped.end()) {
      file = models_directory() / (name_or_file + ".json");
    } else if (!fs::exists(file)) {
      std::string names;
      for (const std::string& name : shipped) names += (names.empty() ? "" : ", ") + name;
      throw InputError(name_or_file, "", "a file, or one of the models " + names, "no such file");
    }
  }
  Json model = load_json(file);
  check_model(model, file.string());
  return model;
}

struct SyntheticSource::State {
  enum class Kind { dense, embedding, softmax };
  struct RowGroup {
    std::int64_t rows = 0, draws = 0;
    double repeat = 0;
    std::vector<double> cumulative;   // [rows] by rank
    std::vector<std::int32_t> row;    // [rank]
    std::vector<float> expected;      // [rows] draws of the row by one worker
    std::vector<std::int32_t> kept;   // rows of the model that this trace has; empty: all
    std::vector<std::int32_t> count;  // [rows]: scratch of the current gradient
    std::vector<std::int32_t> drawn;  // scratch: rows whose count is not 0
  };
  struct Part {
    std::int64_t offset = 0, elements = 0, width = 0;  // width: elements of a row
    Kind kind = Kind::dense;
    std::int64_t group = -1;
    std::vector<std::int32_t> kept;  // rows of the model; empty: all
  };

  State(const Json& model, const std::string& name, const SynthesisOptions& options_in);
  std::span<const float> make(std::int64_t iteration, std::int64_t worker);
  void set_mean(std::int64_t iteration);
  void draw_rows(RowGroup& group, std::size_t number, std::int64_t iteration, std::int64_t worker);
  std::int32_t draw(const RowGroup& group, std::size_t number, std::int64_t iteration, std::int64_t worker, std::int64_t index) const;

  SynthesisOptions options;
  std::int64_t gradients = 0;
  double correlation = 0, mean_memory = 0, deviation_memory = 0, norm_variation = 0, drift = 0;
  std::vector<RowGroup> groups;
  std::vector<Part> parts;
  std::vector<float> sigma, mean, out;
  std::int64_t mean_iteration = -1;
  Json manifest;
};

SyntheticSource::State::State(const Json& model, const std::string& name, const SynthesisOptions& options_in) : options(options_in) {
  const std::int64_t full = check_model(model, name);
  if (options.workers < 1 || options.workers > 65536) throw InputError("--workers", "1 to 65536", std::to_string(options.workers));
  if (options.iterations < 1 || options.iterations > 1'000'000)
    throw InputError("--iterations", "1 to 1000000", std::to_string(options.iterations));
  if (options.gradients < 0) throw InputError("--gradients", "an integer >= 0", std::to_string(options.gradients));
  correlation = model.value("worker_correlation", 0.02);
  mean_memory = model.value("mean_memory", 0.5);
  deviation_memory = model.value("deviation_memory", 0.0);
  norm_variation = model.value("norm_variation", 0.1);
  drift = model.value("drift", 0.0);

  // The same share of the rows of every larger layer; layers with as many rows keep the same ones.
  double keep = 1;
  if (options.gradients > 0 && options.gradients < full) {
    const auto remaining = [&](double share) {
      std::int64_t total = 0;
      for (const Json& layer : model["layers"]) {
        const std::int64_t count = elements(layer["shape"], name, ""),
                           rows = count >= sampled_from ? layer["shape"][0].get<std::int64_t>() : 1;
        total += rows > 1 ? kept_count(share, rows) * (count / rows) : count;
      }
      return total;
    };
    if (remaining(0) > options.gradients)
      throw InputError("--gradients", "at least " + std::to_string(remaining(0)) + ": one row of every larger layer and the others",
                       std::to_string(options.gradients));
    // The largest share that does not exceed what is wanted.
    double low = 0, high = 1;
    for (int step = 0; step < 50; ++step) {
      const double middle = (low + high) / 2;
      (remaining(middle) <= options.gradients ? low : high) = middle;
    }
    keep = low;
  }
  const auto kept_rows = [&](std::int64_t rows) {
    const std::int64_t count = kept_count(keep, rows);
    Random random(stream_key(options.seed, "synthetic sampled rows", {u64(rows)}));
    std::vector<std::int64_t> order = random_permutation(rows, random);
    order.resize(size(count));
    std::sort(order.begin(), order.end());
    return std::vector<std::int32_t>(order.begin(), order.end());
  };

  if (model.contains("rows"))
    for (std::size_t g = 0; g < model["rows"].size(); ++g) {
      const Json& entry = model["rows"][g];
      RowGroup group;
      group.rows = entry["rows"].get<std::int64_t>();
      group.draws = entry["draws"].get<std::int64_t>();
      group.repeat = entry.value("repeat", 0.0);
      for (const RowGroup& other : groups)
        if (other.rows == group.rows)
          throw InputError(name, "/rows/" + std::to_string(g) + "/rows", "every number of rows once", entry["rows"].dump());
      const double exponent = entry["exponent"].get<double>(), offset = entry.value("offset", 0.0);
      double total = 0;
      for (std::int64_t r = 0; r < group.rows; ++r) {
        total += std::pow(static_cast<double>(r + 1) + offset, -exponent);
        group.cumulative.push_back(total);
        group.row.push_back(static_cast<std::int32_t>(r));
      }
      if (entry.value("order", "rank") == "random") {
        Random random(stream_key(options.seed, "synthetic row order", {u64(group.rows)}));
        const std::vector<std::int64_t> order = random_permutation(group.rows, random);
        for (std::size_t r = 0; r < order.size(); ++r) group.row[r] = static_cast<std::int32_t>(order[r]);
      }
      group.expected.resize(size(group.rows));
      for (std::size_t r = 0; r < group.cumulative.size(); ++r) {
        const double probability = (group.cumulative[r] - (r == 0 ? 0 : group.cumulative[r - 1])) / total;
        group.expected[size(group.row[r])] = static_cast<float>(static_cast<double>(group.draws) * probability);
      }
      group.count.assign(size(group.rows), 0);
      groups.push_back(std::move(group));
    }

  manifest = {{"schema_version", 1}, {"name", "synthetic-" + model["name"].get<std::string>()}};
  manifest["model"] = "synthetic gradients: " + model.value("model", model["name"].get<std::string>());
  manifest["dataset"] = "none: random numbers";
  manifest["licence"] = "none needed";
  manifest["note"] = "Made from a description, not captured: statistics alike to captured gradients, nothing more.";
  manifest["gradient_point"] = "synthetic";
  manifest["data_order"] = model.value("data_order", "iid");
  manifest["seed"] = options.seed;
  Json layers = Json::array();
  std::vector<double> spreads, weights;
  for (std::size_t l = 0; l < model["layers"].size(); ++l) {
    const Json& layer = model["layers"][l];
    const std::int64_t count = elements(layer["shape"], name, "");
    Part part;
    const std::string kind = layer.value("kind", "dense");
    part.kind = kind == "dense" ? Kind::dense : kind == "embedding" ? Kind::embedding : Kind::softmax;
    const std::int64_t rows = layer["shape"].empty() ? 1 : layer["shape"][0].get<std::int64_t>();
    part.width = count / rows;
    if (part.kind != Kind::dense)
      for (std::size_t g = 0; g < groups.size(); ++g)
        if (groups[g].rows == rows) part.group = static_cast<std::int64_t>(g);
    Json entry = {{"name", layer["name"]}, {"shape", layer["shape"]}};
    if (keep < 1 && count >= sampled_from && rows > 1) {
      part.kept = kept_rows(rows);
      entry["shape"][0] = part.kept.size();
      entry["full_shape"] = layer["shape"];
    }
    part.offset = gradients;
    part.elements = part.kept.empty() ? count : static_cast<std::int64_t>(part.kept.size()) * part.width;
    entry["offset"] = part.offset;
    entry["size"] = part.elements;
    gradients += part.elements;
    layers.push_back(std::move(entry));
    spreads.push_back(layer.value("spread", model.value("spread", 1.5)));
    weights.push_back(layer.value("scale", 1.0) * std::pow(static_cast<double>(count), size_exponent));
    parts.push_back(std::move(part));
  }
  manifest["gradients"] = gradients;
  if (gradients != full) manifest["full_gradients"] = full;
  manifest["workers"] = options.workers;
  std::vector<std::int64_t> iterations(size(options.iterations));
  std::iota(iterations.begin(), iterations.end(), 0);
  manifest["iterations"] = iterations;
  if (model.contains("learning_rate"))
    manifest["learning_rate"] = std::vector<double>(iterations.size(), model["learning_rate"].get<double>());
  manifest["layers"] = std::move(layers);
  manifest["synthetic"] = {{"seed", options.seed}};
  for (const auto& [key, value] : model.items())
    if (key != "layers" && key != "schema_version") manifest["synthetic"][key] = value;

  sigma.resize(size(gradients));
  mean.assign(size(gradients), 0.0F);
  out.resize(size(gradients));
  for (std::size_t l = 0; l < parts.size(); ++l) {
    const Part& part = parts[l];
    // Mean square of the amplitude over all rows of the model, so that the layer has the wanted root mean square.
    double amplitude = 1;
    if (part.group >= 0) {
      const RowGroup& group = groups[size(part.group)];
      amplitude = 0;
      for (const float e : group.expected) {
        // Drawn with probability 1 - exp(-e), else (in a softmax) of the amplitude e.
        const double silent = std::min(1.0, double{e}) * std::min(1.0, double{e});
        amplitude += e + (part.kind == Kind::softmax ? std::exp(-double{e}) * silent : 0.0);
      }
      amplitude /= static_cast<double>(group.rows);
    }
    const double logarithm = std::log(spreads[l]);
    // The mean of exp(2 s z) is exp(2 s^2).
    const double base = weights[l] / std::sqrt(amplitude) * std::exp(-logarithm * logarithm);
    Normals normals(stream_key(options.seed, "synthetic sigma", {l}));
    for (std::int64_t i = 0; i < part.elements; ++i)
      sigma[size(part.offset + i)] = static_cast<float>(base * std::exp(logarithm * static_cast<double>(normals.next())));
  }
}

void SyntheticSource::State::set_mean(std::int64_t iteration) {
  if (iteration < mean_iteration) mean_iteration = -1;
  while (mean_iteration < iteration) {
    ++mean_iteration;
    Normals normals(stream_key(options.seed, "synthetic mean", {u64(mean_iteration)}));
    const auto old = static_cast<float>(mean_iteration == 0 ? 0.0 : mean_memory);
    const float fresh = std::sqrt(1 - old * old);
    for (float& value : mean) value = old * value + fresh * normals.next();
  }
}

// The same whenever it is asked for: a repeated draw is that of the iteration before.
std::int32_t SyntheticSource::State::draw(const RowGroup& group, std::size_t number, std::int64_t iteration, std::int64_t worker,
                                          std::int64_t index) const {
  for (;; --iteration) {
    Random random(stream_key(options.seed, "synthetic draws", {number, u64(iteration), u64(worker), u64(index)}));
    if (iteration > 0 && random.uniform() < group.repeat) continue;
    const double at = random.uniform() * group.cumulative.back();
    const auto rank = std::upper_bound(group.cumulative.begin(), group.cumulative.end() - 1, at) - group.cumulative.begin();
    return group.row[size(rank)];
  }
}

void SyntheticSource::State::draw_rows(RowGroup& group, std::size_t number, std::int64_t iteration, std::int64_t worker) {
  for (const std::int32_t row : group.drawn) group.count[size(row)] = 0;
  group.drawn.clear();
  for (std::int64_t d = 0; d < group.draws; ++d) {
    const std::int32_t row = draw(group, number, iteration, worker, d);
    if (group.count[size(row)]++ == 0) group.drawn.push_back(row);
  }
}

std::span<const float> SyntheticSource::State::make(std::int64_t iteration, std::int64_t worker) {
  set_mean(iteration);
  for (std::size_t g = 0; g < groups.size(); ++g) draw_rows(groups[g], g, iteration, worker);
  Random own(stream_key(options.seed, "synthetic norm", {u64(iteration), u64(worker)}));
  const double factor = std::exp(drift * static_cast<double>(iteration)) * std::max(0.05, 1 + norm_variation * own.normal());
  // A moving average of two has the wanted correlation with its neighbour and none with others: theta / (1 + theta^2).
  const double m = deviation_memory;
  const double theta = m > 0 ? (1 - std::sqrt(std::max(0.0, 1 - 4 * m * m))) / (2 * m) : 0.0;
  const auto common = static_cast<float>(factor * std::sqrt(correlation));
  const auto now = static_cast<float>(factor * std::sqrt((1 - correlation) / (1 + theta * theta)));
  const float before = now * static_cast<float>(theta);
  for (std::size_t l = 0; l < parts.size(); ++l) {
    const Part& part = parts[l];
    // A stream per layer: an embedding needs numbers for the rows that are not zero only.
    Normals fresh(stream_key(options.seed, "synthetic deviation", {u64(iteration + 1), u64(worker), l}));
    Normals last(stream_key(options.seed, "synthetic deviation", {u64(iteration), u64(worker), l}));
    const auto fill = [&](std::int64_t first, std::int64_t count, float amplitude) {
      for (std::int64_t i = first; i < first + count; ++i) {
        float value = common * mean[size(i)] + now * fresh.next();
        if (theta > 0) value += before * last.next();
        out[size(i)] = amplitude * sigma[size(i)] * value;
      }
    };
    if (part.group < 0) {
      fill(part.offset, part.elements, 1);
      continue;
    }
    const RowGroup& group = groups[size(part.group)];
    const std::int64_t rows = part.elements / part.width;
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto row = size(part.kept.empty() ? r : part.kept[size(r)]);
      const auto count = static_cast<float>(group.count[row]);
      if (part.kind == Kind::embedding && count == 0)
        std::fill_n(out.begin() + part.offset + r * part.width, part.width, 0.0F);
      else
        fill(part.offset + r * part.width, part.width, count > 0 ? std::sqrt(count) : std::min(1.0F, group.expected[row]));
    }
  }
  return out;
}

SyntheticSource::SyntheticSource(const Json& model, const std::string& name, const SynthesisOptions& options)
    : state_(std::make_unique<State>(model, name, options)) {}
SyntheticSource::~SyntheticSource() = default;
std::int64_t SyntheticSource::workers() const { return state_->options.workers; }
std::int64_t SyntheticSource::gradients() const { return state_->gradients; }
std::int64_t SyntheticSource::position(std::int64_t iteration) const { return iteration % state_->options.iterations; }
const Json& SyntheticSource::manifest() const { return state_->manifest; }
std::span<const float> SyntheticSource::gradient(std::int64_t iteration, std::int64_t worker) { return state_->make(iteration, worker); }

void synthesize_trace(const Json& model, const std::string& name, const SynthesisOptions& options, const fs::path& directory, bool half) {
  SyntheticSource source(model, name, options);
  write_trace(directory, source.manifest(), [&](std::int64_t t, std::int64_t w) { return source.gradient(t, w); },
              {.half = half, .workers_per_file = 0});
}

}  // namespace sparscale::traces
