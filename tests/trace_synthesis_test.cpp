#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <set>

#include "base/error.hpp"
#include "sim/replay.hpp"
#include "tests/catch.hpp"
#include "tests/command.hpp"
#include "traces/row_activity.hpp"
#include "traces/synthesis.hpp"
#include "traces/trace_report.hpp"

using namespace sparscale;
using namespace sparscale::traces;
using sparscale::tests::run_program;
using sparscale::tests::Scratch;
using sparscale::tests::spit;

namespace {

// All gradients [T, W, N].
struct Window {
  std::int64_t iterations, workers, gradients;
  std::vector<std::vector<float>> values;
  const std::vector<float>& at(std::int64_t t, std::int64_t w) const { return values[static_cast<std::size_t>(t * workers + w)]; }
};

Window window_of(SyntheticSource& source, std::int64_t iterations) {
  Window window{iterations, source.workers(), source.gradients(), {}};
  for (std::int64_t t = 0; t < iterations; ++t)
    for (std::int64_t w = 0; w < source.workers(); ++w) {
      const auto g = source.gradient(t, w);
      window.values.emplace_back(g.begin(), g.end());
    }
  return window;
}

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

double cosine(const std::vector<float>& a, const std::vector<float>& b) { return dot(a, b) / std::sqrt(dot(a, a) * dot(b, b)); }

double kurtosis(const float* values, std::int64_t count) {
  double second = 0, fourth = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double square = static_cast<double>(values[i]) * values[i];
    second += square;
    fourth += square * square;
  }
  return fourth * static_cast<double>(count) / (second * second);
}

// The models that the captured windows of the three kinds had, as far as their description says.
Json narrow(const char* rows, const char* layers, const char* statistics) {
  return parse_json(
      std::string(R"({"schema_version": 1, "name": "narrow", )") + statistics + R"(, "rows": )" + rows + R"(, "layers": )" + layers + "}",
      "narrow");
}

const char* const word_rows = R"([{"rows": 8000, "draws": 220, "exponent": 0.95, "repeat": 0.1, "order": "random"}])";
const char* const word_layers = R"([{"name": "encoder.weight", "shape": [8000, 64], "kind": "embedding", "scale": 0.65, "spread": 2.2},
  {"name": "rnn.weight_hh_l1", "shape": [256, 64], "spread": 3},
  {"name": "decoder.weight", "shape": [8000, 64], "kind": "softmax", "scale": 1.95, "spread": 2}])";
const char* const word_statistics =
    R"("worker_correlation": 0.034, "mean_memory": 0, "norm_variation": 0.11, "deviation_memory": 0.22, "data_order": "stateful")";

double build_up(std::unique_ptr<GradientSource> source, std::vector<Layer> layers, double density, bool feedback, std::int64_t iterations) {
  sim::ReplayOptions options;
  options.sparsifier = "topk";
  options.workers = source->workers();
  options.density = density;
  options.error_feedback = feedback;
  options.norms = false;
  sim::Replay replay(std::move(source), std::move(layers), options);
  double sum = 0;
  for (std::int64_t t = 0; t < iterations; ++t) sum += replay.next()["build_up"].get<double>() / static_cast<double>(iterations);
  return sum;
}

}  // namespace

TEST_CASE("The shipped models have exactly the published numbers of parameters") {
  const std::vector<std::pair<std::string, std::int64_t>> published = {
      {"bert-large", 335141888}, {"gpt2", 124439808},    {"lstm-28.9m", 28949319}, {"ncf-31.8m", 31832577},
      {"resnet152", 60192808},   {"resnet18", 11173962}, {"vgg16", 14728266},      {"vgg19", 143667240}};
  REQUIRE(shipped_models().size() == published.size());
  for (std::size_t m = 0; m < published.size(); ++m) {
    CHECK(shipped_models()[m] == published[m].first);
    const Json model = load_model(published[m].first);
    std::int64_t total = 0;
    std::set<std::string> names;
    for (const Json& layer : model["layers"]) {
      std::int64_t size = 1;
      for (const Json& extent : layer["shape"]) size *= extent.get<std::int64_t>();
      total += size;
      names.insert(layer["name"].get<std::string>());
    }
    CHECK(total == published[m].second);
    CHECK(names.size() == model["layers"].size());
  }
  CHECK(load_model("vgg16")["layers"].size() == 54);
  CHECK(load_model("resnet18")["layers"].size() == 62);
}

TEST_CASE("Sampled rows: about as many gradients as wanted, the same rows in layers of like height") {
  for (const std::string& name : shipped_models()) {
    if (name == "bert-large" || name == "vgg19") continue;  // alike, and slower
    INFO(name);
    SyntheticSource source(load_model(name), name, {.workers = 2, .iterations = 2, .gradients = 400000, .seed = 3});
    CHECK(static_cast<double>(source.gradients()) == Approx(400000).epsilon(0.12));
    const Json& manifest = source.manifest();
    CHECK(manifest["full_gradients"] == load_model(name)["parameters"]);
    CHECK(manifest["name"] == "synthetic-" + name);
    CHECK_THAT(manifest["model"].get<std::string>(), StartsWith("synthetic gradients"));
    for (const Json& a : manifest["layers"])
      for (const Json& b : manifest["layers"])
        if (a.contains("full_shape") && b.contains("full_shape") && a["full_shape"][0] == b["full_shape"][0])
          CHECK(a["shape"][0] == b["shape"][0]);
  }
}

TEST_CASE("Gradients are a function of seed, iteration and worker") {
  const SynthesisOptions options{.workers = 3, .iterations = 4, .gradients = 0, .seed = 5};
  const Json model = narrow(word_rows, word_layers, word_statistics);
  SyntheticSource forwards(model, "m", options), backwards(model, "m", options);
  const Window window = window_of(forwards, 4);
  bool same = true;
  for (std::int64_t t = 3; t >= 0; --t)
    for (std::int64_t w = 2; w >= 0; --w) {
      const auto g = backwards.gradient(t, w);
      same = same && std::memcmp(g.data(), window.at(t, w).data(), g.size_bytes()) == 0;
    }
  CHECK(same);
  SyntheticSource other(model, "m", {.workers = 3, .iterations = 4, .gradients = 0, .seed = 6});
  CHECK(cosine(window_of(other, 1).at(0, 0), window.at(0, 0)) < 0.1);
}

TEST_CASE("A dense model has the statistics of the captured convolutional network") {
  SyntheticSource source(load_model("resnet18"), "resnet18", {.workers = 12, .iterations = 10, .gradients = 120000, .seed = 1});
  const Window window = window_of(source, 10);
  double between = 0, next = 0, norms = 0, squares = 0, own = 0;
  int pairs = 0, following = 0;
  for (std::int64_t t = 0; t < 10; ++t)
    for (std::int64_t a = 0; a < 12; ++a) {
      const double norm = std::sqrt(dot(window.at(t, a), window.at(t, a)));
      norms += norm;
      squares += norm * norm;
      for (std::int64_t b = 0; b < 12; ++b) {
        if (t + 1 < 10) {
          const double ahead = cosine(window.at(t, a), window.at(t + 1, b));
          (a == b ? own : next) += ahead;
          following += a == b ? 0 : 1;
        }
        if (a == b) continue;
        between += cosine(window.at(t, a), window.at(t, b));
        ++pairs;
      }
    }
  between /= pairs;
  CHECK(between == Approx(0.025).margin(0.004));                    // captured: 0.025
  CHECK(next / following / between == Approx(0.78).margin(0.1));    // captured: 0.78
  CHECK(own / (9 * 12) == Approx(next / following).margin(0.003));  // a worker's deviation is not remembered
  const double mean = norms / 120;
  CHECK(std::sqrt(squares / 120 - mean * mean) / mean == Approx(0.14).margin(0.03));  // captured: 0.14

  std::vector<float> lengths;
  for (std::int64_t i = 0; i < 120; ++i)
    lengths.push_back(static_cast<float>(std::sqrt(dot(window.at(i / 12, i % 12), window.at(i / 12, i % 12)))));
  std::int64_t within_layers = 0;
  for (const Json& layer : source.manifest()["layers"]) {
    const auto offset = layer["offset"].get<std::int64_t>(), size = layer["size"].get<std::int64_t>();
    if (size < 2000) continue;
    ++within_layers;
    double over_layer = 0, within = 0;
    for (std::int64_t w = 0; w < 12; ++w) over_layer += kurtosis(window.at(0, w).data() + offset, size) / 12;
    CHECK((over_layer > 4 && over_layer < 6));  // captured: 4 to 6
    // For one coordinate over workers and iterations, norms apart; with 120 values the sample kurtosis of a Gaussian is 2.95.
    for (std::int64_t i = 0; i < 500; ++i) {
      std::vector<float> values;
      for (std::int64_t t = 0; t < 10; ++t)
        for (std::int64_t w = 0; w < 12; ++w)
          values.push_back(window.at(t, w)[static_cast<std::size_t>(offset + i)] / lengths[static_cast<std::size_t>(t * 12 + w)]);
      within += kurtosis(values.data(), 120) / 500;
    }
    CHECK((within > 2.7 && within < 3.3));  // captured: 3.0 to 3.7
  }
  CHECK(within_layers >= 5);
}

TEST_CASE("A word model has the rows, tails and memory of the captured one") {
  SyntheticSource source(narrow(word_rows, word_layers, word_statistics), "m", {.workers = 32, .iterations = 3, .gradients = 0, .seed = 2});
  const Window window = window_of(source, 3);
  std::vector<int> touched(8000, 0);
  std::vector<double> united;
  for (std::int64_t w = 0; w < 32; ++w) {
    for (std::size_t r = 0; r < 8000; ++r)
      if (std::any_of(window.at(0, w).begin() + static_cast<std::ptrdiff_t>(64 * r),
                      window.at(0, w).begin() + static_cast<std::ptrdiff_t>(64 * (r + 1)), [](float value) { return value != 0; }))
        touched[r] = 1;
    united.push_back(std::accumulate(touched.begin(), touched.end(), 0.0));
  }
  CHECK(united[0] == Approx(151).epsilon(0.15));  // captured: 151, 480, 1430, 2345
  CHECK(united[3] == Approx(480).epsilon(0.1));
  CHECK(united[15] == Approx(1430).epsilon(0.06));
  CHECK(united[31] == Approx(2345).epsilon(0.06));
  // Orders of magnitude: captured 1700, 187 and 2022.
  const std::int64_t encoder = 512000, recurrent = 16384;
  const double encoder_kurtosis = kurtosis(window.at(0, 0).data(), encoder);
  const double recurrent_kurtosis = kurtosis(window.at(0, 0).data() + encoder, recurrent);
  const double decoder_kurtosis = kurtosis(window.at(0, 0).data() + encoder + recurrent, encoder);
  CAPTURE(encoder_kurtosis, recurrent_kurtosis, decoder_kurtosis);
  CHECK((encoder_kurtosis > 700 && encoder_kurtosis < 5000));
  CHECK((recurrent_kurtosis > 60 && recurrent_kurtosis < 1000));
  CHECK((decoder_kurtosis > 800 && decoder_kurtosis < 5000));
  // The dense layer: a worker's deviation correlates 0.22 with its own next one.
  double own = 0, other = 0;
  for (std::int64_t a = 0; a < 32; ++a)
    for (std::int64_t b = 0; b < 32; ++b) {
      const auto part = [&](std::int64_t t, std::int64_t w) {
        const auto first = window.at(t, w).begin() + encoder;
        return std::vector<float>(first, first + recurrent);
      };
      if (a == b || (a + b) % 5 == 0) (a == b ? own : other) += cosine(part(0, a), part(1, b)) / (a == b ? 32 : 200);
    }
  CHECK(own == Approx(0.22).margin(0.04));
  CHECK(std::abs(other) < 0.02);
  // Rows repeat from iteration to iteration more than by chance.
  const Scratch scratch("synthetic");
  synthesize_trace(narrow(word_rows, word_layers, word_statistics), "m", {.workers = 6, .iterations = 6, .gradients = 200000, .seed = 2},
                   scratch / "t", true);
  const Trace trace = Trace::open(scratch / "t");
  CHECK(row_overlap(find_row_activity(trace, 6), 6, 6).repeats);
}

TEST_CASE("A recommendation model touches as many users and items as the captured one") {
  const Json model =
      narrow(R"([{"rows": 943, "draws": 256, "exponent": 1.4, "offset": 100, "order": "random"},
                               {"rows": 1682, "draws": 256, "exponent": 0.35, "offset": 800, "order": "random"}])",
             R"([{"name": "user", "shape": [943, 8], "kind": "embedding"}, {"name": "item", "shape": [1682, 8], "kind": "embedding"}])",
             R"("worker_correlation": 0.002)");
  SyntheticSource source(model, "m", {.workers = 32, .iterations = 1, .gradients = 0, .seed = 1});
  std::vector<std::set<std::size_t>> seen(2);
  const std::vector<std::vector<double>> captured = {{203, 500, 806, 897}, {238, 764, 1525, 1666}};
  int at = 0;
  for (std::int64_t w = 0; w < 32; ++w) {
    const auto g = source.gradient(0, w);
    for (std::size_t i = 0; i < g.size(); ++i)
      if (g[i] != 0) seen[i < 943 * 8 ? 0 : 1].insert(i / 8);
    if (w != 0 && w != 3 && w != 15 && w != 31) continue;
    for (std::size_t part : {0, 1})
      CHECK(static_cast<double>(seen[part].size()) == Approx(captured[part][static_cast<std::size_t>(at)]).epsilon(0.06));
    ++at;
  }
}

TEST_CASE("Build-up of a synthetic convolutional network is near that of the captured one") {
  const Json model = load_model("resnet18");
  std::vector<Layer> layers;
  const auto make = [&](std::int64_t workers) {
    auto source = std::make_unique<SyntheticSource>(model, "resnet18",
                                                    SynthesisOptions{.workers = workers, .iterations = 12, .gradients = 60000, .seed = 1});
    layers.clear();
    for (const Json& layer : source->manifest()["layers"])
      layers.push_back({layer["name"].get<std::string>(), layer["shape"].get<std::vector<std::int64_t>>(),
                        layer["offset"].get<std::int64_t>(), layer["size"].get<std::int64_t>()});
    return source;
  };
  // Captured: 4.84 and 10.42 without error feedback.
  auto eight = make(8);
  CHECK(build_up(std::move(eight), layers, 0.01, false, 4) == Approx(4.84).epsilon(0.2));
  auto many = make(32);
  CHECK(build_up(std::move(many), layers, 0.01, false, 4) == Approx(10.42).epsilon(0.25));
}

TEST_CASE("Synthetic traces say so wherever they are used") {
  const Scratch scratch("synthetic");
  const std::string folder = (scratch / "t").string();
  const auto made = run_program("trace synthesize resnet18 --gradients 50000 --workers 4 --iterations 3 --seed 9 --out " + folder);
  CHECK(made.err.empty());
  REQUIRE(made.status == 0);
  CHECK(run_program("trace verify " + folder).status == 0);
  CHECK_THAT(run_program("trace info " + folder).out,
             ContainsSubstring("synthetic-resnet18") && ContainsSubstring("synthetic gradients: ResNet-18"));
  for (const char* workers : {"4", "8"}) {
    const auto replayed = run_program("replay --trace " + folder + " --sparsifier topk --workers " + std::string(workers));
    CHECK(replayed.status == 0);
    CHECK_THAT(replayed.err, ContainsSubstring("the trace synthetic-resnet18 is synthetic"));
  }
  const Trace trace = Trace::open(folder);
  CHECK(trace.info().manifest["synthetic"]["seed"] == 9);
  // Stored as F16, the same as F32 to 11 bits.
  SyntheticSource source(load_model("resnet18"), "resnet18", {.workers = 4, .iterations = 3, .gradients = 50000, .seed = 9});
  const auto exact = source.gradient(2, 3), stored = trace.gradient(2, 3);
  for (std::size_t i = 0; i < exact.size(); i += 97) CHECK(stored[i] == Approx(exact[i]).epsilon(0.001).margin(1e-6));
}

TEST_CASE("Bad descriptions are refused in one line") {
  const Scratch scratch("synthetic");
  const auto refused = [&](const std::string& text, const std::string& options = "") {
    spit(scratch / "m.json", text);
    const auto result = run_program("trace synthesize " + (scratch / "m.json").string() + " --out " + (scratch / "t").string() + options);
    CHECK(result.status == 2);
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    CHECK_FALSE(std::filesystem::exists(scratch / "t"));
    return result.err;
  };
  const std::string good = R"({"schema_version": 1, "name": "m", "layers": [{"name": "a", "shape": [64, 64]}]})";
  CHECK_THAT(refused("{"), ContainsSubstring("m.json"));
  CHECK_THAT(refused(R"({"schema_version": 1, "name": "m", "layers": []})"), ContainsSubstring("/layers"));
  CHECK_THAT(refused(R"({"schema_version": 1, "name": "m", "parameters": 5, "layers": [{"name": "a", "shape": [4]}]})"),
             ContainsSubstring("/parameters: expected 4 as the layers have, found 5"));
  CHECK_THAT(refused(R"({"schema_version": 1, "name": "m", "layers": [{"name": "a", "shape": [4], "kind": "embedding"}]})"),
             ContainsSubstring("an entry of /rows"));
  CHECK_THAT(refused(R"({"schema_version": 1, "name": "m", "layers": [{"name": "a", "shape": [4], "sprad": 2}]})"),
             ContainsSubstring("sprad"));
  CHECK_THAT(refused(R"({"schema_version": 1, "name": "m", "layers": [{"name": "a", "shape": [9007199254740992, 9007199254740992]}]})"),
             ContainsSubstring("fewer than 2^63"));
  CHECK_THAT(refused(good, " --workers 0"), ContainsSubstring("--workers"));
  CHECK_THAT(refused(good, " --iterations 0"), ContainsSubstring("--iterations"));
  CHECK_THAT(refused(good, " --gradients -1"), ContainsSubstring("--gradients"));
  const auto unknown = run_program("trace synthesize resnet19 --out " + (scratch / "t").string());
  CHECK(unknown.status == 2);
  CHECK_THAT(unknown.err, ContainsSubstring("one of the models bert-large, gpt2"));
}
