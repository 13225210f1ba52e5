#include "sim/collective.hpp"

#include <bitset>
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
  const auto n = static_cast<std::size_t>(program.workers());
  DataFlow flow{std::move(held), std::vector<std::uint64_t>(n, 0), 0, ""};
  struct Post {
    Transfer transfer;
    std::vector<Contributors> data;
  };
  std::vector<std::int64_t> number(n, 0);
  std::vector<std::size_t> open(n, 0);
  std::vector<Step> steps(n);
  std::vector<bool> posted(n, false);
  std::map<std::pair<std::int64_t, std::int64_t>, std::deque<Post>> sends;  // (from, to)
  std::map<std::pair<std::int64_t, std::int64_t>, std::size_t> receives;    // (from, to)
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t w = 0; w < n; ++w) {
      const auto worker = static_cast<std::int64_t>(w);
      if (open[w] != 0 || number[w] == program.steps(worker)) continue;
      program.step(worker, number[w], steps[w]);
      for (const Transfer& transfer : steps[w].sends) {
        if (transfer.peer == worker || transfer.peer < 0 || transfer.peer >= program.workers()) flow.problem = "bad peer";
        Post post{transfer, {}};
        for (std::int64_t b = 0; b < transfer.blocks; ++b)
          post.data.push_back(flow.held[w][static_cast<std::size_t>((transfer.first_block + b) % program.workers())]);
        sends[{worker, transfer.peer}].push_back(std::move(post));
        flow.bytes_sent[w] += transfer.bytes;
        ++flow.messages;
      }
      for (const std::int64_t peer : steps[w].receives) ++receives[{peer, worker}];
      open[w] = steps[w].sends.size() + steps[w].receives.size();
      ++number[w];
      moved = true;
    }
    for (auto& [pair, waiting] : sends) {
      std::size_t& wanted = receives[pair];
      while (!waiting.empty() && wanted > 0) {
        const auto to = static_cast<std::size_t>(pair.second);
        for (std::size_t b = 0; b < waiting.front().data.size(); ++b) {
          Contributors& mine = flow.held[to][static_cast<std::size_t>(
              (waiting.front().transfer.first_block + static_cast<std::int64_t>(b)) % program.workers())];
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

std::vector<std::uint64_t> sizes_for(Operation operation, std::size_t n, std::uint64_t seed) {
  if (operation != Operation::all_gather) return std::vector<std::uint64_t>(n, 1000003 + 13 * seed);
  Random random(stream_key(seed, "collective test sizes", {n}));
  std::vector<std::uint64_t> bytes(n);
  for (std::uint64_t& b : bytes) b = random.below(4) == 0 ? 0 : random.below(100000);
  return bytes;
}

Contributors one(std::size_t worker) { return Contributors().set(worker); }

Contributors all(std::size_t n) {
  Contributors set;
  for (std::size_t i = 0; i < n; ++i) set.set(i);
  return set;
}

}  // namespace

TEST_CASE("Every collective delivers the right contributions for 1 to 65 workers") {
  for (const CollectiveAlgorithm& algorithm : collective_algorithms())
    for (std::size_t n = 1; n <= most_workers; ++n) {
      INFO(operation_name(algorithm.operation) << " " << algorithm.name << " n = " << n);
      const std::int64_t root = algorithm.operation == Operation::broadcast ? static_cast<std::int64_t>(n * 2 / 3) : 0;
      const auto program = algorithm.make(sizes_for(algorithm.operation, n, 1), root);
      REQUIRE(program->workers() == static_cast<std::int64_t>(n));
      std::vector<std::vector<Contributors>> held(n, std::vector<Contributors>(n));
      for (std::size_t w = 0; w < n; ++w)
        for (std::size_t b = 0; b < n; ++b) {
          const bool holds = algorithm.operation == Operation::all_gather  ? w == b
                             : algorithm.operation == Operation::broadcast ? static_cast<std::int64_t>(w) == root
                                                                           : true;
          if (holds) held[w][b] = one(w);
        }
      const DataFlow flow = run(*program, held);
      REQUIRE(flow.problem.empty());
      std::vector<int> owners(n, 0);
      for (std::size_t w = 0; w < n; ++w)
        for (std::size_t b = 0; b < n; ++b) {
          switch (algorithm.operation) {
            case Operation::all_gather:
              REQUIRE(flow.held[w][b] == one(b));
              break;
            case Operation::all_reduce:
              REQUIRE(flow.held[w][b] == all(n));
              break;
            case Operation::broadcast:
              REQUIRE(flow.held[w][b] == one(static_cast<std::size_t>(root)));
              break;
            case Operation::reduce_scatter:
              if (flow.held[w][b] == all(n)) ++owners[b];
              break;
            case Operation::reduce:
              if (w == 0) REQUIRE(flow.held[w][b] == all(n));
              break;
            case Operation::all_to_all:
              if (w == b) REQUIRE(flow.held[w][b] == all(n));
              break;
          }
        }
      if (algorithm.operation == Operation::reduce_scatter) REQUIRE(owners == std::vector<int>(n, 1));
      if (n == 1) REQUIRE(flow.messages == 0);
    }
}

TEST_CASE("Bytes and messages follow the formulas") {
  for (const std::size_t n : {2, 3, 5, 8, 17, 64}) {
    const auto blocks = sizes_for(Operation::all_gather, n, 3);
    const std::uint64_t total = std::accumulate(blocks.begin(), blocks.end(), std::uint64_t{0});
    const std::uint64_t largest = *std::max_element(blocks.begin(), blocks.end());
    const std::vector<std::vector<Contributors>> nothing(n, std::vector<Contributors>(n));
    const auto sent = [&](Operation operation, const std::string& name, const std::vector<std::uint64_t>& bytes) {
      return run(*find_collective(operation, name).make(bytes, 0), nothing);
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
      if (algorithm.name.rfind("ring", 0) == 0) REQUIRE_FALSE(blocks.empty());
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
  CHECK_THROWS_WITH(find_collective(Operation::all_gather, "bruck9"),
                    "algorithm of all_gather: expected one of ring, ring_padded, found \"bruck9\"");
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
  for (const Operation operation : {Operation::all_gather, Operation::all_reduce, Operation::reduce_scatter, Operation::broadcast})
    CHECK(operation_from_name(operation_name(operation)) == operation);
}
