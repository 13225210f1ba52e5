#include "sim/timelines/next_forward.hpp"

#include <algorithm>
#include <limits>
#include <optional>

namespace sparscale::sim {
namespace {

constexpr double unlimited = std::numeric_limits<double>::infinity();

class NextForward {
 public:
  NextForward(const std::vector<LayerJob>& jobs, TimelineContext& context, Streams& streams)
      : jobs_(jobs), context_(context), streams_(streams), workers_(streams.workers()), jobs_of_(context.options().layers.size()) {
    for (std::size_t job = 0; job < jobs.size(); ++job) jobs_of_[jobs[job].layer].push_back(job);
    const std::size_t layers = jobs_of_.size();
    for (std::size_t l = layers; l-- > 0;) {
      items_.push_back({Item::Kind::backward, l, nullptr});
      for (const std::size_t job : jobs_of_[l]) {
        for (const Kernel& kernel : jobs[job].piece.calls.front().before) items_.push_back({Item::Kind::kernel, l, &kernel});
        items_.push_back({Item::Kind::ready, job, nullptr});
      }
    }
    for (std::size_t l = 0; l < layers; ++l) {
      for (const std::size_t job : jobs_of_[l])
        for (const Kernel& kernel : jobs[job].piece.after) items_.push_back({Item::Kind::kernel_after, l, &kernel});
      items_.push_back({Item::Kind::forward, l, nullptr});
    }
    for (Worker& worker : workers_) {
      worker.ready_s.resize(jobs.size());
      worker.end_s.resize(jobs.size());
    }
  }

  void run(bool by_priority) {
    std::vector<bool> done(jobs_.size(), false);
    std::vector<double> enter(workers_.size());
    for (std::size_t made = 0; made < jobs_.size(); ++made) {
      std::size_t next = made;
      if (by_priority) {
        const auto& until = streams_.communicates_until();
        double now = *std::max_element(until.begin(), until.end());
        std::optional<std::size_t> chosen = ready_by(now, done);
        if (!chosen) {  // the first that will be ready
          const auto first = static_cast<std::size_t>(std::find(done.begin(), done.end(), false) - done.begin());
          for (std::size_t worker = 0; worker < workers_.size(); ++worker) now = std::max(now, reach(worker, first));
          chosen = ready_by(now, done);
        }
        next = chosen.value();
        std::fill(enter.begin(), enter.end(), now);
      } else {
        for (std::size_t worker = 0; worker < workers_.size(); ++worker) enter[worker] = reach(worker, next);
      }
      done[next] = true;
      const std::vector<double>& ends = streams_.communicate(jobs_[next].piece.calls.front().call, enter, jobs_[next].algorithm);
      for (std::size_t worker = 0; worker < workers_.size(); ++worker) workers_[worker].end_s[next] = ends[worker];
    }
    for (std::size_t worker = 0; worker < workers_.size(); ++worker) advance(worker, unlimited);
  }

  // All calls are known as far as they can be: computes until one is awaited that is not.
  void play() {
    for (std::size_t worker = 0; worker < workers_.size(); ++worker) {
      for (std::size_t job = 0; job < jobs_.size(); ++job) workers_[worker].end_s[job] = streams_.call_end(job, worker);
      advance(worker, unlimited);
      for (std::size_t job = 0; job < jobs_.size(); ++job)
        if (const auto& ready_s = workers_[worker].ready_s[job]) streams_.call_ready(job, worker, *ready_s);
    }
  }

 private:
  struct Item {
    enum class Kind { backward, kernel, ready, kernel_after, forward };
    Kind kind;
    std::size_t number;  // a layer, or the job that is ready
    const Kernel* kernel;
  };
  struct Worker {
    std::size_t next_item = 0;
    std::vector<std::optional<double>> ready_s, end_s;  // per job
  };

  // Computes the worker's next item unless it has to wait for a call that was not made yet or would end after the limit.
  bool step(std::size_t worker, double limit_s) {
    Worker& state = workers_[worker];
    if (state.next_item == items_.size()) return false;
    const Item& item = items_[state.next_item];
    const TimelineOptions& options = context_.options();
    const double factor = context_.factor(worker);
    double ready_s = 0;
    if (item.kind == Item::Kind::kernel_after || item.kind == Item::Kind::forward)
      for (const std::size_t job : jobs_of_[item.number]) {
        if (!state.end_s[job]) return false;
        ready_s = std::max(ready_s, *state.end_s[job]);
      }
    switch (item.kind) {
      case Item::Kind::ready:
        state.ready_s[item.number] = streams_.computes_until(worker);
        break;
      case Item::Kind::backward:
        if (!streams_.compute_by(worker, 0, options.layers[item.number].backward_s * factor, limit_s, Streams::Kind::backward,
                                 "backward " + std::to_string(item.number)))
          return false;
        break;
      case Item::Kind::forward:
        if (!streams_.compute_by(worker, ready_s, options.layers[item.number].forward_s * factor, limit_s, Streams::Kind::forward,
                                 "forward " + std::to_string(item.number)))
          return false;
        break;
      case Item::Kind::kernel:
      case Item::Kind::kernel_after:
        if (!streams_.compute_by(worker, ready_s, item.kernel->work_s[worker], limit_s,
                                 is_selection(item.kernel->operation) ? Streams::Kind::selection : Streams::Kind::other,
                                 item.kernel->operation))
          return false;
        break;
    }
    ++state.next_item;
    return true;
  }

  void advance(std::size_t worker, double limit_s) {
    while (step(worker, limit_s)) {
    }
  }

  double reach(std::size_t worker, std::size_t job) {
    while (!workers_[worker].ready_s[job]) step(worker, unlimited);
    return *workers_[worker].ready_s[job];
  }

  // Of the jobs that are ready everywhere by now, that of the lowest layer.
  std::optional<std::size_t> ready_by(double now_s, const std::vector<bool>& done) {
    for (std::size_t worker = 0; worker < workers_.size(); ++worker) advance(worker, now_s);
    std::optional<std::size_t> best;
    for (std::size_t job = 0; job < jobs_.size(); ++job) {
      if (done[job] || (best && jobs_[*best].layer <= jobs_[job].layer)) continue;
      const bool ready = std::all_of(workers_.begin(), workers_.end(),
                                     [&](const Worker& worker) { return worker.ready_s[job] && *worker.ready_s[job] <= now_s; });
      if (ready) best = job;
    }
    return best;
  }

  const std::vector<LayerJob>& jobs_;
  TimelineContext& context_;
  Streams& streams_;
  std::vector<Worker> workers_;
  std::vector<std::vector<std::size_t>> jobs_of_;  // per layer
  std::vector<Item> items_;
};

}  // namespace

void run_next_forward(const std::vector<LayerJob>& jobs, bool by_priority, TimelineContext& context, std::vector<double>& clock) {
  const double begin_s = *std::max_element(clock.begin(), clock.end());
  Streams streams(context, clock);
  NextForward(jobs, context, streams).run(by_priority);
  streams.report(begin_s);
  clock = streams.ends();
}

void run_next_forward_side_by_side(const std::vector<LayerJob>& jobs, TimelineContext& context, std::vector<double>& clock) {
  const double begin_s = *std::max_element(clock.begin(), clock.end());
  std::vector<StreamCall> calls;
  for (const LayerJob& job : jobs) calls.push_back({job.piece.calls.front().call, job.algorithm, job.stream});
  const Streams streams = Streams::side_by_side(context, clock, calls, [&](Streams& known) { NextForward(jobs, context, known).play(); });
  streams.report(begin_s);
  clock = streams.ends();
  // Clocks count from where the first worker is: after many iterations their last digit would be more than starts may differ by.
  const double first_s = *std::min_element(clock.begin(), clock.end());
  for (double& time_s : clock) time_s -= first_s;
}

}  // namespace sparscale::sim
