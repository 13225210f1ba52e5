#include "experiments/observed_traffic.hpp"

#include <algorithm>

#include "platforms/platform.hpp"

namespace sparscale::experiments {
namespace {

Json compact(const auto& numbers) {
  const bool alike = std::ranges::all_of(numbers, [&](const auto& number) { return number == numbers.front(); });
  return alike && !numbers.empty() ? Json(numbers.front()) : Json(numbers);
}

}  // namespace

ObservedTraffic observe_traffic(const std::vector<sim::IterationTime>& times) {
  ObservedTraffic observed;
  const std::size_t n = times.empty() ? 0 : times.front().bytes_sent.size();
  observed.receive_buffer_bytes.assign(std::max<std::size_t>(n, 1), 0);
  std::vector<double> sent(n), received(n), of_class(platforms::link_classes), busiest(platforms::link_classes);
  const auto count = static_cast<double>(times.size());
  for (const sim::IterationTime& time : times) {
    for (std::size_t worker = 0; worker < n; ++worker) {
      sent[worker] += static_cast<double>(time.bytes_sent[worker]) / count;
      received[worker] += static_cast<double>(time.bytes_received[worker]) / count;
      observed.receive_buffer_bytes[worker] = std::max(observed.receive_buffer_bytes[worker], time.receive_buffer_bytes[worker]);
    }
    for (std::size_t of = 0; of < time.class_bytes.size(); ++of) {
      of_class[of] += static_cast<double>(time.class_bytes[of]) / count;
      busiest[of] += static_cast<double>(time.class_busiest_bytes[of]) / count;
    }
  }
  Json classes = Json::object();
  for (std::size_t of = 0; of < of_class.size(); ++of)
    if (of_class[of] > 0)
      classes[platforms::link_class_name(static_cast<platforms::LinkClass>(of))] = {{"bytes_mean", of_class[of]},
                                                                                    {"busiest_link_bytes_mean", busiest[of]}};
  observed.document = {{"bytes_sent_mean", compact(sent)},
                       {"bytes_received_mean", compact(received)},
                       {"receive_buffer_bytes_max", compact(observed.receive_buffer_bytes)},
                       {"link_classes", classes}};
  return observed;
}

}  // namespace sparscale::experiments
