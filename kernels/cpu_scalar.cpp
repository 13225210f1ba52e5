// Plain loops: the reference the other back-ends are compared with, and what runs on any machine.
#include <bit>
#include <cmath>

#include "kernels/cpu_table.hpp"

namespace sparscale::kernels {
namespace {

std::uint32_t key_of(float value) { return std::bit_cast<std::uint32_t>(value) & 0x7fffffffU; }

constexpr std::size_t kPiece = 1024;  // stays in the first-level cache

void accumulate_values(const float* gradient, float scale, float* accumulator, std::size_t size) {
  if (scale == 1.0F) {
    for (std::size_t i = 0; i < size; ++i) accumulator[i] = accumulator[i] + gradient[i];
  } else {
    for (std::size_t i = 0; i < size; ++i) accumulator[i] = std::fma(scale, gradient[i], accumulator[i]);
  }
}

void accumulate(const CpuAddend& addend, float scale, float* accumulator, std::size_t size) {
  if (addend.zeros != nullptr)
    for (std::size_t i = 0; i < size; ++i)
      if ((addend.zeros[i / 64] >> (i % 64) & 1U) != 0) accumulator[i] = 0;
  if (addend.mean == nullptr) return accumulate_values(addend.values, scale, accumulator, size);
  float made[kPiece];
  for (std::size_t begin = 0; begin < size; begin += kPiece) {
    const std::size_t piece = size - begin < kPiece ? size - begin : kPiece;
    for (std::size_t i = 0; i < piece; ++i)
      made[i] = addend.mean[begin + i] + addend.sign * addend.deviation[begin + i] * addend.values[begin + i];
    accumulate_values(made, scale, accumulator + begin, piece);
  }
}

std::size_t select(const float* values, std::size_t size, std::uint32_t lowest, std::uint32_t span, std::uint32_t* out) {
  std::size_t found = 0;
  for (std::size_t i = 0; i < size; ++i) {
    out[found] = static_cast<std::uint32_t>(i);
    found += static_cast<std::size_t>(key_of(values[i]) - lowest <= span);
  }
  return found;
}

// Two passes over pieces that stay in the first-level cache: in one loop the compiler would not vectorise the sums.
std::size_t accumulate_select(const CpuAddend& addend, float scale, float* accumulator, std::size_t size, std::uint32_t lowest,
                              std::uint32_t span, std::uint32_t* out) {
  std::size_t found = 0;
  for (std::size_t begin = 0; begin < size; begin += kPiece) {
    const std::size_t piece = size - begin < kPiece ? size - begin : kPiece;
    const bool made = addend.mean != nullptr;
    accumulate({addend.values + begin, made ? addend.mean + begin : nullptr, made ? addend.deviation + begin : nullptr, addend.sign,
                addend.zeros == nullptr ? nullptr : addend.zeros + begin / 64},
               scale, accumulator + begin, piece);
    std::uint32_t* const start = out + found;
    const std::size_t more = select(accumulator + begin, piece, lowest, span, start);
    for (std::size_t i = 0; i < more; ++i) start[i] += static_cast<std::uint32_t>(begin);
    found += more;
  }
  return found;
}

std::size_t count(const float* values, std::size_t size, std::uint32_t lowest, std::uint32_t span) {
  std::size_t found = 0;
  for (std::size_t i = 0; i < size; ++i) found += static_cast<std::size_t>(key_of(values[i]) - lowest <= span);
  return found;
}

void sum_squares(const float* values, std::size_t size, double* lanes) {
  std::size_t i = 0;
  for (; i + kSumLanes <= size; i += kSumLanes)
    for (std::size_t lane = 0; lane < kSumLanes; ++lane) {
      const double value = static_cast<double>(values[i + lane]);
      lanes[lane] = lanes[lane] + value * value;
    }
  for (std::size_t lane = 0; i < size; ++i, ++lane) {
    const double value = static_cast<double>(values[i]);
    lanes[lane] = lanes[lane] + value * value;
  }
}

// fixed_sums.hpp says how.
double log2_of(std::uint32_t key) {
  if (key - 1 >= kLargestFinite) return 0;
  float value = std::bit_cast<float>(key);
  std::int32_t exponent = 0;
  if (key < kLeastNormal) {
    value = static_cast<float>(static_cast<std::int32_t>(key));
    exponent = -149;
  }
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::int32_t shift = static_cast<std::int32_t>(bits - kLog2Base) >> 23;
  const float f = std::bit_cast<float>(bits - (static_cast<std::uint32_t>(shift) << 23)) - 1.0F;
  float p = kLog2[kLog2Terms - 1];
  for (int term = kLog2Terms - 2; term >= 0; --term) p = p * f + kLog2[term];
  return static_cast<double>(exponent + shift) + static_cast<double>(p * f);
}

void moments(const float* values, std::size_t size, double* lanes) {
  for (std::size_t i = 0; i < size; ++i) {
    double* const lane = lanes + i % kSumLanes;
    const std::uint32_t key = key_of(values[i]);
    const double value = static_cast<double>(values[i]);
    lane[0] += value;
    lane[kSumLanes] += static_cast<double>(std::bit_cast<float>(key));
    lane[2 * kSumLanes] += value * value;
    lane[3 * kSumLanes] += log2_of(key);
  }
}

std::uint32_t largest(const float* values, std::size_t size) {
  std::uint32_t most = 0;
  for (std::size_t i = 0; i < size; ++i) {
    const std::uint32_t key = key_of(values[i]);
    most = key > most ? key : most;
  }
  return most;
}

// Works on the bits, so that neither the rounding mode nor flush-to-zero of the process matters. NaN keeps its sign and the upper ten bits
// of its payload and becomes quiet, as the x86 conversion does.
float through_half(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits & 0x80000000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return std::bit_cast<float>(sign | 0x7fc00000U | (magnitude & 0x007fe000U));
  if (magnitude >= 0x477ff000U) return std::bit_cast<float>(sign | 0x7f800000U);  // 65520 and more
  std::uint32_t dropped = 13;                                                     // bits of the significand that half lacks
  if (magnitude < 0x38800000U) {                                                  // below 2^-14: half is subnormal
    const std::uint32_t exponent = magnitude >> 23;
    if (exponent < 102) return std::bit_cast<float>(sign);  // below 2^-25: zero
    dropped = 13 + (113 - exponent);
    if (dropped > 23) {  // [2^-25, 2^-24): zero or the least subnormal, the tie 2^-25 goes to the even zero
      return std::bit_cast<float>(magnitude > 0x33000000U ? (sign | 0x33800000U) : sign);
    }
  }
  const std::uint32_t unit = 1U << dropped;
  const std::uint32_t rounded = magnitude + (unit / 2 - 1) + ((magnitude >> dropped) & 1U);
  return std::bit_cast<float>(sign | (rounded & ~(unit - 1)));
}

void cast_half(float* values, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) values[i] = through_half(values[i]);
}

}  // namespace

const CpuTable& scalar_table() {
  static constexpr CpuTable table{"cpu.scalar", accumulate, select, accumulate_select, count, sum_squares, moments, largest, cast_half};
  return table;
}

}  // namespace sparscale::kernels
