// Gradients and accumulators made in memory, for tests of sparsifiers and replay.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/random.hpp"
#include "sim/replay.hpp"
#include "sim/sparsifier.hpp"

namespace sparscale::test {

using sim::Index;

/// What a wrong input's error says.
inline std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

/// Accumulators that lie in memory as they are.
class MemoryView : public sim::AccumulatorView {
 public:
  explicit MemoryView(std::vector<std::vector<float>> values) : values_(std::move(values)) {}
  std::span<const float> range(std::int64_t worker, Index begin, Index end) const override {
    return std::span<const float>(values_.at(static_cast<std::size_t>(worker)))
        .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  }

 private:
  std::vector<std::vector<float>> values_;
};

/// Gradients from a function that fills the vector of (iteration, worker).
class MadeGradients : public traces::GradientSource {
 public:
  using Fill = std::function<void(std::int64_t iteration, std::int64_t worker, std::vector<float>& gradient)>;
  MadeGradients(std::int64_t workers, std::int64_t gradients, Fill fill)
      : workers_(workers), buffer_(static_cast<std::size_t>(gradients)), fill_(std::move(fill)) {}
  std::int64_t workers() const override { return workers_; }
  std::int64_t gradients() const override { return std::ssize(buffer_); }
  std::span<const float> gradient(std::int64_t iteration, std::int64_t worker) override {
    fill_(iteration, worker, buffer_);
    return buffer_;
  }
  std::int64_t position(std::int64_t iteration) const override { return iteration; }

 private:
  std::int64_t workers_;
  std::vector<float> buffer_;
  Fill fill_;
};

/// Independent standard normal gradients, scaled by `scale` (worker, index).
inline std::unique_ptr<traces::GradientSource> normal_gradients(
    std::int64_t workers, std::int64_t gradients, std::uint64_t seed,
    std::function<double(std::int64_t, std::size_t)> scale = [](std::int64_t, std::size_t) { return 1.0; }) {
  return std::make_unique<MadeGradients>(
      workers, gradients, [=](std::int64_t iteration, std::int64_t worker, std::vector<float>& gradient) {
        Random random(stream_key(seed, "test gradients", {static_cast<std::uint64_t>(iteration), static_cast<std::uint64_t>(worker)}));
        for (std::size_t i = 0; i < gradient.size(); i += 2) {  // Box-Muller, both halves
          const double radius = std::sqrt(-2 * std::log(1 - random.uniform())), angle = 2 * 3.14159265358979323846 * random.uniform();
          gradient[i] = static_cast<float>(radius * std::cos(angle) * scale(worker, i));
          if (i + 1 < gradient.size()) gradient[i + 1] = static_cast<float>(radius * std::sin(angle) * scale(worker, i + 1));
        }
      });
}

/// The same distribution for little: a pool of normal vectors, of which every (iteration, worker) gets one, rotated, each at random.
inline std::unique_ptr<traces::GradientSource> pooled_gradients(
    std::int64_t workers, std::int64_t gradients, std::uint64_t seed, std::size_t vectors = 8,
    std::function<double(std::int64_t, std::size_t)> scale = [](std::int64_t, std::size_t) { return 1.0; }) {
  const auto size = static_cast<std::size_t>(gradients);
  auto pool = std::make_shared<std::vector<std::vector<float>>>();
  const auto made = normal_gradients(static_cast<std::int64_t>(vectors), gradients, seed);
  for (std::size_t i = 0; i < vectors; ++i) {
    const std::span<const float> vector = made->gradient(0, static_cast<std::int64_t>(i));
    pool->emplace_back(vector.begin(), vector.end());
  }
  auto scales = std::make_shared<std::vector<std::vector<float>>>();
  for (std::int64_t worker = 0; worker < workers; ++worker) {
    auto& own = scales->emplace_back();
    for (std::size_t i = 0; i < size; ++i) own.push_back(static_cast<float>(scale(worker, i)));
  }
  return std::make_unique<MadeGradients>(
      workers, gradients, [=](std::int64_t iteration, std::int64_t worker, std::vector<float>& gradient) {
        Random random(stream_key(seed, "pool", {static_cast<std::uint64_t>(iteration), static_cast<std::uint64_t>(worker)}));
        const std::vector<float>& vector = (*pool)[random.below(vectors)];
        const std::vector<float>& factor = (*scales)[static_cast<std::size_t>(worker)];
        const std::size_t shift = random.below(size);
        for (std::size_t i = 0; i < size - shift; ++i) gradient[i] = vector[i + shift] * factor[i];
        for (std::size_t i = size - shift; i < size; ++i) gradient[i] = vector[i + shift - size] * factor[i];
      });
}

inline std::vector<traces::Layer> layers_of_sizes(const std::vector<std::int64_t>& sizes) {
  std::vector<traces::Layer> layers;
  std::int64_t offset = 0;
  for (const std::int64_t size : sizes) {
    layers.push_back({"layer" + std::to_string(layers.size()), {size}, offset, size});
    offset += size;
  }
  return layers;
}

inline sim::ReplayOptions options_of(const std::string& sparsifier, double density, std::int64_t workers,
                                     Json parameters = Json::object()) {
  sim::ReplayOptions options;
  options.sparsifier = sparsifier;
  options.parameters = std::move(parameters);
  options.density = density;
  options.workers = workers;
  return options;
}

/// A sparsifier over accumulators that a test writes down; k = trunc(density N).
class Small {
 public:
  Small(const std::string& name, const Json& parameters, double density, std::int64_t workers,
        const std::vector<std::int64_t>& layer_sizes) {
    shape_.workers = workers;
    shape_.layers = layers_of_sizes(layer_sizes);
    shape_.gradients = shape_.layers.back().offset + shape_.layers.back().size;
    shape_.density = density;
    shape_.target_k = static_cast<Index>(density * static_cast<double>(shape_.gradients));
    const sim::SparsifierInfo& info = sim::find_sparsifier(name);
    sparsifier_ = info.make(shape_, sim::resolve_parameters(info, parameters, "test", "/parameters"));
  }
  sim::Selection select(std::int64_t iteration, std::vector<std::vector<float>> accumulators) {
    return sparsifier_->select(iteration, MemoryView(std::move(accumulators)), kernels::cpu_kernels());
  }
  sim::Sparsifier& sparsifier() { return *sparsifier_; }

 private:
  sim::ReplayShape shape_;
  std::unique_ptr<sim::Sparsifier> sparsifier_;
};

}  // namespace sparscale::test
