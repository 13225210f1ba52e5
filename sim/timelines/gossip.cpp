// Gossip: instead of the all-reduce, every worker sends its model to one or two others and averages what it receives. Nobody waits for all:
// each worker goes on when its own messages are through, so workers drift apart; their clocks are carried from iteration to iteration.
// Source: stochastic gradient push (Assran et al., ICML 2019), D-PSGD (Lian et al., NeurIPS 2017), Crossover-SGD (Yeo et al., arXiv
// 2012.15198); the peers are those of the gossip collectives, their round is the iteration.
#include <algorithm>

#include "sim/sparsifier.hpp"
#include "sim/timelines/streams.hpp"

namespace sparscale::sim {
namespace {

class Gossip : public TimelineMode {
 public:
  void time(const Json& record, TimelineContext& context) override {
    clock_.resize(static_cast<std::size_t>(context.workers()), 0);
    const double begin_s = *std::max_element(clock_.begin(), clock_.end());
    Streams streams(context, clock_);
    const auto run = [&](bool before) {
      for (const Json& item : record.at("work")) {
        if ((item.at("before_call").get<std::int64_t>() == 0) != before) continue;
        Kernel kernel{item.at("operation").get<std::string>(), std::vector<double>(clock_.size())};
        for (std::size_t worker = 0; worker < clock_.size(); ++worker) {
          kernel.work_s[worker] =
              context.kernel_s(worker, kernel.operation, number_of(item.at("elements"), worker), number_of(item.at("selected"), worker));
          kernel.run(streams, worker, streams.communicates_until()[worker]);
        }
      }
    };
    const TimelineOptions& options = context.options();
    std::vector<double> ready(clock_.size());
    for (std::size_t worker = 0; worker < clock_.size(); ++worker) {
      streams.compute(worker, 0, options.forward_time_s * context.factor(worker), Streams::Kind::forward, "forward");
      streams.compute(worker, 0, options.backward_time_s * context.factor(worker), Streams::Kind::backward, "backward");
    }
    run(true);
    for (std::size_t worker = 0; worker < clock_.size(); ++worker) ready[worker] = streams.computes_until(worker);
    CollectiveCall call;
    call.operation = Operation::gossip;
    call.payload = "gradient";
    std::uint64_t bytes = 0;
    for (const Json& entry : record.at("exchange")) {
      const CollectiveCall one = CollectiveCall::from_json(entry, context.workers());
      call.dtype = one.dtype;
      bytes += one.bytes_of_all(context.workers()).front();
    }
    call.bytes = {bytes};
    streams.communicate(call, ready);
    run(false);
    streams.report(begin_s);
    clock_ = streams.ends();
  }

 private:
  std::vector<double> clock_;
};

}  // namespace

TimelineModeInfo gossip_timeline() {
  return {"gossip",
          "Models go to a few peers instead of an all-reduce; workers drift, there is no barrier",
          "Assran et al., ICML 2019; Lian et al., NeurIPS 2017; Yeo et al., arXiv 2012.15198",
          {"gossip_seed"},
          true,
          false,
          [](const std::string& sparsifier, const Json&) {
            return find_sparsifier(sparsifier).dense ? std::string() : std::string("dense or dense_fp16, as gossip exchanges models");
          },
          [] { return std::unique_ptr<TimelineMode>(std::make_unique<Gossip>()); }};
}

}  // namespace sparscale::sim
