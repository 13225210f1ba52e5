#include "platforms/platform.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "base/error.hpp"
#include "base/files.hpp"

namespace sparscale::embedded {
extern const char* const platform_schema;
}

namespace sparscale::platforms {
namespace {

std::filesystem::path catalogue() { return data_directory() / "platforms" / "catalogue"; }

std::string number(const Json& value) { return value.dump(); }

// Which keys belong to which topology.
void check_network(const Json& network, const std::string& file) {
  static const std::map<std::string, std::set<std::string>> keys = {
      {"crossbar", {}},
      {"fat_tree", {"nodes_per_switch", "uplinks", "link", "provenance"}},
      {"dragonfly", {"nodes_per_router", "routers_per_group", "global_links_per_router", "link", "global_link", "provenance"}},
      {"torus", {"dimensions", "link", "provenance"}}};
  const auto& topology = network.at("topology").get_ref<const std::string&>();
  const std::set<std::string>& wanted = keys.at(topology);
  for (const std::string& key : wanted)
    if (!network.contains(key)) throw InputError(file, "/network", "the key \"" + key + "\" as the topology is " + topology, "no such key");
  for (const auto& [key, value] : network.items())
    if (key != "topology" && !wanted.contains(key))
      throw InputError(file, "/network/" + key, "no such key as the topology is " + topology, brief(value));
}

// What a JSON Schema cannot say: how the numbers must fit together.
void check_consistency(const Json& document, const std::string& file) {
  const Json& node = document.at("node");
  const auto devices = node.at("devices").get<std::int64_t>();
  if (devices > 1 && !node.contains("device_link"))
    throw InputError(file, "/node", "the key \"device_link\" as the node has " + number(node.at("devices")) + " devices", "no such key");
  if (node.at("nics").at("count").get<std::int64_t>() > devices)
    throw InputError(
        file, "/node/nics/count",
        "at most one NIC per device (" + number(node.at("devices")) + "): a device uses one NIC, so give several as a faster one",
        number(node.at("nics").at("count")));
  check_network(document.at("network"), file);
  if (const Json placement = document.value("placement", Json::object());
      placement.contains("seed") != (placement.value("order", "") == "random"))
    throw InputError(file, "/placement", "the key \"seed\" exactly when the order is random", placement.dump());
  if (document.contains("max_nodes") && !document.at("provenance").contains("max_nodes"))
    throw InputError(file, "/provenance", "the key \"max_nodes\" as /max_nodes is given", "no such key");
  if (node.contains("device_memory_GB") && !document.at("provenance").contains("device_memory_GB"))
    throw InputError(file, "/provenance", "the key \"device_memory_GB\" as /node/device_memory_GB is given", "no such key");
}

}  // namespace

Platform Platform::load(const std::filesystem::path& file) {
  const std::string text = read_file(file);
  Platform platform;
  platform.file = file.string();
  platform.document = parse_json(text, platform.file);
  validate_json(platform.document, platform_schema(), platform.file);
  check_consistency(platform.document, platform.file);
  platform.sha256 = sha256_hex(text);
  platform.name = platform.document.at("name").get<std::string>();
  platform.description = platform.document.at("description").get<std::string>();
  platform.eager = platform.document.value("messages", "") == "eager";
  if (platform.document.contains("placement")) {
    const Json& placement = platform.document.at("placement");
    platform.placement = Placement::from_text(placement.at("order").get<std::string>() +
                                              (placement.contains("seed") ? ":" + placement.at("seed").dump() : ""));
  }
  platform.devices_per_node = platform.document.at("node").at("devices").get<std::int64_t>();
  return platform;
}

void Platform::check_workers(std::int64_t workers) const {
  if (workers < 1) throw InputError("workers", "at least 1", std::to_string(workers));
  if (!document.contains("max_nodes")) return;
  const auto max_nodes = document.at("max_nodes").get<std::int64_t>();
  if ((workers - 1) / devices_per_node + 1 > max_nodes)
    throw InputError(file, "/max_nodes", "at most " + std::to_string(max_nodes * devices_per_node) + " workers (one per device)",
                     std::to_string(workers));
}

Placement Placement::from_text(const std::string& text) {
  if (text == "consecutive") return {Order::consecutive, 0};
  if (text == "round_robin") return {Order::round_robin, 0};
  const std::string start = "random:";
  if (text.starts_with(start)) {
    std::uint64_t seed = 0;
    const char* const end = text.data() + text.size();
    const auto [read, code] = std::from_chars(text.data() + start.size(), end, seed);
    if (code == std::errc() && read == end) return {Order::random, seed};
  }
  throw InputError("placement", "one of consecutive, round_robin, random:SEED", "\"" + text + "\"");
}

std::string Placement::text() const {
  if (order == Order::consecutive) return "consecutive";
  return order == Order::round_robin ? "round_robin" : "random:" + std::to_string(seed);
}

std::vector<std::string> platform_names() {
  std::vector<std::string> names;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(catalogue(), code))
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  if (code) throw InputError(catalogue().string(), "", "the folder of shipped platforms", code.message());
  std::sort(names.begin(), names.end());
  return names;
}

std::filesystem::path find_platform(const std::string& name_or_path) {
  const bool is_path = name_or_path.find('/') != std::string::npos || std::filesystem::path(name_or_path).extension() == ".json";
  if (is_path) return name_or_path;
  const std::vector<std::string> names = platform_names();
  if (std::find(names.begin(), names.end(), name_or_path) != names.end()) return catalogue() / (name_or_path + ".json");
  std::string list;
  for (const std::string& name : names) list += name + ", ";
  throw InputError("platform", list + "or the path of a .json file", "\"" + name_or_path + "\"");
}

const Json& platform_schema() {
  static const Json schema = parse_json(embedded::platform_schema, "platform.schema.json");
  return schema;
}

}  // namespace sparscale::platforms
