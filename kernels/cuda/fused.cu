#include "kernels/cuda/fused_run.hpp"
#include "kernels/cuda/on_stream.hpp"

namespace sparscale::kernels::cuda {

void fused_threshold(const fused::Task& task, std::uint32_t lowest, const fused::Space& space, cudaStream_t stream) {
  fused::run_threshold(OnStream{stream, "fused selection"}, task, lowest, space);
}

void fused_sampled(const fused::Task& task, long long k, const fused::Space& space, cudaStream_t stream) {
  fused::run_sampled(OnStream{stream, "fused selection"}, task, k, space);
}

void fused_radix(const fused::Task& task, long long k, const fused::Space& space, cudaStream_t stream) {
  fused::run_radix(OnStream{stream, "fused selection"}, task, k, space);
}

void fused_kth(const float* values, long long size, long long k, const fused::Space& space, cudaStream_t stream) {
  fused::run_kth(OnStream{stream, "fused selection"}, values, size, k, space);
}

}  // namespace sparscale::kernels::cuda
