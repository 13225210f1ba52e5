// The exchange: the collective calls that one iteration of a sparsifier makes, in order, with every worker's bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "sim/partner_bytes.hpp"

namespace sparscale::sim {

/// reduce: to worker 0. all_to_all: `bytes` is what a worker sends to the others together. gossip: every worker gets what a
/// few others have. sparse_all_reduce: the sum of blocks that only some workers have; `bytes` is what a worker hands in.
enum class Operation { all_gather, all_reduce, reduce_scatter, broadcast, reduce, all_to_all, gossip, sparse_all_reduce };

/// The name in files and on the command line, and back. Errors: InputError on an unknown name.
std::string operation_name(Operation operation);
Operation operation_from_name(const std::string& name);

/// Blocks on their way through aggregators: the vector is cut into stretches, which follow one another.
struct SparseStream {
  std::vector<std::vector<std::uint64_t>> sent_bytes;  // of every worker, in every stretch
  std::vector<std::uint64_t> back_bytes;               // of the sum, in every stretch
  std::int64_t aggregators = 0;                        // 0: as many as workers
};

/// One blocking collective call.
struct CollectiveCall {
  Operation operation = Operation::all_reduce;
  std::string payload;  // counts, indices, values, plan, gradient
  std::string dtype;    // int64, int32, float32, float16
  /// What a worker hands in: the block of an all-gather, the whole buffer otherwise. One number for all workers, or one per worker.
  std::vector<std::uint64_t> bytes;
  /// Padded all-gather only: what each worker would hand in without padding (one per worker); empty elsewhere.
  std::vector<std::uint64_t> bytes_unpadded;
  std::int64_t root = 0;    // broadcast only
  std::int64_t piece = -1;  // the piece of the gradient that it belongs to (Selection::piece_sizes); -1: all of it
  /// Payload values whose entries carry their index as well: bytes of the index and of the value of one entry. 0: values alone.
  std::uint64_t entry_index_bytes = 0, entry_value_bytes = 0;
  /// How many gradients the indices are taken from, when not all N: those of a tensor, of a region; where entries are blocks, how many
  /// blocks. 0: all.
  std::uint64_t index_range = 0;
  /// Payload indices: bytes of each list (one per worker; one of a broadcast) when the distances between its indices are written with
  /// LEB128 (wire_format.hpp); empty when it was not asked for or the list is not known.
  std::vector<std::uint64_t> delta_bytes;
  /// sparse_all_reduce only.
  std::optional<SparseStream> stream;
  /// all_to_all only: what goes to whom. Without it the parts are taken for equal.
  std::optional<PartnerBytes> parts;
  /// Payload indices: the lists are what the workers selected, in order. Not written.
  bool lists_are_selections = true;

  /// {op, payload, dtype, bytes[, bytes_unpadded][, root][, entry][, index_range][, delta_bytes][, stream][, parts][, piece]}; bytes is a
  /// number when all workers have the same, entry is [index bytes, value bytes].
  Json to_json() const;
  static CollectiveCall from_json(const Json& json, std::int64_t workers);
  /// Bytes of every worker, n of them.
  std::vector<std::uint64_t> bytes_of_all(std::int64_t workers, bool unpadded = false) const;
};

using Exchange = std::vector<CollectiveCall>;

}  // namespace sparscale::sim
