// The host side of the CUDA back-end.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <type_traits>

#include "base/error.hpp"
#include "kernels/cuda/cuda.hpp"
#include "kernels/cuda/operations.hpp"

namespace sparscale::kernels::cuda {
namespace {

constexpr std::uint32_t kInfinity = 0x7f800000U;

// Device memory that grows and stays.
template <typename T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { cudaFree(data_); }
  T* at_least(std::int64_t size) {
    if (size > size_) {
      cudaFree(data_);
      data_ = nullptr;
      size_ = 0;
      void* fresh = nullptr;
      check(cudaMalloc(&fresh, static_cast<std::size_t>(size) * sizeof(T)), "memory");
      data_ = static_cast<T*>(fresh);
      size_ = size;
    }
    return data_;
  }
  T* data() { return data_; }
  T* upload(const T* values, std::int64_t size, cudaStream_t stream) {
    T* const place = at_least(std::max<std::int64_t>(size, 1));
    check(cudaMemcpyAsync(place, values, static_cast<std::size_t>(size) * sizeof(T), cudaMemcpyHostToDevice, stream), "copy to the device");
    return place;
  }

 private:
  T* data_ = nullptr;
  std::int64_t size_ = 0;
};

template <typename T>
void download(T* out, const T* from, std::int64_t size, cudaStream_t stream) {
  check(cudaMemcpyAsync(out, from, static_cast<std::size_t>(size) * sizeof(T), cudaMemcpyDeviceToHost, stream), "copy from the device");
  check(cudaStreamSynchronize(stream), "kernel");
}

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream"); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(stream_); }
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// False when the threshold selects nothing; the rules of kernels.hpp.
bool threshold_key(float threshold, std::uint32_t& lowest) {
  if (std::isnan(threshold)) return false;
  lowest = threshold <= 0 ? 0 : std::bit_cast<std::uint32_t>(threshold) & 0x7fffffffU;
  return true;
}

// The operations that need more than one kernel, with their work space.
class Operations {
 public:
  explicit Operations(cudaStream_t stream) : stream_(stream) {}

  // To selected()[0] on the device.
  void threshold_select(const float* values, std::int64_t size, std::uint32_t lowest, std::int64_t first, std::int64_t* out) {
    std::size_t bytes = 0;
    std::int64_t* const selected = number_.at_least(1);
    select(nullptr, bytes, values, size, lowest, kInfinity - lowest, first, out, selected, stream_);
    void* const space = temporary_.at_least(static_cast<std::int64_t>(bytes) + 1);
    select(space, bytes, values, size, lowest, kInfinity - lowest, first, out, selected, stream_);
  }

  // Radix sort of all (key, position) pairs, then of the first k positions.
  void topk(const float* values, std::int64_t size, std::int64_t k, std::int64_t first, std::int64_t* out) {
    std::uint32_t* const keys = keys_.at_least(size);
    std::uint32_t* const positions = positions_.at_least(size);
    std::uint32_t* const sorted_keys = sorted_keys_.at_least(size);
    std::uint32_t* const sorted = sorted_positions_.at_least(size);
    keys_and_positions(values, size, keys, positions, stream_);
    std::size_t bytes = 0, more = 0;
    sort_pairs(nullptr, bytes, keys, sorted_keys, positions, sorted, size, stream_);
    sort_keys(nullptr, more, sorted, positions, k, stream_);
    void* const space = temporary_.at_least(static_cast<std::int64_t>(std::max(bytes, more)) + 1);
    sort_pairs(space, bytes, keys, sorted_keys, positions, sorted, size, stream_);
    sort_keys(space, more, sorted, positions, k, stream_);
    widen(positions, k, first, out, stream_);
  }

  // Of indices below 2^32, one list after the other. To selected()[0] and out.
  void unite(const std::int64_t* joined, std::int64_t size, std::int64_t* out) {
    std::uint32_t* const keys = keys_.at_least(size);
    std::uint32_t* const sorted = sorted_keys_.at_least(size);
    std::int64_t* const left = number_.at_least(1);
    narrow(joined, size, keys, stream_);
    std::size_t bytes = 0, more = 0;
    sort_keys(nullptr, bytes, keys, sorted, size, stream_);
    unique(nullptr, more, sorted, keys, left, size, stream_);
    void* const space = temporary_.at_least(static_cast<std::int64_t>(std::max(bytes, more)) + 1);
    sort_keys(space, bytes, keys, sorted, size, stream_);
    unique(space, more, sorted, keys, left, size, stream_);
    widen(keys, size, 0, out, stream_);  // what is past the union is never read
  }

  // After unite: how often each member of the union is in the lists.
  void run_lengths(std::int64_t size, std::int32_t* multiplicities) {
    cuda::run_lengths(sorted_keys_.data(), size, keys_.data(), number_.data(), multiplicities, stream_);
  }

  // The same by a bitmap, of indices in [0, universe); state() has the size of the union. `multiplicities` may be nullptr.
  void unite_bitmap(const std::int64_t* joined, std::int64_t size, std::int64_t universe, std::int64_t* out, std::int32_t* multiplicities) {
    const long long words = unite::words_of(universe), chunks = unite::chunks_of(universe);
    unite::Space space;
    space.words = words_.at_least(words);
    space.in_chunk = greater_.at_least(chunks);
    space.before_chunk = offsets_.at_least(chunks);
    space.scratch = ties_.at_least(chunks);
    space.before_word = multiplicities != nullptr ? before_words_.at_least(words) : nullptr;
    space.state = state_.at_least(1);
    space.bins = bins_.at_least(fused::kBins);
    cuda::unite_bitmap(joined, size, universe, space, out, multiplicities, stream_);
  }

  // Sums of squares by segment, as a user of CUB would.
  void segment_sums(const float* values, const std::int64_t* offsets, std::int64_t segments, double* sums) {
    std::size_t bytes = 0;
    cuda::segment_sums(nullptr, bytes, values, offsets, segments, sums, stream_);
    void* const space = temporary_.at_least(static_cast<std::int64_t>(bytes) + 1);
    cuda::segment_sums(space, bytes, values, offsets, segments, sums, stream_);
  }

  // CUB's DeviceTopK on its own, where there is one: positions in no order.
  void device_topk(const float* values, std::int64_t size, std::int64_t k) {
    std::uint32_t* const keys = sorted_keys_.at_least(k);
    std::uint32_t* const positions = sorted_positions_.at_least(k);
    std::size_t bytes = 0;
    cuda::device_topk(nullptr, bytes, values, size, k, keys, positions, stream_);
    void* const space = temporary_.at_least(static_cast<std::int64_t>(bytes) + 1);
    cuda::device_topk(space, bytes, values, size, k, keys, positions, stream_);
  }

  // The fused kernels. They are queued, state() tells afterwards.
  void fused_threshold(const fused::Task& task, std::uint32_t lowest) {
    cuda::fused_threshold(task, lowest, fused_space(task.size, static_cast<unsigned long long>(task.size)), stream_);
  }
  // Only where a sample helps; selects nothing when given_up says so.
  void fused_sampled(const fused::Task& task, long long k) {
    cuda::fused_sampled(task, k, fused_space(task.size, fused::sampled_capacity(task.size, k)), stream_);
  }
  void fused_radix(const fused::Task& task, long long k) {
    cuda::fused_radix(task, k, fused_space(task.size, static_cast<unsigned long long>(task.size)), stream_);
  }
  void fused_kth(const float* values, long long size, long long k) { cuda::fused_kth(values, size, k, fused_space(size, 1), stream_); }
  const fused::State* state() { return state_.data(); }
  static bool gave_up(const fused::State& state) { return state.failed != 0 || state.candidates > state.capacity; }

  const std::int64_t* selected() { return number_.data(); }

 private:
  fused::Space fused_space(long long size, unsigned long long capacity) {
    const std::int64_t tiles = fused::tiles_of(size);
    fused::Space space;
    space.state = state_.at_least(1);
    space.bins = bins_.at_least(fused::kBins);
    space.values = kept_values_.at_least(static_cast<std::int64_t>(capacity));
    space.positions = kept_positions_.at_least(static_cast<std::int64_t>(capacity));
    space.capacity = capacity;
    space.tiles = tiles_.at_least(tiles);
    space.greater = greater_.at_least(tiles);
    space.equal = equal_.at_least(tiles);
    space.offsets = offsets_.at_least(tiles);
    space.ties = ties_.at_least(tiles);
    return space;
  }

  cudaStream_t stream_;
  Buffer<std::uint32_t> keys_, positions_, sorted_keys_, sorted_positions_;
  Buffer<std::int64_t> number_;
  Buffer<unsigned char> temporary_;
  Buffer<fused::State> state_;
  Buffer<std::uint32_t> bins_, kept_positions_, greater_, equal_, words_, before_words_;
  Buffer<float> kept_values_;
  Buffer<fused::TileRecord> tiles_;
  Buffer<unsigned long long> offsets_, ties_;
};

// Turns device errors into the project's, one call at a time.
template <typename Work>
auto guarded(std::mutex& mutex, const Work& work) {
  const std::lock_guard lock(mutex);
  try {
    return work();
  } catch (const DeviceError& error) {
    throw RunError(error.what());
  }
}

class CudaKernels final : public Kernels {
 public:
  explicit CudaKernels(bool is_fused) : is_fused_(is_fused) {}
  std::string name() const override { return is_fused_ ? "cuda.fused" : "cuda.cub"; }

  void accumulate(std::span<const float> gradient, float scale, std::span<float> accumulator) const override {
    if (gradient.size() != accumulator.size()) throw std::invalid_argument("accumulate: sizes differ");
    if (gradient.empty()) return;
    guarded(mutex_, [&] {
      const auto size = static_cast<std::int64_t>(gradient.size());
      const float* const g = other_.upload(gradient.data(), size, stream_);
      float* const a = values_.upload(accumulator.data(), size, stream_);
      cuda::accumulate(g, scale, a, size, stream_);
      download(accumulator.data(), a, size, stream_);
    });
  }

  void threshold_select(std::span<const float> values, float threshold, Index first, std::vector<Index>& indices) const override {
    std::uint32_t lowest = 0;
    if (values.empty() || !threshold_key(threshold, lowest)) return;
    if (is_fused_) {
      guarded(mutex_, [&] {
        const fused::Task task = task_of({}, 1, values, first, std::ssize(values));
        operations_.fused_threshold(task, lowest);
        append_fused(indices);
      });
      return;
    }
    guarded(mutex_, [&] {
      const auto size = static_cast<std::int64_t>(values.size());
      const float* const v = values_.upload(values.data(), size, stream_);
      std::int64_t* const out = indices_.at_least(size);
      operations_.threshold_select(v, size, lowest, first, out);
      append(out, indices);
    });
  }

  Index count(std::span<const float> values, float threshold) const override {
    std::uint32_t lowest = 0;
    if (values.empty() || !threshold_key(threshold, lowest)) return 0;
    return guarded(mutex_, [&] {
      const auto size = static_cast<std::int64_t>(values.size());
      const float* const v = values_.upload(values.data(), size, stream_);
      unsigned long long* const result = counter_.at_least(1);
      cuda::count(v, size, lowest, kInfinity - lowest, result, stream_);
      unsigned long long found = 0;
      download(&found, result, 1, stream_);
      return static_cast<Index>(found);
    });
  }

  void topk(std::span<const float> values, Index k, Index first, std::vector<Index>& indices, TopkMethod method) const override {
    const auto size = static_cast<std::int64_t>(values.size());
    k = std::min(k, size);
    if (k <= 0) return;
    if (size > std::numeric_limits<std::uint32_t>::max()) throw RunError("CUDA kernels: top-k of more than 2^32 - 1 elements");
    if (k < size && (method == TopkMethod::sampled || method == TopkMethod::radix || (is_fused_ && method == TopkMethod::automatic))) {
      guarded(mutex_, [&] {
        const fused::Task task = task_of({}, 1, values, first, k);
        fused_topk(task, k, method != TopkMethod::radix, indices);
      });
      return;
    }
    guarded(mutex_, [&] {
      const float* const v = values_.upload(values.data(), size, stream_);
      std::int64_t* const out = indices_.at_least(k);
      operations_.topk(v, size, k, first, out);
      const std::size_t old = indices.size();
      indices.resize(old + static_cast<std::size_t>(k));
      download(indices.data() + old, out, k, stream_);
    });
  }

  void accumulate_select(std::span<const float> gradient, float scale, std::span<float> accumulator, float threshold, Index first,
                         std::vector<Index>& indices) const override {
    std::uint32_t lowest = 0;
    if (!is_fused_ || gradient.empty() || gradient.size() != accumulator.size() || !threshold_key(threshold, lowest))
      return Kernels::accumulate_select(gradient, scale, accumulator, threshold, first, indices);
    guarded(mutex_, [&] {
      const fused::Task task = task_of(gradient, scale, accumulator, first, std::ssize(gradient));
      operations_.fused_threshold(task, lowest);
      append_fused(indices);
      download(accumulator.data(), values_.data(), std::ssize(accumulator), stream_);
    });
  }

  void accumulate_topk(std::span<const float> gradient, float scale, std::span<float> accumulator, Index k, Index first,
                       std::vector<Index>& indices) const override {
    const Index size = std::ssize(gradient);
    if (!is_fused_ || gradient.size() != accumulator.size() || !fused::sample_helps(size, k))
      return Kernels::accumulate_topk(gradient, scale, accumulator, k, first, indices);
    guarded(mutex_, [&] {
      const fused::Task task = task_of(gradient, scale, accumulator, first, k);
      fused_topk(task, k, true, indices);
      download(accumulator.data(), values_.data(), size, stream_);
    });
  }

  float sampled_threshold(std::span<const float> values, Index start, Index stride, Index samples, Index rank) const override {
    if (start < 0 || stride < 1 || samples < 1 || rank < 1 || rank > samples || start >= std::ssize(values) ||
        (std::ssize(values) - 1 - start) / stride < samples - 1)
      throw std::invalid_argument("sampled_threshold: a sample outside the values, or a rank outside the sample");
    return guarded(mutex_, [&] {
      const float* const v = values_.upload(values.data(), std::ssize(values), stream_);
      float* const taken = other_.at_least(samples);
      strided(v, start, stride, samples, taken, stream_);
      operations_.fused_kth(taken, samples, rank);
      fused::State state;
      download(&state, operations_.state(), 1, stream_);
      return std::bit_cast<float>(state.prefix);
    });
  }

  void scatter_add(std::span<float> values, std::span<const Index> indices, Index first, std::span<const float> in) const override {
    if (indices.size() != in.size()) throw std::invalid_argument("scatter_add: sizes differ");
    if (indices.empty()) return;
    guarded(mutex_, [&] {
      float* const v = values_.upload(values.data(), std::ssize(values), stream_);
      const std::int64_t* const places = indices_.upload(indices.data(), std::ssize(indices), stream_);
      const float* const added = other_.upload(in.data(), std::ssize(in), stream_);
      cuda::scatter_add(v, places, std::ssize(indices), first, added, stream_);
      download(values.data(), v, std::ssize(values), stream_);
    });
  }

  Moments moments(std::span<const float> values) const override {
    Moments result;
    result.elements = std::ssize(values);
    if (values.empty()) return result;
    return guarded(mutex_, [&] {
      const std::int64_t tiles = (std::ssize(values) + kSumTile - 1) / kSumTile;
      const float* const v = values_.upload(values.data(), std::ssize(values), stream_);
      double* const sums = sums_.at_least(4 * tiles);
      unsigned long long* const zeros = counter_.at_least(tiles);
      cuda::moments(v, std::ssize(values), sums, zeros, stream_);
      std::vector<double> parts(static_cast<std::size_t>(4 * tiles));
      std::vector<unsigned long long> none(static_cast<std::size_t>(tiles));
      download(parts.data(), sums, 4 * tiles, stream_);
      download(none.data(), zeros, tiles, stream_);
      for (std::size_t tile = 0; tile < none.size(); ++tile) {
        result.zeros += static_cast<Index>(none[tile]);
        result.sum += parts[4 * tile];
        result.sum_magnitudes += parts[4 * tile + 1];
        result.sum_squares += parts[4 * tile + 2];
        result.sum_log2 += parts[4 * tile + 3];
      }
      return result;
    });
  }

  void block_maxima(std::span<const float> values, Index block, std::span<float> out) const override {
    if (block < 1 || std::ssize(out) != (std::ssize(values) + block - 1) / block) throw std::invalid_argument("block_maxima: sizes differ");
    if (values.empty()) return;
    guarded(mutex_, [&] {
      const float* const v = values_.upload(values.data(), std::ssize(values), stream_);
      float* const maxima = other_.at_least(std::ssize(out));
      cuda::block_maxima(v, std::ssize(values), block, maxima, stream_);
      download(out.data(), maxima, std::ssize(out), stream_);
    });
  }

  void zero(std::span<float> values, std::span<const Index> indices, Index first) const override {
    if (indices.empty()) return;
    guarded(mutex_, [&] {
      const auto size = static_cast<std::int64_t>(values.size()), count = static_cast<std::int64_t>(indices.size());
      float* const v = values_.upload(values.data(), size, stream_);
      const std::int64_t* const places = indices_.upload(indices.data(), count, stream_);
      cuda::zero(v, places, count, first, stream_);
      download(values.data(), v, size, stream_);
    });
  }

  void gather(std::span<const float> values, std::span<const Index> indices, Index first, std::span<float> out) const override {
    if (indices.size() != out.size()) throw std::invalid_argument("gather: sizes differ");
    if (indices.empty()) return;
    guarded(mutex_, [&] {
      const auto count = static_cast<std::int64_t>(indices.size());
      const float* const v = values_.upload(values.data(), static_cast<std::int64_t>(values.size()), stream_);
      const std::int64_t* const places = indices_.upload(indices.data(), count, stream_);
      float* const result = other_.at_least(count);
      cuda::gather(v, places, count, first, result, stream_);
      download(out.data(), result, count, stream_);
    });
  }

  double l2_norm(std::span<const float> values) const override {
    if (values.empty()) return 0;
    return guarded(mutex_, [&] {
      const auto size = static_cast<std::int64_t>(values.size());
      const std::int64_t tiles = (size + kSumTile - 1) / kSumTile;
      const float* const v = values_.upload(values.data(), size, stream_);
      double* const sums = sums_.at_least(tiles);
      sum_squares(v, size, sums, stream_);
      std::vector<double> parts(static_cast<std::size_t>(tiles));
      download(parts.data(), sums, tiles, stream_);
      double total = 0;
      for (const double part : parts) total += part;
      return std::sqrt(total);
    });
  }

  std::vector<Index> unite(std::span<const std::vector<Index>> lists, Index size) const override {
    return united(lists, size, nullptr, is_fused_ ? UniteMethod::bitmap : UniteMethod::sort);
  }

  std::vector<Index> unite_counted(std::span<const std::vector<Index>> lists, Index size, std::vector<std::int32_t>& multiplicities,
                                   UniteMethod method) const override {
    if (method == UniteMethod::automatic) method = is_fused_ ? UniteMethod::bitmap : UniteMethod::sort;
    return united(lists, size, &multiplicities, method);
  }

  void cast_half(std::span<float> values) const override {
    if (values.empty()) return;
    guarded(mutex_, [&] {
      const auto size = static_cast<std::int64_t>(values.size());
      float* const v = values_.upload(values.data(), size, stream_);
      cuda::cast_half(v, size, stream_);
      download(values.data(), v, size, stream_);
    });
  }

 private:
  // By sorting, or (bitmap, and merge, which has no place on a GPU) by a bitmap.
  std::vector<Index> united(std::span<const std::vector<Index>> lists, Index size, std::vector<std::int32_t>* multiplicities,
                            UniteMethod method) const {
    if (size > std::numeric_limits<std::uint32_t>::max()) throw RunError("CUDA kernels: unite of more than 2^32 - 1 elements");
    std::vector<Index> joined;
    for (const std::vector<Index>& list : lists) {
      if (list.empty()) continue;
      if (list.front() < 0 || list.back() >= size) throw std::invalid_argument("unite: an index outside [0, size)");
      joined.insert(joined.end(), list.begin(), list.end());
    }
    std::vector<Index> result;
    if (multiplicities != nullptr) multiplicities->clear();
    if (joined.empty()) return result;
    guarded(mutex_, [&] {
      const std::int64_t count = std::ssize(joined);
      std::int64_t* const places = indices_.upload(joined.data(), count, stream_);
      std::int32_t* const counts = multiplicities != nullptr ? multiplicities_.at_least(count) : nullptr;
      if (method == UniteMethod::sort) {
        operations_.unite(places, count, places);  // the lists have been narrowed into other memory when they are overwritten
        if (counts != nullptr) operations_.run_lengths(count, counts);
        append(places, result);
      } else {
        std::int64_t* const out = united_.at_least(count);
        operations_.unite_bitmap(places, count, size, out, counts);
        fused::State state;
        download(&state, operations_.state(), 1, stream_);
        result.resize(static_cast<std::size_t>(state.selected));
        download(result.data(), static_cast<const std::int64_t*>(out), std::ssize(result), stream_);
      }
      if (multiplicities == nullptr) return;
      multiplicities->resize(result.size());
      download(multiplicities->data(), static_cast<const std::int32_t*>(counts), std::ssize(result), stream_);
    });
    return result;
  }

  void append(const std::int64_t* from, std::vector<Index>& indices) const {
    std::int64_t found = 0;
    download(&found, operations_.selected(), 1, stream_);
    const std::size_t old = indices.size();
    indices.resize(old + static_cast<std::size_t>(found));
    if (found > 0) download(indices.data() + old, from, found, stream_);
  }

  // Uploads; room for `most` indices.
  fused::Task task_of(std::span<const float> gradient, float scale, std::span<const float> values, Index first, Index most) const {
    if (std::ssize(values) > std::numeric_limits<std::uint32_t>::max())
      throw RunError("CUDA kernels: selection from more than 2^32 - 1 elements");
    fused::Task task;
    task.gradient = gradient.empty() ? nullptr : other_.upload(gradient.data(), std::ssize(gradient), stream_);
    task.scale = scale;
    task.values = values_.upload(values.data(), std::ssize(values), stream_);
    task.size = std::ssize(values);
    task.first = first;
    task.out = indices_.at_least(most);
    return task;
  }

  // False when nothing was selected.
  bool append_fused(std::vector<Index>& indices) const {
    fused::State state;
    download(&state, operations_.state(), 1, stream_);
    if (Operations::gave_up(state)) return false;
    const std::size_t old = indices.size();
    const auto found = static_cast<std::int64_t>(state.selected);
    indices.resize(old + static_cast<std::size_t>(found));
    if (found > 0) download(indices.data() + old, static_cast<const std::int64_t*>(indices_.data()), found, stream_);
    return true;
  }

  void fused_topk(fused::Task task, Index k, bool by_sample, std::vector<Index>& indices) const {
    if (by_sample && fused::sample_helps(task.size, k)) {
      operations_.fused_sampled(task, k);
      if (append_fused(indices)) return;
      task.gradient = nullptr;  // has been added
    }
    operations_.fused_radix(task, k);
    if (!append_fused(indices)) throw DeviceError("CUDA kernels: top-k found fewer than k values");
  }

  bool is_fused_;
  mutable std::mutex mutex_;
  Stream stream_;
  mutable Operations operations_{stream_};
  mutable Buffer<float> values_, other_;
  mutable Buffer<std::int64_t> indices_, united_;
  mutable Buffer<std::int32_t> multiplicities_;
  mutable Buffer<double> sums_;
  mutable Buffer<unsigned long long> counter_;
};

class CudaDevice final : public MeasuredDevice {
 public:
  explicit CudaDevice(std::int64_t max_elements) : host_(measured_values(max_elements, 1)) {
    check(cudaGetDeviceProperties(&properties_, 0), "device properties");
    values_.upload(host_.data(), max_elements, stream_);
    const std::vector<float> gradient = measured_values(max_elements, 2);
    gradient_.upload(gradient.data(), max_elements, stream_);
    accumulator_.upload(gradient.data(), max_elements, stream_);
    out_.at_least(max_elements);
    gathered_.at_least(max_elements);
    sums_.at_least(std::max(4 * ((max_elements + kSumTile - 1) / kSumTile), kSegments));
    zeros_.at_least((max_elements + kSumTile - 1) / kSumTile);
    segments_.at_least(kSegments + 1);
    counter_.at_least(1);
    check(cudaStreamSynchronize(stream_), "copy to the device");
    check(cudaEventCreate(&start_), "event");
    check(cudaEventCreate(&stop_), "event");
    void* pinned = nullptr;
    check(cudaMallocHost(&pinned, sizeof(std::int64_t)), "pinned memory");
    number_ = static_cast<std::int64_t*>(pinned);
    check(cudaMallocHost(&pinned, sizeof(fused::State)), "pinned memory");
    state_ = static_cast<fused::State*>(pinned);
  }
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;
  ~CudaDevice() override {
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
    cudaFreeHost(number_);
    cudaFreeHost(state_);
  }

  std::string backend() const override { return "cuda"; }
  std::string description() const override {
    return std::string(properties_.name) + " (compute capability " + std::to_string(properties_.major) + "." +
           std::to_string(properties_.minor) + ")";
  }
  std::string short_name() const override {
    std::string slug = "cuda-";
    for (const char letter : std::string(properties_.name)) {
      const int lower = std::tolower(static_cast<unsigned char>(letter));
      slug += std::isalnum(lower) != 0 ? static_cast<char>(lower) : '-';
    }
    return slug;
  }
  std::string method() const override {
    return "measured by sparscale: time between two CUDA events on one stream, divided by the operations between them; data stay on the "
           "device; buffers reused, so data that fit the second-level cache are read from it (warm); threshold_select, count and unite "
           "include the copy of the count to the host; topk: the fastest of its variants here; topk.sampled, topk.radix, threshold_select, "
           "accumulate_select, accumulate_topk: kernels of fused.cuh; topk.sort: CUB radix sort of (key, position) pairs; topk.cub: CUB "
           "DeviceTopK, unordered; threshold_select.cub: DeviceSelect; segment_norms.cub: DeviceSegmentedReduce; unite: radix sort and "
           "unique; unite.bitmap: kernels of unite.cuh; copy: device to device";
  }
  Json context() const override {
    int driver = 0, runtime = 0, clock_kHz = 0, memory_clock_kHz = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    cudaDeviceGetAttribute(&clock_kHz, cudaDevAttrClockRate, 0);
    cudaDeviceGetAttribute(&memory_clock_kHz, cudaDevAttrMemoryClockRate, 0);
    return {{"gpu", properties_.name},
            {"compute_capability", std::to_string(properties_.major) + "." + std::to_string(properties_.minor)},
            {"multiprocessors", properties_.multiProcessorCount},
            {"memory_bytes", properties_.totalGlobalMem},
            {"second_level_cache_bytes", properties_.l2CacheSize},
            {"clock_MHz", clock_kHz / 1000},
            {"memory_clock_MHz", memory_clock_kHz / 1000},
            {"driver_cuda_version", driver},
            {"runtime_cuda_version", runtime},
            {"cache_state", "warm"}};
  }
  double sample_s() const override { return 2e-3; }

  std::vector<MeasuredCase> cases(std::int64_t elements, const std::vector<double>& densities) override {
    std::vector<MeasuredCase> points;
    const auto add = [&](const char* operation, std::int64_t selected, std::int64_t bytes, auto work) {
      points.push_back({operation, elements, selected, bytes, [this, work](std::int64_t repeats) { return timed(repeats, work); }});
    };
    const std::int64_t n = elements;
    std::vector<std::int64_t> borders;
    for (std::int64_t s = 0; s <= kSegments; ++s) borders.push_back(s * n / kSegments);
    segments_.upload(borders.data(), kSegments + 1, stream_);
    check(cudaStreamSynchronize(stream_), "copy to the device");
    add("accumulate", n, 12 * n, [this, n] { accumulate(gradient_.data(), 1e-6F, accumulator_.data(), n, stream_); });
    add("cast_half", n, 8 * n, [this, n] { cast_half(accumulator_.data(), n, stream_); });
    add("copy", n, 8 * n, [this, n] {
      check(
          cudaMemcpyAsync(gathered_.data(), values_.data(), static_cast<std::size_t>(n) * sizeof(float), cudaMemcpyDeviceToDevice, stream_),
          "copy");
    });
    add("moments", n, 4 * n, [this, n] { moments(values_.data(), n, sums_.data(), zeros_.data(), stream_); });
    add("block_maxima", n, 4 * n + n / 64, [this, n] { block_maxima(values_.data(), n, 256, gathered_.data(), stream_); });
    add("segment_norms.cub", n, 4 * n, [this, n] { operations_.segment_sums(values_.data(), segments_.data(), kSegments, sums_.data()); });
    add("l2_norm", n, 4 * n, [this, n] { sum_squares(values_.data(), n, sums_.data(), stream_); });
    add("count", n, 4 * n, [this, n] {
      count(values_.data(), n, std::bit_cast<std::uint32_t>(3.0F), kInfinity - std::bit_cast<std::uint32_t>(3.0F), counter_.data(),
            stream_);
      read_count(counter_.data());
    });

    std::vector<std::int64_t> chosen;
    for (const double density : densities) chosen.push_back(std::llround(density * static_cast<double>(n)));
    if (densities.front() == 0) {
      chosen.push_back(1);
      chosen.push_back(std::max<std::int64_t>(n - 1, 1));
    }
    std::sort(chosen.begin(), chosen.end());
    chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
    const std::span<const float> host(host_.data(), static_cast<std::size_t>(n));
    std::vector<Index> picked;
    std::int64_t last_selected = -1;
    for (const std::int64_t k : chosen) {
      float threshold = std::numeric_limits<float>::infinity();
      if (k > 0) {
        picked.clear();
        cpu_kernels().topk(host, k, 0, picked);
        for (const Index index : picked) threshold = std::min(threshold, std::fabs(host[static_cast<std::size_t>(index)]));
        add_topk(add, n, k);
      }
      const std::int64_t selected = cpu_kernels().count(host, threshold);
      if (selected == last_selected) continue;
      last_selected = selected;
      const std::uint32_t lowest = std::bit_cast<std::uint32_t>(threshold);
      for (const bool accumulating : {false, true})
        add(accumulating ? "accumulate_select" : "threshold_select", selected, (accumulating ? 12 : 4) * n + 8 * selected,
            [this, n, lowest, accumulating] {
              operations_.fused_threshold(task_of(n, accumulating), lowest);
              read_state();
            });
      add("threshold_select.cub", selected, 4 * n + 8 * selected, [this, n, lowest] {
        operations_.threshold_select(values_.data(), n, lowest, 0, out_.data());
        read_count(operations_.selected());
      });
    }

    const auto reach = std::min<std::int64_t>(static_cast<std::int64_t>(host_.size()), 100 * n);
    auto scattered = measured_lists(n, n, reach);
    std::vector<Index> places = scattered.front();
    places.insert(places.end(), scattered.back().begin(), scattered.back().end());
    std::sort(places.begin(), places.end());
    places_.upload(places.data(), n, stream_);
    add("scatter_add", n, 20 * n, [this, n] { scatter_add(accumulator_.data(), places_.data(), n, 0, gathered_.data(), stream_); });
    add("zero", n, 12 * n, [this, n] { zero(accumulator_.data(), places_.data(), n, 0, stream_); });
    add("gather", n, 16 * n, [this, n] { gather(accumulator_.data(), places_.data(), n, 0, gathered_.data(), stream_); });

    std::int64_t last_union = -1;
    for (const double part : densities.front() == 0 ? std::vector<double>{1.0 / 4096, 1.0 / 256, 1.0 / 16, 0.25, 0.5, 0.8, 1}
                                                    : std::vector<double>{0.02, 0.4, 0.9}) {
      const std::int64_t wanted = std::max<std::int64_t>(1, std::llround(part * static_cast<double>(n)));
      const std::int64_t universe = measured_universe(n);
      const auto lists = measured_lists(n, wanted, universe);
      const auto united = static_cast<std::int64_t>(cpu_kernels().unite(lists, universe).size());
      if (united <= last_union) continue;
      last_union = united;
      std::vector<Index> joined;
      for (const auto& list : lists) joined.insert(joined.end(), list.begin(), list.end());
      auto on_device = std::make_shared<Buffer<std::int64_t>>();
      on_device->upload(joined.data(), n, stream_);
      check(cudaStreamSynchronize(stream_), "copy to the device");
      add("unite", united, 8 * n + 8 * united, [this, n, on_device] {
        operations_.unite(on_device->data(), n, out_.data());
        read_count(operations_.selected());
      });
      add("unite.bitmap", united, 8 * n + 8 * united, [this, n, universe, on_device] {
        operations_.unite_bitmap(on_device->data(), n, universe, out_.data(), nullptr);
        read_state();
      });
    }
    return points;
  }

  void set_data(const MeasuredData& data) override {
    try {
      const std::int64_t size = std::ssize(data.values);
      values_.upload(data.values.data(), size, stream_);
      gradient_.upload(data.values.data(), size, stream_);
      accumulator_.upload(data.values.data(), size, stream_);
      scale_ = 1e-9F;  // adds so little that a sum stays what it is, however often
      std::vector<Index> joined;
      for (const auto& list : data.lists) joined.insert(joined.end(), list.begin(), list.end());
      joined_.upload(joined.data(), std::ssize(joined), stream_);
      joined_size_ = std::ssize(joined);
      out_.at_least(std::max(size, joined_size_));
      gathered_.at_least(size);
      const std::int64_t tiles = (size + kSumTile - 1) / kSumTile;
      sums_.at_least(4 * tiles);
      zeros_.at_least(tiles);
      check(cudaStreamSynchronize(stream_), "copy to the device");
    } catch (const DeviceError& error) {
      throw RunError(error.what());
    }
  }

  std::function<MeasuredSample(std::int64_t)> on_data(const std::string& operation, std::int64_t elements, std::int64_t selected,
                                                      float threshold, std::span<const std::int64_t> places) override {
    const std::int64_t n = elements, k = selected;
    const auto make = [this](auto work) { return [this, work](std::int64_t repeats) { return timed(repeats, work); }; };
    const std::uint32_t lowest = std::bit_cast<std::uint32_t>(threshold) & 0x7fffffffU;
    try {
      if (!places.empty()) {
        places_.upload(places.data(), std::ssize(places), stream_);
        check(cudaStreamSynchronize(stream_), "copy to the device");
      }
      if (operation == "accumulate") return make([this, n] { accumulate(gradient_.data(), scale_, accumulator_.data(), n, stream_); });
      if (operation == "threshold_select" || operation == "accumulate_select") {
        const bool accumulating = operation == "accumulate_select";
        return make([this, n, lowest, accumulating] {
          operations_.fused_threshold(task_of(n, accumulating), lowest);
          read_state();
        });
      }
      if (operation == "topk" || operation == "accumulate_topk") {
        const bool accumulating = operation == "accumulate_topk";
        if (by_sample_works(n, k)) return make([this, n, k, accumulating] { by_sample(n, k, accumulating); });
        return make([this, n, k, accumulating] {
          if (accumulating) accumulate(gradient_.data(), scale_, accumulator_.data(), n, stream_);
          by_radix(n, k);
        });
      }
      if (operation == "count")
        return make([this, n, lowest] {
          count(values_.data(), n, lowest, kInfinity - lowest, counter_.data(), stream_);
          read_count(counter_.data());
        });
      if (operation == "l2_norm") return make([this, n] { sum_squares(values_.data(), n, sums_.data(), stream_); });
      if (operation == "moments") return make([this, n] { moments(values_.data(), n, sums_.data(), zeros_.data(), stream_); });
      if (operation == "block_maxima") return make([this, n] { block_maxima(values_.data(), n, 256, gathered_.data(), stream_); });
      if (operation == "cast_half") return make([this, n] { cast_half(accumulator_.data(), n, stream_); });
      if (operation == "zero") return make([this, n] { zero(accumulator_.data(), places_.data(), n, 0, stream_); });
      if (operation == "gather") return make([this, n] { gather(values_.data(), places_.data(), n, 0, gathered_.data(), stream_); });
      if (operation == "scatter_add")
        return make([this, n] { scatter_add(accumulator_.data(), places_.data(), n, 0, gathered_.data(), stream_); });
      if (operation == "random_indices") {
        out_.at_least(n);
        return make([this, n] { random_indices(make_permutation(1, static_cast<std::uint64_t>(100 * n)), n, out_.data(), stream_); });
      }
      if (operation == "unite" && joined_size_ > 0)
        return make([this] {
          operations_.unite(joined_.data(), joined_size_, out_.data());
          read_count(operations_.selected());
        });
    } catch (const DeviceError& error) {
      throw RunError(error.what());
    }
    return nullptr;
  }

 private:
  static constexpr std::int64_t kSegments = 161;  // as many as ResNet-50 has tensors

  // The accumulator changes by 1e-6 of a gradient each time, so the selection stays about the same.
  fused::Task task_of(std::int64_t n, bool accumulating) {
    fused::Task task;
    task.gradient = accumulating ? gradient_.data() : nullptr;
    task.scale = scale_;
    task.values = accumulating ? accumulator_.data() : values_.data();
    task.size = n;
    task.out = out_.data();
    return task;
  }
  void read_count(const void* from) {
    check(cudaMemcpyAsync(number_, from, sizeof(std::int64_t), cudaMemcpyDeviceToHost, stream_), "copy of a count");
  }
  void read_state() {
    check(cudaMemcpyAsync(state_, operations_.state(), sizeof *state_, cudaMemcpyDeviceToHost, stream_), "copy of a state");
  }

  void by_sample(std::int64_t n, std::int64_t k, bool accumulating) {
    operations_.fused_sampled(task_of(n, accumulating), k);
    read_state();
  }
  void by_radix(std::int64_t n, std::int64_t k) {
    operations_.fused_radix(task_of(n, false), k);
    read_state();
  }
  // Whether the sample is of use with these values.
  bool by_sample_works(std::int64_t n, std::int64_t k) {
    if (!fused::sample_helps(n, k)) return false;
    by_sample(n, k, false);
    check(cudaStreamSynchronize(stream_), "kernel");
    return !Operations::gave_up(*state_);
  }

  // Every variant of top-k, and `topk` itself: by sample where that works on these values.
  template <typename Add>
  void add_topk(const Add& add, std::int64_t n, std::int64_t k) {
    const std::int64_t bytes = 4 * n + 8 * k;
    const auto radix = [this, n, k] { by_radix(n, k); };
    if (by_sample_works(n, k)) {
      add("topk", k, bytes, [this, n, k] { by_sample(n, k, false); });
      add("topk.sampled", k, bytes, [this, n, k] { by_sample(n, k, false); });
      add("accumulate_topk", k, 12 * n + 8 * k, [this, n, k] { by_sample(n, k, true); });
    } else {
      add("topk", k, bytes, radix);
      add("topk.sampled", k, bytes, radix);
      add("accumulate_topk", k, 12 * n + 8 * k, [this, n, k] {
        accumulate(gradient_.data(), scale_, accumulator_.data(), n, stream_);
        by_radix(n, k);
      });
    }
    add("topk.radix", k, bytes, radix);
    add("topk.sort", k, bytes, [this, n, k] { operations_.topk(values_.data(), n, k, 0, out_.data()); });
    if (has_device_topk()) add("topk.cub", k, bytes, [this, n, k] { operations_.device_topk(values_.data(), n, k); });
  }

  template <typename Work>
  MeasuredSample timed(std::int64_t repeats, const Work& work) {
    try {
      check(cudaEventRecord(start_, stream_), "event");
      for (std::int64_t i = 0; i < repeats; ++i) work();
      check(cudaEventRecord(stop_, stream_), "event");
      check(cudaEventSynchronize(stop_), "kernel");
      float elapsed_ms = 0;
      check(cudaEventElapsedTime(&elapsed_ms, start_, stop_), "event");
      return {1e-3 * static_cast<double>(elapsed_ms), true};
    } catch (const DeviceError& error) {
      throw RunError(error.what());
    }
  }

  cudaDeviceProp properties_{};
  std::vector<float> host_;
  Stream stream_;
  Operations operations_{stream_};
  Buffer<float> values_, gradient_, accumulator_, gathered_;
  Buffer<std::int64_t> out_, places_, segments_, joined_;
  std::int64_t joined_size_ = 0;
  float scale_ = 1e-6F;
  Buffer<double> sums_;
  Buffer<unsigned long long> counter_, zeros_;
  fused::State* state_ = nullptr;
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
  std::int64_t* number_ = nullptr;
};

}  // namespace

std::string unavailable() {
  int devices = 0;
  cudaError_t code = cudaGetDeviceCount(&devices);
  if (code == cudaSuccess && devices == 0) return "no GPU";
  if (code == cudaSuccess) code = probe();
  if (code == cudaSuccess) return "";
  static_cast<void>(cudaGetLastError());  // else the next call would report it again
  return cudaGetErrorString(code);
}

const Kernels& kernels(bool fused) {
  if (const std::string reason = unavailable(); !reason.empty()) throw RunError("CUDA kernels: " + reason);
  static const CudaKernels cub(false), own(true);
  return fused ? own : cub;
}

std::vector<Index> random_indices(std::uint64_t key, Index size, Index k) {
  if (const std::string reason = unavailable(); !reason.empty()) throw RunError("CUDA kernels: " + reason);
  if (k < 0 || k > size) throw std::invalid_argument("random_indices: 0 <= k <= size");
  std::vector<Index> indices(static_cast<std::size_t>(k));
  if (k == 0) return indices;
  try {
    const Stream stream;
    Buffer<std::int64_t> out;
    random_indices(make_permutation(key, static_cast<std::uint64_t>(size)), k, out.at_least(k), stream);
    download(indices.data(), static_cast<const std::int64_t*>(out.data()), k, stream);
  } catch (const DeviceError& error) {
    throw RunError(error.what());
  }
  std::sort(indices.begin(), indices.end());
  return indices;
}

std::unique_ptr<MeasuredDevice> measured_device(std::int64_t max_elements) {
  if (const std::string reason = unavailable(); !reason.empty()) throw RunError("CUDA kernels: " + reason);
  try {
    return std::make_unique<CudaDevice>(max_elements);
  } catch (const DeviceError& error) {
    throw RunError(error.what());
  }
}

}  // namespace sparscale::kernels::cuda
