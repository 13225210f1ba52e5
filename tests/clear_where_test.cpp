#include "sim/clear_where.hpp"

#include <vector>

#include "base/random.hpp"
#include "tests/catch.hpp"

using namespace sparscale;

TEST_CASE("Entries become zero where a bit is set, and nowhere else") {
  Random random(stream_key(1, "bits", {}));
  for (const std::size_t size : {1U, 63U, 64U, 65U, 1000U, 4096U, 5003U})
    for (const double share : {0.0, 0.01, 0.5, 1.0}) {
      CAPTURE(size, share);
      std::vector<std::int64_t> indices;
      std::vector<float> values(size + 1, 7), expected(size + 1, 7);
      for (std::size_t i = 0; i < size; ++i)
        if (random.uniform() < share) {
          indices.push_back(static_cast<std::int64_t>(i));
          expected[i] = 0;
        }
      std::vector<std::uint64_t> words(99, ~std::uint64_t{0});
      sim::mark_bits(indices, static_cast<std::int64_t>(size), words);
      sim::clear_where({values.data(), size}, words.data());
      CHECK(values == expected);
    }
}

TEST_CASE("Positions of set bits are written in order, and the bits cleared") {
  Random random(stream_key(2, "bits", {}));
  for (const double share : {0.0, 0.005, 0.03, 0.5, 1.0}) {
    CAPTURE(share);
    std::vector<std::uint64_t> words(50);
    std::vector<std::int64_t> expected;
    for (std::int64_t i = 0; i < 64 * 50; ++i)
      if (random.uniform() < share) {
        words[static_cast<std::size_t>(i / 64)] |= std::uint64_t{1} << (i % 64);
        expected.push_back(1000 + i);
      }
    std::vector<std::int64_t> found(expected.size() + sim::drained_slack);
    sim::drain_bits(words, 1000, found.data());
    found.resize(expected.size());
    CHECK(found == expected);
    CHECK(words == std::vector<std::uint64_t>(50));
  }
}
