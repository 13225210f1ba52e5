#include "kernels/cuda/on_stream.hpp"
#include "kernels/cuda/unite_run.hpp"

namespace sparscale::kernels::cuda {

void unite_bitmap(const std::int64_t* indices, std::int64_t count, std::int64_t size, const unite::Space& space, std::int64_t* out,
                  std::int32_t* multiplicities, cudaStream_t stream) {
  check(cudaMemsetAsync(space.words, 0, static_cast<std::size_t>(unite::words_of(size)) * sizeof(std::uint32_t), stream), "unite");
  if (multiplicities != nullptr)
    check(cudaMemsetAsync(multiplicities, 0, static_cast<std::size_t>(count) * sizeof(std::int32_t), stream), "unite");
  unite::run_bitmap(OnStream{stream, "unite"}, indices, count, size, space, out, multiplicities);
}

void run_lengths(const std::uint32_t* sorted, std::int64_t count, const std::uint32_t* distinct, const std::int64_t* distinct_count,
                 std::int32_t* multiplicities, cudaStream_t stream) {
  OnStream{stream, "unite"}(&unite::run_lengths_kernel, fused::detail::blocks_for(count, fused::kThreads, 4096), fused::kThreads, sorted,
                   static_cast<long long>(count), distinct, distinct_count, multiplicities);
}

}  // namespace sparscale::kernels::cuda
