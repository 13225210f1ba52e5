#include "sim/collectives/parts.hpp"

#include <algorithm>
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
