// Threads and the ways to keep residuals: what must be the same bytes is, what is estimated says its error.
#include <cmath>
#include <filesystem>

#include "base/error.hpp"
#include "tests/catch.hpp"
#include "tests/command.hpp"
#include "tests/sparsifier_support.hpp"
#include "traces/row_sample.hpp"

using namespace sparscale;
using namespace sparscale::sim;
using namespace sparscale::test;

namespace {

const traces::Trace& sample() {
  static const traces::Trace trace = traces::Trace::open(std::string(SPARSCALE_SOURCE_DIRECTORY) + "/traces/samples/digits-cnn-8w");
  return trace;
}

std::vector<Json> records(const ReplayOptions& options, int count = 4) {
  Replay replay(sample(), options);
  std::vector<Json> all;
  for (int i = 0; i < count; ++i) all.push_back(replay.next());
  return all;
}

std::string dump(const std::vector<Json>& all) {
  std::string text;
  for (const Json& record : all) text += record.dump() + "\n";
  return text;
}

ReplayOptions expanded(const std::string& name, const std::string& method, Json parameters = Json::object()) {
  ReplayOptions options = options_of(name, 0.01, 11, std::move(parameters));
  const SparsifierInfo& info = find_sparsifier(name);
  options.parameters = resolve_parameters(info, options.parameters, "", "");
  options.captured = 4;
  options.expansion = method;
  options.hashes = true;
  options.warmup = 2;
  options.iterations = 4;
  return options;
}

}  // namespace

TEST_CASE("Records are the same bytes for any number of threads") {
  for (const SparsifierInfo& info : sparsifiers())
    for (const char* method : {"boot", "hybrid"}) {
      ReplayOptions options = expanded(info.name, method);
      INFO(info.name << ' ' << method);
      const std::string one = dump(records(options, 2));
      for (const int threads : {2, 5}) {
        options.threads = threads;
        CHECK(dump(records(options, 2)) == one);
      }
    }
}

TEST_CASE("The first worker's gradient that is not finite is named for any number of threads") {
  // Captured workers share the file's values, so a made source says it, on one thread; expanded ones are checked on several.
  for (const int threads : {1, 3}) {
    auto options = options_of("hard_threshold", 0.1, 6, {{"threshold", 1.0}});
    options.threads = threads;
    Replay replay(std::make_unique<MadeGradients>(6, 40,
                                                  [](std::int64_t, std::int64_t worker, std::vector<float>& gradient) {
                                                    std::fill(gradient.begin(), gradient.end(), 0.5F);
                                                    if (worker >= 2) gradient[7] = std::nanf("");
                                                  }),
                  layers_of_sizes({40}), options);
    CHECK_THAT(message_of([&] { replay.next(); }), ContainsSubstring("iteration 0, worker 2, layer layer0"));
  }
}

TEST_CASE("Residuals in a file and recomputed accumulators give the selections of the full replay") {
  const tests::Scratch scratch("replay-memory");
  for (const auto& [name, parameters] : std::vector<std::pair<std::string, Json>>{{"micro", Json::object()},
                                                                                  {"exdyna", {{"blocks", 512}}},
                                                                                  {"cltk", {{"cltk_mode", "leader_only"}}},
                                                                                  {"topk", Json::object()},
                                                                                  {"hard_threshold", Json::object()}})
    for (const char* method : {"boot", "hybrid"}) {
      INFO(name << ' ' << method);
      ReplayOptions options = expanded(name, method, parameters);
      options.threads = 2;
      std::vector<Json> full = records(options);
      options.memory = MemoryChoice::parse("disk:" + scratch.path().string(), "");
      std::vector<Json> other = records(options);
      for (Json& record : other) {
        CHECK(record.at("memory") == "disk");
        record.erase("memory");
      }
      CHECK(dump(other) == dump(full));
      options.memory = MemoryChoice::parse("recompute", "");
      other = records(options);
      for (Json& record : other) {
        CHECK(record.at("memory") == "recompute");
        CHECK_FALSE(record.contains("residual_norm"));
        record.erase("memory");
      }
      for (Json& record : full)
        for (const char* key : {"residual_norm", "energy_exchanged"}) record.erase(key);
      CHECK(dump(other) == dump(full));
    }
  // The file has no name any more.
  CHECK(std::filesystem::is_empty(scratch.path()));
}

TEST_CASE("F16 residuals round accumulators and say so") {
  ReplayOptions options = expanded("topk", "boot");
  const std::vector<Json> full = records(options);
  options.memory = MemoryChoice::parse("f16", "");
  const std::vector<Json> rounded = records(options);
  for (std::size_t t = 0; t < full.size(); ++t) {
    CHECK(rounded[t].at("memory") == "f16");
    CHECK(rounded[t].at("union").get<double>() == Approx(full[t].at("union").get<double>()).epsilon(0.01));
    CHECK(rounded[t].at("residual_norm").at(3).get<double>() == Approx(full[t].at("residual_norm").at(3).get<double>()).epsilon(0.002));
    CHECK(rounded[t].at("selected_sha256") != full[t].at("selected_sha256"));  // some entries change places
  }
  CHECK(replay_memory_bytes(sample(), options) < replay_memory_bytes(sample(), expanded("topk", "boot")));
}

TEST_CASE("Halves hold what was stored, rounded to 11 bits") {
  Residuals residuals(MemoryChoice::Mode::f16, 0, 2, 37, "", 0.003F);
  std::vector<float> values(37), loaded(37);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::ldexp(1.0F + static_cast<float>(i) / 37, static_cast<int>(i % 20) - 20);
  const std::vector<float> before = values;
  residuals.store(1, 0, values);
  residuals.load(1, 0, loaded);
  CHECK(loaded == values);
  for (std::size_t i = 0; i < values.size(); ++i) CHECK(values[i] == Approx(before[i]).epsilon(0.0005));
  residuals.load(0, 0, loaded);
  CHECK(loaded == std::vector<float>(37, 0.0F));
  const std::vector<Index> zeros{0, 36};
  residuals.zero(1, zeros);
  residuals.load(1, 0, loaded);
  CHECK(loaded[0] == 0);
  CHECK(loaded[1] == values[1]);
  CHECK(loaded[36] == 0);
  std::vector<float> large(37, 100.0F);
  CHECK_THROWS_AS(residuals.store(0, 0, large), RunError);
}

TEST_CASE("A sample of rows is scaled to the model and says its error") {
  const auto rows = traces::sample_rows(sample(), 0.4, 7);
  CHECK(rows.fraction == Approx(0.4).epsilon(0.05));
  CHECK(rows.row_starts.back() == rows.trace.gradients());
  // Values are those of the model, row by row.
  const auto again = traces::sample_rows(sample(), 0.4, 7), other = traces::sample_rows(sample(), 0.4, 8);
  const auto values = [](const traces::RowSample& drawn) {
    const auto span = drawn.trace.gradient(3, 2);
    return std::vector<float>(span.begin(), span.end());
  };
  CHECK(values(rows) == values(again));
  CHECK(values(rows) != values(other));
  const traces::Layer& whole = sample().info().layers.front();
  const traces::Layer& part = rows.trace.info().layers.front();
  CHECK(part.size < whole.size);

  for (const char* name : {"topk", "micro", "hard_threshold"}) {
    INFO(name);
    ReplayOptions options = expanded(name, "boot", std::string(name) == "hard_threshold" ? Json{{"threshold", 0.05}} : Json::object());
    options.hashes = false;
    options.warmup = 10;
    const std::vector<Json> full = records(options, 3);
    options.memory = MemoryChoice::parse("sample:0.5", "");
    for (std::size_t t = 0; t < full.size(); ++t) {
      const Json record = records(options, static_cast<int>(t) + 1).back();
      CHECK(record.at("memory") == "sample:0.5");
      CHECK(record.at("target_k") == full[t].at("target_k"));
      const Json& sampling = record.at("sampling");
      CHECK(sampling.at("fraction").get<double>() == Approx(0.5).epsilon(0.05));
      const double error = sampling.at("union_error").get<double>();
      CHECK(error > 0.002);
      CHECK(error < 0.2);
      CHECK(std::abs(record.at("union").get<double>() / full[t].at("union").get<double>() - 1) < 4 * error);
      std::int64_t sum = 0, largest = 0;
      for (const Json& count : record.at("selected")) {
        sum += count.get<std::int64_t>();
        largest = std::max(largest, count.get<std::int64_t>());
      }
      CHECK(record.at("selected_sum") == sum);
      CHECK(record.at("selected_max") == largest);
      CHECK(record.at("padding").get<double>() == Approx(11.0 * static_cast<double>(largest) / static_cast<double>(sum)));
      CHECK(record.at("density").get<double>() ==
            Approx(record.at("union").get<double>() / static_cast<double>(sample().gradients())).epsilon(1e-12));
      for (const Json& call : record.at("exchange"))
        if (call.at("payload") == "values" && call.at("op") == "all_reduce")
          CHECK(call.at("bytes").get<double>() == Approx(4 * record.at("union").get<double>()).epsilon(1e-3));
    }
  }
}

TEST_CASE("Nothing is stored where nothing is kept") {
  ReplayOptions options = expanded("topk", "boot");
  const std::uint64_t with = replay_memory_bytes(sample(), options);
  options.error_feedback = false;
  const std::uint64_t residuals = 11 * 34862 * 4;
  CHECK(with - replay_memory_bytes(sample(), options) == residuals - 34862 * 4);
  // Selected again and again from the bare gradients, on any number of threads.
  const std::string one = dump(records(options));
  options.threads = 3;
  CHECK(dump(records(options)) == one);
  for (const auto& [name, parameters] :
       std::vector<std::pair<std::string, Json>>{{"omnireduce", Json::object()}, {"grace_topk", {{"residual", false}}}}) {
    const ReplayOptions cleared = expanded(name, "boot", parameters);
    INFO(name);
    CHECK(replay_memory_bytes(sample(), cleared) < with);
  }
}

TEST_CASE("Choices of memory that cannot be are refused by name") {
  const auto parse = [](const std::string& text) { return message_of([&] { MemoryChoice::parse(text, "--memory"); }); };
  CHECK(parse("half") == "--memory: expected full, sample:FRACTION, f16, disk[:FOLDER] or recompute, found \"half\"");
  for (const char* text : {"sample", "sample:", "sample:0", "sample:1", "sample:x", "sample:0.5x", "sample:nan"})
    CHECK_THAT(parse(text), StartsWith("--memory: expected sample:FRACTION with 0 < FRACTION < 1"));
  CHECK_THAT(parse("disk:/no/such/folder"), StartsWith("--memory: expected a folder"));
  for (const char* text : {"full", "sample:0.25", "f16", "recompute"}) CHECK(MemoryChoice::parse(text, "").text() == text);

  ReplayOptions options = expanded("global_topk", "boot");
  options.memory = MemoryChoice::parse("recompute", "");
  CHECK(message_of([&] { records(options); }) ==
        "memory: expected a sparsifier that clears the exchanged entries on every worker with recompute, found global_topk");
  options = expanded("dgc", "boot");
  options.memory = MemoryChoice::parse("recompute", "");
  CHECK_THAT(message_of([&] { records(options); }), StartsWith("memory: expected a sparsifier whose residual is a sum of gradients"));
  options = expanded("topk", "boot");
  options.memory = MemoryChoice::parse("sample:0.5", "");
  CHECK_THAT(message_of([&] { records(options); }), StartsWith("hashes: "));
  options = expanded("topk", "boot");
  options.memory_limit_bytes = 1 << 20;
  CHECK_THAT(message_of([&] { records(options); }),
             ContainsSubstring("there are sample:FRACTION, here about 0.") && ContainsSubstring("f16, disk[:FOLDER] and recompute"));
}

TEST_CASE("Distances between sampled gradients are not taken for those of the model") {
  const auto command = tests::run_program("replay --trace digits-cnn-8w --sparsifier topk --workers 4 --memory sample:0.5 --index-gaps");
  CHECK(command.status == 2);
  CHECK_THAT(command.err, ContainsSubstring("--index-gaps: expected no such option with --memory sample"));
  const tests::Scratch scratch("sampled");
  tests::spit(scratch / "e.json", Json{{"schema_version", 1},
                                       {"name", "e"},
                                       {"trace", "digits-cnn-8w"},
                                       {"sparsifier", "topk"},
                                       {"density", 0.01},
                                       {"workers", 4},
                                       {"memory", {"full", "sample:0.5"}},
                                       {"index_encoding", {"int32", "delta"}},
                                       {"platform", "crossbar-100g"},
                                       {"profile", "a100-modelled"}}
                                      .dump());
  const auto experiment = tests::run_program("check '" + (scratch / "e.json").string() + "'");
  CHECK(experiment.status == 2);
  CHECK_THAT(experiment.err, ContainsSubstring("e.json: /index_encoding/1: expected another encoding than delta with memory sample:0.5"));
}

namespace {

// Without what may differ in the last bits; these as numbers.
std::pair<std::string, std::vector<double>> without_norms(std::vector<Json> all) {
  std::vector<double> norms;
  for (Json& record : all) {
    if (!record.contains("residual_norm")) continue;
    for (const Json& norm : record.at("residual_norm")) norms.push_back(norm.get<double>());
    norms.push_back(record.at("energy_exchanged").get<double>());
    record.erase("residual_norm");
    record.erase("energy_exchanged");
  }
  return {dump(all), norms};
}

// A source whose order is the reverse, with values of which many are equal.
class Reversed : public traces::GradientSource {
 public:
  explicit Reversed(bool reversed) : reversed_(reversed) {
    for (std::int32_t i = 0; i < size; ++i) order_.element.push_back(size - 1 - i);
    order_.place = order_.element;
    order_.bounds = {0, size};
  }
  std::int64_t workers() const override { return 2; }
  std::int64_t gradients() const override { return size; }
  std::int64_t position(std::int64_t iteration) const override { return iteration; }
  const traces::ElementOrder* order() const override { return reversed_ ? &order_ : nullptr; }
  std::span<const float> gradient(std::int64_t iteration, std::int64_t worker) override {
    values_.resize(size);
    for (std::int64_t i = 0; i < size; ++i)
      values_[static_cast<std::size_t>(reversed_ ? size - 1 - i : i)] = static_cast<float>((i * 7 + worker + iteration) % 5);
    return values_;
  }

 private:
  static constexpr std::int32_t size = 1000;
  bool reversed_;
  traces::ElementOrder order_;
  std::vector<float> values_;
};

}  // namespace

TEST_CASE("Accumulators in another order of elements give the same records") {
  const traces::Trace text = traces::Trace::open(std::string(SPARSCALE_SOURCE_DIRECTORY) + "/traces/samples/kjv-lstm-8w");
  std::size_t ordered = 0;
  std::vector<std::pair<std::string, Json>> cases;
  for (const SparsifierInfo& info : sparsifiers()) cases.emplace_back(info.name, Json::object());
  cases.emplace_back("topk", Json{{"scope", "layer"}});
  cases.emplace_back("topk", Json{{"scope", "bucket"}, {"bucket_bytes", 4000}, {"fused", false}});
  cases.emplace_back("topk", Json{{"generation", "2023a"}});
  cases.emplace_back("hard_threshold", Json{{"threshold", 0.001}});
  cases.emplace_back("cltk", Json{{"residual_filter", 0.5}});
  for (const auto& [name, parameters] : cases)
    for (const char* memory : {"full", "f16", "recompute"})
      for (const bool norms : {true, false}) {
        ReplayOptions options = expanded(name, "hybrid", parameters);
        options.norms = norms;
        options.memory = MemoryChoice::parse(memory, "memory");
        options.warmup = 7;  // into the second pass
        const SparsifierInfo& info = find_sparsifier(name);
        if (!info.any_order || !info.any_order(options.parameters)) continue;
        const auto replayed = [&](bool any_order) {
          options.any_order = any_order;
          std::vector<Json> all;
          Replay replay(text, options);
          for (int i = 0; i < 3; ++i) all.push_back(replay.next());
          return without_norms(std::move(all));
        };
        INFO(name << ' ' << parameters << ' ' << memory);
        try {
          const auto plain = replayed(false), fast = replayed(true);
          CHECK(plain.first == fast.first);
          REQUIRE(plain.second.size() == fast.second.size());
          for (std::size_t i = 0; i < plain.second.size(); ++i) CHECK(fast.second[i] == Approx(plain.second[i]).epsilon(1e-12));
          ++ordered;
        } catch (const InputError&) {
          CHECK(std::string(memory) == "recompute");  // not every rule can be recomputed
        }
      }
  CHECK(ordered > 40);
  // The choice is made by sparsifier and parameters: what keeps residuals of its own does not take part.
  CHECK_FALSE(find_sparsifier("cltk").any_order(resolve_parameters(find_sparsifier("cltk"), Json{{"residual_filter", 0.5}}, "", "")));
}

TEST_CASE("In a sample, what workers run kernels over differs as in the whole") {
  const traces::Trace trace = traces::Trace::open(std::string(SPARSCALE_SOURCE_DIRECTORY) + "/traces/samples/digits-cnn-8w");
  ReplayOptions options;
  options.sparsifier = "deft";
  options.parameters = resolve_parameters(find_sparsifier("deft"), Json::object(), "", "");
  options.workers = 8;
  options.density = 0.02;
  options.iterations = 1;
  // The largest fragment of every round of DEFT's fragments; some workers have none any more in the third.
  const auto largest = [&](const char* memory) {
    options.memory = MemoryChoice::parse(memory, "memory");
    const Json record = Replay(trace, options).next();
    std::vector<double> all;
    for (const Json& work : record.at("work")) {
      if (work.at("operation") != "topk" || all.size() == 3) continue;
      const auto elements = work.at("elements").get<std::vector<double>>();
      all.push_back(*std::max_element(elements.begin(), elements.end()));
    }
    return all;
  };
  const std::vector<double> whole = largest("full"), sample = largest("sample:0.5");
  CHECK(whole == std::vector<double>{3072, 3072, 864});
  REQUIRE(sample.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) CHECK(sample[i] == Approx(whole[i]).epsilon(0.01));
}

TEST_CASE("Ties go to the lower element where accumulators lie in another order") {
  for (const char* name : {"topk", "global_topk", "hard_threshold"}) {
    ReplayOptions options = options_of(name, 0.1, 2, name == std::string("hard_threshold") ? Json{{"threshold", 6}} : Json::object());
    options.parameters = resolve_parameters(find_sparsifier(name), options.parameters, "", "");
    options.hashes = true;
    Replay plain(std::make_unique<Reversed>(false), layers_of_sizes({1000}), options);
    Replay reversed(std::make_unique<Reversed>(true), layers_of_sizes({1000}), options);
    INFO(name);
    for (int i = 0; i < 6; ++i) CHECK(without_norms({plain.next()}).first == without_norms({reversed.next()}).first);
  }
}
