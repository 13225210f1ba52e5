// The two network back-ends behind make_network(), and what they share.
#pragma once

#include <memory>
#include <unordered_map>

#include "sim/network.hpp"

namespace sparscale::sim {

/// Latency and bandwidth of a route that carries one message at a time.
struct Path {
  double latency_s = 0, bandwidth_Bps = 1;
};

/// Routes between the pairs that are asked for, worked out once each.
class Paths {
 public:
  explicit Paths(const platforms::Topology& topology) : topology_(topology) {}
  const Path& path(std::int64_t from, std::int64_t to);

 private:
  const platforms::Topology& topology_;
  std::unordered_map<std::uint64_t, Path> known_;
};

/// Errors: RunError unless the program has as many workers as the topology and each has a finite start >= 0.
void check_start(const Program& program, const platforms::Topology& topology, std::span<const double> start_s);

/// Max-plus recurrence; does not check that it is exact. The topology must outlive it.
std::unique_ptr<Network> make_recurrence(const platforms::Topology& topology);
/// NCCL's latency and bandwidth model. Errors: InputError when the platform lacks the key nccl. Both must outlive it.
std::unique_ptr<Network> make_nccl(const platforms::Platform& platform, const platforms::Topology& topology);
/// SimGrid, in a process of its own for every program. The topology must outlive it. Messages of more than `apart_above` workers are
/// simulated some at a time where they never meet on a link (network_simgrid.cpp).
std::unique_ptr<Network> make_simgrid(const platforms::Topology& topology, std::int64_t apart_above = 128);

}  // namespace sparscale::sim
