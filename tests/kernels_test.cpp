#include "kernels/kernels.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "base/error.hpp"
#include "base/random.hpp"
#include "tests/catch.hpp"

using sparscale::Random;
using sparscale::stream_key;
using namespace sparscale::kernels;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kDenormal = std::numeric_limits<float>::denorm_min();

std::uint32_t key(float value) { return std::bit_cast<std::uint32_t>(value) & 0x7fffffffU; }

// The definitions, written the slow and obvious way.
std::vector<Index> reference_order(const std::vector<float>& values) {
  std::vector<Index> order(values.size());
  std::iota(order.begin(), order.end(), Index{0});
  std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return key(values[a]) > key(values[b]); });
  return order;
}
std::vector<Index> reference_topk(std::vector<Index> order, Index k, Index first) {
  order.resize(static_cast<std::size_t>(std::clamp<Index>(k, 0, static_cast<Index>(order.size()))));
  std::sort(order.begin(), order.end());
  for (Index& index : order) index += first;
  return order;
}
std::vector<Index> reference_select(const std::vector<float>& values, float threshold, Index first) {
  std::vector<Index> found;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (std::fabs(values[i]) >= threshold) found.push_back(first + static_cast<Index>(i));
  return found;
}

struct Family {
  const char* name;
  float (*value)(Random&, std::size_t i, std::size_t size);
};
const Family kFamilies[] = {
    {"normal", [](Random& r, std::size_t, std::size_t) { return static_cast<float>(r.normal()); }},
    {"ties", [](Random& r, std::size_t, std::size_t) { return static_cast<float>(r.below(8)) * (r.below(2) != 0 ? 0.25F : -0.25F); }},
    {"equal", [](Random&, std::size_t, std::size_t) { return -0.75F; }},
    {"zeros", [](Random& r, std::size_t, std::size_t) { return r.below(2) != 0 ? 0.0F : -0.0F; }},
    {"mostly zero", [](Random& r, std::size_t, std::size_t) { return r.below(20) != 0 ? 0.0F : static_cast<float>(r.normal()); }},
    {"denormal", [](Random& r, std::size_t, std::size_t) { return static_cast<float>(r.below(1000)) * kDenormal; }},
    {"ascending", [](Random&, std::size_t i, std::size_t) { return static_cast<float>(i); }},
    {"descending", [](Random&, std::size_t i, std::size_t size) { return -static_cast<float>(size - i); }},
    {"layers", [](Random& r, std::size_t i,
                  std::size_t size) { return static_cast<float>(r.normal() * std::exp2(-static_cast<double>(i * 16 / size))); }},
    {"one hot layer",
     [](Random& r, std::size_t i, std::size_t size) { return static_cast<float>(r.normal()) * (i * 50 / size == 7 ? 1000.0F : 1.0F); }},
    {"any bits", [](Random& r, std::size_t, std::size_t) { return std::bit_cast<float>(static_cast<std::uint32_t>(r.next())); }},
    {"non-finite",
     [](Random& r, std::size_t, std::size_t) {
       const float special[] = {kInf, -kInf, kNan, -kNan, 0.0F, kDenormal, std::numeric_limits<float>::max(), 1.0F};
       return special[r.below(8)];
     }},
};

std::vector<float> make(const Family& family, std::size_t size, std::uint64_t seed) {
  Random random(stream_key(seed, "kernels_test", {size}));
  std::vector<float> values(size);
  for (std::size_t i = 0; i < size; ++i) values[i] = family.value(random, i, size);
  return values;
}

std::vector<std::uint32_t> bits(const std::vector<float>& values) {
  std::vector<std::uint32_t> result(values.size());
  std::transform(values.begin(), values.end(), result.begin(), [](float value) { return std::bit_cast<std::uint32_t>(value); });
  return result;
}

}  // namespace

TEST_CASE("the named back-ends exist, auto is the fastest, unknown names are refused") {
  const auto names = cpu_kernel_names();
  REQUIRE(names.front() == "cpu.scalar");
  CHECK(cpu_kernels().name() == names.back());
  for (const auto& name : names) CHECK(cpu_kernels(name).name() == name);
  CHECK_THROWS_WITH(cpu_kernels("cuda.cub"), ContainsSubstring("expected one of auto, cpu.scalar"));
}

TEST_CASE("top-k and threshold select give the same indices as a stable sort in every back-end") {
  std::vector<std::size_t> sizes(131);
  std::iota(sizes.begin(), sizes.end(), std::size_t{0});
  for (const std::size_t size : {1000, 2047, 2048, 2049, 4095, 4097, 8200, 35001, 120003}) sizes.push_back(size);
  std::size_t compared = 0;
  for (const Family& family : kFamilies)
    for (const std::size_t size : sizes) {
      const auto values = make(family, size, 1);
      const auto order = reference_order(values);
      const auto n = static_cast<Index>(size);
      std::set<Index> ks{0, 1, 2, n / 1000, n / 100, n / 9, n / 8, n / 3, n - 1, n, n + 5};
      if (size > 40 && size < 128) ks = {1, n / 10, n - 1};
      for (const Index k : ks) {
        if (k < 0) continue;
        const auto expected = reference_topk(order, k, 7);
        for (const auto& name : cpu_kernel_names()) {
          std::vector<Index> found{-1};
          cpu_kernels(name).topk(values, k, 7, found);
          CAPTURE(family.name, size, k, name);
          REQUIRE(found.front() == -1);
          REQUIRE(std::equal(found.begin() + 1, found.end(), expected.begin(), expected.end()));
          ++compared;
        }
      }
      for (const float threshold : {0.0F, -1.0F, kDenormal, 0.25F, 0.75F, 2.0F, 1000.0F, kInf, kNan}) {
        const auto expected = reference_select(values, threshold, 3);
        for (const auto& name : cpu_kernel_names()) {
          std::vector<Index> found{-1};
          cpu_kernels(name).threshold_select(values, threshold, 3, found);
          CAPTURE(family.name, size, threshold, name);
          REQUIRE(std::equal(found.begin() + 1, found.end(), expected.begin(), expected.end()));
          REQUIRE(cpu_kernels(name).count(values, threshold) == static_cast<Index>(expected.size()));
          ++compared;
        }
      }
    }
  CHECK(compared > 10000);
}

TEST_CASE("a vector that the sample cannot see through is still selected exactly") {
  // All large values sit where no sampled run looks, or everywhere but there: exactness must not depend on the sample.
  const std::size_t size = 200000;
  for (const std::size_t begin : {std::size_t{0}, std::size_t{37}, std::size_t{100000}, size - 900}) {
    auto values = make(kFamilies[0], size, 2);
    for (std::size_t i = begin; i < begin + 900; ++i) values[i] = 100 + static_cast<float>(i % 3);
    const auto order = reference_order(values);
    for (const Index k : {1, 300, 301, 899, 900, 901, 1000, 20000})
      for (const auto& name : cpu_kernel_names()) {
        std::vector<Index> found;
        cpu_kernels(name).topk(values, k, 0, found);
        CAPTURE(begin, k, name);
        REQUIRE(found == reference_topk(order, k, 0));
      }
  }
}

TEST_CASE("the rules on signs of zero, ties and NaN") {
  const std::vector<float> values{-0.0F, 2.0F, -2.0F, kNan, 0.0F, 2.0F, kInf};
  for (const auto& name : cpu_kernel_names()) {
    const Kernels& kernels = cpu_kernels(name);
    std::vector<Index> found;
    kernels.topk(values, 3, 0, found);
    CHECK(found == std::vector<Index>{1, 3, 6});  // NaN, infinity, and the first of the three ties
    found.clear();
    kernels.threshold_select(values, 0.0F, 0, found);
    CHECK(found == std::vector<Index>{0, 1, 2, 4, 5, 6});
    found.clear();
    kernels.threshold_select(values, 2.0F, 10, found);
    CHECK(found == std::vector<Index>{11, 12, 15, 16});
    // A threshold in double is rounded to float before the comparison.
    found.clear();
    kernels.threshold_select(std::vector<float>{0.3F}, static_cast<float>(0.30000002), 0, found);
    CHECK(found == std::vector<Index>{0});
  }
  CHECK(count_non_finite(values) == 2);
  CHECK(count_non_finite(std::vector<float>(5000, -kInf)) == 5000);
  CHECK(count_non_finite(std::vector<float>(5000, std::numeric_limits<float>::max())) == 0);
}

TEST_CASE("accumulate rounds once") {
  for (const std::size_t size : {0, 1, 15, 16, 17, 131, 1000}) {
    const auto gradient = make(kFamilies[0], size, 3);
    const auto before = make(kFamilies[8], size, 4);
    for (const float scale : {1.0F, 0.1F, -3.7F}) {
      std::vector<float> expected(size);
      for (std::size_t i = 0; i < size; ++i) expected[i] = std::fma(scale, gradient[i], before[i]);
      for (const auto& name : cpu_kernel_names()) {
        auto sum = before;
        cpu_kernels(name).accumulate(gradient, scale, sum);
        CAPTURE(size, scale, name);
        CHECK(bits(sum) == bits(expected));
      }
    }
    if (size > 0)
      for (const auto& name : cpu_kernel_names()) {
        auto sum = before;
        CHECK_THROWS_AS(cpu_kernels(name).accumulate(std::span(gradient).first(size - 1), 1.0F, sum), std::invalid_argument);
      }
  }
  // 1 + 2^-24 + 2^-48: two roundings would give 1.
  std::vector<float> one{1.0F};
  cpu_kernels("cpu.scalar").accumulate(std::vector<float>{1.0F + 0x1p-23F}, 0x1p-24F, one);
  CHECK(one[0] == 1.0F + 0x1p-23F);
}

TEST_CASE("cast_half rounds to the nearest half, ties to even, the same in every back-end") {
  const std::vector<std::pair<float, float>> known{
      {1.0F, 1.0F},           {0.1F, 0.0999755859375F}, {65504.0F, 65504.0F},        {65519.99F, 65504.0F},
      {65520.0F, kInf},       {-1e30F, -kInf},          {2049.0F, 2048.0F},          {2051.0F, 2052.0F},
      {0x1p-24F, 0x1p-24F},   {0x1p-25F, 0.0F},         {0x1.000002p-25F, 0x1p-24F}, {0x1.8p-24F, 0x1p-23F},
      {0x1.4p-23F, 0x1p-23F}, {-kDenormal, -0.0F}};
  std::vector<float> values, expected;
  for (const auto& [value, half] : known) {
    values.push_back(value);
    expected.push_back(half);
  }
  for (const auto& name : cpu_kernel_names()) {
    auto cast = values;
    cpu_kernels(name).cast_half(cast);
    CAPTURE(name);
    CHECK(bits(cast) == bits(expected));
  }
  // Every exponent and sign with bit patterns around each rounding boundary, and random bits.
  std::vector<float> dense;
  for (std::uint32_t upper = 0; upper < 0x10000; upper += 3)
    for (const std::uint32_t lower : {0x0U, 0x1U, 0x0fffU, 0x1000U, 0x1001U, 0x1fffU, 0x2000U, 0x3000U, 0x7fffU, 0xffffU})
      dense.push_back(std::bit_cast<float>(upper << 16 | lower));
  Random random(stream_key(5, "kernels_test"));
  for (int i = 0; i < 200000; ++i) dense.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random.next())));
  auto scalar = dense;
  cpu_kernels("cpu.scalar").cast_half(scalar);
  for (const auto& name : cpu_kernel_names()) {
    auto cast = dense;
    cpu_kernels(name).cast_half(cast);
    CAPTURE(name);
    CHECK(bits(cast) == bits(scalar));
  }
}

TEST_CASE("l2_norm has the same bits in every back-end and is right") {
  for (const std::size_t size : {0, 1, 31, 32, 33, 1000, 8192, 8193, 50000}) {
    const auto values = make(kFamilies[8], size, 6);
    long double sum = 0;
    for (const float value : values) sum += static_cast<long double>(value) * value;
    const double first = cpu_kernels("cpu.scalar").l2_norm(values);
    CHECK(first == Approx(static_cast<double>(std::sqrt(sum))).epsilon(1e-13));
    for (const auto& name : cpu_kernel_names())
      CHECK(std::bit_cast<std::uint64_t>(cpu_kernels(name).l2_norm(values)) == std::bit_cast<std::uint64_t>(first));
  }
  CHECK(cpu_kernels().l2_norm(std::vector<float>{3.0F, -4.0F}) == 5.0);
}

TEST_CASE("zero and gather address by index minus first") {
  for (const auto& name : cpu_kernel_names()) {
    std::vector<float> values{1, 2, 3, 4, 5};
    std::vector<float> out(2);
    cpu_kernels(name).gather(values, std::vector<Index>{11, 14}, 10, out);
    CHECK(out == std::vector<float>{2, 5});
    cpu_kernels(name).zero(values, std::vector<Index>{10, 13}, 10);
    CHECK(values == std::vector<float>{0, 2, 3, 0, 5});
    CHECK_THROWS_AS(cpu_kernels(name).gather(values, std::vector<Index>{11}, 10, out), std::invalid_argument);
  }
}

TEST_CASE("unite is the set union whatever path it takes") {
  Random random(stream_key(8, "kernels_test"));
  for (const Index size : {Index{1}, Index{64}, Index{1000}, Index{300000}, Index{20000000}})
    for (const std::size_t lists : {0, 1, 2, 5, 32})
      for (const Index each : {Index{0}, Index{1}, Index{50}, std::min(size / 3, Index{2000})}) {
        std::vector<std::vector<Index>> sets(lists);
        std::set<Index> expected;
        for (std::size_t list = 0; list < lists; ++list) {
          std::set<Index> chosen;
          if (list != 1)  // one list stays empty
            for (Index i = 0; i < each; ++i) chosen.insert(static_cast<Index>(random.below(static_cast<std::uint64_t>(size))));
          sets[list].assign(chosen.begin(), chosen.end());
          expected.insert(chosen.begin(), chosen.end());
        }
        CAPTURE(size, lists, each);
        REQUIRE(cpu_kernels().unite(sets, size) == std::vector<Index>(expected.begin(), expected.end()));
      }
  CHECK_THROWS_AS(cpu_kernels().unite(std::vector<std::vector<Index>>{{0}, {5}}, 5), std::invalid_argument);
  CHECK_THROWS_AS(cpu_kernels().unite(std::vector<std::vector<Index>>{{-1}, {4}}, 5), std::invalid_argument);
}
