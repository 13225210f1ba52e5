// What stands in for the CUDA back-end when the project is built without it.
#include "base/error.hpp"
#include "kernels/cuda/cuda.hpp"

namespace sparscale::kernels::cuda {

std::string unavailable() { return "built without CUDA (configure with nvcc in reach, or SPARSCALE_CUDA=ON to insist)"; }
const Kernels& kernels(bool) { throw RunError("CUDA kernels: " + unavailable()); }
std::vector<Index> random_indices(std::uint64_t, Index, Index) { throw RunError("CUDA kernels: " + unavailable()); }
std::unique_ptr<MeasuredDevice> measured_device(std::int64_t) { throw RunError("CUDA kernels: " + unavailable()); }

}  // namespace sparscale::kernels::cuda
