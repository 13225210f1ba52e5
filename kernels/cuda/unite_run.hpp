// The order in which the kernels of unite.cuh run; `launch` as in fused_run.hpp.
#pragma once

#include <cstdint>

#include "kernels/cuda/fused_run.hpp"
#include "kernels/cuda/unite.cuh"

namespace sparscale::kernels::cuda::unite {

/// The union of `count` indices in [0, size), one list after the other, to `out`, ascending; its size to space.state->selected. With
/// `multiplicities` (`count` places, all zero) also how often each is there. The union has to be smaller than 2^32.
template <typename Launch>
void run_bitmap(const Launch& launch, const std::int64_t* indices, std::int64_t count, long long size, const Space& space,
                std::int64_t* out, std::int32_t* multiplicities) {
  const long long words = words_of(size), chunks = chunks_of(size);
  const unsigned chunk_blocks = fused::detail::blocks_for(chunks, fused::kWarps, 4096);
  const unsigned index_blocks = fused::detail::blocks_for(count, fused::kThreads, 65536);
  fused::State start;
  start.take_all = 1;  // the scan then adds up the first of its two counts alone
  launch(&fused::start_kernel, 1U, fused::kThreads, space.state, start, space.bins);
  launch(&mark_kernel, index_blocks, fused::kThreads, indices, count, space.words);
  launch(&count_bits_kernel, chunk_blocks, fused::kThreads, static_cast<const std::uint32_t*>(space.words), words, space.in_chunk, chunks);
  launch(&fused::scan_kernel, 1U, fused::kScanThreads, static_cast<const std::uint32_t*>(space.in_chunk),
         static_cast<const std::uint32_t*>(space.in_chunk), chunks, space.state, space.before_chunk, space.scratch);
  launch(&write_bits_kernel, chunk_blocks, fused::kThreads, static_cast<const std::uint32_t*>(space.words), words,
         static_cast<const unsigned long long*>(space.before_chunk), chunks, out, multiplicities != nullptr ? space.before_word : nullptr);
  if (multiplicities != nullptr)
    launch(&count_lists_kernel, index_blocks, fused::kThreads, indices, count, static_cast<const std::uint32_t*>(space.words),
           static_cast<const std::uint32_t*>(space.before_word), multiplicities);
}

}  // namespace sparscale::kernels::cuda::unite
