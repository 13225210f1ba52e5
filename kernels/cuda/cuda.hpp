// The CUDA back-ends: CUB's device-wide algorithms and the fused selection kernels of fused.cuh. They are there when the project was built
// with nvcc and the machine has a GPU that the code was compiled for.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernels.hpp"
#include "kernels/measure_device.hpp"

namespace sparscale::kernels::cuda {

/// Empty when GPU 0 can run the kernels, else why not ("built without CUDA", the driver's message, ...). Cheap, never throws.
std::string unavailable();

/// The back-end on GPU 0, for host memory: it copies in and out, so it serves to compare results, not to measure. Calls are serialised.
/// `fused`: the selections of fused.cuh (cuda.fused), else those of CUB (cuda.cub).
/// Errors: RunError when unavailable() says so, or when the device fails.
const Kernels& kernels(bool fused = false);

/// As kernels::random_indices, drawn on GPU 0. Errors: RunError as above.
std::vector<Index> random_indices(std::uint64_t key, Index size, Index k);

/// GPU 0 as a device to measure: data stay on the device, times are those between two events. Errors: RunError as above.
std::unique_ptr<MeasuredDevice> measured_device(std::int64_t max_elements);

}  // namespace sparscale::kernels::cuda
