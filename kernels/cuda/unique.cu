#include <cub/device/device_select.cuh>

#include "kernels/cuda/operations.hpp"

namespace sparscale::kernels::cuda {

void unique(void* temporary, std::size_t& bytes, const std::uint32_t* sorted, std::uint32_t* out, std::int64_t* left, std::int64_t size,
            cudaStream_t stream) {
  check(cub::DeviceSelect::Unique(temporary, bytes, sorted, out, left, size, stream), "unite");
}

}  // namespace sparscale::kernels::cuda
