// Bytes of a run by worker and by class of links, and its receive buffers.
#pragma once

#include <cstdint>
#include <vector>

#include "base/json.hpp"
#include "sim/timeline.hpp"

namespace sparscale::experiments {

struct ObservedTraffic {
  std::vector<std::uint64_t> receive_buffer_bytes;  // per worker: the largest over calls and iterations
  /// bytes_sent_mean, bytes_received_mean and receive_buffer_bytes_max, one number for all workers or one per worker; link_classes: per
  /// class that the platform has, bytes_mean over all its links and busiest_link_bytes_mean.
  Json document;
};

ObservedTraffic observe_traffic(const std::vector<sim::IterationTime>& times);

}  // namespace sparscale::experiments
