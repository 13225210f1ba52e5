// The CUDA kernels, run on the CPU (simt.hpp).
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <set>

#include "base/files.hpp"
#include "tests/catch.hpp"
#include "tests/kernels_support.hpp"
#include "tests/simt.hpp"
// The kernels come after what they are run on.
#include "kernels/cpu_table.hpp"
#include "kernels/cuda/fused_run.hpp"
#include "kernels/cuda/unite_run.hpp"
namespace sparscale::kernels::cuda {
inline float through_half(float value) {
  scalar_table().cast_half(&value, 1);
  return value;
}
}  // namespace sparscale::kernels::cuda
#include "kernels/cuda/elementwise.cuh"

using namespace sparscale::kernels;
using namespace kernels_support;
namespace fused = sparscale::kernels::cuda::fused;

namespace {

const auto start_kernel = [](auto kernel, unsigned blocks, unsigned threads, auto... arguments) {
  simt::launch(kernel, blocks, threads, arguments...);
};

// Device memory of exactly the size that is asked for, so that a sanitizer sees a step outside.
struct Memory {
  Memory(std::size_t size, unsigned long long capacity)
      : bins(fused::kBins),
        values(capacity),
        positions(capacity),
        tiles(static_cast<std::size_t>(fused::tiles_of(static_cast<long long>(size)))),
        greater(tiles.size()),
        equal(tiles.size()),
        offsets(tiles.size()),
        ties(tiles.size()),
        space{&state,       bins.data(),    values.data(), positions.data(), capacity,
              tiles.data(), greater.data(), equal.data(),  offsets.data(),   ties.data()} {}
  fused::State state;
  std::vector<std::uint32_t> bins;
  std::vector<float> values;
  std::vector<std::uint32_t> positions;
  std::vector<fused::TileRecord> tiles;
  std::vector<std::uint32_t> greater, equal;
  std::vector<unsigned long long> offsets, ties;
  fused::Space space;
  bool gave_up() const { return state.failed != 0 || state.candidates > state.capacity; }
};

struct Result {
  std::vector<Index> indices;
  std::vector<float> selected, values;
  bool gave_up = false;  // the sample was of no use
};

fused::Task task_of(std::vector<float>& values, const std::vector<float>* gradient, float scale, Index first, bool zero, Result& result) {
  result.indices.assign(values.size(), -1);
  result.selected.assign(values.size(), -1.0F);
  fused::Task task;
  task.gradient = gradient != nullptr ? gradient->data() : nullptr;
  task.scale = scale;
  task.values = values.data();
  task.size = static_cast<long long>(values.size());
  task.first = first;
  task.out = result.indices.data();
  task.out_values = result.selected.data();
  task.zero = zero;
  return task;
}

void shrink(Result& result, const Memory& memory) {
  result.indices.resize(static_cast<std::size_t>(memory.state.selected));
  result.selected.resize(result.indices.size());
}

// What a user of the kernels does: by sample, and by digits when that was of no use.
Result topk(std::vector<float> values, const std::vector<float>* gradient, float scale, Index k, bool by_sample, bool zero = false) {
  Result result;
  const auto size = static_cast<long long>(values.size());
  fused::Task task = task_of(values, gradient, scale, 7, zero, result);
  if (by_sample) {
    Memory memory(values.size(), fused::sampled_capacity(size, k));
    fused::run_sampled(start_kernel, task, k, memory.space);
    result.gave_up = memory.gave_up();
    if (!result.gave_up) shrink(result, memory);
  }
  if (!by_sample || result.gave_up) {
    Memory memory(values.size(), values.size());
    task.gradient = nullptr;
    fused::run_radix(start_kernel, task, k, memory.space);
    shrink(result, memory);
  }
  result.values = values;
  return result;
}

Result threshold_select(std::vector<float> values, const std::vector<float>* gradient, float scale, float threshold) {
  Result result;
  Memory memory(values.size(), values.size());
  const fused::Task task = task_of(values, gradient, scale, 3, false, result);
  fused::run_threshold(start_kernel, task, threshold <= 0 ? 0 : key(threshold), memory.space);
  shrink(result, memory);
  result.values = values;
  return result;
}

// Compares one vector's selections with the definitions; false when something differs.
bool check(const std::vector<float>& values, const std::vector<float>& gradient, Index k, bool thresholds, bool& gave_up) {
  auto sum = values;
  cpu_kernels("cpu.scalar").accumulate(gradient, 0.5F, sum);
  const auto n = static_cast<Index>(values.size());
  bool right = true;
  for (const std::vector<float>* g : {static_cast<const std::vector<float>*>(nullptr), &gradient}) {
    const auto& after = g != nullptr ? sum : values;
    const auto expected = reference_topk(reference_order(after), k, 7);
    for (const bool by_sample : {false, true}) {
      if (by_sample ? !fused::sample_helps(n, k) : g != nullptr) continue;
      const Result result = topk(values, g, 0.5F, k, by_sample);
      gave_up = gave_up || result.gave_up;
      right = right && result.indices == expected && bits(result.values) == bits(after);
      for (std::size_t i = 0; right && i < expected.size(); ++i)
        right = bits({result.selected[i]}) == bits({after[static_cast<std::size_t>(expected[i] - 7)]});
    }
    for (const float threshold : {0.0F, 0.75F, 3.0F, kInf}) {
      if (!thresholds) break;
      const Result result = threshold_select(values, g, 0.5F, threshold);
      right = right && result.indices == reference_select(after, threshold, 3) && bits(result.values) == bits(after);
    }
  }
  return right;
}

struct Restore {
  simt::Settings old = simt::settings;
  ~Restore() { simt::settings = old; }
};

// For the emulator's own tests.
int* counter_of_test = nullptr;
void divergent_kernel() {
  if (threadIdx.x % 2 == 0) SPARSCALE_BARRIER(100);
  SPARSCALE_BARRIER(101);
}
void early_end_kernel() {
  if (threadIdx.x == 5) return;
  SPARSCALE_BARRIER(100);
}
void missing_lane_kernel() {
  if (threadIdx.x % 32 != 9) __ballot_sync(0xffffffffU, true);
}
void mixed_operations_kernel() {
  if (threadIdx.x % 32 < 16)
    __ballot_sync(0xffffffffU, true);
  else
    __shfl_up_sync(0xffffffffU, 1U, 1U);
}
void counting_kernel() {
  SPARSCALE_SHARED(int, sum, 1);
  if (threadIdx.x == 0) sum[0] = 0;
  SPARSCALE_BARRIER(100);
  atomicAdd(&sum[0], static_cast<int>(threadIdx.x));
  SPARSCALE_BARRIER(101);
  if (threadIdx.x == blockDim.x - 1) atomicAdd(counter_of_test, sum[0]);
}

}  // namespace

TEST_CASE("the emulator runs every thread of every block and refuses what a GPU would hang on") {
  const Restore restore;
  for (const simt::Order order : {simt::Order::forward, simt::Order::reverse, simt::Order::random}) {
    simt::settings.order = order;
    CAPTURE(simt::name(order));
    int sum = 0;
    counter_of_test = &sum;
    simt::launch(&counting_kernel, 7, 96);
    CHECK(sum == 7 * 95 * 96 / 2);
    CHECK_THROWS_WITH(simt::launch(&divergent_kernel, 2, 64), ContainsSubstring("divergent barrier"));
    CHECK_THROWS_WITH(simt::launch(&early_end_kernel, 2, 64), ContainsSubstring("divergent barrier"));
    CHECK_THROWS_WITH(simt::launch(&missing_lane_kernel, 2, 64), ContainsSubstring("deadlock"));
    CHECK_THROWS_WITH(simt::launch(&mixed_operations_kernel, 2, 64), ContainsSubstring("different operations"));
    sum = 0;
    simt::launch(&counting_kernel, 3, 32);
    CHECK(sum == 3 * 31 * 32 / 2);  // an error before leaves nothing behind
  }
}

TEST_CASE("the fused CUDA kernels select what a stable sort selects, under every schedule") {
  const Restore restore;
  const simt::Order orders[] = {simt::Order::forward, simt::Order::reverse, simt::Order::random};
  std::size_t checked = 0, gave_up = 0, by_sample = 0;
  for (const Family& family : kFamilies)
    for (const std::size_t size : {1, 2, 31, 33, 1000, 4095, 4096, 4097, 16384, 18001}) {
      const auto values = make(family, size, 31), gradient = make(kFamilies[8], size, 32);
      const auto n = static_cast<Index>(size);
      for (const Index k : std::set<Index>{1, std::max<Index>(1, n / 100), std::max<Index>(1, n / 5), n}) {
        if (n > 5000 && k == n) continue;
        simt::settings.order = orders[checked % 3];
        simt::settings.seed = checked;
        bool gave = false;
        CAPTURE(family.name, size, k, simt::name(simt::settings.order));
        REQUIRE(check(values, gradient, k, k == 1, gave));
        ++checked;
        gave_up += gave ? 1 : 0;
        by_sample += fused::sample_helps(n, k) ? 1 : 0;
      }
    }
  CHECK(checked > 300);
  CHECK(by_sample > 50);
  CHECK(gave_up < by_sample);  // the sample is of use somewhere
}

TEST_CASE("a sample that misleads costs time, not exactness") {
  const Restore restore;
  for (const bool many : {false, true}) {
    std::vector<float> values(40000);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = many ? (i % 8 < 1 ? 5.0F : 4.0F) : 0.5F;
    // Where no run of the sample looks there are larger ones.
    if (!many)
      for (std::size_t i = 0; i < 30; ++i) values[i * 1301 + 17] = 2.0F + static_cast<float>(i % 3);
    const std::vector<float> gradient(values.size(), 0.25F);
    for (const Index k : {1, 20, 31, 4000, 9000}) {
      bool gave = false;
      CAPTURE(many, k);
      CHECK(check(values, gradient, k, false, gave));
    }
  }
}

TEST_CASE("selected entries are zeroed on request, and a misaligned vector is no different") {
  auto values = make(kFamilies[0], 20000, 33);
  const auto gradient = make(kFamilies[8], 20000, 34);
  auto sum = values;
  cpu_kernels("cpu.scalar").accumulate(gradient, 0.5F, sum);
  const auto expected = reference_topk(reference_order(sum), 300, 7);
  const Result result = topk(values, &gradient, 0.5F, 300, true, true);
  CHECK(result.indices == expected);
  for (const Index index : expected) sum[static_cast<std::size_t>(index - 7)] = 0;
  CHECK(bits(result.values) == bits(sum));

  Result shifted;
  Memory memory(19997, 19997);
  fused::Task task = task_of(values, nullptr, 1, 0, false, shifted);
  task.values = values.data() + 3;
  task.size = 19997;
  fused::run_threshold(start_kernel, task, key(1.0F), memory.space);
  shrink(shifted, memory);
  CHECK(shifted.indices == reference_select(std::vector<float>(values.begin() + 3, values.end()), 1.0F, 0));
}

TEST_CASE("sums in a fixed order, block maxima and what is done to each element are the same on both sides") {
  namespace cuda = sparscale::kernels::cuda;
  const Restore restore;
  const Kernels& cpu = cpu_kernels("cpu.scalar");
  for (const simt::Order order : {simt::Order::forward, simt::Order::random})
    for (const std::size_t family : {0, 4, 5, 8})
      for (const std::size_t size : {1, 33, 8192, 20001}) {
        simt::settings.order = order;
        CAPTURE(simt::name(order), kFamilies[family].name, size);
        const auto values = make(kFamilies[family], size, 37);
        const auto n = static_cast<std::int64_t>(size), tiles = (n + 8191) / 8192;
        std::vector<double> sums(static_cast<std::size_t>(4 * tiles)), squares(static_cast<std::size_t>(tiles));
        std::vector<unsigned long long> zeros(squares.size());
        simt::launch(&cuda::moments_kernel, 2, 64, values.data(), n, sums.data(), zeros.data(), tiles);
        Moments moments;
        moments.elements = n;
        for (std::size_t t = 0; t < zeros.size(); ++t) {
          moments.zeros += static_cast<Index>(zeros[t]);
          moments.sum += sums[4 * t];
          moments.sum_magnitudes += sums[4 * t + 1];
          moments.sum_squares += sums[4 * t + 2];
          moments.sum_log2 += sums[4 * t + 3];
        }
        CHECK(moments == cpu.moments(values));
        simt::launch(&cuda::sum_squares_kernel, 2, 64, values.data(), n, squares.data(), tiles);
        CHECK(std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0)) == cpu.l2_norm(values));
        std::vector<float> maxima((size + 99) / 100), expected(maxima.size());
        simt::launch(&cuda::block_maxima_kernel, 3, 64, values.data(), n, std::int64_t{100}, maxima.data(), std::ssize(maxima));
        cpu.block_maxima(values, 100, expected);
        CHECK(bits(maxima) == bits(expected));
        unsigned long long count = 0;
        simt::launch(&cuda::count_kernel, 2, 64, values.data(), n, key(0.5F), 0x7f800000U - key(0.5F), &count);
        CHECK(static_cast<Index>(count) == cpu.count(values, 0.5F));
        std::vector<Index> drawn(size);
        simt::launch(&cuda::permuted_kernel, 2, 64, make_permutation(3, size * 5), n, drawn.data());
        std::sort(drawn.begin(), drawn.end());
        CHECK(drawn == random_indices(3, 5 * n, n));
        auto sum = values, expected_sum = values;
        simt::launch(&cuda::accumulate_kernel, 2, 64, values.data(), 0.3F, sum.data(), n);
        cpu.accumulate(values, 0.3F, expected_sum);
        CHECK(bits(sum) == bits(expected_sum));
        const std::vector<Index> places = random_indices(4, n, (n + 2) / 3);
        std::vector<float> in(places.size()), out(places.size());
        simt::launch(&cuda::strided_kernel, 2, 64, values.data(), std::int64_t{0}, std::int64_t{3}, std::ssize(in), in.data());
        for (std::size_t i = 0; i < in.size(); ++i) REQUIRE(bits({in[i]}) == bits({values[3 * i]}));
        simt::launch(&cuda::scatter_add_kernel, 2, 64, sum.data(), places.data(), std::ssize(places), std::int64_t{0}, in.data());
        cpu.scatter_add(expected_sum, places, 0, in);
        CHECK(bits(sum) == bits(expected_sum));
        simt::launch(&cuda::gather_kernel, 2, 64, sum.data(), places.data(), std::ssize(places), std::int64_t{0}, out.data());
        cpu.gather(expected_sum, places, 0, in);
        CHECK(bits(in) == bits(out));
        simt::launch(&cuda::zero_kernel, 2, 64, sum.data(), places.data(), std::ssize(places), std::int64_t{0});
        cpu.zero(expected_sum, places, 0);
        CHECK(bits(sum) == bits(expected_sum));
      }
}

TEST_CASE("unions and their multiplicities are the same on both sides, by bitmap and by sorting") {
  namespace unite = sparscale::kernels::cuda::unite;
  const Restore restore;
  const Kernels& cpu = cpu_kernels("cpu.scalar");
  // 32768 indices make a chunk: below one, exactly one, one more, and several with gaps.
  const simt::Order orders[] = {simt::Order::forward, simt::Order::reverse, simt::Order::random};
  std::size_t checked = 0;
  for (const Index universe : {1, 31, 33, 5000, 32768, 32769, 140001})
    for (const Index lists_wanted : {1, 2, 7}) {
      simt::settings.order = orders[checked++ % 3];
      simt::settings.seed = checked;
      std::vector<std::vector<Index>> lists;
      for (Index list = 0; list < lists_wanted; ++list) {
        const Index length = list % 3 == 2 ? 0 : std::min<Index>(universe, 1 + universe / (list + 2) / (universe > 40000 ? 60 : 4));
        lists.push_back(random_indices(static_cast<std::uint64_t>(10 * universe + list), universe, length));
      }
      lists.front().back() = universe - 1;  // the last bit
      std::vector<Index> joined;
      for (const auto& list : lists) joined.insert(joined.end(), list.begin(), list.end());
      CAPTURE(universe, lists_wanted, simt::name(simt::settings.order));
      std::vector<std::int32_t> expected_counts;
      const std::vector<Index> expected = cpu.unite_counted(lists, universe, expected_counts);
      const auto words = static_cast<std::size_t>(unite::words_of(universe)), chunks = static_cast<std::size_t>(unite::chunks_of(universe));
      for (const bool counted : {false, true}) {
        std::vector<std::uint32_t> bitmap(words, 0), before(counted ? words : 0), in_chunk(chunks), bins(fused::kBins);
        std::vector<unsigned long long> before_chunk(chunks), scratch(chunks);
        std::vector<Index> out(joined.size(), -1);
        std::vector<std::int32_t> counts(joined.size(), 0);
        fused::State state;
        const unite::Space space{bitmap.data(), in_chunk.data(), before_chunk.data(), scratch.data(), before.data(), &state, bins.data()};
        unite::run_bitmap(start_kernel, static_cast<const std::int64_t*>(joined.data()), std::ssize(joined), universe, space, out.data(),
                          counted ? counts.data() : nullptr);
        out.resize(static_cast<std::size_t>(state.selected));
        CHECK(out == expected);
        counts.resize(counted ? out.size() : 0);
        if (counted) CHECK(counts == expected_counts);
      }
      std::vector<std::uint32_t> sorted, distinct;
      for (const Index index : joined) sorted.push_back(static_cast<std::uint32_t>(index));
      std::sort(sorted.begin(), sorted.end());
      for (const Index index : expected) distinct.push_back(static_cast<std::uint32_t>(index));
      const auto distinct_count = static_cast<std::int64_t>(distinct.size());
      std::vector<std::int32_t> counts(distinct.size(), -1);
      simt::launch(&unite::run_lengths_kernel, 2U, 64U, static_cast<const std::uint32_t*>(sorted.data()),
                   static_cast<long long>(sorted.size()), static_cast<const std::uint32_t*>(distinct.data()), &distinct_count,
                   counts.data());
      CHECK(counts == expected_counts);
    }
  CHECK(checked == 21);
}

TEST_CASE("every barrier of the device code has a number of its own, so that the next test leaves it out") {
  std::set<int> numbers;
  for (const char* file : {"device_code.cuh", "elementwise.cuh", "fused.cuh", "unite.cuh", "elementwise.cu", "fused.cu", "unite.cu"}) {
    const std::string text = sparscale::read_file(std::string(SPARSCALE_SOURCE_DIRECTORY) + "/kernels/cuda/" + file);
    CAPTURE(file);
    CHECK(text.find("__syncwarp") == std::string::npos);
    const bool defines = std::string(file) == "device_code.cuh";
    CHECK((text.find("__syncthreads") != std::string::npos) == defines);  // the definition of SPARSCALE_BARRIER
    const std::string call = "SPARSCALE_BARRIER(";
    for (std::size_t at = text.find(call); !defines && at != std::string::npos; at = text.find(call, at + 1))
      CHECK(numbers.insert(std::stoi(text.substr(at + call.size()))).second);
  }
  CHECK(std::ssize(numbers) == fused::kBarriers);
  CHECK(*numbers.begin() == 0);
  CHECK(*numbers.rbegin() == fused::kBarriers - 1);
}

TEST_CASE("without any one of its barriers the selection is noticed to be wrong") {
  // In a process of its own, since a kernel that misses a barrier may write anywhere. 0: all is right; 1: something was noticed.
  const auto run = [](int dropped) {
    const pid_t child = fork();
    if (child == 0) {
      std::signal(SIGSEGV, SIG_DFL);
      std::signal(SIGABRT, SIG_DFL);
      int noticed = 0;
      simt::settings.dropped_barrier = dropped;
      try {
        const std::size_t size = 16500;
        const auto gradient = make(kFamilies[8], size, 36);
        for (const simt::Order order : {simt::Order::forward, simt::Order::reverse, simt::Order::random}) {
          simt::settings.order = order;
          bool gave = false;
          if (noticed == 0 && (!check(make(kFamilies[0], size, 35), gradient, 200, true, gave) || gave)) noticed = 1;
        }
        // Whether the last block waits for what another still counts is a matter of one thread that is late: keys with all kinds of digits,
        // so that what it counts makes a difference.
        simt::settings.order = simt::Order::forward;
        simt::settings.resident_blocks = 17;
        const auto values = make(kFamilies[10], size, 35);
        const auto expected = reference_topk(reference_order(values), 5000, 7);
        for (const int thread : {3, 200})
          for (simt::settings.starved_after = 1; simt::settings.starved_after < 4; ++simt::settings.starved_after) {
            simt::settings.starved_thread = thread;
            if (noticed == 0 && topk(values, nullptr, 1, 5000, false).indices != expected) noticed = 1;
          }
      } catch (const std::exception&) {
        noticed = 1;
      }
      _exit(noticed);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
  };
  CHECK(run(-1) == 0);
  for (int barrier = 0; barrier < fused::kBarriers; ++barrier) {
    CAPTURE(barrier);
    CHECK(run(barrier) == 1);
  }
}
