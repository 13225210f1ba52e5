#include "traces/expansion.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <limits>
#include <map>
#include <set>

#include "base/error.hpp"
#include "base/random.hpp"
#include "tests/catch.hpp"
#include "tests/command.hpp"
#include "traces/row_activity.hpp"
#include "traces/trace_writer.hpp"

using namespace sparscale;
using namespace sparscale::traces;
namespace fs = std::filesystem;

namespace {

Trace sample(const char* name) { return Trace::open(fs::path(SPARSCALE_SOURCE_DIRECTORY) / "traces" / "samples" / name); }
Trace digits() { return sample("digits-cnn-8w"); }
Trace bible() { return sample("kjv-lstm-8w"); }

std::unique_ptr<GradientSource> source(const Trace& trace, const std::string& method, std::int64_t workers, std::int64_t captured = 0,
                                       std::uint64_t seed = 1, bool all = false) {
  return make_gradient_source(trace, {.method = method, .workers = workers, .captured = captured, .seed = seed}, all);
}

std::vector<float> copy(std::span<const float> values) { return {values.begin(), values.end()}; }

// Union of local top-k with error feedback from a zero residual, per iteration.
std::vector<std::int64_t> unions(GradientSource& source, std::int64_t iterations, double density) {
  const std::int64_t n = source.gradients();
  const auto k = static_cast<std::int64_t>(density * static_cast<double>(n));
  std::vector<std::vector<float>> residual(static_cast<std::size_t>(source.workers()), std::vector<float>(static_cast<std::size_t>(n)));
  std::vector<std::int32_t> order(static_cast<std::size_t>(n));
  std::vector<std::int64_t> result;
  for (std::int64_t t = 0; t < iterations; ++t) {
    std::set<std::int32_t> selected;
    for (std::int64_t w = 0; w < source.workers(); ++w) {
      std::vector<float>& a = residual[static_cast<std::size_t>(w)];
      const auto g = source.gradient(t, w);
      for (std::size_t i = 0; i < a.size(); ++i) {
        a[i] += g[i];
        order[i] = static_cast<std::int32_t>(i);
      }
      std::nth_element(order.begin(), order.begin() + k, order.end(), [&](std::int32_t x, std::int32_t y) {
        const float u = std::abs(a[static_cast<std::size_t>(x)]), v = std::abs(a[static_cast<std::size_t>(y)]);
        return u != v ? u > v : x < y;
      });
      for (std::int64_t i = 0; i < k; ++i) {
        selected.insert(order[static_cast<std::size_t>(i)]);
        a[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])] = 0;
      }
    }
    result.push_back(static_cast<std::int64_t>(selected.size()));
  }
  return result;
}

double build_up(GradientSource& source, std::int64_t iterations, double density) {
  const double k = std::trunc(density * static_cast<double>(source.gradients()));
  double sum = 0;
  for (const std::int64_t count : unions(source, iterations, density)) sum += static_cast<double>(count) / k;
  return sum / static_cast<double>(iterations);
}

// A trace with an embedding of 64 rows x 4 (each worker touches 8 rows at random) and a dense layer of 40.
class EmbeddingTrace {
 public:
  explicit EmbeddingTrace(const char* data_order) {
    Json manifest = parse_json(R"({"schema_version":1,"name":"rows","gradients":296,"workers":4,"iterations":[0,1,2,3,4,5],
      "layers":[{"name":"embedding","shape":[64,4],"offset":0,"size":256},{"name":"dense","shape":[40],"offset":256,"size":40}]})",
                               "rows");
    if (*data_order != '\0') manifest["data_order"] = data_order;
    std::vector<float> values(296);
    write_trace(folder_ / "t", manifest, [&](std::int64_t t, std::int64_t w) -> std::span<const float> {
      Random random(stream_key(5, "rows", {static_cast<std::uint64_t>(t), static_cast<std::uint64_t>(w)}));
      std::fill(values.begin(), values.end(), 0.0F);
      for (int i = 0; i < 8; ++i) {
        const std::size_t row = random.below(64);
        for (std::size_t j = 0; j < 4; ++j) values[4 * row + j] = static_cast<float>(random.normal());
      }
      for (std::size_t i = 256; i < 296; ++i) values[i] = static_cast<float>(1 + random.normal());
      return values;
    });
    trace = Trace::open(folder_ / "t");
  }
  Trace trace;

 private:
  tests::Scratch folder_{"rows"};
};

std::string error_of(const Trace& trace, const ExpansionOptions& options) {
  try {
    choose_expansion(trace, options);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("Gradients in the order in which they are made fastest are the same, bit for bit, at other places") {
  const EmbeddingTrace drawn("iid"), renamed("stateful");
  for (const Trace& trace : {digits(), bible(), drawn.trace, renamed.trace}) {
    CAPTURE(trace.info().name, trace.info().data_order);
    ExpansionOptions options{.method = "hybrid", .workers = 3 * trace.workers(), .captured = 0, .seed = 3};
    const auto plain = make_gradient_source(trace, options);
    CHECK(plain->order() == nullptr);
    options.any_order = true;
    const auto fast = make_gradient_source(trace, options);
    CHECK(plain->known_finite());
    CHECK(fast->known_finite());
    const ElementOrder* const order = fast->order();
    REQUIRE(order != nullptr);
    CHECK(fast->clone()->order() == order);
    const auto n = static_cast<std::size_t>(trace.gradients());
    REQUIRE(order->element.size() == n);
    REQUIRE(order->place.size() == n);
    REQUIRE(order->bounds.front() == 0);
    REQUIRE(order->bounds.back() == trace.gradients());
    std::size_t moved = 0;
    for (std::size_t p = 0; p < n; ++p) {
      const std::int32_t element = order->element[p];
      REQUIRE(order->place.at(static_cast<std::size_t>(element)) == static_cast<std::int32_t>(p));
      const auto after = [&](std::int64_t at) { return std::upper_bound(order->bounds.begin(), order->bounds.end(), at); };
      REQUIRE(after(element) == after(static_cast<std::int64_t>(p)));
      moved += static_cast<std::size_t>(element) != p ? 1 : 0;
    }
    CHECK(moved > 30);
    // The captured workers, generated ones, the second pass.
    for (const std::int64_t t : {std::int64_t{0}, std::int64_t{3}, trace.iterations() + 1})
      for (const std::int64_t w : {std::int64_t{0}, trace.workers(), options.workers - 1}) {
        const std::vector<float> expected = copy(plain->gradient(t, w)), found = copy(fast->gradient(t, w));
        REQUIRE(found.size() == n);
        std::size_t different = 0;
        for (std::size_t i = 0; i < n; ++i)
          different += std::memcmp(&expected[i], &found[static_cast<std::size_t>(order->place[i])], sizeof(float)) != 0 ? 1 : 0;
        CHECK(different == 0);
        for (const auto& [begin, end] : {std::pair<std::size_t, std::size_t>{0, 1}, {17, 230}, {n - 40, n}}) {
          const std::vector<float> piece = copy(fast->piece(t, w, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end)));
          REQUIRE(piece.size() == end - begin);
          CHECK(std::memcmp(piece.data(), found.data() + begin, piece.size() * sizeof(float)) == 0);
        }
      }
  }
}

TEST_CASE("A value that is not finite, or a sum that may not be, is not taken for finite") {
  for (const float odd : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 3e38F}) {
    const tests::Scratch folder("odd");
    const Json manifest = parse_json(R"({"schema_version":1,"name":"odd","gradients":300,"workers":3,"iterations":[0,1],
      "layers":[{"name":"dense","shape":[300],"offset":0,"size":300}]})",
                                     "odd");
    std::vector<float> values(300);
    write_trace(folder / "t", manifest, [&](std::int64_t t, std::int64_t w) -> std::span<const float> {
      Random random(stream_key(6, "odd", {static_cast<std::uint64_t>(t), static_cast<std::uint64_t>(w)}));
      for (float& value : values) value = static_cast<float>(random.normal());
      if (t == 1 && w == 2) values[299] = odd;
      return values;
    });
    const Trace trace = Trace::open(folder / "t");
    CAPTURE(odd);
    CHECK_FALSE(source(trace, "hybrid", 6)->known_finite());
  }
}

TEST_CASE("Captured workers are used as they are, the window again and again") {
  const Trace trace = digits();
  auto captured = source(trace, "auto", 5);
  CHECK(captured->workers() == 5);
  for (const std::int64_t t : {0, 7, 10, 23})
    for (const std::int64_t w : {0, 4}) {
      CHECK(captured->gradient(t, w).data() == trace.gradient(t % 10, w).data());
      CHECK(captured->position(t) == t % 10);
    }
}

TEST_CASE("The union of the King James workers is the one that was counted when they were captured") {
  const Trace trace = bible();
  for (const auto& [density, name] : {std::pair<double, const char*>{0.01, "0.01"}, {0.001, "0.001"}}) {
    auto captured = source(trace, "captured", 8);
    const Json& truth = trace.info().manifest.at("exact_8_workers").at(name);
    CHECK(unions(*captured, 8, density) == truth.at("union8_cold_per_iteration").get<std::vector<std::int64_t>>());
  }
}

TEST_CASE("The method follows the trace and the number of workers") {
  const Trace dense = digits(), text = bible();
  const auto method = [](const Trace& trace, std::int64_t workers, std::int64_t captured = 0) {
    return choose_expansion(trace, {.method = "auto", .workers = workers, .captured = captured}).method;
  };
  CHECK(method(dense, 8) == "captured");
  CHECK(method(dense, 9) == "boot");
  CHECK(method(dense, 40) == "boot");
  CHECK(method(dense, 41) == "hybrid");
  CHECK(method(dense, 5, 4) == "boot");
  CHECK(method(dense, 21, 4) == "hybrid");
  CHECK(method(dense, 5, 1) == "boot");
  CHECK(method(text, 8) == "captured");
  CHECK(method(text, 9) == "hybrid");
  const EmbeddingTrace rows("iid");
  CHECK(method(rows.trace, 5) == "boot");  // 24 samples
  CHECK(method(rows.trace, 13) == "hybrid");
  const auto choice = choose_expansion(dense, {.method = "auto", .workers = 32, .captured = 4});
  CHECK(choice.captured == 4);
  CHECK(choice.ratio == 8);
  CHECK(choice.pool == 40);
  CHECK(choice.method == "hybrid");
}

TEST_CASE("What lies outside the compared range says so") {
  const Trace trace = digits();
  const auto choose = [&](const char* method, std::int64_t workers, std::int64_t captured = 0) {
    return choose_expansion(trace, {.method = method, .workers = workers, .captured = captured});
  };
  CHECK(choose("captured", 8).warnings.empty());
  CHECK(choose("boot", 40).warnings.empty());
  CHECK(choose("boot", 40).validated);
  const auto few = choose("boot", 41);
  CHECK(few.validated);
  REQUIRE(few.warnings.size() == 1);
  CHECK(few.warnings[0] == "only 80 captured samples (workers x iterations) for 41 workers: at least twice as many are advised");
  const auto fewer = choose("hybrid", 128);
  CHECK_FALSE(fewer.validated);
  REQUIRE(fewer.warnings.size() == 1);
  CHECK(fewer.warnings[0] == "only 80 captured samples (workers x iterations) for 128 workers: build-up is underestimated");
  const auto far = choose("auto", 256);
  CHECK(far.method == "hybrid");
  CHECK_FALSE(far.validated);
  REQUIRE(far.warnings.size() == 2);
  CHECK(far.warnings[0] == "256 workers are 32 times the 8 captured ones: expansion was compared with captured workers up to 16 times");
  const auto two = choose("auto", 8, 2);
  CHECK_FALSE(two.validated);
  CHECK(two.warnings.at(0) == "only 2 captured workers: expansion was compared with captured workers from 4 on");
  const auto boot = choose_expansion(bible(), {.method = "boot", .workers = 16});
  CHECK_THAT(boot.warnings.at(0), StartsWith("boot ignores that a worker's data follow on"));
}

TEST_CASE("Wrong requests are refused in one line") {
  const Trace trace = digits();
  CHECK(error_of(trace, {.method = "copy", .workers = 4}) ==
        "expansion: expected one of auto, captured, boot, hybrid, shift, found \"copy\"");
  CHECK(error_of(trace, {.method = "auto", .workers = 0}) == "workers: expected 1 to 2^31, found 0");
  CHECK(error_of(trace, {.method = "auto", .workers = 4, .captured = 9}) ==
        "captured workers: expected 1 to 8, the workers in the trace digits-cnn-8w, found 9");
  CHECK(error_of(trace, {.method = "auto", .workers = 4, .captured = -1}).find("found -1") != std::string::npos);
  CHECK(error_of(trace, {.method = "captured", .workers = 9}) ==
        "workers: expected at most the 8 captured workers with expansion captured, found 9");
  CHECK(error_of(trace, {.method = "boot", .workers = 81}) ==
        "workers: expected at most 80 with expansion boot (8 captured workers x 10 iterations: a sample for every worker), found 81");
  CHECK(error_of(trace, {.method = "hybrid", .workers = 8, .captured = 1}) ==
        "captured workers: expected at least 2 for expansion hybrid, found 1");
  CHECK(error_of(trace, {.method = "auto", .workers = 11, .captured = 1}).find("at most 10 with expansion boot") != std::string::npos);
}

TEST_CASE("Boot hands out every captured sample once, in a fresh order every iteration") {
  const Trace trace = digits();
  std::map<const float*, std::pair<std::int64_t, std::int64_t>> samples;
  for (std::int64_t t = 0; t < 10; ++t)
    for (std::int64_t w = 0; w < 8; ++w) samples[trace.gradient(t, w).data()] = {t, w};
  auto boot = source(trace, "boot", 80);
  std::set<std::vector<const float*>> orders;
  for (const std::int64_t t : {0, 1, 2, 10, 11, 20}) {
    std::vector<const float*> order;
    for (std::int64_t j = 0; j < 80; ++j) order.push_back(boot->gradient(t, j).data());
    const std::set<const float*> distinct(order.begin(), order.end());
    CHECK(distinct.size() == 80);
    for (const float* pointer : distinct) CHECK(samples.count(pointer) == 1);
    orders.insert(order);
  }
  CHECK(orders.size() == 6);
  // Few workers: those of the first captured ones only.
  auto part = source(trace, "boot", 20, 3);
  for (std::int64_t j = 0; j < 20; ++j) CHECK(samples.at(part->gradient(4, j).data()).second < 3);
}

TEST_CASE("A worker has every captured sample before it has one again") {
  const Trace trace = digits();
  std::map<const float*, std::int64_t> position;
  for (std::int64_t t = 0; t < 10; ++t)
    for (std::int64_t w = 0; w < 8; ++w) position[trace.gradient(t, w).data()] = t;
  auto boot = source(trace, "boot", 30, 3);
  std::vector<int> positions(10);
  for (std::int64_t j = 0; j < 30; ++j) {
    std::set<const float*> first, second;
    for (std::int64_t t = 0; t < 30; ++t) first.insert(boot->gradient(t, j).data());
    for (std::int64_t t = 30; t < 60; ++t) second.insert(boot->gradient(t, j).data());
    CHECK(first.size() == 30);
    CHECK(first == second);
    for (std::int64_t t = 0; t < 10; ++t) ++positions[static_cast<std::size_t>(position.at(boot->gradient(t, j).data()))];
  }
  for (const int count : positions) CHECK(count == 30);
}

TEST_CASE("A gradient depends on seed, iteration and worker, not on the order of calls") {
  for (const char* method : {"boot", "hybrid"})
    for (const Trace& trace : {digits(), bible()}) {
      auto forward = source(trace, method, 24), backward = source(trace, method, 24), other = source(trace, method, 24, 0, 2);
      std::vector<std::vector<float>> first;
      for (const std::int64_t t : {2, 13}) {
        first.clear();
        for (std::int64_t j = 0; j < 24; ++j) first.push_back(copy(forward->gradient(t, j)));
        bool same = true, differs = false;
        for (std::int64_t j = 23; j >= 0; --j) same = same && copy(backward->gradient(t, j)) == first[static_cast<std::size_t>(j)];
        for (std::int64_t j = 8; j < 24; ++j) differs = differs || copy(other->gradient(t, j)) != first[static_cast<std::size_t>(j)];
        CHECK(same);
        CHECK(differs);
      }
      CHECK(std::set<std::vector<float>>(first.begin(), first.end()).size() == 24);
    }
}

TEST_CASE("Hybrid keeps the captured workers in the first pass and draws afresh in later ones") {
  const Trace trace = digits();
  auto hybrid = source(trace, "hybrid", 12, 4);
  for (std::int64_t w = 0; w < 4; ++w) CHECK(hybrid->gradient(3, w).data() == trace.gradient(3, w).data());
  const auto one = copy(hybrid->gradient(3, 6));
  const auto later = copy(hybrid->gradient(13, 6));
  CHECK(one != later);
  CHECK(copy(hybrid->gradient(13, 2)) != copy(trace.gradient(3, 2)));
  auto all = source(trace, "hybrid", 4, 4, 1, true);
  CHECK(copy(all->gradient(3, 2)) != copy(trace.gradient(3, 2)));
}

TEST_CASE("Generated dense gradients have the captured energy, and no more in common than captured ones") {
  const Trace trace = digits();
  auto hybrid = source(trace, "hybrid", 8, 8, 1, true);
  const auto statistics = [](const std::vector<std::vector<float>>& workers) {
    double energy = 0, common = 0;
    for (std::size_t i = 0; i < workers[0].size(); ++i) {
      double sum = 0, squares = 0;
      for (const auto& g : workers) {
        sum += g[i];
        squares += static_cast<double>(g[i]) * g[i];
      }
      energy += squares;
      common += sum * sum - squares;
    }
    // Mean energy of one worker; mean product of two, over that energy.
    return std::pair(energy / 8, common / 7 / energy);
  };
  double energy = 0, cosine = 0, truth_energy = 0, truth_cosine = 0;
  for (std::int64_t t = 0; t < 10; ++t) {
    std::vector<std::vector<float>> generated, captured;
    for (std::int64_t w = 0; w < 8; ++w) {
      generated.push_back(copy(hybrid->gradient(t, w)));
      captured.push_back(copy(trace.gradient(t, w)));
    }
    const auto g = statistics(generated), c = statistics(captured);
    energy += g.first;
    cosine += g.second / 10;
    truth_energy += c.first;
    truth_cosine += c.second / 10;
  }
  CHECK(energy / truth_energy == Approx(1).margin(0.1));
  CHECK(cosine == Approx(truth_cosine).margin(0.02));
}

TEST_CASE("Rows of an i.i.d. embedding are those of another sample, dense layers are not") {
  const EmbeddingTrace rows("iid");
  const RowActivity activity = find_row_activity(rows.trace, 4);
  REQUIRE(activity.groups.size() == 1);
  CHECK(activity.group_of == std::vector<std::int64_t>{0, -1});
  auto hybrid = source(rows.trace, "hybrid", 20);
  std::set<std::vector<float>> embeddings, captured;
  for (std::int64_t t = 0; t < 6; ++t)
    for (std::int64_t w = 0; w < 4; ++w) {
      const auto g = rows.trace.gradient(t, w);
      captured.insert(std::vector<float>(g.begin(), g.begin() + 256));
    }
  for (std::int64_t j = 0; j < 20; ++j) {
    const auto g = hybrid->gradient(2, j);
    embeddings.insert(std::vector<float>(g.begin(), g.begin() + 256));
    if (j < 4) continue;
    for (std::int64_t t = 0; t < 6; ++t)
      for (std::int64_t w = 0; w < 4; ++w) CHECK_FALSE(std::equal(g.begin() + 256, g.end(), rows.trace.gradient(t, w).begin() + 256));
  }
  // 4 captured workers and 16 others, each with its own of the 24 samples.
  CHECK(embeddings.size() == 20);
  CHECK(std::includes(captured.begin(), captured.end(), embeddings.begin(), embeddings.end()));
}

TEST_CASE("Rows of a stateful stream are one worker's under other names, the same in every layer, all pass long") {
  const Trace trace = bible();
  constexpr std::int64_t vocabulary = 600, width = 24, decoder = 19200, bias = 33600;
  const RowActivity activity = find_row_activity(trace, 8);
  CHECK(activity.same_height == std::vector<std::int64_t>{0, -1, -1, -1, -1, 0, 0});
  CHECK(activity.group_of == std::vector<std::int64_t>{0, -1, -1, -1, -1, -1, -1});
  std::vector<std::set<std::int64_t>> seen(vocabulary);
  for (std::int64_t t = 0; t < 8; ++t)
    for (std::int64_t w = 0; w < 8; ++w)
      for (std::int64_t r = 0; r < vocabulary; ++r)
        if (activity.groups[0].at(t, w, r, 8)) seen[static_cast<std::size_t>(r)].insert(w);
  auto hybrid = source(trace, "hybrid", 32);
  const std::int64_t worker = 19, origin = 19 % 8;
  // Decoder rows are never zero, so their values say which captured row they are.
  std::map<std::vector<float>, std::pair<std::int64_t, std::int64_t>> row_of;
  for (std::int64_t t = 0; t < 8; ++t)
    for (std::int64_t r = 0; r < vocabulary; ++r) {
      const auto g = trace.gradient(t, origin);
      row_of[std::vector<float>(g.begin() + decoder + r * width, g.begin() + decoder + (r + 1) * width)] = {t, r};
    }
  std::vector<std::int64_t> names;
  std::int64_t shift = -1;
  for (std::int64_t t = 0; t < 8; ++t) {
    const auto g = hybrid->gradient(t, worker);
    std::vector<std::int64_t> now;
    for (std::int64_t r = 0; r < vocabulary; ++r) {
      const auto found = row_of.find(std::vector<float>(g.begin() + decoder + r * width, g.begin() + decoder + (r + 1) * width));
      const bool common = seen[static_cast<std::size_t>(r)].size() > 4;
      REQUIRE((found == row_of.end()) == common);
      now.push_back(common ? -1 : found->second.second);
      if (common) continue;
      const auto [position, row] = found->second;
      if (shift < 0) shift = (position - t + 8) % 8;
      REQUIRE((t + shift) % 8 == position);
      const auto own = trace.gradient(position, origin);
      REQUIRE(std::equal(g.begin() + r * width, g.begin() + (r + 1) * width, own.begin() + row * width));
      REQUIRE(g[static_cast<std::size_t>(bias + r)] == own[static_cast<std::size_t>(bias + row)]);
    }
    if (t == 0) names = now;
    REQUIRE(now == names);
  }
  CHECK(shift > 0);
  std::int64_t renamed = 0;
  for (std::int64_t r = 0; r < vocabulary; ++r) {
    const std::int64_t name = names[static_cast<std::size_t>(r)];
    if (name < 0 || name == r) continue;
    ++renamed;
    CHECK(names[static_cast<std::size_t>(name)] == r);
    // One of the two is the origin's and of class c, the other is not and of class c - 1.
    const auto &a = seen[static_cast<std::size_t>(r)], &b = seen[static_cast<std::size_t>(name)];
    CHECK(a.count(origin) + b.count(origin) == 1);
    CHECK(static_cast<std::int64_t>(a.count(origin) == 1 ? a.size() : b.size()) ==
          static_cast<std::int64_t>(a.count(origin) == 1 ? b.size() : a.size()) + 1);
  }
  CHECK(renamed > 60);
}

TEST_CASE("Data order is measured where the trace does not say it") {
  const auto without_order = [](const Trace& trace, const fs::path& path) {
    Json manifest = trace.info().manifest;
    manifest.erase("data_order");
    manifest.erase("files");
    write_trace(path, manifest, [&](std::int64_t t, std::int64_t w) { return trace.gradient(t, w); });
    return Trace::open(path);
  };
  const tests::Scratch folder("order");
  const Trace text = without_order(bible(), folder / "text"), dense = without_order(digits(), folder / "dense");
  CHECK(row_overlap(find_row_activity(text, 8), 8, 8).ratio == Approx(1.193).margin(0.001));
  CHECK(row_overlap(find_row_activity(text, 8), 8, 8).repeats);
  CHECK(is_stateful(text, find_row_activity(text, 8), 8));
  CHECK(deviation_memory(dense, 8) < stateful_deviation_memory);
  CHECK(deviation_memory(text, 8) > stateful_deviation_memory);
  CHECK(choose_expansion(dense, {.method = "auto", .workers = 16}).method == "boot");
  const EmbeddingTrace rows("");
  CHECK_FALSE(row_overlap(find_row_activity(rows.trace, 4), 6, 4).repeats);
  CHECK_FALSE(is_stateful(rows.trace, find_row_activity(rows.trace, 4), 4));
}

TEST_CASE("Memory is estimated from above") {
  const Trace trace = digits();
  const std::uint64_t tables = 4ULL * 80 * 34862;
  CHECK(expansion_memory_bytes(trace, {.method = "boot", .workers = 40}) < 200000);
  CHECK(expansion_memory_bytes(trace, {.method = "hybrid", .workers = 40}) > tables);
  CHECK(expansion_memory_bytes(trace, {.method = "hybrid", .workers = 40}) < 3 * tables);
  CHECK(expansion_memory_bytes(bible(), {.method = "captured", .workers = 4}) >= 4ULL * 64 * 34200);
}

// The build-up of captured workers from fewer of them. Tolerances: about twice what was measured over seeds (docs/expansion.md).
TEST_CASE("Eight digits workers are predicted from four") {
  const Trace trace = digits();
  for (const double density : {0.01, 0.001}) {
    auto captured = source(trace, "captured", 8);
    const double truth = build_up(*captured, 10, density);
    double boot_sum = 0, hybrid_sum = 0;
    for (const std::uint64_t seed : {1U, 2U, 3U, 4U}) {
      auto boot = source(trace, "boot", 8, 4, seed), hybrid = source(trace, "hybrid", 8, 4, seed);
      boot_sum += build_up(*boot, 10, density) / 4;
      hybrid_sum += build_up(*hybrid, 10, density) / 4;
    }
    CHECK(boot_sum / truth == Approx(1).margin(0.02));
    CHECK(hybrid_sum / truth == Approx(1).margin(0.06));
    // Reusing four workers as they are would be far off: the tolerance separates.
    auto four = source(trace, "captured", 4);
    CHECK(build_up(*four, 10, density) / truth < 0.65);
  }
}

TEST_CASE("Thirty-two King James workers are predicted from eight") {
  const Trace trace = bible();
  for (const auto& [density, name] : {std::pair<double, const char*>{0.01, "0.01/cold"}, {0.001, "0.001/cold"}}) {
    const Json& truth = trace.info().manifest.at("truth_32_workers").at(name).at("mean_union_over_k");
    auto sixteen = source(trace, "auto", 16), all = source(trace, "auto", 32);
    CHECK(build_up(*sixteen, 8, density) / truth.at(4).get<double>() == Approx(1).margin(0.05));
    CHECK(build_up(*all, 8, density) / truth.at(5).get<double>() == Approx(1).margin(0.08));
  }
}

TEST_CASE("Generating a worker is much cheaper than selecting from it") {
  const Trace trace = digits();
  auto hybrid = source(trace, "hybrid", 64);
  const std::clock_t start = std::clock();
  float sum = 0;
  for (std::int64_t t = 0; t < 4; ++t)
    for (std::int64_t j = 8; j < 64; ++j) sum += hybrid->gradient(t, j)[100];
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  CHECK(std::isfinite(sum));
  // Measured 1 ns per element; ten times that, for slow machines and unoptimised builds.
#ifdef NDEBUG
  CHECK(seconds / (4.0 * 56 * 34862) < 10e-9);
#else
  CHECK(seconds < 60);
#endif
}
