#include "kernels/cuda/fused_run.hpp"
#include "kernels/cuda/operations.hpp"

namespace sparscale::kernels::cuda {
namespace {

struct OnStream {
  cudaStream_t stream;
  template <typename Kernel, typename... Arguments>
  void operator()(Kernel kernel, unsigned blocks, unsigned threads, Arguments... arguments) const {
    kernel<<<blocks, threads, 0, stream>>>(arguments...);
    check(cudaGetLastError(), "fused selection");
  }
};

}  // namespace

void fused_threshold(const fused::Task& task, std::uint32_t lowest, const fused::Space& space, cudaStream_t stream) {
  fused::run_threshold(OnStream{stream}, task, lowest, space);
}

void fused_sampled(const fused::Task& task, long long k, const fused::Space& space, cudaStream_t stream) {
  fused::run_sampled(OnStream{stream}, task, k, space);
}

void fused_radix(const fused::Task& task, long long k, const fused::Space& space, cudaStream_t stream) {
  fused::run_radix(OnStream{stream}, task, k, space);
}

void fused_kth(const float* values, long long size, long long k, const fused::Space& space, cudaStream_t stream) {
  fused::run_kth(OnStream{stream}, values, size, k, space);
}

}  // namespace sparscale::kernels::cuda
