// The CPU as a device to measure: one thread, processor time.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>

#include "base/machine.hpp"
#include "kernels/kernels.hpp"
#include "kernels/measure_device.hpp"

namespace sparscale::kernels {
namespace {

double seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

long interruptions() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nivcsw;
}

// Processor time of one call; not clean when the thread was off its core for more than 5 % of the time. With several threads the time on
// the clock; not clean when any of them was interrupted.
template <typename Work>
MeasuredSample timed(int threads, const Work& work) {
  if (threads > 1) {
    const long before = interruptions();
    const double start = seconds(CLOCK_MONOTONIC);
    work();
    const double time_s = seconds(CLOCK_MONOTONIC) - start;
    return {time_s, interruptions() == before};
  }
  const double wall = seconds(CLOCK_MONOTONIC), processor = seconds(CLOCK_THREAD_CPUTIME_ID);
  work();
  const double processor_s = seconds(CLOCK_THREAD_CPUTIME_ID) - processor, wall_s = seconds(CLOCK_MONOTONIC) - wall;
  return {processor_s, wall_s - processor_s <= 0.05 * wall_s + 2e-6};
}

std::string first_line_of(const std::string& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

class CpuDevice final : public MeasuredDevice {
 public:
  CpuDevice(const std::string& backend, int threads, std::int64_t max_elements)
      : kernels_(cpu_kernels(backend, threads)),
        threads_(threads),
        values_(measured_values(max_elements, 1)),
        gradient_(measured_values(max_elements, 2)),
        accumulator_(gradient_),
        sum_(values_) {}

  std::string backend() const override { return kernels_.name(); }
  std::string description() const override {
    const std::string model = cpuinfo("model name"), family = cpuinfo("cpu family"), number = cpuinfo("model");
    return (model.empty() ? "CPU" : model) + (family.empty() ? "" : " (family " + family + ", model " + number + ")") + ", " +
           std::to_string(threads_) + (threads_ == 1 ? " thread, " : " threads, ") + backend();
  }
  std::string short_name() const override {
    std::string slug = "cpu-";
    for (const char letter : cpuinfo("model name")) {
      const char lower = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
      if (std::isalnum(static_cast<unsigned char>(lower)) != 0)
        slug += lower;
      else if (slug.back() != '-')
        slug += '-';
    }
    return slug + (slug.back() == '-' ? "" : "-") + std::to_string(threads_) + "t";
  }
  std::string method() const override {
    if (threads_ > 1)
      return "measured by sparscale: time on the clock of calls shared by " + std::to_string(threads_) +
             " threads, median over samples taken in rounds over all points of a size; samples during which a thread was interrupted "
             "discarded; everything else as for one thread (docs/kernels.md)";
    return "measured by sparscale: processor time of one thread, median over samples taken in rounds over all points of a size; samples "
           "with the thread off its core for more than 5 % discarded; buffers reused, so data that fit a cache are read from it (warm); "
           "values two-sided exponential in blocks of different scale; unite: indices below max(2^25, 2 * elements)";
  }
  Json context() const override {
    Json context = {{"cpu_model", cpuinfo("model name")},   {"cpu_family", cpuinfo("cpu family")},
                    {"cpu_model_number", cpuinfo("model")}, {"cores", std::thread::hardware_concurrency()},
                    {"clock_MHz", cpuinfo("cpu MHz")},      {"threads", threads_}};
    Json caches = Json::array();
    for (int index = 0; index < 8; ++index) {
      const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
      const std::string size = first_line_of(folder + "size");
      if (size.empty()) break;
      caches.push_back("L" + first_line_of(folder + "level") + " " + first_line_of(folder + "type") + " " + size);
    }
    context["caches"] = caches;
    std::istringstream load(first_line_of("/proc/loadavg"));
    std::string one;
    load >> one;
    context["load_average_at_start"] = one;
    context["hypervisor"] = cpuinfo("flags").find("hypervisor") != std::string::npos;
    context["kernel"] = first_line_of("/proc/sys/kernel/osrelease");
    context["cache_state"] = "warm";
#ifdef NDEBUG
    context["build_type"] = "release";
#else
    context["build_type"] = "debug";
#endif
#ifdef __clang__
    context["compiler"] = "clang " __clang_version__;
#else
    context["compiler"] = "g++ " __VERSION__;
#endif
#ifdef __GLIBC__
    context["libraries"] = {{ "glibc", std::to_string(__GLIBC__) + "." + std::to_string(__GLIBC_MINOR__) }};
#endif
    return context;
  }
  double sample_s() const override { return 4e-4; }

  std::vector<MeasuredCase> cases(std::int64_t elements, const std::vector<double>& densities) override {
    const auto n = static_cast<std::size_t>(elements);
    const std::span<float> values(values_.data(), n), gradient(gradient_.data(), n), accumulator(accumulator_.data(), n);
    std::vector<MeasuredCase> points;
    const auto add = [&](const char* operation, std::int64_t selected, std::int64_t bytes, auto work) {
      points.push_back({operation, elements, selected, bytes, [work, this](std::int64_t repeats) {
                          return timed(threads_, [&] {
                            for (std::int64_t i = 0; i < repeats; ++i) work();
                          });
                        }});
    };
    // A tiny scale keeps the sums finite however often they are repeated.
    add("accumulate", elements, 12 * elements, [this, gradient, accumulator] { kernels_.accumulate(gradient, 1e-6F, accumulator); });
    add("cast_half", elements, 8 * elements, [this, accumulator] { kernels_.cast_half(accumulator); });
    add("l2_norm", elements, 4 * elements, [this, values] { sink_ = kernels_.l2_norm(values); });
    add("moments", elements, 4 * elements, [this, values] { sink_ = kernels_.moments(values).sum_log2; });
    add("block_maxima", elements, 4 * elements, [this, values, elements] {
      gathered_.resize(static_cast<std::size_t>((elements + 255) / 256));
      kernels_.block_maxima(values, 256, gathered_);
    });
    add("random_indices", elements, 8 * elements, [this, elements] { united_ = random_indices(1, 100 * elements, elements); });
    add("count", elements, 4 * elements, [this, values] { sink_ = static_cast<double>(kernels_.count(values, 3.0F)); });

    std::vector<std::int64_t> chosen;
    for (const double density : densities)
      chosen.push_back(static_cast<std::int64_t>(std::llround(density * static_cast<double>(elements))));
    if (densities.front() == 0) {  // the grid itself: down to one element and up to all but one
      chosen.push_back(1);
      chosen.push_back(std::max<std::int64_t>(elements - 1, 1));
    }
    std::sort(chosen.begin(), chosen.end());
    chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
    std::int64_t last_selected = -1;
    for (const std::int64_t k : chosen) {
      float threshold = std::numeric_limits<float>::infinity();
      if (k > 0) {
        picked_.clear();
        kernels_.topk(values, k, 0, picked_);
        for (const Index index : picked_) threshold = std::min(threshold, std::fabs(values[static_cast<std::size_t>(index)]));
        add("topk", k, 4 * elements + 8 * k, [this, values, k] {
          picked_.clear();
          kernels_.topk(values, k, 0, picked_);
        });
        for (const TopkMethod method : {TopkMethod::sampled, TopkMethod::radix, TopkMethod::sort}) {
          // Ordering everything takes a hundred times as long: at the densities of sparsifiers only.
          if (method == TopkMethod::sort && k > 1 && 10 * k > elements + 9) continue;
          add(topk_operation(method).c_str(), k, 4 * elements + 8 * k, [this, values, k, method] {
            picked_.clear();
            kernels_.topk(values, k, 0, picked_, method);
          });
        }
        const std::span<float> sum(sum_.data(), n);
        add("accumulate_topk", k, 12 * elements + 8 * k, [this, gradient, sum, k] {
          picked_.clear();
          kernels_.accumulate_topk(gradient, 1e-9F, sum, k, 0, picked_);
        });
      }
      const std::int64_t selected = kernels_.count(values, threshold);
      if (selected == last_selected) continue;  // ties
      last_selected = selected;
      add("threshold_select", selected, 4 * elements + 8 * selected, [this, values, threshold] {
        picked_.clear();
        kernels_.threshold_select(values, threshold, 0, picked_);
      });
      // The sums start as the values and hardly change, so about as many are selected.
      const std::span<float> sum(sum_.data(), n);
      add("accumulate_select", selected, 12 * elements + 8 * selected, [this, gradient, sum, threshold] {
        picked_.clear();
        kernels_.accumulate_select(gradient, 1e-9F, sum, threshold, 0, picked_);
      });
    }

    // zero and gather address a vector a hundred times as long as the list of indices, where there is room for one.
    const std::int64_t reach = std::min<std::int64_t>(static_cast<std::int64_t>(values_.size()), 100 * elements);
    auto scattered = std::make_shared<std::vector<std::vector<Index>>>(measured_lists(elements, elements, reach));
    auto places = std::make_shared<std::vector<Index>>(scattered->front());
    places->insert(places->end(), scattered->back().begin(), scattered->back().end());
    std::sort(places->begin(), places->end());
    const std::span<float> whole(accumulator_.data(), static_cast<std::size_t>(reach));
    add("zero", elements, 12 * elements, [this, whole, places] { kernels_.zero(whole, *places, 0); });
    add("scatter_add", elements, 20 * elements, [this, whole, places, values] { kernels_.scatter_add(whole, *places, 0, values); });
    add("gather", elements, 16 * elements, [this, whole, places] {
      gathered_.resize(places->size());
      kernels_.gather(whole, *places, 0, gathered_);
    });

    std::int64_t last_union = -1;
    for (const double part : densities.front() == 0 ? std::vector<double>{1.0 / 4096, 1.0 / 256, 1.0 / 16, 0.25, 0.5, 0.8, 1}
                                                    : std::vector<double>{0.02, 0.4, 0.9}) {
      const std::int64_t wanted = std::max<std::int64_t>(1, std::llround(part * static_cast<double>(elements)));
      const std::int64_t universe = measured_universe(elements);
      auto lists = std::make_shared<std::vector<std::vector<Index>>>(measured_lists(elements, wanted, universe));
      const auto united = static_cast<std::int64_t>(kernels_.unite(*lists, universe).size());
      if (united <= last_union) continue;
      last_union = united;
      add("unite", united, 8 * elements + 8 * united, [this, lists, universe] { united_ = kernels_.unite(*lists, universe); });
    }
    return points;
  }

  void set_data(const MeasuredData& data) override {
    values_.assign(data.values.begin(), data.values.end());
    sum_ = values_;
    lists_ = data.lists;
  }

  std::function<MeasuredSample(std::int64_t)> on_data(const std::string& operation, std::int64_t elements, std::int64_t selected,
                                                      float threshold, std::span<const std::int64_t> places) override {
    const auto n = static_cast<std::size_t>(elements);
    places_.assign(places.begin(), places.end());
    gathered_.resize(std::max(gathered_.size(), n));
    const std::span<float> sum(sum_.data(), std::min(n, sum_.size())), gathered(gathered_.data(), n);
    const std::span<const float> values(values_.data(), sum.size());
    constexpr float kTiny = 1e-9F;  // adds so little that a sum stays what it is, however often
    const auto make = [this](auto work) {
      return [this, work](std::int64_t repeats) {
        return timed(threads_, [&] {
          for (std::int64_t i = 0; i < repeats; ++i) {
            picked_.clear();
            work();
          }
        });
      };
    };
    if (operation == "accumulate") return make([=, this] { kernels_.accumulate(values, kTiny, sum); });
    if (operation == "threshold_select") return make([=, this] { kernels_.threshold_select(values, threshold, 0, picked_); });
    if (operation == "topk") return make([=, this] { kernels_.topk(values, selected, 0, picked_); });
    if (operation == "accumulate_select") return make([=, this] { kernels_.accumulate_select(values, kTiny, sum, threshold, 0, picked_); });
    if (operation == "accumulate_topk") return make([=, this] { kernels_.accumulate_topk(values, kTiny, sum, selected, 0, picked_); });
    if (operation == "count") return make([=, this] { sink_ = static_cast<double>(kernels_.count(values, threshold)); });
    if (operation == "l2_norm") return make([=, this] { sink_ = kernels_.l2_norm(values); });
    if (operation == "moments") return make([=, this] { sink_ = kernels_.moments(values).sum_log2; });
    if (operation == "block_maxima")
      return make([=, this] { kernels_.block_maxima(values, 256, gathered.first((values.size() + 255) / 256)); });
    if (operation == "cast_half") return make([=, this] { kernels_.cast_half(sum); });
    if (operation == "zero") return make([=, this] { kernels_.zero(sum_, places_, 0); });
    if (operation == "gather") return make([=, this] { kernels_.gather(values_, places_, 0, gathered); });
    if (operation == "scatter_add") return make([=, this] { kernels_.scatter_add(sum_, places_, 0, gathered); });
    if (operation == "unite") return make([=, this] { united_ = kernels_.unite(lists_, std::ssize(values_)); });
    if (operation == "random_indices") return make([=, this] { united_ = random_indices(1, 100 * elements, elements); });
    return nullptr;
  }

 private:
  const Kernels& kernels_;
  int threads_;
  std::span<const std::vector<Index>> lists_;
  std::vector<Index> places_;
  std::vector<float> values_, gradient_, accumulator_, sum_, gathered_;
  std::vector<Index> picked_, united_;
  volatile double sink_ = 0;
};

}  // namespace

MeasuredSample timed_on_cpu(int threads, const std::function<void()>& work) { return timed(threads, work); }

std::unique_ptr<MeasuredDevice> cpu_device(const std::string& backend, int threads, std::int64_t max_elements) {
  return std::make_unique<CpuDevice>(backend, threads, max_elements);
}

}  // namespace sparscale::kernels
