#include "sim/timeline.hpp"

#include <algorithm>
#include <numeric>

#include "base/error.hpp"

namespace sparscale::sim {
namespace {

bool is_selection(const std::string& operation) {
  return operation.starts_with("topk") || operation.starts_with("threshold_select") || operation == "count";
}

bool carries_indices(const std::string& payload) { return payload == "counts" || payload == "indices" || payload == "plan"; }

const std::string& algorithm_of(const CollectiveChoice& choice, Operation operation) {
  switch (operation) {
    case Operation::all_gather:
      return choice.all_gather;
    case Operation::all_reduce:
      return choice.all_reduce;
    case Operation::reduce_scatter:
      return choice.reduce_scatter;
    case Operation::broadcast:
      return choice.broadcast;
    case Operation::reduce:
      return choice.reduce;
    case Operation::all_to_all:
      return choice.all_to_all;
    case Operation::gossip:
      return choice.gossip;
    case Operation::sparse_all_reduce:
      return choice.sparse_all_reduce;
  }
  throw RunError("an operation without an algorithm");
}

}  // namespace

Timeline::Timeline(const kernels::Profile& profile, Network& network, const TimelineOptions& options)
    : profile_(profile), network_(network), options_(options) {}

kernels::KernelTime Timeline::kernel_time(const std::string& operation, std::int64_t elements, std::int64_t selected) {
  const auto [place, is_new] = kernel_times_.try_emplace({operation, elements, selected});
  if (is_new) place->second = profile_.time(operation, elements, selected, options_.extrapolate_profile);
  return place->second;
}

IterationTime Timeline::time(const Json& record) {
  const std::string key = record.at("exchange").dump() + record.at("work").dump();
  if (key == last_key_) return last_;

  const auto workers = record.at("workers").get<std::int64_t>();
  std::vector<double> clock(static_cast<std::size_t>(workers), options_.forward_time_s + options_.backward_time_s);
  IterationTime result;
  result.forward_backward_time_s = options_.forward_time_s + options_.backward_time_s;
  double latest = result.forward_backward_time_s;
  const auto advance = [&](double& phase) {
    const double now = *std::max_element(clock.begin(), clock.end());
    phase += now - latest;
    latest = now;
  };

  // Work items in order; their numbers are one for all workers or one per worker (work_to_json).
  const auto number_of = [](const Json& numbers, std::size_t worker) {
    return (numbers.is_array() ? numbers.at(worker) : numbers).get<std::int64_t>();
  };
  const auto do_work = [&](std::int64_t stage) {
    for (const Json& item : record.at("work")) {
      if (item.at("before_call").get<std::int64_t>() != stage) continue;
      const auto& operation = item.at("operation").get_ref<const std::string&>();
      const Json &elements = item.at("elements"), &selected = item.at("selected");
      for (std::size_t worker = 0; worker < clock.size(); ++worker) {
        const kernels::KernelTime spent = kernel_time(operation, number_of(elements, worker), number_of(selected, worker));
        clock[worker] += spent.time_s;
        result.extrapolated = result.extrapolated || spent.extrapolated;
      }
      advance(is_selection(operation) ? result.selection_time_s : result.other_time_s);
    }
  };

  std::vector<std::uint64_t> sent(static_cast<std::size_t>(workers), 0);
  std::int64_t stage = 0;
  for (const Json& entry : record.at("exchange")) {
    do_work(stage++);
    const CollectiveCall call = CollectiveCall::from_json(entry, workers);
    const CollectiveAlgorithm& algorithm = find_collective(call.operation, algorithm_of(options_.collectives, call.operation));
    const auto bytes = call.bytes_of_all(workers, !call.bytes_unpadded.empty());
    const std::unique_ptr<Program> program =
        algorithm.make({bytes, call.root, network_.node_of_worker(), 0, 0, 1, call.stream ? &*call.stream : nullptr});
    const CollectiveTiming timing = network_.time(*program, clock);
    clock = timing.end_s;
    advance(carries_indices(call.payload) ? result.index_exchange_time_s : result.value_exchange_time_s);
    for (std::size_t worker = 0; worker < sent.size(); ++worker) sent[worker] += timing.bytes_sent[worker];
    result.messages += timing.messages;
    if (timing.messages > 0) result.networks.push_back(timing.network);
  }
  do_work(stage);

  result.iteration_time_s = latest;
  result.bytes_sent_max = static_cast<double>(*std::max_element(sent.begin(), sent.end()));
  result.bytes_sent_mean = static_cast<double>(std::accumulate(sent.begin(), sent.end(), std::uint64_t{0})) / static_cast<double>(workers);
  std::sort(result.networks.begin(), result.networks.end());
  result.networks.erase(std::unique(result.networks.begin(), result.networks.end()), result.networks.end());
  last_key_ = key;
  last_ = result;
  return result;
}

}  // namespace sparscale::sim
