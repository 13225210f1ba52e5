#include "sim/traffic.hpp"

#include <algorithm>
#include <unordered_map>

#include "base/checked.hpp"

namespace sparscale::sim {

Traffic traffic_of(const Program& program, const platforms::Topology& topology, std::span<const std::uint64_t> sent, bool as_ring) {
  const std::int64_t n = program.workers(), lanes = program.lanes();
  Traffic traffic;
  traffic.received.assign(static_cast<std::size_t>(n), 0);
  traffic.link_bytes.assign(topology.links().size(), 0);
  const auto carry = [&](std::int64_t from, std::int64_t to, std::uint64_t bytes) {
    if (bytes == 0 || from == to) return;
    if (to < n) traffic.received[static_cast<std::size_t>(to)] += bytes;
    for (const std::int32_t link : topology.route(from, to)) traffic.link_bytes[static_cast<std::size_t>(link)] += bytes;
  };
  if (as_ring || !program.ring_block_bytes().empty()) {
    for (std::int64_t worker = 0; worker < n; ++worker) carry(worker, (worker + 1) % n, sent[static_cast<std::size_t>(worker)]);
    return traffic;
  }
  std::unordered_map<std::int64_t, std::uint64_t> pairs;  // routes are worked out once per pair
  Step step;
  const std::int64_t ends = n + program.switches();
  for (std::int64_t strand = 0; strand < ends * lanes; ++strand)
    for (std::int64_t number = 0; number < program.steps(strand); ++number) {
      program.step(strand, number, step);
      for (const Transfer& transfer : step.sends) pairs[strand / lanes * ends + transfer.peer / lanes] += transfer.bytes;
    }
  for (const auto& [pair, bytes] : pairs) carry(pair / ends, pair % ends, bytes);
  return traffic;
}

std::vector<std::uint64_t> receive_buffers(const CollectiveCall& call, std::int64_t workers, bool padded,
                                           std::span<const std::uint64_t> received) {
  const auto n = static_cast<std::size_t>(workers);
  if (n == 1) return {0};
  switch (call.operation) {
    case Operation::all_gather: {
      const auto blocks = call.bytes_of_all(workers, !padded);
      std::uint64_t all = 0;
      for (const std::uint64_t block : blocks) all += block;  // the program has checked that they can be added
      if (padded)
        all = checked_multiply(*std::max_element(blocks.begin(), blocks.end()), static_cast<std::uint64_t>(n), "bytes of an all-gather");
      return std::vector<std::uint64_t>(n, all);
    }
    case Operation::all_reduce:
    case Operation::broadcast:
      return call.bytes_of_all(workers);
    case Operation::reduce_scatter: {
      auto buffers = call.bytes_of_all(workers);
      for (std::uint64_t& bytes : buffers) bytes = (bytes + n - 1) / n;
      return buffers;
    }
    case Operation::reduce: {
      std::vector<std::uint64_t> buffers(n, 0);
      buffers.front() = call.bytes_of_all(workers).front();
      return buffers;
    }
    case Operation::all_to_all:
    case Operation::gossip:
    case Operation::sparse_all_reduce:
      return {received.begin(), received.end()};
  }
  return std::vector<std::uint64_t>(n, 0);
}

}  // namespace sparscale::sim
