#include "sim/sparsifiers/python_random.hpp"

#include <bit>

namespace sparscale::sim {

PythonRandom::PythonRandom(std::uint64_t seed) {
  constexpr std::size_t size = 624;
  state_[0] = 19650218U;
  for (std::size_t i = 1; i < size; ++i) state_[i] = 1812433253U * (state_[i - 1] ^ (state_[i - 1] >> 30)) + static_cast<std::uint32_t>(i);
  const std::array<std::uint32_t, 2> key = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  const std::size_t length = key[1] == 0 ? 1 : 2;
  std::size_t i = 1, j = 0;
  const auto advance = [&] {
    if (++i == size) {
      state_[0] = state_[size - 1];
      i = 1;
    }
  };
  for (std::size_t step = 0; step < size; ++step) {
    state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1664525U)) + key[j] + static_cast<std::uint32_t>(j);
    advance();
    j = (j + 1) % length;
  }
  for (std::size_t step = 0; step + 1 < size; ++step) {
    state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1566083941U)) - static_cast<std::uint32_t>(i);
    advance();
  }
  state_[0] = 0x80000000U;
}

std::uint32_t PythonRandom::next() {
  if (position_ == state_.size()) {
    for (std::size_t i = 0; i < state_.size(); ++i) {
      const std::uint32_t bits = (state_[i] & 0x80000000U) | (state_[(i + 1) % 624] & 0x7fffffffU);
      state_[i] = state_[(i + 397) % 624] ^ (bits >> 1) ^ ((bits & 1U) != 0 ? 0x9908b0dfU : 0U);
    }
    position_ = 0;
  }
  std::uint32_t word = state_[position_++];
  word ^= word >> 11;
  word ^= (word << 7) & 0x9d2c5680U;
  word ^= (word << 15) & 0xefc60000U;
  return word ^ (word >> 18);
}

std::uint64_t PythonRandom::below(std::uint64_t bound) {
  const int bits = static_cast<int>(std::bit_width(bound));
  for (;;) {
    std::uint64_t draw = 0;
    if (bits <= 32) {
      draw = next() >> (32 - bits);
    } else {  // low word first, the last word gives its top bits
      draw = next();
      draw |= static_cast<std::uint64_t>(next() >> (64 - bits)) << 32;
    }
    if (draw < bound) return draw;
  }
}

}  // namespace sparscale::sim
