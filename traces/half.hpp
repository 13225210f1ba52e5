// 16-bit floating point (IEEE binary16 and bfloat16) to and from float, bit by bit, so that every machine agrees.
#pragma once

#include <bit>
#include <cstdint>

namespace sparscale::traces {

/// Exact.
inline float float_from_half(std::uint16_t half) {
  const std::uint32_t magnitude = static_cast<std::uint32_t>(half & 0x7fffU) << 13;
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t exponent = magnitude & 0x0f800000U;
  // Rebias; infinities and NaN rebias twice; subnormal numbers are renormalised by a subtraction that is exact.
  const std::uint32_t normal = magnitude + (112U << 23) + (exponent == 0x0f800000U ? 112U << 23 : 0U);
  const float subnormal = std::bit_cast<float>(magnitude + (113U << 23)) - std::bit_cast<float>(113U << 23);
  const std::uint32_t bits = exponent == 0 ? std::bit_cast<std::uint32_t>(subnormal) : normal;
  return std::bit_cast<float>(bits | sign);
}

/// Rounds to nearest, ties to even; overflow gives infinity.
inline std::uint16_t half_from_float(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<std::uint16_t>(sign | 0x7e00U);
  if (magnitude >= 0x477ff000U) return static_cast<std::uint16_t>(sign | 0x7c00U);  // 65520 and more
  if (magnitude < 0x38800000U) {
    // Below 2^-14: adding 0.5 rounds at 2^-24, the step of subnormal halves.
    const float sum = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(sum) - 0x3f000000U));
  }
  const std::uint32_t odd = (magnitude >> 13) & 1U;
  return static_cast<std::uint16_t>(sign | ((magnitude - (112U << 23) + 0xfffU + odd) >> 13));
}

/// Exact.
inline float float_from_bfloat16(std::uint16_t value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16); }

}  // namespace sparscale::traces
