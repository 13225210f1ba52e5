#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/operations.hpp"

namespace sparscale::kernels::cuda {

void sort_keys(void* temporary, std::size_t& bytes, const std::uint32_t* keys, std::uint32_t* sorted, std::int64_t size,
               cudaStream_t stream) {
  check(cub::DeviceRadixSort::SortKeys(temporary, bytes, keys, sorted, size, 0, 32, stream), "sort of indices");
}

}  // namespace sparscale::kernels::cuda
