// Inputs that are hard on selection kernels, and the definitions of what is selected, written the slow and obvious way.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/random.hpp"
#include "kernels/kernels.hpp"

namespace kernels_support {

using sparscale::Random;
using sparscale::stream_key;
using sparscale::kernels::Index;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kDenormal = std::numeric_limits<float>::denorm_min();

inline std::uint32_t key(float value) { return std::bit_cast<std::uint32_t>(value) & 0x7fffffffU; }

// The definitions, written the slow and obvious way.
inline std::vector<Index> reference_order(const std::vector<float>& values) {
  std::vector<Index> order(values.size());
  std::iota(order.begin(), order.end(), Index{0});
  std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return key(values[a]) > key(values[b]); });
  return order;
}
inline std::vector<Index> reference_topk(std::vector<Index> order, Index k, Index first) {
  order.resize(static_cast<std::size_t>(std::clamp<Index>(k, 0, static_cast<Index>(order.size()))));
  std::sort(order.begin(), order.end());
  for (Index& index : order) index += first;
  return order;
}
inline std::vector<Index> reference_select(const std::vector<float>& values, float threshold, Index first) {
  std::vector<Index> found;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (std::fabs(values[i]) >= threshold) found.push_back(first + static_cast<Index>(i));
  return found;
}

struct Family {
  const char* name;
  float (*value)(Random&, std::size_t i, std::size_t size);
};
inline const Family kFamilies[] = {
    {"normal", [](Random& r, std::size_t, std::size_t) { return static_cast<float>(r.normal()); }},
    {"ties", [](Random& r, std::size_t, std::size_t) { return static_cast<float>(r.below(8)) * (r.below(2) != 0 ? 0.25F : -0.25F); }},
    {"equal", [](Random&, std::size_t, std::size_t) { return -0.75F; }},
    {"zeros", [](Random& r, std::size_t, std::size_t) { return r.below(2) != 0 ? 0.0F : -0.0F; }},
    {"mostly zero", [](Random& r, std::size_t, std::size_t) { return r.below(20) != 0 ? 0.0F : static_cast<float>(r.normal()); }},
    {"denormal", [](Random& r, std::size_t, std::size_t) { return static_cast<float>(r.below(1000)) * kDenormal; }},
    {"ascending", [](Random&, std::size_t i, std::size_t) { return static_cast<float>(i); }},
    {"descending", [](Random&, std::size_t i, std::size_t size) { return -static_cast<float>(size - i); }},
    {"layers", [](Random& r, std::size_t i,
                  std::size_t size) { return static_cast<float>(r.normal() * std::exp2(-static_cast<double>(i * 16 / size))); }},
    {"one hot layer",
     [](Random& r, std::size_t i, std::size_t size) { return static_cast<float>(r.normal()) * (i * 50 / size == 7 ? 1000.0F : 1.0F); }},
    {"any bits", [](Random& r, std::size_t, std::size_t) { return std::bit_cast<float>(static_cast<std::uint32_t>(r.next())); }},
    {"non-finite",
     [](Random& r, std::size_t, std::size_t) {
       const float special[] = {kInf, -kInf, kNan, -kNan, 0.0F, kDenormal, std::numeric_limits<float>::max(), 1.0F};
       return special[r.below(8)];
     }},
};

inline std::vector<float> make(const Family& family, std::size_t size, std::uint64_t seed) {
  Random random(stream_key(seed, "kernels_test", {size}));
  std::vector<float> values(size);
  for (std::size_t i = 0; i < size; ++i) values[i] = family.value(random, i, size);
  return values;
}

inline std::vector<std::uint32_t> bits(const std::vector<float>& values) {
  std::vector<std::uint32_t> result(values.size());
  std::transform(values.begin(), values.end(), result.begin(), [](float value) { return std::bit_cast<std::uint32_t>(value); });
  return result;
}

}  // namespace kernels_support
