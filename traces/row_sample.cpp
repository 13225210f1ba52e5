#include "traces/row_sample.hpp"

#include <algorithm>
#include <cmath>

#include "base/random.hpp"

namespace sparscale::traces {
namespace {

std::int64_t rows_of(const Layer& layer) { return layer.shape.empty() ? 1 : std::max<std::int64_t>(1, layer.shape.front()); }

std::int64_t kept_of(std::int64_t rows, double fraction) {
  return std::clamp<std::int64_t>(std::llround(fraction * static_cast<double>(rows)), 1, rows);
}

}  // namespace

std::int64_t sampled_gradients(const Trace& trace, double fraction) {
  std::int64_t total = 0;
  for (const Layer& layer : trace.info().layers)
    if (layer.size > 0) total += layer.size / rows_of(layer) * kept_of(rows_of(layer), fraction);
  return total;
}

RowSample sample_rows(const Trace& trace, double fraction, std::uint64_t seed) {
  RowSample sample;
  TraceInfo info = trace.info();
  std::vector<Trace::Run> runs;
  std::int64_t next = 0;
  for (Layer& layer : info.layers) {
    const std::int64_t rows = rows_of(layer), from = layer.offset;
    layer.offset = next;
    sample.rows_of_layer.push_back(0);
    if (layer.size == 0) continue;
    const std::int64_t width = layer.size / rows, kept = kept_of(rows, fraction);
    Random random(stream_key(seed, "sampled rows", {static_cast<std::uint64_t>(rows)}));
    std::vector<std::int64_t> order = random_permutation(rows, random);
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
