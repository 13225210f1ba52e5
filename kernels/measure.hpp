// Measures the selection kernels of a device and writes what docs/kernels.md calls a kernel profile.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/json.hpp"
#include "kernels/measure_device.hpp"

namespace sparscale::kernels {

struct MeasureOptions {
  std::string device = "cpu";    // cpu or cuda
  std::string backend = "auto";  // cpu: as in cpu_kernels()
  int threads = 1;               // cpu: as in cpu_kernels()
  std::string name;              // of the profile; empty: made from the device
  std::int64_t max_elements = std::int64_t{1} << 26;
  int samples = 15;  // kept for each point
  /// Called with one line now and then.
  std::function<void(const std::string&)> progress;
};

/// The device to measure: "cpu" (backend and threads as in cpu_kernels()) or "cuda" (GPU 0). `max_elements`: the largest size of cases().
/// Errors: InputError for another name; RunError when the device is not there.
std::unique_ptr<MeasuredDevice> measured_device(const std::string& device, const std::string& backend, int threads,
                                                std::int64_t max_elements);

/// A profile document (profile_schema()) of this machine's device, with the error of its own interpolation at sizes left out of it.
/// CPU: processor time of one thread; samples during which the thread was off its core for more than 5 % are thrown away. About
/// 44 bytes of memory for each of max_elements, one to three minutes by default.
/// Errors: InputError for options; RunError when the device is not there.
Json measure_profile(const MeasureOptions& options);

}  // namespace sparscale::kernels
