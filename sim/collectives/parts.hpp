// What several collective algorithms share.
#pragma once

#include "sim/collective.hpp"

namespace sparscale::sim {

/// A ring program (Program::ring_block_bytes): in step s worker i sends block (i - s) mod n to its successor. The first `reducing_steps`
/// of its `steps` add what arrives. One worker sends nothing.
class RingProgram : public Program {
 public:
  RingProgram(std::vector<std::uint64_t> block_bytes, std::int64_t steps, std::int64_t reducing_steps);
  std::int64_t workers() const override { return workers_; }
  std::int64_t steps(std::int64_t) const override { return steps_; }
  void step(std::int64_t worker, std::int64_t number, Step& step) const override;
  std::span<const std::uint64_t> ring_block_bytes() const override { return block_bytes_; }

 private:
  std::vector<std::uint64_t> block_bytes_;
  std::int64_t workers_, steps_, reducing_steps_;
};

/// Cuts a buffer into chunks that differ by at most one element, the first ones being larger. An element has 4 bytes when that divides the
/// buffer, else one byte.
std::vector<std::uint64_t> split_evenly(std::uint64_t bytes, std::int64_t chunks);

/// The one size that all workers hand in. Errors: InputError when sizes differ or there are none.
std::uint64_t equal_bytes(std::span<const std::uint64_t> bytes, const std::string& algorithm);

/// Errors: InputError when there is no worker, or when what one worker sends and receives could pass 2^63 bytes.
void check_sizes(std::span<const std::uint64_t> bytes, const std::string& algorithm);

}  // namespace sparscale::sim
