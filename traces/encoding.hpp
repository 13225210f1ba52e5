// How gradients are stored: float32, or 16 bits that are decoded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "traces/half.hpp"

namespace sparscale::traces {

enum class Encoding { f32, f16, bf16 };

inline std::size_t encoding_bytes(Encoding encoding) { return encoding == Encoding::f32 ? 4 : 2; }

/// F32, F16 or BF16; nothing for any other name.
inline std::optional<Encoding> encoding_of(const std::string& dtype) {
  if (dtype == "F32") return Encoding::f32;
  if (dtype == "F16") return Encoding::f16;
  if (dtype == "BF16") return Encoding::bf16;
  return std::nullopt;
}

/// `count` values from `in` (little-endian, any alignment), divided by `scale`.
inline void decode_values(Encoding encoding, const std::byte* in, std::size_t count, float scale, float* out) {
  switch (encoding) {
    case Encoding::f32:
      std::memcpy(out, in, count * 4);
      break;
    case Encoding::f16:
      for (std::size_t i = 0; i < count; ++i) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, in + 2 * i, 2);
        out[i] = float_from_half(bits);
      }
      break;
    case Encoding::bf16:
      for (std::size_t i = 0; i < count; ++i) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, in + 2 * i, 2);
        out[i] = float_from_bfloat16(bits);
      }
      break;
  }
  if (scale != 1)
    for (std::size_t i = 0; i < count; ++i) out[i] /= scale;
}

}  // namespace sparscale::traces
