// The union of lists of indices, and how many lists hold each: one bit for each possible index, the bits counted by chunk of words, one
// pass that writes. Or, when the indices have been sorted, the lengths of the runs of equal ones.
//
//   mark           one bit for each index
//   count_bits     how many bits each chunk of words has; then fused.cuh's scan says where each chunk writes
//   write_bits     the positions of the bits, ascending; for multiplicities also the bits before each word
//   count_lists    for each index of each list, its place in the union: one more there
//
// Read by nvcc and, in the tests, by the host compiler on top of an emulator. Warps share nothing, so there is no barrier.
#pragma once

#include <cstdint>

#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/unite_types.hpp"

namespace sparscale::kernels::cuda::unite {

SPARSCALE_KERNEL mark_kernel(const std::int64_t* indices, std::int64_t count, std::uint32_t* words) {
  for (long long i = thread_index(); i < count; i += thread_count()) atomicOr(&words[indices[i] / 32], 1U << (indices[i] % 32));
}

/// One warp for each chunk.
SPARSCALE_KERNEL count_bits_kernel(const std::uint32_t* words, long long word_count, std::uint32_t* in_chunk, long long chunks) {
  for (long long chunk = warp_index(); chunk < chunks; chunk += warp_count()) {
    std::uint32_t bits = 0;
    for (unsigned step = 0; step < kChunkWords; step += 32) {
      const long long place = chunk * kChunkWords + step + lane_of();
      bits += place < word_count ? static_cast<std::uint32_t>(__popc(words[place])) : 0U;
    }
    for (unsigned step = 16; step > 0; step /= 2) bits += __shfl_down_sync(kEveryLane, bits, step);
    if (lane_of() == 0) in_chunk[chunk] = bits;
  }
}

/// One warp for each chunk. before_word may be nullptr.
SPARSCALE_KERNEL write_bits_kernel(const std::uint32_t* words, long long word_count, const unsigned long long* before_chunk,
                                   long long chunks, std::int64_t* out, std::uint32_t* before_word) {
  for (long long chunk = warp_index(); chunk < chunks; chunk += warp_count()) {
    unsigned long long written = before_chunk[chunk];
    for (unsigned step = 0; step < kChunkWords; step += 32) {
      const long long place = chunk * kChunkWords + step + lane_of();
      std::uint32_t bits = place < word_count ? words[place] : 0U;
      const auto own = static_cast<std::uint32_t>(__popc(bits));
      std::uint32_t through = own;
      for (unsigned reach = 1; reach < 32; reach *= 2) {
        const std::uint32_t other = __shfl_up_sync(kEveryLane, through, reach);
        if (lane_of() >= reach) through += other;
      }
      unsigned long long at = written + through - own;
      if (before_word != nullptr && place < word_count) before_word[place] = static_cast<std::uint32_t>(at);
      for (; bits != 0; bits &= bits - 1) out[at++] = static_cast<std::int64_t>(place * 32) + __popc((bits & (0U - bits)) - 1U);
      written += __shfl_sync(kEveryLane, through, 31);
    }
  }
}

SPARSCALE_KERNEL count_lists_kernel(const std::int64_t* indices, std::int64_t count, const std::uint32_t* words,
                                    const std::uint32_t* before_word, std::int32_t* multiplicities) {
  for (long long i = thread_index(); i < count; i += thread_count()) {
    const long long word = indices[i] / 32;
    const std::uint32_t lower = words[word] & ((1U << (indices[i] % 32)) - 1U);
    atomicAdd(&multiplicities[before_word[word] + static_cast<std::uint32_t>(__popc(lower))], 1);
  }
}

/// multiplicities[i] = how often distinct[i] is among the sorted ones; *distinct_count of them.
SPARSCALE_KERNEL run_lengths_kernel(const std::uint32_t* sorted, long long count, const std::uint32_t* distinct,
                                    const std::int64_t* distinct_count, std::int32_t* multiplicities) {
  // The first place whose value is not below the limit.
  const auto place_of = [sorted, count](std::uint64_t limit) {
    long long low = 0, high = count;
    while (low < high) {
      const long long middle = low + (high - low) / 2;
      if (sorted[middle] < limit)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  };
  for (long long i = thread_index(); i < *distinct_count; i += thread_count())
    multiplicities[i] = static_cast<std::int32_t>(place_of(std::uint64_t{distinct[i]} + 1) - place_of(distinct[i]));
}

}  // namespace sparscale::kernels::cuda::unite
