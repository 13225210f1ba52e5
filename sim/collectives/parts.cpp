#include "sim/collectives/parts.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"

namespace sparscale::sim {

RingProgram::RingProgram(std::vector<std::uint64_t> block_bytes, std::int64_t steps, std::int64_t reducing_steps)
    : block_bytes_(std::move(block_bytes)),
      workers_(static_cast<std::int64_t>(block_bytes_.size())),
      steps_(workers_ > 1 ? steps : 0),
      reducing_steps_(reducing_steps) {}

void RingProgram::step(std::int64_t worker, std::int64_t number, Step& step) const {
  const std::int64_t behind = worker - number % workers_;
  const std::int64_t block = behind < 0 ? behind + workers_ : behind;
  step.sends.assign(1, {worker + 1 == workers_ ? 0 : worker + 1, block_bytes_[static_cast<std::size_t>(block)], block, 1});
  step.receives.assign(1, worker == 0 ? workers_ - 1 : worker - 1);
  step.reduces = number < reducing_steps_;
}

std::vector<std::uint64_t> split_evenly(std::uint64_t bytes, std::int64_t chunks) {
  const std::uint64_t element = bytes % 4 == 0 ? 4 : 1;
  const std::uint64_t elements = bytes / element, parts = static_cast<std::uint64_t>(chunks);
  std::vector<std::uint64_t> sizes(static_cast<std::size_t>(chunks), elements / parts * element);
  for (std::uint64_t i = 0; i < elements % parts; ++i) sizes[i] += element;
  return sizes;
}

std::vector<std::uint64_t> offsets_of(std::span<const std::uint64_t> sizes) {
  std::vector<std::uint64_t> offsets{0};
  for (const std::uint64_t size : sizes) offsets.push_back(offsets.back() + size);
  return offsets;
}

std::vector<std::uint64_t> cut_into_chunks(std::uint64_t bytes, std::uint64_t chunk_bytes) {
  const std::uint64_t most = chunk_bytes == 0 ? default_chunk_bytes : chunk_bytes;
  const std::uint64_t chunks = bytes == 0 ? 1 : (bytes - 1) / most + 1;
  if (chunks > 1048576)
    throw InputError("chunk_bytes", "at most 1048576 chunks of " + std::to_string(bytes) + " bytes", std::to_string(most));
  return split_evenly(bytes, static_cast<std::int64_t>(chunks));
}

std::int64_t root_of(const CollectiveInput& input) {
  const auto n = std::ssize(input.bytes);
  if (input.root < 0 || input.root >= n)
    throw InputError("broadcast root", "a worker, 0 to " + std::to_string(n - 1), std::to_string(input.root));
  return input.root;
}

std::vector<std::vector<std::int64_t>> equal_nodes(const CollectiveInput& input, const std::string& algorithm) {
  const auto n = std::ssize(input.bytes);
  std::map<std::int64_t, std::vector<std::int64_t>> by_node;
  for (std::int64_t worker = 0; worker < n; ++worker)
    by_node[input.node.empty() ? worker : input.node[static_cast<std::size_t>(worker)]].push_back(worker);
  std::vector<std::vector<std::int64_t>> nodes;
  for (auto& [node, members] : by_node) {
    if (!nodes.empty() && members.size() != nodes.front().size())
      throw InputError(algorithm + " workers", "as many on every node (" + std::to_string(nodes.front().size()) + ")",
                       std::to_string(members.size()) + " on node " + std::to_string(node));
    nodes.push_back(std::move(members));
  }
  return nodes;
}

std::uint64_t equal_bytes(std::span<const std::uint64_t> bytes, const std::string& algorithm) {
  check_sizes(bytes, algorithm);
  for (std::size_t i = 1; i < bytes.size(); ++i)
    if (bytes[i] != bytes[0])
      throw InputError(algorithm + " bytes", "the same size at every worker (" + std::to_string(bytes[0]) + " at worker 0)",
                       std::to_string(bytes[i]) + " at worker " + std::to_string(i));
  return bytes[0];
}

void check_sizes(std::span<const std::uint64_t> bytes, const std::string& algorithm) {
  if (bytes.empty()) throw InputError(algorithm + " workers", "at least 1", "0");
  checked_multiply(*std::max_element(bytes.begin(), bytes.end()), 4 * static_cast<std::uint64_t>(bytes.size()),
                   algorithm + " bytes x workers");
}

}  // namespace sparscale::sim
