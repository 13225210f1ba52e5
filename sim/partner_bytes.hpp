// What goes to whom in an all-to-all whose parts differ.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.hpp"

namespace sparscale::sim {

/// Bytes of every message of an all_to_all.
struct PartnerBytes {
  std::vector<std::uint64_t> bytes;  // n x n, row by row: a row is who sends, a column who receives; 0 on the diagonal
  /// How many gradients (blocks, where entries are blocks) the indices of a message are taken from, by who receives it or, with
  /// `ranges_of_senders`, by who sends it; empty: not known.
  std::vector<std::uint64_t> ranges;
  bool ranges_of_senders = false;

  /// From counts of entries, n x n (the diagonal is not looked at).
  static PartnerBytes of_counts(const std::vector<std::int64_t>& counts, std::uint64_t bytes_per_entry);
  std::size_t workers() const;
  /// What every worker sends, and receives. Errors: InputError above 2^64.
  std::vector<std::uint64_t> sent() const;
  std::vector<std::uint64_t> received() const;
  std::uint64_t range(std::size_t sender, std::size_t receiver) const { return ranges[ranges_of_senders ? sender : receiver]; }

  /// {unit_bytes, counts[, ranges, ranges_of]}: `counts` holds bytes / unit_bytes, row by row, in base 64 (docs/formats.md). About 4 / 3
  /// byte for a message of up to 64 units, less where many are empty.
  Json to_json() const;
  /// Errors: InputError, also when rows do not add up to `sent` (one number per worker).
  static PartnerBytes from_json(const Json& json, const std::vector<std::uint64_t>& sent);
};

/// Whole numbers as text: a number v > 0 is written as 2 v - 1, a run of r zeros as 2 (r - 1), each with 7 bits a byte (LEB128), all in
/// base 64. Cost O(numbers).
std::string packed_numbers(const std::vector<std::uint64_t>& numbers);
/// The reverse. Errors: InputError unless there are exactly `size` numbers.
std::vector<std::uint64_t> unpacked_numbers(const std::string& text, std::size_t size, const std::string& place);

/// What is known of the parts when counts are of a sample: senders and receivers keep their shares of the total, pairs do not (there are
/// too few entries in each). Rows add up to `sent`; n x n.
std::vector<std::uint64_t> bytes_from_totals(const std::vector<std::uint64_t>& sent, const std::vector<std::uint64_t>& received);

}  // namespace sparscale::sim
