#include "sim/collective.hpp"

#include <bit>
#include <bitset>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>

#include "base/error.hpp"
#include "base/random.hpp"
#include "tests/catch.hpp"

using namespace sparscale;
using namespace sparscale::sim;

namespace {

constexpr std::int64_t most_workers = 65;
using Contributors = std::bitset<most_workers>;

// Runs a program on sets of contributors instead of numbers: held[w][block] is who is summed up in what worker w holds of a block. Follows
// only the definition of Step (rendezvous, first-in first-out between two workers), none of the project's back-ends.
struct DataFlow {
  std::vector<std::vector<Contributors>> held;
  std::vector<std::uint64_t> bytes_sent;
  std::uint64_t messages = 0;
  std::string problem;
};

DataFlow run(const Program& program, std::vector<std::vector<Contributors>> held) {
  const auto ends = static_cast<std::size_t>(program.workers() + program.switches()), lanes = static_cast<std::size_t>(program.lanes());
  const std::size_t n = ends * lanes;  // strands
  held.resize(ends, std::vector<Contributors>(static_cast<std::size_t>(program.blocks())));
  DataFlow flow{std::move(held), std::vector<std::uint64_t>(static_cast<std::size_t>(program.workers()), 0), 0, ""};
  struct Post {
    Transfer transfer;
    std::vector<Contributors> data;
  };
  std::vector<std::int64_t> number(n, 0);  // steps begun
  std::vector<std::size_t> open(n, 0);
  std::vector<Step> steps(n);
  std::map<std::pair<std::int64_t, std::int64_t>, std::deque<Post>> sends;  // (from, to)
  std::map<std::pair<std::int64_t, std::int64_t>, std::size_t> receives;    // (from, to)
  const auto block_of = [&](const Transfer& transfer, std::size_t b) {
    return static_cast<std::size_t>((transfer.first_block + static_cast<std::int64_t>(b)) % program.blocks());
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t w = 0; w < n; ++w) {
      const auto strand = static_cast<std::int64_t>(w);
      const std::size_t worker = w / lanes;
      if (open[w] != 0 || number[w] == program.steps(strand)) continue;
      program.step(strand, number[w], steps[w]);
      bool held_up = false;
      for (const After& after : steps[w].after) {
        const std::size_t other = worker * lanes + static_cast<std::size_t>(after.lane);
        held_up |= number[other] - (open[other] != 0 ? 1 : 0) < after.steps;
      }
      if (held_up) continue;
      for (const Transfer& transfer : steps[w].sends) {
        if (transfer.peer < 0 || transfer.peer >= static_cast<std::int64_t>(n) ||
            static_cast<std::size_t>(transfer.peer) / lanes == worker) {
          flow.problem = "bad peer";
          return flow;
        }
        Post post{transfer, {}};
        for (std::size_t b = 0; b < static_cast<std::size_t>(transfer.blocks); ++b) {
          post.data.push_back(flow.held[worker][block_of(transfer, b)]);
          if (post.data.back().none()) flow.problem = "something was sent before it was there";
        }
        sends[{strand, transfer.peer}].push_back(std::move(post));
        if (worker < flow.bytes_sent.size()) flow.bytes_sent[worker] += transfer.bytes;
        ++flow.messages;
      }
      for (const std::int64_t peer : steps[w].receives) ++receives[{peer, strand}];
      open[w] = steps[w].sends.size() + steps[w].receives.size();
      ++number[w];
      moved = true;
    }
    for (auto& [pair, waiting] : sends) {
      std::size_t& wanted = receives[pair];
      while (!waiting.empty() && wanted > 0) {
        const auto to = static_cast<std::size_t>(pair.second);
        for (std::size_t b = 0; b < waiting.front().data.size(); ++b) {
          Contributors& mine = flow.held[to / lanes][block_of(waiting.front().transfer, b)];
          const Contributors& got = waiting.front().data[b];
          if (steps[to].reduces) {
            if ((mine & got).any()) flow.problem = "a contribution was added twice";
            mine |= got;
          } else {
            mine = got;
          }
        }
        waiting.pop_front();
        --wanted;
        --open[static_cast<std::size_t>(pair.first)];
        --open[to];
        moved = true;
      }
    }
  }
  for (std::size_t w = 0; w < n; ++w)
    if (open[w] != 0 || number[w] != program.steps(static_cast<std::int64_t>(w))) flow.problem = "a worker never finishes";
  return flow;
}

// What the workers hold before a collective.
std::vector<std::vector<Contributors>> held_before(Operation operation, const Program& program, std::int64_t root) {
  const auto n = static_cast<std::size_t>(program.workers()), blocks = static_cast<std::size_t>(program.blocks());
  std::vector<std::vector<Contributors>> held(n, std::vector<Contributors>(blocks));
  for (std::size_t w = 0; w < n; ++w)
    for (std::size_t b = 0; b < blocks; ++b) {
      const bool holds = operation == Operation::all_gather || operation == Operation::gossip
                             ? program.owner(static_cast<std::int64_t>(b)) == static_cast<std::int64_t>(w)
                         : operation == Operation::broadcast ? static_cast<std::int64_t>(w) == root
                                                             : true;
      if (holds) held[w][b].set(w);
    }
  return held;
}

std::vector<std::uint64_t> sizes_for(Operation operation, std::size_t n, std::uint64_t seed) {
  if (operation != Operation::all_gather) return std::vector<std::uint64_t>(n, 1000003 + 13 * seed);
  Random random(stream_key(seed, "collective test sizes", {n}));
  std::vector<std::uint64_t> bytes(n);
  for (std::uint64_t& b : bytes) b = random.below(4) == 0 ? 0 : random.below(100000);
  return bytes;
}

// Node by node, all of whose workers begin with something in the blocks of their node.
std::vector<std::vector<Contributors>> held_by_nodes(const Program& program, const std::vector<std::int64_t>& node) {
  const auto n = static_cast<std::size_t>(program.workers());
  std::vector<std::vector<Contributors>> held(n, std::vector<Contributors>(static_cast<std::size_t>(program.blocks())));
  for (std::size_t w = 0; w < n; ++w)
    for (std::size_t b = 0; b < held[w].size(); ++b)
      if (node[static_cast<std::size_t>(program.owner(static_cast<std::int64_t>(b)))] == node[w]) held[w][b].set(w);
  return held;
}

Contributors one(std::size_t worker) { return Contributors().set(worker); }

Contributors all(std::size_t n) {
  Contributors set;
  for (std::size_t i = 0; i < n; ++i) set.set(i);
  return set;
}

// Runs one algorithm and checks what everyone holds in the end.
void check_data_flow(const CollectiveAlgorithm& algorithm, const CollectiveInput& input) {
  const std::size_t n = input.bytes.size();
  if (algorithm.name == "crossover_hierarchical" && !input.node.empty()) return;  // a test of its own
  INFO(operation_name(algorithm.operation) << " " << algorithm.name << " n = " << n << " chunks of " << input.chunk_bytes);
  const auto program = algorithm.make(input);
  REQUIRE(program->workers() == static_cast<std::int64_t>(n));
  const auto blocks = static_cast<std::size_t>(program->blocks());
  const DataFlow flow = run(*program, held_before(algorithm.operation, *program, input.root));
  REQUIRE(flow.problem == "");
  std::vector<int> owners(blocks, 0);
  std::vector<std::size_t> blocks_of(n, 0);
  for (std::size_t w = 0; w < n; ++w)
    for (std::size_t b = 0; b < blocks; ++b) {
      switch (algorithm.operation) {
        case Operation::all_gather: {
          const auto owner = static_cast<std::size_t>(program->owner(static_cast<std::int64_t>(b)));
          REQUIRE(flow.held[w][b] == one(owner));
          if (w == 0) ++blocks_of[owner];
          break;
        }
        case Operation::all_reduce:
        case Operation::sparse_all_reduce:
          REQUIRE(flow.held[w][b] == all(n));
          break;
        case Operation::broadcast:
          REQUIRE(flow.held[w][b] == one(static_cast<std::size_t>(input.root)));
          break;
        case Operation::reduce_scatter:
          // A worker's own chunk, or (ring) that of the next one.
          if (w == (algorithm.name == "ring" ? (b + n - 1) % n : b)) REQUIRE(flow.held[w][b] == all(n));
          break;
        case Operation::reduce:
          if (w == 0) REQUIRE(flow.held[w][b] == all(n));
          break;
        case Operation::all_to_all:
          if (w == b) REQUIRE(flow.held[w][b] == all(n));
          break;
        case Operation::gossip: {
          const auto owner = static_cast<std::size_t>(program->owner(static_cast<std::int64_t>(b)));
          REQUIRE((flow.held[w][b].none() || flow.held[w][b] == one(owner)));
          if (w == owner) REQUIRE(flow.held[w][b].any());
          if (flow.held[w][b].any()) ++owners[b];
          if (flow.held[w][b].any()) ++blocks_of[w];
          break;
        }
      }
    }
  if (algorithm.operation == Operation::all_gather)
    for (const std::size_t of_worker : blocks_of) REQUIRE(of_worker >= 1);
  if (algorithm.operation == Operation::gossip) {
    // Every part goes to as many others, and every worker gets as much.
    const std::size_t parts = blocks / n, peers = n == 1 ? 0 : algorithm.name == "ring_neighbours" && n > 2 ? 2 : 1;
    for (const int holders : owners) REQUIRE(holders == static_cast<int>(1 + peers));
    for (const std::size_t held : blocks_of) REQUIRE(held == parts * (1 + peers));
  }
  if (n == 1) REQUIRE(flow.messages == 0);
}

}  // namespace

TEST_CASE("Every collective delivers the right contributions for 1 to 65 workers") {
  for (const CollectiveAlgorithm& algorithm : collective_algorithms())
    for (std::size_t n = 1; n <= most_workers; ++n) {
      const std::int64_t root = algorithm.operation == Operation::broadcast ? static_cast<std::int64_t>(n * 2 / 3) : 0;
      const auto bytes = sizes_for(algorithm.operation, n, 1);
      // Chunks that cut blocks into up to four.
      CollectiveInput input{bytes, root, {}, 30000, 0, 1};
      check_data_flow(algorithm, input);
      if (algorithm.operation == Operation::gossip)
        for (input.round = 1; input.round < 8; ++input.round) check_data_flow(algorithm, input);
      // The same on nodes of 4 and 5, the last of which may have fewer.
      for (const std::size_t devices : {4, 5}) {
        if (algorithm.name != "hierarchical" && algorithm.name != "leader") continue;
        std::vector<std::int64_t> node(n);
        for (std::size_t w = 0; w < n; ++w) node[w] = static_cast<std::int64_t>(w / devices);
        input.node = node;
        check_data_flow(algorithm, input);
        for (std::size_t w = 0; w < n; ++w) node[w] = static_cast<std::int64_t>(w * 7 % n / devices);  // any order
        if (n % 7 != 0) check_data_flow(algorithm, input);
      }
    }
}

TEST_CASE("All-to-alls deliver parts of any size, each with its own bytes") {
  for (const std::string name : {"pairwise", "throttled"})
    for (std::size_t n = 1; n <= most_workers; ++n) {
      const CollectiveAlgorithm& algorithm = find_collective(Operation::all_to_all, name);
      Random random(stream_key(6, "parts test", {n}));
      std::vector<std::uint64_t> parts(n * n, 0), bytes(n, 0);
      for (std::size_t i = 0; i < n * n; ++i) {
        if (i / n != i % n) parts[i] = random.below(3) == 0 ? 0 : random.below(100000);
        bytes[i / n] += parts[i];
      }
      CollectiveInput input{bytes, 0, {}};
      input.parts = parts;
      check_data_flow(algorithm, input);
      const auto program = algorithm.make(input);
      const DataFlow flow = run(*program, held_before(algorithm.operation, *program, 0));
      CHECK(flow.bytes_sent == bytes);
      CHECK(flow.messages == n * (n - 1));
      // Every message has the bytes of its pair.
      std::vector<std::uint64_t> seen(n * n, 0);
      Step step;
      for (std::size_t worker = 0; worker < n; ++worker)
        for (std::int64_t number = 0; number < program->steps(static_cast<std::int64_t>(worker)); ++number) {
          program->step(static_cast<std::int64_t>(worker), number, step);
          for (const Transfer& transfer : step.sends) seen[worker * n + static_cast<std::size_t>(transfer.peer)] += transfer.bytes;
        }
      CHECK(seen == parts);
    }
}

TEST_CASE("Crossover gossip works with any number of segments") {
  for (const std::int64_t segments : {1, 3, 16, 40})
    for (std::size_t n = 1; n <= most_workers; n += n < 9 ? 1 : 7)
      for (const std::uint64_t bytes : {7ULL, 30ULL, 8000ULL}) {  // fewer bytes than segments, too
        const std::vector<std::uint64_t> all_bytes(n, bytes);
        CollectiveInput input{all_bytes, 0, {}};
        input.segments = segments;
        for (input.round = 0; input.round < 3; ++input.round) {
          for (const std::string name : {"crossover", "crossover_hierarchical"}) {
            const CollectiveAlgorithm& algorithm = find_collective(Operation::gossip, name);
            check_data_flow(algorithm, input);
            const auto program = algorithm.make(input);
            const DataFlow flow = run(*program, held_before(algorithm.operation, *program, 0));
            CHECK(flow.messages == (n > 1 ? n * static_cast<std::size_t>(segments) : 0));
            for (const std::uint64_t sent : flow.bytes_sent) CHECK(sent == (n > 1 ? bytes : 0));
          }
        }
      }
  const std::vector<std::uint64_t> two(2, 8);
  for (const std::int64_t wrong : {0, -1, 65537})
    for (const std::string name : {"crossover", "crossover_hierarchical"}) {
      CollectiveInput input{two, 0, {}};
      input.segments = wrong;
      CHECK_THROWS_WITH(find_collective(Operation::gossip, name).make(input),
                        "gossip segments: expected 1 to 65536, found " + std::to_string(wrong));
    }
}

TEST_CASE("Streaming aggregation adds every part once, whatever the aggregators and stretches") {
  const CollectiveAlgorithm& algorithm = find_collective(Operation::sparse_all_reduce, "streaming");
  for (std::size_t n = 2; n <= most_workers; n += n < 12 ? 1 : 9)
    for (const std::int64_t aggregators : {0, 1, 2, static_cast<int>(n) / 2, static_cast<int>(n)}) {
      if (aggregators > static_cast<std::int64_t>(n)) continue;
      SparseStream stream;
      Random random(stream_key(3, "stream test", {n}));
      std::vector<std::uint64_t> bytes(n, 0);
      for (int stretch = 0; stretch < 3; ++stretch) stream.back_bytes.push_back(4 * random.below(100000));
      for (std::size_t w = 0; w < n; ++w) {
        stream.sent_bytes.emplace_back();
        for (int stretch = 0; stretch < 3; ++stretch) {
          stream.sent_bytes.back().push_back(random.below(3) == 0 ? 0 : random.below(100000));
          bytes[w] += stream.sent_bytes.back().back();
        }
      }
      stream.aggregators = aggregators;
      CollectiveInput input{bytes, 0, {}, 0, 0, 1, &stream};
      check_data_flow(algorithm, input);
      const auto program = algorithm.make(input);
      const DataFlow flow = run(*program, held_before(algorithm.operation, *program, 0));
      // What is aggregated elsewhere goes out once, the sums to everybody else.
      const auto A = static_cast<std::uint64_t>(aggregators == 0 ? static_cast<std::int64_t>(n) : aggregators);
      CHECK(flow.messages == 2 * 3 * A * (n - 1));
      std::uint64_t sent = 0, kept = 0, back = 0;
      for (const std::uint64_t b : flow.bytes_sent) sent += b;
      for (const std::uint64_t b : stream.back_bytes) back += b;
      const std::uint64_t in = std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
      kept = in + back * (n - 1) - sent;  // the aggregators' own parts
      if (A == 1) CHECK(kept == bytes[0]);
      if (A == n)
        CHECK(std::abs(static_cast<double>(kept) - static_cast<double>(in) / static_cast<double>(n)) <= 3 * 4.0 * static_cast<double>(n));
    }
  SparseStream stream{{{1}, {1}}, {1}, 3};
  const std::vector<std::uint64_t> two(2, 1);
  CHECK_THROWS_WITH(algorithm.make(CollectiveInput{two, 0, {}, 0, 0, 1, &stream}),
                    "sparse_all_reduce streaming aggregators: expected at most as many as workers (2), found 3");
}

TEST_CASE("Hierarchical crossover: nodes sum up, leaders swap segments, everyone in a node gets them") {
  const CollectiveAlgorithm& algorithm = find_collective(Operation::gossip, "crossover_hierarchical");
  for (std::size_t n = 1; n <= most_workers; ++n)
    for (const std::size_t devices : {1, 4, 5})
      for (const auto& [round, segments] : std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 8}, {3, 8}, {1, 1}, {0, 3}, {0, 16}}) {
        if (segments != 8 && n > 12 && n % 10 != 0) continue;
        INFO("n = " << n << ", nodes of " << devices << ", " << segments << " segments");
        const std::vector<std::uint64_t> bytes(n, 8000);
        std::vector<std::int64_t> node(n);
        for (std::size_t w = 0; w < n; ++w) node[w] = static_cast<std::int64_t>(w / devices);
        CollectiveInput input{bytes, 0, node, 0, round, 1};
        input.segments = segments;
        const auto program = algorithm.make(input);
        const DataFlow flow = run(*program, held_by_nodes(*program, node));
        REQUIRE(flow.problem == "");
        const std::int64_t nodes = node.back() + 1;
        const auto blocks = static_cast<std::size_t>(program->blocks()), each = blocks / static_cast<std::size_t>(nodes);
        std::vector<Contributors> of_node(static_cast<std::size_t>(nodes));
        for (std::size_t w = 0; w < n; ++w) of_node[static_cast<std::size_t>(node[w])].set(w);
        for (std::size_t w = 0; w < n; ++w)
          for (std::size_t piece = 0; piece < each; ++piece) {
            std::size_t others = 0;
            for (std::size_t other = 0; other < of_node.size(); ++other) {
              const Contributors& held = flow.held[w][other * each + piece];
              if (static_cast<std::int64_t>(other) == node[w]) {
                REQUIRE(held == of_node[other]);  // the whole of the own node's model
              } else if (held.any()) {
                REQUIRE(held == of_node[other]);
                ++others;
              }
            }
            REQUIRE(others == (nodes > 1 ? 1 : 0));  // and every piece from one other node
          }
        // Bytes of a leader of a full node: its share of the node's ring, the segments, and the segments again down the chain.
        if (n >= 2 * devices) CHECK(flow.bytes_sent[0] == 2 * 8000 * (devices - 1) / devices + 8000 + (devices > 1 ? 8000 : 0));
      }
}

TEST_CASE("Bytes of leaders and of reduce-scatters follow the formulas") {
  for (const std::size_t devices : {1, 3, 4})
    for (const std::size_t n : {4, 7, 12, 13}) {
      INFO(n << " workers on nodes of " << devices);
      std::vector<std::int64_t> node(n);
      for (std::size_t w = 0; w < n; ++w) node[w] = static_cast<std::int64_t>(w / devices);
      const std::uint64_t nodes = static_cast<std::uint64_t>(node.back() + 1);
      std::vector<std::uint64_t> sizes(n, 0), of_node(nodes, 0);
      for (std::size_t w = 0; w < n; ++w) of_node[static_cast<std::size_t>(node[w])] += 100 + w;
      const std::uint64_t total = std::accumulate(of_node.begin(), of_node.end(), std::uint64_t{0});
      std::vector<std::uint64_t> blocks(n);
      for (std::size_t w = 0; w < n; ++w) blocks[w] = 100 + w;
      const auto gather = find_collective(Operation::all_gather, "leader").make(CollectiveInput{blocks, 0, node});
      const DataFlow gathered = run(*gather, held_before(Operation::all_gather, *gather, 0));
      const std::uint64_t buffer = 4 * 3 * 4 * 5 * 7 * 12 * 13;
      const std::vector<std::uint64_t> buffers(n, buffer);
      const auto reduce = find_collective(Operation::all_reduce, "leader").make(CollectiveInput{buffers, 0, node});
      const DataFlow reduced = run(*reduce, held_before(Operation::all_reduce, *reduce, 0));
      for (std::size_t w = 0; w < n; ++w) {
        const auto j = static_cast<std::size_t>(node[w]);
        const std::uint64_t g = std::min(devices, n - j * devices), local = w % devices;
        // Round the ring a leader passes on all nodes' blocks but its successor's; down the chain all of them.
        std::uint64_t expected = local == 0 ? total - of_node[(j + 1) % nodes] : blocks[w];
        if (local + 1 < g) expected += total;
        CHECK(gathered.bytes_sent[w] == expected);
        // A ring there and back; a leader's ring and its scatter, or the gather.
        const std::uint64_t inside = 2 * (g - 1) * buffer / g;
        const std::uint64_t leading = 2 * (nodes - 1) * buffer / nodes + (g - 1) * buffer / g;
        CHECK(reduced.bytes_sent[w] == inside + (local == 0 ? leading : buffer / g));
      }
      if (n % devices == 0) {
        const std::uint64_t N = nodes, g = devices;
        CHECK(gathered.messages == (n - N) * (g > 1 ? N + 1 : 0) + N * (N - 1));
        CHECK(reduced.messages == 2 * n * (g - 1) + 2 * (n - N) + 2 * N * (N - 1));
      }
      const std::uint64_t even = 4 * 4 * 7 * 12 * 13;
      const std::vector<std::uint64_t> all_even(n, even);
      const auto pairwise = find_collective(Operation::reduce_scatter, "pairwise").make(all_even, 0);
      for (const std::uint64_t b : run(*pairwise, held_before(Operation::reduce_scatter, *pairwise, 0)).bytes_sent)
        CHECK(b == even / n * (n - 1));
      const auto halving = find_collective(Operation::reduce_scatter, "recursive_halving").make(all_even, 0);
      const DataFlow halved = run(*halving, held_before(Operation::reduce_scatter, *halving, 0));
      const std::uint64_t p = std::bit_floor(n), rest = n - p,
                          sum = std::accumulate(halved.bytes_sent.begin(), halved.bytes_sent.end(), std::uint64_t{0});
      // Folding: the buffers of `rest` workers there, their chunks back. In between every live rank sends all chunks but its own ones.
      CHECK(sum == rest * (even + even / n) + p * even - (p + rest) * (even / n));
    }
}

TEST_CASE("Bytes and messages follow the formulas") {
  for (const std::size_t n : {2, 3, 5, 8, 17, 64}) {
    const auto blocks = sizes_for(Operation::all_gather, n, 3);
    const std::uint64_t total = std::accumulate(blocks.begin(), blocks.end(), std::uint64_t{0});
    const std::uint64_t largest = *std::max_element(blocks.begin(), blocks.end());
    const auto sent = [&](Operation operation, const std::string& name, const std::vector<std::uint64_t>& bytes) {
      const auto program = find_collective(operation, name).make(bytes, 0);
      return run(*program, held_before(operation, *program, 0));
    };
    const DataFlow gather = sent(Operation::all_gather, "ring", blocks);
    const DataFlow padded = sent(Operation::all_gather, "ring_padded", blocks);
    CHECK(gather.messages == n * (n - 1));
    const DataFlow exchange = sent(Operation::all_to_all, "pairwise", blocks);
    CHECK(exchange.messages == n * (n - 1));
    CHECK(exchange.bytes_sent == blocks);
    for (std::size_t w = 0; w < n; ++w) {
      CHECK(gather.bytes_sent[w] == total - blocks[(w + 1) % n]);
      CHECK(padded.bytes_sent[w] == (n - 1) * largest);
    }
    for (const std::uint64_t m : {std::uint64_t{4000}, std::uint64_t{4 * 1001}, std::uint64_t{17}, std::uint64_t{0}, std::uint64_t{8}}) {
      const std::vector<std::uint64_t> buffers(n, m);
      const DataFlow reduce = sent(Operation::all_reduce, "ring", buffers);
      const DataFlow scatter = sent(Operation::reduce_scatter, "ring", buffers);
      const DataFlow broadcast = sent(Operation::broadcast, "binomial", buffers);
      CHECK(reduce.messages == 2 * n * (n - 1));
      CHECK(scatter.messages == n * (n - 1));
      CHECK(broadcast.messages == n - 1);
      const DataFlow tree = sent(Operation::reduce, "binomial", buffers);
      CHECK(tree.messages == n - 1);
      CHECK(tree.bytes_sent[0] == 0);
      for (std::size_t w = 1; w < n; ++w) CHECK(tree.bytes_sent[w] == m);
      const auto sum = [](const DataFlow& flow) {
        return std::accumulate(flow.bytes_sent.begin(), flow.bytes_sent.end(), std::uint64_t{0});
      };
      CHECK(sum(reduce) == 2 * (n - 1) * m);
      CHECK(sum(scatter) == (n - 1) * m);
      CHECK(sum(broadcast) == (n - 1) * m);
      // No worker sends more than two chunks that are one element larger than the mean.
      const std::uint64_t element = m % 4 == 0 ? 4 : 1;
      for (const std::uint64_t b : reduce.bytes_sent) CHECK(b <= 2 * (n - 1) * ((m / element + n - 1) / n) * element);
    }
  }
}

TEST_CASE("Chunks are whole elements and differ by at most one") {
  const auto program = find_collective(Operation::all_reduce, "ring").make(std::vector<std::uint64_t>(4, 4 * 10), 0);
  const auto chunks = program->ring_block_bytes();
  CHECK(std::vector<std::uint64_t>(chunks.begin(), chunks.end()) == std::vector<std::uint64_t>{12, 12, 8, 8});
  const auto odd = find_collective(Operation::all_reduce, "ring").make(std::vector<std::uint64_t>(4, 10), 0);
  const auto odd_chunks = odd->ring_block_bytes();
  CHECK(std::vector<std::uint64_t>(odd_chunks.begin(), odd_chunks.end()) == std::vector<std::uint64_t>{3, 3, 2, 2});
}

TEST_CASE("A program that says it is a ring is one") {
  for (const CollectiveAlgorithm& algorithm : collective_algorithms())
    for (const std::int64_t n : {2, 3, 8}) {
      const auto program = algorithm.make(sizes_for(algorithm.operation, static_cast<std::size_t>(n), 2), 0);
      const auto blocks = program->ring_block_bytes();
      if (algorithm.name == "ring" || algorithm.name == "ring_padded") REQUIRE_FALSE(blocks.empty());
      if (blocks.empty()) continue;
      REQUIRE(static_cast<std::int64_t>(blocks.size()) == n);
      Step step;
      for (std::int64_t w = 0; w < n; ++w) {
        REQUIRE(program->steps(w) == program->steps(0));
        for (std::int64_t s = 0; s < program->steps(w); ++s) {
          program->step(w, s, step);
          REQUIRE(step.sends.size() == 1);
          REQUIRE(step.receives == std::vector<std::int64_t>{(w + n - 1) % n});
          REQUIRE(step.sends[0].peer == (w + 1) % n);
          REQUIRE(step.sends[0].first_block == ((w - s) % n + n) % n);
          REQUIRE(step.sends[0].bytes == blocks[static_cast<std::size_t>(step.sends[0].first_block)]);
        }
      }
    }
}

TEST_CASE("Sizes and names that do not fit are refused") {
  const std::vector<std::uint64_t> unequal{1, 2, 1}, huge(4, std::uint64_t{1} << 62);
  CHECK_THROWS_WITH(find_collective(Operation::all_reduce, "ring").make(unequal, 0),
                    "all_reduce ring bytes: expected the same size at every worker (1 at worker 0), found 2 at worker 1");
  CHECK_THROWS_AS(find_collective(Operation::broadcast, "binomial").make(unequal, 0), InputError);
  CHECK_THROWS_AS(find_collective(Operation::broadcast, "binomial").make(std::vector<std::uint64_t>(3, 1), 3), InputError);
  CHECK_THROWS_AS(find_collective(Operation::broadcast, "binomial").make(std::vector<std::uint64_t>(3, 1), -1), InputError);
  for (const CollectiveAlgorithm& algorithm : collective_algorithms()) {
    CHECK_THROWS_AS(algorithm.make(huge, 0), InputError);
    CHECK_THROWS_AS(algorithm.make({}, 0), InputError);
    CHECK_FALSE(algorithm.title.empty());
    CHECK_FALSE(algorithm.source.empty());
    CHECK_FALSE(algorithm.formula.empty());
    CHECK(&find_collective(algorithm.operation, algorithm.name) == &algorithm);
  }
  CHECK_THROWS_WITH(
      find_collective(Operation::all_gather, "bruck9"),
      ContainsSubstring("algorithm of all_gather: expected one of ring, ring_padded, ") && ContainsSubstring("found \"bruck9\""));
}

TEST_CASE("A collective call reads back as it was written") {
  CollectiveCall call;
  call.operation = Operation::all_gather;
  call.payload = "indices";
  call.dtype = "int64";
  call.bytes = {800, 800, 800};
  call.bytes_unpadded = {800, 16, 0};
  const Json json = call.to_json();
  CHECK(json.dump() == R"({"op":"all_gather","payload":"indices","dtype":"int64","bytes":800,"bytes_unpadded":[800,16,0]})");
  const CollectiveCall back = CollectiveCall::from_json(json, 3);
  CHECK(back.to_json() == json);
  CHECK(back.bytes_of_all(3) == std::vector<std::uint64_t>{800, 800, 800});
  CHECK(back.bytes_of_all(3, true) == std::vector<std::uint64_t>{800, 16, 0});
  call.operation = Operation::broadcast;
  call.bytes = {8};
  call.bytes_unpadded.clear();
  call.root = 2;
  CHECK(CollectiveCall::from_json(call.to_json(), 3).root == 2);
  CHECK(call.to_json().dump() == R"({"op":"broadcast","payload":"indices","dtype":"int64","bytes":8,"root":2})");
  const auto refused = [](const char* text) { CHECK_THROWS_AS(CollectiveCall::from_json(parse_json(text, "t"), 3), InputError); };
  refused(R"({"op":"all_gather","payload":"p","dtype":"int64","bytes":[1,2]})");
  refused(R"({"op":"all_gather","payload":"p","dtype":"int64","bytes":-1})");
  refused(R"({"op":"all_gather","payload":"p","dtype":"int64","bytes":1.5})");
  refused(R"({"op":"all_gather","payload":"p","dtype":"int64"})");
  refused(R"({"op":"gather","payload":"p","dtype":"int64","bytes":1})");
  refused(R"({"op":"broadcast","payload":"p","dtype":"int64","bytes":1,"root":3})");
  refused(R"({"op":"all_gather","payload":"p","dtype":"int64","bytes":1,"size":3})");
  refused(R"([1])");
  refused(R"({"op":"all_gather","payload":"p","dtype":"int64","bytes":1,"entry":[4]})");
  refused(R"({"op":"all_gather","payload":"p","dtype":"int64","bytes":1,"delta_bytes":[1,2]})");
  refused(
      R"({"op":"sparse_all_reduce","payload":"p","dtype":"int64","bytes":1,"stream":{"sent_bytes":[[1],[1]],"back_bytes":[1],"aggregators":0}})");
  refused(
      R"({"op":"sparse_all_reduce","payload":"p","dtype":"int64","bytes":1,"stream":{"sent_bytes":[[1],[1],[1,2]],"back_bytes":[1],"aggregators":0}})");
  CollectiveCall stream;
  stream.operation = Operation::sparse_all_reduce;
  stream.payload = "values";
  stream.dtype = "float32";
  stream.bytes = {3, 4, 0};
  stream.entry_index_bytes = 4;
  stream.entry_value_bytes = 64;
  stream.stream = SparseStream{{{1, 2}, {4, 0}, {0, 0}}, {5, 2}, 2};
  CHECK(CollectiveCall::from_json(stream.to_json(), 3).to_json() == stream.to_json());
  CHECK(CollectiveCall::from_json(stream.to_json(), 3).stream->sent_bytes[1] == std::vector<std::uint64_t>{4, 0});
  for (const Operation operation : {Operation::all_gather, Operation::all_reduce, Operation::reduce_scatter, Operation::broadcast,
                                    Operation::reduce, Operation::all_to_all, Operation::gossip, Operation::sparse_all_reduce})
    CHECK(operation_from_name(operation_name(operation)) == operation);
}
