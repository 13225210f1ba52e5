#include <algorithm>

#include "base/error.hpp"
#include "sim/sparsifier.hpp"
#include "sim/timelines/mode.hpp"

namespace sparscale::sim {

TimelineModeInfo sequential_timeline();
TimelineModeInfo ddp_buckets_timeline();
TimelineModeInfo layer_wise_timeline();
TimelineModeInfo p3_timeline();
TimelineModeInfo hybrid_timeline();
TimelineModeInfo gossip_timeline();

const std::vector<TimelineModeInfo>& timeline_modes() {
  static const std::vector<TimelineModeInfo> modes = {
      sequential_timeline(), ddp_buckets_timeline(), layer_wise_timeline(), p3_timeline(), hybrid_timeline(), gossip_timeline(),
  };
  return modes;
}

const TimelineModeInfo& find_timeline_mode(const std::string& name) {
  std::string list;
  for (const TimelineModeInfo& mode : timeline_modes()) {
    if (mode.name == name) return mode;
    list += (list.empty() ? "one of " : ", ") + mode.name;
  }
  throw InputError("timeline", list, "\"" + name + "\"");
}

bool is_selection(const std::string& operation) {
  return operation.starts_with("topk") || operation.starts_with("threshold_select") || operation == "count";
}

bool carries_indices(const std::string& payload) { return payload == "counts" || payload == "indices" || payload == "plan"; }

std::int64_t number_of(const Json& numbers, std::size_t worker) {
  return (numbers.is_array() ? numbers.at(worker) : numbers).get<std::int64_t>();
}

bool is_dense_record(const Json& record) {
  if (record.contains("sparsifier")) return find_sparsifier(record.at("sparsifier").get<std::string>()).dense;
  const Json& exchange = record.at("exchange");
  return !exchange.empty() &&
         std::all_of(exchange.begin(), exchange.end(), [](const Json& call) { return call.at("payload") == "gradient"; });
}

}  // namespace sparscale::sim
