// The CUDA back-end: CUB's device-wide algorithms. It is there when the project was built with nvcc and the machine has a GPU that the
// code was compiled for.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/kernels.hpp"
#include "kernels/measure_device.hpp"

namespace sparscale::kernels::cuda {

/// Empty when GPU 0 can run the kernels, else why not ("built without CUDA", the driver's message, ...). Cheap, never throws.
std::string unavailable();

/// The back-end on GPU 0, for host memory: it copies in and out, so it serves to compare results, not to measure. Calls are serialised.
/// Errors: RunError when unavailable() says so, or when the device fails.
const Kernels& kernels();

/// GPU 0 as a device to measure: data stay on the device, times are those between two events. Errors: RunError as above.
std::unique_ptr<MeasuredDevice> measured_device(std::int64_t max_elements);

}  // namespace sparscale::kernels::cuda
