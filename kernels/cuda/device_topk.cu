// Only compiled where it compiles (kernels/CMakeLists.txt tries): DeviceTopK came with CCCL 3.2 and its interface may still move.
#include <cub/device/device_topk.cuh>
#include <cuda/iterator>
#include <cuda/stream_ref>

#include "kernels/cuda/operations.hpp"

namespace sparscale::kernels::cuda {
namespace {

struct KeyOf {
  __host__ __device__ std::uint32_t operator()(float value) const {
    union {
      float number;
      std::uint32_t bits;
    } both{value};
    return both.bits & 0x7fffffffU;
  }
};

}  // namespace

bool has_device_topk() { return true; }

void device_topk(void* temporary, std::size_t& bytes, const float* values, std::int64_t size, std::int64_t k, std::uint32_t* keys,
                 std::uint32_t* positions, cudaStream_t stream) {
  const auto requirements =
      ::cuda::execution::require(::cuda::execution::determinism::not_guaranteed, ::cuda::execution::output_ordering::unsorted);
  const auto environment = ::cuda::std::execution::env{::cuda::stream_ref{stream}, requirements};
  check(cub::DeviceTopK::MaxPairs(temporary, bytes, ::cuda::make_transform_iterator(values, KeyOf()), keys,
                                  ::cuda::make_counting_iterator(std::uint32_t{0}), positions, size, k, environment),
        "DeviceTopK");
}

}  // namespace sparscale::kernels::cuda
