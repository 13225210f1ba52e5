#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/operations.hpp"

namespace sparscale::kernels::cuda {

void sort_pairs(void* temporary, std::size_t& bytes, const std::uint32_t* keys, std::uint32_t* sorted_keys, const std::uint32_t* positions,
                std::uint32_t* sorted_positions, std::int64_t size, cudaStream_t stream) {
  // The sign bit is clear in every key.
  check(cub::DeviceRadixSort::SortPairsDescending(temporary, bytes, keys, sorted_keys, positions, sorted_positions, size, 0, 31, stream),
        "topk");
}

}  // namespace sparscale::kernels::cuda
