// Seeded random numbers that are the same on every machine, library and thread count.
//
// A stream is named by what it is for (purpose) and by numbers (iteration, worker, ...), never by the order of calls.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

namespace sparscale {

/// One well-mixed 64-bit word from another (the finaliser of SplitMix64; Steele, Lea, Flood, OOPSLA 2014).
constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// A key for a stream: seed, purpose and any numbers. Different arguments give unrelated keys.
std::uint64_t stream_key(std::uint64_t seed, std::string_view purpose, std::initializer_list<std::uint64_t> numbers = {});

/// A stream of random numbers from one key (SplitMix64).
class Random {
 public:
  explicit Random(std::uint64_t key) : state_(key) {}
  std::uint64_t next() {
    const std::uint64_t word = mix64(state_);
    state_ += 0x9e3779b97f4a7c15ULL;
    return word;
  }
  /// Uniform in [0, 1), 53 bits.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  /// Uniform in [0, bound), without bias (Lemire's method). bound >= 1.
  std::uint64_t below(std::uint64_t bound);
  /// Standard normal (Box-Muller, one value per call).
  double normal();

 private:
  std::uint64_t state_;
};

/// A random permutation of 0..size-1 (Fisher-Yates).
std::vector<std::int64_t> random_permutation(std::int64_t size, Random& random);

}  // namespace sparscale
