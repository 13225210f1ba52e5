// The device side of the CUDA back-end: everything works on device memory, in order, on one stream, and returns before it is done.
// Plain C++17, since nvcc and the host compiler both read it. Errors: all throw DeviceError.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "kernels/cuda/fused_types.hpp"
#include "kernels/cuda/unite_types.hpp"
#include "kernels/fixed_sums.hpp"
#include "kernels/permutation.hpp"

namespace sparscale::kernels::cuda {

struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void check(cudaError_t code, const char* what) {
  if (code != cudaSuccess) throw DeviceError(std::string("CUDA kernels: ") + what + ": " + cudaGetErrorString(code));
}

constexpr std::int64_t kSumTile = static_cast<std::int64_t>(kernels::kSumTile);

// elementwise.cu
cudaError_t probe();  // cudaSuccess when this GPU can run the code
void accumulate(const float* gradient, float scale, float* accumulator, std::int64_t size, cudaStream_t stream);
void zero(float* values, const std::int64_t* indices, std::int64_t count, std::int64_t first, cudaStream_t stream);
void gather(const float* values, const std::int64_t* indices, std::int64_t count, std::int64_t first, float* out, cudaStream_t stream);
void cast_half(float* values, std::int64_t size, cudaStream_t stream);
/// *result = number of keys in [lowest, lowest + span].
void count(const float* values, std::int64_t size, std::uint32_t lowest, std::uint32_t span, unsigned long long* result,
           cudaStream_t stream);
/// sums[t] = sum of squares of tile t.
void sum_squares(const float* values, std::int64_t size, double* sums, cudaStream_t stream);
/// sums[4 t + s] = sum s of CpuTable::moments over tile t, zeros[t] its zeros.
void moments(const float* values, std::int64_t size, double* sums, unsigned long long* zeros, cudaStream_t stream);
void block_maxima(const float* values, std::int64_t size, std::int64_t block, float* out, cudaStream_t stream);
void scatter_add(float* values, const std::int64_t* indices, std::int64_t count, std::int64_t first, const float* in, cudaStream_t stream);
/// out[i] = values[start + i * stride].
void strided(const float* values, std::int64_t start, std::int64_t stride, std::int64_t count, float* out, cudaStream_t stream);
/// Where the permutation sends 0 .. count - 1, in that order.
void random_indices(const Permutation& permutation, std::int64_t count, std::int64_t* out, cudaStream_t stream);
/// keys[i] = bits of |values[i]|, positions[i] = i.
void keys_and_positions(const float* values, std::int64_t size, std::uint32_t* keys, std::uint32_t* positions, cudaStream_t stream);
/// out[i] = first + positions[i].
void widen(const std::uint32_t* positions, std::int64_t size, std::int64_t first, std::int64_t* out, cudaStream_t stream);
void narrow(const std::int64_t* indices, std::int64_t size, std::uint32_t* out, cudaStream_t stream);

// fused.cu: the selection kernels of fused.cuh, in the order of fused_run.hpp.
void fused_threshold(const fused::Task& task, std::uint32_t lowest, const fused::Space& space, cudaStream_t stream);
void fused_sampled(const fused::Task& task, long long k, const fused::Space& space, cudaStream_t stream);
void fused_radix(const fused::Task& task, long long k, const fused::Space& space, cudaStream_t stream);
void fused_kth(const float* values, long long size, long long k, const fused::Space& space, cudaStream_t stream);

// unite.cu: the kernels of unite.cuh.
/// The union of `count` indices in [0, size), and with `multiplicities` (`count` places) how many lists hold each; clears what it needs.
void unite_bitmap(const std::int64_t* indices, std::int64_t count, std::int64_t size, const unite::Space& space, std::int64_t* out,
                  std::int32_t* multiplicities, cudaStream_t stream);
/// How often each of *distinct_count distinct values is among the `count` sorted ones.
void run_lengths(const std::uint32_t* sorted, std::int64_t count, const std::uint32_t* distinct, const std::int64_t* distinct_count,
                 std::int32_t* multiplicities, cudaStream_t stream);

// The CUB algorithms, one for each file. With temporary == nullptr they only set `bytes`, the temporary memory that they need.

/// select.cu (DeviceSelect::If): first + i of every key in [lowest, lowest + span], ascending, and how many.
void select(void* temporary, std::size_t& bytes, const float* values, std::int64_t size, std::uint32_t lowest, std::uint32_t span,
            std::int64_t first, std::int64_t* out, std::int64_t* selected, cudaStream_t stream);
/// sort_pairs.cu (DeviceRadixSort): by key, descending; equal keys keep their order, so the lower position comes first.
void sort_pairs(void* temporary, std::size_t& bytes, const std::uint32_t* keys, std::uint32_t* sorted_keys, const std::uint32_t* positions,
                std::uint32_t* sorted_positions, std::int64_t size, cudaStream_t stream);
/// sort_keys.cu (DeviceRadixSort): ascending.
void sort_keys(void* temporary, std::size_t& bytes, const std::uint32_t* keys, std::uint32_t* sorted, std::int64_t size,
               cudaStream_t stream);
/// unique.cu (DeviceSelect::Unique): without repetitions, and how many.
void unique(void* temporary, std::size_t& bytes, const std::uint32_t* sorted, std::uint32_t* out, std::int64_t* left, std::int64_t size,
            cudaStream_t stream);

/// segment_sums.cu (DeviceSegmentedReduce): sums[s] = sum of squares of [offsets[s], offsets[s + 1]) in double, in CUB's order.
void segment_sums(void* temporary, std::size_t& bytes, const float* values, const std::int64_t* offsets, std::int64_t segments,
                  double* sums, cudaStream_t stream);
/// device_topk.cu (DeviceTopK, of CCCL 3.2 and newer): positions of k largest in no order, ties at random. For comparison of speed only.
bool has_device_topk();
void device_topk(void* temporary, std::size_t& bytes, const float* values, std::int64_t size, std::int64_t k, std::uint32_t* keys,
                 std::uint32_t* positions, cudaStream_t stream);

}  // namespace sparscale::kernels::cuda
