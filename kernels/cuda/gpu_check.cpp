// Compares the CUDA back-end with the scalar CPU one. Ends with 77 (skipped) where there is no GPU to run on, never with 0.
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>

#include "base/random.hpp"
#include "kernels/cuda/cuda.hpp"
#include "kernels/live_measure.hpp"

namespace {

using namespace sparscale::kernels;

int failures = 0;
long compared = 0;

void expect(bool equal, const std::string& what, std::int64_t size, double parameter) {
  ++compared;
  if (equal) return;
  if (++failures <= 20) std::printf("FAILED %s, %lld elements, %g\n", what.c_str(), static_cast<long long>(size), parameter);
}

std::vector<float> family(int kind, std::int64_t size) {
  sparscale::Random random(sparscale::stream_key(static_cast<std::uint64_t>(kind), "gpu_check", {static_cast<std::uint64_t>(size)}));
  const float special[] = {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 0.0F, -0.0F, 1e-45F, 1.0F};
  std::vector<float> values(static_cast<std::size_t>(size));
  for (float& value : values) switch (kind) {
      case 0:
        value = static_cast<float>(random.normal());
        break;
      case 1:
        value = static_cast<float>(random.below(8)) * 0.25F;
        break;
      case 2:
        value = -0.75F;
        break;
      case 3:
        value = special[random.below(6)];
        break;
      case 4:
        value = static_cast<float>(random.below(1000)) * 1e-45F;
        break;
      default:
        value = std::bit_cast<float>(static_cast<std::uint32_t>(random.next()));
    }
  return values;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) return false;
  return a.size() == b.size();
}

void compare(const Kernels& gpu, int kind, std::int64_t size) {
  const Kernels& cpu = cpu_kernels("cpu.scalar");
  const std::vector<float> values = family(kind, size);
  std::vector<Index> some;
  const std::vector<float> gradient = family(0, size);
  for (const double density : {0.0, 1e-3, 0.01, 0.3, 1.0}) {
    const Index k = density == 0.0 ? 1 : static_cast<Index>(density * static_cast<double>(size));
    std::vector<Index> expected{-1}, found{-1};
    cpu.topk(values, k, 5, expected);
    gpu.topk(values, k, 5, found);
    expect(expected == found, "topk", size, static_cast<double>(k));
    for (const TopkMethod method : {TopkMethod::sampled, TopkMethod::radix, TopkMethod::sort}) {
      std::vector<Index> other{-1};
      gpu.topk(values, k, 5, other, method);
      expect(expected == other, topk_operation(method), size, static_cast<double>(k));
    }
    std::vector<float> sum = values, gpu_sum = values;
    std::vector<Index> fused, gpu_fused;
    cpu.accumulate_topk(gradient, 0.5F, sum, k, 5, fused);
    gpu.accumulate_topk(gradient, 0.5F, gpu_sum, k, 5, gpu_fused);
    // A sum with NaN has no defined payload, and the payload orders NaNs.
    if (kind != 3 && kind != 5) expect(fused == gpu_fused && same_bits(sum, gpu_sum), "accumulate_topk", size, static_cast<double>(k));
    if (density == 0.01) some.assign(found.begin() + 1, found.end());
  }
  for (const float threshold :
       {-1.0F, 0.0F, 1e-45F, 0.25F, 2.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<Index> expected{-1}, found{-1};
    cpu.threshold_select(values, threshold, 5, expected);
    gpu.threshold_select(values, threshold, 5, found);
    expect(expected == found, "threshold_select", size, static_cast<double>(threshold));
    if (kind != 3 && kind != 5) {
      std::vector<float> sum = values, gpu_sum = values;
      cpu.accumulate_select(gradient, 0.5F, sum, threshold, 5, expected);
      gpu.accumulate_select(gradient, 0.5F, gpu_sum, threshold, 5, found);
      expect(expected == found && same_bits(sum, gpu_sum), "accumulate_select", size, static_cast<double>(threshold));
    }
    expect(cpu.count(values, threshold) == gpu.count(values, threshold), "count", size, static_cast<double>(threshold));
  }
  std::vector<float> expected = values, found = values;
  cpu.zero(expected, some, 5);
  gpu.zero(found, some, 5);
  expect(same_bits(expected, found), "zero", size, 0);
  std::vector<float> expected_out(some.size()), found_out(some.size());
  cpu.gather(values, some, 5, expected_out);
  gpu.gather(values, some, 5, found_out);
  expect(same_bits(expected_out, found_out), "gather", size, 0);
  cpu.scatter_add(expected, some, 5, expected_out);
  gpu.scatter_add(found, some, 5, found_out);
  expect(same_bits(expected, found), "scatter_add", size, 0);
  expected.resize(static_cast<std::size_t>((size + 255) / 256));
  found.resize(expected.size());
  cpu.block_maxima(values, 256, expected);
  gpu.block_maxima(values, 256, found);
  expect(same_bits(expected, found), "block_maxima", size, 256);
  const Index samples = (size + 2) / 3, rank = 1 + samples / 10;
  expect(same_bits({cpu.sampled_threshold(values, 0, 3, samples, rank)}, {gpu.sampled_threshold(values, 0, 3, samples, rank)}),
         "sampled_threshold", size, static_cast<double>(rank));
  expect(random_indices(7, 10 * size, size) == cuda::random_indices(7, 10 * size, size), "random_indices", size, 0);
  expected = found = values;
  cpu.cast_half(expected);
  gpu.cast_half(found);
  expect(same_bits(expected, found), "cast_half", size, 0);
  if (kind != 3 && kind != 5) {  // sums with NaN have no defined payload
    expect(std::bit_cast<std::uint64_t>(cpu.l2_norm(values)) == std::bit_cast<std::uint64_t>(gpu.l2_norm(values)), "l2_norm", size, 0);
    expect(cpu.moments(values) == gpu.moments(values), "moments", size, 0);
    for (const float scale : {1.0F, 0.1F}) {
      expected = found = values;
      cpu.accumulate(gradient, scale, expected);
      gpu.accumulate(gradient, scale, found);
      expect(same_bits(expected, found), "accumulate", size, static_cast<double>(scale));
    }
  }
  const auto lists = measured_lists(size, std::max<Index>(1, size / 3), 10 * size);
  expect(cpu.unite(lists, 10 * size) == gpu.unite(lists, 10 * size), "unite", size, 0);
  for (const UniteMethod method : {UniteMethod::automatic, UniteMethod::bitmap, UniteMethod::sort}) {
    std::vector<std::int32_t> expected_counts, found_counts;
    const auto united = cpu.unite_counted(lists, 10 * size, expected_counts);
    expect(united == gpu.unite_counted(lists, 10 * size, found_counts, method) && expected_counts == found_counts, "unite_counted", size,
           static_cast<double>(method));
  }
}

// Live measurement on the GPU: every operation gives a record with a time.
void measure_live() {
  constexpr std::int64_t kSize = 200000;
  const std::vector<float> values = measured_values(kSize, 3);
  const auto lists = measured_lists(4000, 3000, kSize);
  const std::vector<Index> exchanged = cpu_kernels().unite(lists, kSize);
  std::vector<LiveCall> calls;
  for (const char* operation : {"accumulate", "threshold_select", "topk", "accumulate_select", "accumulate_topk", "count", "l2_norm",
                                "moments", "block_maxima", "cast_half", "random_indices"})
    calls.push_back({operation, kSize, 2000});
  for (const char* operation : {"zero", "gather", "scatter_add"}) calls.push_back({operation, 3000, 3000});
  calls.push_back({"unite", 4000, 3000});
  LiveMeasurement live(cuda::measured_device(1), 3);
  live.add(values, calls, lists, exchanged);
  const auto profile = live.profile("live", "a test's values");
  expect(profile.at("records").size() == calls.size(), "live measurement", kSize, 0);
  for (const auto& record : profile.at("records"))
    expect(record.at("median_s").get<double>() > 1e-7, "live " + record.at("operation").get<std::string>(), kSize, 0);
}

}  // namespace

// Optional argument: the largest size, for slow tools.
int main(int argc, char** argv) {
  if (const std::string reason = cuda::unavailable(); !reason.empty()) {
    std::printf("skipped: %s\n", reason.c_str());
    return 77;
  }
  const long long largest = argc > 1 ? std::atoll(argv[1]) : std::numeric_limits<long long>::max();
  for (const bool fused : {false, true})
    for (int kind = 0; kind < 6; ++kind)
      for (const std::int64_t size : {1, 2, 31, 32, 33, 127, 1000, 4097, 8193, 40001, 120003, 3000001})
        if (size <= largest) compare(cuda::kernels(fused), kind, size);
  measure_live();
  std::printf("%ld comparisons, %d failures\n", compared, failures);
  return failures == 0 ? 0 : 1;
}
