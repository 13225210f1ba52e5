#include "sim/timeline.hpp"

#include <algorithm>
#include <numeric>

#include "base/error.hpp"
#include "sim/timelines/mode.hpp"
#include "sim/traffic.hpp"

namespace sparscale::sim {
namespace {

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

std::size_t last_worker(const std::vector<double>& end_s, const std::vector<double>& computes_s, double iteration_s) {
  const double from_s = *std::max_element(end_s.begin(), end_s.end()) - 1e-5 * iteration_s;
  std::size_t last = end_s.size();
  for (std::size_t worker = 0; worker < end_s.size(); ++worker)
    if (end_s[worker] >= from_s && (last == end_s.size() || computes_s[worker] > computes_s[last] * (1 + 1e-9))) last = worker;
  return last;
}

double TimelineContext::kernel_s(std::size_t worker, const std::string& operation, std::int64_t elements, std::int64_t selected) {
  const auto [place, is_new] = kernel_times_.try_emplace({operation, elements, selected});
  if (is_new) place->second = profile_.time(operation, elements, selected, options_.extrapolate_profile);
  result_.extrapolated = result_.extrapolated || place->second.extrapolated;
  return place->second.time_s * factor(worker);
}

CollectiveTiming TimelineContext::collective(const CollectiveCall& call, const std::vector<double>& start_s, const std::string& algorithm) {
  const Prepared prepared = prepare(call, algorithm);
  CollectiveTiming timing = network_->time(*prepared.program, start_s);
  account(call, prepared, start_s, timing);
  return timing;
}

TimelineContext::Prepared TimelineContext::prepare(const CollectiveCall& call, const std::string& algorithm) const {
  Prepared prepared;
  prepared.algorithm = &find_collective(call.operation, algorithm.empty() ? algorithm_of(options_.collectives, call.operation) : algorithm);
  prepared.bytes = call.bytes_of_all(workers_, !call.bytes_unpadded.empty());
  prepared.round = call.operation == Operation::gossip ? iteration_ : 0;
  prepared.program = prepared.algorithm->make(
      {prepared.bytes, call.root, network_->node_of_worker(), 0, prepared.round,
       call.operation == Operation::gossip ? options_.gossip_seed : 1, call.stream ? &*call.stream : nullptr,
       call.parts ? std::span<const std::uint64_t>(call.parts->bytes) : std::span<const std::uint64_t>(), options_.gossip_segments});
  return prepared;
}

void TimelineContext::account(const CollectiveCall& call, const Prepared& prepared, const std::vector<double>& begin_s,
                              const CollectiveTiming& timing, std::int64_t stream) {
  const CollectiveAlgorithm& chosen = *prepared.algorithm;
  // Every worker sends as many counts to every other.
  if (call.operation == Operation::all_to_all && !call.parts && call.payload != "counts" && workers_ > 1) result_.even_parts = true;
  const auto add = [](std::vector<std::uint64_t>& to, const std::vector<std::uint64_t>& from) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
  };
  const platforms::Topology& topology = network_->topology();
  const bool by_nccl = timing.network == "nccl";
  const Traffic traffic = traffic_of(*prepared.program, topology, timing.bytes_sent, by_nccl);
  add(result_.bytes_sent, timing.bytes_sent);
  add(result_.bytes_received, traffic.received);
  add(link_bytes_, traffic.link_bytes);
  const auto buffers = receive_buffers(call, workers_, by_nccl || chosen.name.find("padded") != std::string::npos, traffic.received);
  for (std::size_t worker = 0; worker < buffers.size(); ++worker)
    result_.receive_buffer_bytes[worker] = std::max(result_.receive_buffer_bytes[worker], buffers[worker]);
  result_.messages += timing.messages;
  if (timing.messages > 0) result_.networks.push_back(timing.network);

  if (keep_log_) {
    IterationLog::Call entry;
    entry.name = operation_name(call.operation) + " " + call.payload + " (" + (by_nccl ? "nccl" : chosen.name) + ")";
    entry.payload = call.payload;
    entry.operation = call.operation;
    entry.algorithm = chosen.name;
    entry.bytes = prepared.bytes;
    entry.root = call.root;
    entry.round = prepared.round;
    entry.received = traffic.received;
    entry.stretches = call.stream;
    if (call.parts) entry.parts = call.parts->bytes;
    entry.stream = stream;
    entry.begin_s = begin_s;
    entry.end_s = timing.end_s;
    entry.class_bytes.assign(platforms::link_classes, 0);
    for (std::size_t link = 0; link < traffic.link_bytes.size(); ++link) {
      const auto id = static_cast<std::int64_t>(link);
      entry.class_bytes[static_cast<std::size_t>(topology.link_class(id))] += traffic.link_bytes[link];
      const double busy_s = static_cast<double>(traffic.link_bytes[link]) / topology.links()[link].bandwidth_Bps;
      if (busy_s <= entry.busiest_link_s) continue;
      entry.busiest_link_s = busy_s;
      entry.busiest_link_id = id;
      entry.busiest_link = topology.links()[link].name;
      entry.busiest_class = platforms::link_class_name(topology.link_class(id));
    }
    entry.link_bytes = traffic.link_bytes;
    log_.calls.push_back(std::move(entry));
  }
}

class TimelineState {
 public:
  TimelineState(const kernels::Profile& profile, Timeline::NetworkAt network, const TimelineOptions& options)
      : options_(options),
        mode_info_(find_timeline_mode(options.mode)),
        network_(std::move(network)),
        context_(profile, options_),
        mode_(mode_info_.make()) {
    if (mode_info_.needs_layers && options_.layers.empty())
      throw InputError("timeline", "times of the layers, as the mode is " + options_.mode, "none");
  }

  IterationTime time(const Json& record) {
    context_.iteration_ = iteration_++;
    context_.workers_ = record.at("workers").get<std::int64_t>();
    Network* const network = &network_(context_.iteration_);
    // Consecutive iterations that send and compute the same take the same time, unless something else changes.
    const std::string key = record.at("exchange").dump() + record.at("work").dump();
    const bool stays = !mode_info_.carries_over && !options_.disturbance.of_workers();
    if (stays && key == last_key_ && network == context_.network_ && (!context_.keep_log_ || logged_)) return context_.result_;
    context_.network_ = network;
    const auto n = static_cast<std::size_t>(context_.workers_);
    if (options_.disturbance.of_workers()) context_.factors_ = options_.disturbance.factors(context_.iteration_, context_.workers_);
    IterationTime& result = context_.result_;
    result = {};
    context_.log_ = {};
    result.bytes_sent.assign(n, 0);
    result.bytes_received = result.receive_buffer_bytes = result.bytes_sent;
    const platforms::Topology& topology = network->topology();
    context_.link_bytes_.assign(topology.links().size(), 0);
    mode_->time(record, context_);

    const auto& sent = result.bytes_sent;
    result.bytes_sent_max = static_cast<double>(*std::max_element(sent.begin(), sent.end()));
    result.bytes_sent_mean =
        static_cast<double>(std::accumulate(sent.begin(), sent.end(), std::uint64_t{0})) / static_cast<double>(context_.workers_);
    result.class_bytes.assign(platforms::link_classes, 0);
    result.class_busiest_bytes = result.class_bytes;
    for (std::size_t link = 0; link < context_.link_bytes_.size(); ++link) {
      const auto of = static_cast<std::size_t>(topology.link_class(static_cast<std::int64_t>(link)));
      result.class_bytes[of] += context_.link_bytes_[link];
      result.class_busiest_bytes[of] = std::max(result.class_busiest_bytes[of], context_.link_bytes_[link]);
    }
    std::sort(result.networks.begin(), result.networks.end());
    result.networks.erase(std::unique(result.networks.begin(), result.networks.end()), result.networks.end());
    last_key_ = key;
    logged_ = context_.keep_log_;
    return result;
  }

  void keep_log(bool keep) { context_.keep_log_ = keep; }
  const IterationLog& log() const { return context_.log_; }

 private:
  const TimelineOptions options_;
  const TimelineModeInfo& mode_info_;
  Timeline::NetworkAt network_;
  TimelineContext context_;
  std::unique_ptr<TimelineMode> mode_;
  std::int64_t iteration_ = 0;
  std::string last_key_;
  bool logged_ = false;
};

Timeline::Timeline(const kernels::Profile& profile, Network& network, const TimelineOptions& options)
    : Timeline(
          profile, [&network](std::int64_t) -> Network& { return network; }, options) {}

Timeline::Timeline(const kernels::Profile& profile, NetworkAt network, const TimelineOptions& options)
    : state_(std::make_unique<TimelineState>(profile, std::move(network), options)) {}

Timeline::~Timeline() = default;

IterationTime Timeline::time(const Json& record) { return state_->time(record); }
void Timeline::keep_log(bool keep) { state_->keep_log(keep); }
const IterationLog& Timeline::log() const { return state_->log(); }

}  // namespace sparscale::sim
