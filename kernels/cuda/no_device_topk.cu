#include "kernels/cuda/operations.hpp"

namespace sparscale::kernels::cuda {

bool has_device_topk() { return false; }
void device_topk(void*, std::size_t&, const float*, std::int64_t, std::int64_t, std::uint32_t*, std::uint32_t*, cudaStream_t) {
  throw DeviceError("CUDA kernels: this toolkit has no DeviceTopK");
}

}  // namespace sparscale::kernels::cuda
