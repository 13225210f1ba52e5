#include <thrust/iterator/transform_iterator.h>

#include <cub/device/device_segmented_reduce.cuh>

#include "kernels/cuda/operations.hpp"

namespace sparscale::kernels::cuda {
namespace {

struct Square {
  __host__ __device__ double operator()(float value) const { return static_cast<double>(value) * static_cast<double>(value); }
};

}  // namespace

void segment_sums(void* temporary, std::size_t& bytes, const float* values, const std::int64_t* offsets, std::int64_t segments,
                  double* sums, cudaStream_t stream) {
  check(cub::DeviceSegmentedReduce::Sum(temporary, bytes, thrust::make_transform_iterator(values, Square()), sums, segments, offsets,
                                        offsets + 1, stream),
        "segment_norms");
}

}  // namespace sparscale::kernels::cuda
