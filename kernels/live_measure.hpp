// Measures the selection kernels on data that a program has at hand, such as the accumulators of a replay, and makes a profile of it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/json.hpp"
#include "kernels/kernels.hpp"
#include "kernels/measure_device.hpp"

namespace sparscale::kernels {

/// One kernel call: an operation of a profile, over how many elements, with how many selected.
struct LiveCall {
  std::string operation;
  Index elements = 0, selected = 0;
};

class LiveMeasurement {
 public:
  /// `samples` timings of each call on `device` (measured_device()).
  LiveMeasurement(std::unique_ptr<MeasuredDevice> device, int samples);

  /// Runs each call on the accumulator's values and times it. threshold_select, topk, count and the fused operations read the accumulator's
  /// first `elements` values, with the threshold that lets `selected` of them through; zero, gather and scatter_add take indices of
  /// `exchanged` or, when those are not as many, evenly spaced ones; unite unites `lists`. Calls with the same numbers of elements and
  /// selected share one record. Calls that read more elements than there are, and unknown operations, are refused (InputError).
  void add(std::span<const float> accumulator, std::span<const LiveCall> calls, std::span<const std::vector<Index>> lists,
           std::span<const Index> exchanged);

  /// The profile (profile_schema()). `what` says what was measured, for its provenance. Errors: InputError when nothing was.
  Json profile(const std::string& name, const std::string& what) const;

 private:
  struct Point {
    std::vector<double> clean_s, disturbed_s;
  };
  std::unique_ptr<MeasuredDevice> device_;
  int samples_;
  std::map<std::tuple<std::string, Index, Index>, Point> points_;
};

}  // namespace sparscale::kernels
