// What the host and the kernels of unite.cuh tell each other. Plain C++17.
#pragma once

#include <cstdint>

#include "kernels/cuda/fused_types.hpp"

namespace sparscale::kernels::cuda::unite {

constexpr unsigned kChunkWords = 1024;  // words of the bitmap that one warp goes through

inline long long words_of(long long size) { return (size + 31) / 32; }
inline long long chunks_of(long long size) { return (words_of(size) + kChunkWords - 1) / kChunkWords; }

/// Device memory of one union of indices in [0, size): words_of(size) words, all zero, and chunks_of(size) places of each other kind.
struct Space {
  std::uint32_t* words = nullptr;
  std::uint32_t* in_chunk = nullptr;
  unsigned long long* before_chunk = nullptr;
  unsigned long long* scratch = nullptr;
  std::uint32_t* before_word = nullptr;  // words_of(size) places; only with multiplicities
  fused::State* state = nullptr;         // afterwards state->selected is the size of the union
  std::uint32_t* bins = nullptr;         // fused::kBins
};

}  // namespace sparscale::kernels::cuda::unite
