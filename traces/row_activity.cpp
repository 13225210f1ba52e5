#include "traces/row_activity.hpp"

#include <algorithm>
#include <cmath>

namespace sparscale::traces {
namespace {

constexpr std::int64_t least_rows = 16;
constexpr std::int64_t sampled_coordinates = 16384;
constexpr double largest_iid_overlap = 1.1;

std::size_t size(std::int64_t value) { return static_cast<std::size_t>(value); }

}  // namespace

RowActivity find_row_activity(const Trace& trace, std::int64_t workers) {
  RowActivity activity;
  const std::int64_t positions = trace.iterations();
  const std::vector<Layer>& layers = trace.info().layers;
  for (const Layer& layer : layers) {
    activity.group_of.push_back(-1);
    if (layer.shape.size() < 2 || layer.shape.front() < least_rows) continue;
    const std::int64_t rows = layer.shape.front(), width = layer.size / rows;
    std::vector<std::uint8_t> touched(size(positions * workers * rows));
    std::int64_t count = 0;
    for (std::int64_t t = 0; t < positions; ++t)
      for (std::int64_t w = 0; w < workers; ++w) {
        const float* g = trace.gradient(t, w).data() + layer.offset;
        for (std::int64_t r = 0; r < rows; ++r) {
          const bool any = std::any_of(g + r * width, g + (r + 1) * width, [](float value) { return value != 0; });
          touched[size((t * workers + w) * rows + r)] = any ? 1 : 0;
          count += any ? 1 : 0;
        }
      }
    if (2 * count >= positions * workers * rows) continue;
    auto group = std::find_if(activity.groups.begin(), activity.groups.end(), [&](const RowGroup& g) { return g.rows == rows; });
    if (group == activity.groups.end()) {
      activity.groups.push_back({rows, std::move(touched)});
      group = activity.groups.end() - 1;
    } else {
      for (std::size_t i = 0; i < touched.size(); ++i) group->touched[i] |= touched[i];
    }
    activity.group_of.back() = group - activity.groups.begin();
  }
  for (const Layer& layer : layers) {
    const auto group = std::find_if(activity.groups.begin(), activity.groups.end(),
                                    [&](const RowGroup& g) { return !layer.shape.empty() && g.rows == layer.shape.front(); });
    activity.same_height.push_back(group == activity.groups.end() ? -1 : group - activity.groups.begin());
  }
  return activity;
}

RowOverlap row_overlap(const RowActivity& activity, std::int64_t positions, std::int64_t workers) {
  RowOverlap overlap;
  if (workers < 2) return overlap;
  double own = 0, other = 0;
  for (const RowGroup& group : activity.groups)
    for (std::int64_t t = 0; t + 1 < positions; ++t)
      for (std::int64_t r = 0; r < group.rows; ++r) {
        std::int64_t now = 0, next = 0, both = 0;
        for (std::int64_t w = 0; w < workers; ++w) {
          const std::int64_t a = group.at(t, w, r, workers) ? 1 : 0, b = group.at(t + 1, w, r, workers) ? 1 : 0;
          now += a;
          next += b;
          both += a & b;
        }
        own += static_cast<double>(both);
        other += static_cast<double>(now * next - both) / static_cast<double>(workers - 1);
      }
  if (other > 0) overlap.ratio = own / other;
  overlap.repeats = own > largest_iid_overlap * other && own - other > 3 * std::sqrt(own);
  return overlap;
}

double deviation_memory(const Trace& trace, std::int64_t workers) {
  const std::int64_t positions = trace.iterations(), step = (trace.gradients() + sampled_coordinates - 1) / sampled_coordinates;
  if (workers < 2 || positions < 2) return 0;
  const auto coordinates = size((trace.gradients() + step - 1) / step);
  std::vector<double> last, now(size(workers) * coordinates), mean(coordinates);
  double own = 0, other = 0;
  for (std::int64_t t = 0; t < positions; ++t) {
    std::fill(mean.begin(), mean.end(), 0.0);
    for (std::int64_t w = 0; w < workers; ++w) {
      const std::span<const float> g = trace.gradient(t, w);
      double* d = now.data() + size(w) * coordinates;
      for (std::size_t i = 0; i < coordinates; ++i) mean[i] += d[i] = g[i * size(step)];
    }
    // Deviations of unit length, so that a loud iteration does not decide alone.
    for (std::int64_t w = 0; w < workers; ++w) {
      double* d = now.data() + size(w) * coordinates;
      double energy = 0;
      for (std::size_t i = 0; i < coordinates; ++i) {
        d[i] -= mean[i] / static_cast<double>(workers);
        energy += d[i] * d[i];
      }
      if (energy > 0)
        for (std::size_t i = 0; i < coordinates; ++i) d[i] /= std::sqrt(energy);
    }
    if (t > 0)
      for (std::int64_t a = 0; a < workers; ++a)
        for (std::int64_t b = 0; b < workers; ++b) {
          double product = 0;
          for (std::size_t i = 0; i < coordinates; ++i) product += last[size(a) * coordinates + i] * now[size(b) * coordinates + i];
          (a == b ? own : other) += product;
        }
    last = now;
  }
  const double pairs = static_cast<double>(positions - 1) * static_cast<double>(workers);
  return own / pairs - other / (pairs * static_cast<double>(workers - 1));
}

bool is_stateful(const Trace& trace, const RowActivity& activity, std::int64_t workers) {
  if (!trace.info().data_order.empty()) return trace.info().data_order == "stateful";
  if (!activity.groups.empty()) return row_overlap(activity, trace.iterations(), workers).repeats;
  return deviation_memory(trace, workers) > stateful_deviation_memory;
}

}  // namespace sparscale::traces
