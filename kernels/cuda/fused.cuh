// Selection in one pass over memory and a bit: a filter that keeps what reaches a bound (and accumulates on the way), then work on the few
// that were kept. Exact and deterministic, indices ascending, ties to the lower index.
//
//   sample, spread   a lower bound on the k-th magnitude, from runs of neighbours (top-k only)
//   filter           one read of everything; a tile of 4096 elements puts what it keeps in one piece, in order of index
//   digit (3 times)  the exact k-th key among what was kept, 11 + 10 + 10 bits, most significant first
//   tally, scan      how many each tile writes, and where
//   write            the indices, ascending
//
// Read by nvcc and, in the tests, by the host compiler on top of an emulator: plain CUDA C++, no library, no inline assembly. Every barrier
// has a number, so that the tests can leave it out and see that something notices.
#pragma once

#include <cstdint>

#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/fused_types.hpp"

namespace sparscale::kernels::cuda::fused {

/// The digit that pass 0, 1 or 2 looks at.
inline __device__ unsigned digit_shift(int pass) { return pass == 0 ? 20U : pass == 1 ? 10U : 0U; }
inline __device__ std::uint32_t digit_mask(int pass) { return pass == 0 ? 0x7ffU : 0x3ffU; }

/// First element of a run: one in each of `runs` strata, at a place that depends on the run only.
inline __device__ long long run_begin(long long size, unsigned runs, unsigned run) {
  const long long stratum = size / runs;
  std::uint32_t word = (run + 1U) * 0x9e3779b9U;
  word = (word ^ (word >> 16)) * 0x85ebca6bU;
  word = (word ^ (word >> 13)) * 0xc2b2ae35U;
  word ^= word >> 16;
  return run * stratum + static_cast<long long>(word % static_cast<unsigned long long>(stratum - kRun + 1));
}

/// Value of an element after accumulation.
template <bool kAccumulate>
__device__ float value_at(const float* gradient, float scale, const float* values, long long index) {
  return kAccumulate ? __fmaf_rn(scale, gradient[index], values[index]) : values[index];
}

/// For one whole block: the bin that holds the rank-th largest (rank from 1) of counts in shared memory, for all threads; rank becomes
/// that within the bin. kBins when there are fewer. `found` is shared memory for two numbers.
template <unsigned kCount>
__device__ unsigned find_bin(const std::uint32_t* counts, unsigned long long& rank, unsigned long long* found) {
  constexpr unsigned kEach = kCount / 32;
  if (threadIdx.x == 0) found[0] = kBins;
  SPARSCALE_BARRIER(0);
  if (threadIdx.x < 32) {
    // Lane 0 has the highest bins.
    const unsigned top = kCount - lane_of() * kEach;
    unsigned long long own = 0;
    for (unsigned i = 1; i <= kEach; ++i) own += counts[top - i];
    unsigned long long through = own;
    for (unsigned step = 1; step < 32; step *= 2) {
      const unsigned long long other = __shfl_up_sync(kEveryLane, through, step);
      if (lane_of() >= step) through += other;
    }
    if (through >= rank && through - own < rank) {
      unsigned long long left = rank - (through - own);
      unsigned bin = top - 1;
      while (counts[bin] < left) left -= counts[bin--];
      found[0] = bin;
      found[1] = left;
    }
  }
  SPARSCALE_BARRIER(1);
  rank = found[1];
  return static_cast<unsigned>(found[0]);
}

/// For one whole block, after it has added its share to global memory: whether it is the last one to do so. `flag` is shared memory.
inline __device__ bool is_last_block(State* state, std::uint32_t* flag) {
  __threadfence();
  SPARSCALE_BARRIER(2);
  if (threadIdx.x == 0) flag[0] = atomicAdd(&state->blocks_done, 1U) == gridDim.x - 1 ? 1U : 0U;
  SPARSCALE_BARRIER(3);
  if (flag[0] == 0) return false;
  if (threadIdx.x == 0) state->blocks_done = 0;
  __threadfence();
  return true;
}

/// For the last block: moves the global counters to shared memory, for find_bin, and clears them for the next kernel.
inline __device__ void take_bins(std::uint32_t* bins, unsigned count, std::uint32_t* shared) {
  for (unsigned bin = threadIdx.x; bin < count; bin += blockDim.x) shared[bin] = atomicExch(&bins[bin], 0U);
}

/// For every block: adds what it counted in shared memory to the global counters.
inline __device__ void add_bins(const std::uint32_t* shared, unsigned count, std::uint32_t* bins) {
  SPARSCALE_BARRIER(4);
  for (unsigned bin = threadIdx.x; bin < count; bin += blockDim.x)
    if (shared[bin] != 0) atomicAdd(&bins[bin], shared[bin]);
}

inline __device__ void clear_bins(std::uint32_t* shared, unsigned count) {
  for (unsigned bin = threadIdx.x; bin < count; bin += blockDim.x) shared[bin] = 0;
  SPARSCALE_BARRIER(5);
}

/// One block. Clears what the others count in.
SPARSCALE_KERNEL start_kernel(State* state, State start, std::uint32_t* bins) {
  if (threadIdx.x == 0) *state = start;
  for (unsigned bin = threadIdx.x; bin < kBins; bin += blockDim.x) bins[bin] = 0;
}

/// Histogram of the sampled keys. The last block finds about the k-th of them: state->bound, for spread_kernel.
template <bool kAccumulate>
__global__ void sample_kernel(const float* gradient, float scale, const float* values, long long size, unsigned runs,
                              unsigned long long expected, State* state, std::uint32_t* bins) {
  SPARSCALE_SHARED(std::uint32_t, counts, kSampleBins);
  SPARSCALE_SHARED(std::uint32_t, flag, 1);
  SPARSCALE_SHARED(unsigned long long, found, 2);
  clear_bins(counts, kSampleBins);
  for (long long run = warp_index(); run < runs; run += warp_count()) {
    const long long index = run_begin(size, runs, static_cast<unsigned>(run)) + lane_of();
    atomicAdd(&counts[key_of(value_at<kAccumulate>(gradient, scale, values, index)) >> kSampleShift], 1U);
  }
  add_bins(counts, kSampleBins, bins);
  if (!is_last_block(state, flag)) return;
  // The counters stay for spread_kernel.
  for (unsigned bin = threadIdx.x; bin < kSampleBins; bin += blockDim.x) counts[bin] = atomicAdd(&bins[bin], 0U);
  unsigned long long rank = expected + 1;
  const unsigned bin = find_bin<kSampleBins>(counts, rank, found);
  if (threadIdx.x == 0) state->bound = bin == kBins ? 0U : bin << kSampleShift;
}

/// How unevenly the runs hit that bound, since neighbours are alike; then a bound that four standard deviations more of the sample reach.
template <bool kAccumulate>
__global__ void spread_kernel(const float* gradient, float scale, const float* values, long long size, unsigned runs,
                              unsigned long long expected, State* state, std::uint32_t* bins) {
  SPARSCALE_SHARED(std::uint32_t, counts, kSampleBins);
  SPARSCALE_SHARED(std::uint32_t, flag, 1);
  SPARSCALE_SHARED(unsigned long long, found, 2);
  const std::uint32_t middle = state->bound;
  unsigned long long squares = 0;
  for (long long run = warp_index(); run < runs; run += warp_count()) {
    const long long index = run_begin(size, runs, static_cast<unsigned>(run)) + lane_of();
    const auto hits =
        static_cast<unsigned>(__popc(__ballot_sync(kEveryLane, key_of(value_at<kAccumulate>(gradient, scale, values, index)) >= middle)));
    squares += hits * hits;
  }
  if (lane_of() == 0 && squares != 0) atomicAdd(&state->squares, squares);
  if (!is_last_block(state, flag)) return;
  take_bins(bins, kSampleBins, counts);
  unsigned long long rank = expected + 4 + static_cast<unsigned long long>(4 * sqrt(static_cast<double>(atomicAdd(&state->squares, 0ULL))));
  const unsigned bin = find_bin<kSampleBins>(counts, rank, found);
  if (threadIdx.x != 0) return;
  state->bound = bin == kBins ? 0U : bin << kSampleShift;
  state->span = kLargestKey - state->bound;
  if (bin == kBins || bin == 0) state->failed = 1;  // everything would pass
}

/// One block for each tile. Every value passes; those inside the bound are kept, in order of index. With kVector both pointers are
/// multiples of 16 bytes.
template <bool kAccumulate, bool kVector>
__global__ void filter_kernel(const float* gradient, float scale, float* values, long long size, State* state, float* kept_values,
                              std::uint32_t* kept_positions, TileRecord* tiles) {
  SPARSCALE_SHARED(std::uint32_t, counts, kVectors * kWarps);
  SPARSCALE_SHARED(unsigned long long, base, 1);
  const long long begin = static_cast<long long>(blockIdx.x) * kTile;
  const std::uint32_t bound = state->bound, span = state->span;
  const unsigned warp = threadIdx.x / 32;
  float own[kVectors][4];
  unsigned hits[kVectors], before[kVectors];
  for (unsigned j = 0; j < kVectors; ++j) {
    const long long place = begin + (j * kThreads + threadIdx.x) * 4;
    if (kVector && place + 4 <= size) {
      float4 four = *reinterpret_cast<const float4*>(values + place);
      if (kAccumulate) {
        const float4 more = *reinterpret_cast<const float4*>(gradient + place);
        four.x = __fmaf_rn(scale, more.x, four.x);
        four.y = __fmaf_rn(scale, more.y, four.y);
        four.z = __fmaf_rn(scale, more.z, four.z);
        four.w = __fmaf_rn(scale, more.w, four.w);
        *reinterpret_cast<float4*>(values + place) = four;
      }
      own[j][0] = four.x;
      own[j][1] = four.y;
      own[j][2] = four.z;
      own[j][3] = four.w;
    } else {
      for (unsigned c = 0; c < 4; ++c) {
        own[j][c] = 0;
        if (place + c >= size) continue;
        own[j][c] = value_at<kAccumulate>(gradient, scale, values, place + c);
        if (kAccumulate) values[place + c] = own[j][c];
      }
    }
    hits[j] = 0;
    before[j] = 0;
    unsigned in_warp = 0;
    for (unsigned c = 0; c < 4; ++c) {
      const bool hit = place + c < size && key_of(own[j][c]) - bound <= span;
      const std::uint32_t lanes = __ballot_sync(kEveryLane, hit);
      before[j] += static_cast<unsigned>(__popc(lanes & lower_lanes()));
      in_warp += static_cast<unsigned>(__popc(lanes));
      hits[j] |= (hit ? 1U : 0U) << c;
    }
    if (lane_of() == 0) counts[j * kWarps + warp] = in_warp;
  }
  SPARSCALE_BARRIER(6);
  if (warp == 0) {
    static_assert(kVectors * kWarps == 32, "one lane for each count");
    const std::uint32_t mine = counts[lane_of()];
    std::uint32_t through = mine;
    for (unsigned step = 1; step < 32; step *= 2) {
      const std::uint32_t other = __shfl_up_sync(kEveryLane, through, step);
      if (lane_of() >= step) through += other;
    }
    counts[lane_of()] = through - mine;
    if (lane_of() == 31) {
      base[0] = through == 0 ? 0ULL : atomicAdd(&state->candidates, static_cast<unsigned long long>(through));
      if (base[0] + through > state->capacity) base[0] = state->capacity;  // nothing is written: the total says so afterwards
      tiles[blockIdx.x] = {static_cast<std::uint32_t>(base[0]), through};
    }
  }
  SPARSCALE_BARRIER(7);
  if (base[0] == state->capacity) return;
  for (unsigned j = 0; j < kVectors; ++j) {
    unsigned long long out = base[0] + counts[j * kWarps + warp] + before[j];
    for (unsigned c = 0; c < 4; ++c) {
      if ((hits[j] >> c & 1U) == 0) continue;
      kept_values[out] = own[j][c];
      kept_positions[out++] = static_cast<std::uint32_t>(begin + (j * kThreads + threadIdx.x) * 4 + c);
    }
  }
}

/// Histogram of one digit of the keys that share the digits known so far; the last block finds the k-th's. size < 0: of the candidates.
SPARSCALE_KERNEL digit_kernel(const float* values, long long size, int pass, State* state, std::uint32_t* bins) {
  SPARSCALE_SHARED(std::uint32_t, counts, kDigitBins);
  SPARSCALE_SHARED(std::uint32_t, flag, 1);
  SPARSCALE_SHARED(unsigned long long, found, 2);
  const bool of_candidates = size < 0;
  if (of_candidates) {
    // The same for all threads of all blocks, and for all passes: the last block of pass 0 sets `failed` only when this would.
    if (state->failed != 0 || state->candidates > state->capacity) return;
    size = static_cast<long long>(state->candidates);
  }
  const std::uint32_t prefix = state->prefix, known = state->known, mask = digit_mask(pass);
  const unsigned shift = digit_shift(pass);
  unsigned long long rank = state->rank;
  clear_bins(counts, kDigitBins);
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < size;
       i += static_cast<long long>(gridDim.x) * blockDim.x) {
    const std::uint32_t key = key_of(values[i]);
    if ((key & known) == prefix) atomicAdd(&counts[key >> shift & mask], 1U);
  }
  add_bins(counts, kDigitBins, bins);
  if (!is_last_block(state, flag)) return;
  take_bins(bins, kDigitBins, counts);
  const unsigned bin = find_bin<kDigitBins>(counts, rank, found);
  if (threadIdx.x != 0) return;
  if (bin == kBins) {
    state->failed = 1;  // fewer than k candidates
    return;
  }
  state->prefix = prefix | bin << shift;
  state->known = known | mask << shift;
  state->rank = rank;
}

/// One thread: the filter is to keep what reaches the key that the digits of all values gave.
SPARSCALE_KERNEL bound_kernel(State* state) {
  state->bound = state->prefix;
  state->span = kLargestKey - state->prefix;
}

inline __device__ bool gave_up(const State* state) { return state->failed != 0 || state->candidates > state->capacity; }

/// One warp for each tile: how many of its candidates are above the k-th key and how many equal it.
SPARSCALE_KERNEL tally_kernel(const float* kept_values, const TileRecord* tiles, long long tile_count, const State* state,
                              std::uint32_t* greater, std::uint32_t* equal) {
  if (gave_up(state)) return;
  const std::uint32_t kth = state->prefix, all = state->take_all;
  for (long long tile = warp_index(); tile < tile_count; tile += warp_count()) {
    const TileRecord record = tiles[tile];
    std::uint32_t above = all != 0 ? record.count : 0, same = 0;
    for (std::uint32_t start = 0; all == 0 && start < record.count; start += 32) {
      const std::uint32_t i = start + lane_of();
      const std::uint32_t key = i < record.count ? key_of(kept_values[record.base + i]) : 0;
      above += static_cast<std::uint32_t>(__popc(__ballot_sync(kEveryLane, i < record.count && key > kth)));
      same += static_cast<std::uint32_t>(__popc(__ballot_sync(kEveryLane, i < record.count && key == kth)));
    }
    if (lane_of() == 0) {
      greater[tile] = above;
      equal[tile] = same;
    }
  }
}

/// One block of kScanThreads: where each tile writes. A tile's ties come after those of earlier tiles, and only `rank` are taken in all.
SPARSCALE_KERNEL scan_kernel(const std::uint32_t* greater, const std::uint32_t* equal, long long tile_count, State* state,
                             unsigned long long* offsets, unsigned long long* ties) {
  SPARSCALE_SHARED(unsigned long long, above_warps, kScanThreads / 32);
  SPARSCALE_SHARED(unsigned long long, same_warps, kScanThreads / 32);
  if (gave_up(state)) return;
  const long long each = (tile_count + kScanThreads - 1) / kScanThreads;
  const long long first = threadIdx.x * each;
  const long long last = first + each < tile_count ? first + each : tile_count;
  unsigned long long own_above = 0, own_same = 0;
  for (long long tile = first; tile < last; ++tile) {
    own_above += greater[tile];
    own_same += equal[tile];
  }
  unsigned long long above = own_above, same = own_same;
  for (unsigned step = 1; step < 32; step *= 2) {
    const unsigned long long other_above = __shfl_up_sync(kEveryLane, above, step), other_same = __shfl_up_sync(kEveryLane, same, step);
    if (lane_of() >= step) {
      above += other_above;
      same += other_same;
    }
  }
  const unsigned warp = threadIdx.x / 32;
  if (lane_of() == 31) {
    above_warps[warp] = above;
    same_warps[warp] = same;
  }
  SPARSCALE_BARRIER(8);
  above -= own_above;
  same -= own_same;
  for (unsigned w = 0; w < warp; ++w) {
    above += above_warps[w];
    same += same_warps[w];
  }
  const unsigned long long wanted = state->take_all != 0 ? 0 : state->rank;
  for (long long tile = first; tile < last; ++tile) {
    offsets[tile] = above + (same < wanted ? same : wanted);
    ties[tile] = same;
    above += greater[tile];
    same += equal[tile];
  }
  if (threadIdx.x == kScanThreads - 1) state->selected = above + (same < wanted ? same : wanted);
}

/// One warp for each tile: writes what is selected, ascending, and if asked (not nullptr) the values, and zeroes them where they came from.
SPARSCALE_KERNEL write_kernel(const float* kept_values, const std::uint32_t* kept_positions, const TileRecord* tiles, long long tile_count,
                              const State* state, const unsigned long long* offsets, const unsigned long long* ties, long long first,
                              std::int64_t* out, float* out_values, float* zeroed) {
  if (gave_up(state)) return;
  const std::uint32_t kth = state->prefix, all = state->take_all;
  const unsigned long long wanted = state->rank;
  for (long long tile = warp_index(); tile < tile_count; tile += warp_count()) {
    const TileRecord record = tiles[tile];
    unsigned long long written = offsets[tile], same = ties[tile];
    for (std::uint32_t start = 0; start < record.count; start += 32) {
      const std::uint32_t i = start + lane_of();
      const bool there = i < record.count;
      const float value = there ? kept_values[record.base + i] : 0;
      const std::uint32_t key = key_of(value);
      const bool tie = there && all == 0 && key == kth;
      const std::uint32_t tied = __ballot_sync(kEveryLane, tie);
      const bool taken = there && (all != 0 || key > kth || (tie && same + static_cast<unsigned>(__popc(tied & lower_lanes())) < wanted));
      const std::uint32_t lanes = __ballot_sync(kEveryLane, taken);
      if (taken) {
        const unsigned long long place = written + static_cast<unsigned>(__popc(lanes & lower_lanes()));
        const std::uint32_t position = kept_positions[record.base + i];
        out[place] = first + static_cast<long long>(position);
        if (out_values != nullptr) out_values[place] = value;
        if (zeroed != nullptr) zeroed[position] = 0;
      }
      written += static_cast<unsigned>(__popc(lanes));
      same += static_cast<unsigned>(__popc(tied));
    }
  }
}

}  // namespace sparscale::kernels::cuda::fused
