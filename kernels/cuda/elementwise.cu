#include <algorithm>

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/operations.hpp"

namespace sparscale::kernels::cuda {
namespace {

constexpr int kThreads = 256;

unsigned blocks_for(std::int64_t size) {
  return static_cast<unsigned>(std::clamp<std::int64_t>((size + kThreads - 1) / kThreads, 1, 1 << 20));
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

void moments(const float* values, std::int64_t size, double* sums, unsigned long long* zeros, cudaStream_t stream) {
  const std::int64_t tiles = (size + kSumTile - 1) / kSumTile;
  if (tiles == 0) return;
  moments_kernel<<<blocks_for(tiles * 32), kThreads, 0, stream>>>(values, size, sums, zeros, tiles);
  check(cudaGetLastError(), "moments");
}

void block_maxima(const float* values, std::int64_t size, std::int64_t block, float* out, cudaStream_t stream) {
  const std::int64_t blocks = (size + block - 1) / block;
  if (blocks == 0) return;
  block_maxima_kernel<<<blocks_for(blocks * 32), kThreads, 0, stream>>>(values, size, block, out, blocks);
  check(cudaGetLastError(), "block_maxima");
}

void scatter_add(float* values, const std::int64_t* indices, std::int64_t count, std::int64_t first, const float* in, cudaStream_t stream) {
  scatter_add_kernel<<<blocks_for(count), kThreads, 0, stream>>>(values, indices, count, first, in);
  check(cudaGetLastError(), "scatter_add");
}

void strided(const float* values, std::int64_t start, std::int64_t stride, std::int64_t count, float* out, cudaStream_t stream) {
  strided_kernel<<<blocks_for(count), kThreads, 0, stream>>>(values, start, stride, count, out);
  check(cudaGetLastError(), "sampled_threshold");
}

void random_indices(const Permutation& permutation, std::int64_t count, std::int64_t* out, cudaStream_t stream) {
  permuted_kernel<<<blocks_for(count), kThreads, 0, stream>>>(permutation, count, out);
  check(cudaGetLastError(), "random_indices");
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
