// AVX2 + FMA + F16C. See cpu_table.hpp for what this file must not contain.
#include <immintrin.h>

#include "kernels/cpu_table.hpp"

namespace sparscale::kernels {
namespace {

// Row m lists the positions of the set bits of m: the permutation that moves the chosen lanes to the front.
struct Permutations {
  alignas(32) std::uint32_t rows[256][8];
};
constexpr Permutations make_permutations() {
  Permutations table{};
  for (std::uint32_t mask = 0; mask < 256; ++mask) {
    std::uint32_t next = 0;
    for (std::uint32_t bit = 0; bit < 8; ++bit)
      if ((mask >> bit & 1U) != 0) table.rows[mask][next++] = bit;
  }
  return table;
}
constexpr Permutations kPermutations = make_permutations();

std::uint32_t key_of(float value) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits & 0x7fffffffU;
}

struct Range {
  __m256i lowest, span, magnitude;
};
Range make_range(std::uint32_t lowest, std::uint32_t span) {
  return {_mm256_set1_epi32(static_cast<int>(lowest)), _mm256_set1_epi32(static_cast<int>(span)), _mm256_set1_epi32(0x7fffffff)};
}
// All ones where key - lowest <= span, unsigned.
__m256i inside(const float* values, const Range& range) {
  const __m256i key = _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(values)), range.magnitude);
  const __m256i offset = _mm256_sub_epi32(key, range.lowest);
  return _mm256_cmpeq_epi32(_mm256_min_epu32(offset, range.span), offset);
}
unsigned bits_of(__m256i lanes) { return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(lanes))); }

void accumulate(const float* gradient, float scale, float* accumulator, std::size_t size) {
  std::size_t i = 0;
  const __m256 factor = _mm256_set1_ps(scale);
  for (; i + 8 <= size; i += 8)
    _mm256_storeu_ps(accumulator + i, _mm256_fmadd_ps(factor, _mm256_loadu_ps(gradient + i), _mm256_loadu_ps(accumulator + i)));
  for (; i < size; ++i) accumulator[i] = __builtin_fmaf(scale, gradient[i], accumulator[i]);
}

std::size_t select(const float* values, std::size_t size, std::uint32_t lowest, std::uint32_t span, std::uint32_t* out) {
  const Range range = make_range(lowest, span);
  std::size_t found = 0, i = 0;
  for (; i + 32 <= size; i += 32) {
    __m256i lanes[4];
    for (int part = 0; part < 4; ++part) lanes[part] = inside(values + i + 8 * part, range);
    const __m256i any = _mm256_or_si256(_mm256_or_si256(lanes[0], lanes[1]), _mm256_or_si256(lanes[2], lanes[3]));
    if (_mm256_testz_si256(any, any) != 0) continue;
    for (int part = 0; part < 4; ++part) {
      const unsigned mask = bits_of(lanes[part]);
      const __m256i order = _mm256_load_si256(reinterpret_cast<const __m256i*>(kPermutations.rows[mask]));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + found),
                          _mm256_add_epi32(order, _mm256_set1_epi32(static_cast<int>(i + 8 * part))));
      found += static_cast<std::size_t>(__builtin_popcount(mask));
    }
  }
  for (; i < size; ++i) {
    out[found] = static_cast<std::uint32_t>(i);
    found += static_cast<std::size_t>(key_of(values[i]) - lowest <= span);
  }
  return found;
}

std::size_t count(const float* values, std::size_t size, std::uint32_t lowest, std::uint32_t span) {
  const Range range = make_range(lowest, span);
  __m256i sums[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
  std::size_t i = 0;
  for (; i + 32 <= size; i += 32)
    for (int part = 0; part < 4; ++part) sums[part] = _mm256_sub_epi32(sums[part], inside(values + i + 8 * part, range));
  std::size_t found = 0;
  for (const __m256i& sum : sums) {
    alignas(32) std::uint32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sum);
    for (const std::uint32_t lane : lanes) found += lane;
  }
  for (; i < size; ++i) found += static_cast<std::size_t>(key_of(values[i]) - lowest <= span);
  return found;
}

void sum_squares(const float* values, std::size_t size, double* lanes) {
  __m256d sums[8];
  for (int part = 0; part < 8; ++part) sums[part] = _mm256_loadu_pd(lanes + 4 * part);
  std::size_t i = 0;
  for (; i + kSumLanes <= size; i += kSumLanes)
    for (int part = 0; part < 8; ++part) {
      const __m256d value = _mm256_cvtps_pd(_mm_loadu_ps(values + i + 4 * part));
      sums[part] = _mm256_add_pd(sums[part], _mm256_mul_pd(value, value));
    }
  for (int part = 0; part < 8; ++part) _mm256_storeu_pd(lanes + 4 * part, sums[part]);
  for (std::size_t lane = 0; i < size; ++i, ++lane) {
    const double value = static_cast<double>(values[i]);
    lanes[lane] = lanes[lane] + value * value;
  }
}

void cast_half(float* values, std::size_t size) {
  std::size_t i = 0;
  for (; i + 8 <= size; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(values + i), _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_ps(values + i, _mm256_cvtph_ps(halves));
  }
  if (i == size) return;
  float rest[8] = {};
  for (std::size_t j = i; j < size; ++j) rest[j - i] = values[j];
  _mm256_storeu_ps(rest, _mm256_cvtph_ps(_mm256_cvtps_ph(_mm256_loadu_ps(rest), _MM_FROUND_TO_NEAREST_INT)));
  for (std::size_t j = i; j < size; ++j) values[j] = rest[j - i];
}

}  // namespace

const CpuTable& avx2_table() {
  static constexpr CpuTable table{"cpu.avx2", accumulate, select, count, sum_squares, cast_half};
  return table;
}

}  // namespace sparscale::kernels
