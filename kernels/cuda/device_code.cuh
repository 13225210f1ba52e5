// What all device code shares. Read by nvcc and, in the tests, by the host compiler after the emulator.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define SPARSCALE_KERNEL static __global__ void
#define SPARSCALE_BARRIER(number) __syncthreads()
#define SPARSCALE_SHARED(type, name, count) __shared__ type name[count]
#endif

namespace sparscale::kernels::cuda {

constexpr std::uint32_t kEveryLane = 0xffffffffU;
constexpr std::uint32_t kLargestKey = 0x7fffffffU;
constexpr std::uint32_t kInfinityKey = 0x7f800000U;

/// The bits of |x|.
inline __device__ std::uint32_t key_of(float value) { return __float_as_uint(value) & kLargestKey; }
inline __device__ unsigned lane_of() { return threadIdx.x % 32; }
inline __device__ std::uint32_t lower_lanes() { return (1U << lane_of()) - 1U; }
inline __device__ long long thread_index() { return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; }
inline __device__ long long thread_count() { return static_cast<long long>(gridDim.x) * blockDim.x; }
inline __device__ long long warp_index() { return static_cast<long long>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32; }
inline __device__ long long warp_count() { return static_cast<long long>(gridDim.x) * (blockDim.x / 32); }

}  // namespace sparscale::kernels::cuda
