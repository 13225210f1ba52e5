// What the host and the kernels of fused.cuh tell each other. Plain C++17.
#pragma once

#include <cstdint>

namespace sparscale::kernels::cuda::fused {

constexpr unsigned kThreads = 256;
constexpr unsigned kWarps = kThreads / 32;
constexpr unsigned kTile = 4096;
constexpr unsigned kVectors = kTile / kThreads / 4;  // of four elements, for each thread
constexpr unsigned kRun = 32;                        // neighbours that are sampled together
constexpr unsigned kMostRuns = 2048;
constexpr unsigned kSampleShift = 19;  // bits of a key that a sample's histogram leaves out
constexpr unsigned kSampleBins = 1U << (31 - kSampleShift);
constexpr unsigned kDigitBins = 2048;
constexpr unsigned kBins = kSampleBins;  // memory for either
constexpr unsigned kScanThreads = 1024;
constexpr int kBarriers = 9;

/// What the kernels tell each other; in device memory.
struct State {
  std::uint32_t bound = 0, span = 0;    // the filter keeps keys in [bound, bound + span]
  std::uint32_t prefix = 0, known = 0;  // digits of the k-th key found so far, and which bits those are; in the end the key itself
  unsigned long long rank = 0;          // of the k-th among those with this prefix, from 1; in the end the number of ties to take
  unsigned long long capacity = 0;      // room for candidates
  unsigned long long candidates = 0;    // kept by the filter, or wanted to be
  unsigned long long squares = 0;       // sum over runs of hits^2
  unsigned long long selected = 0;      // written in the end
  std::uint32_t blocks_done = 0;
  std::uint32_t take_all = 0;  // 1: write every candidate
  std::uint32_t failed = 0;    // 1: the sample was of no use; nothing was selected
};

struct TileRecord {
  std::uint32_t base, count;
};

/// Device memory of one selection: a State, kBins counters, room for `capacity` candidates, and for each tile a record and four numbers.
struct Space {
  State* state = nullptr;
  std::uint32_t* bins = nullptr;
  float* values = nullptr;
  std::uint32_t* positions = nullptr;
  unsigned long long capacity = 0;
  TileRecord* tiles = nullptr;
  std::uint32_t* greater = nullptr;
  std::uint32_t* equal = nullptr;
  unsigned long long* offsets = nullptr;  // of the first index that the tile writes
  unsigned long long* ties = nullptr;     // equals in earlier tiles
};

/// What is selected from, and where to. With a gradient, values become the accumulators first.
struct Task {
  const float* gradient = nullptr;
  float scale = 1;
  float* values = nullptr;
  long long size = 0;   // from 1 to 2^32 - 1
  long long first = 0;  // added to each index
  std::int64_t* out = nullptr;
  float* out_values = nullptr;  // optional: the selected values
  bool zero = false;            // zero what was selected
};

inline long long tiles_of(long long size) { return (size + kTile - 1) / kTile; }

/// Room for candidates that top-k by sample needs; more than that is not worth it.
inline unsigned long long sampled_capacity(long long size, long long k) {
  return static_cast<unsigned long long>(2 * k + size / 16 + kTile);
}
/// Whether a sample can help at all.
inline bool sample_helps(long long size, long long k) { return size >= 16384 && k >= 1 && k <= size / 4; }

}  // namespace sparscale::kernels::cuda::fused
