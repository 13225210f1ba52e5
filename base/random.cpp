#include "base/random.hpp"

#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

namespace sparscale {

std::uint64_t stream_key(std::uint64_t seed, std::string_view purpose, std::initializer_list<std::uint64_t> numbers) {
  std::uint64_t key = mix64(seed);
  for (const char c : purpose) key = mix64(key ^ static_cast<unsigned char>(c));
  for (const std::uint64_t number : numbers) key = mix64(key ^ mix64(number));
  return key;
}

std::uint64_t Random::below(std::uint64_t bound) {
  __extension__ using Wide = unsigned __int128;
  Wide product = static_cast<Wide>(next()) * bound;
  auto low = static_cast<std::uint64_t>(product);
  if (low < bound) {
    const std::uint64_t threshold = (0 - bound) % bound;
    while (low < threshold) {
      product = static_cast<Wide>(next()) * bound;
      low = static_cast<std::uint64_t>(product);
    }
  }
  return static_cast<std::uint64_t>(product >> 64);
}

double Random::normal() {
  const double u = 1.0 - uniform();
  const double v = uniform();
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

std::vector<std::int64_t> random_permutation(std::int64_t size, Random& random) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

}  // namespace sparscale
