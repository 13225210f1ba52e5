#include <algorithm>
#include <limits>

#include "base/error.hpp"
#include "base/random.hpp"
#include "platforms/platform.hpp"

namespace sparscale::platforms {
namespace {

void add_link(std::vector<Link>& links, const std::string& name, const Json& numbers, double times = 1) {
  links.push_back({name, times * numbers.at("bandwidth_GBps").get<double>() * 1e9, numbers.at("latency_us").get<double>() * 1e-6});
}

// Both directions of a link, up first: two links that share nothing.
void add_duplex(std::vector<Link>& links, const std::string& name, const Json& numbers, double times = 1) {
  add_link(links, name + ".up", numbers, times);
  add_link(links, name + ".down", numbers, times);
}

std::string numbered(const std::string& name, std::int64_t number) { return name + std::to_string(number); }

}  // namespace

// Link ids: up and down of every worker's device link (when there are device links), then up and down of every NIC, node by node, then the
// links of the network.
Topology::Topology(const Platform& platform, std::int64_t workers)
    : file_(platform.file), eager_(platform.eager), workers_(workers), devices_per_node_(platform.devices_per_node) {
  const Json& node = platform.document.at("node");
  platform.check_workers(workers);
  const std::int64_t nodes = (workers - 1) / devices_per_node_ + 1;
  place(platform.placement);
  has_intra_ = node.contains("device_link");
  const Json& nics = node.at("nics");
  // NICs that carry every message together are one link of all their bandwidth.
  const auto count = nics.at("count").get<std::int64_t>();
  const bool together = nics.value("together", false);
  nics_ = together ? 1 : count;
  links_.reserve(static_cast<std::size_t>((has_intra_ ? 2 * workers : 0) + 2 * nodes * nics_));
  if (has_intra_)
    for (std::size_t worker = 0; worker < node_.size(); ++worker)
      add_duplex(links_, numbered("node", node_[worker]) + numbered(".device", device_[worker]), node.at("device_link"));
  first_nic_ = std::ssize(links_);
  for (std::int64_t n = 0; n < nodes; ++n)
    for (std::int64_t port = 0; port < nics_; ++port)
      add_duplex(links_, numbered("node", n) + numbered(".nic", port), nics, together ? static_cast<double>(count) : 1);
  first_fabric_ = std::ssize(links_);
  build_fabric(platform.document.at("network"), platform.file, nodes);
}

void Topology::check_nodes(const std::string& file, const std::string& pointer, std::int64_t nodes, std::int64_t most) const {
  if (nodes > most)
    throw InputError(file, pointer, "at most " + std::to_string(most * devices_per_node_) + " workers (one per device)",
                     std::to_string(workers_));
}

void Topology::place(const Placement& placement) {
  const std::int64_t nodes = (workers_ - 1) / devices_per_node_ + 1;
  std::vector<std::int64_t> slots;
  if (placement.order == Placement::Order::random) {
    Random random(stream_key(placement.seed, "placement"));
    slots = random_permutation(workers_, random);
  }
  for (std::int64_t worker = 0; worker < workers_; ++worker) {
    const bool in_turn = placement.order == Placement::Order::round_robin;
    const std::int64_t slot = slots.empty() ? worker : slots[static_cast<std::size_t>(worker)];
    node_.push_back(in_turn ? worker % nodes : slot / devices_per_node_);
    device_.push_back(in_turn ? worker / nodes : slot % devices_per_node_);
  }
}

void Topology::build_fabric(const Json& network, const std::string& file, std::int64_t nodes) {
  const auto& topology = network.at("topology").get_ref<const std::string&>();
  const auto count = [&](const char* key) { return network.at(key).get<std::int64_t>(); };
  if (topology == "fat_tree") {
    // Two levels: uplink u of every leaf switch goes to spine u.
    kind_ = Kind::fat_tree;
    per_switch_ = count("nodes_per_switch");
    uplinks_ = count("uplinks");
    for (std::int64_t leaf = 0; leaf <= (nodes - 1) / per_switch_; ++leaf)
      for (std::int64_t up = 0; up < uplinks_; ++up)
        add_duplex(links_, numbered("leaf", leaf) + numbered(".spine", up), network.at("link"));
  } else if (topology == "dragonfly") {
    kind_ = Kind::dragonfly;
    per_router_ = count("nodes_per_router");
    routers_ = count("routers_per_group");
    global_ = count("global_links_per_router");
    const std::int64_t per_group = per_router_ * routers_;
    check_nodes(file, "/network", nodes, (routers_ * global_ + 1) * per_group);
    groups_ = (nodes - 1) / per_group + 1;
    // Inside a group: from router a to router b, a place for every pair (that of a router with itself is never used).
    for (std::int64_t group = 0; group < groups_; ++group)
      for (std::int64_t a = 0; a < routers_; ++a)
        for (std::int64_t b = 0; b < routers_; ++b)
          add_link(links_, numbered("group", group) + numbered(".router", a) + numbered(".to", b), network.at("link"));
    first_global_ = std::ssize(links_);
    for (std::int64_t a = 0; a < groups_; ++a)
      for (std::int64_t b = 0; b < groups_; ++b)
        add_link(links_, numbered("group", a) + numbered(".togroup", b), network.at("global_link"));
  } else if (topology == "torus") {
    kind_ = Kind::torus;
    std::int64_t places = 1;
    for (const Json& extent : network.at("dimensions")) {
      dimensions_.push_back(extent.get<std::int64_t>());
      places *= dimensions_.back();
      if (places > 1048576) throw InputError(file, "/network/dimensions", "at most 1048576 nodes in all", network.at("dimensions").dump());
    }
    check_nodes(file, "/network/dimensions", nodes, places);
    // From every router, of every node of the machine, up and down each dimension.
    for (std::int64_t router = 0; router < places; ++router)
      for (std::size_t d = 0; d < dimensions_.size(); ++d)
        for (const char* const way : {"plus", "minus"})
          add_link(links_, numbered("router", router) + numbered(".dim", static_cast<std::int64_t>(d)) + way, network.at("link"));
  }
}

const char* link_class_name(LinkClass link_class) {
  switch (link_class) {
    case LinkClass::device:
      return "device_link";
    case LinkClass::nic:
      return "nic";
    case LinkClass::network:
      return "network_link";
    case LinkClass::global:
      return "global_link";
  }
  return "";
}

LinkClass Topology::link_class(std::int64_t link) const {
  if (link < first_nic_) return LinkClass::device;
  if (link < first_fabric_) return LinkClass::nic;
  return kind_ == Kind::dragonfly && link >= first_global_ ? LinkClass::global : LinkClass::network;
}

std::vector<std::int64_t> Topology::links_of_node(std::int64_t node) const {
  std::vector<std::int64_t> links;
  for (std::int64_t worker = 0; has_intra_ && worker < workers_; ++worker)
    if (node_[static_cast<std::size_t>(worker)] == node) links.insert(links.end(), {2 * worker, 2 * worker + 1});
  for (std::int64_t link = first_nic_ + 2 * nics_ * node; link < std::min(first_fabric_, first_nic_ + 2 * nics_ * (node + 1)); ++link)
    links.push_back(link);
  return links;
}

std::int32_t Topology::nic(std::int64_t worker, std::int64_t direction) const {
  const auto w = static_cast<std::size_t>(worker);
  return static_cast<std::int32_t>(first_nic_ + 2 * (node_[w] * nics_ + device_[w] % nics_) + direction);
}

// The links between the NICs of two nodes.
void Topology::fabric_route(std::int64_t from, std::int64_t to, std::vector<std::int32_t>& links) const {
  const auto add = [&](std::int64_t link) { links.push_back(static_cast<std::int32_t>(link)); };
  switch (kind_) {
    case Kind::crossbar:
      return;
    case Kind::fat_tree: {
      const std::int64_t a = from / per_switch_, b = to / per_switch_;
      if (a == b) return;
      const std::int64_t spine = to % uplinks_;  // chosen by the destination, as static routing does
      add(first_fabric_ + 2 * (a * uplinks_ + spine));
      add(first_fabric_ + 2 * (b * uplinks_ + spine) + 1);
      return;
    }
    case Kind::dragonfly: {
      const std::int64_t router_a = from / per_router_, router_b = to / per_router_;
      const std::int64_t group_a = router_a / routers_, group_b = router_b / routers_;
      const auto local = [&](std::int64_t group, std::int64_t a, std::int64_t b) {
        if (a != b) add(first_fabric_ + (group * routers_ + a) * routers_ + b);
      };
      if (group_a == group_b) return local(group_a, router_a % routers_, router_b % routers_);
      // The router of a group that holds its link to another group.
      const auto gateway = [&](std::int64_t group, std::int64_t other) { return (other < group ? other : other - 1) / global_; };
      local(group_a, router_a % routers_, gateway(group_a, group_b));
      add(first_global_ + group_a * groups_ + group_b);
      local(group_b, gateway(group_b, group_a), router_b % routers_);
      return;
    }
    case Kind::torus: {
      std::int64_t at = from, stride = 1;
      for (std::size_t d = 0; d < dimensions_.size(); ++d) {
        const std::int64_t extent = dimensions_[d], target = to / stride % extent;
        // The shorter way round, upwards when both are as long.
        const bool plus = 2 * ((target - at / stride % extent + extent) % extent) <= extent;
        while (at / stride % extent != target) {
          const std::int64_t here = at / stride % extent;
          add(first_fabric_ + 2 * (at * std::ssize(dimensions_) + static_cast<std::int64_t>(d)) + (plus ? 0 : 1));
          at += ((here + (plus ? 1 : extent - 1)) % extent - here) * stride;
        }
        stride *= extent;
      }
      return;
    }
  }
}

std::vector<std::int32_t> Topology::route(std::int64_t from, std::int64_t to) const {
  for (const std::int64_t worker : {from, to})
    if (worker < 0 || worker > workers_) throw InputError("worker", "0 to " + std::to_string(workers_ - 1), std::to_string(worker));
  std::vector<std::int32_t> links;
  if (from == to) return links;
  if (from == workers_ || to == workers_) {  // half the way: to or from the switch at the root
    if (kind_ != Kind::crossbar && kind_ != Kind::fat_tree)
      throw InputError(file_, "/network/topology", "crossbar or fat_tree, whose root switch can aggregate",
                       kind_ == Kind::torus ? "torus" : "dragonfly");
    const std::int64_t worker = std::min(from, to), down = from == workers_ ? 1 : 0;
    if (has_intra_) links.push_back(static_cast<std::int32_t>(2 * worker + down));
    links.push_back(nic(worker, down));
    if (kind_ == Kind::fat_tree)  // the root is spine 0
      links.push_back(
          static_cast<std::int32_t>(first_fabric_ + 2 * (node_[static_cast<std::size_t>(worker)] / per_switch_ * uplinks_) + down));
    if (down == 1) std::reverse(links.begin(), links.end());
    return links;
  }
  const std::int64_t node_a = node_[static_cast<std::size_t>(from)], node_b = node_[static_cast<std::size_t>(to)];
  if (has_intra_) links.push_back(static_cast<std::int32_t>(2 * from));
  if (node_a != node_b) {
    links.push_back(nic(from, 0));
    fabric_route(node_a, node_b, links);
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
