#include "kernels/kernels.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "base/error.hpp"
#include "base/random.hpp"
#include "tests/catch.hpp"
#include "tests/kernels_support.hpp"

using sparscale::InputError;
using sparscale::Random;
using sparscale::stream_key;
using namespace sparscale::kernels;
using namespace kernels_support;

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

// ---- fused and further operations, against the definitions ------------------------------------------------------------------------

namespace {

// One thread of every instruction set, and three threads of the widest, with vectors long enough to be shared.
std::vector<const Kernels*> every_back_end() {
  std::vector<const Kernels*> all;
  for (const auto& name : cpu_kernel_names()) all.push_back(&cpu_kernels(name));
  all.push_back(&cpu_kernels("auto", 3));
  return all;
}

}  // namespace

TEST_CASE("fused accumulation and selection is the two steps one after the other") {
  std::size_t compared = 0;
  for (const Family& family : kFamilies)
    for (const std::size_t size : {0, 1, 5, 63, 64, 65, 511, 513, 4097, 35001, 120003}) {
      const auto before = make(family, size, 11), gradient = make(kFamilies[8], size, 12);
      const auto n = static_cast<Index>(size);
      for (const float scale : {1.0F, 0.1F}) {
        auto sum = before;
        cpu_kernels("cpu.scalar").accumulate(gradient, scale, sum);
        const auto order = reference_order(sum);
        for (const Kernels* kernels : every_back_end()) {
          CAPTURE(family.name, size, scale, kernels->name());
          for (const Index k : std::set<Index>{0, 1, n / 100, n / 5, n - 1, n + 1}) {
            if (k < 0) continue;
            auto found_sum = before;
            std::vector<Index> found{-1};
            kernels->accumulate_topk(gradient, scale, found_sum, k, 7, found);
            const auto expected = reference_topk(order, k, 7);
            REQUIRE(std::equal(found.begin() + 1, found.end(), expected.begin(), expected.end()));
            REQUIRE(bits(found_sum) == bits(sum));
          }
          for (const float threshold : {0.0F, 0.25F, 2.0F, kInf, kNan}) {
            auto found_sum = before;
            std::vector<Index> found{-1};
            kernels->accumulate_select(gradient, scale, found_sum, threshold, 3, found);
            const auto expected = reference_select(sum, threshold, 3);
            REQUIRE(std::equal(found.begin() + 1, found.end(), expected.begin(), expected.end()));
            REQUIRE(bits(found_sum) == bits(sum));
            ++compared;
          }
          // The same where some entries count as zero at first, among them a whole word of 64 and the last one.
          std::vector<std::uint64_t> zeros((size + 63) / 64);
          auto zeroed = before;
          for (std::size_t i = 0; i < size; ++i)
            if (i % 3 == 0 || i / 64 == 1 || i + 1 == size) {
              zeros[i / 64] |= std::uint64_t{1} << (i % 64);
              zeroed[i] = 0;
            }
          if (size % 64 != 0) zeros.back() |= ~std::uint64_t{0} << (size % 64);  // bits past the end say nothing
          // And with a gradient that is not written down.
          const auto mean = make(kFamilies[8], size, 13), deviation = make(kFamilies[8], size, 14);
          std::vector<float> made = gradient;
          for (std::size_t i = 0; i < size; ++i) made[i] = mean[i] + -1.0F * deviation[i] * gradient[i];
          for (const bool formed : {false, true})
            for (const bool with_zeros : {true, false}) {
              if (!formed && !with_zeros) continue;
              Addend addend{.values = gradient};
              if (formed) addend = {.values = gradient, .mean = mean.data(), .deviation = deviation.data(), .sign = -1};
              if (with_zeros) addend.zeros = zeros;
              const auto& start = with_zeros ? zeroed : before;
              auto expected_sum = start, found_sum = before;
              cpu_kernels("cpu.scalar").accumulate(formed ? made : gradient, scale, expected_sum);
              kernels->add(addend, scale, found_sum);
              REQUIRE(bits(found_sum) == bits(expected_sum));
              for (const float threshold : {0.25F, 2.0F, kNan}) {
                found_sum = before;
                std::vector<Index> found{-1};
                kernels->add_select(addend, scale, found_sum, threshold, 3, found);
                const auto expected = reference_select(expected_sum, threshold, 3);
                REQUIRE(std::equal(found.begin() + 1, found.end(), expected.begin(), expected.end()));
                REQUIRE(bits(found_sum) == bits(expected_sum));
              }
            }
        }
      }
    }
  CHECK(compared > 4000);
  std::vector<float> sum(5);
  std::vector<Index> found;
  CHECK_THROWS_AS(cpu_kernels().accumulate_select(std::vector<float>(4), 1, sum, 1, 0, found), std::invalid_argument);
  CHECK_THROWS_AS(cpu_kernels().accumulate_topk(std::vector<float>(4), 1, sum, 1, 0, found), std::invalid_argument);
  const std::vector<float> five(5);
  const std::vector<std::uint64_t> two_words(2);
  CHECK_THROWS_AS(cpu_kernels().add({.values = five, .zeros = two_words}, 1, sum), std::invalid_argument);
  CHECK_THROWS_AS(cpu_kernels().add({.values = five, .mean = five.data()}, 1, sum), std::invalid_argument);
}

TEST_CASE("accumulate_topk finishes the sums when the sample misleads it") {
  // All large sums sit where no sampled run looks, so that the filter keeps too few, or nearly everything passes, so that it keeps too
  // many.
  const std::size_t size = 200000;
  for (const bool many : {false, true}) {
    auto before = make(kFamilies[0], size, 21);
    std::vector<float> gradient(size, 0.0F);
    if (many) {
      for (std::size_t i = 0; i < size; ++i) before[i] = i % 8 < 1 ? 5.0F : 4.0F;
    } else {
      for (std::size_t i = 37; i < 937; ++i) gradient[i] = 100 + static_cast<float>(i % 3);
    }
    auto sum = before;
    cpu_kernels("cpu.scalar").accumulate(gradient, 1, sum);
    const auto order = reference_order(sum);
    for (const Kernels* kernels : every_back_end())
      for (const Index k : {1, 300, 899, 1000, 26000}) {
        auto found_sum = before;
        std::vector<Index> found;
        kernels->accumulate_topk(gradient, 1, found_sum, k, 0, found);
        CAPTURE(many, k, kernels->name());
        REQUIRE(found == reference_topk(order, k, 0));
        REQUIRE(bits(found_sum) == bits(sum));
      }
  }
}

TEST_CASE("every way to find the k largest gives the same") {
  CHECK(topk_operation(TopkMethod::automatic) == "topk");
  CHECK(topk_operation(TopkMethod::sampled) == "topk.sampled");
  for (const Family& family : kFamilies)
    for (const std::size_t size : {7, 700, 30001}) {
      const auto values = make(family, size, 13);
      const auto order = reference_order(values);
      const auto n = static_cast<Index>(size);
      for (const TopkMethod method : {TopkMethod::sampled, TopkMethod::radix, TopkMethod::sort})
        for (const Kernels* kernels : every_back_end())
          for (const Index k : {Index{1}, n / 100, n / 3, n - 1, n}) {
            std::vector<Index> found;
            kernels->topk(values, k, 5, found, method);
            CAPTURE(family.name, size, k, kernels->name(), topk_operation(method));
            REQUIRE(found == reference_topk(order, k, 5));
          }
    }
}

TEST_CASE("results do not depend on the number of threads") {
  const std::size_t size = 1300001;  // four parts of at least 2^18, the last of odd length
  for (const std::size_t family : {0, 1, 4, 8, 10}) {
    const auto values = make(kFamilies[family], size, 14), gradient = make(kFamilies[0], size, 15);
    const Kernels& one = cpu_kernels();
    for (const int threads : {2, 3, 4}) {
      const Kernels& many = cpu_kernels("auto", threads);
      CAPTURE(kFamilies[family].name, threads);
      CHECK(many.name() == one.name() + "." + std::to_string(threads) + "t");
      for (const Index k : {1, 13000, 300000, 600000}) {
        std::vector<Index> expected, found;
        one.topk(values, k, 0, expected);
        many.topk(values, k, 0, found);
        REQUIRE(found == expected);
        auto sum = values, found_sum = values;
        expected.clear();
        found.clear();
        one.accumulate_topk(gradient, 0.5F, sum, k, 0, expected);
        many.accumulate_topk(gradient, 0.5F, found_sum, k, 0, found);
        REQUIRE(found == expected);
        REQUIRE(bits(found_sum) == bits(sum));
        std::vector<float> gathered(expected.size()), found_gathered(found.size());
        one.gather(values, expected, 0, gathered);
        many.gather(values, found, 0, found_gathered);
        CHECK(bits(gathered) == bits(found_gathered));
        many.scatter_add(found_sum, found, 0, found_gathered);
        one.scatter_add(sum, expected, 0, gathered);
        CHECK(bits(found_sum) == bits(sum));
        many.zero(found_sum, found, 0);
        one.zero(sum, expected, 0);
        CHECK(bits(found_sum) == bits(sum));
      }
      for (const float threshold : {0.0F, 0.3F, 3.0F}) {
        std::vector<Index> expected{-1}, found{-1};
        one.threshold_select(values, threshold, 0, expected);
        many.threshold_select(values, threshold, 0, found);
        REQUIRE(found == expected);
        CHECK(many.count(values, threshold) == std::ssize(found) - 1);
      }
      if (family != 10) {  // sums with NaN have no defined payload
        CHECK(std::bit_cast<std::uint64_t>(many.l2_norm(values)) == std::bit_cast<std::uint64_t>(one.l2_norm(values)));
        CHECK(many.moments(values) == one.moments(values));
      }
      for (const Index block : {Index{100}, Index{256}, Index{1000000}}) {
        std::vector<float> expected(static_cast<std::size_t>((static_cast<Index>(size) + block - 1) / block)), found(expected);
        one.block_maxima(values, block, expected);
        many.block_maxima(values, block, found);
        CHECK(bits(found) == bits(expected));
      }
      // Segments from none to larger than all threads need together; k from none to all of one.
      const std::vector<Index> offsets{3, 3, 5, 1200, 100000, 250000, 300001, 1300001}, ks{1, 4, 100, 0, 20000, 60000, 10000};
      std::vector<Index> expected{-1}, found{-1};
      one.topk_segments(values, offsets, ks, 7, expected);
      many.topk_segments(values, offsets, ks, 7, found);
      REQUIRE(found == expected);
      CHECK(expected.size() == 1 + 0 + 2 + 100 + 0 + 20000 + 50001 + 10000);
      if (family != 10) {
        std::vector<double> norms(ks.size()), found_norms(ks.size());
        one.segment_norms(values, offsets, norms);
        many.segment_norms(values, offsets, found_norms);
        CHECK(norms == found_norms);
        std::vector<Moments> moments(ks.size()), found_moments(ks.size());
        one.segment_moments(values, offsets, moments);
        many.segment_moments(values, offsets, found_moments);
        CHECK(moments == found_moments);
      }
      auto half = values, found_half = values;
      one.cast_half(half);
      many.cast_half(found_half);
      CHECK(bits(half) == bits(found_half));
    }
  }
  CHECK_THROWS_AS(cpu_kernels("auto", 0), InputError);
}

TEST_CASE("entries, segments and samples follow from the plain operations") {
  const std::size_t size = 20000;
  for (const Family& family : kFamilies) {
    const auto values = make(family, size, 16);
    for (const Kernels* kernels : every_back_end()) {
      CAPTURE(family.name, kernels->name());
      std::vector<Index> indices, expected;
      std::vector<float> selected;
      kernels->select_entries(values, 0.3F, 4, indices, selected);
      CHECK(indices == reference_select(values, 0.3F, 4));
      REQUIRE(selected.size() == indices.size());
      for (std::size_t i = 0; i < indices.size(); ++i)
        REQUIRE(bits({selected[i]}) == bits({values[static_cast<std::size_t>(indices[i] - 4)]}));

      const std::vector<Index> offsets{3, 3, 10, 700, 701, 9000, 20000}, ks{1, 4, 50, 5, 0, 300};
      indices.clear();
      kernels->topk_segments(values, offsets, ks, 100, indices);
      for (std::size_t s = 0; s < ks.size(); ++s) {
        const std::vector<float> part(values.begin() + offsets[s], values.begin() + offsets[s + 1]);
        for (const Index index : reference_topk(reference_order(part), ks[s], 100 + offsets[s])) expected.push_back(index);
      }
      CHECK(indices == expected);

      for (const Index stride : {1, 33, 700})
        for (const Index rank : {Index{1}, Index{3}, 19000 / stride}) {
          std::vector<std::uint32_t> keys;
          for (Index j = 0; j < 19000 / stride; ++j) keys.push_back(key(values[static_cast<std::size_t>(500 + j * stride)]));
          std::sort(keys.rbegin(), keys.rend());
          CHECK(key(kernels->sampled_threshold(values, 500, stride, 19000 / stride, rank)) == keys[static_cast<std::size_t>(rank - 1)]);
        }

      std::vector<float> maxima(79);
      kernels->block_maxima(values, 256, maxima);
      for (std::size_t b = 0; b < maxima.size(); ++b) {
        std::uint32_t most = 0;
        for (std::size_t i = b * 256; i < std::min(size, (b + 1) * 256); ++i) most = std::max(most, key(values[i]));
        REQUIRE(bits({maxima[b]}).front() == most);
      }
    }
  }
  std::vector<Index> indices;
  std::vector<float> out(3);
  const std::vector<float> ten(10);
  CHECK_THROWS_AS(cpu_kernels().topk_segments(ten, std::vector<Index>{0, 11}, std::vector<Index>{1}, 0, indices), std::invalid_argument);
  CHECK_THROWS_AS(cpu_kernels().topk_segments(ten, std::vector<Index>{5, 4}, std::vector<Index>{1}, 0, indices), std::invalid_argument);
  CHECK_THROWS_AS(cpu_kernels().sampled_threshold(ten, 0, 3, 5, 1), std::invalid_argument);
  CHECK_THROWS_AS(cpu_kernels().sampled_threshold(ten, 0, 3, 4, 5), std::invalid_argument);
  CHECK_NOTHROW(cpu_kernels().sampled_threshold(ten, 0, 3, 4, 4));
  CHECK_THROWS_AS(cpu_kernels().block_maxima(ten, 5, out), std::invalid_argument);
  CHECK_THROWS_AS(cpu_kernels().block_maxima(ten, 0, out), std::invalid_argument);
}

TEST_CASE("moments have the same bits in every back-end and are right") {
  for (const std::size_t size : {0, 1, 17, 31, 32, 33, 8191, 8192, 8193, 50000})
    for (const std::size_t family : {0, 1, 4, 5, 8, 11}) {
      auto values = make(kFamilies[family], size, 17);
      if (family == 11)  // infinities only: a sum with NaN has no defined payload
        for (float& value : values) value = std::isnan(value) ? 3.0F : std::fabs(value);
      const Moments first = cpu_kernels("cpu.scalar").moments(values);
      CAPTURE(size, kFamilies[family].name);
      for (const Kernels* kernels : every_back_end()) CHECK(kernels->moments(values) == first);
      long double sum = 0, magnitudes = 0, squares = 0, logs = 0;
      Index zeros = 0, with_log = 0;
      for (const float value : values) {
        zeros += value == 0 ? 1 : 0;
        sum += value;
        magnitudes += std::fabs(value);
        squares += static_cast<long double>(value) * value;
        if (value == 0 || !std::isfinite(value)) continue;
        logs += std::log2(std::fabs(static_cast<long double>(value)));
        ++with_log;
      }
      CHECK(first.elements == static_cast<Index>(size));
      CHECK(first.zeros == zeros);
      CHECK(std::fabs(first.sum_log2 - static_cast<double>(logs)) <= 2e-7 * static_cast<double>(with_log));
      if (family == 11) continue;
      CHECK(first.sum == Approx(static_cast<double>(sum)).epsilon(1e-12).margin(1e-12 * static_cast<double>(magnitudes)));
      CHECK(first.sum_magnitudes == Approx(static_cast<double>(magnitudes)).epsilon(1e-12));
      CHECK(first.sum_squares == Approx(static_cast<double>(squares)).epsilon(1e-12));
    }
  // Each logarithm alone, over all exponents and around the places where the polynomial's argument turns.
  double worst = 0;
  for (std::uint32_t upper = 0; upper < 0x7f80; upper += 5)
    for (const std::uint32_t lower : {0x1U, 0x04f2U, 0x04f3U, 0x8000U, 0xffffU}) {
      const float value = std::bit_cast<float>(upper << 16 | lower);
      const double log2 = cpu_kernels().moments(std::vector<float>{value}).sum_log2;
      worst = std::max(worst, std::fabs(log2 - std::log2(static_cast<double>(value))));
    }
  for (std::uint32_t lower = 0; lower < 1000; ++lower) {
    const float value = std::bit_cast<float>(0x3f3504f3U - 500 + lower);
    worst = std::max(worst, std::fabs(cpu_kernels().moments(std::vector<float>{-value}).sum_log2 - std::log2(static_cast<double>(value))));
  }
  CHECK(worst < 2e-7);
  CHECK(worst > 1e-9);

  const auto values = make(kFamilies[8], 30000, 18);
  const std::vector<Index> offsets{0, 1, 1, 9000, 29999};
  std::vector<double> norms(4);
  std::vector<Moments> moments(4);
  for (const Kernels* kernels : every_back_end()) {
    kernels->segment_norms(values, offsets, norms);
    kernels->segment_moments(values, offsets, moments);
    for (std::size_t s = 0; s < 4; ++s) {
      const auto part =
          std::span(values).subspan(static_cast<std::size_t>(offsets[s]), static_cast<std::size_t>(offsets[s + 1] - offsets[s]));
      CHECK(norms[s] == cpu_kernels("cpu.scalar").l2_norm(part));
      CHECK(moments[s] == cpu_kernels("cpu.scalar").moments(part));
    }
    CHECK_THROWS_AS(kernels->segment_norms(values, std::vector<Index>{0, 1, 2, 3, 30001}, norms), std::invalid_argument);
  }
}

TEST_CASE("random indices are distinct, in range, different for different keys, and spread evenly") {
  for (const Index size : {Index{1}, Index{2}, Index{3}, Index{16}, Index{17}, Index{1000}, Index{65537}, Index{1} << 40})
    for (const Index k : {Index{0}, Index{1}, size / 2, std::min<Index>(size, 1000)}) {
      if (k > 100000) continue;
      const auto indices = random_indices(5, size, k);
      CAPTURE(size, k);
      REQUIRE(std::ssize(indices) == k);
      CHECK(std::is_sorted(indices.begin(), indices.end()));
      CHECK(std::adjacent_find(indices.begin(), indices.end()) == indices.end());
      if (k > 0) CHECK((indices.front() >= 0 && indices.back() < size));
    }
  CHECK(random_indices(5, 1000, 1000).back() == 999);  // all of them
  CHECK(random_indices(5, 100000, 100) == random_indices(5, 100000, 100));
  CHECK(random_indices(5, 100000, 100) != random_indices(6, 100000, 100));
  CHECK_THROWS_AS(random_indices(5, 10, 11), std::invalid_argument);
  // Every index equally often: chi-squared over 50 keys, 100 cells; and pairs: how often two keys share indices.
  std::vector<double> cells(100);
  Index shared = 0;
  std::vector<Index> last;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto indices = random_indices(stream_key(seed, "kernels_test"), 10000, 500);
    for (const Index index : indices) ++cells[static_cast<std::size_t>(index / 100)];
    std::vector<Index> both;
    std::set_intersection(indices.begin(), indices.end(), last.begin(), last.end(), std::back_inserter(both));
    shared += std::ssize(both);
    last = indices;
  }
  double chi = 0;
  for (const double cell : cells) chi += (cell - 1000) * (cell - 1000) / 1000;
  CHECK(chi < 99 + 5 * std::sqrt(2 * 99.0));
  CHECK(chi > 99 - 5 * std::sqrt(2 * 99.0));
  CHECK(std::fabs(static_cast<double>(shared) - 199 * 25) < 5 * std::sqrt(199 * 25.0));
}

TEST_CASE("scatter_add adds where it is told") {
  for (const Kernels* kernels : every_back_end()) {
    std::vector<float> values{1, 2, 3, 4, 5};
    kernels->scatter_add(values, std::vector<Index>{11, 14}, 10, std::vector<float>{0.5F, -5});
    CHECK(values == std::vector<float>{1, 2.5F, 3, 4, 0});
    CHECK_THROWS_AS(kernels->scatter_add(values, std::vector<Index>{11}, 10, std::vector<float>{}), std::invalid_argument);
  }
}

TEST_CASE("a counted union has the members of the union and how many lists hold each, whatever the method") {
  Random random(stream_key(9, "kernels_test"));
  for (const Index size : {Index{1}, Index{64}, Index{1000}, Index{300000}})
    for (const std::size_t lists : {0, 1, 2, 5, 32})
      for (const Index each : {Index{0}, Index{1}, Index{50}, std::min(size, Index{2000})}) {
        std::vector<std::vector<Index>> sets(lists);
        std::map<Index, std::int32_t> expected;
        for (std::size_t list = 0; list < lists; ++list) {
          std::set<Index> chosen;
          if (list != 1)  // one list stays empty
            for (Index i = 0; i < each; ++i) chosen.insert(static_cast<Index>(random.below(static_cast<std::uint64_t>(size))));
          sets[list].assign(chosen.begin(), chosen.end());
          for (const Index index : chosen) ++expected[index];
        }
        std::vector<Index> indices;
        std::vector<std::int32_t> counts;
        for (const auto& [index, count] : expected) {
          indices.push_back(index);
          counts.push_back(count);
        }
        for (const UniteMethod method : {UniteMethod::automatic, UniteMethod::bitmap, UniteMethod::merge, UniteMethod::sort}) {
          std::vector<std::int32_t> found{7};
          CAPTURE(size, lists, each, static_cast<int>(method));
          REQUIRE(cpu_kernels().unite_counted(sets, size, found, method) == indices);
          REQUIRE(found == counts);
        }
        REQUIRE(cpu_kernels().unite(sets, size) == indices);  // the bitmap is clean
      }
  std::vector<std::int32_t> counts;
  CHECK_THROWS_AS(cpu_kernels().unite_counted(std::vector<std::vector<Index>>{{0}, {5}}, 5, counts), std::invalid_argument);
}
