// What a collective puts on links and into buffers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/network.hpp"

namespace sparscale::sim {

struct Traffic {
  std::vector<std::uint64_t> received;    // per worker
  std::vector<std::uint64_t> link_bytes;  // per link of the topology, every crossing counted
};

/// `sent`: what each worker sends (CollectiveTiming::bytes_sent). A program that network nccl has timed is taken for a ring. Cost:
/// O(messages of the program), O(workers) for rings.
Traffic traffic_of(const Program& program, const platforms::Topology& topology, std::span<const std::uint64_t> sent, bool as_ring);

/// The buffer that the call fills at each worker: all blocks of an all-gather (n of the largest when `padded`), the buffer of an all-reduce
/// or broadcast, an n-th of a reduce-scatter, what others send in an all-to-all, what a worker receives in gossip; of a reduce at the root
/// only.
std::vector<std::uint64_t> receive_buffers(const CollectiveCall& call, std::int64_t workers, bool padded,
                                           std::span<const std::uint64_t> received);

}  // namespace sparscale::sim
