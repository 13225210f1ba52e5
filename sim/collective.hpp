// Collective algorithms as message programs. To add one: write one file in sim/collectives/, add one line to
// sim/collectives/registry.cpp (docs/adding-a-collective.md).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim/exchange.hpp"

namespace sparscale::sim {

/// A message of one step. Blocks [first_block, first_block + blocks) modulo the number of workers say which part of the data it carries:
/// block i is worker i's contribution of an all-gather, the i-th chunk of the buffer elsewhere.
struct Transfer {
  std::int64_t peer = -1;
  std::uint64_t bytes = 0;
  std::int64_t first_block = 0, blocks = 0;
};

/// One step of one worker: its sends and its receives start together when its previous step is over, and the step is over when all of them
/// are. A message starts when both ends have reached the step in which they name each other (rendezvous).
struct Step {
  std::vector<Transfer> sends;
  std::vector<std::int64_t> receives;  // peers, in the order in which their messages to this worker are matched
  bool reduces = false;                // what arrives is added to what is held
};

/// One collective call with its sizes, as a program per worker.
class Program {
 public:
  virtual ~Program() = default;
  virtual std::int64_t workers() const = 0;
  virtual std::int64_t steps(std::int64_t worker) const = 0;
  /// Fills `step`, reusing its storage. Cost O(messages of the step).
  virtual void step(std::int64_t worker, std::int64_t number, Step& step) const = 0;
  /// Bytes of every block when this program is a ring: all workers have the same number of steps, and in step s worker i sends block
  /// (i - s) mod n to worker i + 1 and receives from worker i - 1 (mod n). Empty otherwise. A back-end may time such a program without
  /// walking its steps.
  virtual std::span<const std::uint64_t> ring_block_bytes() const { return {}; }
};

struct CollectiveAlgorithm {
  std::string name;  // ring, ring_padded, binomial, ...
  Operation operation;
  std::string title, source, formula;
  /// `bytes`: one per worker (all-gather: its block; elsewhere the whole buffer, all equal). Errors: InputError when n or the sizes do not
  /// fit.
  std::unique_ptr<Program> (*make)(std::span<const std::uint64_t> bytes, std::int64_t root);
};

const std::vector<CollectiveAlgorithm>& collective_algorithms();
/// Errors: InputError listing the algorithms of the operation.
const CollectiveAlgorithm& find_collective(Operation operation, const std::string& name);

}  // namespace sparscale::sim
