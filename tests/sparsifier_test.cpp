// Each sparsifier on cases small enough to work out by hand, at its edges, and against the invariants of its rule.
#include <numeric>

#include "base/error.hpp"
#include "base/files.hpp"
#include "sim/sparsifiers/common.hpp"
#include "sim/sparsifiers/python_random.hpp"
#include "tests/catch.hpp"
#include "tests/sparsifier_support.hpp"

using namespace sparscale;
using namespace sparscale::sim;
using namespace sparscale::test;

namespace {

using Lists = std::vector<std::vector<Index>>;

void make(const std::string& name, const Json& parameters, double density, std::int64_t workers, std::int64_t gradients) {
  Small(name, parameters, density, workers, {gradients});
}

// Calls as text: "all_gather counts int64 8; ...", per-worker bytes in brackets.
std::string calls_of(const Exchange& exchange) {
  std::string text;
  for (const CollectiveCall& call : exchange) {
    text += (text.empty() ? "" : "; ") + operation_name(call.operation) + " " + call.payload + " " + call.dtype + " ";
    if (call.bytes.size() == 1) {
      text += std::to_string(call.bytes.front());
    } else {
      text += "[";
      for (std::size_t i = 0; i < call.bytes.size(); ++i) text += (i ? " " : "") + std::to_string(call.bytes[i]);
      text += "]";
    }
    if (!call.bytes_unpadded.empty()) {
      text += " of";
      for (const std::uint64_t bytes : call.bytes_unpadded) text += " " + std::to_string(bytes);
    }
    if (call.operation == Operation::broadcast) text += " from " + std::to_string(call.root);
  }
  return text;
}

}  // namespace

// ---- registry and parameters --------------------------------------------------------------------------------------------------------

TEST_CASE("Every sparsifier describes itself and is found by its name") {
  std::set<std::string> names;
  for (const SparsifierInfo& info : sparsifiers()) {
    INFO(info.name);
    CHECK(names.insert(info.name).second);
    CHECK(&find_sparsifier(info.name) == &info);
    for (const std::string& text : {info.title, info.paper, info.rule, info.exchange, info.cost}) CHECK_FALSE(text.empty());
    for (const Parameter& parameter : info.parameters) {
      INFO(parameter.name);
      CHECK_FALSE(parameter.meaning.empty());
      CHECK_FALSE(parameter.range.empty());
      CHECK_NOTHROW(validate_json(parameter.default_value, parameter.schema, "default"));
    }
  }
  const std::string page = read_file(std::string(SPARSCALE_SOURCE_DIRECTORY) + "/docs/sparsifiers.md");
  for (const SparsifierInfo& info : sparsifiers()) CHECK_THAT(page, ContainsSubstring("| `" + info.name + "` |"));
  CHECK_THROWS_WITH(find_sparsifier("topkk"),
                    StartsWith("sparsifier: expected one of dense, dense_fp16, topk") && ContainsSubstring("found \"topkk\""));
}

TEST_CASE("Parameters are completed with defaults and refused by name, place and range") {
  const SparsifierInfo& micro = find_sparsifier("micro");
  CHECK(resolve_parameters(micro, Json::object(), "e.json", "/p").dump() ==
        R"({"micro_rule":"code","density_schedule":[],"index_bytes":8})");
  CHECK(resolve_parameters(micro, {{"index_bytes", 4}}, "e.json", "/p").dump() ==
        R"({"micro_rule":"code","density_schedule":[],"index_bytes":4})");
  const auto error = [&](const Json& given) { return message_of([&] { resolve_parameters(micro, given, "e.json", "/sparsifiers/0"); }); };
  CHECK(error({{"rule", "code"}}) ==
        "e.json: /sparsifiers/0/rule: expected one of the parameters micro_rule, density_schedule, index_bytes, found the unknown "
        "parameter \"rule\"");
  CHECK(error({{"micro_rule", "paper"}}) == "e.json: /sparsifiers/0/micro_rule: expected code | intended, found \"paper\"");
  CHECK(error({{"index_bytes", 2}}) == "e.json: /sparsifiers/0/index_bytes: expected 4 | 8, found 2");
  CHECK(error(Json::array()) == "e.json: /sparsifiers/0: expected an object with parameters of micro, found []");
  CHECK_THROWS_WITH(resolve_parameters(find_sparsifier("dense_fp16"), {{"x", 1}}, "e.json", "/p"),
                    "e.json: /p/x: expected no parameter (dense_fp16 has none), found the unknown parameter \"x\"");
}

TEST_CASE("Kernel work survives its way through a record") {
  const std::vector<std::vector<KernelWork>> work = {{{"accumulate", 10, 10, 0}, {"topk", 4, 1, 0}, {"topk", 6, 2, 0}, {"zero", 3, 3, 2}},
                                                     {{"accumulate", 10, 10, 0}, {"topk", 5, 1, 0}, {"zero", 3, 3, 2}}};
  const Json json = work_to_json(work, 2);
  CHECK(json.dump() == R"([{"operation":"accumulate","before_call":0,"elements":10,"selected":10},)"
                       R"({"operation":"topk","before_call":0,"elements":[4,5],"selected":1},)"
                       R"({"operation":"topk","before_call":0,"elements":[6,0],"selected":[2,0]},)"
                       R"({"operation":"zero","before_call":2,"elements":3,"selected":3}])");
  const auto back = work_from_json(json, 2);
  REQUIRE(back.size() == 2);
  CHECK(back[0].size() == 4);
  CHECK(back[1][1].elements == 5);
  CHECK(back[1][2].elements == 0);
  CHECK(work_to_json(back, 2) == json);
  CHECK_THROWS_AS(work_from_json(json, 3), InputError);
  CHECK_THROWS_AS(work_from_json(parse_json(R"([{"operation":"topk","before_call":0,"elements":-1,"selected":1}])", "w"), 1), InputError);
}

// ---- small cases --------------------------------------------------------------------------------------------------------------------

TEST_CASE("Top-k takes the largest magnitudes, ties to the lower index") {
  Small topk("topk", Json::object(), 0.5, 2, {6});
  const Selection s = topk.select(0, {{1, -5, 2, 0, 5, -2}, {0, 0, 0, 0, 0, 0}});
  CHECK(s.selected == Lists{{1, 2, 4}, {0, 1, 2}});
  CHECK(s.exchanged == std::vector<Index>{0, 1, 2, 4});
  CHECK(s.threshold == std::vector<double>{2, 0});
  CHECK(calls_of(s.exchange) == "all_gather indices int64 24; all_reduce values float32 16");
  CHECK(work_to_json(s.work, 2).dump() == R"([{"operation":"accumulate","before_call":0,"elements":6,"selected":6},)"
                                          R"({"operation":"topk","before_call":0,"elements":6,"selected":3},)"
                                          R"({"operation":"unite","before_call":1,"elements":6,"selected":4},)"
                                          R"({"operation":"gather","before_call":1,"elements":4,"selected":4},)"
                                          R"({"operation":"zero","before_call":2,"elements":4,"selected":4}])");
  Small narrow("topk", {{"index_bytes", 4}}, 0.5, 1, {6});
  CHECK(calls_of(narrow.select(0, {{1, -5, 2, 0, 5, -2}}).exchange) == "all_gather indices int32 12; all_reduce values float32 12");
}

TEST_CASE("Top-k with k = 0 makes an empty, legal exchange") {
  Small topk("topk", Json::object(), 0.1, 2, {6});
  const Selection s = topk.select(0, {{1, 2, 3, 4, 5, 6}, {1, 2, 3, 4, 5, 6}});
  CHECK(s.selected == Lists{{}, {}});
  CHECK(s.exchanged.empty());
  CHECK(calls_of(s.exchange) == "all_gather indices int64 0; all_reduce values float32 0");
  const Json record = Replay(normal_gradients(2, 6, 1), layers_of_sizes({6}), options_of("topk", 0.1, 2)).next();
  CHECK(record.at("target_k") == 0);
  CHECK(record.at("build_up").is_null());
  CHECK(record.at("padding").is_null());
  CHECK(record.at("threshold").dump() == "[null,null]");
  CHECK(record.at("energy_exchanged") == 0.0);
}

TEST_CASE("k is the truncated product in double") {
  CHECK(Replay(normal_gradients(1, 100, 1), layers_of_sizes({100}), options_of("topk", 0.29, 1)).next().at("target_k") == 28);
  CHECK(Replay(normal_gradients(1, 100, 1), layers_of_sizes({100}), options_of("topk", 1.0, 1)).next().at("union") == 100);
}

TEST_CASE("Hard threshold compares with at-least and pads to the largest count") {
  Small given("hard_threshold", {{"threshold", 2.0}}, 0.5, 2, {4});
  const Selection s = given.select(7, {{2, -2, 1.9F, 0}, {0, 0, 0, 3}});
  CHECK(s.selected == Lists{{0, 1}, {3}});
  CHECK(s.exchanged == std::vector<Index>{0, 1, 3});
  CHECK(s.threshold == std::vector<double>{2});
  CHECK(calls_of(s.exchange) == "all_gather counts int64 8; all_gather indices int64 16 of 16 8; all_reduce values float32 12");
  CHECK(work_to_json(s.work, 2).dump() == R"([{"operation":"accumulate","before_call":0,"elements":4,"selected":4},)"
                                          R"({"operation":"threshold_select","before_call":0,"elements":4,"selected":[2,1]},)"
                                          R"({"operation":"unite","before_call":2,"elements":3,"selected":3},)"
                                          R"({"operation":"gather","before_call":2,"elements":3,"selected":3},)"
                                          R"({"operation":"zero","before_call":3,"elements":3,"selected":3}])");
  // 0.3f is below 0.30000002 in double; the threshold is rounded to float first.
  Small rounded("hard_threshold", {{"threshold", 0.30000002}}, 0.5, 1, {2});
  CHECK(rounded.select(0, {{0.3F, 0.29F}}).selected == Lists{{0}});
  // 1 / (2 sqrt(k)) with k = 4.
  Small computed("hard_threshold", Json::object(), 0.5, 1, {8});
  CHECK(computed.select(0, {{0.25F, 0.2499F, -0.25F, 0, 0, 0, 0, 0}}).selected == Lists{{0, 2}});
}

TEST_CASE("Hard threshold that selects nothing anywhere exchanges nothing and keeps every residual") {
  auto options = options_of("hard_threshold", 0.5, 3, {{"threshold", 1e6}});
  Replay replay(normal_gradients(3, 50, 1), layers_of_sizes({50}), options);
  const Json record = replay.next();
  CHECK(record.at("union") == 0);
  CHECK(record.at("padding").is_null());
  CHECK(record.at("build_up") == 0.0);
  CHECK(record.at("exchange").dump() == R"([{"op":"all_gather","payload":"counts","dtype":"int64","bytes":8},)"
                                        R"({"op":"all_gather","payload":"indices","dtype":"int64","bytes":0,"bytes_unpadded":0},)"
                                        R"({"op":"all_reduce","payload":"values","dtype":"float32","bytes":0}])");
  const double first = record.at("residual_norm").at(0).get<double>();
  CHECK(first > 5);
  CHECK(replay.next().at("residual_norm").at(0).get<double>() > first);
}

TEST_CASE("MiCRO scans rotating partitions and forces one index where none qualifies") {
  // N = 7, n = 2: partitions [0,4) and [4,7); k = 3, threshold 1/(2 sqrt 3) = 0.2887.
  Small micro("micro", Json::object(), 0.5, 2, {7});
  const std::vector<float> big(7, 1.0F), zero(7, 0.0F);
  Selection s = micro.select(0, {big, zero});
  CHECK(s.selected == Lists{{0, 1, 2, 3}, {4}});  // forced: 4 + 0 mod 3
  CHECK(s.exchanged == std::vector<Index>{0, 1, 2, 3, 4});
  CHECK(s.threshold.front() == 1 / (2 * std::sqrt(3.0)));
  CHECK(s.details.at("partition_of_worker").dump() == "[0,1]");
  CHECK(calls_of(s.exchange) == "all_gather counts int64 8; all_gather indices int64 32 of 32 8; all_reduce values float32 20");
  s = micro.select(1, {big, zero});
  CHECK(s.selected == Lists{{4, 5, 6}, {1}});  // rotated; forced 0 + 1 mod 4
  CHECK(s.details.at("range_of_worker").dump() == "[[4,7],[0,4]]");
  CHECK(s.threshold.front() == 1 / (2 * std::sqrt(3.0)) * 1.005);  // 5 / 3 of the target
  CHECK(work_to_json(s.work, 2).at(1).dump() == R"({"operation":"threshold_select","before_call":0,"elements":[3,4],"selected":[3,0]})");
}

TEST_CASE("MiCRO's threshold follows the coded or the intended rule") {
  // n = 1, k = 10 of N = 20; the accumulator decides the count of the next iteration's step.
  const auto thresholds = [](const char* rule, const std::vector<int>& counts) {
    Small micro("micro", {{"micro_rule", rule}}, 0.5, 1, {20});
    std::vector<double> seen;
    for (std::size_t t = 0; t < counts.size(); ++t) {
      std::vector<float> values(20, 0.0F);
      std::fill_n(values.begin(), counts[t], 9.0F);
      seen.push_back(micro.select(static_cast<std::int64_t>(t), {values}).threshold.front());
    }
    return seen;
  };
  const double first = 1 / (2 * std::sqrt(10.0));
  // Counts 12, 11, 10, 9, 0 -> forced 1: ratios 1.2, 1.1, 1.0, 0.9, 0.1.
  const auto code = thresholds("code", {12, 11, 10, 9, 0, 10});
  CHECK(code[1] == first * 1.005);
  CHECK(code[2] == code[1] * 1.00125);
  CHECK(code[3] == code[2] * 1.00125);
  CHECK(code[4] == code[3] * 0.995);
  CHECK(code[5] == code[4] * 0.995);
  const auto intended = thresholds("intended", {12, 11, 10, 9});
  CHECK(intended[2] == intended[1] * 1.00125);
  CHECK(intended[3] == intended[2] * 0.99875);  // exactly on target counts as not above it
}

TEST_CASE("ExDyna moves one block across a border towards the partition that selected less") {
  // 8 blocks of 32, N = 260 (remainder 4), n = 2: partitions of 4 blocks; smallest 8 / 8 = 1 block.
  Small exdyna("exdyna", {{"blocks", 8}}, 0.04, 2, {260});
  std::vector<float> left(260, 0.0F), right(260, 0.0F);
  std::fill_n(left.begin(), 20, 9.0F);
  Selection s = exdyna.select(0, {left, right});
  CHECK(s.selected[0].size() == 20);
  CHECK(s.selected[1] == std::vector<Index>{128});
  CHECK(s.details.at("range_of_worker").dump() == "[[0,128],[128,260]]");
  CHECK(s.details.at("block_remainder") == 4);
  s = exdyna.select(1, {left, left});
  CHECK(s.details.at("block_counts").dump() == "[3,5]");
  CHECK(s.details.at("block_starts").dump() == "[0,3]");
  CHECK(s.details.at("range_of_worker").dump() == "[[96,260],[0,96]]");
  // Down to one block and no further.
  for (int t = 2; t < 6; ++t) s = exdyna.select(t, {left, left});
  CHECK(s.details.at("block_counts").dump() == "[1,7]");
}

TEST_CASE("ExDyna and MiCRO refuse what leaves a partition empty, in one line") {
  CHECK(message_of([] { make("exdyna", Json::object(), 0.01, 4, 30000); }) ==
        "blocks: expected at most gradients / 32 = 937 blocks for exdyna (blocks are multiples of 32), found 1024");
  CHECK(message_of([] { make("exdyna", {{"blocks", 937}}, 0.01, 4, 30000); }) == "no error");
  CHECK(message_of([] { make("exdyna", Json::object(), 0.01, 1025, 40000); }) ==
        "workers: expected at most one worker per block for exdyna, 1024 (parameter blocks), found 1025");
  CHECK(message_of([] { make("exdyna", Json::object(), 0.01, 1024, 40000); }) == "no error");
  CHECK(message_of([] { make("micro", Json::object(), 0.5, 11, 10); }) ==
        "workers: expected at most 10 for micro (one gradient per partition), found 11");
}

TEST_CASE("Rules that divide by k refuse k = 0") {
  for (const char* name : {"hard_threshold", "micro", "exdyna"}) {
    INFO(name);
    CHECK_THAT(message_of([&] { make(name, Json::object(), 0.00001, 2, 40000); }),
               StartsWith("density: expected trunc(density x gradients) >= 1 for ") && ContainsSubstring("found trunc(1e-05 x 40000) = 0"));
  }
  CHECK(message_of([] { make("hard_threshold", {{"threshold", 0.5}}, 0.00001, 2, 40000); }) == "no error");
}

TEST_CASE("Dense baselines exchange everything") {
  Small dense("dense", Json::object(), 0.5, 2, {10});
  CHECK(calls_of(dense.select(0, {}).exchange) == "all_reduce gradient float32 40");
  Small buckets("dense", {{"bucket_bytes", 16}}, 0.5, 2, {10});
  CHECK(calls_of(buckets.select(0, {}).exchange) ==
        "all_reduce gradient float32 16; all_reduce gradient float32 16; all_reduce gradient float32 8");
  Small half("dense_fp16", Json::object(), 0.5, 2, {10});
  const Selection s = half.select(0, {});
  CHECK(calls_of(s.exchange) == "all_reduce gradient float16 20");
  CHECK(work_to_json(s.work, 2).dump() == R"([{"operation":"cast_half","before_call":0,"elements":10,"selected":10},)"
                                          R"({"operation":"cast_half","before_call":1,"elements":10,"selected":10}])");
}

// ---- invariants ---------------------------------------------------------------------------------------------------------------------

TEST_CASE("Counts, unions and partitions agree for 1 to 65 workers") {
  const std::int64_t N = 4500;
  for (std::int64_t n = 1; n <= 65; ++n)
    for (const auto& [name, parameters] : std::vector<std::pair<std::string, Json>>{{"topk", Json::object()},
                                                                                    {"hard_threshold", {{"threshold", 2.5}}},
                                                                                    {"micro", Json::object()},
                                                                                    {"exdyna", {{"blocks", 130}}}}) {
      INFO(name << " with " << n << " workers");
      Replay replay(pooled_gradients(n, N, 3), layers_of_sizes({N}), options_of(name, 0.02, n, parameters));
      for (int t = 0; t < 4; ++t) {
        const Json record = replay.next();
        const auto selected = record.at("selected").get<std::vector<Index>>();
        const Index sum = std::accumulate(selected.begin(), selected.end(), Index{0});
        const Index largest = *std::max_element(selected.begin(), selected.end());
        REQUIRE(record.at("selected_sum") == sum);
        REQUIRE(record.at("selected_max") == largest);
        const Index united = record.at("union");
        REQUIRE(united <= sum);
        REQUIRE(united >= largest);
        const bool partitioned = name == "micro" || name == "exdyna";
        if (partitioned) {
          REQUIRE(united == sum);
          REQUIRE(*std::min_element(selected.begin(), selected.end()) >= 1);
          auto ranges = record.at("range_of_worker").get<std::vector<std::pair<Index, Index>>>();
          std::sort(ranges.begin(), ranges.end());
          REQUIRE(ranges.front().first == 0);
          REQUIRE(ranges.back().second == N);
          for (std::size_t i = 1; i < ranges.size(); ++i) REQUIRE(ranges[i].first == ranges[i - 1].second);
        }
        if (name == "exdyna") {
          const auto blocks = record.at("block_counts").get<std::vector<Index>>();
          REQUIRE(std::accumulate(blocks.begin(), blocks.end(), Index{0}) == 130);
        }
        if (n > 1 && record.at("padding").is_number()) {
          REQUIRE(record.at("padding").get<double>() >= 1 - 1e-12);
          REQUIRE(record.at("padding").get<double>() <= static_cast<double>(n) + 1e-12);
        }
      }
    }
}

TEST_CASE("ExDyna keeps 1024 blocks however unlike the layers are") {
  for (const std::int64_t n : {2, 7, 64}) {
    const std::int64_t N = 36000;
    const auto source = [&] { return pooled_gradients(n, N, 5, 8, [](std::int64_t, std::size_t i) { return i < 9000 ? 1.0 : 0.01; }); };
    Replay replay(source(), layers_of_sizes({9000, 27000}), options_of("exdyna", 0.01, n));
    double first = 0, last = 0;
    for (int t = 0; t < 60; ++t) {
      const Json record = replay.next();
      const auto blocks = record.at("block_counts").get<std::vector<Index>>();
      REQUIRE(std::accumulate(blocks.begin(), blocks.end(), Index{0}) == 1024);
      REQUIRE(*std::min_element(blocks.begin(), blocks.end()) >= static_cast<Index>(std::ceil(1024.0 / (4.0 * static_cast<double>(n)))));
      (t == 0 ? first : last) = record.at("padding").get<double>();
    }
    CHECK(last < first);
  }
}

// ---- SAGE ---------------------------------------------------------------------------------------------------------------------------

TEST_CASE("Random integers are those of Python's random.Random(seed).randrange") {
  struct Known {
    std::uint64_t seed;
    std::vector<std::uint64_t> below_34862, below_large;
    std::uint64_t word;
  };
  // random.Random(seed): three randrange(34862), two randrange(2**35 + 1), randrange(1), randrange(2**32).
  for (const Known& known : {Known{0, {25247, 27562, 2653}, {32260679266, 23521804804}, 2167613558},
                             Known{1, {8805, 4135, 16716}, {30571228041, 33333079876}, 2798570523},
                             Known{42, {7296, 1639, 18024}, {13936704400, 6637298740}, 136505587},
                             Known{(1ULL << 40) + 7, {31190, 16439, 8306}, {27989505502, 27329538697}, 3852568308}}) {
    PythonRandom random(known.seed);
    for (const std::uint64_t value : known.below_34862) CHECK(random.below(34862) == value);
    for (const std::uint64_t value : known.below_large) CHECK(random.below((1ULL << 35) + 1) == value);
    CHECK(random.below(1) == 0);
    CHECK(random.below(1ULL << 32) == known.word);
  }
}

TEST_CASE("SAGE with a sample of zeros: NaN for ever when faithful, clamped by default") {
  const auto replay = [](bool faithful) {
    // All gradients of iteration 1 are zero and nothing is left from iteration 0: everything was above the first threshold.
    auto options = options_of("sage", 0.5, 1, {{"faithful", faithful}});
    return Replay(
        std::make_unique<MadeGradients>(
            1, 100, [](std::int64_t t, std::int64_t, std::vector<float>& g) { std::fill(g.begin(), g.end(), t == 1 ? 0.0F : 1.0F); }),
        layers_of_sizes({100}), options);
  };
  Replay faithful = replay(true);
  CHECK(faithful.next().at("selected_sum") == 100);
  Json record = faithful.next();
  CHECK(record.at("threshold") == 0.0);
  CHECK(record.at("selected_sum") == 100);  // |0| >= 0
  record = faithful.next();
  CHECK(record.at("threshold").is_null());
  CHECK(record.at("selected_sum") == 0);
  CHECK(faithful.next().at("selected_sum") == 0);

  Replay clamped = replay(false);
  CHECK(clamped.next().at("sage").at("clamped") == 0);
  record = clamped.next();
  CHECK(record.at("sage").at("clamped") == 1);
  CHECK(record.at("threshold").get<double>() > 0);
  CHECK(record.at("selected_sum") == 0);
  record = clamped.next();
  CHECK(record.at("sage").at("clamped") == 0);  // the last mean that was not zero was kept
  CHECK(record.at("selected_sum") == 100);
}

// ---- DEFT ---------------------------------------------------------------------------------------------------------------------------

TEST_CASE("DEFT cuts large tensors, splits k by norms and deals fragments to bins") {
  // N = 12, n = 2: the tensor of 8 > 6 becomes two of 4; the one of 4 stays. k = 6.
  Small deft("deft", Json::object(), 0.5, 2, {8, 4});
  // Norms of worker 0: 8, 4, 2 (sum 14). k: trunc(6 x 8/14) = 3; trunc(3 x 4/6) = 2; trunc(1 x 2/2) = 1.
  // Costs: 4 log2 3 = 6.34, 4 log2 2 = 4, 4. Bins: {0}, {1, 2}: the second of the equal costs goes to the lighter bin.
  const std::vector<float> a = {4, 4, 4, 4, 2, 2, 2, 2, 1, 1, 1, 1};
  const std::vector<float> b = {0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 1};
  Selection s = deft.select(0, {a, b});
  CHECK(s.details.at("fragment_starts").dump() == "[0,4,8]");
  CHECK(s.details.at("fragment_ends").dump() == "[4,8,12]");
  CHECK(s.details.at("bins").dump() == "[[0],[1,2]]");
  CHECK(s.details.at("common_fragments").dump() == "[]");
  // Worker 1 takes bin 1 with its own k: norms 0, 9, 1: trunc(6 x 9/10) = 5 > 4, so all 4; trunc(2 x 1/1) = 2 of the last; max(1, 0) of the
  // first.
  CHECK(s.selected == Lists{{0, 1, 2}, {4, 5, 6, 7, 8, 11}});
  CHECK(calls_of(s.exchange) ==
        "broadcast plan int32 8 from 0; broadcast plan int32 12 from 0; all_gather counts int64 8; all_gather indices int64 48 of 24 48; "
        "all_reduce values float32 36");
  // The leader of iteration 1 is worker 1, who takes bin 2 c mod n = 0. Its whole fragment 1 goes to the common list.
  s = deft.select(1, {a, b});
  CHECK(s.details.at("leader") == 1);
  CHECK(s.details.at("common_fragments").dump() == "[1]");
  CHECK(s.details.at("bins").dump() == "[[0],[2]]");  // costs 4 and 4 log2 2 = 4: the earlier one first
}

TEST_CASE("DEFT sends at least one gradient per fragment") {
  std::vector<std::int64_t> sizes(200, 30);
  Replay replay(normal_gradients(4, 6000, 1), layers_of_sizes(sizes), options_of("deft", 0.0007, 4));
  const Json record = replay.next();
  CHECK(record.at("target_k") == 4);
  CHECK(record.at("union") == 200);
  Replay wide(normal_gradients(8, 60000, 1), layers_of_sizes({20000, 10000, 25000, 100, 4900}), options_of("deft", 0.05, 8));
  for (int t = 0; t < 6; ++t) {
    const Json many = wide.next();  // k = 3000 over 28 fragments
    CHECK(many.at("build_up").get<double>() > 0.98);
    CHECK(many.at("build_up").get<double>() < 1.06);
    CHECK(many.at("selection_speed_up").get<double>() > 8);
  }
}

// ---- CLT-k --------------------------------------------------------------------------------------------------------------------------

TEST_CASE("CLT-k exchanges the leader's indices; the filter keeps a part of the residual") {
  Small cltk("cltk", Json::object(), 0.5, 2, {4});
  const std::vector<float> a = {4, 3, 1, 0}, b = {0, 1, 5, 6};
  Selection s = cltk.select(0, {a, b});
  CHECK(s.selected == Lists{{0, 1}, {2, 3}});
  CHECK(s.exchanged == std::vector<Index>{0, 1});
  CHECK(cltk.select(1, {a, b}).exchanged == std::vector<Index>{2, 3});
  CHECK(calls_of(s.exchange) == "broadcast indices int64 16 from 0; all_reduce values float32 8");
  Small leader("cltk", {{"cltk_mode", "leader_only"}}, 0.5, 2, {4});
  s = leader.select(1, {a, b});
  CHECK(s.selected == Lists{{}, {2, 3}});
  CHECK(work_to_json(s.work, 2).at(1).dump() == R"({"operation":"topk","before_call":0,"elements":[0,4],"selected":[0,2]})");
  CHECK(calls_of(s.exchange) == "broadcast indices int64 16 from 1; all_reduce values float32 8");

  // One worker, k = 1, gradients {4, 2} always, beta = 0.5. a1 = {4, 2}: sent {4}: e1 = 0.5 x 0 + 0.5 {0, 2} = {0, 1}.
  // a2 = {4, 3}: e2 = 0.5 {0, 1} + 0.5 {0, 3} = {0, 2}. a3 = {4, 4}, tie to the lower index: e3 = 0.5 {0, 2} + 0.5 {0, 4} = {0, 3}. a4 =
  // {4, 5}: index 1 is sent: e4 = 0.5 {0, 3} + 0.5 {4, 0} = {2, 1.5}.
  Replay filtered(std::make_unique<MadeGradients>(1, 2,
                                                  [](std::int64_t, std::int64_t, std::vector<float>& g) {
                                                    g = {4, 2};
                                                  }),
                  layers_of_sizes({2}), options_of("cltk", 0.5, 1, {{"residual_filter", 0.5}}));
  CHECK(filtered.next().at("residual_norm").at(0).get<double>() == Approx(1.0).epsilon(1e-12));
  CHECK(filtered.next().at("residual_norm").at(0).get<double>() == Approx(2.0).epsilon(1e-12));
  CHECK(filtered.next().at("residual_norm").at(0).get<double>() == Approx(3.0).epsilon(1e-12));
  const Json record = filtered.next();
  CHECK(record.at("residual_norm").at(0).get<double>() == Approx(2.5).epsilon(1e-12));
  CHECK(record.at("energy_exchanged").get<double>() == Approx(25.0 / 41));
}

// ---- generations, scopes, schedules -------------------------------------------------------------------------------------------------

TEST_CASE("Scope and schedule change how many are taken where") {
  const std::vector<float> a = {9, 8, 7, 6, 1, 2, 3, 4};
  CHECK(Small("topk", Json::object(), 0.5, 1, {4, 4}).select(0, {a}).selected == Lists{{0, 1, 2, 3}});
  CHECK(Small("topk", {{"scope", "layer"}}, 0.5, 1, {4, 4}).select(0, {a}).selected == Lists{{0, 1, 6, 7}});
  CHECK(Small("topk", {{"scope", "layer"}}, 0.1, 1, {4, 4}).select(0, {a}).selected == Lists{{0, 7}});  // at least one each
  CHECK(Small("topk", {{"scope", "bucket"}, {"bucket_bytes", 32}}, 0.5, 1, {4, 4}).select(0, {a}).selected == Lists{{0, 1, 2, 3}});
  CHECK(Small("topk", {{"scope", "bucket"}, {"bucket_bytes", 24}}, 0.5, 1, {2, 3, 3}).select(0, {a}).selected == Lists{{0, 1, 7}});
  Small scheduled("topk", {{"density_schedule", Json::array({Json::array({0, 0.75}), Json::array({2, 0.25})})}}, 0.5, 1, {4, 4});
  CHECK(scheduled.select(0, {a}).target_k == 6);
  CHECK(scheduled.select(1, {a}).selected.front().size() == 6);
  CHECK(scheduled.select(2, {a}).selected.front().size() == 2);
  CHECK(message_of([] {
          make("topk", {{"density_schedule", Json::array({Json::array({3, 0.5}), Json::array({3, 0.5})})}}, 0.5, 1, 4);
        }) == "density_schedule: expected a list of [iteration >= 0, 0 < density <= 1], iterations ascending, found [[3,0.5],[3,0.5]]");
  CHECK(message_of([] {
          make("topk", {{"density_schedule", Json::array({Json::array({3, 0})})}}, 0.5, 1, 4);
        }) == "density_schedule: expected a list of [iteration >= 0, 0 < density <= 1], iterations ascending, found [[3,0]]");
  CHECK(message_of([] {
          make("topk", {{"generation", "2023a"}, {"scope", "bucket"}}, 0.5, 1, 4);
        }) == "scope: expected layer or the default with generation 2023a, which goes tensor by tensor, found bucket");
}

TEST_CASE("The 2023a generation gathers values and keeps what others sent") {
  auto options = options_of("hard_threshold", 0.5, 2, {{"generation", "2023a"}, {"threshold", 2.0}});
  const auto source = [] {
    return std::make_unique<MadeGradients>(2, 4, [](std::int64_t, std::int64_t worker, std::vector<float>& g) {
      g = worker == 0 ? std::vector<float>{3, 1, 0, 0} : std::vector<float>{1, 2, 0, 4};
    });
  };
  const Json record = Replay(source(), layers_of_sizes({1, 3}), options).next();
  CHECK(record.at("union") == 3);
  for (const Json& norm : record.at("residual_norm")) CHECK(norm.get<double>() == Approx(1.0).epsilon(1e-12));
  CHECK(
      record.at("exchange").dump() ==
      R"([{"op":"all_gather","payload":"counts","dtype":"int64","bytes":8},{"op":"all_gather","payload":"plan","dtype":"int64","bytes":16},)"
      R"({"op":"all_gather","payload":"plan","dtype":"int64","bytes":16},)"
      R"({"op":"all_gather","payload":"values","dtype":"float32","bytes":8,"bytes_unpadded":[4,8]},)"
      R"({"op":"all_gather","payload":"indices","dtype":"int32","bytes":8,"bytes_unpadded":[4,8]}])");
}

// ---- gTop-k -------------------------------------------------------------------------------------------------------------------------

TEST_CASE("gTop-k keeps the largest sums along the tree and puts the rest back") {
  // k = 1 of 4, n = 3. Lists: {0: 5}, {1: 4}, {1: 3}. Round 1: {0: 5} against {1: 4} leaves {0: 5}; round 2: {0: 5} against {1: 3} leaves
  // {0: 5}, although index 1 has the larger sum 7.
  Small gtopk("gtopk", Json::object(), 0.25, 3, {4});
  Selection s = gtopk.select(0, {{5, 0, 0, 1}, {2, 4, 0, 0}, {0, 3, 1, 0}});
  CHECK(s.selected == Lists{{0}, {1}, {1}});
  CHECK(s.exchanged == std::vector<Index>{0});
  CHECK(calls_of(s.exchange) == "reduce values float64 16; broadcast values float64 16 from 0");
  CHECK(s.details.at("rounds") == 2);
  // Equal indices are summed on the way; ties go to the lower index.
  s = gtopk.select(1, {{0, 0, -4, 0}, {0, 3, 0, 0}, {0, 0, 4, 0}});
  CHECK(s.exchanged == std::vector<Index>{2});  // -4 + 4 = 0 is still the only candidate left with a list of one
  Replay replay(std::make_unique<MadeGradients>(2, 4,
                                                [](std::int64_t, std::int64_t worker, std::vector<float>& g) {
                                                  g = worker == 0 ? std::vector<float>{5, 0, 0, 1} : std::vector<float>{2, 4, 0, 0};
                                                }),
                layers_of_sizes({4}), options_of("gtopk", 0.25, 2));
  const Json record = replay.next();
  CHECK(record.at("residual_norm").at(0).get<double>() == Approx(1.0).epsilon(1e-12));
  CHECK(record.at("residual_norm").at(1).get<double>() == Approx(std::sqrt(20.0)));  // 2 was not sent, 4 was put back
  CHECK(record.at("union") == 1);
}

// ---- Random-k -----------------------------------------------------------------------------------------------------------------------

TEST_CASE("Random-k draws distinct indices, per worker or shared, uniformly") {
  auto options = options_of("random_k", 0.1, 3);
  Replay own(normal_gradients(3, 1000, 1), layers_of_sizes({1000}), options);
  Json record = own.next();
  CHECK(record.at("selected").dump() == "[100,100,100]");
  CHECK(record.at("union").get<Index>() > 250);
  CHECK(record.at("union").get<Index>() < 290);  // 271 expected
  CHECK(record.at("residual_norm").dump() == "[0.0,0.0,0.0]");
  CHECK(record.at("energy_exchanged").get<double>() == Approx(0.1).margin(0.04));
  CHECK(record.at("exchange").dump() == R"([{"op":"all_gather","payload":"values","dtype":"float32","bytes":400},)"
                                        R"({"op":"all_gather","payload":"indices","dtype":"int32","bytes":400}])");
  options.parameters = {{"indices", "shared"}, {"residual", true}};
  Replay shared(normal_gradients(3, 1000, 1), layers_of_sizes({1000}), options);
  record = shared.next();
  CHECK(record.at("union") == 100);
  CHECK(record.at("exchange").dump() == R"([{"op":"all_reduce","payload":"values","dtype":"float32","bytes":400}])");
  CHECK(record.at("residual_norm").at(0).get<double>() > 25);
  // With replacement 100 draws give about 1000 (1 - 0.999^100) = 95 distinct ones, still 400 bytes.
  options.parameters = {{"indices", "shared"}, {"replacement", true}};
  record = Replay(normal_gradients(3, 1000, 1), layers_of_sizes({1000}), options).next();
  CHECK(record.at("union").get<Index>() < 100);
  CHECK(record.at("union").get<Index>() > 85);
  CHECK(record.at("exchange").at(0).at("bytes") == 400);

  // Every index is drawn equally often: chi-square over 50 indices, 49 degrees of freedom.
  Random random(7);
  std::vector<int> hits(50, 0);
  for (int round = 0; round < 2000; ++round)
    for (const Index index : random_subset(random, 50, 10)) ++hits[static_cast<std::size_t>(index)];
  double chi = 0;
  for (const int count : hits) chi += (count - 400.0) * (count - 400.0) / 400.0;
  CHECK(chi < 75);
}

// ---- DGC ----------------------------------------------------------------------------------------------------------------------------

namespace {

std::vector<traces::Layer> matrices_and_vectors(const std::vector<std::pair<std::int64_t, bool>>& layers) {
  std::vector<traces::Layer> made;
  std::int64_t offset = 0;
  for (const auto& [size, matrix] : layers) {
    made.push_back(
        {"l" + std::to_string(made.size()), matrix ? std::vector<std::int64_t>{size, 1} : std::vector<std::int64_t>{size}, offset, size});
    offset += size;
  }
  return made;
}

}  // namespace

TEST_CASE("DGC corrects momentum, masks it where it sends, and leaves one-dimensional tensors dense") {
  // Tensor of 4 (matrix), tensor of 2 (vector). d = 0.25: one entry of the matrix. m = 0.5. Gradient {4, 3, 0, 0 | 1, 1} always.
  // t0: u = v = {4, 3}: index 0 sent, u = v = {0, 3}. t1: u = {4, 4.5}, v = {4, 7.5}: index 1 sent. t2: u = {6, 3}, v = {10, 3}.
  const auto run = [](const Json& parameters) {
    auto options = options_of("dgc", 0.25, 1, parameters);
    return Replay(std::make_unique<MadeGradients>(1, 6, [](std::int64_t, std::int64_t, std::vector<float>& g) { g = {4, 3, 0, 0, 1, 1}; }),
                  matrices_and_vectors({{4, true}, {2, false}}), options);
  };
  Replay plain = run({{"momentum", 0.5}});
  Json record = plain.next();
  CHECK(record.at("selected").dump() == "[3]");  // one sparse, two dense
  CHECK(record.at("dense_elements") == 2);
  CHECK(record.at("residual_norm").at(0).get<double>() == Approx(3.0).epsilon(1e-12));
  CHECK(record.at("exchange").dump() == R"([{"op":"all_gather","payload":"values","dtype":"float32","bytes":4},)"
                                        R"({"op":"all_gather","payload":"indices","dtype":"int64","bytes":8},)"
                                        R"({"op":"all_reduce","payload":"gradient","dtype":"float32","bytes":8}])");
  CHECK(plain.next().at("residual_norm").at(0).get<double>() == Approx(4.0).epsilon(1e-12));
  CHECK(plain.next().at("residual_norm").at(0).get<double>() == Approx(3.0).epsilon(1e-12));
  // Without masking u goes on: t0 u = v = {4, 3}, v left {0, 3}; t1: u = {6, 4.5}, v = {6, 7.5}: index 1 sent, 6 left.
  Replay unmasked = run({{"momentum", 0.5}, {"momentum_masking", false}});
  unmasked.next();
  CHECK(unmasked.next().at("residual_norm").at(0).get<double>() == Approx(6.0).epsilon(1e-12));
  // Nesterov: u = m (u + g), v += u + g: t0 u = {2, 1.5}, v = {6, 4.5}; index 0 sent. t1: u = {2, 2.25}, v = {6, 9.75}: index 1 sent.
  Replay nesterov = run({{"momentum", 0.5}, {"nesterov", true}});
  CHECK(nesterov.next().at("residual_norm").at(0).get<double>() == Approx(4.5).epsilon(1e-12));
  CHECK(nesterov.next().at("residual_norm").at(0).get<double>() == Approx(6.0).epsilon(1e-12));
}

TEST_CASE("DGC's sampled threshold lands near the wanted number and the list is cut by position") {
  const std::int64_t N = 200000;
  for (const bool resample : {true, false}) {
    auto options = options_of("dgc", 0.01, 2, {{"resample", resample}, {"momentum", 0.0}});
    Replay replay(normal_gradients(2, N, 4), matrices_and_vectors({{N, true}}), options);
    for (int t = 0; t < 5; ++t) {
      const Json record = replay.next();
      for (const Json& count : record.at("selected")) {
        CHECK(count.get<Index>() <= 2000);
        CHECK(count.get<Index>() >= 1500);
      }
    }
  }
  // Warm-up over 2 epochs of 3 iterations: d^(1/3), d^(2/3), d.
  auto options = options_of("dgc", 0.001, 1, {{"warmup_epochs", 2}, {"iterations_per_epoch", 3}});
  Replay warm(normal_gradients(1, 10000, 4), matrices_and_vectors({{10000, true}}), options);
  std::vector<Index> targets;
  for (int t = 0; t < 8; ++t) targets.push_back(warm.next().at("target_k").get<Index>());
  CHECK(targets == std::vector<Index>{1000, 1000, 1000, 100, 100, 100, 10, 10});
  CHECK(message_of([] {
          make("dgc", {{"warmup_epochs", 2}}, 0.1, 1, 10);
        }) == "iterations_per_epoch: expected a number >= 1 when warmup_epochs is given, found 0");
}

// ---- Gaussian-k and SIDCo -----------------------------------------------------------------------------------------------------------

TEST_CASE("Gaussian-k finds the quantile of normal data and corrects it on other data") {
  const std::int64_t N = 100000;
  Replay normal(normal_gradients(2, N, 6), layers_of_sizes({N}), options_of("gaussiank", 0.01, 2));
  const Json record = normal.next();
  CHECK(record.at("threshold").at(0).get<double>() == Approx(2.5758).epsilon(0.02));  // the 0.995 quantile
  CHECK(record.at("selected").at(0).get<double>() == Approx(1000).epsilon(0.15));
  CHECK(record.at("exchange").at(0).at("bytes").at(0) == 4 * record.at("selected").at(0).get<Index>());
  // Hand case: {0, 0, 0, 10}: mean 2.5, sd 5, d = 0.5: z = 0.6745: 5.87 selects one of k = 2; 1 < 4/3: halved once: 2.94, one again;
  // halved: 1.47, one; the list of the third test, the threshold after it is not used.
  Small small("gaussiank", Json::object(), 0.5, 1, {4});
  const Selection s = small.select(0, {{0, 0, 0, 10}});
  CHECK(s.selected == Lists{{3}});
  CHECK(s.threshold.front() == Approx((2.5 + 0.67449 * 5) / 4).epsilon(1e-4));
  // Strictly above: all equal, sd 0, threshold = the value itself: nothing until it is halved.
  CHECK(Small("gaussiank", Json::object(), 0.5, 1, {4}).select(0, {{1, 1, 1, 1}}).selected.front().size() == 4);
  Small fine("gaussiank", {{"variant", "ok"}}, 0.5, 1, {4});
  CHECK(calls_of(fine.select(0, {{0, 0, 0, 10}}).exchange) ==
        "all_gather counts int32 4; all_gather values float32 4; all_gather indices int32 4");
}

TEST_CASE("SIDCo's exponential fit is the logarithm of the density and its stages refine it") {
  // x = |a| / norm, threshold -mean(x) ln d, so on a: -mean|a| ln d = 2.5 ln 2 = 1.733 for d = 0.5.
  Small one("sidco", Json::object(), 0.5, 1, {4});
  Selection s = one.select(0, {{1, -2, 3, 4}});
  CHECK(s.threshold.front() == Approx(2.5 * std::log(2.0)).epsilon(1e-6));
  CHECK(s.selected == Lists{{1, 2, 3}});
  CHECK(s.details.at("stages").dump() == "[1]");
  // d = 0.125, two stages: first for 0.25: 2.5 ln 4 = 3.47 leaves {4}; second: minimum = mean = 4: threshold 4, nothing strictly above.
  Small two("sidco", {{"stages", 2}}, 0.125, 1, {4});
  s = two.select(0, {{1, -2, 3, 4}});
  CHECK(s.threshold.front() == Approx(4.0).epsilon(1e-6));
  CHECK(s.selected == Lists{{}});
  // A vector of zeros selects nothing.
  CHECK(one.select(1, {{0, 0, 0, 0}}).selected == Lists{{}});

  // Laplace data: |a| is exponential, so every fit must find the density.
  const auto laplace = [](std::int64_t, std::int64_t worker, std::vector<float>& g) {
    Random random(stream_key(11, "laplace", {static_cast<std::uint64_t>(worker)}));
    for (float& x : g) x = static_cast<float>((random.uniform() < 0.5 ? 1 : -1) * std::log(1 - random.uniform()));
  };
  for (const char* fit : {"exponential", "pareto", "gamma_pareto"})
    for (const int stages : {0, 1, 2, 3}) {
      INFO(fit << ", " << stages << " stages");
      Replay replay(std::make_unique<MadeGradients>(1, 200000, laplace), layers_of_sizes({200000}),
                    options_of("sidco", 0.01, 1, {{"fit", fit}, {"stages", stages}}));
      CHECK(replay.next().at("selected_sum").get<double>() == Approx(2000).epsilon(0.12));
    }
}

TEST_CASE("SIDCo adapts its number of stages to what it selected") {
  // Light tails: one exponential stage selects next to nothing of normal data, later stages come closer.
  auto options = options_of("sidco", 0.001, 1, {{"stages", -1}});
  options.error_feedback = false;
  Replay replay(normal_gradients(1, 50000, 12), layers_of_sizes({50000}), options);
  std::vector<std::int64_t> stages;
  for (int t = 0; t < 21; ++t) stages.push_back(replay.next().at("stages").at(0).get<std::int64_t>());
  CHECK(std::vector<std::int64_t>(stages.begin(), stages.begin() + 5) == std::vector<std::int64_t>{1, 1, 1, 1, 1});
  for (const std::int64_t count : stages) {
    CHECK(count >= 1);
    CHECK(count <= 10);  // ceil(ln 0.001 / ln 0.5)
  }
  CHECK(stages[5] == 2);
  CHECK(stages[10] == 3);
  // -2 and -3 follow the same way while every change helps.
  for (const int mode : {-2, -3}) {
    options.parameters = {{"stages", mode}};
    Replay other(normal_gradients(1, 50000, 12), layers_of_sizes({50000}), options);
    for (int t = 0; t < 10; ++t) other.next();
    CHECK(other.next().at("stages").at(0) == 3);
  }
  CHECK(message_of([] { make("sidco", {{"stages", -4}}, 0.1, 1, 10); }) == "test: /parameters/stages: expected an integer >= -3, found -4");
}

// ---- Accordion ----------------------------------------------------------------------------------------------------------------------

TEST_CASE("Accordion switches a tensor by the change of worker 0's gradient norm") {
  // Two tensors of 10. Norms change only in the first one, at iteration 4; decisions at 0, 2, 4, 6.
  auto options = options_of("accordion", 0.1, 2, {{"switch_iterations", 2}, {"density_high", 0.5}});
  Replay replay(std::make_unique<MadeGradients>(2, 20,
                                                [](std::int64_t t, std::int64_t, std::vector<float>& g) {
                                                  for (std::size_t i = 0; i < 20; ++i) g[i] = i < 10 && t >= 4 ? 1.6F : 1.0F;
                                                }),
                layers_of_sizes({10, 10}), options);
  std::vector<std::string> high;
  std::vector<Index> k, calls;
  for (int t = 0; t < 7; ++t) {
    const Json record = replay.next();
    high.push_back(record.at("high").dump());
    k.push_back(record.at("target_k").get<Index>());
    calls.push_back(static_cast<Index>(record.at("exchange").size()));
    if (t == 0) CHECK(record.at("exchange").at(0).dump() == R"({"op":"broadcast","payload":"plan","dtype":"float32","bytes":8,"root":0})");
  }
  CHECK(high == std::vector<std::string>{"[true,true]", "[true,true]", "[false,false]", "[false,false]", "[true,false]", "[true,false]",
                                         "[false,false]"});
  CHECK(k == std::vector<Index>{10, 10, 2, 2, 6, 6, 2});
  CHECK(calls == std::vector<Index>{3, 2, 3, 2, 3, 2, 3});
}

// ---- Ok-Topk ------------------------------------------------------------------------------------------------------------------------

TEST_CASE("Ok-Topk sums regions and keeps the largest sums") {
  // N = 8, n = 2, k = 2. tau_l: 2nd largest: 4 and 5; strictly above: {0} (5) and {6} (7). Boundary: position 1 x (1 / 2) = 0: (0 + 6) / 2
  // = 3.
  Small oktopk("oktopk", Json::object(), 0.25, 2, {8});
  Selection s = oktopk.select(0, {{5, 4, 0, 0, 0, 0, 1, 0}, {0, 0, 0, 5, 0, 0, 7, 0}});
  CHECK(s.selected == Lists{{0}, {6}});
  CHECK(s.details.at("region_starts").dump() == "[0,3]");
  CHECK(s.details.at("region_received").dump() == "[1,1]");
  CHECK(s.exchanged == std::vector<Index>{0, 6});
  CHECK(s.details.at("global_threshold") == 5.0);
  CHECK(calls_of(s.exchange) ==
        "all_reduce plan int32 4; all_to_all counts int32 4; all_to_all values float32 [0 0]; all_gather counts int32 4; "
        "all_gather indices int32 [4 4]; all_gather values float32 [4 4]");
  CHECK(s.threshold == std::vector<double>{4, 5});
  // One selected of two wanted, 1 < 4/5 x 2: tau_l / 1.025. Both lie in region 1 now: worker 0 sends one entry.
  s = oktopk.select(1, {{0, 0, 0, 0, 4, 0, 0, 0}, {0, 0, 0, 0, 4.95F, 0, 0, 0}});
  CHECK(s.threshold == std::vector<double>{4 / 1.025, 5 / 1.025});
  CHECK(s.selected == Lists{{4}, {4}});
  CHECK(s.exchanged == std::vector<Index>{4});  // 8.95 > 5
  CHECK(calls_of(s.exchange) ==
        "all_to_all counts int32 4; all_to_all values float32 [8 0]; all_gather counts int32 4; all_to_all values float32 [0 8]; "
        "all_gather indices int32 [4 0]; all_gather values float32 [4 0]");
  // Own selections that are not final stay: at own and exchanged.
  CHECK(s.contribution == Contribution::at_own_and_exchanged);
  // The other programs: no balancing, one buffer.
  Small vgg("oktopk", {{"variant", "vgg"}, {"dense_iterations", 1}}, 0.25, 2, {8});
  s = vgg.select(0, {{5, 4, 0, 0, 0, 0, 1, 0}, {0, 0, 0, 5, 0, 0, 7, 0}});
  CHECK(s.everything);
  CHECK(calls_of(s.exchange) == "all_reduce gradient float32 32");
  s = vgg.select(1, {{5, 4, 0, 0, 0, 0, 1, 0}, {0, 0, 0, 5, 0, 0, 7, 0}});
  CHECK(calls_of(s.exchange) ==
        "all_reduce plan int32 4; all_to_all counts int32 4; all_to_all values float32 [0 0]; all_gather counts int32 4; "
        "all_gather values float32 [8 8]");
}

TEST_CASE("Ok-Topk holds the density near its target and its volume below 6k per worker") {
  for (const char* variant : {"bert", "vgg", "lstm"}) {
    INFO(variant);
    const std::int64_t n = 8, N = 40000;
    auto options = options_of("oktopk", 0.01, n, {{"variant", variant}});
    options.error_feedback = false;  // with it, residuals outgrow the thresholds in the first iterations
    Replay replay(pooled_gradients(n, N, 13), layers_of_sizes({N}), options);
    const double k = 400;
    for (int t = 0; t < 40; ++t) {
      const Json record = replay.next();
      if (t < 5) continue;
      CHECK(record.at("union").get<double>() > 0.5 * k);
      CHECK(record.at("union").get<double>() < 1.6 * k);
      double entries = 0;  // bytes that a worker sends or receives on average, sizes and boundaries aside
      for (const Json& call : record.at("exchange")) {
        if (call.at("payload") != "values" && call.at("payload") != "indices") continue;
        double sum = 0;
        if (call.at("bytes").is_array())
          for (const Json& bytes : call.at("bytes")) sum += bytes.get<double>();
        else
          sum = call.at("bytes").get<double>() * static_cast<double>(n);
        entries += call.at("op") == "all_gather" ? sum * static_cast<double>(n - 1) / static_cast<double>(n) : sum / static_cast<double>(n);
      }
      if (t % 32 != 0) CHECK(entries / 4 < 6 * k * 1.3);
    }
  }
}

// ---- OmniReduce ---------------------------------------------------------------------------------------------------------------------

TEST_CASE("OmniReduce sends non-zero blocks and the first block of every column") {
  // Blocks of 2, N = 41: 21 blocks, the last of one element. One aggregator: 8 columns, so blocks 0 to 7 always go.
  Small omni("omnireduce", {{"block_elements", 2}, {"aggregators", 1}}, 0.5, 2, {41});
  std::vector<float> a(41, 0.0F), b(41, 0.0F);
  a[17] = 1;   // block 8
  b[40] = -1;  // block 20
  const Selection s = omni.select(0, {a, b});
  CHECK(s.details.at("blocks_sent").dump() == "[9,9]");
  CHECK(s.details.at("blocks_union") == 10);
  // Lists of blocks, not of their elements.
  CHECK(s.block_elements == 2);
  CHECK(s.selected == Lists{{0, 1, 2, 3, 4, 5, 6, 7, 8}, {0, 1, 2, 3, 4, 5, 6, 7, 20}});
  CHECK(s.exchanged == std::vector<Index>{0, 1, 2, 3, 4, 5, 6, 7, 8, 20});
  // Even blocks are worker 0's to sum, odd ones worker 1's. Worker 0 sends blocks 1, 3, 5, 7; worker 1 sends 0, 2, 4, 6 (12 bytes each) and
  // 20 (8). Of the union, worker 0 has 0, 2, 4, 6, 8 and 20, worker 1 four.
  CHECK(calls_of(s.exchange) == "all_to_all values float32 [48 56]; all_gather values float32 [68 48]");
  CHECK(s.exchange[0].parts->bytes == std::vector<std::uint64_t>{0, 48, 56, 0});
  CHECK(s.residual == Residual::cleared);
  Small lossy("omnireduce", {{"block_elements", 2}, {"aggregators", 1}, {"threshold", 1.0}}, 0.5, 2, {41});
  CHECK(lossy.select(0, {a, b}).details.at("blocks_union") == 8);
  CHECK(Small("omnireduce", Json::object(), 0.5, 1, {100}).select(0, {std::vector<float>(100, 1.0F)}).everything);
}

// ---- GRACE --------------------------------------------------------------------------------------------------------------------------

TEST_CASE("GRACE works tensor by tensor with one set of calls each") {
  Small topk("grace_topk", Json::object(), 0.3, 2, {4, 2});
  Selection s = topk.select(0, {{1, 2, 3, 4, 1, 0}, {4, 3, 2, 1, 0, 1}});
  CHECK(s.selected == Lists{{3, 4}, {0, 5}});
  CHECK(calls_of(s.exchange) ==
        "all_gather values float32 [4 4]; all_gather indices int32 [4 4]; all_gather values float32 [4 4]; all_gather indices int32 [4 4]");
  CHECK(s.contribution == Contribution::at_own_selection);
  Small fused("grace_topk", {{"fused", true}, {"variant", "horovod"}}, 0.3, 2, {4, 2});
  CHECK(calls_of(fused.select(0, {{1, 2, 3, 4, 1, 0}, {4, 3, 2, 1, 0, 1}}).exchange) ==
        "all_gather values float32 [8 8]; all_gather indices int64 [16 16]");

  // DDP: at least the smaller of lambda and the signed maximum; a tensor of negative values goes whole. Horovod: strictly above lambda.
  Small ddp("grace_threshold", {{"threshold", 3.0}}, 0.3, 2, {4, 2});
  s = ddp.select(0, {{1, 2, 3, 4, 1, -2}, {-4, -3, -2, -1, 5, 3}});
  CHECK(s.selected == Lists{{2, 3, 4, 5}, {0, 1, 2, 3, 4, 5}});
  CHECK(calls_of(s.exchange) ==
        "all_gather counts int64 16; all_gather values float32 16 of 8 16; all_gather indices int32 16 of 8 16; "
        "all_gather counts int64 16; all_gather values float32 8 of 8 8; all_gather indices int32 8 of 8 8");
  Small horovod("grace_threshold", {{"threshold", 3.0}, {"variant", "horovod"}}, 0.3, 2, {4, 2});
  CHECK(horovod.select(0, {{1, 2, 3, 4, 1, -2}, {-4, -3, -2, -1, 5, 3}}).selected == Lists{{3}, {0, 4}});
}

// ---- all of them --------------------------------------------------------------------------------------------------------------------

TEST_CASE("Every sparsifier keeps the invariants of a selection for 1 to 65 workers") {
  const auto layers = matrices_and_vectors({{2000, true}, {40, false}, {1300, true}, {7, false}, {1153, true}});
  const std::int64_t N = 4500;
  for (const SparsifierInfo& info : sparsifiers())
    for (const std::int64_t n : {1, 2, 3, 5, 8, 31, 65}) {
      INFO(info.name << " with " << n << " workers");
      Json parameters = Json::object();
      if (info.name == "exdyna") parameters["blocks"] = 130;
      auto options = options_of(info.name, 0.02, n, parameters);
      options.hashes = true;
      Replay replay(pooled_gradients(n, N, 21), layers, options);
      Replay again(pooled_gradients(n, N, 21), layers, options);
      for (int t = 0; t < 3; ++t) {
        const Json record = replay.next();
        REQUIRE(record.dump() == again.next().dump());  // same inputs, same bytes
        const auto selected = record.at("selected").get<std::vector<Index>>();
        REQUIRE(std::ssize(selected) == n);
        const Index sum = std::accumulate(selected.begin(), selected.end(), Index{0});
        const Index largest = *std::max_element(selected.begin(), selected.end());
        const Index united = record.at("union");
        REQUIRE(record.at("selected_sum") == sum);
        REQUIRE(united <= N);
        if (!info.dense && info.name != "deft") REQUIRE(united <= sum);
        // Where one list is decided on for all, it can be smaller than a worker's own.
        if (info.name != "gtopk" && info.name != "oktopk") REQUIRE(united >= largest);
        const double energy = record.at("energy_exchanged").get<double>();
        REQUIRE(energy >= 0);
        REQUIRE(energy <= 1 + 1e-12);
        for (const Json& norm : record.at("residual_norm")) REQUIRE(norm.is_number());
        const auto calls = static_cast<std::int64_t>(record.at("exchange").size());
        REQUIRE(calls >= 1);
        for (const Json& call : record.at("exchange")) {
          const CollectiveCall read = CollectiveCall::from_json(call, n);
          REQUIRE(std::ssize(read.bytes_of_all(n)) == n);
          REQUIRE(read.to_json() == call);
        }
        const auto work = work_from_json(record.at("work"), n);
        REQUIRE(work_to_json(work, n) == record.at("work"));
        for (const auto& list : work)
          for (const KernelWork& one : list) {
            REQUIRE(one.before_call >= 0);
            REQUIRE(one.before_call <= calls);
            REQUIRE(one.elements >= 0);
            const std::set<std::string> known = {"accumulate", "topk", "threshold_select", "count",    "unite",
                                                 "gather",     "zero", "l2_norm",          "cast_half"};
            REQUIRE(known.contains(one.operation));
          }
        REQUIRE(record.at("union_sha256").get<std::string>().size() == 64);
      }
    }
}

TEST_CASE("Tiny vectors are replayed or refused, by every sparsifier") {
  for (const SparsifierInfo& info : sparsifiers())
    for (const std::int64_t N : {1, 2, 3, 33, 70})
      for (const std::int64_t n : {1, 2, 65}) {
        INFO(info.name << ", " << N << " gradients, " << n << " workers");
        Json parameters = Json::object();
        if (info.name == "exdyna") parameters["blocks"] = 2;
        const auto layers =
            N > 3 ? matrices_and_vectors({{N - 3, true}, {0, true}, {1, false}, {2, true}}) : matrices_and_vectors({{N, true}});
        try {
          Replay replay(normal_gradients(n, N, 2), layers, options_of(info.name, 0.5, n, parameters));
          for (int t = 0; t < 4; ++t) REQUIRE(replay.next().at("union").get<Index>() <= N);
        } catch (const InputError& error) {
          // k = 0, fewer gradients than partitions, fewer than 32 gradients per block: for no other reason.
          const std::string message = error.what();
          const bool known = message.find("trunc(density x gradients) >= 1") != std::string::npos ||
                             message.find("one gradient per partition") != std::string::npos ||
                             message.find("blocks are multiples of 32") != std::string::npos ||
                             message.find("one worker per block") != std::string::npos;
          CAPTURE(message);
          REQUIRE(known);
          REQUIRE((N == 1 || n > N || info.name == "exdyna"));
        }
      }
}

TEST_CASE("Vectors of zeros are replayed by every sparsifier") {
  for (const SparsifierInfo& info : sparsifiers()) {
    INFO(info.name);
    Json parameters = Json::object();
    if (info.name == "exdyna") parameters["blocks"] = 8;
    Replay replay(std::make_unique<MadeGradients>(
                      3, 600, [](std::int64_t, std::int64_t, std::vector<float>& g) { std::fill(g.begin(), g.end(), 0.0F); }),
                  matrices_and_vectors({{400, true}, {200, true}}), options_of(info.name, 0.01, 3, parameters));
    for (int t = 0; t < 3; ++t) {
      const Json record = replay.next();
      if (!info.dense) CHECK(record.at("energy_exchanged").is_null());
      CHECK(record.at("residual_norm").dump() == "[0.0,0.0,0.0]");
    }
  }
}

TEST_CASE("Random parameters, shapes and gradients are replayed or refused in one line") {
  Random random(stream_key(1, "random sparsifier tests"));
  int replayed = 0;
  for (int round = 0; round < 600; ++round) {
    const SparsifierInfo& info = sparsifiers()[random.below(sparsifiers().size())];
    Json parameters = Json::object();
    for (const Parameter& parameter : info.parameters) {
      if (random.below(2) == 0) continue;
      Json& value = parameters[parameter.name];
      if (parameter.schema.contains("enum"))
        value = parameter.schema.at("enum").at(random.below(parameter.schema.at("enum").size()));
      else if (parameter.default_value.is_boolean())
        value = random.below(2) == 0;
      else if (parameter.default_value.is_array())
        value = Json::array({Json::array({0, random.uniform()}), Json::array({2, 0.5})});
      else if (parameter.default_value.is_number_integer())
        value = static_cast<std::int64_t>(random.below(20)) - 3;
      else
        value = random.uniform() * 2 - 0.3;
    }
    const auto N = static_cast<std::int64_t>(1 + random.below(700)), n = static_cast<std::int64_t>(1 + random.below(20));
    std::vector<std::pair<std::int64_t, bool>> layers;
    for (std::int64_t left = N; left > 0; left -= layers.back().first)
      layers.emplace_back(std::min(left, static_cast<std::int64_t>(1 + random.below(200))), random.below(2) == 0);
    const std::uint64_t kind = random.below(4);
    auto source = std::make_unique<MadeGradients>(n, N, [=](std::int64_t t, std::int64_t worker, std::vector<float>& gradient) {
      Random own(
          stream_key(static_cast<std::uint64_t>(round), "gradient", {static_cast<std::uint64_t>(t), static_cast<std::uint64_t>(worker)}));
      for (float& x : gradient) {
        if (kind == 0) x = 0;
        if (kind == 1) x = static_cast<float>(own.below(3)) - 1;  // ties
        if (kind == 2) x = static_cast<float>(own.normal());
        if (kind == 3) x = static_cast<float>(std::pow(own.uniform() + 1e-9, -3) * 1e10);  // up to 1e37
      }
    });
    auto options = options_of(info.name, std::pow(10, -3 * random.uniform()), n, parameters);
    options.hashes = random.below(2) == 0;
    options.norms = random.below(2) == 0;
    options.error_feedback = random.below(4) != 0;
    INFO(info.name << " " << parameters.dump() << ", " << N << " gradients, " << n << " workers, kind " << kind);
    try {
      Replay replay(std::move(source), matrices_and_vectors(layers), options);
      for (int t = 0; t < 4; ++t) {
        const Json record = replay.next();
        REQUIRE(record.at("union").get<Index>() <= N);
        REQUIRE(work_to_json(work_from_json(record.at("work"), n), n) == record.at("work"));
      }
      ++replayed;
    } catch (const InputError& error) {
      REQUIRE(std::string(error.what()).find('\n') == std::string::npos);
    }
  }
  CHECK(replayed > 300);
}
