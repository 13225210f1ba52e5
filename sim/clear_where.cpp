#include "sim/clear_where.hpp"

#include <bit>
#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace sparscale::sim {
namespace {

void clear_word(float* values, std::uint64_t word) {
  for (; word != 0; word &= word - 1) values[std::countr_zero(word)] = 0;
}

void clear_plainly(float* values, std::size_t words, const std::uint64_t* word) {
  for (std::size_t w = 0; w < words; ++w) clear_word(values + 64 * w, word[w]);
}

#ifdef __x86_64__
__attribute__((target("avx512f"))) void clear_16(float* values, std::size_t words, const std::uint64_t* word) {
  const __m512 zero = _mm512_setzero_ps();
  for (std::size_t w = 0; w < words; ++w) {
    const std::uint64_t bits = word[w];
    if (bits == 0) continue;
    for (int part = 0; part < 4; ++part)
      _mm512_mask_storeu_ps(values + 64 * w + 16 * static_cast<std::size_t>(part), static_cast<__mmask16>(bits >> (16 * part)), zero);
  }
}
#endif

__attribute__((always_inline)) inline void drain(std::span<std::uint64_t> words, std::int64_t first, std::int64_t* out) {
  for (std::uint64_t& word : words) {
    std::uint64_t left = word;
    word = 0;
    std::int64_t* const next = out + std::popcount(left);
    // Most words have none to two: two are written whether they are there or not, so that no branch depends on it.
    out[0] = first + std::countr_zero(left);
    left &= left - 1;
    out[1] = first + std::countr_zero(left);
    left &= left - 1;
    for (out += 2; left != 0; left &= left - 1) *out++ = first + std::countr_zero(left);
    out = next;
    first += 64;
  }
}
void drain_plainly(std::span<std::uint64_t> words, std::int64_t first, std::int64_t* out) { drain(words, first, out); }
#ifdef __x86_64__
__attribute__((target("popcnt,bmi"))) void drain_fast(std::span<std::uint64_t> words, std::int64_t first, std::int64_t* out) {
  drain(words, first, out);
}
#endif
using Drain = void (*)(std::span<std::uint64_t>, std::int64_t, std::int64_t*);
Drain fastest_drain() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("popcnt") && __builtin_cpu_supports("bmi")) return drain_fast;
#endif
  return drain_plainly;
}
const Drain fast_drain = fastest_drain();

using Clear = void (*)(float*, std::size_t, const std::uint64_t*);
Clear fastest() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f")) return clear_16;
#endif
  return clear_plainly;
}
const Clear clear = fastest();

}  // namespace

void mark_bits(std::span<const std::int64_t> indices, std::int64_t elements, std::vector<std::uint64_t>& words) {
  words.assign(static_cast<std::size_t>((elements + 63) / 64), 0);
  // A word is put together in a register: through memory, neighbours would wait for each other.
  std::size_t at = 0;
  std::uint64_t bits = 0;
  for (const std::int64_t index : indices) {
    const auto word = static_cast<std::size_t>(index / 64);
    if (word != at) {
      words[at] = bits;
      at = word;
      bits = 0;
    }
    bits |= std::uint64_t{1} << (index % 64);
  }
  if (bits != 0) words[at] = bits;
}

void drain_bits(std::span<std::uint64_t> words, std::int64_t first, std::int64_t* out) { fast_drain(words, first, out); }

void clear_where(std::span<float> values, const std::uint64_t* words) {
  const std::size_t whole = values.size() / 64, rest = values.size() % 64;
  clear(values.data(), whole, words);
  if (rest > 0) clear_word(values.data() + 64 * whole, words[whole] & ((std::uint64_t{1} << rest) - 1));
}

}  // namespace sparscale::sim
