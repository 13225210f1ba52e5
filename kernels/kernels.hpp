// Selection primitives, one interface for every back-end (docs/kernels.md).
//
// Order of magnitudes everywhere: the bits of |x| as an unsigned integer, descending, then the index, ascending. So +0 equals
// -0, ties go to the lower index, and every back-end returns the same indices. NaN never passes a threshold.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace sparscale::kernels {

using Index = std::int64_t;

/// How the k largest are found. The result is the same; `automatic` is the fastest that the back-end has.
enum class TopkMethod {
  automatic,
  sampled,  // a bound from a sample, one pass that keeps what reaches it, an exact choice among that
  radix,    // histograms of the keys' digits, then one pass that writes
  sort      // what a user of a library would write: order all (magnitude, index) pairs, or partially
};
/// "topk.sampled" and so on, as in profiles; "topk" for automatic.
std::string topk_operation(TopkMethod method);

/// How lists of indices are united. The result is the same.
enum class UniteMethod {
  automatic,
  bitmap,  // one bit for each possible index
  merge,   // lists merged two by two, the shortest first
  sort     // all indices sorted
};

/// Sums over the values of a range, in double and in one fixed order (the same bits in every back-end): tiles of 8192 elements from the
/// beginning of the range, in each 32 lanes, lane i mod 32.
struct Moments {
  Index elements = 0;
  Index zeros = 0;            // of either sign
  double sum = 0;             // of x
  double sum_magnitudes = 0;  // of |x|
  double sum_squares = 0;     // of x^2
  double sum_log2 = 0;        // of log2 |x| over what is neither zero nor NaN nor infinite, each within 2e-7
  friend bool operator==(const Moments&, const Moments&) = default;
};

/// A gradient that need not lie in memory, and what it is added to.
struct Addend {
  std::span<const float> values;  // the gradient, or with a mean: gradient[i] = mean[i] + (sign * deviation[i]) * values[i], each rounded
  const float* mean = nullptr;
  const float* deviation = nullptr;
  float sign = 1;
  /// Entry i of the accumulator counts as zero where bit i mod 64 of zeros[i / 64] is set: a word for every 64 entries begun, or none.
  std::span<const std::uint64_t> zeros = {};
};

class Kernels {
 public:
  virtual ~Kernels() = default;
  /// Name in records and profiles: cpu.scalar, cpu.avx2, cpu.avx512, cuda.cub, ...
  virtual std::string name() const = 0;

  /// accumulator[i] = fma(scale, gradient[i], accumulator[i]), rounded once; scale 1 is a float addition. Equal sizes.
  virtual void accumulate(std::span<const float> gradient, float scale, std::span<float> accumulator) const = 0;

  /// Appends first + i for every |values[i]| >= threshold, ascending. A NaN threshold selects nothing; a threshold <= 0 everything but NaN.
  virtual void threshold_select(std::span<const float> values, float threshold, Index first, std::vector<Index>& indices) const = 0;
  /// How many threshold_select would append.
  virtual Index count(std::span<const float> values, float threshold) const = 0;
  /// threshold_select that also appends the selected values, in the same order.
  virtual void select_entries(std::span<const float> values, float threshold, Index first, std::vector<Index>& indices,
                              std::vector<float>& selected) const;

  /// Appends first + i of the k largest magnitudes, ascending in index; all when k >= size. NaN ranks above infinity, as in torch.topk.
  virtual void topk(std::span<const float> values, Index k, Index first, std::vector<Index>& indices,
                    TopkMethod method = TopkMethod::automatic) const = 0;
  /// topk of each segment [offsets[s], offsets[s + 1]) with k = ks[s]. `offsets` ascending, one more than ks, from 0 to at most the size.
  virtual void topk_segments(std::span<const float> values, std::span<const Index> offsets, std::span<const Index> ks, Index first,
                             std::vector<Index>& indices) const;

  /// accumulate, then threshold_select of the accumulator: the same result in one pass over memory.
  virtual void accumulate_select(std::span<const float> gradient, float scale, std::span<float> accumulator, float threshold, Index first,
                                 std::vector<Index>& indices) const;
  /// accumulate and accumulate_select of an addend: the same as to write its zeros and its gradient before, in one pass over memory.
  virtual void add(const Addend& addend, float scale, std::span<float> accumulator) const;
  virtual void add_select(const Addend& addend, float scale, std::span<float> accumulator, float threshold, Index first,
                          std::vector<Index>& indices) const;
  /// accumulate, then topk of the accumulator: the same result in about one pass over memory.
  virtual void accumulate_topk(std::span<const float> gradient, float scale, std::span<float> accumulator, Index k, Index first,
                               std::vector<Index>& indices) const;

  /// Threshold from a sample, as DGC takes it: the rank-th largest magnitude (rank from 1 to samples) of |values[start + j * stride]|,
  /// j < samples. Every position inside `values`, stride >= 1.
  virtual float sampled_threshold(std::span<const float> values, Index start, Index stride, Index samples, Index rank) const;

  /// values[index - first] = 0 for each index.
  virtual void zero(std::span<float> values, std::span<const Index> indices, Index first = 0) const = 0;
  /// out[j] = values[indices[j] - first].
  virtual void gather(std::span<const float> values, std::span<const Index> indices, Index first, std::span<float> out) const = 0;
  /// values[indices[j] - first] += in[j], indices without repetition.
  virtual void scatter_add(std::span<float> values, std::span<const Index> indices, Index first, std::span<const float> in) const;

  /// Square root of the sum of squares in double, in one fixed order (that of Moments).
  virtual double l2_norm(std::span<const float> values) const = 0;
  /// l2_norm of each segment [offsets[s], offsets[s + 1]); out has one place for each.
  virtual void segment_norms(std::span<const float> values, std::span<const Index> offsets, std::span<double> out) const;
  /// Sums for the fitted thresholds (SIDCo, Gaussian-k).
  virtual Moments moments(std::span<const float> values) const;
  virtual void segment_moments(std::span<const float> values, std::span<const Index> offsets, std::span<Moments> out) const;
  /// out[b] = largest magnitude of values[b * block, (b + 1) * block), the last block as long as it is. NaN is larger than infinity; a
  /// block with a NaN gives that NaN, without its sign. ceil(size / block) places.
  virtual void block_maxima(std::span<const float> values, Index block, std::span<float> out) const;

  /// Ascending union without duplicates of ascending lists of indices in [0, size).
  virtual std::vector<Index> unite(std::span<const std::vector<Index>> lists, Index size) const = 0;
  /// unite; multiplicities[j] becomes the number of lists that hold the j-th index of the union.
  virtual std::vector<Index> unite_counted(std::span<const std::vector<Index>> lists, Index size, std::vector<std::int32_t>& multiplicities,
                                           UniteMethod method = UniteMethod::automatic) const;

  /// Rounds to IEEE half (nearest even) and back, in place: what sending fp16 values does to them.
  virtual void cast_half(std::span<float> values) const = 0;
};

/// k distinct pseudo-random indices of [0, size), ascending: where a permutation of [0, size), chosen by `key`, sends 0 .. k - 1. The same
/// on every back-end. 0 <= k <= size. Cost O(k), whatever the size.
std::vector<Index> random_indices(std::uint64_t key, Index size, Index k);

/// The fastest CPU back-end of this machine, or the named one. `threads` threads share each call over a large vector (the calling one
/// among them); results do not depend on their number. The name says "cpu.avx512.4t" for four.
/// Errors: InputError when the name is unknown or not supported here, or threads < 1.
const Kernels& cpu_kernels(const std::string& name = "auto", int threads = 1);
/// Names of the CPU back-ends that this machine can run, slowest first.
std::vector<std::string> cpu_kernel_names();

/// Number of elements that are NaN or infinite.
Index count_non_finite(std::span<const float> values);

}  // namespace sparscale::kernels
