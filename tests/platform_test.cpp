#include "platforms/platform.hpp"

#include <cstdlib>
#include <set>

#include "base/error.hpp"
#include "base/files.hpp"
#include "tests/catch.hpp"

using namespace sparscale;
using namespace sparscale::platforms;

namespace {

const std::filesystem::path folder = std::filesystem::temp_directory_path() / "sparscale-platform-test";

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
  write_file_atomic(folder / "p.json", document.dump());
  return Platform::load(folder / "p.json");
}

std::string error_of_text(const std::string& text) {
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
  CHECK_THROWS_AS(topology.route(0, 7), InputError);
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
  CHECK(error_with("/network/topology", "ring") == "/network/topology: expected one of crossbar, found \"ring\"");
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
