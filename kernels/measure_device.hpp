// What the measuring loop needs to know of a device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
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

/// Values and lists of a program that kernels are timed on.
struct MeasuredData {
  std::span<const float> values;
  std::span<const std::vector<std::int64_t>> lists;  // of indices of values, ascending
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
  /// Takes values and lists to where the device works on them, in place of those before.
  virtual void set_data(const MeasuredData& data) = 0;
  /// One operation on the data set last, as MeasuredCase::run: over the first `elements` of the values, with `threshold` for those that
  /// take one and `selected` for top-k; zero, gather and scatter_add at `places`. It ends with the next call of either function. Empty for
  /// an operation that the device does not know.
  virtual std::function<MeasuredSample(std::int64_t)> on_data(const std::string& operation, std::int64_t elements, std::int64_t selected,
                                                              float threshold, std::span<const std::int64_t> places) = 0;
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
