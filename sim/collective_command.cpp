#include "sim/collective_command.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "platforms/platform.hpp"
#include "sim/network.hpp"

namespace sparscale::sim {
namespace {

// As in experiments. Links, starts and ends of more would fill the memory.
constexpr std::int64_t most_workers = 1048576;

// One value for each worker from one value or one per worker.
template <class Value>
std::vector<Value> for_all(const std::vector<Value>& given, std::int64_t workers, const std::string& what) {
  if (given.size() == 1) return std::vector<Value>(static_cast<std::size_t>(workers), given.front());
  if (static_cast<std::int64_t>(given.size()) != workers)
    throw InputError(what, "one number, or " + std::to_string(workers) + " (one per worker)", std::to_string(given.size()));
  return given;
}

}  // namespace

Json run_collective(const CollectiveRequest& request) {
  if (request.workers < 1) throw InputError("workers", "at least 1", std::to_string(request.workers));
  if (request.workers > most_workers)
    throw InputError("workers", "at most " + std::to_string(most_workers), std::to_string(request.workers));
  auto platform = platforms::Platform::load(platforms::find_platform(request.platform));
  if (!request.placement.empty()) platform.placement = platforms::Placement::from_text(request.placement);
  const Operation operation = operation_from_name(request.operation);
  std::string name = request.algorithm;
  for (const CollectiveAlgorithm& algorithm : collective_algorithms())
    if (name.empty() && algorithm.operation == operation) name = algorithm.name;
  const CollectiveAlgorithm& algorithm = find_collective(operation, name);
  if (request.root != 0 && operation != Operation::broadcast)
    throw InputError("root", "0, as only a broadcast has a root", std::to_string(request.root));
  const auto network = make_network(request.network, platform, request.workers);
  auto start_s = request.start_s.empty() ? std::vector<double>(static_cast<std::size_t>(request.workers), 0.0)
                                         : for_all(request.start_s, request.workers, "start_s");
  for (const double start : start_s)
    if (!std::isfinite(start) || start < 0) throw InputError("start_s", "finite numbers >= 0", number_text(start));
  const auto bytes = for_all(request.bytes, request.workers, "bytes");
  if (request.segments != 0 && algorithm.name.find("crossover") == std::string::npos)
    throw InputError("segments", "none, as only the crossover algorithms of gossip have segments", std::to_string(request.segments));
  const auto program = algorithm.make({bytes, request.root, network->node_of_worker(), request.chunk_bytes, request.round, 1, nullptr,
                                       request.parts, request.segments == 0 ? default_segments : request.segments});
  // Timed from the first start on: a late one would cost the digits of a short collective.
  const double first = *std::min_element(start_s.begin(), start_s.end());
  for (double& start : start_s) start -= first;
  CollectiveTiming timing = network->time(*program, start_s);
  const double time_s = *std::max_element(timing.end_s.begin(), timing.end_s.end());
  for (double& end : timing.end_s) end += first;
  return {{"time_s", time_s},
          {"end_s", timing.end_s},
          {"bytes_sent", timing.bytes_sent},
          {"messages", timing.messages},
          {"network", timing.network},
          {"workers", request.workers},
          {"op", request.operation},
          {"algorithm", algorithm.name},
          {"platform", platform.name},
          {"platform_sha256", platform.sha256},
          {"placement", platform.placement.text()}};
}

}  // namespace sparscale::sim
