#include "kernels/kernels.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <utility>

#include "base/error.hpp"
#include "base/random.hpp"
#include "kernels/cpu_table.hpp"

namespace sparscale::kernels {
namespace {

using Key = std::uint32_t;

constexpr Key kInfinity = 0x7f800000U;
constexpr Key kLargest = 0x7fffffffU;
// Elements handed to a table function at a time: values and result stay in the first-level cache.
constexpr std::size_t kBlock = 4096;
constexpr std::size_t kSumTile = 8192;

Key key_of(float value) { return std::bit_cast<Key>(value) & kLargest; }

// Work space of one thread. It grows to the largest input seen and stays, since fresh pages cost more than the kernels themselves.
struct Workspace {
  std::vector<float> candidates;      // their values
  std::vector<Index> positions;       // and where they stand
  std::vector<float> scratch;         // values that are consumed by the search for the k-th one
  std::vector<std::uint64_t> bitmap;  // all zero between calls
  std::array<std::uint32_t, kBlock + kSelectSlack> offsets;
  std::array<std::uint32_t, 2048> bins;
  std::array<std::uint32_t, 2048> more_bins;
};
Workspace& workspace() {
  static thread_local Workspace space;
  return space;
}

// The three digits of a 31-bit key, most significant first: 11, 10 and 10 bits.
constexpr int kDigits = 3;
constexpr std::array<int, kDigits> kShift{20, 10, 0};
constexpr std::array<Key, kDigits> kMask{0x7ffU, 0x3ffU, 0x3ffU};

// Adds the digits of `size` keys (key(i)) for which `take(key)` holds to bins that start at zero.
template <typename KeyAt, typename Take>
void histogram(std::size_t size, int digit, KeyAt key_at, Take take, std::array<std::uint64_t, 2048>& totals) {
  Workspace& space = workspace();
  const int shift = kShift[static_cast<std::size_t>(digit)];
  const Key mask = kMask[static_cast<std::size_t>(digit)];
  totals.fill(0);
  constexpr std::size_t kChunk = std::size_t{1} << 30;  // 32-bit bins cannot overflow
  for (std::size_t begin = 0; begin < size; begin += kChunk) {
    const std::size_t end = std::min(size, begin + kChunk);
    space.bins.fill(0);
    space.more_bins.fill(0);  // two sets of bins, since gradients fall into few bins and equal neighbours would wait for each other
    for (std::size_t i = begin; i + 1 < end; i += 2) {
      const Key first = key_at(i), second = key_at(i + 1);
      space.bins[first >> shift & mask] += static_cast<std::uint32_t>(take(first));
      space.more_bins[second >> shift & mask] += static_cast<std::uint32_t>(take(second));
    }
    if ((end - begin) % 2 != 0) {
      const Key last = key_at(end - 1);
      space.bins[last >> shift & mask] += static_cast<std::uint32_t>(take(last));
    }
    for (std::size_t bin = 0; bin < totals.size(); ++bin) totals[bin] += std::uint64_t{space.bins[bin]} + space.more_bins[bin];
  }
}

// The bin that holds the rank-th largest (rank from 1); `rank` becomes the rank within the bin.
Key bin_of_rank(const std::array<std::uint64_t, 2048>& totals, std::uint64_t& rank) {
  Key bin = 2047;
  while (totals[bin] < rank) rank -= totals[bin--];
  return bin;
}

// Ascending, for indices in [0, size): least significant digit first, since a comparison sort takes several times longer.
void sort_indices(std::vector<Index>& indices, Index size) {
  if (indices.size() <= 512) {
    std::sort(indices.begin(), indices.end());
    return;
  }
  const unsigned bits = indices.size() < 32768 ? 8 : 11;
  const std::size_t bins = std::size_t{1} << bits;
  std::vector<Index>& other = workspace().positions;
  if (other.size() < indices.size()) other.resize(indices.size());
  Index *from = indices.data(), *to = other.data();
  for (unsigned shift = 0; size >> shift > 0; shift += bits) {
    std::array<std::size_t, 2048> starts{};
    for (std::size_t i = 0; i < indices.size(); ++i) ++starts[static_cast<std::size_t>(from[i] >> shift) & (bins - 1)];
    std::size_t sum = 0;
    for (std::size_t bin = 0; bin < bins; ++bin) sum += std::exchange(starts[bin], sum);
    for (std::size_t i = 0; i < indices.size(); ++i) to[starts[static_cast<std::size_t>(from[i] >> shift) & (bins - 1)]++] = from[i];
    std::swap(from, to);
  }
  if (from != indices.data()) std::copy_n(from, indices.size(), indices.data());
}

// The k-th largest key and how many of its equals belong to the k largest.
struct Kth {
  Key key = 0;
  std::uint64_t ties = 0;
};

class CpuKernels final : public Kernels {
 public:
  explicit CpuKernels(const CpuTable& table) : table_(table) {}

  std::string name() const override { return table_.name; }

  void accumulate(std::span<const float> gradient, float scale, std::span<float> accumulator) const override {
    if (gradient.size() != accumulator.size()) throw std::invalid_argument("accumulate: sizes differ");
    table_.accumulate(gradient.data(), scale, accumulator.data(), gradient.size());
  }

  void threshold_select(std::span<const float> values, float threshold, Index first, std::vector<Index>& indices) const override {
    Key lowest = 0;
    if (!threshold_key(threshold, lowest)) return;
    auto& offsets = workspace().offsets;
    for (std::size_t begin = 0; begin < values.size(); begin += kBlock) {
      const std::size_t size = std::min(kBlock, values.size() - begin);
      const std::size_t found = table_.select(values.data() + begin, size, lowest, kInfinity - lowest, offsets.data());
      const std::size_t old = indices.size();
      indices.resize(old + found);
      Index* const out = indices.data() + old;
      const Index base = first + static_cast<Index>(begin);
      for (std::size_t i = 0; i < found; ++i) out[i] = base + static_cast<Index>(offsets[i]);
    }
  }

  Index count(std::span<const float> values, float threshold) const override {
    Key lowest = 0;
    if (!threshold_key(threshold, lowest)) return 0;
    Index found = 0;
    constexpr std::size_t kChunk = std::size_t{1} << 30;
    for (std::size_t begin = 0; begin < values.size(); begin += kChunk)
      found += static_cast<Index>(table_.count(values.data() + begin, std::min(kChunk, values.size() - begin), lowest, kInfinity - lowest));
    return found;
  }

  void topk(std::span<const float> values, Index k, Index first, std::vector<Index>& indices) const override {
    if (k <= 0) return;
    const std::size_t size = values.size();
    const std::size_t old = indices.size();
    const std::size_t wanted = std::min(size, static_cast<std::size_t>(k));
    if (wanted == size) {
      indices.resize(old + size);
      for (std::size_t i = 0; i < size; ++i) indices[old + i] = first + static_cast<Index>(i);
      return;
    }
    indices.resize(old + wanted + 1);  // one slot more, which the branch-free writes below may touch
    Index* const out = indices.data() + old;
    if (size <= kSmall) {
      topk_of_small(values, wanted, first, out);
    } else if (!topk_by_sample(values, wanted, first, out)) {
      topk_by_histogram(values, wanted, first, out);
    }
    indices.resize(old + wanted);
  }

  void zero(std::span<float> values, std::span<const Index> indices, Index first) const override {
    float* const base = values.data();
    for (const Index index : indices) base[index - first] = 0.0F;
  }

  void gather(std::span<const float> values, std::span<const Index> indices, Index first, std::span<float> out) const override {
    if (indices.size() != out.size()) throw std::invalid_argument("gather: sizes differ");
    const float* const base = values.data();
    for (std::size_t i = 0; i < indices.size(); ++i) out[i] = base[indices[i] - first];
  }

  double l2_norm(std::span<const float> values) const override {
    double total = 0;
    for (std::size_t begin = 0; begin < values.size(); begin += kSumTile) {
      std::array<double, kSumLanes> lanes{};
      table_.sum_squares(values.data() + begin, std::min(kSumTile, values.size() - begin), lanes.data());
      for (std::size_t half = kSumLanes / 2; half > 0; half /= 2)
        for (std::size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
      total += lanes[0];
    }
    return std::sqrt(total);
  }

  std::vector<Index> unite(std::span<const std::vector<Index>> lists, Index size) const override {
    std::size_t sum = 0;
    const std::vector<Index>* only = nullptr;
    std::size_t filled = 0;
    for (const std::vector<Index>& list : lists) {
      if (list.empty()) continue;
      if (list.front() < 0 || list.back() >= size) throw std::invalid_argument("unite: an index outside [0, size)");
      sum += list.size();
      only = &list;
      ++filled;
    }
    std::vector<Index> result;
    if (filled == 0) return result;
    if (filled == 1) return *only;
    // A bitmap costs size / 64 words whatever the lists hold; sorting costs several passes over the indices. Equal at about this ratio.
    if (sum < static_cast<std::size_t>(size) / 32) {
      result.reserve(sum);
      for (const std::vector<Index>& list : lists) result.insert(result.end(), list.begin(), list.end());
      sort_indices(result, size);
      result.erase(std::unique(result.begin(), result.end()), result.end());
      return result;
    }
    std::vector<std::uint64_t>& bitmap = workspace().bitmap;
    const std::size_t words = (static_cast<std::size_t>(size) + 63) / 64;
    if (bitmap.size() < words) bitmap.resize(words);
    for (const std::vector<Index>& list : lists)
      for (const Index index : list) bitmap[static_cast<std::size_t>(index) / 64] |= std::uint64_t{1} << (index % 64);
    std::size_t found = 0;
    for (std::size_t word = 0; word < words; ++word) found += static_cast<std::size_t>(std::popcount(bitmap[word]));
    result.resize(found);
    Index* out = result.data();
    for (std::size_t word = 0; word < words; ++word) {
      std::uint64_t bits = bitmap[word];
      bitmap[word] = 0;
      for (; bits != 0; bits &= bits - 1) *out++ = static_cast<Index>(word * 64) + std::countr_zero(bits);
    }
    return result;
  }

  void cast_half(std::span<float> values) const override { table_.cast_half(values.data(), values.size()); }

 private:
  static constexpr std::size_t kSmall = 512;
  static constexpr std::size_t kRun = 16;  // elements of a sampled run: a cache line or two

  const CpuTable& table_;

  // False when the threshold selects nothing.
  static bool threshold_key(float threshold, Key& lowest) {
    if (std::isnan(threshold)) return false;
    lowest = threshold <= 0 ? 0 : key_of(threshold);
    return true;
  }

  // Keeps what is above the k-th key and the first `ties` of what equals it. Branch-free: `out` has one slot more than the result.
  template <typename KeyAt, typename PositionAt>
  static Index* keep(std::size_t size, Kth& kth, KeyAt key_at, PositionAt position_at, Index* out) {
    for (std::size_t i = 0; i < size; ++i) {
      const Key key = key_at(i);
      const auto tie = static_cast<unsigned>(key == kth.key) & static_cast<unsigned>(kth.ties != 0);
      *out = position_at(i);
      out += static_cast<unsigned>(key > kth.key) | tie;
      kth.ties -= tie;
    }
    return out;
  }

  // Writes the selection once the k-th key is known: one pass over the values.
  void write_from(std::span<const float> values, Kth kth, std::size_t wanted, Index first, Index* out) const {
    auto& offsets = workspace().offsets;
    Index* const end = out + wanted;
    for (std::size_t begin = 0; begin < values.size() && out != end; begin += kBlock) {
      const float* const block = values.data() + begin;
      const std::size_t size = std::min(kBlock, values.size() - begin);
      const std::size_t found = table_.select(block, size, kth.key, kLargest - kth.key, offsets.data());
      const Index base = first + static_cast<Index>(begin);
      out = keep(
          found, kth, [&](std::size_t i) { return key_of(block[offsets[i]]); },
          [&](std::size_t i) { return base + static_cast<Index>(offsets[i]); }, out);
    }
  }

  // The rank-th largest of values[0, size), rank from 1 to size. Reorders and overwrites the values.
  Kth largest(float* values, std::size_t size, std::uint64_t rank) const {
    Key prefix = 0;
    for (int digit = 0; digit < kDigits && size > 768; ++digit) {
      std::array<std::uint64_t, 2048> totals;
      histogram(
          size, digit, [values](std::size_t i) { return key_of(values[i]); }, [](Key) { return true; }, totals);
      const Key bin = bin_of_rank(totals, rank);
      const int shift = kShift[static_cast<std::size_t>(digit)];
      prefix |= bin << shift;
      if (digit == kDigits - 1) return {prefix, rank};
      if (totals[bin] < size) size = copy_range(values, size, prefix, (Key{1} << shift) - 1, values);
    }
    float* const nth = values + (rank - 1);
    std::nth_element(values, nth, values + size, [](float a, float b) { return key_of(a) > key_of(b); });
    const Key kth = key_of(*nth);
    std::uint64_t ties = 1;
    for (const float* value = values; value != nth; ++value) ties += static_cast<std::uint64_t>(key_of(*value) == kth);
    return {kth, ties};
  }

  // Copies the values with lowest <= key <= lowest + span to `out` (which may be `values`); returns how many.
  std::size_t copy_range(const float* values, std::size_t size, Key lowest, Key span, float* out) const {
    auto& offsets = workspace().offsets;
    std::size_t copied = 0;
    for (std::size_t begin = 0; begin < size; begin += kBlock) {
      const float* const block = values + begin;
      const std::size_t found = table_.select(block, std::min(kBlock, size - begin), lowest, span, offsets.data());
      for (std::size_t i = 0; i < found; ++i) out[copied + i] = block[offsets[i]];
      copied += found;
    }
    return copied;
  }

  void topk_of_small(std::span<const float> values, std::size_t wanted, Index first, Index* out) const {
    std::array<float, kSmall> scratch;
    std::copy(values.begin(), values.end(), scratch.begin());
    Kth kth = largest(scratch.data(), values.size(), wanted);
    keep(
        values.size(), kth, [&](std::size_t i) { return key_of(values[i]); }, [&](std::size_t i) { return first + static_cast<Index>(i); },
        out);
  }

  // A lower bound on the k-th key from a sample, then one pass that keeps what reaches it, then the exact choice among those. False when
  // the sample was of no use: too few or too many candidates. So the sample decides the cost, never the result.
  bool topk_by_sample(std::span<const float> values, std::size_t wanted, Index first, Index* out) const {
    const std::size_t size = values.size();
    if (wanted > size / 4) return false;
    Workspace& space = workspace();
    const Key bound = sampled_bound(values, wanted);
    if (bound == 0) return false;
    const std::size_t most = wanted + wanted + size / 16 + kBlock;
    if (space.candidates.size() < most + kBlock) {
      space.candidates.resize(most + kBlock);
      space.positions.resize(most + kBlock);
    }
    std::size_t candidates = 0;
    for (std::size_t begin = 0; begin < size; begin += kBlock) {
      const float* const block = values.data() + begin;
      const std::size_t found = table_.select(block, std::min(kBlock, size - begin), bound, kLargest - bound, space.offsets.data());
      const Index base = first + static_cast<Index>(begin);
      float* const kept = space.candidates.data() + candidates;
      Index* const positions = space.positions.data() + candidates;
      for (std::size_t i = 0; i < found; ++i) {
        kept[i] = block[space.offsets[i]];
        positions[i] = base + static_cast<Index>(space.offsets[i]);
      }
      candidates += found;
      if (candidates > most) return false;
    }
    if (candidates < wanted) return false;
    if (space.scratch.size() < candidates) space.scratch.resize(most + kBlock);
    std::copy_n(space.candidates.data(), candidates, space.scratch.data());
    Kth kth = largest(space.scratch.data(), candidates, wanted);
    keep(
        candidates, kth, [&](std::size_t i) { return key_of(space.candidates[i]); }, [&](std::size_t i) { return space.positions[i]; },
        out);
    return true;
  }

  // A key that very likely at least `wanted` elements reach, and not many more: from runs of neighbours, one in each stratum of the vector,
  // at positions that depend on the size only. Four standard deviations of the estimate, which come from the spread of the runs' hits,
  // since neighbours are alike. 0 when the sample is too small to say.
  Key sampled_bound(std::span<const float> values, std::size_t wanted) const {
    const std::size_t size = values.size();
    // About what makes the work on the sample and on the candidates that a smaller one would let pass equal.
    const double n = static_cast<double>(size);
    const double balanced = std::max(2 * std::cbrt(static_cast<double>(wanted) * n), std::sqrt(6 * n));
    const std::size_t runs = std::clamp<std::size_t>(static_cast<std::size_t>(balanced) / kRun, 8, 4096);
    const std::size_t stratum = size / runs;
    Workspace& space = workspace();
    const std::size_t sampled = runs * kRun;
    if (space.scratch.size() < 2 * sampled) space.scratch.resize(2 * sampled);
    float* const sample = space.scratch.data();
    for (std::size_t run = 0; run < runs; ++run)
      std::copy_n(values.data() + (run * stratum + mix64(run) % (stratum - kRun + 1)), kRun, sample + run * kRun);
    const double expected = static_cast<double>(wanted) * static_cast<double>(sampled) / n;
    float* const consumed = sample + sampled;
    std::copy_n(sample, sampled, consumed);
    const Key middle = largest(consumed, sampled, static_cast<std::uint64_t>(expected) + 1).key;
    double squares = 0;
    for (std::size_t run = 0; run < runs; ++run) {
      unsigned hits = 0;
      for (std::size_t i = 0; i < kRun; ++i) hits += static_cast<unsigned>(key_of(sample[run * kRun + i]) >= middle);
      squares += static_cast<double>(hits) * static_cast<double>(hits);
    }
    const double rank = expected + 4 * std::sqrt(squares) + 4;
    if (rank >= static_cast<double>(sampled)) return 0;
    return largest(sample, sampled, static_cast<std::uint64_t>(rank)).key;
  }

  // Digit by digit, most significant first, reading all values for each digit until what shares the prefix is few.
  void topk_by_histogram(std::span<const float> values, std::size_t wanted, Index first, Index* out) const {
    Workspace& space = workspace();
    const std::size_t size = values.size();
    std::uint64_t rank = wanted;
    Key prefix = 0, known = 0;  // bits found so far and which bits those are
    Kth kth;
    for (int digit = 0; digit < kDigits; ++digit) {
      std::array<std::uint64_t, 2048> totals;
      histogram(
          size, digit, [&](std::size_t i) { return key_of(values[i]); }, [&](Key key) { return (key & known) == prefix; }, totals);
      const Key bin = bin_of_rank(totals, rank);
      prefix |= bin << kShift[static_cast<std::size_t>(digit)];
      known |= kMask[static_cast<std::size_t>(digit)] << kShift[static_cast<std::size_t>(digit)];
      kth = {prefix, rank};
      if (digit == kDigits - 1) break;
      const std::size_t few = totals[bin];
      if (few > size / 4 + kBlock) continue;
      if (space.scratch.size() < few + kBlock) space.scratch.resize(few + kBlock);
      copy_range(values.data(), size, prefix, kLargest & ~known, space.scratch.data());
      kth = largest(space.scratch.data(), few, rank);
      break;
    }
    write_from(values, kth, wanted, first, out);
  }
};

bool supported(const std::string& name) {
#ifdef SPARSCALE_X86
  __builtin_cpu_init();
  if (name == "cpu.avx2") return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (name == "cpu.avx512") return supported("cpu.avx2") && __builtin_cpu_supports("avx512f");
#endif
  return name == "cpu.scalar";
}

// Slowest first.
const std::vector<const CpuKernels*>& back_ends() {
  static const std::vector<const CpuKernels*> list = [] {
    static const CpuKernels scalar(scalar_table());
    std::vector<const CpuKernels*> found{&scalar};
#ifdef SPARSCALE_X86
    static const CpuKernels avx2(avx2_table()), avx512(avx512_table());
    for (const CpuKernels* wider : {&avx2, &avx512})
      if (supported(wider->name())) found.push_back(wider);
#endif
    return found;
  }();
  return list;
}

}  // namespace

const Kernels& cpu_kernels(const std::string& name) {
  if (name == "auto") return *back_ends().back();
  for (const CpuKernels* kernels : back_ends())
    if (kernels->name() == name) return *kernels;
  std::string names = "auto";
  for (const std::string& known : cpu_kernel_names()) names += ", " + known;
  throw InputError("kernel back-end", "one of " + names, "\"" + name + "\"");
}

std::vector<std::string> cpu_kernel_names() {
  std::vector<std::string> names;
  for (const CpuKernels* kernels : back_ends()) names.push_back(kernels->name());
  return names;
}

Index count_non_finite(std::span<const float> values) {
  Index found = 0;
  for (std::size_t begin = 0; begin < values.size(); begin += kBlock) {
    const std::size_t end = std::min(values.size(), begin + kBlock);
    std::uint32_t in_block = 0;  // 32 bits, so that the loop becomes vector instructions
    for (std::size_t i = begin; i < end; ++i) in_block += static_cast<std::uint32_t>(key_of(values[i]) >= kInfinity);
    found += in_block;
  }
  return found;
}

}  // namespace sparscale::kernels
