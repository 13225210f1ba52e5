// Calls side by side: how long each takes where they share links.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sim/network.hpp"

namespace sparscale::sim {

struct ConcurrentCall {
  const Program* program = nullptr;
  std::vector<double> ready_s;  // when each worker can begin it
  std::int64_t after = -1;      // the call (one before it in the list) that a worker finishes before it begins this one; -1: none
};

struct ConcurrentTiming {
  std::vector<double> begin_s;  // per worker: when it is ready and has finished the call before
  CollectiveTiming timing;      // of this call
};

/// Times calls that may be under way at once on one network.
class ConcurrentCalls {
 public:
  /// The network, which must outlive this, is one of links: simgrid, recurrence or auto.
  explicit ConcurrentCalls(Network& network);

  /// When each call begins and ends at each worker. Calls that are under way at the same time are run as one program, whose messages share
  /// links; one that meets no other is timed alone, as if there were no others. Errors: RunError as Network::time; InputError from a
  /// network recurrence, as calls side by side share links. Cost: the network's for every group of calls that meet, up to a few times over,
  /// until the group is known.
  std::vector<ConcurrentTiming> time(std::span<const ConcurrentCall> calls);

 private:
  Network& network_;
  std::unique_ptr<Network> alone_;  // times without any sharing: to guess which calls meet
};

}  // namespace sparscale::sim
