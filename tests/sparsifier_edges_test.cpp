// Every sparsifier at its edges: k = 0, nothing selected, one worker, ties, tensors of zeros, non-finite gradients, any number of workers.
#include <limits>
#include <map>
#include <numeric>

#include "base/error.hpp"
#include "sim/sparsifiers/common.hpp"
#include "tests/catch.hpp"
#include "tests/sparsifier_support.hpp"

using namespace sparscale;
using namespace sparscale::sim;
using namespace sparscale::test;

namespace {

using Lists = std::vector<std::vector<Index>>;

// Ragged: a matrix, a bias, an empty tensor, one of a single element, ...
std::vector<traces::Layer> ragged_layers(std::int64_t scale) {
  std::vector<traces::Layer> layers = layers_of_sizes({scale, 3, 0, 1, 5 * scale, 17, 2 * scale + 1, 2});
  for (traces::Layer& layer : layers)
    if (layer.size >= scale) layer.shape = {layer.size, 1};
  return layers;
}

std::int64_t gradients_of(const std::vector<traces::Layer>& layers) { return layers.back().offset + layers.back().size; }

Json small_blocks(const std::string& name) { return name == "exdyna" ? Json{{"blocks", 70}} : Json::object(); }

std::uint64_t bytes_of_entries(const Json& record) {
  std::uint64_t sum = 0;
  for (const Json& call : record.at("exchange"))
    if (call.at("payload") == "values" || call.at("payload") == "indices")
      for (const std::uint64_t bytes :
           CollectiveCall::from_json(call, record.at("workers").get<std::int64_t>()).bytes_of_all(record.at("workers").get<std::int64_t>()))
        sum += bytes;
  return sum;
}

}  // namespace

TEST_CASE("k = 0 is an empty exchange, one gradient, or refused, as each sparsifier says") {
  // trunc(0.0001 x 3000) = 0.
  const auto layers = ragged_layers(372);
  const std::int64_t N = gradients_of(layers), n = 3;
  REQUIRE(N == 3000);
  const std::set<std::string> refused = {"hard_threshold", "sage", "micro", "exdyna", "oktopk"}, empty = {"topk", "cltk"},
                              by_tensor = {"grace_topk", "accordion", "dgc", "deft"}, one = {"global_topk", "gtopk", "random_k"};
  std::size_t seen = 0;
  for (const SparsifierInfo& info : sparsifiers()) {
    INFO(info.name);
    const auto make = [&] { return Replay(normal_gradients(n, N, 3), layers, options_of(info.name, 0.0001, n, small_blocks(info.name))); };
    if (refused.contains(info.name)) {
      ++seen;
      CHECK_THAT(message_of([&] { make(); }), StartsWith("density: expected trunc(density x gradients) >= 1 for ") &&
                                                  ContainsSubstring("found trunc(1e-04 x 3000) = 0"));
      continue;
    }
    Replay replay = make();
    const Json record = replay.next();
    if (empty.contains(info.name)) {
      ++seen;
      CHECK(record.at("union") == 0);
      CHECK(record.at("selected_sum") == 0);
      CHECK(bytes_of_entries(record) == 0);
      const double norm = record.at("residual_norm").at(0).get<double>();
      CHECK(replay.next().at("residual_norm").at(0).get<double>() > norm);  // nothing is lost
    }
    if (by_tensor.contains(info.name)) {
      ++seen;
      CHECK(record.at("union").get<Index>() >= 3);  // at least one of every (matrix) tensor
    }
    if (one.contains(info.name)) {
      ++seen;
      for (const Json& count : record.at("selected")) CHECK(count == 1);
    }
  }
  CHECK(seen == refused.size() + empty.size() + by_tensor.size() + one.size());
}

TEST_CASE("Where no worker selects anything the exchange is empty and every residual stays") {
  const auto layers = ragged_layers(40);
  const std::int64_t N = gradients_of(layers), n = 5;
  // A threshold above everything; SAGE's is rescaled only from the second iteration on.
  for (const auto& [name, parameters] :
       std::vector<std::pair<std::string, Json>>{{"hard_threshold", {{"threshold", 1e9}}},
                                                 {"hard_threshold", {{"threshold", 1e9}, {"generation", "2023a"}}},
                                                 {"sage", {{"threshold", 1e9}}},
                                                 {"sage", {{"threshold", 1e9}, {"generation", "2023a"}}},
                                                 {"grace_threshold", {{"threshold", 1e9}, {"variant", "horovod"}}}}) {
    INFO(name << " " << parameters.dump());
    Replay replay(normal_gradients(n, N, 3), layers, options_of(name, 0.01, n, parameters));
    const Json record = replay.next();
    CHECK(record.at("union") == 0);
    CHECK(record.at("selected").dump() == "[0,0,0,0,0]");
    CHECK(bytes_of_entries(record) == 0);
    CHECK(record.at("padding").is_null());
    for (const Json& norm : record.at("residual_norm")) CHECK(norm.get<double>() == Approx(std::sqrt(N)).epsilon(0.2));
    CHECK(record.at("energy_exchanged") == 0.0);
    if (name != "sage") CHECK(replay.next().at("union") == 0);
  }
}

TEST_CASE("Workers that select nothing take part with what the exchange still asks of them") {
  // Worker 1 has only zeros.
  const auto layers = ragged_layers(40);
  const std::int64_t N = gradients_of(layers), n = 3;
  std::vector<std::vector<float>> values(3, std::vector<float>(static_cast<std::size_t>(N), 0.0F));
  for (const std::size_t worker : {0, 2}) {
    Random random(stream_key(9, "some empty", {worker}));
    for (float& x : values[worker]) x = static_cast<float>(random.normal());
  }
  for (const auto& [name, parameters] :
       std::vector<std::pair<std::string, Json>>{{"hard_threshold", {{"threshold", 2.0}}},
                                                 {"sage", {{"threshold", 2.0}}},
                                                 {"sidco", Json::object()},
                                                 {"sidco", {{"stages", 3}, {"fit", "gamma_pareto"}}},
                                                 {"gaussiank", Json::object()},
                                                 {"gaussiank", {{"variant", "ok"}}},
                                                 {"grace_threshold", {{"threshold", 2.0}, {"variant", "horovod"}}}}) {
    INFO(name << " " << parameters.dump());
    const Selection s = Small(name, parameters, 0.05, n, {N}).select(0, values);
    CHECK(s.selected[1].empty());
    CHECK(s.selected[0].size() > 3);
    CHECK(s.exchanged == kernels::cpu_kernels().unite(s.selected, N));
    for (const CollectiveCall& call : s.exchange) {
      if (!call.bytes_unpadded.empty()) CHECK(call.bytes_unpadded[1] == 0);  // padded with something
      if (call.operation == Operation::all_gather && std::ssize(call.bytes) == n) CHECK(call.bytes[1] == 0);
    }
  }
  // gkfork lowers its threshold towards 0, which zeros are never above.
  CHECK(Small("gaussiank", {{"variant", "gkfork"}}, 0.05, n, {N}).select(0, values).selected[1].empty());
}

TEST_CASE("One worker exchanges with itself by the same rules") {
  // MiCRO and ExDyna: the count goes back into the threshold; the whole vector is the only partition.
  for (const std::string name : {"micro", "exdyna"}) {
    INFO(name);
    Small one(name, name == "exdyna" ? Json{{"blocks", 2}} : Json::object(), 0.1, 1, {100});
    std::vector<float> values(100, 0.0F);
    std::fill_n(values.begin(), 20, 9.0F);
    Selection s = one.select(0, {values});
    CHECK(s.selected.front().size() == 20);
    CHECK(s.details.at("range_of_worker").dump() == "[[0,100]]");
    const double first = s.threshold.front();
    s = one.select(1, {values});
    CHECK(s.threshold.front() == first * 1.005);
  }
  // DEFT: the tensor of norm 9 gets trunc(4 x 9/10) = 3 > 2, so it goes whole, to the common list; the other one its single place.
  const Selection deft = Small("deft", Json::object(), 0.5, 1, {2, 6}).select(0, {{9, 0, 1, 0, 0, 0, 0, 0}});
  CHECK(deft.details.at("common_fragments").dump() == "[0]");
  CHECK(deft.exchanged.size() == 2 + 2);
  CHECK(deft.exchanged[0] == 0);
  CHECK(deft.exchanged[1] == 1);
  // gTop-k and Ok-Topk: nothing to merge.
  CHECK(Small("gtopk", Json::object(), 0.5, 1, {4}).select(0, {{1, -3, 2, 0}}).exchanged == std::vector<Index>{1, 2});
  const Selection ok = Small("oktopk", Json::object(), 0.5, 1, {4}).select(0, {{1, -3, 2, 0}});
  CHECK(ok.selected == Lists{{1}});  // strictly above the second largest
  CHECK(ok.exchanged == std::vector<Index>{1});
  CHECK(ok.exchange.front().payload == "counts");  // no boundaries
}

TEST_CASE("Ties go to the lower index in every top-k, and are all in or all out of a threshold") {
  const std::vector<float> equal = {1, -1, 1, 1, -1, 1, 1, 1};
  for (const std::string name : {"topk", "global_topk", "gtopk", "cltk", "grace_topk", "accordion", "deft", "dgc"}) {
    INFO(name);
    Json parameters = Json::object();
    if (name == "accordion") parameters["density_high"] = 0.25;
    const Selection s = Small(name, parameters, 0.25, 1, {8}).select(0, {equal});
    if (name == "dgc")  // one-dimensional here: dense
      CHECK(s.selected.front().size() == 8);
    else
      CHECK(s.selected.front() == std::vector<Index>{0, 1});
  }
  CHECK(Small("hard_threshold", {{"threshold", 1.0}}, 0.25, 1, {8}).select(0, {equal}).selected.front().size() == 8);
  CHECK(Small("grace_threshold", {{"threshold", 1.0}, {"variant", "horovod"}}, 0.25, 1, {8}).select(0, {equal}).selected.front().empty());
  CHECK(Small("oktopk", Json::object(), 0.25, 1, {8}).select(0, {equal}).selected.front().empty());  // none is above the second largest
  // DGC on a matrix: too many are at the threshold, the first two by position are left.
  auto layers = layers_of_sizes({1000});
  layers.front().shape = {100, 10};
  Replay dgc(std::make_unique<MadeGradients>(
                 1, 1000, [](std::int64_t, std::int64_t, std::vector<float>& g) { std::fill(g.begin(), g.end(), 1.0F); }),
             layers, options_of("dgc", 0.01, 1));
  CHECK(dgc.next().at("selected").dump() == "[10]");
}

TEST_CASE("Tensors of zeros are no trouble beside others") {
  const auto layers = ragged_layers(280);
  const std::int64_t N = gradients_of(layers), n = 4;
  const auto source = [&] {
    return normal_gradients(n, N, 5, [&](std::int64_t, std::size_t i) {
      return static_cast<Index>(i) < layers[4].offset || static_cast<Index>(i) >= layers[4].offset + layers[4].size ? 1.0 : 0.0;
    });
  };
  for (const SparsifierInfo& info : sparsifiers()) {
    if (info.dense) continue;
    std::vector<Json> variants = {small_blocks(info.name)};
    const bool scoped = std::any_of(info.parameters.begin(), info.parameters.end(), [](const Parameter& p) { return p.name == "scope"; });
    if (scoped) variants.push_back({{"scope", "layer"}});
    if (info.name == "sidco")
      for (const char* fit : {"pareto", "gamma_pareto"}) variants.push_back({{"scope", "layer"}, {"fit", fit}, {"stages", 3}});
    if (info.name == "gaussiank")
      for (const char* variant : {"ok", "gkfork"}) variants.push_back({{"scope", "layer"}, {"variant", variant}});
    if (info.name == "accordion") variants.push_back({{"variant", "original"}});
    for (const Json& parameters : variants) {
      INFO(info.name << " " << parameters.dump());
      Replay replay(source(), layers, options_of(info.name, 0.02, n, parameters));
      for (int t = 0; t < 4; ++t) {
        const Json record = replay.next();
        REQUIRE(record.at("union").get<Index>() > 0);
        for (const Json& norm : record.at("residual_norm")) REQUIRE(norm.is_number());
        REQUIRE(record.at("energy_exchanged").is_number());
        if (record.at("threshold").is_array())
          for (const Json& threshold : record.at("threshold")) REQUIRE(threshold.is_number());
      }
    }
  }
}

TEST_CASE("Non-finite gradients are refused with iteration, worker and layer, by every sparsifier that reads them") {
  const auto layers = ragged_layers(280);
  const std::int64_t N = gradients_of(layers), n = 3;
  for (const SparsifierInfo& info : sparsifiers())
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      if (info.dense) continue;
      INFO(info.name);
      Replay replay(std::make_unique<MadeGradients>(n, N,
                                                    [=](std::int64_t t, std::int64_t worker, std::vector<float>& g) {
                                                      std::fill(g.begin(), g.end(), 1.0F);
                                                      if (t == 1 && worker == 2) g[static_cast<std::size_t>(layers[4].offset) + 5] = bad;
                                                    }),
                    layers, options_of(info.name, 0.02, n, small_blocks(info.name)));
      replay.next();
      CHECK_THAT(message_of([&] { replay.next(); }),
                 StartsWith("gradients: iteration 1, worker 2, layer layer4: expected finite gradients, found ") &&
                     ContainsSubstring("at gradient " + std::to_string(layers[4].offset + 5)));
    }
}

TEST_CASE("Accumulators that overflow end in a record or one line, never in a crash") {
  const auto layers = ragged_layers(280);
  const std::int64_t N = gradients_of(layers);
  for (const SparsifierInfo& info : sparsifiers()) {
    INFO(info.name);
    Replay replay(std::make_unique<MadeGradients>(
                      2, N, [](std::int64_t, std::int64_t, std::vector<float>& g) { std::fill(g.begin(), g.end(), 3e38F); }),
                  layers, options_of(info.name, 0.02, 2, small_blocks(info.name)));
    const std::string message = message_of([&] {
      for (int t = 0; t < 3; ++t) {
        const Index united = replay.next().at("union").get<Index>();
        if (united > N) throw InputError("union", "at most N", std::to_string(united));
      }
    });
    CHECK((message == "no error" || message.find("finite") != std::string::npos));
  }
}

TEST_CASE("ExDyna at the sizes of small models: one warp per block and the remainder in the last partition") {
  // N = 34,200: blocks of 32, 1,432 left over. N = 65,535: still blocks of 32, half of the vector is left over. N = 32,767: no block.
  for (const auto& [N, remainder] : std::vector<std::pair<std::int64_t, Index>>{{34200, 1432}, {34862, 2094}, {65535, 32767}, {32768, 0}}) {
    INFO(N);
    Replay replay(pooled_gradients(5, N, 3), layers_of_sizes({N}), options_of("exdyna", 0.01, 5));
    for (int t = 0; t < 6; ++t) {
      const Json record = replay.next();
      CHECK(record.at("block_size") == 32);
      CHECK(record.at("block_remainder") == remainder);
      auto ranges = record.at("range_of_worker").get<std::vector<std::pair<Index, Index>>>();
      std::sort(ranges.begin(), ranges.end());
      CHECK(ranges.back().second - ranges.back().first >= remainder);
      CHECK(ranges.back().second == N);
    }
  }
  CHECK_THAT(message_of([] { Small("exdyna", Json::object(), 0.01, 5, {32767}); }),
             StartsWith("blocks: expected at most gradients / 32 = 1023 blocks for exdyna"));
}

TEST_CASE("Unions, partitions and densities hold for every number of workers from 1 to 65") {
  const auto layers = ragged_layers(284);
  const std::int64_t N = gradients_of(layers);
  for (const SparsifierInfo& info : sparsifiers())
    for (std::int64_t n = 1; n <= 65; ++n) {
      INFO(info.name << " with " << n << " workers");
      auto options = options_of(info.name, 0.03, n, small_blocks(info.name));
      options.norms = false;
      Replay replay(pooled_gradients(n, N, 11, 4), layers, options);
      for (int t = 0; t < 2; ++t) {
        const Json record = replay.next();
        const auto selected = record.at("selected").get<std::vector<Index>>();
        const Index sum = std::accumulate(selected.begin(), selected.end(), Index{0});
        const Index largest = *std::max_element(selected.begin(), selected.end()), united = record.at("union");
        const Index k = record.at("target_k");
        REQUIRE(record.at("selected_sum") == sum);
        if (!info.dense && info.name != "deft") REQUIRE(united <= sum);  // deft adds fragments that go whole
        if (info.name != "gtopk" && info.name != "oktopk") REQUIRE(united >= largest);
        if (info.name == "topk") REQUIRE((sum == n * k && united >= k));
        if (info.name == "cltk" || info.name == "gtopk") REQUIRE(united == k);
        if (info.name == "deft") {
          const std::size_t fragments = [&] {
            std::size_t count = record.at("common_fragments").size();
            for (const Json& bin : record.at("bins")) count += bin.size();
            return count;
          }();
          REQUIRE(fragments >= static_cast<std::size_t>(n));
          REQUIRE(united >= static_cast<Index>(fragments));  // at least one each
        }
        if (info.name == "micro" || info.name == "exdyna") {
          REQUIRE(united == sum);
          REQUIRE(sum >= n);
          auto ranges = record.at("range_of_worker").get<std::vector<std::pair<Index, Index>>>();
          std::sort(ranges.begin(), ranges.end());
          Index end = 0;
          for (const auto& [begin, next] : ranges) {
            REQUIRE(begin == end);
            REQUIRE(next > begin);
            end = next;
          }
          REQUIRE(end == N);
        }
      }
    }
}

TEST_CASE("DEFT sends 0.98 to 1.06 of k on any number of workers while k is much larger than the fragments") {
  for (std::int64_t n = 1; n <= 65; n += n < 9 ? 1 : 7) {
    INFO(n << " workers");
    const auto layers = layers_of_sizes({20000, 300, 10000, 25000, 100, 4600});
    auto options = options_of("deft", 0.1, n);
    options.norms = false;
    Replay replay(pooled_gradients(n, 60000, 4, 8), layers, options);
    for (int t = 0; t < 2; ++t) {
      const double ratio = replay.next().at("build_up").get<double>();
      CHECK(ratio > 0.98);
      CHECK(ratio < 1.06);
    }
  }
}
