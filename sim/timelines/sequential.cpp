// Sequential: phases one after another with blocking calls, as the reference implementations do; every worker enters a call when its own
// work is done, and the next iteration starts when the last worker is through. Each phase is the growth of the latest worker's clock during
// that phase, so a worker that waits for a slower one is charged to what the slower one does.
// Source: the timers of those implementations synchronise around every region, so nothing overlaps.
#include <algorithm>

#include "sim/timelines/mode.hpp"

namespace sparscale::sim {

void run_sequential(const Json& record, TimelineContext& context, std::vector<double>& clock) {
  const TimelineOptions& options = context.options();
  IterationTime& result = context.result();
  IterationLog* const log = context.log();
  double latest = *std::max_element(clock.begin(), clock.end());
  const double begin_s = latest;
  const auto advance = [&](double& phase) {
    const double now = *std::max_element(clock.begin(), clock.end());
    phase += now - latest;
    latest = now;
  };
  const auto spend = [&](std::size_t worker, double time_s, IterationLog::Kind kind, const std::string& name) {
    if (log && time_s > 0) log->compute[worker].push_back({clock[worker], clock[worker] + time_s, kind, name});
    clock[worker] += time_s;
  };
  if (log) log->compute.resize(clock.size());
  for (std::size_t worker = 0; worker < clock.size(); ++worker) {
    const double factor = context.factor(worker), before = clock[worker];
    if (!log) {
      clock[worker] = before + (options.forward_time_s + options.backward_time_s) * factor;
      continue;
    }
    spend(worker, options.forward_time_s * factor, IterationLog::Kind::forward, "forward");
    spend(worker, before + (options.forward_time_s + options.backward_time_s) * factor - clock[worker], IterationLog::Kind::backward,
          "backward");
    clock[worker] = before + (options.forward_time_s + options.backward_time_s) * factor;
  }
  advance(result.forward_backward_time_s);

  // Work items in order; their numbers are one for all workers or one per worker (work_to_json).
  const auto do_work = [&](std::int64_t stage) {
    for (const Json& item : record.at("work")) {
      if (item.at("before_call").get<std::int64_t>() != stage) continue;
      const auto& operation = item.at("operation").get_ref<const std::string&>();
      const Json &elements = item.at("elements"), &selected = item.at("selected");
      const bool selects = is_selection(operation);
      for (std::size_t worker = 0; worker < clock.size(); ++worker)
        spend(worker, context.kernel_s(worker, operation, number_of(elements, worker), number_of(selected, worker)),
              selects ? IterationLog::Kind::selection : IterationLog::Kind::other, operation);
      advance(selects ? result.selection_time_s : result.other_time_s);
    }
  };
  std::int64_t stage = 0;
  for (const Json& entry : record.at("exchange")) {
    do_work(stage++);
    const CollectiveCall call = CollectiveCall::from_json(entry, context.workers());
    clock = context.collective(call, clock).end_s;
    advance(carries_indices(call.payload) ? result.index_exchange_time_s : result.value_exchange_time_s);
  }
  do_work(stage);
  result.iteration_time_s = latest - begin_s;
  if (log) {
    log->begin_s = begin_s;
    log->end_s = latest;
  }
  result.worker_spread_s = latest - *std::min_element(clock.begin(), clock.end());
}

namespace {

class Sequential : public TimelineMode {
 public:
  void time(const Json& record, TimelineContext& context) override {
    std::vector<double> clock(static_cast<std::size_t>(context.workers()), 0);
    run_sequential(record, context, clock);
  }
};

}  // namespace

TimelineModeInfo sequential_timeline() {
  return {"sequential",
          "Phases one after another, blocking calls",
          "the timers of the reference implementations",
          {},
          false,
          false,
          [](const std::string&, const Json&) { return std::string(); },
          [] { return std::unique_ptr<TimelineMode>(std::make_unique<Sequential>()); }};
}

}  // namespace sparscale::sim
