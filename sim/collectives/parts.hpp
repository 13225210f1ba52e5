// What several collective algorithms share.
#pragma once

#include <utility>

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

/// Offsets of pieces in a whole: size + 1 sums, the last one being the total.
std::vector<std::uint64_t> offsets_of(std::span<const std::uint64_t> sizes);

/// Chunks of at most chunk_bytes (0: default_chunk_bytes) that differ by at most one element; at least one, which may be empty.
std::vector<std::uint64_t> cut_into_chunks(std::uint64_t bytes, std::uint64_t chunk_bytes);

/// Errors: InputError unless the root is a worker.
std::int64_t root_of(const CollectiveInput& input);

/// The workers of every node, in rank order, by the nodes' numbers.
std::vector<std::vector<std::int64_t>> nodes_of(const CollectiveInput& input);
bool are_equal(const std::vector<std::vector<std::int64_t>>& nodes);

/// Several ways to cut one buffer, and the pieces that they have in common: a buffer cut into 2 and into 3 parts has the blocks between 0,
/// 1/3, 1/2, 2/3 and 1.
class CommonCuts {
 public:
  explicit CommonCuts(std::span<const std::int64_t> parts);
  std::int64_t blocks() const { return std::ssize(points_) - 1; }
  /// Where part `number` of `parts` begins, in blocks (number = parts: the end). `parts` is one of those given.
  std::int64_t begin(std::int64_t number, std::int64_t parts) const;

 private:
  std::vector<std::pair<std::int64_t, std::int64_t>> points_;  // reduced fractions, ascending
};

/// A message program that is written out: steps of every strand, made once.
class WrittenProgram : public Program {
 public:
  WrittenProgram(std::int64_t workers, std::int64_t lanes)
      : workers_(workers), lanes_(lanes), strands_(static_cast<std::size_t>(workers * lanes)) {}
  std::int64_t workers() const override { return workers_; }
  std::int64_t lanes() const override { return lanes_; }
  std::int64_t steps(std::int64_t strand) const override { return std::ssize(strands_[static_cast<std::size_t>(strand)]); }
  void step(std::int64_t strand, std::int64_t number, Step& step) const override {
    step = strands_[static_cast<std::size_t>(strand)][static_cast<std::size_t>(number)];
  }
  std::int64_t blocks() const override { return owners_.empty() ? workers_ : std::ssize(owners_); }
  std::int64_t owner(std::int64_t block) const override { return owners_.empty() ? block : owners_[static_cast<std::size_t>(block)]; }
  /// Block b is part of worker owners[b]'s contribution.
  void set_owners(std::vector<std::int64_t> owners) { owners_ = std::move(owners); }
  /// Appends an empty step to a lane of a worker.
  Step& add(std::int64_t worker, std::int64_t lane = 0) {
    return strands_[static_cast<std::size_t>(worker * lanes_ + lane)].emplace_back();
  }

  /// The step that was appended last.
  Step& last(std::int64_t worker, std::int64_t lane = 0) { return strands_[static_cast<std::size_t>(worker * lanes_ + lane)].back(); }

 private:
  std::int64_t workers_, lanes_;
  std::vector<std::vector<Step>> strands_;
  std::vector<std::int64_t> owners_;
};

/// The one size that all workers hand in. Errors: InputError when sizes differ or there are none.
std::uint64_t equal_bytes(std::span<const std::uint64_t> bytes, const std::string& algorithm);

/// What every worker sends to every other, n x n: the parts that are given, or equal ones, of which the next partners (i + 1, i + 2, ...
/// mod n) get an element more. Errors: InputError unless they add up to `bytes`.
std::vector<std::uint64_t> partner_bytes(const CollectiveInput& input, const std::string& algorithm);

/// Errors: InputError when there is no worker, or when what one worker sends and receives could pass 2^63 bytes.
void check_sizes(std::span<const std::uint64_t> bytes, const std::string& algorithm);

}  // namespace sparscale::sim
