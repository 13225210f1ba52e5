// Each sparsifier on cases small enough to work out by hand, at its edges, and against the invariants of its rule.
#include <numeric>

#include "base/error.hpp"
#include "tests/catch.hpp"
#include "tests/sparsifier_support.hpp"

using namespace sparscale;
using namespace sparscale::sim;
using namespace sparscale::test;

namespace {

using Lists = std::vector<std::vector<Index>>;

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

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
  CHECK_THROWS_WITH(find_sparsifier("topkk"),
                    StartsWith("sparsifier: expected one of dense, dense_fp16, topk") && ContainsSubstring("found \"topkk\""));
}

TEST_CASE("Parameters are completed with defaults and refused by name, place and range") {
  const SparsifierInfo& micro = find_sparsifier("micro");
  CHECK(resolve_parameters(micro, Json::object(), "e.json", "/p").dump() == R"({"micro_rule":"code","index_bytes":8})");
  CHECK(resolve_parameters(micro, {{"index_bytes", 4}}, "e.json", "/p").dump() == R"({"micro_rule":"code","index_bytes":4})");
  const auto error = [&](const Json& given) { return message_of([&] { resolve_parameters(micro, given, "e.json", "/sparsifiers/0"); }); };
  CHECK(error({{"rule", "code"}}) ==
        "e.json: /sparsifiers/0/rule: expected one of the parameters micro_rule, index_bytes, found the unknown parameter \"rule\"");
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
      Replay replay(normal_gradients(n, N, 3), layers_of_sizes({N}), options_of(name, 0.02, n, parameters));
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
    const auto source = [&] { return normal_gradients(n, N, 5, [](std::int64_t, std::size_t i) { return i < 9000 ? 1.0 : 0.01; }); };
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
