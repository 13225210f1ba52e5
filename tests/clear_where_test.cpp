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
