#include "sim/network.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/random.hpp"
#include "sim/collective_command.hpp"
#include "sim/network_backends.hpp"
#include "tests/catch.hpp"
#include "tests/command.hpp"

using namespace sparscale;
using namespace sparscale::sim;
using platforms::Platform;

namespace {

// A program written out message by message.
class Script : public Program {
 public:
  explicit Script(std::vector<std::vector<Step>> workers) : workers_(std::move(workers)) {}
  std::int64_t workers() const override { return static_cast<std::int64_t>(workers_.size()); }
  std::int64_t steps(std::int64_t worker) const override {
    return static_cast<std::int64_t>(workers_[static_cast<std::size_t>(worker)].size());
  }
  void step(std::int64_t worker, std::int64_t number, Step& step) const override {
    step = workers_[static_cast<std::size_t>(worker)][static_cast<std::size_t>(number)];
  }

 private:
  std::vector<std::vector<Step>> workers_;
};

// The same program without saying that it is a ring.
class Plain : public Program {
 public:
  explicit Plain(const Program& program) : program_(program) {}
  std::int64_t workers() const override { return program_.workers(); }
  std::int64_t steps(std::int64_t worker) const override { return program_.steps(worker); }
  void step(std::int64_t worker, std::int64_t number, Step& step) const override { program_.step(worker, number, step); }

 private:
  const Program& program_;
};

// Says that it is a ring, but sends two messages at once from its second step on.
class FalseRing : public Plain {
 public:
  explicit FalseRing(const Program& program) : Plain(program), blocks_(program.ring_block_bytes()) {}
  std::span<const std::uint64_t> ring_block_bytes() const override { return blocks_; }
  void step(std::int64_t worker, std::int64_t number, Step& step) const override {
    Plain::step(worker, number, step);
    if (number == 0) return;
    step.sends.push_back(step.sends.front());
    step.receives.push_back(step.receives.front());
  }

 private:
  std::span<const std::uint64_t> blocks_;
};

// Aborts in any process but the one that made it.
class Aborting : public Plain {
 public:
  using Plain::Plain;
  void step(std::int64_t worker, std::int64_t number, Step& step) const override {
    if (::getpid() != owner_) std::abort();
    Plain::step(worker, number, step);
  }

 private:
  pid_t owner_ = ::getpid();
};

Step step_of(std::vector<Transfer> sends, std::vector<std::int64_t> receives) {
  Step step;
  step.sends = std::move(sends);
  step.receives = std::move(receives);
  return step;
}

Platform shipped(const std::string& name) { return Platform::load(platforms::find_platform(name)); }

Platform platform_of(const Json& document) {
  const tests::Scratch folder("network");
  write_file_atomic(folder / "p.json", document.dump());
  return Platform::load(folder / "p.json");
}

// Nodes with numbers that are easy to compute with: device links of 100 GB/s and 1 us, NICs of 10 GB/s and 2 us.
Platform nodes_of(int devices, int nics) {
  Json document = shipped("nvlink8-ib").document;
  document["name"] = "test";
  document["node"]["devices"] = devices;
  document["node"]["nics"]["count"] = nics;
  document["node"]["nics"]["bandwidth_GBps"] = 10;
  document["node"]["nics"]["latency_us"] = 2;
  document["node"]["device_link"]["bandwidth_GBps"] = 100;
  document["node"]["device_link"]["latency_us"] = 1;
  return platform_of(document);
}

std::vector<double> together(std::size_t n) { return std::vector<double>(n, 0.0); }

std::vector<double> skewed(std::size_t n, std::uint64_t seed, double most_s) {
  Random random(stream_key(seed, "network test start"));
  std::vector<double> start(n);
  for (double& s : start) s = most_s * random.uniform();
  return start;
}

std::vector<std::uint64_t> unequal(std::size_t n, std::uint64_t seed, std::uint64_t most) {
  Random random(stream_key(seed, "network test bytes"));
  std::vector<std::uint64_t> bytes(n);
  for (std::uint64_t& b : bytes) b = random.below(8) == 0 ? 0 : random.below(most);
  return bytes;
}

std::unique_ptr<Program> make(Operation operation, const std::string& algorithm, const std::vector<std::uint64_t>& bytes,
                              std::int64_t root = 0) {
  return find_collective(operation, algorithm).make(bytes, root);
}

double last(const CollectiveTiming& timing) { return *std::max_element(timing.end_s.begin(), timing.end_s.end()); }

double difference(const CollectiveTiming& a, const CollectiveTiming& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.end_s.size(); ++i) worst = std::max(worst, std::abs(a.end_s[i] - b.end_s[i]) / last(b));
  return worst;
}

bool is(double value, double expected) { return std::abs(value - expected) <= 1e-12 * std::abs(expected); }

}  // namespace

TEST_CASE("Both back-ends give the closed forms on a crossbar") {
  const Platform platform = shipped("crossbar-100g");
  const double alpha = 4e-6, bandwidth = 11e9;
  for (const std::string name : {"recurrence", "simgrid"})
    for (const std::size_t n : {1, 2, 3, 5, 8, 13, 64}) {
      INFO(name << " n = " << n);
      const auto network = make_network(name, platform, static_cast<std::int64_t>(n));
      const auto time = [&](Operation operation, const std::string& algorithm, const std::vector<std::uint64_t>& bytes) {
        const CollectiveTiming timing = network->time(*make(operation, algorithm, bytes), together(n));
        CHECK(timing.network == name);
        return last(timing);
      };
      const double hops = static_cast<double>(n - 1), levels = std::log2(static_cast<double>(n));
      for (const std::uint64_t m : {0, 1, 8, 4000, 1000000}) {
        const double alone = alpha + static_cast<double>(m) / bandwidth;
        CHECK(is(time(Operation::all_gather, "ring", std::vector<std::uint64_t>(n, m)), hops * alone));
        CHECK(is(time(Operation::broadcast, "binomial", std::vector<std::uint64_t>(n, m)), std::ceil(levels) * alone));
        if (name == "simgrid" && levels == std::floor(levels))
          CHECK(is(time(Operation::broadcast, "binomial_concurrent", std::vector<std::uint64_t>(n, m)),
                   levels * (alpha + (levels + 1) / 2 * static_cast<double>(m) / bandwidth)));
        // Buffers of n times m bytes make chunks of m bytes.
        const std::uint64_t whole = 4 * m * n;
        const double chunk = alpha + 4.0 * static_cast<double>(m) / bandwidth;
        CHECK(is(time(Operation::all_reduce, "ring", std::vector<std::uint64_t>(n, whole)), 2 * hops * chunk));
        CHECK(is(time(Operation::reduce_scatter, "ring", std::vector<std::uint64_t>(n, whole)), hops * chunk));
      }
      // Forwarding whole blocks costs what padding costs, on equal links.
      const auto bytes = unequal(n, n, 300000);
      const double largest = static_cast<double>(*std::max_element(bytes.begin(), bytes.end()));
      CHECK(is(time(Operation::all_gather, "ring", bytes), hops * (alpha + largest / bandwidth)));
      CHECK(is(time(Operation::all_gather, "ring_padded", bytes), hops * (alpha + largest / bandwidth)));
    }
}

TEST_CASE("The algorithms with steps of their own meet their closed forms in both back-ends") {
  const Platform platform = shipped("crossbar-100g");
  const double alpha = 4e-6, bandwidth = 11e9;
  for (const std::string name : {"recurrence", "simgrid"})
    for (const std::size_t n : {1, 2, 3, 6, 7, 8, 16, 24}) {
      const auto network = make_network(name, platform, static_cast<std::int64_t>(n));
      const double N = static_cast<double>(n), hops = N - 1, up = std::ceil(std::log2(N)), p = std::exp2(std::floor(std::log2(N)));
      const double levels = std::log2(p), folded = p < N ? 1 : 0;
      for (const std::uint64_t m : {0, 4, 4000, 1000000}) {
        INFO(name << " n = " << n << " m = " << m);
        const double M = static_cast<double>(m), alone = alpha + M / bandwidth;
        const auto time = [&](Operation operation, const std::string& algorithm, std::uint64_t bytes, std::uint64_t chunk_bytes = 0) {
          const std::vector<std::uint64_t> all(n, bytes);
          return last(
              network->time(*find_collective(operation, algorithm).make(CollectiveInput{all, 0, {}, chunk_bytes, 0, 1}), together(n)));
        };
        // All-gathers of blocks of m bytes.
        CHECK(is(time(Operation::all_gather, "bruck", m), up * alpha + hops * M / bandwidth));
        CHECK(is(time(Operation::all_gather, "recursive_doubling", m), up * alpha + hops * M / bandwidth));
        CHECK(is(time(Operation::all_gather, "neighbour_exchange", m), n % 2 == 0 ? N / 2 * alpha + hops * M / bandwidth : hops * alone));
        CHECK(is(time(Operation::all_gather, "hierarchical", m), hops * alone));  // nodes of one worker
        // Blocks of five equal chunks.
        for (const char* const pipelined : {"pipelined_rr", "pipelined_ready"})
          CHECK(is(time(Operation::all_gather, pipelined, 5 * m, std::max<std::uint64_t>(m, 1)), hops * (m > 0 ? 5 : 1) * alone));
        // All-reduces of a buffer that every number of workers cuts evenly.
        CHECK(is(time(Operation::all_reduce, "recursive_doubling", m), (levels + 2 * folded) * alone));
        const std::uint64_t even = m * static_cast<std::uint64_t>(p);
        CHECK(is(time(Operation::all_reduce, "rabenseifner", even),
                 2 * levels * alpha + 2 * (p - 1) * M / bandwidth + 2 * folded * (alpha + p * M / bandwidth)));
        const std::uint64_t whole = m * n;
        CHECK(is(time(Operation::all_reduce, "hierarchical", whole), 2 * hops * alone));
        CHECK(is(time(Operation::all_reduce, "parameter_server", m), 2 * hops * alone));
        CHECK(is(time(Operation::all_reduce, "parameter_server_sharded", whole), 2 * hops * alone));
        const double chunks = m > 0 ? 5 : 1;
        CHECK(is(time(Operation::all_reduce, "in_network", 5 * m, std::max<std::uint64_t>(m, 1)),
                 n > 1 ? (chunks + 1) * (alpha / 2 + M / bandwidth) : 0));
        CHECK(is(time(Operation::broadcast, "ring_pipelined", 5 * m, std::max<std::uint64_t>(m, 1)),
                 n > 1 ? (hops - 1 + chunks) * alone : 0));
        CHECK(is(time(Operation::reduce_scatter, "pairwise", whole), hops * alone));
        // The first worker has the longest way: at distance d it gets the chunks of d ranks, of which the first `rest` have two.
        double halving = folded * (2 * alpha + (N + 1) * M / bandwidth);
        for (double d = p / 2; d >= 1; d /= 2) halving += alpha + (d + std::min(N - p, d)) * M / bandwidth;
        CHECK(is(time(Operation::reduce_scatter, "recursive_halving", whole), halving));
        CHECK(is(time(Operation::all_gather, "leader", m), hops * alone));  // nodes of one worker
        CHECK(is(time(Operation::all_reduce, "leader", whole), 2 * hops * alone));
        const double peers = n > 1 ? 1 : 0;
        CHECK(is(time(Operation::gossip, "exponential", m), peers * alone));
        CHECK(is(time(Operation::gossip, "ring_neighbours", m), (n > 2 ? 2 : peers) * alone));
        CHECK(is(time(Operation::gossip, "crossover", 8 * m), peers * 8 * alone));
        CHECK(is(time(Operation::gossip, "crossover_hierarchical", 8 * m), peers * 8 * alone));
        // One aggregator: its parts share the link in, its sums the link out, in stretches one after the other.
        if (name == "simgrid" && n <= 9) {
          const std::vector<std::uint64_t> all(n, 5 * m);
          const SparseStream stream{std::vector<std::vector<std::uint64_t>>(n, std::vector<std::uint64_t>(5, m)),
                                    std::vector<std::uint64_t>(5, m), 1};
          const auto program =
              find_collective(Operation::sparse_all_reduce, "streaming").make(CollectiveInput{all, 0, {}, 0, 0, 1, &stream});
          CHECK(is(last(network->time(*program, together(n))), n > 1 ? 6 * (alpha + hops * M / bandwidth) : 0));
        }
        // Four messages share a link, so only SimGrid times them.
        if (name == "simgrid" && n > 1)
          CHECK(is(time(Operation::all_to_all, "throttled", m * (n - 1)), std::ceil(hops / 4) * alpha + hops * M / bandwidth));
      }
    }
}

TEST_CASE("Hierarchical collectives follow the nodes") {
  // Device links of 100 GB/s and 1 us, NICs of 10 GB/s and 2 us.
  const std::uint64_t block = 1000000;
  for (const auto& [nodes, g] : {std::pair{2, 4}, {4, 8}, {3, 4}, {8, 2}}) {
    const auto n = static_cast<std::size_t>(nodes * g);
    const double N = nodes, G = g, m = static_cast<double>(block) * static_cast<double>(n);
    const double alpha1 = 2e-6, B1 = 100e9, alpha2 = 6e-6, B2 = 10e9;
    const auto time = [&](const Platform& platform, Operation operation, std::uint64_t bytes) {
      const auto network = make_network("auto", platform, static_cast<std::int64_t>(n));
      const auto program =
          find_collective(operation, "hierarchical").make(std::vector<std::uint64_t>(n, bytes), 0, network->node_of_worker());
      return last(network->time(*program, together(n)));
    };
    INFO(nodes << " nodes of " << g);
    // A NIC for every device, and one that they share.
    for (const bool shared : {false, true}) {
      const Platform platform = nodes_of(g, shared ? 1 : g);
      const double between = shared ? B2 / G : B2;
      const double expected = 2 * (G - 1) * (alpha1 + m / (G * B1)) + 2 * (N - 1) * (alpha2 + m / (G * N * between));
      CHECK(time(platform, Operation::all_reduce, block * n) == Approx(expected).epsilon(1e-9));
      const double b = static_cast<double>(block);
      CHECK(time(platform, Operation::all_gather, block) ==
            Approx((N - 1) * (alpha2 + b / between) + (G - 1) * (alpha1 + N * b / B1)).epsilon(1e-9));
    }
  }
}

TEST_CASE("Leaders carry what their nodes have, where nodes differ as well") {
  const double alpha1 = 2e-6, B1 = 100e9, alpha2 = 6e-6, B2 = 10e9;
  const std::uint64_t block = 1000000;
  const double b = static_cast<double>(block);
  const auto time = [&](int g, std::size_t n, Operation operation, const std::string& name, std::uint64_t bytes) {
    const auto network = make_network("simgrid", nodes_of(g, 1), static_cast<std::int64_t>(n));
    const auto program = find_collective(operation, name).make(std::vector<std::uint64_t>(n, bytes), 0, network->node_of_worker());
    return last(network->time(*program, together(n)));
  };
  for (const auto& [nodes, g] : {std::pair{2, 4}, {4, 8}, {3, 4}, {8, 2}}) {
    INFO(nodes << " nodes of " << g);
    const auto n = static_cast<std::size_t>(nodes * g);
    const double N = nodes, G = g, m = b * static_cast<double>(n);
    CHECK(is(time(g, n, Operation::all_gather, "leader", block),
             (G - 1) * (alpha1 + b / B1) + (N - 1) * (alpha2 + G * b / B2) + (N + G - 2) * (alpha1 + G * b / B1)));
    CHECK(is(time(g, n, Operation::all_reduce, "leader", block * n),
             4 * (G - 1) * (alpha1 + m / (G * B1)) + 2 * (N - 1) * (alpha2 + m / (N * B2))));
    CHECK(is(time(g, n, Operation::gossip, "crossover_hierarchical", 8 * block * n),
             2 * (G - 1) * (alpha1 + 8 * m / (G * B1)) + 8 * (alpha2 + m / B2) + (6 + G) * (alpha1 + m / B1)));
  }
  // Two nodes of 8 and one of 3: the largest node and the most bytes decide.
  const double N = 3, G = 8, m = b * 19 * 24;
  CHECK(is(time(8, 19, Operation::all_reduce, "hierarchical", block * 19 * 24),
           4 * (G - 1) * (alpha1 + m / (G * B1)) + 2 * (N - 1) * (alpha2 + m / (N * B2))));
  CHECK(is(time(8, 19, Operation::all_gather, "hierarchical", block),
           (G - 1) * (alpha1 + b / B1) + (N - 1) * (alpha2 + G * b / B2) + (N + G - 2) * (alpha1 + G * b / B1)));
}

TEST_CASE("Chunks make imbalance cheap, and how cheap depends on what is sent first") {
  // Numbers with which docs/collectives.md's statements were worked out: alpha = 3, 1 / B = 0.01.
  Json document = shipped("crossbar-100g").document;
  document["node"]["nics"]["latency_us"] = 1.5;
  document["node"]["nics"]["bandwidth_GBps"] = 1e-1;
  const Platform platform = platform_of(document);
  const double alpha = 3e-6, bandwidth = 1e8;
  const auto time = [&](const std::string& algorithm, const std::vector<std::uint64_t>& bytes, std::uint64_t chunk_bytes) {
    const auto network = make_network("recurrence", platform, static_cast<std::int64_t>(bytes.size()));
    return last(network->time(*find_collective(Operation::all_gather, algorithm).make(CollectiveInput{bytes, 0, {}, chunk_bytes, 0, 1}),
                              together(bytes.size())));
  };
  // One heavy worker, round-robin: exact.
  const std::size_t n = 16;
  std::vector<std::uint64_t> heavy(n, 1000);
  heavy[5] = 64000;
  const double padded = 15 * (alpha + 64000 / bandwidth);
  CHECK(is(time("ring", heavy, 0), padded));
  CHECK(is(time("ring_padded", heavy, 0), padded));
  for (const std::uint64_t chunk : {16000, 4000, 1000}) {
    const double chunks = 14 + 64000.0 / static_cast<double>(chunk), c = static_cast<double>(chunk);
    const double expected = std::min(padded, chunks * alpha + (14 * 1000 + 64000) / bandwidth + 14 * (alpha + c / bandwidth));
    CHECK(time("pipelined_rr", heavy, chunk) == Approx(expected).epsilon(1e-9));
  }
  // Random sizes: whatever arrived first comes near the floor, round-robin does not, padding pays for the largest.
  for (const std::uint64_t seed : {1, 2, 3, 4}) {
    Random random(stream_key(seed, "log-normal"));
    std::vector<std::uint64_t> bytes(n);
    double sum = 0;
    for (std::uint64_t& b : bytes) {
      b = static_cast<std::uint64_t>(2e5 * std::exp(0.5 * random.normal()));
      sum += static_cast<double>(b);
    }
    const double floor = (sum - static_cast<double>(*std::min_element(bytes.begin(), bytes.end()))) / bandwidth;
    const double ready = time("pipelined_ready", bytes, 4000), in_turn = time("pipelined_rr", bytes, 4000), whole = time("ring", bytes, 0);
    INFO("seed " << seed << " floor " << floor << " ready " << ready << " in turn " << in_turn << " padded " << whole);
    CHECK(ready >= floor);
    CHECK(ready < 1.2 * floor);
    CHECK(in_turn > 1.1 * ready);
    CHECK(in_turn <= 1.1 * whole);
  }
  // The lanes' times do not depend on the back-end.
  std::vector<std::uint64_t> bytes{50000, 0, 1000, 200000, 70000};
  for (const char* const algorithm : {"pipelined_rr", "pipelined_ready"}) {
    const auto program = find_collective(Operation::all_gather, algorithm).make(CollectiveInput{bytes, 0, {}, 7000, 0, 1});
    const auto start = skewed(5, 4, 1e-3);
    const CollectiveTiming a = make_network("recurrence", platform, 5)->time(*program, start);
    const CollectiveTiming b = make_network("simgrid", platform, 5)->time(*program, start);
    CHECK(difference(a, b) < 1e-12);
    CHECK(a.bytes_sent == b.bytes_sent);
  }
}

TEST_CASE("Eager messages start when their sender is ready") {
  // Worker 2 receives from 0, which starts late, before it receives from 1.
  const std::uint64_t m = 11000000;
  const Script program({{step_of({{2, m, 0, 1}}, {})}, {step_of({{2, m, 0, 1}}, {})}, {step_of({}, {0}), step_of({}, {1})}});
  const std::vector<double> start{5e-3, 0, 0};
  Platform platform = shipped("crossbar-100g");
  const double alone = 4e-6 + 1e-3;
  CHECK(is(last(make_network("auto", platform, 3)->time(program, start)), 5e-3 + 2 * alone));
  platform.eager = true;
  const CollectiveTiming eager = make_network("auto", platform, 3)->time(program, start);
  CHECK(eager.network == "simgrid");  // the messages might meet on the receiver's link
  CHECK(is(eager.end_s[1], alone));
  CHECK(is(last(eager), 5e-3 + alone));
  // In a ring they cannot: nothing else goes to a worker.
  const auto ring = make(Operation::all_gather, "ring", unequal(6, 3, 2000000));
  const CollectiveTiming a = make_network("recurrence", platform, 6)->time(*ring, skewed(6, 2, 1e-4));
  const CollectiveTiming b = make_network("simgrid", platform, 6)->time(*ring, skewed(6, 2, 1e-4));
  CHECK(difference(a, b) < 1e-12);
  const Script unheard({{step_of({{1, 8, 0, 1}}, {})}, {}});
  CHECK_THROWS_WITH(make_network("auto", platform, 2)->time(unheard, together(2)), ContainsSubstring("to receive its message"));
}

TEST_CASE("The double binary tree keeps both directions of its workers busy") {
  const Platform platform = shipped("crossbar-100g");
  const double alpha = 4e-6, bandwidth = 11e9, m = 64e6, c = 256e3;
  for (const std::size_t n : {4, 8, 13, 32}) {
    const double time =
        last(make_network("auto", platform, static_cast<std::int64_t>(n))
                 ->time(*make(Operation::all_reduce, "double_binary_tree", std::vector<std::uint64_t>(n, 64000000)), together(n)));
    const double levels = std::ceil(std::log2(static_cast<double>(n)));
    INFO("n = " << n << ": " << time * bandwidth / (2 * m) << " times 2 m / B");
    CHECK(time >= 2 * m / bandwidth);
    CHECK(time <= 1.7 * 2 * m / bandwidth + 2 * levels * (alpha + c / bandwidth));
  }
}

TEST_CASE("Other topologies are timed by SimGrid on the routes of the platform, and exactly where nothing is shared") {
  for (const std::string name : {"fat-tree-100g", "dragonfly-200g", "torus-8x8x16"})
    for (const std::string placement : {"consecutive", "random:3"}) {
      Platform platform = shipped(name);
      platform.placement = platforms::Placement::from_text(placement);
      const std::size_t n = 40;
      INFO(name << " " << placement);
      const auto program = make(Operation::all_gather, "ring", unequal(n, 2, 400000));
      const bool exact = recurrence_is_exact(*program, platforms::Topology(platform, 40));
      const CollectiveTiming simgrid = make_network("simgrid", platform, 40)->time(*program, skewed(n, 3, 1e-4));
      CHECK(last(simgrid) > 0);
      if (placement == "consecutive") CHECK(exact);
      if (exact) CHECK(difference(make_network("recurrence", platform, 40)->time(*program, skewed(n, 3, 1e-4)), simgrid) < 1e-12);
    }
  // 32 nodes below two leaf switches with 8 uplinks each: all send to the other side, so that 16 flows share 8 uplinks.
  const Platform tree = shipped("fat-tree-100g");
  std::vector<std::vector<Step>> steps;
  for (std::int64_t i = 0; i < 32; ++i) steps.push_back({step_of({{(i + 16) % 32, 11000000, 0, 1}}, {(i + 16) % 32})});
  CHECK(last(make_network("auto", tree, 32)->time(Script(steps), together(32))) == Approx(4e-6 + 2 * 1e-3).epsilon(1e-9));
}

TEST_CASE("The recurrence gives SimGrid's times wherever it says it is exact") {
  std::size_t compared = 0;
  for (const Platform& platform : {shipped("crossbar-100g"), shipped("nvlink8-ib"), shipped("dgx-a100"), nodes_of(3, 2)})
    for (const std::size_t n : {2, 3, 8, 13, 16, 64}) {
      const auto workers = static_cast<std::int64_t>(n);
      const auto simgrid = make_network("simgrid", platform, workers), recurrence = make_network("recurrence", platform, workers);
      const platforms::Topology topology(platform, workers);
      for (const CollectiveAlgorithm& algorithm : collective_algorithms())
        for (const bool skew : {false, true}) {
          if (n == 64 && !skew) continue;
          INFO(platform.name << " n = " << n << " " << operation_name(algorithm.operation) << " " << algorithm.name << " skew " << skew);
          const bool gather = algorithm.operation == Operation::all_gather;
          const auto program = algorithm.make(gather ? unequal(n, 7, 2000000) : std::vector<std::uint64_t>(n, 1000004),
                                              algorithm.operation == Operation::broadcast ? workers / 2 : 0, topology.node_of_worker());
          const auto start = skew ? skewed(n, 5, 1e-3) : together(n);
          if (!recurrence_is_exact(*program, topology)) {
            // On a crossbar only those that send several messages at once.
            const bool at_once = algorithm.name == "binomial_concurrent" || algorithm.name == "double_binary_tree" ||
                                 algorithm.name == "throttled" || algorithm.name == "streaming";
            CHECK((platform.devices_per_node > 1 || at_once));
            CHECK_THROWS_AS(recurrence->time(*program, start), InputError);
            continue;
          }
          const CollectiveTiming a = recurrence->time(*program, start), b = simgrid->time(*program, start);
          REQUIRE(difference(a, b) < 1e-12);
          REQUIRE(a.bytes_sent == b.bytes_sent);
          REQUIRE(a.messages == b.messages);
          ++compared;
        }
    }
  CHECK(compared > 150);
}

TEST_CASE("Messages that never meet take the same time when only some of them are simulated at once") {
  // More than the 64 that are under way at once.
  constexpr std::size_t n = 136;
  int compared = 0;
  for (const Platform& platform : {shipped("crossbar-100g"), nodes_of(8, 8)}) {
    const platforms::Topology topology(platform, n);
    const auto apart = make_simgrid(topology, 0), together_all = make_simgrid(topology, 1 << 20);
    for (const CollectiveAlgorithm& algorithm : collective_algorithms()) {
      const bool unequal_blocks = algorithm.operation == Operation::all_gather || algorithm.operation == Operation::all_to_all;
      const auto bytes = unequal_blocks ? unequal(n, 5, 300000) : std::vector<std::uint64_t>(n, 300000);
      const auto program = algorithm.make(CollectiveInput{bytes, 0, topology.node_of_worker(), 65536, 0, 1});
      if (program->lanes() > 1 || program->switches() > 0 || !recurrence_is_exact(*program, topology)) continue;
      INFO(platform.name << " " << operation_name(algorithm.operation) << " " << algorithm.name);
      const auto start = skewed(n, 3, 1e-3);
      const CollectiveTiming one = apart->time(*program, start), other = together_all->time(*program, start);
      CHECK(difference(one, other) <= 1e-12);
      CHECK(one.bytes_sent == other.bytes_sent);
      CHECK(one.messages == other.messages);
      CHECK(one.network == "simgrid");
      ++compared;
    }
  }
  CHECK(compared >= 40);

  // Whether they meet is seen from the times that come out.
  const platforms::Topology topology(shipped("crossbar-100g"), 4);
  const auto ring = make(Operation::all_gather, "ring", {1000, 2000, 3000, 4000});
  const FalseRing program(*ring);
  REQUIRE(recurrence_is_exact(program, topology));
  CHECK_THROWS_WITH(make_simgrid(topology, 0)->time(program, together(4)), ContainsSubstring("messages meet on link"));
  CHECK_NOTHROW(make_simgrid(topology, 4)->time(program, together(4)));
}

TEST_CASE("A ring is timed the same when its steps are walked") {
  for (const Platform& platform : {shipped("crossbar-25g"), nodes_of(4, 1)})
    for (const std::size_t n : {1, 2, 3, 7, 32}) {
      const auto network = make_network("recurrence", platform, static_cast<std::int64_t>(n));
      for (const auto& program : {make(Operation::all_gather, "ring", unequal(n, 3, 100000)),
                                  make(Operation::all_reduce, "ring", std::vector<std::uint64_t>(n, 12347)),
                                  make(Operation::reduce_scatter, "ring", std::vector<std::uint64_t>(n, 12347))}) {
        const auto start = skewed(n, 11, 1e-4);
        const CollectiveTiming fast = network->time(*program, start), slow = network->time(Plain(*program), start);
        CHECK(fast.end_s == slow.end_s);
        CHECK(fast.bytes_sent == slow.bytes_sent);
        CHECK(fast.messages == slow.messages);
      }
    }
}

TEST_CASE("Messages that share a NIC share its bandwidth, and only SimGrid times them") {
  const Platform platform = nodes_of(2, 1);
  // 0 and 1 are one node, 2 and 3 the other: 0 -> 2 and 1 -> 3 at the same time.
  const std::uint64_t m = 5000000;
  const Script pairs({{step_of({{2, m, 0, 1}}, {})}, {step_of({{3, m, 1, 1}}, {})}, {step_of({}, {0})}, {step_of({}, {1})}});
  const platforms::Topology topology(platform, 4);
  CHECK_FALSE(recurrence_is_exact(pairs, topology));
  const auto automatic = make_network("auto", platform, 4);
  const CollectiveTiming timing = automatic->time(pairs, together(4));
  CHECK(timing.network == "simgrid");
  for (const double end : timing.end_s) CHECK(std::abs(end - (6e-6 + 2 * 5e6 / 10e9)) < 1e-9 * end);
  CHECK_THROWS_WITH(make_network("recurrence", platform, 4)->time(pairs, together(4)), ContainsSubstring("share links"));
  // With a NIC for each device they do not share anything.
  const Platform rails = nodes_of(2, 2);
  CHECK(recurrence_is_exact(pairs, platforms::Topology(rails, 4)));
  const CollectiveTiming alone = make_network("auto", rails, 4)->time(pairs, together(4));
  CHECK(alone.network == "recurrence");
  for (const double end : alone.end_s) CHECK(is(end, 6e-6 + 5e6 / 10e9));
  // The broadcast on the shipped platform: eight workers of the first node send to the second one in its fourth round.
  const auto broadcast = make(Operation::broadcast, "binomial", std::vector<std::uint64_t>(16, 1000000));
  const CollectiveTiming shared = make_network("auto", shipped("nvlink8-ib"), 16)->time(*broadcast, together(16));
  CHECK(shared.network == "simgrid");
  const double inside = 3 * (3.4e-6 + 1e6 / 130e9), across = 4.9e-6 + 8 * 1e6 / 11e9;
  CHECK(std::abs(last(shared) - (inside + across)) < 1e-9 * last(shared));
}

TEST_CASE("The recurrence is used only where no two messages can meet") {
  const Platform crossbar = shipped("crossbar-100g"), nodes = nodes_of(2, 1);
  const platforms::Topology flat(crossbar, 4), node(nodes, 4);
  const Transfer to1{1, 10, 0, 1}, to2{2, 10, 0, 1}, to3{3, 10, 0, 1};
  // One sender, one message after another: exact. The same messages at once share the sender's link.
  const Script in_turn(
      {{step_of({to1}, {}), step_of({to2}, {}), step_of({to3}, {})}, {step_of({}, {0})}, {step_of({}, {0})}, {step_of({}, {0})}});
  const Script at_once({{step_of({to1, to2, to3}, {})}, {step_of({}, {0})}, {step_of({}, {0})}, {step_of({}, {0})}});
  CHECK(recurrence_is_exact(in_turn, flat));
  CHECK(recurrence_is_exact(in_turn, node));
  CHECK_FALSE(recurrence_is_exact(at_once, flat));
  const auto simgrid = make_network("simgrid", crossbar, 4);
  CHECK(is(last(simgrid->time(in_turn, together(4))), 3 * (4e-6 + 10 / 11e9)));
  CHECK(is(last(simgrid->time(at_once, together(4))), 4e-6 + 30 / 11e9));
  // One receiver, the same.
  const Transfer to0{0, 10, 0, 1};
  const Script fan_in(
      {{step_of({}, {1}), step_of({}, {2}), step_of({}, {3})}, {step_of({to0}, {})}, {step_of({to0}, {})}, {step_of({to0}, {})}});
  const Script fan_in_at_once({{step_of({}, {1, 2, 3})}, {step_of({to0}, {})}, {step_of({to0}, {})}, {step_of({to0}, {})}});
  CHECK(recurrence_is_exact(fan_in, flat));
  CHECK_FALSE(recurrence_is_exact(fan_in_at_once, flat));
  CHECK(is(last(simgrid->time(fan_in, together(4))), 3 * (4e-6 + 10 / 11e9)));
  // Two senders and two receivers over one NIC, in neighbouring steps: they may meet when starts differ.
  const Script later({{step_of({to2}, {})}, {step_of({to3}, {})}, {step_of({}, {0})}, {step_of({}, {1})}});
  CHECK_FALSE(recurrence_is_exact(later, node));
  CHECK(recurrence_is_exact(later, flat));
  // A ring in rank order crosses each NIC once; every second worker next to each other does not.
  CHECK(recurrence_is_exact(*make(Operation::all_gather, "ring", std::vector<std::uint64_t>(4, 8)), node));
  const auto hop = [](std::int64_t to, std::int64_t from) { return std::vector<Step>{step_of({{to, 8, 0, 1}}, {from})}; };
  CHECK_FALSE(recurrence_is_exact(Script({hop(2, 3), hop(3, 2), hop(1, 0), hop(0, 1)}), node));
}

TEST_CASE("Random programs: what the check calls exact is, and what it refuses can differ") {
  // Messages in one random order; each worker's part of it is cut into steps of one message, or at random. No such program can
  // wait for ever: the first message of the order that has not ended has both its ends in their step.
  const auto random_program = [](std::size_t n, bool one_by_one, Random& random) {
    std::vector<std::vector<Step>> workers(n);
    // Few pairs, so that some programs leave every link to one sender or one receiver.
    std::vector<std::pair<std::size_t, std::size_t>> pairs;
    while (pairs.size() < 2 + n / 2) {
      const auto from = static_cast<std::size_t>(random.below(n)), to = static_cast<std::size_t>(random.below(n));
      if (from != to) pairs.emplace_back(from, to);
    }
    for (std::size_t message = 0; message < 6 * n; ++message) {
      const auto [from, to] = pairs[static_cast<std::size_t>(random.below(pairs.size()))];
      for (const std::size_t worker : {from, to})
        if (workers[worker].empty() || one_by_one || random.below(4) > 0) workers[worker].emplace_back();
      const auto peer_of_sender = static_cast<std::int64_t>(to);
      workers[from].back().sends.push_back({peer_of_sender, random.below(3) == 0 ? 0 : random.below(3000000), 0, 1});
      workers[to].back().receives.push_back(static_cast<std::int64_t>(from));
    }
    return Script(std::move(workers));
  };
  std::size_t exact = 0, different = 0;
  for (const Platform& platform : {shipped("crossbar-100g"), nodes_of(2, 1), nodes_of(4, 2), shipped("nvlink8-ib")})
    for (const std::size_t n : {3, 4, 6, 9})
      for (std::uint64_t seed = 0; seed < 40; ++seed) {
        Random random(stream_key(seed, "network test programs", {n}));
        const Script program = random_program(n, seed % 2 == 0, random);
        const platforms::Topology topology(platform, static_cast<std::int64_t>(n));
        const auto simgrid = make_network("simgrid", platform, static_cast<std::int64_t>(n));
        const auto recurrence = make_recurrence(topology);  // without the check
        const auto start = skewed(n, seed, 1e-3);
        const double error = difference(recurrence->time(program, start), simgrid->time(program, start));
        INFO(platform.name << " n = " << n << " seed " << seed << ": " << error);
        if (recurrence_is_exact(program, topology)) {
          REQUIRE(error < 1e-12);
          ++exact;
        } else {
          different += error > 1e-3 ? 1 : 0;
        }
      }
  CHECK(exact >= 20);
  CHECK(different >= 20);
}

TEST_CASE("Messages between two workers are matched in order, whenever they meet") {
  const Platform crossbar = shipped("crossbar-100g");
  // Worker 0 sends 100 then 200 bytes to 1, which first hears from 2, late.
  const Script program({{step_of({{1, 100, 0, 1}}, {}), step_of({{1, 200, 0, 1}}, {})},
                        {step_of({}, {2}), step_of({}, {0}), step_of({}, {0})},
                        {step_of({{1, 300, 0, 1}}, {})}});
  const std::vector<double> start{0, 0, 1e-3};
  const double first = 1e-3 + 4e-6 + 300 / 11e9, second = first + 4e-6 + 100 / 11e9, third = second + 4e-6 + 200 / 11e9;
  for (const std::string name : {"recurrence", "simgrid"}) {
    const CollectiveTiming timing = make_network(name, crossbar, 3)->time(program, start);
    CHECK(is(timing.end_s[0], third));
    CHECK(is(timing.end_s[1], third));
    CHECK(is(timing.end_s[2], first));
    CHECK(timing.bytes_sent == std::vector<std::uint64_t>{300, 0, 300});
    CHECK(timing.messages == 3);
  }
}

TEST_CASE("A program that cannot end says who waits on whom") {
  const Platform crossbar = shipped("crossbar-100g");
  const Script stuck({{step_of({}, {1}), step_of({{1, 8, 0, 1}}, {})}, {step_of({}, {0}), step_of({{0, 8, 0, 1}}, {})}});
  const Script unheard({{step_of({{1, 8, 0, 1}}, {})}, {}});
  const Script self({{step_of({{0, 8, 0, 1}}, {0})}, {}});
  for (const std::string name : {"recurrence", "simgrid"}) {
    const auto network = make_network(name, crossbar, 2);
    CHECK_THROWS_WITH(network->time(stuck, together(2)), ContainsSubstring("worker 0 in step 0 waits for a message from worker 1") &&
                                                             ContainsSubstring("worker 1 in step 0 waits for a message from worker 0"));
    CHECK_THROWS_WITH(network->time(unheard, together(2)),
                      ContainsSubstring("worker 0 in step 0 waits for worker 1 to receive its message"));
    CHECK_THROWS_AS(network->time(self, together(2)), RunError);
    CHECK_THROWS_AS(network->time(unheard, together(3)), RunError);
    CHECK_THROWS_AS(network->time(unheard, std::vector<double>{0, -1}), RunError);
    CHECK_THROWS_AS(network->time(unheard, std::vector<double>{0, std::nan("")}), RunError);
    // The network still works.
    CHECK(is(last(network->time(*make(Operation::all_gather, "ring", {11, 11}), together(2))), 4e-6 + 1e-9));
  }
}

TEST_CASE("A simulation that aborts fails alone") {
  const auto network = make_network("simgrid", shipped("crossbar-100g"), 4);
  const auto program = make(Operation::broadcast, "binomial", std::vector<std::uint64_t>(4, 8));
  CHECK_THROWS_WITH(network->time(Aborting(*program), together(4)), ContainsSubstring("ended early (signal Aborted)"));
  CHECK(is(last(network->time(*program, together(4))), 2 * (4e-6 + 8 / 11e9)));
}

TEST_CASE("A simulation does not repeat the caller's pending output") {
  const tests::Scratch folder("network");
  const auto file = folder / "out.txt";
  const auto network = make_network("simgrid", shipped("crossbar-100g"), 2);
  const auto program = make(Operation::all_gather, "ring", {8, 8});
  std::fflush(stdout);
  const int console = ::dup(STDOUT_FILENO);
  const int sink = ::open(file.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
  ::dup2(sink, STDOUT_FILENO);
  std::printf("once");
  network->time(*program, together(2));
  std::fflush(stdout);
  ::dup2(console, STDOUT_FILENO);
  ::close(console);
  ::close(sink);
  CHECK(read_file(file) == "once");
  std::filesystem::remove(file);
}

TEST_CASE("A simulation does not depend on what ran before it") {
  const Platform platform = nodes_of(4, 2);
  const auto first = make(Operation::all_gather, "ring", unequal(16, 1, 1000000));
  const auto other = make(Operation::broadcast, "binomial", std::vector<std::uint64_t>(16, 70000001));
  const auto start = skewed(16, 2, 1e-4);
  const auto a = make_network("simgrid", platform, 16), b = make_network("simgrid", shipped("crossbar-100g"), 16);
  const CollectiveTiming alone = a->time(*first, start);
  b->time(*other, together(16));
  a->time(*other, together(16));
  const auto again = make_network("simgrid", platform, 16)->time(*first, start);
  CHECK(alone.end_s == again.end_s);
  CHECK(a->time(*first, start).end_s == alone.end_s);  // from the memo
  // The memo tells sizes, starts and programs apart.
  const auto larger = make(Operation::all_gather, "ring", unequal(16, 1, 2000000));
  CHECK(last(a->time(*larger, start)) > last(alone));
  auto late = start;
  late[3] += 1e-3;
  CHECK(last(a->time(*first, late)) > last(alone));
  CHECK(is(last(a->time(Plain(*first), start)), last(alone)));
  // Everyone later by the same time: so is the end.
  auto shifted = start;
  for (double& s : shifted) s += 0.25;
  CHECK(std::abs(last(a->time(*first, shifted)) - 0.25 - last(alone)) < 1e-14);
}

TEST_CASE("More bytes never end earlier") {
  for (const Platform& platform : {shipped("crossbar-100g"), shipped("nvlink8-ib")})
    for (const CollectiveAlgorithm& algorithm : collective_algorithms()) {
      const auto network = make_network("auto", platform, 24);
      double before = 0;
      for (const std::uint64_t m : {0, 1, 1000, 4000, 100000, 100004, 5000000}) {
        const double now =
            last(network->time(*algorithm.make(std::vector<std::uint64_t>(24, m), 0, network->node_of_worker()), together(24)));
        INFO(platform.name << " " << operation_name(algorithm.operation) << " " << algorithm.name << " " << m);
        CHECK(now >= before * (1 - 1e-4));  // where flows share links, order matters a little
        before = now;
      }
      CHECK(before > 2 * last(network->time(*algorithm.make(std::vector<std::uint64_t>(24, 1000), 0), together(24))));
    }
}

TEST_CASE("Large collectives of real machines take what was measured, within 15 percent") {
  // Public nccl-tests results; bytes of an all-gather are those of the result. Polaris: argonne-lcf/alcf-nccl-tests. DGX A100: the same for
  // ALCF Sophia. H100: xxrjun/nccl-tests-cluster.
  struct Measured {
    const char* platform;
    Operation operation;
    std::int64_t workers;
    std::uint64_t bytes;
    double time_s;
  };
  constexpr std::uint64_t gib = 1073741824;
  for (const Measured& measured : {Measured{"polaris", Operation::all_gather, 8, gib, 26183e-6},
                                   {"polaris", Operation::all_gather, 32, gib, 29039e-6},
                                   {"polaris", Operation::all_gather, 1024, gib, 43736e-6},
                                   {"polaris", Operation::all_gather, 1024, 16384, 8182e-6},
                                   {"polaris", Operation::all_reduce, 8, gib, 52079e-6},
                                   {"polaris", Operation::all_reduce, 32, gib, 57697e-6},
                                   {"polaris", Operation::all_reduce, 1024, gib, 70722e-6},
                                   {"dgx-a100", Operation::all_reduce, 16, gib, 11298e-6},
                                   {"dgx-h100", Operation::all_gather, 8, gib, 2720e-6}}) {
    const auto n = static_cast<std::size_t>(measured.workers);
    const std::uint64_t bytes = measured.operation == Operation::all_gather ? measured.bytes / n : measured.bytes;
    const auto network = make_network("auto", shipped(measured.platform), measured.workers);
    const double time = last(network->time(*make(measured.operation, "ring", std::vector<std::uint64_t>(n, bytes)), together(n)));
    INFO(measured.platform << " " << operation_name(measured.operation) << " n = " << n << " " << measured.bytes << ": " << time);
    CHECK(std::abs(time / measured.time_s - 1) < 0.15);
  }
}

TEST_CASE("Unknown networks are refused") {
  CHECK_THROWS_WITH(make_network("fast", shipped("crossbar-100g"), 2),
                    "network: expected one of auto, recurrence, simgrid, nccl, found \"fast\"");
  CHECK_THROWS_AS(make_network("auto", shipped("crossbar-100g"), 0), InputError);
}

TEST_CASE("The collective command refuses what network nccl does not cover") {
  CollectiveRequest request;
  request.platform = "polaris";
  request.workers = 8;
  request.bytes = {4000};
  request.network = "nccl";
  for (const std::string operation : {"all_reduce", "all_gather", "reduce_scatter", "broadcast"}) {
    request.operation = operation;
    CHECK(run_collective(request).at("network") == "nccl");
  }
  for (const std::string operation : {"reduce", "all_to_all", "gossip", "sparse_all_reduce"}) {
    request.operation = operation;
    CHECK_THROWS_WITH(run_collective(request),
                      ContainsSubstring("network: expected simgrid, recurrence or auto for the operation " + operation + ", found nccl"));
  }
  request.operation = "all_reduce";
  request.platform = "nvlink8-ib";
  CHECK_THROWS_WITH(run_collective(request), ContainsSubstring("expected the key \"nccl\", which network nccl needs, found no such key"));
}

TEST_CASE("The collective command answers with times and bytes") {
  CollectiveRequest request;
  request.platform = "crossbar-100g";
  request.workers = 4;
  request.operation = "all_gather";
  request.bytes = {11000, 0, 22000, 11000};
  request.start_s = {1, 1, 1.5, 1};
  const Json answer = run_collective(request);
  CHECK(answer.at("network") == "recurrence");
  CHECK(answer.at("algorithm") == "ring");
  CHECK(answer.at("messages") == 12);
  CHECK(answer.at("bytes_sent") == Json({44000, 22000, 33000, 33000}));
  CHECK(answer.at("end_s").size() == 4);
  CHECK(answer.at("time_s").get<double>() == Approx(0.5 + 3 * (4e-6 + 2e-6)).epsilon(1e-10));
  request.network = "simgrid";
  const Json reference = run_collective(request);
  CHECK(reference.at("network") == "simgrid");
  CHECK(reference.at("time_s").get<double>() == Approx(answer.at("time_s").get<double>()).epsilon(1e-12));
  // A common start moves the ends and nothing else, however late it is.
  CollectiveRequest late = request;
  late.start_s = {1e10};
  late.network = "auto";
  const Json moved = run_collective(late);
  CHECK(moved.at("time_s").get<double>() == Approx(3 * (4e-6 + 2e-6)).epsilon(1e-12));
  CHECK(moved.at("end_s").at(0).get<double>() == Approx(1e10).epsilon(1e-12));
  const auto refused = [&](const std::function<void(CollectiveRequest&)>& change, const std::string& message) {
    CollectiveRequest bad = request;
    change(bad);
    CHECK_THROWS_WITH(run_collective(bad), ContainsSubstring(message));
  };
  refused([](CollectiveRequest& r) { r.workers = 0; }, "workers: expected at least 1, found 0");
  refused([](CollectiveRequest& r) { r.bytes = {1, 2}; }, "bytes: expected one number, or 4 (one per worker), found 2");
  refused([](CollectiveRequest& r) { r.bytes = {}; }, "bytes: expected one number");
  refused([](CollectiveRequest& r) { r.start_s = {0, 0, 0}; }, "start_s: expected one number");
  refused([](CollectiveRequest& r) { r.start_s = {-1}; }, "start_s: expected finite numbers >= 0, found -1");
  refused([](CollectiveRequest& r) { r.start_s = {INFINITY}; }, "start_s: expected finite numbers >= 0, found inf");
  refused([](CollectiveRequest& r) { r.operation = "gather"; }, "operation: expected one of all_gather");
  refused([](CollectiveRequest& r) { r.algorithm = "best"; }, "algorithm of all_gather: expected one of ring, ring_padded");
  refused([](CollectiveRequest& r) { r.platform = "nowhere"; }, "platform: expected");
  refused([](CollectiveRequest& r) { r.network = "none"; }, "network: expected one of auto");
  refused([](CollectiveRequest& r) { r.root = 1; }, "root: expected 0");
}
