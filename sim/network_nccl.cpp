// Network nccl: how long NCCL's own calls take, by the latency and bandwidth model with which NCCL chooses between its algorithms and
// protocols (src/graph/tuning.cc and topo.h, versions 2.21 to 2.30; docs/network.md). The numbers are NCCL's, the platform gives
// bandwidths.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "sim/network_backends.hpp"

namespace sparscale::sim {
namespace {

enum Protocol : std::size_t { LL, LL128, Simple };
using PerProtocol = std::array<double, 3>;

// Microseconds: of a call, and of a step over NVLink, PCIe or the network.
struct Latencies {
  PerProtocol base_us, nvlink_us, pci_us, net_us;
};
constexpr Latencies ring_latencies{{6.6, 14, 8.4}, {.6, 1.9, 3.4}, {1, 2.5, 5.7}, {2.7, 4, 14}};
constexpr Latencies tree_latencies{{6.8, 14, 8.4}, {.6, 1.25, 4}, {1, 1.9, 4}, {5, 8.5, 14}};
constexpr double nvls_latency_us = 23;

// GB/s, by generation (Volta, Ampere, Hopper) and by nodes (1, 2, more); LL across nodes by CPU (Intel, AMD) instead.
using Table = std::array<std::array<double, 3>, 3>;
constexpr Table ll_most_alone{{{39, 39, 39}, {87.7, 87.7, 87.7}, {87.7, 87.7, 87.7}}};
constexpr std::array<std::array<double, 2>, 2> ll_most_across{{{39, 20.4}, {22.5, 19}}};
constexpr Table ring_ll128_per_channel{{{20, 20, 20}, {20, 20, 20}, {36.7, 36.7, 36.7}}};
constexpr Table tree_ll128_per_channel{{{20, 20, 20}, {20, 20, 20}, {36.7, 36.7, 29}}};
constexpr Table tree_per_channel{{{26.5, 18.5, 10}, {24, 23.6, 17.8}, {38.7, 41.4, 36}}};

// What trees reach of their bandwidth, by size: 64 B, 128 B, ..., 256 MB.
constexpr std::array<std::array<double, 23>, 3> tree_correction{
    {{1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1},
     {1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1},
     {.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9}}};

class Nccl : public Network {
 public:
  Nccl(const platforms::Platform& platform, const platforms::Topology& topology) : topology_(topology), file_(platform.file) {
    if (!platform.document.contains("nccl")) throw InputError(file_, "", "the key \"nccl\", which network nccl needs", "no such key");
    const Json &nccl = platform.document.at("nccl"), &node = platform.document.at("node"), &nics = node.at("nics");
    const auto& generation = nccl.at("generation").get_ref<const std::string&>();
    generation_ = generation == "volta" ? 0 : generation == "ampere" ? 1 : 2;
    amd_ = nccl.at("cpu") == "amd";
    nvlink_ = nccl.at("intra") == "nvlink";
    channels_ = nccl.at("channels").get<double>();
    ll128_ = nccl.at("ll128").get<bool>();
    nvls_ = nccl.value("nvls", false);
    ring_ll_most_workers_ = nccl.value("ring_ll_max_workers", std::numeric_limits<std::int64_t>::max());
    const auto& of_worker = topology.node_of_worker();
    workers_ = static_cast<double>(of_worker.size());
    nodes_ = static_cast<double>(std::set<std::int64_t>(of_worker.begin(), of_worker.end()).size());
    const double across = nics.at("bandwidth_GBps").get<double>() * nics.at("count").get<double>();
    const double inside = node.contains("device_link") ? node.at("device_link").at("bandwidth_GBps").get<double>() : across;
    bandwidth_GBps_ = nodes_ > 1 ? std::min(across, inside) : inside;
  }

  std::span<const std::int64_t> node_of_worker() const override { return topology_.node_of_worker(); }
  const platforms::Topology& topology() const override { return topology_; }

  CollectiveTiming time(const Program& program, std::span<const double> start_s) override {
    check_start(program, topology_, start_s);
    if (!program.identity()) throw RunError("network nccl needs a program of a registered collective");
    const CallIdentity& call = *program.identity();
    const std::size_t n = start_s.size();
    CollectiveTiming timing;
    timing.network = "nccl";
    timing.bytes_sent.assign(n, 0);
    if (n == 1) {
      timing.end_s.assign(start_s.begin(), start_s.end());
      return timing;
    }
    // NCCL's kernels wait for each other: the call begins with the last worker.
    const double end_s = *std::max_element(start_s.begin(), start_s.end()) + 1e-6 * time_us(call);
    timing.end_s.assign(n, end_s);
    const std::uint64_t others = n - 1;
    const bool gathers = call.operation == Operation::all_gather, reduces = call.operation == Operation::all_reduce;
    const bool broadcasts = call.operation == Operation::broadcast;
    // Of a ring; the trees' mean is the same.
    std::uint64_t sent = call.bytes;
    if (gathers) sent = checked_multiply(call.bytes, others, "bytes of an all-gather");
    if (!gathers && !broadcasts) sent = call.bytes / n * others + call.bytes % n * others / n;
    if (reduces) sent *= 2;
    timing.bytes_sent.assign(n, sent);
    timing.messages = broadcasts ? others : n * others * (reduces ? 2 : 1);
    return timing;
  }

 private:
  // The fastest of what NCCL can choose.
  double time_us(const CallIdentity& call) const {
    const bool gathers = call.operation == Operation::all_gather;
    const double bytes = static_cast<double>(call.bytes) * (gathers ? workers_ : 1);
    double least = std::numeric_limits<double>::infinity();
    for (const Protocol protocol : {LL, LL128, Simple}) {
      if (protocol == LL128 && !ll128_) continue;
      switch (call.operation) {
        case Operation::all_reduce:
          least = std::min({least, ring_us(call.operation, protocol, bytes), tree_us(protocol, bytes)});
          break;
        case Operation::all_gather:
        case Operation::reduce_scatter:
        case Operation::broadcast:
          if (protocol != Simple && static_cast<std::int64_t>(workers_) > ring_ll_most_workers_) continue;
          least = std::min(least, ring_us(call.operation, protocol, bytes));
          break;
        default:
          throw InputError(file_, "network", "simgrid, recurrence or auto for the operation " + operation_name(call.operation), "nccl");
      }
    }
    if (call.operation == Operation::all_reduce && nvls_ && nodes_ == 1) {
      const double algorithm_GBps = bandwidth_GBps_ * .85 * 5 / 6;
      least = std::min(least, nvls_latency_us + bytes / (1000 * algorithm_GBps));
    }
    return least;
  }

  // The share of its channels that NCCL uses: it takes channels away until each of their threads has so many bytes (enqueue.cc and
  // tuning.cc). Not rounded to whole channels, so that more bytes never take less time.
  double channels_used(Protocol protocol, double bytes, double ring_workers) const {
    const PerProtocol threads{512, 640, nvlink_ ? 512. : 256.};
    constexpr PerProtocol bytes_per_thread{8, 8, 64};
    const double of_a_channel = threads[protocol] * bytes_per_thread[protocol] * (protocol == LL ? ring_workers : 1);
    return std::clamp(bytes / of_a_channel, 1., std::max(1., channels_)) / std::max(1., channels_);
  }

  // How much longer a transfer at `all_GBps` takes with these: a channel has its share of the bandwidth between the workers, and LL half of
  // that.
  double slow_down(Protocol protocol, double bytes, double ring_workers, double all_GBps) const {
    const double most_GBps = bandwidth_GBps_ * (protocol == LL ? .5 : 1) * channels_used(protocol, bytes, ring_workers);
    return std::max(1., all_GBps / most_GBps);
  }

  std::size_t node_class() const { return nodes_ > 2 ? 2 : nodes_ > 1 ? 1 : 0; }
  double ll_most() const { return nodes_ > 1 ? ll_most_across[amd_ ? 1 : 0][nodes_ > 2 ? 1 : 0] : ll_most_alone[generation_][0]; }
  double intra_us(const Latencies& latencies, Protocol protocol) const {
    return nvlink_ ? latencies.nvlink_us[protocol] : latencies.pci_us[protocol];
  }

  double ring_us(Operation operation, Protocol protocol, double bytes) const {
    const bool reduces = operation == Operation::all_reduce, broadcasts = operation == Operation::broadcast;
    const double per_node = workers_ / nodes_;
    double bus_GBps = bandwidth_GBps_;
    if (protocol == LL) bus_GBps = std::min(ll_most(), bus_GBps / 2);
    if (protocol == LL128)
      bus_GBps = std::min(bus_GBps * (per_node < 2 ? .7 : .92), channels_ * ring_ll128_per_channel[generation_][node_class()]);
    const double steps = broadcasts ? workers_ : (reduces ? 2 : 1) * (workers_ - 1);
    const double across = nodes_ == 1 ? 0 : broadcasts ? nodes_ : (reduces ? 2 : 1) * (nodes_ - 1);
    // A broadcast runs through the ring once, so its bandwidth is the bus's.
    const double algorithm_GBps = bus_GBps * (broadcasts ? 1 : workers_ / steps);
    double overhead_us = nodes_ > 1 ? (amd_ ? 2 : 1) : 0;
    if (protocol == Simple) overhead_us *= 3;
    // With one worker per node a step's latency is not hidden by others: that of the tree.
    const double net_us = per_node < 2 ? tree_latencies.net_us[protocol] : ring_latencies.net_us[protocol];
    double latency_us =
        ring_latencies.base_us[protocol] + (steps - across) * std::max(intra_us(ring_latencies, protocol), overhead_us) + across * net_us;
    // NCCL's plateau of large rings across nodes.
    if (reduces && protocol == Simple && nodes_ > 1 && bytes / (channels_ * workers_) >= 64) latency_us *= generation_ == 0 ? 1.9 : 1.4;
    const double transfer_us = bytes / (1000 * algorithm_GBps);
    return latency_us + transfer_us * slow_down(protocol, bytes, workers_, bus_GBps);
  }

  double tree_us(Protocol protocol, double bytes) const {
    double bus_GBps = std::min(bandwidth_GBps_ * .92, channels_ * tree_per_channel[generation_][node_class()]);
    if (protocol == LL) bus_GBps = std::min(bus_GBps / 3.8, ll_most());
    if (protocol == LL128)
      bus_GBps = std::min(bus_GBps * (nodes_ == 1 ? 7. / 9 : 120. / 128), channels_ * tree_ll128_per_channel[generation_][node_class()]);
    const double size_class = std::max(0., std::floor(std::log2(std::max(bytes, 64.) / 64)));
    double correction = 1;
    if (size_class < 23) correction = tree_correction[protocol][static_cast<std::size_t>(size_class)];
    const double levels = std::floor(std::log2(nodes_)), inside = std::max(0., std::floor(workers_ / nodes_) - 1);
    const double latency_us =
        tree_latencies.base_us[protocol] + 2 * (inside * intra_us(tree_latencies, protocol) + levels * tree_latencies.net_us[protocol]);
    const double transfer_us = bytes / (1000 * bus_GBps / 2 * correction);
    return latency_us + transfer_us * slow_down(protocol, bytes, 1, bus_GBps);
  }

  const platforms::Topology& topology_;
  std::string file_;
  std::size_t generation_ = 0;
  bool amd_ = false, nvlink_ = false, ll128_ = false, nvls_ = false;
  double channels_ = 1, workers_ = 1, nodes_ = 1, bandwidth_GBps_ = 1;
  std::int64_t ring_ll_most_workers_ = 0;
};

}  // namespace

std::unique_ptr<Network> make_nccl(const platforms::Platform& platform, const platforms::Topology& topology) {
  return std::make_unique<Nccl>(platform, topology);
}

}  // namespace sparscale::sim
