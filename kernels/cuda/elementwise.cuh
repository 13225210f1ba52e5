// The kernels that do one thing to each element, and the sums in a fixed order. Read by nvcc and, in the tests, by the host compiler.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device_code.cuh"
#include "kernels/fixed_sums.hpp"
#include "kernels/permutation.hpp"
#if defined(__CUDACC__)
#include <cuda_fp16.h>
#endif

namespace sparscale::kernels::cuda {

#if defined(__CUDACC__)
inline __device__ float through_half(float value) { return __half2float(__float2half_rn(value)); }
#endif

SPARSCALE_KERNEL accumulate_kernel(const float* gradient, float scale, float* accumulator, std::int64_t size) {
  for (long long i = thread_index(); i < size; i += thread_count()) accumulator[i] = __fmaf_rn(scale, gradient[i], accumulator[i]);
}

SPARSCALE_KERNEL zero_kernel(float* values, const std::int64_t* indices, std::int64_t count, std::int64_t first) {
  for (long long i = thread_index(); i < count; i += thread_count()) values[indices[i] - first] = 0.0F;
}

SPARSCALE_KERNEL gather_kernel(const float* values, const std::int64_t* indices, std::int64_t count, std::int64_t first, float* out) {
  for (long long i = thread_index(); i < count; i += thread_count()) out[i] = values[indices[i] - first];
}

// The conversion makes every NaN one value; the CPU keeps the upper bits of its payload, so NaN goes another way.
SPARSCALE_KERNEL cast_half_kernel(float* values, std::int64_t size) {
  for (long long i = thread_index(); i < size; i += thread_count()) {
    const std::uint32_t bits = __float_as_uint(values[i]);
    if ((bits & 0x7fffffffU) > 0x7f800000U)
      values[i] = __uint_as_float((bits & 0x80000000U) | 0x7fc00000U | (bits & 0x007fe000U));
    else
      values[i] = through_half(values[i]);
  }
}

SPARSCALE_KERNEL count_kernel(const float* values, std::int64_t size, std::uint32_t lowest, std::uint32_t span,
                              unsigned long long* result) {
  unsigned long long found = 0;
  for (long long i = thread_index(); i < size; i += thread_count()) found += key_of(values[i]) - lowest <= span ? 1 : 0;
  for (unsigned step = 16; step > 0; step /= 2) found += __shfl_down_sync(kEveryLane, found, step);
  if (lane_of() == 0 && found > 0) atomicAdd(result, found);
}

// A warp for each tile, a lane of the warp for each lane of the sum: the order of cpu_table.hpp.
SPARSCALE_KERNEL sum_squares_kernel(const float* values, std::int64_t size, double* sums, std::int64_t tiles) {
  constexpr long long kTile = static_cast<long long>(kSumTile);
  const unsigned lane = lane_of();
  for (long long tile = warp_index(); tile < tiles; tile += warp_count()) {
    const long long end = (tile + 1) * kTile < size ? (tile + 1) * kTile : size;
    double sum = 0;
    for (long long i = tile * kTile + lane; i < end; i += 32) {
      const double value = values[i];
      sum = __dadd_rn(sum, __dmul_rn(value, value));
    }
    for (unsigned step = 16; step > 0; step /= 2) sum = __dadd_rn(sum, __shfl_down_sync(kEveryLane, sum, step));
    if (lane == 0) sums[tile] = sum;
  }
}

/// log2 |x| as fixed_sums.hpp says.
inline __device__ double log2_of(std::uint32_t key) {
  if (key - 1 >= kLargestFinite) return 0;
  std::uint32_t bits = key;
  std::int32_t exponent = 0;
  if (key < kLeastNormal) {
    bits = __float_as_uint(static_cast<float>(static_cast<std::int32_t>(key)));
    exponent = -149;
  }
  constexpr float kTerms[kLog2Terms] = {kLog2[0], kLog2[1], kLog2[2], kLog2[3], kLog2[4], kLog2[5], kLog2[6], kLog2[7], kLog2[8]};
  const std::int32_t shift = static_cast<std::int32_t>(bits - kLog2Base) >> 23;
  const float f = __fadd_rn(__uint_as_float(bits - (static_cast<std::uint32_t>(shift) << 23)), -1.0F);
  float p = kTerms[kLog2Terms - 1];
  for (int term = kLog2Terms - 2; term >= 0; --term) p = __fadd_rn(__fmul_rn(p, f), kTerms[term]);
  return __dadd_rn(static_cast<double>(exponent + shift), static_cast<double>(__fmul_rn(p, f)));
}

/// As sum_squares_kernel, for the four sums of CpuTable::moments (sums[4 t] to sums[4 t + 3] of tile t) and the number of zeros.
SPARSCALE_KERNEL moments_kernel(const float* values, std::int64_t size, double* sums, unsigned long long* zeros, std::int64_t tiles) {
  constexpr long long kTile = static_cast<long long>(kSumTile);
  const unsigned lane = lane_of();
  for (long long tile = warp_index(); tile < tiles; tile += warp_count()) {
    const long long end = (tile + 1) * kTile < size ? (tile + 1) * kTile : size;
    double own[kMomentSums] = {0, 0, 0, 0};
    unsigned long long none = 0;
    for (long long i = tile * kTile + lane; i < end; i += 32) {
      const std::uint32_t key = key_of(values[i]);
      const double value = values[i];
      own[0] = __dadd_rn(own[0], value);
      own[1] = __dadd_rn(own[1], static_cast<double>(__uint_as_float(key)));
      own[2] = __dadd_rn(own[2], __dmul_rn(value, value));
      own[3] = __dadd_rn(own[3], log2_of(key));
      none += key == 0 ? 1 : 0;
    }
    for (unsigned step = 16; step > 0; step /= 2) {
      for (double& sum : own) sum = __dadd_rn(sum, __shfl_down_sync(kEveryLane, sum, step));
      none += __shfl_down_sync(kEveryLane, none, step);
    }
    if (lane != 0) continue;
    for (std::size_t s = 0; s < kMomentSums; ++s) sums[tile * static_cast<long long>(kMomentSums) + static_cast<long long>(s)] = own[s];
    zeros[tile] = none;
  }
}

/// A warp for each block of the vector: its largest key, as a float.
SPARSCALE_KERNEL block_maxima_kernel(const float* values, std::int64_t size, std::int64_t block, float* out, std::int64_t blocks) {
  for (long long b = warp_index(); b < blocks; b += warp_count()) {
    const long long end = (b + 1) * block < size ? (b + 1) * block : size;
    std::uint32_t most = 0;
    for (long long i = b * block + lane_of(); i < end; i += 32) most = key_of(values[i]) > most ? key_of(values[i]) : most;
    for (unsigned step = 16; step > 0; step /= 2) {
      const std::uint32_t other = __shfl_down_sync(kEveryLane, most, step);
      most = other > most ? other : most;
    }
    if (lane_of() == 0) out[b] = __uint_as_float(most);
  }
}

SPARSCALE_KERNEL scatter_add_kernel(float* values, const std::int64_t* indices, std::int64_t count, std::int64_t first, const float* in) {
  for (long long i = thread_index(); i < count; i += thread_count())
    values[indices[i] - first] = __fadd_rn(values[indices[i] - first], in[i]);
}

SPARSCALE_KERNEL strided_kernel(const float* values, std::int64_t start, std::int64_t stride, std::int64_t count, float* out) {
  for (long long i = thread_index(); i < count; i += thread_count()) out[i] = values[start + i * stride];
}

/// Where the permutation sends 0 .. count - 1, in that order.
SPARSCALE_KERNEL permuted_kernel(Permutation permutation, std::int64_t count, std::int64_t* out) {
  for (long long i = thread_index(); i < count; i += thread_count())
    out[i] = static_cast<std::int64_t>(permuted(permutation, static_cast<std::uint64_t>(i)));
}

SPARSCALE_KERNEL keys_kernel(const float* values, std::int64_t size, std::uint32_t* keys, std::uint32_t* positions) {
  for (long long i = thread_index(); i < size; i += thread_count()) {
    keys[i] = key_of(values[i]);
    positions[i] = static_cast<std::uint32_t>(i);
  }
}

SPARSCALE_KERNEL widen_kernel(const std::uint32_t* positions, std::int64_t size, std::int64_t first, std::int64_t* out) {
  for (long long i = thread_index(); i < size; i += thread_count()) out[i] = first + positions[i];
}

SPARSCALE_KERNEL narrow_kernel(const std::int64_t* indices, std::int64_t size, std::uint32_t* out) {
  for (long long i = thread_index(); i < size; i += thread_count()) out[i] = static_cast<std::uint32_t>(indices[i]);
}

}  // namespace sparscale::kernels::cuda
