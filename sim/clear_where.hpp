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

}  // namespace sparscale::sim
