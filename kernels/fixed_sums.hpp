// What every back-end has to do alike for sums to have the same bits: constants only, since this is read by translation units of every
// instruction set and by nvcc.
//
// log2 |x| of a key (bits of |x|, neither 0 nor above 0x7f7fffff): a key below 0x00800000 (a subnormal number) is converted to float, which
// is exact, and 149 is subtracted in the end. Then e = (bits - kLog2Base) >> 23 (arithmetic) and the float with bits - (e << 23), which
// lies in [sqrt(1/2), sqrt(2)), less one is f, exact; log2 = e + f * P(f), P by Horner's rule, every multiplication and addition rounded to
// float by itself, the sum in double. Within 6e-8 of log2 in [sqrt(1/2), sqrt(2)), so 2e-7 is a generous bound everywhere.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparscale::kernels {

/// Elements of a tile and lanes of a tile's sum: element i of a tile goes to lane i mod 32. Lanes are added pairwise, lane l with l + 16,
/// then 8, 4, 2, 1; tiles one after the other.
inline constexpr std::size_t kSumTile = 8192;
inline constexpr std::size_t kSumLanes = 32;
/// Sums of CpuTable::moments.
inline constexpr std::size_t kMomentSums = 4;

inline constexpr std::uint32_t kLog2Base = 0x3f3504f3U;  // sqrt(1/2)
inline constexpr std::uint32_t kLeastNormal = 0x00800000U;
inline constexpr std::uint32_t kLargestFinite = 0x7f7fffffU;
inline constexpr int kLog2Terms = 9;
/// P: minimax for the error of f * P(f), rounded to float; lowest power first.
inline constexpr float kLog2[kLog2Terms] = {0x1.715474p+0F,  -0x1.71546ap-1F, 0x1.ec76f4p-2F,  -0x1.7160e6p-2F, 0x1.268f78p-2F,
                                            -0x1.e87ce2p-3F, 0x1.bd3168p-3F,  -0x1.aeb384p-3F, 0x1.00d83ap-3F};

}  // namespace sparscale::kernels
