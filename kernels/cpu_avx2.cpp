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
__m256i inside(__m256i bits, const Range& range) {
  const __m256i key = _mm256_and_si256(bits, range.magnitude);
  const __m256i offset = _mm256_sub_epi32(key, range.lowest);
  return _mm256_cmpeq_epi32(_mm256_min_epu32(offset, range.span), offset);
}
__m256i inside(const float* values, const Range& range) {
  return inside(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(values)), range);
}
unsigned bits_of(__m256i lanes) { return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(lanes))); }

// All ones in the lanes of the bits that are not set.
__m256 kept(std::uint32_t bits) {
  const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), lane), _mm256_setzero_si256()));
}
// What is left of values[part], part a multiple of 8 below 64.
__m256 kept(const float* values, std::uint64_t zeros, std::size_t part) {
  return _mm256_and_ps(_mm256_loadu_ps(values + part), kept(static_cast<std::uint32_t>(zeros >> part)));
}
void write_zeros(float* values, std::size_t size, std::uint64_t zeros) {
  for (; zeros != 0; zeros = _blsr_u64(zeros))
    if (const std::size_t i = _tzcnt_u64(zeros); i < size) values[i] = 0;
}

// Asks for the lines some kilobytes ahead: with this much to do for each line, the core alone has too few of them under way.
void prefetch_32(const float* values) {
  constexpr int kAhead = 1024;
  for (int line = 0; line < 2; ++line) _mm_prefetch(reinterpret_cast<const char*>(values + kAhead + 16 * line), _MM_HINT_T0);
}

// Eight elements of the gradient.
template <bool made>
__m256 gradient_of(const CpuAddend& addend, std::size_t i) {
  const __m256 values = _mm256_loadu_ps(addend.values + i);
  if (!made) return values;
  const __m256 factor = _mm256_mul_ps(_mm256_set1_ps(addend.sign), _mm256_loadu_ps(addend.deviation + i));
  return _mm256_add_ps(_mm256_loadu_ps(addend.mean + i), _mm256_mul_ps(factor, values));
}
template <bool made>
float one_gradient_of(const CpuAddend& addend, std::size_t i) {
  return made ? addend.mean[i] + addend.sign * addend.deviation[i] * addend.values[i] : addend.values[i];
}

template <bool made>
void accumulate(const CpuAddend& addend, float scale, float* accumulator, std::size_t size) {
  std::size_t i = 0;
  const __m256 factor = _mm256_set1_ps(scale);
  if (addend.zeros != nullptr) {
    for (; i + 64 <= size; i += 64) {
      prefetch_32(accumulator + i);
      prefetch_32(accumulator + i + 32);
      for (std::size_t part = 0; part < 64; part += 8)
        _mm256_storeu_ps(accumulator + i + part,
                         _mm256_fmadd_ps(factor, gradient_of<made>(addend, i + part), kept(accumulator + i, addend.zeros[i / 64], part)));
    }
    if (i < size) write_zeros(accumulator + i, size - i, addend.zeros[i / 64]);
  }
  for (; i + 8 <= size; i += 8)
    _mm256_storeu_ps(accumulator + i, _mm256_fmadd_ps(factor, gradient_of<made>(addend, i), _mm256_loadu_ps(accumulator + i)));
  for (; i < size; ++i) accumulator[i] = __builtin_fmaf(scale, one_gradient_of<made>(addend, i), accumulator[i]);
}
void accumulate_any(const CpuAddend& addend, float scale, float* accumulator, std::size_t size) {
  if (addend.mean != nullptr) return accumulate<true>(addend, scale, accumulator, size);
  accumulate<false>(addend, scale, accumulator, size);
}

// Appends the positions i + 8 * part + lane of the lanes set.
std::size_t append(std::uint32_t* out, std::size_t found, const __m256i (&lanes)[4], std::size_t i) {
  for (int part = 0; part < 4; ++part) {
    const unsigned mask = bits_of(lanes[part]);
    const __m256i order = _mm256_load_si256(reinterpret_cast<const __m256i*>(kPermutations.rows[mask]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + found),
                        _mm256_add_epi32(order, _mm256_set1_epi32(static_cast<int>(i + 8 * static_cast<std::size_t>(part)))));
    found += static_cast<std::size_t>(__builtin_popcount(mask));
  }
  return found;
}

constexpr std::size_t kStretch = 512;

// A group of 64 values is looked at as a whole; where one is not below the range, or where that is so often, they are read again from the
// first-level cache.
std::uint32_t mask_of(const float* values, const Range& range) {
  const __m256i low = _mm256_packs_epi32(inside(values, range), inside(values + 8, range));
  const __m256i high = _mm256_packs_epi32(inside(values + 16, range), inside(values + 24, range));
  // Packing works in halves of a register: eight groups of four lanes, out of order.
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  return static_cast<std::uint32_t>(_mm256_movemask_epi8(bytes));
}
// Four positions are written whether they are there or not, the rest in a loop that is hardly ever entered.
std::size_t append_few(const float* values, const Range& range, std::uint32_t* out, std::size_t found, std::size_t i) {
  std::uint64_t mask = mask_of(values + i, range) | static_cast<std::uint64_t>(mask_of(values + i + 32, range)) << 32;
  std::uint32_t* place = out + found;
  found += static_cast<std::size_t>(__builtin_popcountll(mask));
  const auto next = [&](std::uint32_t * at) __attribute__((always_inline)) {
    *at = static_cast<std::uint32_t>(i + _tzcnt_u64(mask));
    mask = _blsr_u64(mask);
  };
  for (int sure = 0; sure < 4; ++sure) next(place++);
  while (mask != 0) next(place++);
  return found;
}

std::size_t select(const float* values, std::size_t size, std::uint32_t lowest, std::uint32_t span, std::uint32_t* out) {
  const Range range = make_range(lowest, span);
  const __m256i below = _mm256_set1_epi32(static_cast<int>(lowest) - 1);
  std::size_t found = 0, i = 0;
  while (i + 64 <= size) {
    // A few groups at the speed of memory, without a branch: which of them have something; then those, which are in the first-level cache.
    const std::size_t groups = (size - i) / 64 < 8 ? (size - i) / 64 : 8;
    std::uint32_t hit = 0;
    for (std::size_t g = 0; g < groups; ++g) {
      const float* const place = values + i + 64 * g;
      prefetch_32(place);
      prefetch_32(place + 32);
      __m256i any = _mm256_setzero_si256();
      for (std::size_t part = 0; part < 64; part += 8)
        any = _mm256_or_si256(
            any, _mm256_cmpgt_epi32(_mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(place + part)), range.magnitude),
                                    below));
      hit |= static_cast<std::uint32_t>(_mm256_testz_si256(any, any) == 0) << g;
    }
    if (static_cast<std::size_t>(__builtin_popcount(hit)) == groups) {  // all: likely more than four in each
      for (const std::size_t end = i + 64 * groups; i < end; i += 32) {
        __m256i lanes[4];
        for (int part = 0; part < 4; ++part) lanes[part] = inside(values + i + 8 * part, range);
        found = append(out, found, lanes, i);
      }
    } else {
      for (; hit != 0; hit = _blsr_u32(hit))
        found = append_few(values, range, out, found, i + 64 * static_cast<std::size_t>(_tzcnt_u32(hit)));
      i += 64 * groups;
    }
  }
  for (; i < size; ++i) {
    out[found] = static_cast<std::uint32_t>(i);
    found += static_cast<std::size_t>(key_of(values[i]) - lowest <= span);
  }
  return found;
}

template <bool made, bool zeroed>
std::size_t accumulate_select(const CpuAddend& addend, float scale, float* accumulator, std::size_t size, std::uint32_t lowest,
                              std::uint32_t span, std::uint32_t* out) {
  const Range range = make_range(lowest, span);
  const __m256i below = _mm256_set1_epi32(static_cast<int>(lowest) - 1);  // keys are not negative as signed integers
  const __m256 factor = _mm256_set1_ps(scale);
  const auto group = [&](std::size_t i) __attribute__((always_inline)) {
    for (std::size_t half = 0; half < 64; half += 32) {
      prefetch_32(addend.values + i + half);
      prefetch_32(accumulator + i + half);
    }
    __m256i any = _mm256_setzero_si256();
    for (std::size_t part = 0; part < 64; part += 8) {
      float* const place = accumulator + i + part;
      const __m256 before = zeroed ? kept(accumulator + i, addend.zeros[i / 64], part) : _mm256_loadu_ps(place);
      const __m256 sum = _mm256_fmadd_ps(factor, gradient_of<made>(addend, i + part), before);
      _mm256_storeu_ps(place, sum);
      any = _mm256_or_si256(any, _mm256_cmpgt_epi32(_mm256_and_si256(_mm256_castps_si256(sum), range.magnitude), below));
    }
    return _mm256_testz_si256(any, any) == 0;
  };
  std::size_t found = 0, i = 0;
  while (i + kStretch <= size) {
    const std::size_t end = i + kStretch;
    if (found * 32 > i) {  // many
      for (; i < end; i += 64) {
        group(i);
        for (std::size_t half = i; half < i + 64; half += 32) {
          __m256i lanes[4];
          for (std::size_t part = 0; part < 4; ++part) lanes[part] = inside(accumulator + half + 8 * part, range);
          found = append(out, found, lanes, half);
        }
      }
    } else if (found * 256 > i) {
      for (; i < end; i += 64) {
        group(i);
        found = append_few(accumulator, range, out, found, i);
      }
    } else {
      for (; i < end; i += 64)
        if (group(i)) found = append_few(accumulator, range, out, found, i);
    }
  }
  if (zeroed)
    for (std::size_t word = i / 64; 64 * word < size; ++word) write_zeros(accumulator + 64 * word, size - 64 * word, addend.zeros[word]);
  for (; i < size; ++i) {
    accumulator[i] = __builtin_fmaf(scale, one_gradient_of<made>(addend, i), accumulator[i]);
    out[found] = static_cast<std::uint32_t>(i);
    found += static_cast<std::size_t>(key_of(accumulator[i]) - lowest <= span);
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
  __m256i sums[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
  std::size_t i = 0;
  for (; i + 32 <= size; i += 32) {
    prefetch_32(values + i);
    for (int part = 0; part < 4; ++part) sums[part] = _mm256_sub_epi32(sums[part], inside(values + i + 8 * part, range));
  }
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

// log2 |x| of eight values as e (whole, in float) and f * P(f); both zero where there is none. fixed_sums.hpp says how.
struct Log2 {
  __m256 exponent, rest;
};
Log2 log2_of(__m256i key) {
  const __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(kLeastNormal)), key);
  const __m256i from_small = _mm256_castps_si256(_mm256_cvtepi32_ps(key));
  const __m256i bits = _mm256_blendv_epi8(key, from_small, small);
  const __m256i shift = _mm256_srai_epi32(_mm256_sub_epi32(bits, _mm256_set1_epi32(static_cast<int>(kLog2Base))), 23);
  const __m256 f = _mm256_sub_ps(_mm256_castsi256_ps(_mm256_sub_epi32(bits, _mm256_slli_epi32(shift, 23))), _mm256_set1_ps(1.0F));
  __m256 p = _mm256_set1_ps(kLog2[kLog2Terms - 1]);
  for (int term = kLog2Terms - 2; term >= 0; --term) p = _mm256_add_ps(_mm256_mul_ps(p, f), _mm256_set1_ps(kLog2[term]));
  const __m256i exponent = _mm256_sub_epi32(shift, _mm256_and_si256(small, _mm256_set1_epi32(149)));
  // Neither zero nor above the largest finite number; keys are not negative as signed integers.
  const __m256 usual = _mm256_castsi256_ps(_mm256_and_si256(
      _mm256_cmpgt_epi32(key, _mm256_setzero_si256()), _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(kLargestFinite) + 1), key)));
  return {_mm256_and_ps(usual, _mm256_cvtepi32_ps(exponent)), _mm256_and_ps(usual, _mm256_mul_ps(p, f))};
}

void add_to(double* lanes, __m256d value) { _mm256_storeu_pd(lanes, _mm256_add_pd(_mm256_loadu_pd(lanes), value)); }

// Eight values into lanes[0, 8) of the four sums.
void add_moments(__m256 values, double* lanes) {
  const __m256i key = _mm256_and_si256(_mm256_castps_si256(values), _mm256_set1_epi32(0x7fffffff));
  const Log2 log2 = log2_of(key);
  for (int half = 0; half < 2; ++half) {
    const auto part = [half](__m256 all) {
      return _mm256_cvtps_pd(half == 0 ? _mm256_castps256_ps128(all) : _mm256_extractf128_ps(all, 1));
    };
    double* const place = lanes + 4 * half;
    const __m256d value = part(values);
    add_to(place, value);
    add_to(place + kSumLanes, _mm256_andnot_pd(_mm256_set1_pd(-0.0), value));
    add_to(place + 2 * kSumLanes, _mm256_mul_pd(value, value));
    add_to(place + 3 * kSumLanes, _mm256_add_pd(part(log2.exponent), part(log2.rest)));
  }
}

void moments(const float* values, std::size_t size, double* lanes) {
  std::size_t i = 0;
  for (; i + kSumLanes <= size; i += kSumLanes) {
    prefetch_32(values + i);
    for (std::size_t part = 0; part < kSumLanes; part += 8) add_moments(_mm256_loadu_ps(values + i + part), lanes + part);
  }
  // What is left, filled up with zeros: adding +0 changes no sum but -0, and no sum is -0, since each starts at +0.
  float rest[kSumLanes] = {};
  for (std::size_t j = i; j < size; ++j) rest[j - i] = values[j];
  for (std::size_t part = 0; i + part < size; part += 8) add_moments(_mm256_loadu_ps(rest + part), lanes + part);
}

std::uint32_t largest(const float* values, std::size_t size) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i most[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
  std::size_t i = 0;
  for (; i + 32 <= size; i += 32) {
    prefetch_32(values + i);
    for (int part = 0; part < 4; ++part)
      most[part] = _mm256_max_epi32(
          most[part], _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(values + i + 8 * part)), magnitude));
  }
  alignas(32) std::uint32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes),
                     _mm256_max_epi32(_mm256_max_epi32(most[0], most[1]), _mm256_max_epi32(most[2], most[3])));
  std::uint32_t result = 0;
  for (const std::uint32_t lane : lanes) result = lane > result ? lane : result;
  for (; i < size; ++i) {
    const std::uint32_t key = key_of(values[i]);
    result = key > result ? key : result;
  }
  return result;
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
  static constexpr CpuTable table{"cpu.avx2", accumulate_any, select,   accumulate_select_any, count, sum_squares,
                                  moments,    largest,        cast_half};
  return table;
}

}  // namespace sparscale::kernels
