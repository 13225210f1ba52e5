// A keyed permutation of [0, size): a Feistel network over the next even number of bits, walked until it lands inside (Black and Rogaway,
// CT-RSA 2002, cycle walking). 32-bit arithmetic only, read by the host compiler and by nvcc, and the same on both.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define SPARSCALE_HOST_DEVICE __host__ __device__
#else
#define SPARSCALE_HOST_DEVICE
#endif

namespace sparscale::kernels {

struct Permutation {
  static constexpr int kRounds = 6;
  std::uint32_t keys[kRounds] = {};
  std::uint32_t half_bits = 1;
  std::uint64_t size = 1;
};

/// The permutation of [0, size), 1 <= size <= 2^62, that belongs to a key.
inline Permutation make_permutation(std::uint64_t key, std::uint64_t size) {
  Permutation permutation;
  permutation.size = size;
  while (permutation.half_bits < 31 && size > std::uint64_t{1} << (2 * permutation.half_bits)) ++permutation.half_bits;
  for (int round = 0; round < Permutation::kRounds; ++round) {
    key += 0x9e3779b97f4a7c15ULL;  // SplitMix64
    std::uint64_t word = key;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ULL;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebULL;
    permutation.keys[round] = static_cast<std::uint32_t>((word ^ (word >> 31)) >> 16);
  }
  return permutation;
}

/// Where the permutation sends `place` (below its size). At most four steps of the network on average.
SPARSCALE_HOST_DEVICE inline std::uint64_t permuted(const Permutation& permutation, std::uint64_t place) {
  const std::uint32_t bits = permutation.half_bits, mask = (std::uint32_t{1} << bits) - 1;
  do {
    std::uint32_t left = static_cast<std::uint32_t>(place >> bits), right = static_cast<std::uint32_t>(place) & mask;
    for (int round = 0; round < Permutation::kRounds; ++round) {
      std::uint32_t word = right ^ permutation.keys[round];  // the finaliser of MurmurHash3 (Appleby, public domain)
      word = (word ^ (word >> 16)) * 0x85ebca6bU;
      word = (word ^ (word >> 13)) * 0xc2b2ae35U;
      word ^= word >> 16;
      const std::uint32_t next = left ^ (word & mask);
      left = right;
      right = next;
    }
    place = static_cast<std::uint64_t>(left) << bits | right;
  } while (place >= permutation.size);
  return place;
}

}  // namespace sparscale::kernels
