#include "kernels/kernels.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <exception>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "base/random.hpp"
#include "kernels/cpu_table.hpp"
#include "kernels/permutation.hpp"

namespace sparscale::kernels {
namespace {

using Key = std::uint32_t;

constexpr Key kInfinity = 0x7f800000U;
constexpr Key kLargest = 0x7fffffffU;
// Elements handed to a table function at a time: values and result stay in the first-level cache.
constexpr std::size_t kBlock = 4096;
// Elements that are worth a thread of their own: starting one costs some ten microseconds.
constexpr std::size_t kLeastPart = std::size_t{1} << 18;
// Parts begin at multiples of this, so that tiles of sums and blocks are the same however many threads there are.
constexpr std::size_t kPartMultiple = std::size_t{1} << 16;
static_assert(kPartMultiple % kSumTile == 0 && kPartMultiple % kBlock == 0);

Key key_of(float value) { return std::bit_cast<Key>(value) & kLargest; }

// What one filter pass keeps: positions, ascending, and the values.
struct Candidates {
  std::vector<std::uint32_t> positions;
  std::vector<float> values;
  std::size_t size = 0;
  bool overflow = false;
};

// Work space of one thread. It grows to the largest input seen and stays, since fresh pages cost more than the kernels themselves.
struct Workspace {
  std::vector<Candidates> candidates;          // one for each thread that shares a call
  std::vector<std::vector<Index>> selections;  // the same
  std::vector<Index> positions;                // of an index list being sorted
  std::vector<float> scratch;                  // values that are consumed by the search for the k-th one
  std::vector<std::uint64_t> bitmap;           // all zero between calls
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

// The k-th largest key, how many of its equals belong to the k largest, and how many there are.
struct Kth {
  Key key = 0;
  std::uint64_t ties = 0;
  std::uint64_t equals = 0;
};

void check_samples(std::span<const float> values, Index start, Index stride, Index samples, Index rank) {
  if (start < 0 || stride < 1 || samples < 1 || rank < 1 || rank > samples || start >= std::ssize(values) ||
      (std::ssize(values) - 1 - start) / stride < samples - 1)
    throw std::invalid_argument("sampled_threshold: a sample outside the values, or a rank outside the sample");
}

std::size_t check_blocks(std::span<const float> values, Index block, std::span<float> out) {
  if (block < 1) throw std::invalid_argument("block_maxima: blocks of less than one element");
  const auto length = static_cast<std::size_t>(block);
  if (out.size() != (values.size() + length - 1) / length) throw std::invalid_argument("block_maxima: sizes differ");
  return length;
}

void check_offsets(std::span<const Index> offsets, std::size_t segments, std::size_t size, const char* what) {
  bool right = offsets.size() == segments + 1 && offsets.front() >= 0 && offsets.back() <= static_cast<Index>(size);
  for (std::size_t s = 0; right && s < segments; ++s) right = offsets[s] <= offsets[s + 1];
  if (!right) throw std::invalid_argument(std::string(what) + ": segments out of order or outside the values");
}

std::span<const float> segment(std::span<const float> values, std::span<const Index> offsets, std::size_t s) {
  return values.subspan(static_cast<std::size_t>(offsets[s]), static_cast<std::size_t>(offsets[s + 1] - offsets[s]));
}

// The sums of one tile: lanes pairwise.
double fold(double* lanes) {
  for (std::size_t half = kSumLanes / 2; half > 0; half /= 2)
    for (std::size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  return lanes[0];
}

// Throws when a list reaches outside [0, size); the number of lists that are not empty.
std::size_t check_lists(std::span<const std::vector<Index>> lists, Index size) {
  std::size_t filled = 0;
  for (const std::vector<Index>& list : lists) {
    if (list.empty()) continue;
    if (list.front() < 0 || list.back() >= size) throw std::invalid_argument("unite: an index outside [0, size)");
    ++filled;
  }
  return filled;
}

std::size_t total_size(std::span<const std::vector<Index>> lists) {
  std::size_t sum = 0;
  for (const std::vector<Index>& list : lists) sum += list.size();
  return sum;
}

// A bitmap costs size / 64 words whatever the lists hold; sorting costs several passes over the indices. Equal at about this ratio.
bool sorting_pays(std::size_t sum, Index size) { return sum < static_cast<std::size_t>(size) / 32; }

std::vector<Index> joined_and_sorted(std::span<const std::vector<Index>> lists, std::size_t sum, Index size) {
  std::vector<Index> all;
  all.reserve(sum);
  for (const std::vector<Index>& list : lists) all.insert(all.end(), list.begin(), list.end());
  sort_indices(all, size);
  return all;
}

// Sets the bits of all indices; returns the words in use and how many bits are set.
std::pair<std::size_t, std::size_t> fill_bitmap(std::span<const std::vector<Index>> lists, Index size) {
  std::vector<std::uint64_t>& bitmap = workspace().bitmap;
  const std::size_t words = (static_cast<std::size_t>(size) + 63) / 64;
  if (bitmap.size() < words) bitmap.resize(words);
  for (const std::vector<Index>& list : lists)
    for (const Index index : list) bitmap[static_cast<std::size_t>(index) / 64] |= std::uint64_t{1} << (index % 64);
  std::size_t found = 0;
  for (std::size_t word = 0; word < words; ++word) found += static_cast<std::size_t>(std::popcount(bitmap[word]));
  return {words, found};
}

// Writes the set bits' positions and clears them.
void drain_bitmap(std::size_t words, Index* out) {
  std::vector<std::uint64_t>& bitmap = workspace().bitmap;
  for (std::size_t word = 0; word < words; ++word) {
    std::uint64_t bits = bitmap[word];
    bitmap[word] = 0;
    for (; bits != 0; bits &= bits - 1) *out++ = static_cast<Index>(word * 64) + std::countr_zero(bits);
  }
}

// Lists with multiplicities, merged two by two, the shortest first.
struct CountedList {
  std::vector<Index> indices;
  std::vector<std::int32_t> counts;
};
CountedList merged(const CountedList& a, const CountedList& b) {
  CountedList result;
  result.indices.resize(a.indices.size() + b.indices.size());
  result.counts.resize(result.indices.size());
  std::size_t i = 0, j = 0, out = 0;
  while (i < a.indices.size() && j < b.indices.size()) {
    const Index left = a.indices[i], right = b.indices[j];
    const auto from_left = static_cast<std::size_t>(left <= right), from_right = static_cast<std::size_t>(right <= left);
    result.indices[out] = from_left != 0 ? left : right;
    result.counts[out++] = (from_left != 0 ? a.counts[i] : 0) + (from_right != 0 ? b.counts[j] : 0);
    i += from_left;
    j += from_right;
  }
  for (const auto& [rest, start] : {std::pair<const CountedList&, std::size_t>{a, i}, std::pair<const CountedList&, std::size_t>{b, j}})
    for (std::size_t k = start; k < rest.indices.size(); ++k) {
      result.indices[out] = rest.indices[k];
      result.counts[out++] = rest.counts[k];
    }
  result.indices.resize(out);
  result.counts.resize(out);
  return result;
}

void check_addend(const Addend& addend, std::span<const float> accumulator) {
  const bool zeros = addend.zeros.empty() || addend.zeros.size() == (accumulator.size() + 63) / 64;
  if (addend.values.size() != accumulator.size() || !zeros || (addend.mean == nullptr) != (addend.deviation == nullptr))
    throw std::invalid_argument("add: sizes differ");
}

CpuAddend plain(const float* gradient) { return {gradient, nullptr, nullptr, 1, nullptr}; }
// From element `begin` on, a multiple of 64.
CpuAddend part_of(const Addend& addend, std::size_t begin) {
  return {addend.values.data() + begin, addend.mean == nullptr ? nullptr : addend.mean + begin,
          addend.mean == nullptr ? nullptr : addend.deviation + begin, addend.sign,
          addend.zeros.empty() ? nullptr : addend.zeros.data() + begin / 64};
}

class CpuKernels final : public Kernels {
 public:
  CpuKernels(const CpuTable& table, int threads)
      : table_(table),
        threads_(static_cast<std::size_t>(threads)),
        name_(std::string(table.name) + (threads > 1 ? "." + std::to_string(threads) + "t" : "")) {}

  std::string name() const override { return name_; }

  void accumulate(std::span<const float> gradient, float scale, std::span<float> accumulator) const override {
    if (gradient.size() != accumulator.size()) throw std::invalid_argument("accumulate: sizes differ");
    in_parts(gradient.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
      table_.accumulate(plain(gradient.data() + begin), scale, accumulator.data() + begin, end - begin);
    });
  }

  void add(const Addend& addend, float scale, std::span<float> accumulator) const override {
    check_addend(addend, accumulator);
    in_parts(accumulator.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
      table_.accumulate(part_of(addend, begin), scale, accumulator.data() + begin, end - begin);
    });
  }

  void threshold_select(std::span<const float> values, float threshold, Index first, std::vector<Index>& indices) const override {
    Key lowest = 0;
    if (!threshold_key(threshold, lowest)) return;
    select_blocks(values.size(), first, indices, [&](std::size_t begin, std::size_t size, std::uint32_t* out) {
      return table_.select(values.data() + begin, size, lowest, kInfinity - lowest, out);
    });
  }

  void accumulate_select(std::span<const float> gradient, float scale, std::span<float> accumulator, float threshold, Index first,
                         std::vector<Index>& indices) const override {
    if (gradient.size() != accumulator.size()) throw std::invalid_argument("accumulate_select: sizes differ");
    Key lowest = 0;
    if (!threshold_key(threshold, lowest)) return accumulate(gradient, scale, accumulator);
    select_blocks(gradient.size(), first, indices, [&](std::size_t begin, std::size_t size, std::uint32_t* out) {
      return table_.accumulate_select(plain(gradient.data() + begin), scale, accumulator.data() + begin, size, lowest, kInfinity - lowest,
                                      out);
    });
  }

  void add_select(const Addend& addend, float scale, std::span<float> accumulator, float threshold, Index first,
                  std::vector<Index>& indices) const override {
    check_addend(addend, accumulator);
    Key lowest = 0;
    if (!threshold_key(threshold, lowest)) return add(addend, scale, accumulator);
    select_blocks(accumulator.size(), first, indices, [&](std::size_t begin, std::size_t size, std::uint32_t* out) {
      return table_.accumulate_select(part_of(addend, begin), scale, accumulator.data() + begin, size, lowest, kInfinity - lowest, out);
    });
  }

  Index count(std::span<const float> values, float threshold) const override {
    Key lowest = 0;
    if (!threshold_key(threshold, lowest)) return 0;
    std::vector<Index> found(threads_);
    in_parts(values.size(), [&](std::size_t part, std::size_t begin, std::size_t end) {
      constexpr std::size_t kChunk = std::size_t{1} << 30;
      for (; begin < end; begin += std::min(kChunk, end - begin))
        found[part] += static_cast<Index>(table_.count(values.data() + begin, std::min(kChunk, end - begin), lowest, kInfinity - lowest));
    });
    return std::accumulate(found.begin(), found.end(), Index{0});
  }

  void topk(std::span<const float> values, Index k, Index first, std::vector<Index>& indices, TopkMethod method) const override {
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
    if (method == TopkMethod::sort) {
      topk_by_order(values, wanted, first, out);
    } else if (method == TopkMethod::radix) {
      topk_by_histogram(values, wanted, first, out);
    } else if (size <= kSmall) {
      topk_of_small(values, wanted, first, out);
    } else if (!topk_by_sample(values, wanted, first, out)) {
      topk_by_histogram(values, wanted, first, out);
    }
    indices.resize(old + wanted);
  }

  void topk_segments(std::span<const float> values, std::span<const Index> offsets, std::span<const Index> ks, Index first,
                     std::vector<Index>& indices) const override {
    check_offsets(offsets, ks.size(), values.size(), "topk_segments");
    std::vector<std::size_t> starts{indices.size()};  // where each segment's indices go
    for (std::size_t s = 0; s < ks.size(); ++s)
      starts.push_back(starts.back() + static_cast<std::size_t>(std::clamp<Index>(ks[s], 0, offsets[s + 1] - offsets[s])));
    indices.resize(starts.back());
    over_segments(offsets, [&](const CpuKernels& kernels, std::size_t s, std::vector<Index>& found) {
      found.clear();
      kernels.topk(segment(values, offsets, s), ks[s], first + offsets[s], found, TopkMethod::automatic);
      std::copy(found.begin(), found.end(), indices.begin() + static_cast<std::ptrdiff_t>(starts[s]));
    });
  }

  void segment_norms(std::span<const float> values, std::span<const Index> offsets, std::span<double> out) const override {
    check_offsets(offsets, out.size(), values.size(), "segment_norms");
    over_segments(offsets, [&](const CpuKernels& kernels, std::size_t s, std::vector<Index>&) {
      out[s] = kernels.l2_norm(segment(values, offsets, s));
    });
  }

  void segment_moments(std::span<const float> values, std::span<const Index> offsets, std::span<Moments> out) const override {
    check_offsets(offsets, out.size(), values.size(), "segment_moments");
    over_segments(offsets, [&](const CpuKernels& kernels, std::size_t s, std::vector<Index>&) {
      out[s] = kernels.moments(segment(values, offsets, s));
    });
  }

  void accumulate_topk(std::span<const float> gradient, float scale, std::span<float> accumulator, Index k, Index first,
                       std::vector<Index>& indices) const override {
    if (gradient.size() != accumulator.size()) throw std::invalid_argument("accumulate_topk: sizes differ");
    const std::size_t size = gradient.size();
    const Key bound = size > kSmall && k > 0 ? sampled_bound(accumulator, static_cast<std::size_t>(k), gradient.data(), scale) : 0;
    if (bound == 0) {
      accumulate(gradient, scale, accumulator);
      return topk(accumulator, k, first, indices, TopkMethod::automatic);
    }
    const auto wanted = static_cast<std::size_t>(k);
    const std::size_t old = indices.size();
    indices.resize(old + wanted + 1);
    Index* const out = indices.data() + old;
    filter(
        size, most_candidates(size, wanted), accumulator.data(),
        [&](std::size_t begin, std::size_t count, std::uint32_t* offsets) {
          return table_.accumulate_select(plain(gradient.data() + begin), scale, accumulator.data() + begin, count, bound, kLargest - bound,
                                          offsets);
        },
        [&](std::size_t begin, std::size_t end) {
          table_.accumulate(plain(gradient.data() + begin), scale, accumulator.data() + begin, end - begin);
        });
    if (!topk_of_candidates(size, wanted, first, out)) topk_by_histogram(accumulator, wanted, first, out);
    indices.resize(old + wanted);
  }

  float sampled_threshold(std::span<const float> values, Index start, Index stride, Index samples, Index rank) const override {
    check_samples(values, start, stride, samples, rank);
    std::vector<float>& scratch = workspace().scratch;
    if (scratch.size() < 2 * static_cast<std::size_t>(samples)) scratch.resize(2 * static_cast<std::size_t>(samples));
    for (Index j = 0; j < samples; ++j) scratch[static_cast<std::size_t>(j)] = values[static_cast<std::size_t>(start + j * stride)];
    return std::bit_cast<float>(
        largest(scratch.data(), static_cast<std::size_t>(samples), static_cast<std::uint64_t>(rank), scratch.data() + samples).key);
  }

  void zero(std::span<float> values, std::span<const Index> indices, Index first) const override {
    float* const base = values.data();
    in_parts(indices.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
      for (const Index index : indices.subspan(begin, end - begin)) base[index - first] = 0.0F;
    });
  }

  void gather(std::span<const float> values, std::span<const Index> indices, Index first, std::span<float> out) const override {
    if (indices.size() != out.size()) throw std::invalid_argument("gather: sizes differ");
    const float* const base = values.data();
    in_parts(indices.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) out[i] = base[indices[i] - first];
    });
  }

  void scatter_add(std::span<float> values, std::span<const Index> indices, Index first, std::span<const float> in) const override {
    if (indices.size() != in.size()) throw std::invalid_argument("scatter_add: sizes differ");
    float* const base = values.data();
    in_parts(indices.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) base[indices[i] - first] += in[i];
    });
  }

  double l2_norm(std::span<const float> values) const override {
    std::vector<double> tiles((values.size() + kSumTile - 1) / kSumTile);
    in_parts(values.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
      for (; begin < end; begin += std::min(kSumTile, end - begin)) {
        std::array<double, kSumLanes> lanes{};
        table_.sum_squares(values.data() + begin, std::min(kSumTile, end - begin), lanes.data());
        tiles[begin / kSumTile] = fold(lanes.data());
      }
    });
    return std::sqrt(std::accumulate(tiles.begin(), tiles.end(), 0.0));
  }

  Moments moments(std::span<const float> values) const override {
    struct Tile {
      std::array<double, kMomentSums> sums;
      Index zeros;
    };
    std::vector<Tile> tiles((values.size() + kSumTile - 1) / kSumTile);
    in_parts(values.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
      for (; begin < end; begin += std::min(kSumTile, end - begin)) {
        const std::size_t size = std::min(kSumTile, end - begin);
        std::array<double, kMomentSums * kSumLanes> lanes{};
        table_.moments(values.data() + begin, size, lanes.data());
        Tile& tile = tiles[begin / kSumTile];
        for (std::size_t sum = 0; sum < kMomentSums; ++sum) tile.sums[sum] = fold(lanes.data() + sum * kSumLanes);
        tile.zeros = static_cast<Index>(table_.count(values.data() + begin, size, 0, 0));
      }
    });
    Moments result;
    result.elements = std::ssize(values);
    for (const Tile& tile : tiles) {
      result.zeros += tile.zeros;
      result.sum += tile.sums[0];
      result.sum_magnitudes += tile.sums[1];
      result.sum_squares += tile.sums[2];
      result.sum_log2 += tile.sums[3];
    }
    return result;
  }

  void block_maxima(std::span<const float> values, Index block, std::span<float> out) const override {
    const std::size_t length = check_blocks(values, block, out);
    in_parts(values.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
      // The blocks that begin in this part.
      for (std::size_t b = (begin + length - 1) / length; b * length < end; ++b)
        out[b] = std::bit_cast<float>(table_.largest(values.data() + b * length, std::min(length, values.size() - b * length)));
    });
  }

  std::vector<Index> unite(std::span<const std::vector<Index>> lists, Index size) const override {
    const std::size_t filled = check_lists(lists, size), sum = total_size(lists);
    std::vector<Index> result;
    if (filled == 0) return result;
    if (filled == 1) return *std::find_if(lists.begin(), lists.end(), [](const auto& list) { return !list.empty(); });
    if (sorting_pays(sum, size)) {
      result = joined_and_sorted(lists, sum, size);
      result.erase(std::unique(result.begin(), result.end()), result.end());
      return result;
    }
    const auto [words, found] = fill_bitmap(lists, size);
    result.resize(found);
    drain_bitmap(words, result.data());
    return result;
  }

  std::vector<Index> unite_counted(std::span<const std::vector<Index>> lists, Index size, std::vector<std::int32_t>& multiplicities,
                                   UniteMethod method) const override {
    const std::size_t filled = check_lists(lists, size), sum = total_size(lists);
    multiplicities.clear();
    if (filled == 0) return {};
    if (method == UniteMethod::automatic) {
      method = !sorting_pays(sum, size) ? UniteMethod::bitmap : filled <= 2 ? UniteMethod::merge : UniteMethod::sort;
    }
    std::vector<Index> result;
    if (method == UniteMethod::merge) {
      const auto longer = [](const CountedList& a, const CountedList& b) { return a.indices.size() > b.indices.size(); };
      std::vector<CountedList> heap;
      for (const std::vector<Index>& list : lists)
        if (!list.empty()) heap.push_back({list, std::vector<std::int32_t>(list.size(), 1)});
      std::make_heap(heap.begin(), heap.end(), longer);
      const auto shortest = [&] {
        std::pop_heap(heap.begin(), heap.end(), longer);
        CountedList list = std::move(heap.back());
        heap.pop_back();
        return list;
      };
      while (heap.size() > 1) {
        const CountedList a = shortest(), b = shortest();
        heap.push_back(merged(a, b));
        std::push_heap(heap.begin(), heap.end(), longer);
      }
      multiplicities = std::move(heap.front().counts);
      return std::move(heap.front().indices);
    }
    if (method == UniteMethod::sort) {
      result = joined_and_sorted(lists, sum, size);
      std::size_t kept = 0;
      for (std::size_t i = 0, end = 0; i < result.size(); i = end) {
        while (end < result.size() && result[end] == result[i]) ++end;
        multiplicities.push_back(static_cast<std::int32_t>(end - i));
        result[kept++] = result[i];
      }
      result.resize(kept);
      return result;
    }
    const auto [words, found] = fill_bitmap(lists, size);
    result.resize(found);
    multiplicities.assign(found, 0);
    const std::vector<std::uint64_t>& bitmap = workspace().bitmap;
    std::vector<Index> before(words);  // bits set in earlier words
    Index bits = 0;
    for (std::size_t word = 0; word < words; ++word) before[word] = std::exchange(bits, bits + std::popcount(bitmap[word]));
    for (const std::vector<Index>& list : lists)
      for (const Index index : list) {
        const auto word = static_cast<std::size_t>(index) / 64;
        const std::uint64_t lower = bitmap[word] & ((std::uint64_t{1} << (index % 64)) - 1);
        ++multiplicities[static_cast<std::size_t>(before[word] + std::popcount(lower))];
      }
    drain_bitmap(words, result.data());
    return result;
  }

  void cast_half(std::span<float> values) const override {
    in_parts(values.size(), [&](std::size_t, std::size_t begin, std::size_t end) { table_.cast_half(values.data() + begin, end - begin); });
  }

 private:
  static constexpr std::size_t kSmall = 512;
  static constexpr std::size_t kRun = 16;  // elements of a sampled run: a cache line or two

  const CpuTable& table_;
  std::size_t threads_;
  std::string name_;

  // work(part, begin, end) for parts of [0, size) that begin at multiples of kPartMultiple, each on a thread of its own, the first on this
  // one. Threads are started for the call: a program that forks has none that would be missing in its children.
  template <typename Work>
  std::size_t in_parts(std::size_t size, const Work& work) const {
    const std::size_t parts = std::clamp<std::size_t>(size / kLeastPart, 1, threads_);
    if (parts == 1) {
      work(std::size_t{0}, std::size_t{0}, size);
      return 1;
    }
    const std::size_t step = (size / parts + kPartMultiple - 1) / kPartMultiple * kPartMultiple;
    const auto run = [&](std::size_t part) {
      work(part, std::min(size, part * step), part + 1 == parts ? size : std::min(size, (part + 1) * step));
    };
    std::vector<std::exception_ptr> errors(parts);
    {
      std::vector<std::jthread> others;
      for (std::size_t part = 1; part < parts; ++part)
        others.emplace_back([&, part] {
          try {
            run(part);
          } catch (...) {
            errors[part] = std::current_exception();
          }
        });
      try {
        run(0);
      } catch (...) {
        errors[0] = std::current_exception();
      }
    }
    for (const std::exception_ptr& error : errors)
      if (error) std::rethrow_exception(error);
    return parts;
  }

  // work(kernels, s, scratch) for each segment: those large enough for all threads one after the other, by this object, then the others,
  // each on one thread, whoever is free takes the next. What a segment gives does not depend on who does it.
  template <typename Work>
  void over_segments(std::span<const Index> offsets, const Work& work) const {
    const std::size_t segments = offsets.size() - 1;
    const auto size_of = [&](std::size_t s) { return static_cast<std::size_t>(offsets[s + 1] - offsets[s]); };
    const std::size_t total = static_cast<std::size_t>(offsets.back() - offsets.front());
    const std::size_t helpers = std::clamp<std::size_t>(total / kLeastPart, 1, threads_);
    const auto is_large = [&](std::size_t s) { return helpers == 1 || size_of(s) >= threads_ * kLeastPart; };
    std::vector<Index> scratch;
    std::size_t small = 0;
    for (std::size_t s = 0; s < segments; ++s) {
      if (is_large(s))
        work(*this, s, scratch);
      else
        ++small;
    }
    if (small == 0) return;
    const CpuKernels alone(table_, 1);
    std::atomic<std::size_t> next{0};
    const auto run = [&](std::vector<Index>& own) {
      for (std::size_t s = next++; s < segments; s = next++)
        if (!is_large(s)) work(alone, s, own);
    };
    std::vector<std::exception_ptr> errors(helpers);
    const auto guarded = [&](std::size_t helper) {
      try {
        std::vector<Index> own;
        run(own);
      } catch (...) {
        errors[helper] = std::current_exception();
      }
    };
    {
      std::vector<std::jthread> others;
      for (std::size_t helper = 1; helper < std::min(helpers, small); ++helper) others.emplace_back(guarded, helper);
      guarded(0);
    }
    for (const std::exception_ptr& error : errors)
      if (error) std::rethrow_exception(error);
  }

  // False when the threshold selects nothing.
  static bool threshold_key(float threshold, Key& lowest) {
    if (std::isnan(threshold)) return false;
    lowest = threshold <= 0 ? 0 : key_of(threshold);
    return true;
  }

  // Appends first + position for what select(begin, size, offsets) picks from each block.
  template <typename Select>
  void select_blocks(std::size_t total, Index first, std::vector<Index>& indices, const Select& select) const {
    const auto run = [&](std::size_t from, std::size_t to, std::vector<Index>& into) {
      auto& offsets = workspace().offsets;
      for (std::size_t begin = from; begin < to; begin += kBlock) {
        const std::size_t found = select(begin, std::min(kBlock, to - begin), offsets.data());
        const std::size_t old = into.size();
        into.resize(old + found);
        Index* const out = into.data() + old;
        const Index base = first + static_cast<Index>(begin);
        for (std::size_t i = 0; i < found; ++i) out[i] = base + static_cast<Index>(offsets[i]);
      }
    };
    auto& others = workspace().selections;
    if (others.size() < threads_) others.resize(threads_);
    for (auto& list : others) list.clear();
    in_parts(total, [&](std::size_t part, std::size_t begin, std::size_t end) { run(begin, end, part == 0 ? indices : others[part]); });
    for (std::size_t part = 1; part < threads_; ++part) indices.insert(indices.end(), others[part].begin(), others[part].end());
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

  // The rank-th largest of values[0, size), rank from 1 to size. `scratch` has room for size values and may be `values`, which are then
  // overwritten.
  Kth largest(const float* values, std::size_t size, std::uint64_t rank, float* scratch) const {
    Key prefix = 0;
    const float* left = values;
    for (int digit = 0; digit < kDigits && size > 768; ++digit) {
      std::array<std::uint64_t, 2048> totals;
      histogram(
          size, digit, [left](std::size_t i) { return key_of(left[i]); }, [](Key) { return true; }, totals);
      const Key bin = bin_of_rank(totals, rank);
      const int shift = kShift[static_cast<std::size_t>(digit)];
      prefix |= bin << shift;
      if (digit == kDigits - 1) return {prefix, rank, totals[bin]};
      if (totals[bin] < size) {
        size = copy_range(left, size, prefix, (Key{1} << shift) - 1, scratch);
        left = scratch;
      }
    }
    if (left != scratch) std::copy_n(left, size, scratch);
    float* const nth = scratch + (rank - 1);
    std::nth_element(scratch, nth, scratch + size, [](float a, float b) { return key_of(a) > key_of(b); });
    const Key kth = key_of(*nth);
    std::uint64_t ties = 1;
    for (const float* value = scratch; value != nth; ++value) ties += static_cast<std::uint64_t>(key_of(*value) == kth);
    std::uint64_t equals = ties;
    for (const float* value = nth + 1; value != scratch + size; ++value) equals += static_cast<std::uint64_t>(key_of(*value) == kth);
    return {kth, ties, equals};
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
    Kth kth = largest(scratch.data(), values.size(), wanted, scratch.data());
    keep(
        values.size(), kth, [&](std::size_t i) { return key_of(values[i]); }, [&](std::size_t i) { return first + static_cast<Index>(i); },
        out);
  }

  // All (magnitude, index) pairs, partially ordered by the standard library.
  static void topk_by_order(std::span<const float> values, std::size_t wanted, Index first, Index* out) {
    struct Entry {
      Key key;
      Index index;
    };
    std::vector<Entry> entries(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) entries[i] = {key_of(values[i]), static_cast<Index>(i)};
    const auto end = entries.begin() + static_cast<std::ptrdiff_t>(wanted);
    std::nth_element(entries.begin(), end - 1, entries.end(),
                     [](const Entry& a, const Entry& b) { return a.key != b.key ? a.key > b.key : a.index < b.index; });
    std::transform(entries.begin(), end, out, [first](const Entry& entry) { return first + entry.index; });
    std::sort(out, out + wanted);
  }

  // Memory for more is not worth it; digits are counted instead.
  static std::size_t most_candidates(std::size_t size, std::size_t wanted) { return wanted + wanted + size / 16 + kBlock; }

  // One pass: select(begin, size, offsets) says what each block keeps, to workspace().candidates. After too many, `skip` does what is left
  // to do for elements [begin, end).
  template <typename Select, typename Skip>
  void filter(std::size_t size, std::size_t most, const float* values, const Select& select, const Skip& skip) const {
    auto& all = workspace().candidates;
    if (all.size() < threads_) all.resize(threads_);
    for (Candidates& one : all) {
      one.size = 0;
      one.overflow = false;
    }
    in_parts(size, [&](std::size_t part, std::size_t from, std::size_t to) {
      Candidates& kept = all[part];
      if (kept.values.size() < most + kBlock) {
        kept.values.resize(most + kBlock);
        kept.positions.resize(most + kBlock + kSelectSlack);
      }
      for (std::size_t begin = from; begin < to; begin += kBlock) {
        std::uint32_t* const positions = kept.positions.data() + kept.size;
        const std::size_t found = select(begin, std::min(kBlock, to - begin), positions);
        const float* const block = values + begin;
        float* const out = kept.values.data() + kept.size;
        for (std::size_t i = 0; i < found; ++i) out[i] = block[positions[i]];
        for (std::size_t i = 0; i < found; ++i) positions[i] += static_cast<std::uint32_t>(begin);
        kept.size += found;
        if (kept.size > most) {
          kept.overflow = true;
          skip(begin + std::min(kBlock, to - begin), to);
          return;
        }
      }
    });
  }

  // The exact choice among what `filter` kept. False when it kept too few or too many.
  bool topk_of_candidates(std::size_t size, std::size_t wanted, Index first, Index* out) const {
    Workspace& space = workspace();
    std::size_t total = 0;
    for (const Candidates& one : space.candidates) {
      if (one.overflow) return false;
      total += one.size;
    }
    if (total < wanted || total > most_candidates(size, wanted)) return false;
    Candidates& mine = space.candidates.front();
    std::size_t joined = mine.size;
    for (std::size_t part = 1; part < space.candidates.size(); ++part) {
      const Candidates& other = space.candidates[part];
      std::copy_n(other.values.data(), other.size, mine.values.data() + joined);
      std::copy_n(other.positions.data(), other.size, mine.positions.data() + joined);
      joined += other.size;
    }
    if (space.scratch.size() < total) space.scratch.resize(most_candidates(size, wanted) + kBlock);
    Kth kth = largest(mine.values.data(), total, wanted, space.scratch.data());
    const float* const values = mine.values.data();
    const std::uint32_t* const positions = mine.positions.data();
    if (kth.equals != kth.ties) {  // not all ties belong: the first ones do
      keep(
          total, kth, [values](std::size_t i) { return key_of(values[i]); },
          [first, positions](std::size_t i) { return first + static_cast<Index>(positions[i]); }, out);
      return true;
    }
    for (std::size_t begin = 0; begin < total; begin += kBlock) {
      const std::size_t found =
          table_.select(values + begin, std::min(kBlock, total - begin), kth.key, kLargest - kth.key, space.offsets.data());
      const std::uint32_t* const from = positions + begin;
      for (std::size_t i = 0; i < found; ++i) out[i] = first + static_cast<Index>(from[space.offsets[i]]);
      out += found;
    }
    return true;
  }

  // A lower bound on the k-th key from a sample, then one pass that keeps what reaches it, then the exact choice among those. False when
  // the sample was of no use: too few or too many candidates. So the sample decides the cost, never the result.
  bool topk_by_sample(std::span<const float> values, std::size_t wanted, Index first, Index* out) const {
    const Key bound = sampled_bound(values, wanted, nullptr, 0);
    if (bound == 0) return false;
    filter(
        values.size(), most_candidates(values.size(), wanted), values.data(),
        [&](std::size_t begin, std::size_t count, std::uint32_t* offsets) {
          return table_.select(values.data() + begin, count, bound, kLargest - bound, offsets);
        },
        [](std::size_t, std::size_t) {});
    return topk_of_candidates(values.size(), wanted, first, out);
  }

  // A key that very likely at least `wanted` elements reach, and not many more: from runs of neighbours, one in each stratum of the vector,
  // at positions that depend on the size only. Four standard deviations of the estimate, which come from the spread of the runs' hits,
  // since neighbours are alike. With a gradient, of the values after accumulation. 0 when the sample is too small to say.
  Key sampled_bound(std::span<const float> values, std::size_t wanted, const float* gradient, float scale) const {
    const std::size_t size = values.size();
    if (wanted > size / 4 || size > std::numeric_limits<std::uint32_t>::max()) return 0;  // candidates' positions have 32 bits
    // About what makes the work on the sample and on the candidates that a smaller one would let pass equal.
    const double n = static_cast<double>(size);
    const double balanced = std::max(2 * std::cbrt(static_cast<double>(wanted) * n), std::sqrt(6 * n));
    const std::size_t runs = std::clamp<std::size_t>(static_cast<std::size_t>(balanced) / kRun, 8, 4096);
    const std::size_t stratum = size / runs;
    Workspace& space = workspace();
    const std::size_t sampled = runs * kRun;
    if (space.scratch.size() < 2 * sampled) space.scratch.resize(2 * sampled);
    float* const sample = space.scratch.data();
    for (std::size_t run = 0; run < runs; ++run) {
      const std::size_t place = run * stratum + mix64(run) % (stratum - kRun + 1);
      std::copy_n(values.data() + place, kRun, sample + run * kRun);
      if (gradient != nullptr) table_.accumulate(plain(gradient + place), scale, sample + run * kRun, kRun);
    }
    const double expected = static_cast<double>(wanted) * static_cast<double>(sampled) / n;
    float* const consumed = sample + sampled;
    const Key middle = largest(sample, sampled, static_cast<std::uint64_t>(expected) + 1, consumed).key;
    double squares = 0;
    for (std::size_t run = 0; run < runs; ++run) {
      unsigned hits = 0;
      for (std::size_t i = 0; i < kRun; ++i) hits += static_cast<unsigned>(key_of(sample[run * kRun + i]) >= middle);
      squares += static_cast<double>(hits) * static_cast<double>(hits);
    }
    const double rank = expected + 4 * std::sqrt(squares) + 4;
    if (rank >= static_cast<double>(sampled)) return 0;
    return largest(sample, sampled, static_cast<std::uint64_t>(rank), consumed).key;
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
      kth = {prefix, rank, totals[bin]};
      if (digit == kDigits - 1) break;
      const std::size_t few = totals[bin];
      if (few > size / 4 + kBlock) continue;
      if (space.scratch.size() < few + kBlock) space.scratch.resize(few + kBlock);
      copy_range(values.data(), size, prefix, kLargest & ~known, space.scratch.data());
      kth = largest(space.scratch.data(), few, rank, space.scratch.data());
      break;
    }
    write_from(values, kth, wanted, first, out);
  }
};

bool supported(const std::string& name) {
#ifdef SPARSCALE_X86
  __builtin_cpu_init();
  if (name == "cpu.avx2")
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("popcnt");
  if (name == "cpu.avx512") return supported("cpu.avx2") && __builtin_cpu_supports("avx512f");
#endif
  return name == "cpu.scalar";
}

// Slowest first.
std::vector<const CpuTable*> tables() {
  std::vector<const CpuTable*> found{&scalar_table()};
#ifdef SPARSCALE_X86
  for (const CpuTable* wider : {&avx2_table(), &avx512_table()})
    if (supported(wider->name)) found.push_back(wider);
#endif
  return found;
}

}  // namespace

std::string topk_operation(TopkMethod method) {
  switch (method) {
    case TopkMethod::automatic:
      return "topk";
    case TopkMethod::sampled:
      return "topk.sampled";
    case TopkMethod::radix:
      return "topk.radix";
    case TopkMethod::sort:
      return "topk.sort";
  }
  throw std::invalid_argument("top-k method");
}

// What a back-end does that has nothing better: the definitions.

void Kernels::select_entries(std::span<const float> values, float threshold, Index first, std::vector<Index>& indices,
                             std::vector<float>& selected) const {
  const std::size_t old = indices.size(), old_values = selected.size();
  threshold_select(values, threshold, first, indices);
  selected.resize(old_values + indices.size() - old);
  gather(values, std::span(indices).subspan(old), first, std::span(selected).subspan(old_values));
}

void Kernels::topk_segments(std::span<const float> values, std::span<const Index> offsets, std::span<const Index> ks, Index first,
                            std::vector<Index>& indices) const {
  check_offsets(offsets, ks.size(), values.size(), "topk_segments");
  for (std::size_t s = 0; s < ks.size(); ++s) topk(segment(values, offsets, s), ks[s], first + offsets[s], indices);
}

void Kernels::accumulate_select(std::span<const float> gradient, float scale, std::span<float> accumulator, float threshold, Index first,
                                std::vector<Index>& indices) const {
  accumulate(gradient, scale, accumulator);
  threshold_select(accumulator, threshold, first, indices);
}

namespace {

// Writes the zeros of the addend; its gradient, in `made` where it does not lie in memory.
std::span<const float> write_down(const Addend& addend, std::span<float> accumulator, std::vector<float>& made) {
  check_addend(addend, accumulator);
  for (std::size_t word = 0; word < addend.zeros.size(); ++word)
    for (std::uint64_t bits = addend.zeros[word]; bits != 0; bits &= bits - 1)
      if (const std::size_t i = 64 * word + static_cast<std::size_t>(std::countr_zero(bits)); i < accumulator.size()) accumulator[i] = 0;
  if (addend.mean == nullptr) return addend.values;
  made.resize(accumulator.size());
  for (std::size_t i = 0; i < made.size(); ++i) made[i] = addend.mean[i] + addend.sign * addend.deviation[i] * addend.values[i];
  return made;
}

}  // namespace

void Kernels::add(const Addend& addend, float scale, std::span<float> accumulator) const {
  std::vector<float> made;
  accumulate(write_down(addend, accumulator, made), scale, accumulator);
}

void Kernels::add_select(const Addend& addend, float scale, std::span<float> accumulator, float threshold, Index first,
                         std::vector<Index>& indices) const {
  std::vector<float> made;
  accumulate_select(write_down(addend, accumulator, made), scale, accumulator, threshold, first, indices);
}

void Kernels::accumulate_topk(std::span<const float> gradient, float scale, std::span<float> accumulator, Index k, Index first,
                              std::vector<Index>& indices) const {
  accumulate(gradient, scale, accumulator);
  topk(accumulator, k, first, indices);
}

float Kernels::sampled_threshold(std::span<const float> values, Index start, Index stride, Index samples, Index rank) const {
  return cpu_kernels().sampled_threshold(values, start, stride, samples, rank);
}

void Kernels::scatter_add(std::span<float> values, std::span<const Index> indices, Index first, std::span<const float> in) const {
  cpu_kernels().scatter_add(values, indices, first, in);
}

void Kernels::segment_norms(std::span<const float> values, std::span<const Index> offsets, std::span<double> out) const {
  check_offsets(offsets, out.size(), values.size(), "segment_norms");
  for (std::size_t s = 0; s < out.size(); ++s) out[s] = l2_norm(segment(values, offsets, s));
}

Moments Kernels::moments(std::span<const float> values) const { return cpu_kernels().moments(values); }

void Kernels::segment_moments(std::span<const float> values, std::span<const Index> offsets, std::span<Moments> out) const {
  check_offsets(offsets, out.size(), values.size(), "segment_moments");
  for (std::size_t s = 0; s < out.size(); ++s) out[s] = moments(segment(values, offsets, s));
}

void Kernels::block_maxima(std::span<const float> values, Index block, std::span<float> out) const {
  cpu_kernels().block_maxima(values, block, out);
}

std::vector<Index> Kernels::unite_counted(std::span<const std::vector<Index>> lists, Index size, std::vector<std::int32_t>& multiplicities,
                                          UniteMethod method) const {
  return cpu_kernels().unite_counted(lists, size, multiplicities, method);
}

std::vector<Index> random_indices(std::uint64_t key, Index size, Index k) {
  if (k < 0 || k > size) throw std::invalid_argument("random_indices: 0 <= k <= size");
  if (k == 0) return {};
  const Permutation permutation = make_permutation(key, static_cast<std::uint64_t>(size));
  std::vector<Index> indices(static_cast<std::size_t>(k));
  for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<Index>(permuted(permutation, i));
  sort_indices(indices, size);
  return indices;
}

const Kernels& cpu_kernels(const std::string& name, int threads) {
  if (threads < 1 || threads > 1024) throw InputError("kernel threads", "1 to 1024", std::to_string(threads));
  static std::mutex mutex;
  static std::map<std::pair<std::string, int>, std::unique_ptr<CpuKernels>> made;
  static const std::vector<const CpuTable*> known = tables();
  const std::string wanted = name == "auto" ? known.back()->name : name;
  const std::lock_guard lock(mutex);
  std::unique_ptr<CpuKernels>& place = made[{wanted, threads}];
  if (place) return *place;
  for (const CpuTable* table : known)
    if (table->name == wanted) {
      place = std::make_unique<CpuKernels>(*table, threads);
      return *place;
    }
  made.erase({wanted, threads});
  std::string names = "auto";
  for (const CpuTable* table : known) names += std::string(", ") + table->name;
  throw InputError("kernel back-end", "one of " + names, "\"" + name + "\"");
}

std::vector<std::string> cpu_kernel_names() {
  std::vector<std::string> names;
  for (const CpuTable* table : tables()) names.emplace_back(table->name);
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
