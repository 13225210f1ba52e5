// The SimGrid back-end against SMPI: the same algorithms, run by SimGrid's own MPI implementation from its own source, on the same links.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/random.hpp"
#include "sim/network.hpp"
#include "tests/catch.hpp"
#include "tests/command.hpp"

using namespace sparscale;
using namespace sparscale::sim;
using platforms::Platform;

namespace {

constexpr std::uint64_t envelope = 16;  // SMPI adds these bytes to every message

bool have_smpirun() { return std::system("command -v smpirun > /dev/null 2>&1") == 0; }

// A program whose worker i runs on device place[i].
class Placed : public Program {
 public:
  Placed(const Program& program, std::vector<std::int64_t> place) : program_(program), place_(std::move(place)), rank_(place_.size()) {
    for (std::size_t i = 0; i < place_.size(); ++i) rank_[static_cast<std::size_t>(place_[i])] = static_cast<std::int64_t>(i);
  }
  std::int64_t workers() const override { return program_.workers(); }
  std::int64_t steps(std::int64_t device) const override { return program_.steps(rank_[static_cast<std::size_t>(device)]); }
  void step(std::int64_t device, std::int64_t number, Step& step) const override {
    program_.step(rank_[static_cast<std::size_t>(device)], number, step);
    for (Transfer& transfer : step.sends) transfer.peer = place_[static_cast<std::size_t>(transfer.peer)];
    for (std::int64_t& peer : step.receives) peer = place_[static_cast<std::size_t>(peer)];
  }

 private:
  const Program& program_;
  std::vector<std::int64_t> place_, rank_;
};

// A program whose messages carry SMPI's envelope.
class Enveloped : public Program {
 public:
  explicit Enveloped(std::unique_ptr<Program> program) : program_(std::move(program)) {}
  std::int64_t workers() const override { return program_->workers(); }
  std::int64_t steps(std::int64_t worker) const override { return program_->steps(worker); }
  void step(std::int64_t worker, std::int64_t number, Step& step) const override {
    program_->step(worker, number, step);
    for (Transfer& transfer : step.sends) transfer.bytes += envelope;
  }

 private:
  std::unique_ptr<Program> program_;
};

std::string exact(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

// Runs one collective under SMPI, all messages by rendezvous (by default those below 64 KiB free their sender at once); an action is a line
// of its trace format, one for all ranks or one for each. Returns when each rank has ended it.
std::vector<double> replay(const Platform& platform, const std::vector<std::int64_t>& place, const std::vector<double>& start_s,
                           const std::string& option, const std::vector<std::string>& actions) {
  const std::size_t n = place.size();
  const platforms::Topology topology(platform, static_cast<std::int64_t>(n));
  const tests::Scratch folder("smpi");
  std::string xml =
      "<?xml version='1.0'?>\n<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n<platform version=\"4.1\">"
      "<zone id=\"z\" routing=\"Full\">\n";
  for (std::size_t i = 0; i < n; ++i) xml += "<host id=\"w" + std::to_string(i) + "\" speed=\"1e9f\"/>\n";
  for (const platforms::Link& link : topology.links())
    xml +=
        "<link id=\"" + link.name + "\" bandwidth=\"" + exact(link.bandwidth_Bps) + "Bps\" latency=\"" + exact(link.latency_s) + "s\"/>\n";
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) {
      if (i == j) continue;
      xml += "<route src=\"w" + std::to_string(i) + "\" dst=\"w" + std::to_string(j) + "\" symmetrical=\"NO\">";
      for (const std::int32_t link : topology.route(static_cast<std::int64_t>(i), static_cast<std::int64_t>(j)))
        xml += "<link_ctn id=\"" + topology.links()[static_cast<std::size_t>(link)].name + "\"/>";
      xml += "</route>\n";
    }
  write_file_atomic(folder / "platform.xml", xml + "</zone></platform>\n");
  std::string hosts, list;
  for (std::size_t i = 0; i < n; ++i) {
    hosts += "w" + std::to_string(place[i]) + "\n";
    list += (folder / ("rank" + std::to_string(i))).string() + "\n";
    const std::string rank = std::to_string(i);
    write_file_atomic(folder / ("rank" + rank), rank + " init\n" + rank + " sleep " + exact(start_s[i]) + "\n" + rank + " " +
                                                    actions[actions.size() == 1 ? 0 : i] + "\n" + rank + " finalize\n");
  }
  write_file_atomic(folder / "hosts", hosts);
  write_file_atomic(folder / "list", list);
  const std::string command = "cd '" + folder.path().string() + "' && smpirun -np " + std::to_string(n) +
                              " -platform platform.xml -hostfile hosts -replay list --cfg=network/model:CM02 --cfg=network/crosstraffic:0"
                              " --cfg=network/TCP-gamma:1e20 --cfg=network/loopback-bw:1e18 --cfg=smpi/simulate-computation:no"
                              " --cfg=contexts/stack-size:256 --cfg=surf/precision:1e-16 --cfg=smpi/send-is-detached-thresh:0 --cfg=" +
                              option +
                              " --log=root.thres:critical --log=smpi_replay.thres:verbose '--log=smpi_replay.fmt:SIMCLOCK%e%h%e%.17r%e%m%n'"
                              " 2>&1";
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string output;
  std::array<char, 4096> buffer{};
  while (const std::size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe)) output.append(buffer.data(), got);
  INFO(command << "\n" << output);
  REQUIRE(::pclose(pipe) == 0);
  std::vector<double> end_s(n, -1);
  std::istringstream lines(output);
  const std::string verb = actions.front().substr(0, actions.front().find(' '));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string mark, host, rank, what;
    double clock = 0;
    if (words >> mark >> host >> clock >> rank >> what && mark == "SIMCLOCK" && what == verb) end_s[std::stoul(rank)] = clock;
  }
  for (const double end : end_s) REQUIRE(end > 0);
  return end_s;
}

void compare(const Platform& platform, const std::vector<std::int64_t>& place, const std::vector<double>& start_s,
             const std::string& option, const std::vector<std::string>& actions, const Program& program,
             const std::string& expected_network = "") {
  const std::size_t n = place.size();
  const std::vector<double> truth = replay(platform, place, start_s, option, actions);
  const Placed placed(program, place);
  std::vector<double> start_of_device(n);
  for (std::size_t i = 0; i < n; ++i) start_of_device[static_cast<std::size_t>(place[i])] = start_s[i];
  const auto workers = static_cast<std::int64_t>(n);
  const CollectiveTiming simgrid = make_network("simgrid", platform, workers)->time(placed, start_of_device);
  const CollectiveTiming automatic = make_network("auto", platform, workers)->time(placed, start_of_device);
  if (!expected_network.empty()) CHECK(automatic.network == expected_network);
  for (std::size_t i = 0; i < n; ++i) {
    const auto device = static_cast<std::size_t>(place[i]);
    INFO("rank " << i);
    CHECK(std::abs(simgrid.end_s[device] - truth[i]) <= 1e-9 * truth[i]);
    CHECK(std::abs(automatic.end_s[device] - truth[i]) <= 1e-9 * truth[i]);
  }
}

Platform shipped(const std::string& name) { return Platform::load(platforms::find_platform(name)); }

std::vector<std::int64_t> in_order(std::int64_t n) {
  std::vector<std::int64_t> place(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) place[static_cast<std::size_t>(i)] = i;
  return place;
}

std::vector<double> skewed(std::int64_t n, double most_s) {
  Random random(stream_key(3, "smpi test start"));
  std::vector<double> start(static_cast<std::size_t>(n));
  for (double& s : start) s = most_s * random.uniform();
  return start;
}

std::unique_ptr<Program> all_gather(std::int64_t n, std::uint64_t m) {
  return find_collective(Operation::all_gather, "ring").make(std::vector<std::uint64_t>(static_cast<std::size_t>(n), m + envelope), 0);
}

// A buffer whose chunks, of m bytes each, carry the envelope.
std::unique_ptr<Program> all_reduce(std::int64_t n, std::uint64_t m) {
  const std::uint64_t whole = (m + envelope) * static_cast<std::uint64_t>(n);
  return find_collective(Operation::all_reduce, "ring").make(std::vector<std::uint64_t>(static_cast<std::size_t>(n), whole), 0);
}

const std::string neighbour_ring = "smpi/allgather:NTSLR", reduce_ring = "smpi/allreduce:lr";

std::string gather_action(std::uint64_t m) { return "allgather " + std::to_string(m) + " " + std::to_string(m) + " 6 6"; }

}  // namespace

TEST_CASE("Ring all-gather equals SMPI's neighbour ring") {
  if (!have_smpirun()) SPARSCALE_SKIP("smpirun is not installed");
  for (const std::string name : {"crossbar-100g", "nvlink8-ib", "dgx-a100"})
    for (const std::int64_t n : {2, 16, 24}) {
      INFO(name << " n = " << n);
      const std::vector<double> together(static_cast<std::size_t>(n), 0.0);
      compare(shipped(name), in_order(n), together, neighbour_ring, {gather_action(1000000)}, *all_gather(n, 1000000), "recurrence");
      compare(shipped(name), in_order(n), together, neighbour_ring, {gather_action(1000)}, *all_gather(n, 1000), "recurrence");
      compare(shipped(name), in_order(n), skewed(n, 1e-3), neighbour_ring, {gather_action(500000)}, *all_gather(n, 500000), "recurrence");
    }
}

TEST_CASE("Ring all-reduce equals SMPI's lr") {
  if (!have_smpirun()) SPARSCALE_SKIP("smpirun is not installed");
  for (const std::string name : {"crossbar-100g", "nvlink8-ib"})
    for (const std::int64_t n : {4, 16}) {
      INFO(name << " n = " << n);
      const std::vector<double> together(static_cast<std::size_t>(n), 0.0);
      const std::uint64_t m = 400000;
      const std::string action = "allreduce " + std::to_string(m * static_cast<std::uint64_t>(n)) + " 0 6";
      compare(shipped(name), in_order(n), together, reduce_ring, {action}, *all_reduce(n, m), "recurrence");
      compare(shipped(name), in_order(n), skewed(n, 1e-3), reduce_ring, {action}, *all_reduce(n, m), "recurrence");
    }
}

TEST_CASE("A ring whose neighbours share NICs equals SMPI's") {
  if (!have_smpirun()) SPARSCALE_SKIP("smpirun is not installed");
  // Every second rank on the other node: all messages cross the two NICs.
  for (const std::string name : {"nvlink8-ib", "kisti-neuron-v100"}) {
    const std::int64_t n = 16;
    std::vector<std::int64_t> place;
    for (std::int64_t i = 0; i < n; ++i) place.push_back(i % 2 * 8 + i / 2);
    const std::vector<double> together(static_cast<std::size_t>(n), 0.0);
    INFO(name);
    compare(shipped(name), place, together, neighbour_ring, {gather_action(1000000)}, *all_gather(n, 1000000), "simgrid");
    compare(shipped(name), place, skewed(n, 1e-3), neighbour_ring, {gather_action(1000000)}, *all_gather(n, 1000000), "simgrid");
  }
}

TEST_CASE("Ring, recursive doubling, Bruck and neighbour exchange equal SMPI's on every kind of platform") {
  if (!have_smpirun()) SPARSCALE_SKIP("smpirun is not installed");
  const std::int64_t n = 16;
  const std::uint64_t m = 300000;
  const auto program = [&](Operation operation, const std::string& name) {
    return Enveloped(find_collective(operation, name).make(std::vector<std::uint64_t>(static_cast<std::size_t>(n), m), 0));
  };
  for (const std::string name : {"crossbar-25g", "polaris", "fat-tree-100g", "dragonfly-200g", "torus-8x8x16"}) {
    const auto start = skewed(n, 1e-3);
    for (const auto& [ours, theirs] :
         {std::pair{"ring", "NTSLR"}, {"recursive_doubling", "rdb"}, {"bruck", "bruck"}, {"neighbour_exchange", "ompi_neighborexchange"}}) {
      INFO(name << " all_gather " << ours);
      compare(shipped(name), in_order(n), start, std::string("smpi/allgather:") + theirs, {gather_action(m)},
              program(Operation::all_gather, ours));
    }
    INFO(name << " all_reduce recursive_doubling");
    compare(shipped(name), in_order(n), start, "smpi/allreduce:rdb", {"allreduce " + std::to_string(m) + " 0 6"},
            program(Operation::all_reduce, "recursive_doubling"));
  }
}

TEST_CASE("A pairwise all-to-all of unequal parts equals SMPI's on every kind of platform") {
  if (!have_smpirun()) SPARSCALE_SKIP("smpirun is not installed");
  for (const std::string name : {"crossbar-25g", "polaris", "fat-tree-100g", "dragonfly-200g", "torus-8x8x16"})
    for (const std::size_t n : {7, 15}) {  // where n is a power of two SMPI pairs rank i with i xor s instead
      INFO(name << " n = " << n);
      // Parts of any size, some empty; everyone has a lot for worker 2.
      Random random(stream_key(4, "smpi parts", {n}));
      std::vector<std::uint64_t> parts(n * n, 0), bytes(n, 0);
      for (std::size_t i = 0; i < n * n; ++i) {
        if (i / n != i % n) parts[i] = i % n == 2 ? 800000 : random.below(4) == 0 ? 0 : random.below(200000);
        bytes[i / n] += parts[i];
      }
      std::vector<std::string> actions;
      for (std::size_t rank = 0; rank < n; ++rank) {
        std::string sent, received;
        std::uint64_t in = 0;
        for (std::size_t other = 0; other < n; ++other) {
          sent += " " + std::to_string(parts[rank * n + other]);
          received += " " + std::to_string(parts[other * n + rank]);
          in += parts[other * n + rank];
        }
        actions.push_back("alltoallv " + std::to_string(bytes[rank]) + sent + " " + std::to_string(in) + received + " 6 6");
      }
      CollectiveInput input{bytes, 0, {}};
      input.parts = parts;
      const Enveloped program(find_collective(Operation::all_to_all, "pairwise").make(input));
      const auto workers = static_cast<std::int64_t>(n);
      compare(shipped(name), in_order(workers), skewed(workers, 1e-3), "smpi/alltoallv:ring", actions, program,
              name == "crossbar-25g" ? "recurrence" : "");
    }
}
