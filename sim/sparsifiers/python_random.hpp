// The integers that Python's random.Random(seed).randrange(bound) gives: a sparsifier that samples must draw the authors' samples to be
// theirs.
#pragma once

#include <array>
#include <cstdint>

namespace sparscale::sim {

/// MT19937 (Matsumoto, Nishimura, 1998) seeded by array, as CPython seeds it with the absolute value of an integer.
class PythonRandom {
 public:
  explicit PythonRandom(std::uint64_t seed);
  /// Uniform in [0, bound), as randrange(bound): the top bits of a draw, drawn again while too large. bound >= 1.
  std::uint64_t below(std::uint64_t bound);

 private:
  std::uint32_t next();
  std::array<std::uint32_t, 624> state_;
  std::size_t position_ = 624;
};

}  // namespace sparscale::sim
