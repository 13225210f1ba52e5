#include "traces/row_sample.hpp"

#include <algorithm>
#include <cmath>

#include "base/random.hpp"

namespace sparscale::traces {
namespace {

// So many units of every layer at least, where it has them: with fewer, layers would be kept in unlike parts.
constexpr double wanted_units = 64;

// What a layer is sampled by: its rows (first axis), or equal parts of them where they are too few.
struct Units {
  std::int64_t count = 1, width = 1;
};
Units units_of(const Layer& layer, double fraction) {
  const std::int64_t rows = layer.shape.empty() ? 1 : std::max<std::int64_t>(1, layer.shape.front());
  std::int64_t width = layer.size / rows;
  const auto wanted = static_cast<std::int64_t>(wanted_units / fraction);
  if (layer.shape.size() > 1)
    while (width > 1 && layer.size / width < wanted) {
      std::int64_t divisor = 2;
      while (width % divisor != 0) ++divisor;
      width /= divisor;
    }
  return {layer.size / width, width};
}

// Rounded up or down by chance, so that over all layers the part is the wanted one.
std::int64_t kept_of(std::int64_t count, double fraction, std::uint64_t seed, std::size_t layer) {
  const double wanted = fraction * static_cast<double>(count), whole = std::floor(wanted);
  Random random(stream_key(seed, "sampled rows of a layer", {layer}));
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(whole) + (random.uniform() < wanted - whole ? 1 : 0), 1, count);
}

}  // namespace

RowSample sample_rows(const Trace& trace, double fraction, std::uint64_t seed) {
  RowSample sample;
  TraceInfo info = trace.info();
  std::vector<Trace::Run> runs;
  std::int64_t next = 0;
  for (std::size_t l = 0; l < info.layers.size(); ++l) {
    Layer& layer = info.layers[l];
    const std::int64_t from = layer.offset;
    layer.offset = next;
    sample.rows_of_layer.push_back(0);
    if (layer.size == 0) continue;
    const auto [units, width] = units_of(layer, fraction);
    const std::int64_t kept = kept_of(units, fraction, seed, l);
    // Layers with as many rows keep the same ones (a row of an embedding and that of its decoder belong together).
    Random random(stream_key(seed, "sampled rows", {static_cast<std::uint64_t>(units)}));
    std::vector<std::int64_t> order = random_permutation(units, random);
    order.resize(static_cast<std::size_t>(kept));
    std::sort(order.begin(), order.end());
    for (const std::int64_t row : order) {
      sample.row_starts.push_back(next);
      const std::int64_t first = from + row * width;
      if (!runs.empty() && runs.back().to == first)
        runs.back().to += width;
      else
        runs.push_back({first, first + width});
      next += width;
    }
    sample.rows_of_layer.back() = kept;
    if (layer.shape.size() > 1 && layer.shape.front() != units) layer.shape = {units, width};
    if (!layer.shape.empty()) layer.shape.front() = kept;
    layer.size = kept * width;
  }
  sample.row_starts.push_back(next);
  sample.fraction = static_cast<double>(next) / static_cast<double>(trace.gradients());
  info.gradients = next;
  sample.trace = trace.at_runs(std::move(runs), std::move(info));
  return sample;
}

}  // namespace sparscale::traces
