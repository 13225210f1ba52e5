#include <algorithm>
#include <limits>

#include "base/error.hpp"
#include "platforms/platform.hpp"

namespace sparscale::platforms {
namespace {

// Both directions of a link, up first: two links that share nothing.
void add_duplex(std::vector<Link>& links, const std::string& name, const Json& numbers) {
  const double bandwidth_Bps = numbers.at("bandwidth_GBps").get<double>() * 1e9;
  const double latency_s = numbers.at("latency_us").get<double>() * 1e-6;
  links.push_back({name + ".up", bandwidth_Bps, latency_s});
  links.push_back({name + ".down", bandwidth_Bps, latency_s});
}

}  // namespace

// Link ids: up and down of every worker's device link (when there are device links), then up and down of every NIC, node by node.
Topology::Topology(const Platform& platform, std::int64_t workers) : workers_(workers), devices_per_node_(platform.devices_per_node) {
  const Json& node = platform.document.at("node");
  platform.check_workers(workers);
  const std::int64_t nodes = (workers - 1) / devices_per_node_ + 1;
  has_intra_ = node.contains("device_link");
  nics_ = node.at("nics").at("count").get<std::int64_t>();
  links_.reserve(static_cast<std::size_t>((has_intra_ ? 2 * workers : 0) + 2 * nodes * nics_));
  if (has_intra_)
    for (std::int64_t worker = 0; worker < workers; ++worker)
      add_duplex(links_, "node" + std::to_string(worker / devices_per_node_) + ".device" + std::to_string(worker % devices_per_node_),
                 node.at("device_link"));
  for (std::int64_t n = 0; n < nodes; ++n)
    for (std::int64_t nic = 0; nic < nics_; ++nic)
      add_duplex(links_, "node" + std::to_string(n) + ".nic" + std::to_string(nic), node.at("nics"));
}

std::vector<std::int32_t> Topology::route(std::int64_t from, std::int64_t to) const {
  for (const std::int64_t worker : {from, to})
    if (worker < 0 || worker >= workers_) throw InputError("worker", "0 to " + std::to_string(workers_ - 1), std::to_string(worker));
  std::vector<std::int32_t> links;
  if (from == to) return links;
  const auto nic = [&](std::int64_t worker, std::int64_t direction) {
    const std::int64_t port = worker / devices_per_node_ * nics_ + worker % devices_per_node_ % nics_;
    return static_cast<std::int32_t>((has_intra_ ? 2 * workers_ : 0) + 2 * port + direction);
  };
  if (has_intra_) links.push_back(static_cast<std::int32_t>(2 * from));
  if (from / devices_per_node_ != to / devices_per_node_) {
    links.push_back(nic(from, 0));
    links.push_back(nic(to, 1));
  }
  if (has_intra_) links.push_back(static_cast<std::int32_t>(2 * to + 1));
  return links;
}

double Topology::latency_s(std::span<const std::int32_t> route) const {
  double sum = 0;
  for (const std::int32_t link : route) sum += links_[static_cast<std::size_t>(link)].latency_s;
  return sum;
}

double Topology::bandwidth_Bps(std::span<const std::int32_t> route) const {
  double least = std::numeric_limits<double>::infinity();
  for (const std::int32_t link : route) least = std::min(least, links_[static_cast<std::size_t>(link)].bandwidth_Bps);
  return least;
}

}  // namespace sparscale::platforms
