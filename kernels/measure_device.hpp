// What the measuring loop needs to know of a device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/json.hpp"

namespace sparscale::kernels {

struct MeasuredSample {
  double time_s = 0;
  bool clean = true;  // false when something else used the processor meanwhile
};

/// One point of the grid. run(r) does the operation r times and returns the seconds of all r together.
struct MeasuredCase {
  std::string operation;
  std::int64_t elements = 0, selected = 0, bytes = 0;
  std::function<MeasuredSample(std::int64_t)> run;
};

class MeasuredDevice {
 public:
  virtual ~MeasuredDevice() = default;
  virtual std::string backend() const = 0;
  /// One line for people, and a short name for the profile.
  virtual std::string description() const = 0;
  virtual std::string short_name() const = 0;
  virtual std::string method() const = 0;
  virtual Json context() const = 0;
  /// Shortest sample that its clock resolves well.
  virtual double sample_s() const = 0;
  /// The points of all operations at one size, with the densities wanted. They refer to buffers of the device and end with it.
  virtual std::vector<MeasuredCase> cases(std::int64_t elements, const std::vector<double>& densities) = 0;
};

/// The values that are selected from: two-sided exponential (gradients have heavier tails than a normal distribution), in blocks of 65536
/// of different scale, as the layers of a model have. Deterministic.
std::vector<float> measured_values(std::int64_t size, std::uint64_t seed);
/// Lists with `sum` indices in all whose union has `united` elements of [0, universe); sum >= united >= 1.
std::vector<std::vector<std::int64_t>> measured_lists(std::int64_t sum, std::int64_t united, std::int64_t universe);
/// The universe that indices of `sum` elements are drawn from when `unite` is measured.
std::int64_t measured_universe(std::int64_t sum);

/// Time of one call on the CPU: of the thread when one works, else on the clock. Not clean when it was interrupted.
MeasuredSample timed_on_cpu(int threads, const std::function<void()>& work);

std::unique_ptr<MeasuredDevice> cpu_device(const std::string& backend, int threads, std::int64_t max_elements);

}  // namespace sparscale::kernels
