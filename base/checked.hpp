// Size arithmetic that refuses to wrap.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.hpp"

namespace sparscale {

/// a * b; InputError naming `what` when the product does not fit in 64 bits.
inline std::uint64_t checked_multiply(std::uint64_t a, std::uint64_t b, const std::string& what) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) throw InputError(what, "a size below 2^64", std::to_string(a) + " x " + std::to_string(b));
  return product;
}

}  // namespace sparscale
