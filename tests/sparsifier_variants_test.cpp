// The variants and options of single sparsifiers, on cases worked out by hand; the reference page.
#include <cmath>
#include <map>
#include <numeric>

#include "base/error.hpp"
#include "base/files.hpp"
#include "sim/sparsifiers/common.hpp"
#include "tests/catch.hpp"
#include "tests/command.hpp"
#include "tests/sparsifier_support.hpp"

using namespace sparscale;
using namespace sparscale::sim;
using namespace sparscale::test;

namespace {

using Lists = std::vector<std::vector<Index>>;

std::unique_ptr<traces::GradientSource> constant(std::int64_t workers, const std::vector<float>& gradient) {
  return std::make_unique<MadeGradients>(workers, std::ssize(gradient),
                                         [=](std::int64_t, std::int64_t, std::vector<float>& g) { g = gradient; });
}

double norm_of(const Json& record) { return record.at("residual_norm").at(0).get<double>(); }

std::vector<traces::Layer> matrix_and_vector(std::int64_t matrix, std::int64_t vector) {
  auto layers = layers_of_sizes({matrix, vector});
  layers.front().shape = {matrix, 1};
  return layers;
}

void make_small(const std::string& name, const Json& parameters) { Small(name, parameters, 0.25, 2, {100}); }

}  // namespace

TEST_CASE("The reference page holds what the program prints about every sparsifier") {
  const std::string page = read_file(std::string(SPARSCALE_SOURCE_DIRECTORY) + "/docs/sparsifiers.md");
  INFO("bring docs/sparsifiers.md up to date: scripts/update-reference.sh PATH-TO/sparscale");
  CHECK(page.find("\n```text\n" + sparsifier_reference() + "```\n") != std::string::npos);
  const tests::CommandResult printed = tests::run_program("list sparsifiers");
  CHECK(printed.status == 0);
  CHECK(printed.out == sparsifier_reference());
}

TEST_CASE("Gaussian-k's fork takes the few and goes on among the others") {
  // k = 4 of 20: mean 0.95, sd 2.37, z 1.28: threshold 3.99 takes the 10; 1 < 8/3, so 0.399 among the others: three more.
  std::vector<float> values(20, 0.0F);
  values[7] = 10;
  values[3] = values[12] = -3;
  values[19] = 3;
  Small fork("gaussiank", {{"variant", "gkfork"}}, 0.2, 1, {20});
  CHECK(fork.select(0, {values}).selected == Lists{{3, 7, 12, 19}});
  // All equal: sd 0, none above; a tenth of it: all eight, which is too many for k = 2; twice that and so on up to 0.8 and 1.6, and again
  // a tenth: 0.16 ... 1.28: after a hundred tests the candidates of the last too large one stay, if it was the last.
  const auto stuck = Small("gaussiank", {{"variant", "gkfork"}}, 0.25, 1, {8}).select(0, {std::vector<float>(8, 1.0F)});
  CHECK((stuck.selected.front().empty() || stuck.selected.front().size() == 8));
}

TEST_CASE("Gaussian-k as in Ok-Topk takes up to twenty steps in one direction and uses the last one") {
  // k = 2: at least 1, at most 2. All equal: none is above the mean, one step down all are, and there it stops.
  CHECK(Small("gaussiank", {{"variant", "ok"}}, 0.5, 1, {4}).select(0, {{1, 1, 1, 1}}).selected == Lists{{0, 1, 2, 3}});
  // k = 4: at least 3. mean 1.25, sd sqrt(12.5): one above 3.63; still one after twenty steps.
  const Selection s = Small("gaussiank", {{"variant", "ok"}}, 0.5, 1, {8}).select(0, {{10, 0, 0, 0, 0, 0, 0, 0}});
  CHECK(s.selected == Lists{{0}});
  CHECK(s.threshold.front() == Approx((1.25 + 0.6744898 * std::sqrt(12.5)) / std::pow(1.02, 20)).epsilon(1e-6));
  CHECK(std::count_if(s.work.front().begin(), s.work.front().end(), [](const KernelWork& w) { return w.operation == "count"; }) == 21);
}

TEST_CASE("DGC clips the gradient of a sparse tensor before it is accumulated") {
  // Norm 5 becomes 1: {0.6, 0.8}; the larger is sent. The vector is left alone, and so is a gradient below the limit.
  const auto run = [](double clip_norm) {
    auto options = options_of("dgc", 0.25, 1, {{"momentum", 0.0}, {"clip_norm", clip_norm}});
    return Replay(constant(1, {3, 4, 0, 0, 7, 7}), matrix_and_vector(4, 2), options);
  };
  Replay clipped = run(1);
  Json record = clipped.next();
  CHECK(norm_of(record) == Approx(0.6).epsilon(1e-6));
  CHECK(record.at("energy_exchanged").get<double>() == Approx((0.64 + 98) / (1 + 98)).epsilon(1e-6));
  CHECK(norm_of(clipped.next()) == Approx(0.8).epsilon(1e-6));  // 1.2 is sent, 0.8 stays
  CHECK(norm_of(run(10).next()) == Approx(3.0).epsilon(1e-12));
  CHECK(norm_of(run(0).next()) == Approx(3.0).epsilon(1e-12));
}

TEST_CASE("SIDCo without residual takes the authors' approximation of the gamma quantile") {
  const double mean = 2.5, s = std::log(mean) - (std::log(2.0) + std::log(3.0) + std::log(4.0)) / 4;
  const double shape = (3 - s + std::sqrt((s - 3) * (s - 3) + 24 * s)) / (12 * s);
  Small plain("sidco", {{"fit", "gamma_pareto"}, {"residual", false}}, 0.01, 1, {4});
  Selection found = plain.select(0, {{1, -2, 3, 4}});
  CHECK(found.threshold.front() == Approx(-mean / shape * (std::log(0.01) + std::lgamma(shape))).epsilon(1e-6));
  CHECK(found.residual == Residual::cleared);
  // With residual it is the quantile itself, 0.99 of a gamma distribution of about shape 4.26 and scale 0.587: above all four.
  found = Small("sidco", {{"fit", "gamma_pareto"}}, 0.01, 1, {4}).select(0, {{1, -2, 3, 4}});
  CHECK(found.selected == Lists{{}});
  CHECK(found.threshold.front() > 5);
}

TEST_CASE("SIDCo's first ratio and the weights of its memory") {
  // Two stages, d = 0.125, first ratio 0.5: 2.5 ln 2 = 1.73 leaves {2, 3, 4}; minimum 2, mean 3, ratio 0.25: 2 + ln 4 = 3.386.
  Small two("sidco", {{"stages", 2}, {"first_ratio", 0.5}}, 0.125, 1, {4});
  Selection s = two.select(0, {{1, -2, 3, 4}});
  CHECK(s.threshold.front() == Approx(2 + std::log(4.0)).epsilon(1e-6));
  CHECK(s.selected == Lists{{3}});
  // stages = 0, second stage in steps of 0.5: 0.25 is two of them: 2 + ln 2 = 2.69 leaves {3, 4}; minimum 3, mean 3.5: 3 + 0.5 ln 2.
  Small steps("sidco", {{"stages", 0}, {"first_ratio", 0.5}, {"stage_ratio", 0.5}}, 0.125, 1, {4});
  CHECK(steps.select(0, {{1, -2, 3, 4}}).threshold.front() == Approx(3 + 0.5 * std::log(2.0)).epsilon(1e-6));

  // e' = a / 2 + e / 4 where nothing was sent. a0 = {1, -2, 3, 4}: 1 is below 2.5 ln 2: e = 0.5. a1 = 1.5: e = 0.75 + 0.125.
  Replay weighted(constant(1, {1, -2, 3, 4}), layers_of_sizes({4}),
                  options_of("sidco", 0.5, 1, {{"gradient_weight", 0.5}, {"memory_weight", 0.25}}));
  CHECK(norm_of(weighted.next()) == Approx(0.5).epsilon(1e-12));
  CHECK(norm_of(weighted.next()) == Approx(0.875).epsilon(1e-12));
  Replay scaled(constant(1, {1, -2, 3, 4}), layers_of_sizes({4}), options_of("sidco", 0.5, 1, {{"gradient_weight", 0.5}}));
  CHECK(norm_of(scaled.next()) == Approx(0.5).epsilon(1e-12));
  CHECK(norm_of(scaled.next()) == Approx(0.75).epsilon(1e-12));
}

TEST_CASE("GRACE's memory weighs residual and gradient") {
  // a = e / 2 + 2 g: {8, 4}: 8 is sent; {8, 6}: e = {0, 6}; {8, 7}.
  for (const auto& [name, more] :
       std::vector<std::pair<std::string, Json>>{{"grace_topk", Json::object()}, {"grace_threshold", {{"threshold", 7.5}}}}) {
    INFO(name);
    Json parameters = more;
    parameters["beta"] = 0.5;
    parameters["gamma"] = 2.0;
    Replay replay(constant(1, {4, 2}), layers_of_sizes({2}), options_of(name, 0.5, 1, parameters));
    for (const double expected : {4.0, 6.0, 7.0}) CHECK(norm_of(replay.next()) == Approx(expected).epsilon(1e-12));
  }
}

TEST_CASE("The original Accordion decides by the gradients of an epoch, after it, and keeps no residual") {
  // A matrix of 16 (norms are then exact), a vector of 4. An epoch is 2 iterations, decisions after every second epoch: at the ends of
  // iterations 1, 5, 9, 13. Sums over the epochs: 2, 2, 3, 3.2: changes 0, exactly half, 0.07.
  auto options = options_of("accordion", 0.125, 2,
                            {{"variant", "original"}, {"switch_iterations", 4}, {"epoch_iterations", 2}, {"density_high", 0.5}});
  Replay replay(std::make_unique<MadeGradients>(2, 20,
                                                [](std::int64_t t, std::int64_t worker, std::vector<float>& g) {
                                                  const float own = t < 6 ? 1.0F : t < 10 ? 1.5F : 1.6F;
                                                  std::fill(g.begin(), g.end(), worker == 0 ? own : 100.0F);
                                                }),
                matrix_and_vector(16, 4), options);
  std::vector<Index> k;
  for (int t = 0; t < 16; ++t) {
    const Json record = replay.next();
    k.push_back(record.at("target_k").get<Index>());
    CHECK(record.at("residual_norm").dump() == "[0.0,0.0]");
    const bool decides = t % 4 == 1;
    CHECK(record.at("exchange").size() == (decides ? 4U : 3U));
    if (t == 1)
      CHECK(record.at("exchange").dump() == R"([{"op":"all_gather","payload":"indices","dtype":"int64","bytes":64,"index_range":16},)"
                                            R"({"op":"all_gather","payload":"values","dtype":"float32","bytes":32},)"
                                            R"({"op":"all_reduce","payload":"gradient","dtype":"float32","bytes":16},)"
                                            R"({"op":"broadcast","payload":"plan","dtype":"float32","bytes":8,"root":0}])");
  }
  // 8 or 2 of the matrix, and the vector.
  CHECK(k == std::vector<Index>{12, 12, 12, 12, 12, 12, 6, 6, 6, 6, 12, 12, 12, 12, 6, 6});
  const auto refused = [] {
    Small("accordion", {{"variant", "original"}, {"switch_iterations", 4}, {"epoch_iterations", 5}}, 0.1, 1, {10});
  };
  CHECK_THROWS_WITH(refused(), "epoch_iterations: expected at most switch_iterations = 4, found 5");
}

TEST_CASE("DGC after GRACE samples with replacement, corrects by 1.3 and 0.7, cuts nothing and takes vectors too") {
  const auto selected = [](const std::vector<float>& gradient, const Json& more = Json::object()) {
    Json parameters = {{"variant", "grace"}, {"momentum", 0.0}};
    parameters.update(more);
    Replay replay(constant(2, gradient), layers_of_sizes({std::ssize(gradient)}), options_of("dgc", 0.25, 2, parameters));
    return replay.next();
  };
  // One sample of 100 (1 %). 30 of value 2, 70 of value 1.6. Sampled 2: 30 pass, no more than 1.3 x 25. Sampled 1.6: 100 pass, 2.08: none,
  // 1.456: 100, 1.8928: 30.
  std::vector<float> two(100, 1.6F);
  std::fill_n(two.begin() + 40, 30, -2.0F);
  Json record = selected(two);
  CHECK(record.at("selected").dump() == "[30,30]");
  CHECK(record.at("dense_elements") == 0);  // a vector is sparse as well
  CHECK(record.at("exchange").dump() == R"([{"op":"all_gather","payload":"counts","dtype":"int64","bytes":16},)"
                                        R"({"op":"all_gather","payload":"values","dtype":"float32","bytes":120,"bytes_unpadded":120},)"
                                        R"({"op":"all_gather","payload":"indices","dtype":"int64","bytes":240,"bytes_unpadded":240}])");
  CHECK(norm_of(record) == Approx(1.6 * std::sqrt(70.0)).epsilon(1e-6));
  // All alike: 1 passes all, then 1.3 none, 0.91 all, 1.183 none, 0.828 all, 1.077 none, 0.754 all, 0.980 all, 1.274 none, 0.891 all, and
  // after the tenth correction 1.159: none.
  CHECK(selected(std::vector<float>(100, 1.0F)).at("selected").dump() == "[0,0]");
  // Every element a sample of 40,000 places: the 10,000th largest of them is near the quantile.
  std::vector<float> ramp(40000);
  std::iota(ramp.begin(), ramp.end(), 1.0F);
  record = selected(ramp, {{"sample_ratio", 1.0}});
  for (const Json& count : record.at("selected")) CHECK(count.get<double>() == Approx(10000).epsilon(0.05));
  CHECK_THROWS_WITH(make_small("dgc", {{"variant", "grace"}, {"clip_norm", 1.0}}),
                    ContainsSubstring("clip_norm: expected 0 with variant grace, found 1"));
}

TEST_CASE("TopkDSA sums regions and gathers all sums, densely when there are many") {
  // N = 8, n = 2, k = 2, regions of 4. Index 3 of worker 1 goes to worker 0. Sums at 0, 1, 3 and 6: 8 floats of pairs > 16/3: dense.
  const auto dsa = [](std::int64_t N) { return Small("topk_dsa", Json::object(), 2.5 / static_cast<double>(N), 2, {N}); };
  const auto widened = [](std::int64_t N, std::vector<float> values) {
    values.resize(static_cast<std::size_t>(N), 0.0F);
    return values;
  };
  const std::vector<float> first = {5, 4, 0, 0, 0, 0, 1, 0}, second = {0, 0, 0, -5, 0, 0, 7, 0};
  Selection s = dsa(8).select(0, {first, second});
  CHECK(s.selected == Lists{{0, 1}, {3, 6}});
  CHECK(s.exchanged == std::vector<Index>{0, 1, 3, 6});
  CHECK(s.threshold == std::vector<double>{4, 5});
  CHECK(s.contribution == Contribution::at_own_selection);
  CHECK(s.details.dump() == R"({"region_received":[3,1],"dense_gather":true})");
  const auto bytes = [](const Selection& selection, std::size_t call) { return selection.exchange.at(call).bytes; };
  using Bytes = std::vector<std::uint64_t>;
  REQUIRE(s.exchange.size() == 4);
  CHECK(s.exchange[0].operation == Operation::all_to_all);
  CHECK(bytes(s, 0) == Bytes{4});
  CHECK(s.exchange[1].operation == Operation::all_to_all);
  CHECK(bytes(s, 1) == Bytes{0, 8});
  CHECK(bytes(s, 2) == Bytes{4});
  CHECK(s.exchange[3].payload == "gradient");
  CHECK(bytes(s, 3) == Bytes{16, 16});
  // N = 9: the last region has one more. N = 11: 12 > 11, still dense. N = 12: 12 is not more than 12.
  CHECK(bytes(dsa(9).select(0, {widened(9, first), widened(9, second)}), 3) == Bytes{16, 20});
  CHECK(bytes(dsa(11).select(0, {widened(11, first), widened(11, second)}), 3) == Bytes{20, 24});
  s = dsa(12).select(0, {widened(12, first), widened(12, second)});
  CHECK(s.exchange[3].payload == "values");
  CHECK(bytes(s, 3) == Bytes{24, 8});  // 0, 1 and 3; 6
  CHECK(bytes(s, 1) == Bytes{0, 8});
  CHECK(s.details.at("dense_gather") == false);
  // One worker: its own region is everything.
  s = Small("topk_dsa", Json::object(), 0.2, 1, {10}).select(0, {widened(10, first)});
  CHECK(bytes(s, 1) == Bytes{0});
  CHECK(bytes(s, 3) == Bytes{16});
  // k = 0: nothing is sent but sizes.
  s = Small("topk_dsa", Json::object(), 0.01, 2, {10}).select(0, {widened(10, first), widened(10, second)});
  CHECK(s.exchanged.empty());
  CHECK(bytes(s, 3) == Bytes{0, 0});
}

TEST_CASE("By layer, CLT-k, gTop-k and Ok-Topk do in each layer what they do in a vector of its own") {
  const std::vector<std::int64_t> sizes = {900, 40, 2000};
  const std::int64_t n = 5;
  const auto whole = std::shared_ptr<traces::GradientSource>(normal_gradients(n, 2940, 8));
  const auto part = [&](std::int64_t begin, std::int64_t size) {
    return std::make_unique<MadeGradients>(n, size, [=](std::int64_t t, std::int64_t worker, std::vector<float>& g) {
      const std::span<const float> all = whole->gradient(t, worker);
      std::copy(all.begin() + begin, all.begin() + begin + size, g.begin());
    });
  };
  for (const auto& [name, more] : std::vector<std::pair<std::string, Json>>{{"cltk", {{"residual_filter", 0.3}}},
                                                                            {"cltk", {{"cltk_mode", "leader_only"}}},
                                                                            {"gtopk", Json::object()},
                                                                            {"topk_dsa", Json::object()},
                                                                            {"oktopk", {{"variant", "vgg"}, {"dense_iterations", 1}}}}) {
    INFO(name << " " << more.dump());
    Json by_layer = more;
    by_layer["scope"] = "layer";
    Replay together(part(0, 2940), layers_of_sizes(sizes), options_of(name, 0.03, n, by_layer));
    std::vector<std::unique_ptr<Replay>> apart;
    std::int64_t begin = 0;
    for (const std::int64_t size : sizes) {
      apart.push_back(std::make_unique<Replay>(part(begin, size), layers_of_sizes({size}), options_of(name, 0.03, n, more)));
      begin += size;
    }
    for (int t = 0; t < 40; ++t) {
      const Json all = together.next();
      std::vector<Index> selected(static_cast<std::size_t>(n), 0);
      std::vector<double> squares(static_cast<std::size_t>(n), 0);
      Index united = 0, target_k = 0;
      Json exchange = Json::array();
      for (std::size_t p = 0; p < apart.size(); ++p) {
        const Json one = apart[p]->next();
        united += one.at("union").get<Index>();
        target_k += one.at("target_k").get<Index>();
        for (std::size_t worker = 0; worker < selected.size(); ++worker) {
          selected[worker] += one.at("selected").at(worker).get<Index>();
          squares[worker] += std::pow(one.at("residual_norm").at(worker).get<double>(), 2);
        }
        for (Json call : one.at("exchange")) {
          if (!call.contains("index_range")) call["index_range"] = sizes[p];  // in a part, indices are of the part
          call["piece"] = p;
          exchange.push_back(std::move(call));
        }
      }
      REQUIRE(all.at("union") == united);
      REQUIRE(all.at("target_k") == target_k);
      REQUIRE(all.at("selected").get<std::vector<Index>>() == selected);
      REQUIRE(all.at("exchange") == exchange);
      REQUIRE(all.at("piece_sizes") == sizes);
      for (std::size_t worker = 0; worker < selected.size(); ++worker)
        REQUIRE(all.at("residual_norm").at(worker).get<double>() == Approx(std::sqrt(squares[worker])).epsilon(1e-9));
    }
  }
  // Top-k by layer, with one exchange for all layers or one for each: the same is selected and sent.
  Replay fused(part(0, 2940), layers_of_sizes(sizes), options_of("topk", 0.03, n, {{"scope", "layer"}}));
  Replay apart(part(0, 2940), layers_of_sizes(sizes), options_of("topk", 0.03, n, {{"scope", "layer"}, {"fused", false}}));
  for (int t = 0; t < 5; ++t) {
    const Json one = fused.next(), three = apart.next();
    CHECK(one.at("selected") == three.at("selected"));
    CHECK(one.at("union") == three.at("union"));
    CHECK(one.at("residual_norm") == three.at("residual_norm"));
    REQUIRE(one.at("exchange").size() == 2);
    REQUIRE(three.at("exchange").size() == 6);
    std::map<std::string, std::uint64_t> bytes;
    for (const Json& call : three.at("exchange")) bytes[call.at("payload").get<std::string>()] += call.at("bytes").get<std::uint64_t>();
    for (const Json& call : one.at("exchange")) CHECK(call.at("bytes") == bytes.at(call.at("payload").get<std::string>()));
    CHECK(three.at("piece_sizes") == sizes);
    std::int64_t topk = 0;
    for (const Json& item : three.at("work"))
      if (item.at("operation") == "topk") CHECK(item.at("piece") == topk++);
    CHECK(topk == 3);
  }
  CHECK_THROWS_AS(Replay(part(0, 2940), layers_of_sizes(sizes), options_of("topk", 0.03, n, {{"fused", false}})), InputError);
  // Buckets are runs of layers: 900 and 40 together.
  Small buckets("cltk", {{"scope", "bucket"}, {"bucket_bytes", 4 * 940}}, 0.1, 1, sizes);
  const Selection s = buckets.select(0, {std::vector<float>(2940, 1.0F)});
  CHECK(s.exchange.size() == 4);
  CHECK(s.exchange[0].bytes.front() == 8 * 94);
  CHECK(s.exchange[2].bytes.front() == 8 * 200);
}
