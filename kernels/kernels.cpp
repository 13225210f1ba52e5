#include "kernels/kernels.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <stdexcept>

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
  std::vector<Key> keys;              // candidates' keys
  std::vector<Index> positions;       // candidates' positions
  std::vector<Key> scratch;           // keys that are consumed by the search for the k-th one
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

// The rank-th largest of keys[0, size), rank from 1 to size. Reorders the keys.
Key largest(Key* keys, std::size_t size, std::uint64_t rank) {
  for (int digit = 0; digit < kDigits; ++digit) {
    if (size <= 768) break;
    std::array<std::uint64_t, 2048> totals;
    histogram(
        size, digit, [keys](std::size_t i) { return keys[i]; }, [](Key) { return true; }, totals);
    const Key bin = bin_of_rank(totals, rank);
    const int shift = kShift[static_cast<std::size_t>(digit)];
    const Key mask = kMask[static_cast<std::size_t>(digit)];
    if (digit == kDigits - 1 || totals[bin] == size) {
      if (digit == kDigits - 1) return (keys[0] & ~mask) | bin;
      continue;
    }
    std::size_t kept = 0;
    for (std::size_t i = 0; i < size; ++i) {
      const Key key = keys[i];
      keys[kept] = key;
      kept += static_cast<std::size_t>((key >> shift & mask) == bin);
    }
    size = kept;
  }
  Key* const nth = keys + (rank - 1);
  std::nth_element(keys, nth, keys + size, std::greater<>());
  return *nth;
}

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
    // A bitmap costs size / 64 words whatever the lists hold, sorting costs more for each index.
    if (sum < static_cast<std::size_t>(size) / 256) {
      result.reserve(sum);
      for (const std::vector<Index>& list : lists) result.insert(result.end(), list.begin(), list.end());
      std::sort(result.begin(), result.end());
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
  static constexpr std::size_t kSmall = 2048;
  static constexpr std::size_t kRun = 32;  // elements of a sampled run: whole cache lines

  const CpuTable& table_;

  // False when the threshold selects nothing.
  static bool threshold_key(float threshold, Key& lowest) {
    if (std::isnan(threshold)) return false;
    lowest = threshold <= 0 ? 0 : key_of(threshold);
    return true;
  }

  // Keeps what is above `kth` and the first `ties` of what equals it. Branch-free: `out` has one slot more than the result.
  template <typename KeyAt, typename PositionAt>
  static Index* keep(std::size_t size, Key kth, std::uint64_t& ties, KeyAt key_at, PositionAt position_at, Index* out) {
    for (std::size_t i = 0; i < size; ++i) {
      const Key key = key_at(i);
      const auto tie = static_cast<unsigned>(key == kth) & static_cast<unsigned>(ties != 0);
      *out = position_at(i);
      out += static_cast<unsigned>(key > kth) | tie;
      ties -= tie;
    }
    return out;
  }

  // Writes the selection once the k-th key is known: one pass over the values.
  void write_from(std::span<const float> values, Key kth, std::uint64_t ties, std::size_t wanted, Index first, Index* out) const {
    auto& offsets = workspace().offsets;
    Index* const end = out + wanted;
    for (std::size_t begin = 0; begin < values.size() && out != end; begin += kBlock) {
      const float* const block = values.data() + begin;
      const std::size_t size = std::min(kBlock, values.size() - begin);
      const std::size_t found = table_.select(block, size, kth, kLargest - kth, offsets.data());
      const Index base = first + static_cast<Index>(begin);
      out = keep(
          found, kth, ties, [&](std::size_t i) { return key_of(block[offsets[i]]); },
          [&](std::size_t i) { return base + static_cast<Index>(offsets[i]); }, out);
    }
  }

  static std::uint64_t ties_of(std::span<const Key> keys, Key kth, std::size_t wanted) {
    std::uint64_t above = 0;
    for (const Key key : keys) above += static_cast<std::uint64_t>(key > kth);
    return wanted - above;
  }

  void topk_of_small(std::span<const float> values, std::size_t wanted, Index first, Index* out) const {
    std::array<Key, kSmall> keys;
    std::array<Key, kSmall> scratch;
    for (std::size_t i = 0; i < values.size(); ++i) keys[i] = scratch[i] = key_of(values[i]);
    const Key kth = largest(scratch.data(), values.size(), wanted);
    std::uint64_t ties = ties_of({keys.data(), values.size()}, kth, wanted);
    keep(
        values.size(), kth, ties, [&](std::size_t i) { return keys[i]; }, [&](std::size_t i) { return first + static_cast<Index>(i); },
        out);
  }

  // A lower bound on the k-th key from a sample, then one pass that keeps what reaches it, then the exact choice among those. False when
  // the sample was of no use: too few or too many candidates. So the sample decides the cost, never the result.
  bool topk_by_sample(std::span<const float> values, std::size_t wanted, Index first, Index* out) const {
    const std::size_t size = values.size();
    if (wanted > size / 8) return false;
    Workspace& space = workspace();
    const Key bound = sampled_bound(values, wanted);
    if (bound == 0) return false;
    const std::size_t most = wanted + wanted + size / 16 + kBlock;
    if (space.keys.size() < most + kBlock) {
      space.keys.resize(most + kBlock);
      space.positions.resize(most + kBlock);
    }
    std::size_t candidates = 0;
    for (std::size_t begin = 0; begin < size; begin += kBlock) {
      const float* const block = values.data() + begin;
      const std::size_t found = table_.select(block, std::min(kBlock, size - begin), bound, kLargest - bound, space.offsets.data());
      const Index base = first + static_cast<Index>(begin);
      Key* const keys = space.keys.data() + candidates;
      Index* const positions = space.positions.data() + candidates;
      for (std::size_t i = 0; i < found; ++i) {
        keys[i] = key_of(block[space.offsets[i]]);
        positions[i] = base + static_cast<Index>(space.offsets[i]);
      }
      candidates += found;
      if (candidates > most) return false;
    }
    if (candidates < wanted) return false;
    if (space.scratch.size() < candidates) space.scratch.resize(most + kBlock);
    std::copy_n(space.keys.data(), candidates, space.scratch.data());
    const Key kth = largest(space.scratch.data(), candidates, wanted);
    std::uint64_t ties = ties_of({space.keys.data(), candidates}, kth, wanted);
    keep(
        candidates, kth, ties, [&](std::size_t i) { return space.keys[i]; }, [&](std::size_t i) { return space.positions[i]; }, out);
    return true;
  }

  // A key that very likely at least `wanted` elements reach, and not many more: from runs of neighbours, one in each stratum of the vector,
  // at positions that depend on the size only. Four standard deviations of the estimate, which come from the spread of the runs' hits,
  // since neighbours are alike. 0 when the sample is too small to say.
  Key sampled_bound(std::span<const float> values, std::size_t wanted) const {
    const std::size_t size = values.size();
    const std::size_t runs = std::clamp<std::size_t>(size / (16 * kRun), 16, 2048);
    const std::size_t stratum = size / runs;
    Workspace& space = workspace();
    const std::size_t sampled = runs * kRun;
    if (space.scratch.size() < 2 * sampled) space.scratch.resize(2 * sampled);
    Key* const keys = space.scratch.data();
    for (std::size_t run = 0; run < runs; ++run) {
      const std::size_t start = run * stratum + mix64(run) % (stratum - kRun + 1);
      for (std::size_t i = 0; i < kRun; ++i) keys[run * kRun + i] = key_of(values[start + i]);
    }
    const double expected = static_cast<double>(wanted) * static_cast<double>(sampled) / static_cast<double>(size);
    Key* const consumed = keys + sampled;
    std::copy_n(keys, sampled, consumed);
    const auto middle_rank = static_cast<std::uint64_t>(expected) + 1;
    const Key middle = largest(consumed, sampled, middle_rank);
    double squares = 0;
    for (std::size_t run = 0; run < runs; ++run) {
      unsigned hits = 0;
      for (std::size_t i = 0; i < kRun; ++i) hits += static_cast<unsigned>(keys[run * kRun + i] >= middle);
      squares += static_cast<double>(hits) * static_cast<double>(hits);
    }
    const double rank = expected + 4 * std::sqrt(squares) + 4;
    if (rank >= static_cast<double>(sampled)) return 0;
    std::copy_n(keys, sampled, consumed);
    return largest(consumed, sampled, static_cast<std::uint64_t>(rank));
  }

  // Digit by digit, most significant first, reading all values for each digit until what shares the prefix is few.
  void topk_by_histogram(std::span<const float> values, std::size_t wanted, Index first, Index* out) const {
    Workspace& space = workspace();
    const std::size_t size = values.size();
    std::uint64_t rank = wanted;
    Key prefix = 0, known = 0;  // bits found so far and which bits those are
    Key kth = 0;
    for (int digit = 0; digit < kDigits; ++digit) {
      std::array<std::uint64_t, 2048> totals;
      histogram(
          size, digit, [&](std::size_t i) { return key_of(values[i]); }, [&](Key key) { return (key & known) == prefix; }, totals);
      const Key bin = bin_of_rank(totals, rank);
      prefix |= bin << kShift[static_cast<std::size_t>(digit)];
      known |= kMask[static_cast<std::size_t>(digit)] << kShift[static_cast<std::size_t>(digit)];
      kth = prefix;
      if (digit == kDigits - 1) break;
      if (totals[bin] > size / 4 + kBlock) continue;
      const std::size_t few = totals[bin];
      if (space.scratch.size() < few + kBlock) space.scratch.resize(few + kBlock);
      std::size_t copied = 0;
      for (std::size_t begin = 0; begin < size; begin += kBlock) {
        const float* const block = values.data() + begin;
        const std::size_t found = table_.select(block, std::min(kBlock, size - begin), prefix, kLargest & ~known, space.offsets.data());
        for (std::size_t i = 0; i < found; ++i) space.scratch[copied + i] = key_of(block[space.offsets[i]]);
        copied += found;
      }
      kth = largest(space.scratch.data(), few, rank);
      break;
    }
    std::uint64_t above = 0;
    if (kth < kLargest)
      for (std::size_t begin = 0; begin < size; begin += kBlock)
        above += table_.count(values.data() + begin, std::min(kBlock, size - begin), kth + 1, kLargest - (kth + 1));
    write_from(values, kth, wanted - above, wanted, first, out);
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
