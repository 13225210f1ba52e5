// Collective algorithms as message programs. To add one: write one file in sim/collectives/, add one line to
// sim/collectives/registry.cpp (docs/adding-a-collective.md).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sim/exchange.hpp"

namespace sparscale::sim {

/// A message of one step. Blocks [first_block, first_block + blocks) modulo Program::blocks() say which part of the data it carries: block
/// i is worker i's contribution of an all-gather, the i-th chunk of the buffer elsewhere, unless the program cuts it otherwise.
struct Transfer {
  std::int64_t peer = -1;  // a strand of the program; the worker when it has one lane
  std::uint64_t bytes = 0;
  std::int64_t first_block = 0, blocks = 0;
};

/// Another lane of the same worker must have finished `steps` steps.
struct After {
  std::int64_t lane = 0, steps = 0;
};

/// One step of one strand: its sends and its receives start together when its previous step is over and what it comes after has happened,
/// and the step is over when all of them are. A message starts when both ends have reached the step in which they name each other
/// (rendezvous).
struct Step {
  std::vector<Transfer> sends;
  std::vector<std::int64_t> receives;  // peers, in the order in which their messages to this strand are matched
  bool reduces = false;                // what arrives is added to what is held
  std::vector<After> after;            // programs with several lanes only

  void clear() {
    sends.clear();
    receives.clear();
    reduces = false;
    after.clear();
  }
};

/// What a program carries out, for back-ends that know the call as a whole (network nccl).
struct CallIdentity {
  Operation operation = Operation::all_reduce;
  std::uint64_t bytes = 0;  // the largest that a worker hands in
};

/// One collective call with its sizes, as a program per worker. A worker does one thing after another in each of its lanes, and its lanes
/// run side by side: chunks are forwarded in one while others arrive in another. Lane l of worker w is strand w * lanes() + l.
class Program {
 public:
  virtual ~Program() = default;
  virtual std::int64_t workers() const = 0;
  virtual std::int64_t lanes() const { return 1; }
  virtual std::int64_t steps(std::int64_t strand) const = 0;
  /// Fills `step`, reusing its storage. Cost O(messages of the step).
  virtual void step(std::int64_t strand, std::int64_t number, Step& step) const = 0;
  /// How many pieces the transfers cut the data into, and the worker of whose contribution a block is part (all-gather).
  virtual std::int64_t blocks() const { return workers(); }
  virtual std::int64_t owner(std::int64_t block) const { return block; }
  /// Aggregating switches, numbered after the workers (0 or 1).
  virtual std::int64_t switches() const { return 0; }
  /// Parts that workers enter, each at a time of its own, and that end by themselves: several calls side by side (merged_program.hpp).
  virtual std::int64_t parts() const { return 1; }
  virtual std::int64_t part_of([[maybe_unused]] std::int64_t lane) const { return 0; }
  /// Bytes of every block when this program is a ring: all workers have the same number of steps, and in step s worker i sends block
  /// (i - s) mod n to worker i + 1 and receives from worker i - 1 (mod n). Empty otherwise. A back-end may time such a program without
  /// walking its steps.
  virtual std::span<const std::uint64_t> ring_block_bytes() const { return {}; }

  /// Set by CollectiveAlgorithm::make; empty in a program that was made otherwise.
  const std::optional<CallIdentity>& identity() const { return identity_; }
  void set_identity(const CallIdentity& identity) { identity_ = identity; }

 private:
  std::optional<CallIdentity> identity_;
};

inline constexpr std::int64_t default_segments = 8, most_segments = 65536;

/// What decides a program.
struct CollectiveInput {
  std::span<const std::uint64_t> bytes;  // one per worker (all-gather: its block; elsewhere the whole buffer)
  std::int64_t root = 0;                 // broadcast only
  std::span<const std::int64_t> node;    // the node of every worker (Network::node_of_worker); empty: each has its own
  std::uint64_t chunk_bytes = 0;         // chunks of pipelined algorithms; 0: default_chunk_bytes
  std::int64_t round = 0;                // gossip: the iteration, which chooses the peers
  std::uint64_t seed = 1;                // gossip with random peers
  const SparseStream* stream = nullptr;  // sparse_all_reduce; null: `bytes` in equal stretches, the sum as large as the largest of them
  std::span<const std::uint64_t> parts = {};  // all_to_all: n x n bytes (PartnerBytes); empty: `bytes` in equal parts
  std::int64_t segments = default_segments;   // gossip crossover: pieces that go to a peer of their own each
};
inline constexpr std::uint64_t default_chunk_bytes = 256 * 1024;

struct CollectiveAlgorithm {
  std::string name;  // ring, ring_padded, binomial, ...
  Operation operation;
  std::string title, source, formula;
  std::unique_ptr<Program> (*build)(const CollectiveInput& input);

  /// Errors: InputError when the number of workers, their nodes or the sizes do not fit.
  std::unique_ptr<Program> make(const CollectiveInput& input) const;
  std::unique_ptr<Program> make(std::span<const std::uint64_t> bytes, std::int64_t root, std::span<const std::int64_t> node = {}) const {
    return make(CollectiveInput{bytes, root, node, 0, 0, 1});
  }
};

const std::vector<CollectiveAlgorithm>& collective_algorithms();
/// Errors: InputError listing the algorithms of the operation.
const CollectiveAlgorithm& find_collective(Operation operation, const std::string& name);

}  // namespace sparscale::sim
