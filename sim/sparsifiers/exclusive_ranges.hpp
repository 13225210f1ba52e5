// What MiCRO and ExDyna share: every worker scans a range that is its own in this iteration, under one threshold that the global count
// steers.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/sparsifiers/common.hpp"

namespace sparscale::sim {

/// The threshold, the same on all workers: 1/(2 sqrt(k)) at first, then a small step up or down after the last iteration's count.
class CountController {
 public:
  /// intended: inside the band of +-10 % the step follows the sign of the error; as coded it is always upwards. k is the schedule's, which
  /// must not be 0.
  CountController(const DensitySchedule& schedule, bool intended);
  /// Threshold of iteration t; `last_count` = K of iteration t - 1, unused at t = 0.
  double next(std::int64_t iteration, Index last_count);

 private:
  DensitySchedule schedule_;
  bool intended_;
  double threshold_ = 0;
};

/// Selects |a| >= threshold in each worker's own range; a worker that finds nothing takes the one index begin + t mod length. `ranges`: one
/// per worker, disjoint, none empty. Fills selected, exchanged, exchange, work and threshold.
Selection select_in_exclusive_ranges(const ReplayShape& shape, const AccumulatorView& accumulators, const kernels::Kernels& kernels,
                                     std::int64_t iteration, const std::vector<Segment>& ranges, double threshold,
                                     std::int64_t index_bytes);

/// partition_of_worker and range_of_worker of the record.
void add_ranges(Json& details, const std::vector<Index>& partition_of_worker, const std::vector<Segment>& ranges);

/// What a density schedule does to the controller.
inline constexpr const char* controller_note = "; the threshold goes there by its steps of at most 0.5 %";

/// micro_rule: code | intended.
Parameter micro_rule_parameter();

}  // namespace sparscale::sim
