// All-reduce through parameter servers that run on the workers: every worker pushes its part to a server, which adds it up, and pulls the
// sum.
#include "sim/collectives/parts.hpp"

namespace sparscale::sim {
namespace {

// One server, worker 0, which serves one worker at a time.
std::unique_ptr<Program> one_server(const CollectiveInput& input) {
  const std::uint64_t bytes = equal_bytes(input.bytes, "all_reduce parameter_server");
  const std::int64_t n = std::ssize(input.bytes);
  auto program = std::make_unique<WrittenProgram>(n, 1);
  for (const bool push : {true, false})
    for (std::int64_t worker = 1; worker < n; ++worker) {
      Step &from = program->add(push ? worker : 0), &to = program->add(push ? 0 : worker);
      from.sends.push_back({push ? 0 : worker, bytes, 0, n});
      to.receives.push_back(push ? worker : 0);
      to.reduces = push;
    }
  return program;
}

// Every worker is the server of one shard: in step s a worker pushes to server worker + s, later it pulls from there.
std::unique_ptr<Program> sharded(const CollectiveInput& input) {
  const std::int64_t n = std::ssize(input.bytes);
  const auto shards = split_evenly(equal_bytes(input.bytes, "all_reduce parameter_server_sharded"), n);
  auto program = std::make_unique<WrittenProgram>(n, 1);
  for (const bool push : {true, false})
    for (std::int64_t distance = 1; distance < n; ++distance)
      for (std::int64_t worker = 0; worker < n; ++worker) {
        const std::int64_t ahead = (worker + distance) % n, behind = (worker - distance + n) % n;
        const std::int64_t shard = push ? ahead : worker;
        Step& step = program->add(worker);
        step.sends.push_back({push ? ahead : behind, shards[static_cast<std::size_t>(shard)], shard, 1});
        step.receives.push_back(push ? behind : ahead);
        step.reduces = push;
      }
  return program;
}

}  // namespace

CollectiveAlgorithm parameter_server_all_reduce() {
  return {"parameter_server",
          Operation::all_reduce,
          "One parameter server, on worker 0",
          "ps-lite with one server. Li et al., OSDI 2014",
          "2 (n - 1) (alpha + m / B) on equal links",
          one_server};
}

CollectiveAlgorithm parameter_server_sharded_all_reduce() {
  return {"parameter_server_sharded",
          Operation::all_reduce,
          "A parameter server on every worker, each with an n-th of the buffer",
          "BytePS with its servers on the workers. Jiang et al., OSDI 2020",
          "2 (n - 1) (alpha + m / (n B)) on equal links",
          sharded};
}

}  // namespace sparscale::sim
