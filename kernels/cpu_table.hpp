// What differs between the CPU back-ends: a few loops, one table of functions per instruction set.
//
// The translation units that fill the tables are compiled with flags of their own. They must keep everything in unnamed namespaces and
// use no inline function of the standard library: the linker keeps one copy of an inline function, and it could be the one whose
// instructions this machine lacks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/fixed_sums.hpp"

namespace sparscale::kernels {

/// Slots past the last result that CpuTable::select may overwrite.
inline constexpr std::size_t kSelectSlack = 64;

/// Addend (kernels.hpp): values, or mean + sign * deviation * values where there is a mean; bits of accumulators that count as zero, or
/// null.
struct CpuAddend {
  const float* values;
  const float* mean;
  const float* deviation;
  float sign;
  const std::uint64_t* zeros;
};

struct CpuTable {
  const char* name;
  /// accumulator[i] = fma(scale, gradient[i], accumulator[i]).
  void (*accumulate)(const CpuAddend& addend, float scale, float* accumulator, std::size_t size);
  /// Writes every i < size (below 2^32) with lowest <= key(values[i]) <= lowest + span, ascending; returns how many. `out` has room for
  /// size + kSelectSlack. key = bits of |x|.
  std::size_t (*select)(const float* values, std::size_t size, std::uint32_t lowest, std::uint32_t span, std::uint32_t* out);
  /// accumulate, then select from the accumulator, in one pass.
  std::size_t (*accumulate_select)(const CpuAddend& addend, float scale, float* accumulator, std::size_t size, std::uint32_t lowest,
                                   std::uint32_t span, std::uint32_t* out);
  /// How many select would write; size below 2^35.
  std::size_t (*count)(const float* values, std::size_t size, std::uint32_t lowest, std::uint32_t span);
  /// lanes[i mod 32] += values[i]^2 in double, i ascending (a square of a float is exact in double).
  void (*sum_squares)(const float* values, std::size_t size, double* lanes);
  /// Four sums in double, i ascending: lanes[i mod 32] += x, lanes[32 + i mod 32] += |x|, lanes[64 + i mod 32] += x^2,
  /// lanes[96 + i mod 32] += log2 |x| (fixed_sums.hpp; + 0 for zero, NaN and infinity).
  void (*moments)(const float* values, std::size_t size, double* lanes);
  /// The largest key; 0 of nothing.
  std::uint32_t (*largest)(const float* values, std::size_t size);
  /// To IEEE half and back, ties to even.
  void (*cast_half)(float* values, std::size_t size);
};

const CpuTable& scalar_table();
#ifdef SPARSCALE_X86
const CpuTable& avx2_table();
const CpuTable& avx512_table();
#endif

}  // namespace sparscale::kernels
