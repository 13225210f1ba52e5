// AVX-512 F. See cpu_table.hpp for what this file must not contain.
#include <immintrin.h>

#include "kernels/cpu_table.hpp"

namespace sparscale::kernels {
namespace {

struct Range {
  __m512i lowest, span, magnitude;
};
Range make_range(std::uint32_t lowest, std::uint32_t span) {
  return {_mm512_set1_epi32(static_cast<int>(lowest)), _mm512_set1_epi32(static_cast<int>(span)), _mm512_set1_epi32(0x7fffffff)};
}
__mmask16 inside(__m512i bits, const Range& range) {
  return _mm512_cmple_epu32_mask(_mm512_sub_epi32(_mm512_and_si512(bits, range.magnitude), range.lowest), range.span);
}
__mmask16 inside(const float* values, const Range& range) { return inside(_mm512_loadu_si512(values), range); }
// Asks for the lines some kilobytes ahead: with this much to do for each line, the core alone has too few of them under way.
void prefetch_64(const float* values) {
  constexpr int kAhead = 1536;
  for (int line = 0; line < 4; ++line) _mm_prefetch(reinterpret_cast<const char*>(values + kAhead + 16 * line), _MM_HINT_T0);
}
// The lanes below `rest`, at most 16.
__mmask16 first_lanes(std::size_t rest) { return static_cast<__mmask16>(rest >= 16 ? 0xffffU : (1U << rest) - 1U); }

void accumulate(const float* gradient, float scale, float* accumulator, std::size_t size) {
  const __m512 factor = _mm512_set1_ps(scale);
  std::size_t i = 0;
  for (; i + 16 <= size; i += 16)
    _mm512_storeu_ps(accumulator + i, _mm512_fmadd_ps(factor, _mm512_loadu_ps(gradient + i), _mm512_loadu_ps(accumulator + i)));
  if (i == size) return;
  const __mmask16 lanes = first_lanes(size - i);
  const __m512 sum = _mm512_fmadd_ps(factor, _mm512_maskz_loadu_ps(lanes, gradient + i), _mm512_maskz_loadu_ps(lanes, accumulator + i));
  _mm512_mask_storeu_ps(accumulator + i, lanes, sum);
}

// Compression to a register and a full store: compression to memory is microcoded on Zen 4 and 5.
std::size_t append(std::uint32_t* out, std::size_t found, __mmask16 lanes, __m512i positions) {
  _mm512_storeu_si512(out + found, _mm512_maskz_compress_epi32(lanes, positions));
  return found + static_cast<std::size_t>(__builtin_popcount(lanes));
}

std::size_t select(const float* values, std::size_t size, std::uint32_t lowest, std::uint32_t span, std::uint32_t* out) {
  const Range range = make_range(lowest, span);
  const __m512i step = _mm512_set1_epi32(16);
  const __m512i start = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  std::size_t found = 0, i = 0;
  for (; i + 64 <= size; i += 64) {
    prefetch_64(values + i);
    const __mmask16 lanes0 = inside(values + i, range), lanes1 = inside(values + i + 16, range);
    const __mmask16 lanes2 = inside(values + i + 32, range), lanes3 = inside(values + i + 48, range);
    if (((lanes0 | lanes1) | (lanes2 | lanes3)) == 0) continue;
    __m512i positions = _mm512_add_epi32(start, _mm512_set1_epi32(static_cast<int>(i)));
    found = append(out, found, lanes0, positions);
    positions = _mm512_add_epi32(positions, step);
    found = append(out, found, lanes1, positions);
    positions = _mm512_add_epi32(positions, step);
    found = append(out, found, lanes2, positions);
    positions = _mm512_add_epi32(positions, step);
    found = append(out, found, lanes3, positions);
  }
  for (; i < size; i += 16) {
    const __mmask16 valid = first_lanes(size - i);
    const __mmask16 lanes = static_cast<__mmask16>(inside(_mm512_maskz_loadu_epi32(valid, values + i), range) & valid);
    found = append(out, found, lanes, _mm512_add_epi32(start, _mm512_set1_epi32(static_cast<int>(i))));
  }
  return found;
}

std::size_t count(const float* values, std::size_t size, std::uint32_t lowest, std::uint32_t span) {
  const Range range = make_range(lowest, span);
  const __m512i one = _mm512_set1_epi32(1);
  __m512i sums[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
  std::size_t i = 0;
  for (; i + 64 <= size; i += 64) {
    prefetch_64(values + i);
    for (int part = 0; part < 4; ++part)
      sums[part] = _mm512_mask_add_epi32(sums[part], inside(values + i + 16 * part, range), sums[part], one);
  }
  std::size_t found = 0;
  for (; i < size; i += 16) {
    const __mmask16 valid = first_lanes(size - i);
    found += static_cast<std::size_t>(__builtin_popcount(inside(_mm512_maskz_loadu_epi32(valid, values + i), range) & valid));
  }
  for (const __m512i& sum : sums) {
    alignas(64) std::uint32_t lanes[16];
    _mm512_store_si512(lanes, sum);
    for (const std::uint32_t lane : lanes) found += lane;
  }
  return found;
}

void sum_squares(const float* values, std::size_t size, double* lanes) {
  __m512d sums[4];
  for (int part = 0; part < 4; ++part) sums[part] = _mm512_loadu_pd(lanes + 8 * part);
  std::size_t i = 0;
  for (; i + kSumLanes <= size; i += kSumLanes)
    for (int part = 0; part < 4; ++part) {
      const __m512d value = _mm512_cvtps_pd(_mm256_loadu_ps(values + i + 8 * part));
      sums[part] = _mm512_add_pd(sums[part], _mm512_mul_pd(value, value));
    }
  for (int part = 0; part < 4; ++part) _mm512_storeu_pd(lanes + 8 * part, sums[part]);
  for (std::size_t lane = 0; i < size; ++i, ++lane) {
    const double value = static_cast<double>(values[i]);
    lanes[lane] = lanes[lane] + value * value;
  }
}

void cast_half(float* values, std::size_t size) {
  for (std::size_t i = 0; i < size; i += 16) {
    const __mmask16 valid = first_lanes(size - i);
    const __m256i halves = _mm512_cvtps_ph(_mm512_maskz_loadu_ps(valid, values + i), _MM_FROUND_TO_NEAREST_INT);
    _mm512_mask_storeu_ps(values + i, valid, _mm512_cvtph_ps(halves));
  }
}

}  // namespace

const CpuTable& avx512_table() {
  static constexpr CpuTable table{"cpu.avx512", accumulate, select, count, sum_squares, cast_half};
  return table;
}

}  // namespace sparscale::kernels
