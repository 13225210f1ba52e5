#include "sim/collectives/parts.hpp"

#include <algorithm>
#include <map>
#include <numeric>
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

std::vector<std::vector<std::int64_t>> nodes_of(const CollectiveInput& input) {
  std::map<std::int64_t, std::vector<std::int64_t>> by_node;
  for (std::int64_t worker = 0; worker < std::ssize(input.bytes); ++worker)
    by_node[input.node.empty() ? worker : input.node[static_cast<std::size_t>(worker)]].push_back(worker);
  std::vector<std::vector<std::int64_t>> nodes;
  for (auto& [node, members] : by_node) nodes.push_back(std::move(members));
  return nodes;
}

bool are_equal(const std::vector<std::vector<std::int64_t>>& nodes) {
  return std::all_of(nodes.begin(), nodes.end(), [&](const auto& members) { return members.size() == nodes.front().size(); });
}

namespace {
bool is_before(const std::pair<std::int64_t, std::int64_t>& a, const std::pair<std::int64_t, std::int64_t>& b) {
  return a.first * b.second < b.first * a.second;  // both below 2^31
}
std::pair<std::int64_t, std::int64_t> reduced(std::int64_t number, std::int64_t parts) {
  const std::int64_t common = std::gcd(number, parts);
  return {number / common, parts / common};
}
}  // namespace

CommonCuts::CommonCuts(std::span<const std::int64_t> parts) {
  for (const std::int64_t of : parts)
    for (std::int64_t number = 0; number <= of; ++number) points_.push_back(reduced(number, of));
  std::sort(points_.begin(), points_.end(), is_before);
  points_.erase(std::unique(points_.begin(), points_.end()), points_.end());
}

std::int64_t CommonCuts::begin(std::int64_t number, std::int64_t parts) const {
  return std::lower_bound(points_.begin(), points_.end(), reduced(number, parts), is_before) - points_.begin();
}

std::uint64_t equal_bytes(std::span<const std::uint64_t> bytes, const std::string& algorithm) {
  check_sizes(bytes, algorithm);
  for (std::size_t i = 1; i < bytes.size(); ++i)
    if (bytes[i] != bytes[0])
      throw InputError(algorithm + " bytes", "the same size at every worker (" + std::to_string(bytes[0]) + " at worker 0)",
                       std::to_string(bytes[i]) + " at worker " + std::to_string(i));
  return bytes[0];
}

std::vector<std::uint64_t> partner_bytes(const CollectiveInput& input, const std::string& algorithm) {
  check_sizes(input.bytes, algorithm);
  const auto n = static_cast<std::size_t>(std::ssize(input.bytes));
  std::vector<std::uint64_t> bytes(input.parts.begin(), input.parts.end());
  if (bytes.empty()) {
    bytes.resize(checked_multiply(n, n, algorithm + " messages"));
    for (std::size_t worker = 0; worker < n && n > 1; ++worker) {
      const auto parts = split_evenly(input.bytes[worker], static_cast<std::int64_t>(n) - 1);
      for (std::size_t distance = 1; distance < n; ++distance) bytes[worker * n + (worker + distance) % n] = parts[distance - 1];
    }
    return bytes;
  }
  if (bytes.size() != checked_multiply(n, n, algorithm + " messages"))
    throw InputError(algorithm + " parts", std::to_string(n) + " for each of " + std::to_string(n) + " workers",
                     std::to_string(bytes.size()) + " in all");
  for (std::size_t worker = 0; worker < n; ++worker) {
    const auto row = std::span(bytes).subspan(worker * n, n);
    if (row[worker] != 0)
      throw InputError(algorithm + " parts", "nothing from a worker to itself",
                       std::to_string(row[worker]) + " bytes of worker " + std::to_string(worker));
    std::uint64_t left = input.bytes[worker];
    for (const std::uint64_t part : row) {
      if (part > left) left = UINT64_MAX;
      if (left == UINT64_MAX) break;
      left -= part;
    }
    if (left != 0)
      throw InputError(algorithm + " parts", "the " + std::to_string(input.bytes[worker]) + " bytes of worker " + std::to_string(worker),
                       "others");
  }
  return bytes;
}

void check_sizes(std::span<const std::uint64_t> bytes, const std::string& algorithm) {
  if (bytes.empty()) throw InputError(algorithm + " workers", "at least 1", "0");
  checked_multiply(*std::max_element(bytes.begin(), bytes.end()), 4 * static_cast<std::uint64_t>(bytes.size()),
                   algorithm + " bytes x workers");
}

}  // namespace sparscale::sim
