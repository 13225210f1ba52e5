// Network back-ends: how long a collective takes on a platform.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "platforms/platform.hpp"
#include "sim/collective.hpp"

namespace sparscale::sim {

struct CollectiveTiming {
  std::vector<double> end_s;              // when each worker is done, on the clock of start_s and in its order
  std::vector<std::uint64_t> bytes_sent;  // per worker
  std::uint64_t messages = 0;
  std::string network;  // simgrid, recurrence or nccl: the back-end that was used
};

class Network {
 public:
  virtual ~Network() = default;
  /// Runs one program. start_s: when each worker enters, n of them (of a program with several parts: all workers of one part after the
  /// other), finite, >= 0. Errors: RunError when a message never completes.
  virtual CollectiveTiming time(const Program& program, std::span<const double> start_s) = 0;
  /// The node of every worker, for algorithms that follow the nodes (CollectiveInput::node).
  virtual std::span<const std::int64_t> node_of_worker() const = 0;
  /// The links and routes that it times.
  virtual const platforms::Topology& topology() const = 0;
};

/// A link of which a factor of the bandwidth is missing.
struct SlowLink {
  std::int64_t link = 0;  // of the topology
  double factor = 1;      // its bandwidth is divided by this
};

/// `name`: simgrid (reference), recurrence (refuses what it cannot time exactly: InputError), auto (recurrence where it is exact,
/// simgrid elsewhere), nccl (a latency and bandwidth model of NCCL, docs/network.md; needs the platform's key nccl). `workers` devices of
/// the platform are used. `slow`: changes to its links, which network nccl, a model of whole machines, refuses.
std::unique_ptr<Network> make_network(const std::string& name, const platforms::Platform& platform, std::int64_t workers,
                                      const std::vector<SlowLink>& slow = {});

/// True when no two messages of this program can meet on a link, so that the recurrence is exact: all messages of a link leave one worker
/// that never sends two at a time, or enter one worker that never receives two at a time. Says false where it cannot be sure. Cost:
/// O(messages), or O(workers) for a ring.
bool recurrence_is_exact(const Program& program, const platforms::Topology& topology);

}  // namespace sparscale::sim
