#include "platforms/platform.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "base/error.hpp"
#include "base/files.hpp"
#include "tests/catch.hpp"
#include "tests/command.hpp"

using namespace sparscale;
using namespace sparscale::platforms;

namespace {

Json node_document(int devices, int nics) {
  const Json origin = {{"bandwidth_GBps", "assumed: test"}, {"latency_us", "assumed: test"}};
  Json nic_origin = origin;
  nic_origin["count"] = "assumed: test";
  return {{"schema_version", 1},
          {"name", "test"},
          {"description", "a test"},
          {"node",
           {{"devices", devices},
            {"device_link", {{"bandwidth_GBps", 100}, {"latency_us", 1}, {"provenance", origin}}},
            {"nics", {{"count", nics}, {"bandwidth_GBps", 10}, {"latency_us", 2}, {"provenance", nic_origin}}}}},
          {"network", {{"topology", "crossbar"}}},
          {"provenance", {{"devices", "assumed: test"}}}};
}

Platform platform_of(const Json& document) {
  const tests::Scratch folder("platform");
  write_file_atomic(folder / "p.json", document.dump());
  return Platform::load(folder / "p.json");
}

std::string error_of_text(const std::string& text) {
  const tests::Scratch folder("platform");
  write_file_atomic(folder / "p.json", text);
  try {
    Platform::load(folder / "p.json");
  } catch (const InputError& error) {
    const std::string message = error.what(), file = (folder / "p.json").string();
    REQUIRE(message.rfind(file + ": ", 0) == 0);
    return message.substr(file.size() + 2);
  }
  return "";
}

std::string error_with(const std::string& pointer, const Json& value) {
  Json document = node_document(4, 2);
  document[Json::json_pointer(pointer)] = value;
  return error_of_text(document.dump());
}

std::vector<std::string> route_names(const Topology& topology, std::int64_t from, std::int64_t to) {
  std::vector<std::string> names;
  for (const std::int32_t link : topology.route(from, to)) names.push_back(topology.links()[static_cast<std::size_t>(link)].name);
  return names;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("Every shipped platform loads, carries its file's name and makes routes") {
  const std::vector<std::string> names = platform_names();
  CHECK(std::set<std::string>(names.begin(), names.end()).count("crossbar-100g") == 1);
  CHECK(std::set<std::string>(names.begin(), names.end()).count("nvlink8-ib") == 1);
  CHECK(std::is_sorted(names.begin(), names.end()));
  for (const std::string& name : names) {
    const Platform platform = Platform::load(find_platform(name));
    CHECK(platform.name == name);
    CHECK(platform.sha256 == sha256_hex_of_file(platform.file));
    const std::int64_t workers = 2 * platform.devices_per_node;
    const Topology topology(platform, workers);
    for (std::int64_t from = 0; from < workers; ++from)
      for (std::int64_t to = 0; to < workers; ++to) {
        const auto route = topology.route(from, to);
        CHECK(route.empty() == (from == to));
        if (from != to) {
          CHECK(topology.latency_s(route) > 0);
          CHECK(topology.bandwidth_Bps(route) > 1e8);
        }
      }
  }
}

TEST_CASE("Shipped machines with GPUs of a known kind say how much memory these have, and where that is from") {
  std::map<std::string, double> memory_GB;
  for (const std::string& name : platform_names()) {
    const Platform platform = Platform::load(find_platform(name));
    const Json& node = platform.document.at("node");
    const bool gpu = node.value("device_name", "").starts_with("NVIDIA");
    CHECK(node.contains("device_memory_GB") == gpu);
    if (!gpu) continue;
    memory_GB[name] = node.at("device_memory_GB").get<double>();
    // What no source says is the smaller one of those that were sold: rather a warning too many.
    const std::string origin = platform.document.at("provenance").at("device_memory_GB").get<std::string>();
    CHECK(origin.starts_with(node.at("device_name") == "NVIDIA V100" ? "assumed: "
                             : name == "kisti-neuron-a100"           ? "measured: "
                                                                     : "specified: "));
  }
  CHECK(memory_GB == std::map<std::string, double>{{"dgx-a100", 40},
                                                   {"dgx-h100", 80},
                                                   {"kisti-neuron-a100", 80},
                                                   {"kisti-neuron-v100", 16},
                                                   {"kisti-neuron-v100-1", 16},
                                                   {"nvlink8-ib", 16},
                                                   {"oci-a100", 40},
                                                   {"polaris", 40},
                                                   {"sophia", 40}});
}

TEST_CASE("A crossbar of single devices has one NIC link each way") {
  const Platform platform = Platform::load(find_platform("crossbar-100g"));
  const Topology topology(platform, 3);
  CHECK(topology.links().size() == 6);
  CHECK(route_names(topology, 0, 2) == Names{"node0.nic0.up", "node2.nic0.down"});
  CHECK(route_names(topology, 2, 0) == Names{"node2.nic0.up", "node0.nic0.down"});
  CHECK(topology.latency_s(topology.route(0, 2)) == 2e-6 + 2e-6);
  CHECK(topology.bandwidth_Bps(topology.route(0, 2)) == 11e9);
}

TEST_CASE("Routes inside a node use device links only, between nodes the device's NIC as well") {
  const Platform platform = platform_of(node_document(4, 2));
  const Topology topology(platform, 7);  // the last node is not full
  CHECK(topology.workers() == 7);
  CHECK(topology.links().size() == 2 * 7 + 2 * 2 * 2);
  CHECK(route_names(topology, 0, 3) == Names{"node0.device0.up", "node0.device3.down"});
  CHECK(route_names(topology, 1, 6) == Names{"node0.device1.up", "node0.nic1.up", "node1.nic0.down", "node1.device2.down"});
  CHECK(route_names(topology, 6, 1) == Names{"node1.device2.up", "node1.nic0.up", "node0.nic1.down", "node0.device1.down"});
  const auto inside = topology.route(0, 3), across = topology.route(1, 6);
  CHECK(topology.bandwidth_Bps(inside) == 100e9);
  CHECK(topology.bandwidth_Bps(across) == 10e9);
  CHECK(topology.latency_s(inside) == Approx(2e-6).epsilon(1e-14));
  CHECK(topology.latency_s(across) == Approx(6e-6).epsilon(1e-14));
  CHECK(route_names(topology, 0, 7) == Names{"node0.device0.up", "node0.nic0.up"});  // to the switch
  CHECK(route_names(topology, 7, 6) == Names{"node1.nic0.down", "node1.device2.down"});
  CHECK_THROWS_AS(topology.route(0, 8), InputError);
  CHECK_THROWS_AS(topology.route(-1, 0), InputError);
}

TEST_CASE("Workers must fit the machine") {
  Json document = node_document(4, 1);
  document["max_nodes"] = 2;
  document["provenance"]["max_nodes"] = "assumed: test";
  const Platform platform = platform_of(document);
  CHECK_NOTHROW(Topology(platform, 8));
  CHECK_THROWS_WITH(Topology(platform, 9), ContainsSubstring("/max_nodes: expected at most 8 workers (one per device), found 9"));
  CHECK_THROWS_AS(Topology(platform, 0), InputError);
}

TEST_CASE("Bad platforms are refused with file and pointer") {
  CHECK(error_of_text(node_document(4, 2).dump()).empty());
  CHECK(error_with("/node/nics/bandwidth_GBps", 0) == "/node/nics/bandwidth_GBps: expected number >= 1e-09 <= 1000000, found 0");
  CHECK(error_with("/node/nics/bandwidth_GBps", -1.5) == "/node/nics/bandwidth_GBps: expected number >= 1e-09 <= 1000000, found -1.5");
  CHECK(error_with("/node/nics/bandwidth_GBps", nullptr) == "/node/nics/bandwidth_GBps: expected number >= 1e-09 <= 1000000, found null");
  CHECK(error_with("/node/nics/bandwidth_GBps", "11") == "/node/nics/bandwidth_GBps: expected number >= 1e-09 <= 1000000, found \"11\"");
  CHECK(error_with("/node/device_link/latency_us", 0) == "/node/device_link/latency_us: expected number > 0 <= 1000000000, found 0");
  CHECK(error_with("/node/devices", 0) == "/node/devices: expected integer >= 1 <= 1048576, found 0");
  CHECK(error_with("/node/devices", 2.5) == "/node/devices: expected integer >= 1 <= 1048576, found 2.5");
  CHECK(error_with("/network/topology", "ring") ==
        "/network/topology: expected one of crossbar, fat_tree, dragonfly, torus, found \"ring\"");
  CHECK(error_with("/schema_version", 2) == "/schema_version: expected 1, found 2");
  CHECK_THAT(error_with("/node/speed", 1), StartsWith("/node/speed: expected one of the keys"));
  CHECK_THAT(error_with("/node/nics/provenance/bandwidth_GBps", "somewhere"), StartsWith("/node/nics/provenance/bandwidth_GBps: expected"));
  CHECK_THAT(error_with("/node/nics/count", 5), StartsWith("/node/nics/count: expected at most one NIC per device (4)"));
  CHECK_THAT(error_with("/max_nodes", 5), StartsWith("/provenance: expected the key \"max_nodes\""));
  Json document = node_document(4, 2);
  document["node"].erase("device_link");
  CHECK_THAT(error_of_text(document.dump()), StartsWith("/node: expected the key \"device_link\""));
  document = node_document(4, 2);
  document["node"]["nics"]["provenance"].erase("latency_us");
  CHECK_THAT(error_of_text(document.dump()), StartsWith("/node/nics/provenance: expected the key \"latency_us\""));
  std::string text = node_document(4, 2).dump();
  text.replace(text.find("\"bandwidth_GBps\":10,"), 20, "\"bandwidth_GBps\":NaN,");
  CHECK_THAT(error_of_text(text), StartsWith("byte "));
}

TEST_CASE("Platforms are found by name or path") {
  CHECK(find_platform("nvlink8-ib").filename() == "nvlink8-ib.json");
  CHECK(find_platform("some/where.json") == "some/where.json");
  CHECK_THROWS_WITH(find_platform("nope"), ContainsSubstring("crossbar-100g") && ContainsSubstring("found \"nope\""));
  CHECK_THROWS_AS(Platform::load("no/such/file.json"), InputError);
}

namespace {

Json with_network(const Json& network, int devices = 1) {
  Json document = node_document(devices, 1);
  if (devices == 1) document["node"].erase("device_link");
  document["network"] = network;
  document["network"]["provenance"] = {{"counts", "assumed: test"}};
  for (const char* const link : {"link", "global_link"})
    if (document["network"].contains(link))
      document["network"][link]["provenance"] = {{"bandwidth_GBps", "assumed: test"}, {"latency_us", "assumed: test"}};
  return document;
}

const Json some_link = {{"bandwidth_GBps", 5}, {"latency_us", 0.5}};

}  // namespace

TEST_CASE("A fat tree goes up to the spine that the destination chooses") {
  const Platform platform =
      platform_of(with_network({{"topology", "fat_tree"}, {"nodes_per_switch", 4}, {"uplinks", 2}, {"link", some_link}}));
  const Topology topology(platform, 12);
  CHECK(topology.links().size() == 2 * 12 + 2 * 3 * 2);
  CHECK(route_names(topology, 0, 3) == Names{"node0.nic0.up", "node3.nic0.down"});
  CHECK(route_names(topology, 0, 4) == Names{"node0.nic0.up", "leaf0.spine0.up", "leaf1.spine0.down", "node4.nic0.down"});
  CHECK(route_names(topology, 9, 3) == Names{"node9.nic0.up", "leaf2.spine1.up", "leaf0.spine1.down", "node3.nic0.down"});
  CHECK(topology.bandwidth_Bps(topology.route(9, 3)) == 5e9);
  CHECK(topology.latency_s(topology.route(9, 3)) == Approx(2 * 2e-6 + 2 * 0.5e-6).epsilon(1e-14));
  CHECK(route_names(topology, 9, 12) == Names{"node9.nic0.up", "leaf2.spine0.up"});
}

TEST_CASE("A dragonfly takes one link between groups, found by at most one more link in each") {
  const Json network = {{"topology", "dragonfly"},      {"nodes_per_router", 2}, {"routers_per_group", 2},
                        {"global_links_per_router", 1}, {"link", some_link},     {"global_link", some_link}};
  const Platform platform = platform_of(with_network(network));
  const Topology topology(platform, 12);  // 3 groups of 2 routers of 2 nodes: the most that 1 global link per router connects
  CHECK(route_names(topology, 0, 1) == Names{"node0.nic0.up", "node1.nic0.down"});
  CHECK(route_names(topology, 0, 3) == Names{"node0.nic0.up", "group0.router0.to1", "node3.nic0.down"});
  // Group 0 reaches group 1 from its router 0, group 2 from its router 1; group 2 reaches group 0 from its router 0.
  CHECK(route_names(topology, 0, 4) == Names{"node0.nic0.up", "group0.togroup1", "node4.nic0.down"});
  CHECK(route_names(topology, 0, 11) ==
        Names{"node0.nic0.up", "group0.router0.to1", "group0.togroup2", "group2.router0.to1", "node11.nic0.down"});
  CHECK(route_names(topology, 11, 0) ==
        Names{"node11.nic0.up", "group2.router1.to0", "group2.togroup0", "group0.router1.to0", "node0.nic0.down"});
  CHECK_THROWS_WITH(Topology(platform, 13), ContainsSubstring("/network: expected at most 12 workers"));
}

TEST_CASE("A torus goes dimension by dimension, the shorter way round") {
  const Platform platform = platform_of(with_network({{"topology", "torus"}, {"dimensions", {4, 3}}, {"link", some_link}}));
  const Topology topology(platform, 12);  // node = x + 4 y
  CHECK(route_names(topology, 0, 1) == Names{"node0.nic0.up", "router0.dim0plus", "node1.nic0.down"});
  CHECK(route_names(topology, 0, 3) == Names{"node0.nic0.up", "router0.dim0minus", "node3.nic0.down"});
  CHECK(route_names(topology, 0, 2) == Names{"node0.nic0.up", "router0.dim0plus", "router1.dim0plus", "node2.nic0.down"});
  CHECK(route_names(topology, 1, 11) ==
        Names{"node1.nic0.up", "router1.dim0plus", "router2.dim0plus", "router3.dim1minus", "node11.nic0.down"});
  CHECK_THROWS_WITH(Topology(platform, 13), ContainsSubstring("/network/dimensions: expected at most 12 workers"));
  CHECK_THROWS_AS(topology.route(0, 12), InputError);  // no root
}

TEST_CASE("Workers are placed node by node, in turn or at random") {
  Platform platform = platform_of(node_document(4, 2));
  using Nodes = std::vector<std::int64_t>;
  CHECK(Topology(platform, 6).node_of_worker() == Nodes{0, 0, 0, 0, 1, 1});
  platform.placement = Placement::from_text("round_robin");
  CHECK(Topology(platform, 6).node_of_worker() == Nodes{0, 1, 0, 1, 0, 1});
  CHECK(route_names(Topology(platform, 6), 0, 3) == Names{"node0.device0.up", "node0.nic0.up", "node1.nic1.down", "node1.device1.down"});
  platform.placement = Placement::from_text("random:5");
  const Topology random(platform, 40);
  Nodes sorted = random.node_of_worker();
  CHECK_FALSE(std::is_sorted(sorted.begin(), sorted.end()));
  std::sort(sorted.begin(), sorted.end());
  platform.placement = {};
  CHECK(sorted == Topology(platform, 40).node_of_worker());
  platform.placement = Placement::from_text("random:5");
  CHECK(Topology(platform, 40).node_of_worker() == random.node_of_worker());
  CHECK(platform.placement.text() == "random:5");
  for (const char* const bad : {"random", "random:", "random:x", "random:-1", "other", ""})
    CHECK_THROWS_AS(Placement::from_text(bad), InputError);
  Json document = node_document(4, 2);
  document["placement"] = {{"order", "random"}, {"seed", 5}};
  CHECK(platform_of(document).placement.text() == "random:5");
  document["placement"].erase("seed");
  CHECK_THAT(error_of_text(document.dump()), StartsWith("/placement: expected the key \"seed\""));
}

TEST_CASE("NICs that are used together are one link of all their bandwidth") {
  Json document = node_document(4, 2);
  document["node"]["nics"]["together"] = true;
  const Platform platform = platform_of(document);
  const Topology topology(platform, 8);
  CHECK(route_names(topology, 1, 5) == Names{"node0.device1.up", "node0.nic0.up", "node1.nic0.down", "node1.device1.down"});
  CHECK(topology.bandwidth_Bps(topology.route(1, 5)) == 20e9);
}

TEST_CASE("Keys of another topology are refused") {
  CHECK_THAT(error_of_text(with_network({{"topology", "fat_tree"}, {"uplinks", 2}, {"link", some_link}}).dump()),
             StartsWith("/network: expected the key \"nodes_per_switch\""));
  CHECK_THAT(error_with("/network/uplinks", 2), StartsWith("/network/uplinks: expected no such key as the topology is crossbar"));
}
