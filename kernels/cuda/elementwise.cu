#include <cuda_fp16.h>

#include <algorithm>

#include "kernels/cuda/operations.hpp"

namespace sparscale::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__device__ std::uint32_t key_of(float value) { return __float_as_uint(value) & 0x7fffffffU; }
__device__ std::int64_t thread_index() { return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ std::int64_t thread_count() { return static_cast<std::int64_t>(gridDim.x) * blockDim.x; }

unsigned blocks_for(std::int64_t size) {
  return static_cast<unsigned>(std::clamp<std::int64_t>((size + kThreads - 1) / kThreads, 1, 1 << 20));
}

__global__ void accumulate_kernel(const float* gradient, float scale, float* accumulator, std::int64_t size) {
  for (std::int64_t i = thread_index(); i < size; i += thread_count()) accumulator[i] = __fmaf_rn(scale, gradient[i], accumulator[i]);
}

__global__ void zero_kernel(float* values, const std::int64_t* indices, std::int64_t count, std::int64_t first) {
  for (std::int64_t i = thread_index(); i < count; i += thread_count()) values[indices[i] - first] = 0.0F;
}

__global__ void gather_kernel(const float* values, const std::int64_t* indices, std::int64_t count, std::int64_t first, float* out) {
  for (std::int64_t i = thread_index(); i < count; i += thread_count()) out[i] = values[indices[i] - first];
}

// The conversion makes every NaN one value; the CPU keeps the upper bits of its payload, so NaN goes another way.
__global__ void cast_half_kernel(float* values, std::int64_t size) {
  for (std::int64_t i = thread_index(); i < size; i += thread_count()) {
    const std::uint32_t bits = __float_as_uint(values[i]);
    if ((bits & 0x7fffffffU) > 0x7f800000U)
      values[i] = __uint_as_float((bits & 0x80000000U) | 0x7fc00000U | (bits & 0x007fe000U));
    else
      values[i] = __half2float(__float2half_rn(values[i]));
  }
}

__global__ void count_kernel(const float* values, std::int64_t size, std::uint32_t lowest, std::uint32_t span, unsigned long long* result) {
  unsigned long long found = 0;
  for (std::int64_t i = thread_index(); i < size; i += thread_count()) found += key_of(values[i]) - lowest <= span ? 1 : 0;
  for (int step = 16; step > 0; step /= 2) found += __shfl_down_sync(0xffffffffU, found, step);
  if (threadIdx.x % 32 == 0 && found > 0) atomicAdd(result, found);
}

// A warp for each tile, a lane of the warp for each lane of the sum: the order of cpu_table.hpp.
__global__ void sum_squares_kernel(const float* values, std::int64_t size, double* sums, std::int64_t tiles) {
  const unsigned lane = threadIdx.x % 32;
  for (std::int64_t tile = thread_index() / 32; tile < tiles; tile += thread_count() / 32) {
    const std::int64_t end = min((tile + 1) * kSumTile, size);
    double sum = 0;
    for (std::int64_t i = tile * kSumTile + lane; i < end; i += 32) {
      const double value = values[i];
      sum = __dadd_rn(sum, __dmul_rn(value, value));
    }
    for (int step = 16; step > 0; step /= 2) sum = __dadd_rn(sum, __shfl_down_sync(0xffffffffU, sum, step));
    if (lane == 0) sums[tile] = sum;
  }
}

__global__ void keys_kernel(const float* values, std::int64_t size, std::uint32_t* keys, std::uint32_t* positions) {
  for (std::int64_t i = thread_index(); i < size; i += thread_count()) {
    keys[i] = key_of(values[i]);
    positions[i] = static_cast<std::uint32_t>(i);
  }
}

__global__ void widen_kernel(const std::uint32_t* positions, std::int64_t size, std::int64_t first, std::int64_t* out) {
  for (std::int64_t i = thread_index(); i < size; i += thread_count()) out[i] = first + positions[i];
}

__global__ void narrow_kernel(const std::int64_t* indices, std::int64_t size, std::uint32_t* out) {
  for (std::int64_t i = thread_index(); i < size; i += thread_count()) out[i] = static_cast<std::uint32_t>(indices[i]);
}

}  // namespace

cudaError_t probe() {
  cudaFuncAttributes attributes{};
  const cudaError_t code = cudaFuncGetAttributes(&attributes, accumulate_kernel);
  if (code != cudaSuccess) static_cast<void>(cudaGetLastError());
  return code;
}

void accumulate(const float* gradient, float scale, float* accumulator, std::int64_t size, cudaStream_t stream) {
  accumulate_kernel<<<blocks_for(size), kThreads, 0, stream>>>(gradient, scale, accumulator, size);
  check(cudaGetLastError(), "accumulate");
}

void zero(float* values, const std::int64_t* indices, std::int64_t count, std::int64_t first, cudaStream_t stream) {
  zero_kernel<<<blocks_for(count), kThreads, 0, stream>>>(values, indices, count, first);
  check(cudaGetLastError(), "zero");
}

void gather(const float* values, const std::int64_t* indices, std::int64_t count, std::int64_t first, float* out, cudaStream_t stream) {
  gather_kernel<<<blocks_for(count), kThreads, 0, stream>>>(values, indices, count, first, out);
  check(cudaGetLastError(), "gather");
}

void cast_half(float* values, std::int64_t size, cudaStream_t stream) {
  cast_half_kernel<<<blocks_for(size), kThreads, 0, stream>>>(values, size);
  check(cudaGetLastError(), "cast_half");
}

void count(const float* values, std::int64_t size, std::uint32_t lowest, std::uint32_t span, unsigned long long* result,
           cudaStream_t stream) {
  check(cudaMemsetAsync(result, 0, sizeof *result, stream), "count");
  // Few blocks, so that few of them add to the one result.
  count_kernel<<<std::min(blocks_for(size), 2048U), kThreads, 0, stream>>>(values, size, lowest, span, result);
  check(cudaGetLastError(), "count");
}

void sum_squares(const float* values, std::int64_t size, double* sums, cudaStream_t stream) {
  const std::int64_t tiles = (size + kSumTile - 1) / kSumTile;
  if (tiles == 0) return;
  sum_squares_kernel<<<blocks_for(tiles * 32), kThreads, 0, stream>>>(values, size, sums, tiles);
  check(cudaGetLastError(), "l2_norm");
}

void keys_and_positions(const float* values, std::int64_t size, std::uint32_t* keys, std::uint32_t* positions, cudaStream_t stream) {
  keys_kernel<<<blocks_for(size), kThreads, 0, stream>>>(values, size, keys, positions);
  check(cudaGetLastError(), "topk");
}

void widen(const std::uint32_t* positions, std::int64_t size, std::int64_t first, std::int64_t* out, cudaStream_t stream) {
  widen_kernel<<<blocks_for(size), kThreads, 0, stream>>>(positions, size, first, out);
  check(cudaGetLastError(), "topk");
}

void narrow(const std::int64_t* indices, std::int64_t size, std::uint32_t* out, cudaStream_t stream) {
  narrow_kernel<<<blocks_for(size), kThreads, 0, stream>>>(indices, size, out);
  check(cudaGetLastError(), "unite");
}

}  // namespace sparscale::kernels::cuda
