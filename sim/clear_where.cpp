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
  for (const std::int64_t index : indices) words[static_cast<std::size_t>(index / 64)] |= std::uint64_t{1} << (index % 64);
}

void clear_where(std::span<float> values, const std::uint64_t* words) {
  const std::size_t whole = values.size() / 64, rest = values.size() % 64;
  clear(values.data(), whole, words);
  if (rest > 0) clear_word(values.data() + 64 * whole, words[whole] & ((std::uint64_t{1} << rest) - 1));
}

}  // namespace sparscale::sim
