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

  /// Appends first + i of the k largest magnitudes, ascending in index; all when k >= size. NaN ranks above infinity, as in torch.topk.
  virtual void topk(std::span<const float> values, Index k, Index first, std::vector<Index>& indices) const = 0;

  /// values[index - first] = 0 for each index.
  virtual void zero(std::span<float> values, std::span<const Index> indices, Index first = 0) const = 0;
  /// out[j] = values[indices[j] - first].
  virtual void gather(std::span<const float> values, std::span<const Index> indices, Index first, std::span<float> out) const = 0;

  /// Square root of the sum of squares in double, in one fixed order (the same bits in every back-end).
  virtual double l2_norm(std::span<const float> values) const = 0;

  /// Ascending union without duplicates of ascending lists of indices in [0, size).
  virtual std::vector<Index> unite(std::span<const std::vector<Index>> lists, Index size) const = 0;

  /// Rounds to IEEE half (nearest even) and back, in place: what sending fp16 values does to them.
  virtual void cast_half(std::span<float> values) const = 0;
};

/// The fastest CPU back-end of this machine, or the named one. Errors: InputError when the name is unknown or not supported here.
const Kernels& cpu_kernels(const std::string& name = "auto");
/// Names of the CPU back-ends that this machine can run, slowest first.
std::vector<std::string> cpu_kernel_names();

/// Number of elements that are NaN or infinite.
Index count_non_finite(std::span<const float> values);

}  // namespace sparscale::kernels
