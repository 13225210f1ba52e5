// One collective on one platform: what `sparscale collective` prints.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.hpp"

namespace sparscale::sim {

struct CollectiveRequest {
  std::string platform;              // name or path
  std::int64_t workers = 0;          // >= 1
  std::string operation, algorithm;  // as listed; an empty algorithm is the operation's first one
  std::vector<std::uint64_t> bytes;  // one for all workers, or one per worker
  std::vector<double> start_s;       // empty (all at 0), one for all, or one per worker; finite, >= 0
  std::int64_t root = 0;             // broadcast only
  std::string network = "auto";      // auto, recurrence, simgrid, nccl
  std::string placement;             // consecutive, round_robin, random:SEED; empty: the platform's own
  std::uint64_t chunk_bytes = 0;     // of pipelined algorithms; 0: the default
  std::int64_t round = 0;            // gossip only: the iteration
  std::int64_t segments = 0;         // gossip crossover only; 0: the default
  std::vector<std::uint64_t> parts;  // all_to_all only: bytes from each worker to each, n x n; `bytes` is then what each sends
};

/// Times one collective. Keys: time_s (last end - first start), end_s, bytes_sent (one per worker), messages, network (the back-end that
/// was used), workers, op, algorithm, platform, platform_sha256. Errors: InputError on a bad request, RunError when the simulation fails.
Json run_collective(const CollectiveRequest& request);

}  // namespace sparscale::sim
