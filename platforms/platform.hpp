// Platforms: nodes, devices, links, topology as data (docs/formats.md), and the routes between devices.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/json.hpp"

namespace sparscale::platforms {

/// Which worker runs on which device: consecutive fills node by node, round_robin goes over the nodes in turn, random shuffles the devices
/// that consecutive would use.
struct Placement {
  enum class Order { consecutive, round_robin, random };
  Order order = Order::consecutive;
  std::uint64_t seed = 0;  // random only

  /// "consecutive", "round_robin" or "random:SEED", and back. Errors: InputError.
  static Placement from_text(const std::string& text);
  std::string text() const;
};

/// A platform description, checked. One worker runs on one device.
struct Platform {
  std::string name, description, file, sha256;
  std::int64_t devices_per_node = 1;
  Placement placement;
  bool eager = false;  // a message starts when its sender is ready, whether its receiver is or not
  Json document;       // as read, with its provenance

  /// Loads a platform file. Errors: InputError with file and pointer.
  static Platform load(const std::filesystem::path& file);
  /// Errors: InputError when it has fewer devices than these workers need (max_nodes).
  void check_workers(std::int64_t workers) const;
};

/// One direction of a link.
struct Link {
  std::string name;
  double bandwidth_Bps = 0;  // bytes per second
  double latency_s = 0;
};

/// What a link belongs to: a device (NVLink, PCIe), a node's NIC, the network's links, those between the groups of a dragonfly.
enum class LinkClass { device, nic, network, global };
inline constexpr std::size_t link_classes = 4;
/// device_link, nic, network_link, global_link.
const char* link_class_name(LinkClass link_class);

/// Links and routes of one platform with n workers placed on its devices. Routes are one-way: route(a, b) and route(b, a) use different
/// (split-duplex) links. All back-ends take their routes from here.
class Topology {
 public:
  /// Errors: InputError when the machine is too small, with the largest number of workers.
  Topology(const Platform& platform, std::int64_t workers);
  std::int64_t workers() const { return workers_; }
  bool eager() const { return eager_; }  // Platform::eager
  const std::vector<Link>& links() const { return links_; }
  LinkClass link_class(std::int64_t link) const;
  /// The links of a node: of its devices and its NICs.
  std::vector<std::int64_t> links_of_node(std::int64_t node) const;
  /// Divides a link's bandwidth by `factor`.
  void slow_link(std::int64_t link, double factor) { links_[static_cast<std::size_t>(link)].bandwidth_Bps /= factor; }
  /// The node of every worker, counted from 0.
  const std::vector<std::int64_t>& node_of_worker() const { return node_; }
  /// Link ids from one worker's device to another's; empty when they are the same worker. Worker number workers() is the switch at the root
  /// of a crossbar or fat tree. Cost: O(route).
  std::vector<std::int32_t> route(std::int64_t from, std::int64_t to) const;
  /// Sum of the latencies and minimum of the bandwidths along a route.
  double latency_s(std::span<const std::int32_t> route) const;
  double bandwidth_Bps(std::span<const std::int32_t> route) const;

 private:
  enum class Kind { crossbar, fat_tree, dragonfly, torus };
  void place(const Placement& placement);
  void build_fabric(const Json& network, const std::string& file, std::int64_t nodes);
  void check_nodes(const std::string& file, const std::string& pointer, std::int64_t nodes, std::int64_t most) const;
  std::int32_t nic(std::int64_t worker, std::int64_t direction) const;
  void fabric_route(std::int64_t from_node, std::int64_t to_node, std::vector<std::int32_t>& links) const;

  std::string file_;
  bool eager_ = false;
  std::int64_t workers_ = 0, devices_per_node_ = 1;
  std::vector<std::int64_t> node_, device_;  // of every worker
  bool has_intra_ = false;
  std::int64_t nics_ = 1;
  Kind kind_ = Kind::crossbar;
  std::int64_t first_nic_ = 0, first_fabric_ = 0, first_global_ = 0;     // link ids
  std::int64_t per_switch_ = 1, uplinks_ = 1;                            // fat_tree
  std::int64_t per_router_ = 1, routers_ = 1, global_ = 1, groups_ = 1;  // dragonfly
  std::vector<std::int64_t> dimensions_;                                 // torus
  std::vector<Link> links_;
};

/// File of a shipped platform by name, or the argument itself when it is a path. Errors: InputError listing the names.
std::filesystem::path find_platform(const std::string& name_or_path);
/// Shipped platform names, sorted.
std::vector<std::string> platform_names();
/// The JSON Schema of a platform.
const Json& platform_schema();

}  // namespace sparscale::platforms
