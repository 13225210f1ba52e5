#include <thrust/iterator/counting_iterator.h>

#include <cub/device/device_select.cuh>

#include "kernels/cuda/operations.hpp"

namespace sparscale::kernels::cuda {
namespace {

struct InRange {
  const float* values;
  std::uint32_t lowest, span;
  std::int64_t first;
  __device__ bool operator()(std::int64_t index) const { return (__float_as_uint(values[index - first]) & 0x7fffffffU) - lowest <= span; }
};

}  // namespace

void select(void* temporary, std::size_t& bytes, const float* values, std::int64_t size, std::uint32_t lowest, std::uint32_t span,
            std::int64_t first, std::int64_t* out, std::int64_t* selected, cudaStream_t stream) {
  check(cub::DeviceSelect::If(temporary, bytes, thrust::counting_iterator<std::int64_t>(first), out, selected, size,
                              InRange{values, lowest, span, first}, stream),
        "threshold_select");
}

}  // namespace sparscale::kernels::cuda
