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

// Entries of `values` (16 of them from `part` on in a group of 64) where the group's bits are not set, zero elsewhere.
__m512 kept(const float* values, std::uint64_t zeros, std::size_t part) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>(~zeros >> part), values + part);
}

// Sixteen elements of the gradient, those of `lanes`.
template <bool made>
__m512 gradient_of(const CpuAddend& addend, std::size_t i, __mmask16 lanes) {
  const __m512 values = _mm512_maskz_loadu_ps(lanes, addend.values + i);
  if (!made) return values;
  const __m512 factor = _mm512_mul_ps(_mm512_set1_ps(addend.sign), _mm512_maskz_loadu_ps(lanes, addend.deviation + i));
  return _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, addend.mean + i), _mm512_mul_ps(factor, values));
}
template <bool made>
__m512 gradient_of(const CpuAddend& addend, std::size_t i) {
  const __m512 values = _mm512_loadu_ps(addend.values + i);
  if (!made) return values;
  const __m512 factor = _mm512_mul_ps(_mm512_set1_ps(addend.sign), _mm512_loadu_ps(addend.deviation + i));
  return _mm512_add_ps(_mm512_loadu_ps(addend.mean + i), _mm512_mul_ps(factor, values));
}

template <bool made>
void accumulate(const CpuAddend& addend, float scale, float* accumulator, std::size_t size) {
  const __m512 factor = _mm512_set1_ps(scale);
  std::size_t i = 0;
  if (addend.zeros != nullptr) {
    for (; i + 64 <= size; i += 64) {
      if (made) prefetch_64(addend.values + i);
      prefetch_64(accumulator + i);
      for (std::size_t part = 0; part < 64; part += 16)
        _mm512_storeu_ps(accumulator + i + part,
                         _mm512_fmadd_ps(factor, gradient_of<made>(addend, i + part), kept(accumulator + i, addend.zeros[i / 64], part)));
    }
    for (; i < size; i += 16) {
      const __mmask16 lanes = first_lanes(size - i), left = static_cast<__mmask16>(lanes & (~addend.zeros[i / 64] >> (i % 64)));
      const __m512 before = _mm512_maskz_loadu_ps(left, accumulator + i);
      _mm512_mask_storeu_ps(accumulator + i, lanes, _mm512_fmadd_ps(factor, gradient_of<made>(addend, i, lanes), before));
    }
    return;
  }
  for (; i + 16 <= size; i += 16)
    _mm512_storeu_ps(accumulator + i, _mm512_fmadd_ps(factor, gradient_of<made>(addend, i), _mm512_loadu_ps(accumulator + i)));
  if (i == size) return;
  const __mmask16 lanes = first_lanes(size - i);
  const __m512 before = _mm512_maskz_loadu_ps(lanes, accumulator + i);
  _mm512_mask_storeu_ps(accumulator + i, lanes, _mm512_fmadd_ps(factor, gradient_of<made>(addend, i, lanes), before));
}
void accumulate_any(const CpuAddend& addend, float scale, float* accumulator, std::size_t size) {
  if (addend.mean != nullptr) return accumulate<true>(addend, scale, accumulator, size);
  accumulate<false>(addend, scale, accumulator, size);
}

// Compression to a register and a full store: compression to memory is microcoded on Zen 4 and 5.
std::size_t append(std::uint32_t* out, std::size_t found, __mmask16 lanes, __m512i positions) {
  _mm512_storeu_si512(out + found, _mm512_maskz_compress_epi32(lanes, positions));
  return found + static_cast<std::size_t>(__builtin_popcount(lanes));
}

// The lanes of 64 values that are selected, and their places.
struct Lanes {
  __mmask16 lanes[4];
  bool none() const { return ((lanes[0] | lanes[1]) | (lanes[2] | lanes[3])) == 0; }
};
std::size_t append(std::uint32_t* out, std::size_t found, const Lanes& group, std::size_t i) {
  const __m512i start = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __m512i positions = _mm512_add_epi32(start, _mm512_set1_epi32(static_cast<int>(i)));
  for (int part = 0; part < 4; ++part) {
    found = append(out, found, group.lanes[part], positions);
    positions = _mm512_add_epi32(positions, _mm512_set1_epi32(16));
  }
  return found;
}
// Whether groups of 64 are hit so often that a branch over the empty ones is guessed wrong too often to pay.
bool is_dense(std::size_t found, std::size_t seen) { return found * 256 > seen; }
constexpr std::size_t kStretch = 512;

std::size_t select(const float* values, std::size_t size, std::uint32_t lowest, std::uint32_t span, std::uint32_t* out) {
  const Range range = make_range(lowest, span);
  const auto group = [&](std::size_t i) {
    prefetch_64(values + i);
    Lanes lanes;
    for (int part = 0; part < 4; ++part) lanes.lanes[part] = inside(values + i + 16 * part, range);
    return lanes;
  };
  std::size_t found = 0, i = 0;
  while (i + kStretch <= size) {
    const std::size_t end = i + kStretch;
    if (is_dense(found, i)) {
      for (; i < end; i += 64) found = append(out, found, group(i), i);
    } else {
      for (; i < end; i += 64) {
        const Lanes lanes = group(i);
        if (!lanes.none()) found = append(out, found, lanes, i);
      }
    }
  }
  const __m512i start = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (; i < size; i += 16) {
    const __mmask16 valid = first_lanes(size - i);
    const __mmask16 lanes = static_cast<__mmask16>(inside(_mm512_maskz_loadu_epi32(valid, values + i), range) & valid);
    found = append(out, found, lanes, _mm512_add_epi32(start, _mm512_set1_epi32(static_cast<int>(i))));
  }
  return found;
}

template <bool made, bool zeroed>
std::size_t accumulate_select(const CpuAddend& addend, float scale, float* accumulator, std::size_t size, std::uint32_t lowest,
                              std::uint32_t span, std::uint32_t* out) {
  const Range range = make_range(lowest, span);
  const __m512 factor = _mm512_set1_ps(scale);
  const auto group = [&](std::size_t i) {
    prefetch_64(addend.values + i);
    prefetch_64(accumulator + i);
    Lanes lanes;
    for (std::size_t part = 0; part < 4; ++part) {
      float* const place = accumulator + i + 16 * part;
      const __m512 before = zeroed ? kept(accumulator + i, addend.zeros[i / 64], 16 * part) : _mm512_loadu_ps(place);
      const __m512 sum = _mm512_fmadd_ps(factor, gradient_of<made>(addend, i + 16 * part), before);
      _mm512_storeu_ps(place, sum);
      lanes.lanes[part] = inside(_mm512_castps_si512(sum), range);
    }
    return lanes;
  };
  std::size_t found = 0, i = 0;
  while (i + kStretch <= size) {
    const std::size_t end = i + kStretch;
    if (is_dense(found, i)) {
      for (; i < end; i += 64) found = append(out, found, group(i), i);
    } else {
      for (; i < end; i += 64) {
        const Lanes lanes = group(i);
        if (!lanes.none()) found = append(out, found, lanes, i);
      }
    }
  }
  const __m512i start = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (; i < size; i += 16) {
    const __mmask16 valid = first_lanes(size - i);
    const __mmask16 left = zeroed ? static_cast<__mmask16>(valid & (~addend.zeros[i / 64] >> (i % 64))) : valid;
    const __m512 sum = _mm512_fmadd_ps(factor, gradient_of<made>(addend, i, valid), _mm512_maskz_loadu_ps(left, accumulator + i));
    _mm512_mask_storeu_ps(accumulator + i, valid, sum);
    const __mmask16 lanes = static_cast<__mmask16>(inside(_mm512_castps_si512(sum), range) & valid);
    found = append(out, found, lanes, _mm512_add_epi32(start, _mm512_set1_epi32(static_cast<int>(i))));
  }
  return found;
}

template <bool made>
std::size_t accumulate_select_of(const CpuAddend& addend, float scale, float* accumulator, std::size_t size, std::uint32_t lowest,
                                 std::uint32_t span, std::uint32_t* out) {
  if (addend.zeros != nullptr) return accumulate_select<made, true>(addend, scale, accumulator, size, lowest, span, out);
  return accumulate_select<made, false>(addend, scale, accumulator, size, lowest, span, out);
}
std::size_t accumulate_select_any(const CpuAddend& addend, float scale, float* accumulator, std::size_t size, std::uint32_t lowest,
                                  std::uint32_t span, std::uint32_t* out) {
  if (addend.mean != nullptr) return accumulate_select_of<true>(addend, scale, accumulator, size, lowest, span, out);
  return accumulate_select_of<false>(addend, scale, accumulator, size, lowest, span, out);
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

// log2 |x| of sixteen values as e (whole, in float) and f * P(f); both zero where there is none. fixed_sums.hpp says how.
struct Log2 {
  __m512 exponent, rest;
};
Log2 log2_of(__m512i key) {
  const __mmask16 small = _mm512_cmplt_epu32_mask(key, _mm512_set1_epi32(static_cast<int>(kLeastNormal)));
  const __m512i bits = _mm512_mask_mov_epi32(key, small, _mm512_castps_si512(_mm512_cvtepi32_ps(key)));
  const __m512i shift = _mm512_srai_epi32(_mm512_sub_epi32(bits, _mm512_set1_epi32(static_cast<int>(kLog2Base))), 23);
  const __m512 f = _mm512_sub_ps(_mm512_castsi512_ps(_mm512_sub_epi32(bits, _mm512_slli_epi32(shift, 23))), _mm512_set1_ps(1.0F));
  __m512 p = _mm512_set1_ps(kLog2[kLog2Terms - 1]);
  for (int term = kLog2Terms - 2; term >= 0; --term) p = _mm512_add_ps(_mm512_mul_ps(p, f), _mm512_set1_ps(kLog2[term]));
  const __m512i exponent = _mm512_mask_sub_epi32(shift, small, shift, _mm512_set1_epi32(149));
  const __mmask16 usual =
      _mm512_cmplt_epu32_mask(_mm512_sub_epi32(key, _mm512_set1_epi32(1)), _mm512_set1_epi32(static_cast<int>(kLargestFinite)));
  return {_mm512_maskz_mov_ps(usual, _mm512_cvtepi32_ps(exponent)), _mm512_maskz_mov_ps(usual, _mm512_mul_ps(p, f))};
}

__m512d lower_half(__m512 all) { return _mm512_cvtps_pd(_mm512_castps512_ps256(all)); }
__m512d upper_half(__m512 all) { return _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(all), 1))); }

// Sixteen values into their two registers of each of the four sums.
void add_moments(__m512 values, __m512d (&sums)[16], int part) {
  const __m512i key = _mm512_and_si512(_mm512_castps_si512(values), _mm512_set1_epi32(0x7fffffff));
  const Log2 log2 = log2_of(key);
  const __m512d low = lower_half(values), high = upper_half(values);
  const int at = 2 * part;
  sums[at] = _mm512_add_pd(sums[at], low);
  sums[at + 1] = _mm512_add_pd(sums[at + 1], high);
  sums[4 + at] = _mm512_add_pd(sums[4 + at], _mm512_abs_pd(low));
  sums[5 + at] = _mm512_add_pd(sums[5 + at], _mm512_abs_pd(high));
  sums[8 + at] = _mm512_add_pd(sums[8 + at], _mm512_mul_pd(low, low));
  sums[9 + at] = _mm512_add_pd(sums[9 + at], _mm512_mul_pd(high, high));
  sums[12 + at] = _mm512_add_pd(sums[12 + at], _mm512_add_pd(lower_half(log2.exponent), lower_half(log2.rest)));
  sums[13 + at] = _mm512_add_pd(sums[13 + at], _mm512_add_pd(upper_half(log2.exponent), upper_half(log2.rest)));
}

void moments(const float* values, std::size_t size, double* lanes) {
  __m512d sums[16];
  for (int part = 0; part < 16; ++part) sums[part] = _mm512_loadu_pd(lanes + 8 * part);
  std::size_t i = 0;
  for (; i + kSumLanes <= size; i += kSumLanes) {
    _mm_prefetch(reinterpret_cast<const char*>(values + i + 1536), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(values + i + 1552), _MM_HINT_T0);
    add_moments(_mm512_loadu_ps(values + i), sums, 0);
    add_moments(_mm512_loadu_ps(values + i + 16), sums, 1);
  }
  // Lanes past the end add +0, which changes no sum but -0, and no sum is -0, since each starts at +0.
  if (i < size) {
    add_moments(_mm512_maskz_loadu_ps(first_lanes(size - i), values + i), sums, 0);
    if (i + 16 < size) add_moments(_mm512_maskz_loadu_ps(first_lanes(size - i - 16), values + i + 16), sums, 1);
  }
  for (int part = 0; part < 16; ++part) _mm512_storeu_pd(lanes + 8 * part, sums[part]);
}

std::uint32_t largest(const float* values, std::size_t size) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i most[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
  std::size_t i = 0;
  for (; i + 64 <= size; i += 64) {
    prefetch_64(values + i);
    for (int part = 0; part < 4; ++part)
      most[part] = _mm512_max_epu32(most[part], _mm512_and_si512(_mm512_loadu_si512(values + i + 16 * part), magnitude));
  }
  for (; i < size; i += 16)
    most[0] = _mm512_max_epu32(most[0], _mm512_and_si512(_mm512_maskz_loadu_epi32(first_lanes(size - i), values + i), magnitude));
  alignas(64) std::uint32_t lanes[16];
  _mm512_store_si512(lanes, _mm512_max_epu32(_mm512_max_epu32(most[0], most[1]), _mm512_max_epu32(most[2], most[3])));
  std::uint32_t result = 0;
  for (const std::uint32_t lane : lanes) result = lane > result ? lane : result;
  return result;
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
  static constexpr CpuTable table{"cpu.avx512", accumulate_any, select,   accumulate_select_any, count, sum_squares,
                                  moments,      largest,        cast_half};
  return table;
}

}  // namespace sparscale::kernels
