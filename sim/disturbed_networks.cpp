#include "sim/disturbed_networks.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace sparscale::sim {
namespace {

std::vector<std::int64_t> links_of(const Slowed& slowed, const platforms::Topology& topology) {
  if (slowed.node >= 0) return topology.links_of_node(slowed.node);
  std::vector<std::int64_t> links;
  for (std::size_t link = 0; link < topology.links().size(); ++link)
    if (topology.links()[link].name == slowed.link) links.push_back(static_cast<std::int64_t>(link));
  return links;
}

}  // namespace

void check_slowed(const std::vector<Slowed>& slowed, const platforms::Topology& topology, const std::string& file,
                  const std::string& place) {
  const auto& nodes = topology.node_of_worker();
  for (std::size_t i = 0; i < slowed.size(); ++i) {
    const std::string at = place + "/slowed/" + std::to_string(i);
    if (slowed[i].node > *std::max_element(nodes.begin(), nodes.end()))
      throw InputError(file, at + "/node", "a node, 0 to " + std::to_string(*std::max_element(nodes.begin(), nodes.end())),
                       std::to_string(slowed[i].node));
    if (links_of(slowed[i], topology).empty())
      throw InputError(file, at + "/link", "a link of the platform, such as " + topology.links().front().name, '"' + slowed[i].link + '"');
  }
}

DisturbedNetworks::DisturbedNetworks(std::string name, platforms::Platform platform, std::int64_t workers, std::vector<Slowed> slowed)
    : name_(std::move(name)), platform_(std::move(platform)), workers_(workers), slowed_(std::move(slowed)) {}

Network& DisturbedNetworks::at(std::int64_t iteration) {
  std::vector<bool> hold;
  for (const Slowed& one : slowed_) hold.push_back(one.window.holds(iteration));
  std::unique_ptr<Network>& network = networks_[hold];
  if (network) return *network;
  std::vector<SlowLink> slow;
  if (!slowed_.empty()) {
    const platforms::Topology topology(platform_, workers_);
    for (std::size_t i = 0; i < slowed_.size(); ++i)
      if (hold[i])
        for (const std::int64_t link : links_of(slowed_[i], topology)) slow.push_back({link, slowed_[i].factor});
  }
  network = make_network(name_, platform_, workers_, slow);
  return *network;
}

}  // namespace sparscale::sim
