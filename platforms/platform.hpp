// Platforms: nodes, devices, links, topology as data (docs/formats.md), and the routes between devices.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/json.hpp"

namespace sparscale::platforms {

/// A platform description, checked. One worker runs on one device.
struct Platform {
  std::string name, description, file, sha256;
  std::int64_t devices_per_node = 1;
  Json document;  // as read, with its provenance

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

/// Links and routes of one platform with n workers placed on its devices in order. Routes are one-way: route(a, b) and route(b, a) use
/// different (split-duplex) links.
class Topology {
 public:
  Topology(const Platform& platform, std::int64_t workers);
  std::int64_t workers() const { return workers_; }
  const std::vector<Link>& links() const { return links_; }
  /// Link ids from one worker's device to another's; empty when they are the same worker. Cost: O(route).
  std::vector<std::int32_t> route(std::int64_t from, std::int64_t to) const;
  /// Sum of the latencies and minimum of the bandwidths along a route.
  double latency_s(std::span<const std::int32_t> route) const;
  double bandwidth_Bps(std::span<const std::int32_t> route) const;

 private:
  std::int64_t workers_ = 0, devices_per_node_ = 1;
  bool has_intra_ = false;
  std::int64_t nics_ = 1;
  std::vector<Link> links_;
};

/// File of a shipped platform by name, or the argument itself when it is a path. Errors: InputError listing the names.
std::filesystem::path find_platform(const std::string& name_or_path);
/// Shipped platform names, sorted.
std::vector<std::string> platform_names();
/// The JSON Schema of a platform.
const Json& platform_schema();

}  // namespace sparscale::platforms
