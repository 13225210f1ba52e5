// Launches kernels one after another on a stream.
#pragma once

#include "kernels/cuda/operations.hpp"

namespace sparscale::kernels::cuda {

/// Called with a kernel, its blocks and threads and its arguments. Errors: as check(), naming `what`.
struct OnStream {
  cudaStream_t stream;
  const char* what;
  template <typename Kernel, typename... Arguments>
  void operator()(Kernel kernel, unsigned blocks, unsigned threads, Arguments... arguments) const {
    kernel<<<blocks, threads, 0, stream>>>(arguments...);
    check(cudaGetLastError(), what);
  }
};

}  // namespace sparscale::kernels::cuda
