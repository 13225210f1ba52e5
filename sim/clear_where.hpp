// Zeroes many entries of a vector at once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sparscale::sim {

/// A bit for each of `elements` entries, 64 to a word, set at the ascending `indices`. Cost: O(elements / 64 + indices).
void mark_bits(std::span<const std::int64_t> indices, std::int64_t elements, std::vector<std::uint64_t>& words);

/// Zeroes values[i] where bit i of `words` is set; values need not fill the last word. Cost: a look at every word, and a masked store (or
/// one store per entry) for those that are not 0.
void clear_where(std::span<float> values, const std::uint64_t* words);

/// Writes the positions of the bits set, ascending, counted from `first` on, and clears them. `out` has drained_slack places more than
/// there are bits.
inline constexpr std::size_t drained_slack = 2;
void drain_bits(std::span<std::uint64_t> words, std::int64_t first, std::int64_t* out);

}  // namespace sparscale::sim
