// The recurrence back-end: where no two messages ever share a link, a message takes latency + bytes / bandwidth from the moment when both
// its ends are in their step, so the times follow from maxima and sums alone (max-plus), in any order that respects the program.
#include <algorithm>
#include <cmath>
#include <queue>
#include <tuple>

#include "base/error.hpp"
#include "sim/network_backends.hpp"
#include "sim/program_run.hpp"

namespace sparscale::sim {
namespace {

class Recurrence : public Network {
 public:
  explicit Recurrence(const platforms::Topology& topology) : topology_(topology), paths_(topology) {}

  std::span<const std::int64_t> node_of_worker() const override { return topology_.node_of_worker(); }
  const platforms::Topology& topology() const override { return topology_; }

  CollectiveTiming time(const Program& program, std::span<const double> start_s) override {
    check_start(program, topology_, start_s);
    // Relative to the first worker's start, as SimGrid's clock is: a late start costs no digits.
    const double origin = *std::min_element(start_s.begin(), start_s.end());
    std::vector<double> now(start_s.begin(), start_s.end());
    for (double& t : now) t -= origin;
    CollectiveTiming timing;
    timing.network = "recurrence";
    if (topology_.eager())
      simulate(program, now, timing);
    else if (!program.ring_block_bytes().empty())
      ring(program, now, timing);
    else if (program.lanes() > 1 || program.switches() > 0 || program.parts() > 1)
      simulate(program, now, timing);
    else
      walk(program, now, timing);
    for (double& t : now) t += origin;
    timing.end_s = std::move(now);
    return timing;
  }

 private:
  void walk(const Program& program, std::vector<double>& now, CollectiveTiming& timing) {
    ProgramRun run(program);
    std::vector<double> step_end = now;
    std::vector<ProgramRun::Message> messages;
    std::vector<std::int32_t> steps_ended;
    for (std::int32_t worker = 0; worker < static_cast<std::int32_t>(now.size()); ++worker) run.enter(worker, messages);
    // Messages may be taken in any order: the start of one depends on the ends of its workers' previous steps only.
    while (!messages.empty()) {
      const ProgramRun::Message message = messages.back();
      messages.pop_back();
      const auto from = static_cast<std::size_t>(message.from), to = static_cast<std::size_t>(message.to);
      const Path& path = paths_.path(message.from, message.to);
      const double duration = path.latency_s + static_cast<double>(message.bytes) / path.bandwidth_Bps;
      const double end = std::max(now[from], now[to]) + duration;
      for (const std::int32_t worker : {message.from, message.to}) {
        double& last = step_end[static_cast<std::size_t>(worker)];
        last = std::max(last, end);
      }
      steps_ended.clear();
      run.ended(message, steps_ended);
      for (const std::int32_t worker : steps_ended) {
        now[static_cast<std::size_t>(worker)] = step_end[static_cast<std::size_t>(worker)];
        run.next(worker, messages);
      }
    }
    run.check_finished();
    timing.bytes_sent = run.bytes_sent();
    timing.messages = run.messages();
  }

  // Programs with several lanes, where a step may wait for another lane, and eager messages: in the order of their times.
  void simulate(const Program& program, std::vector<double>& now, CollectiveTiming& timing) {
    struct Event {
      double time_s;
      std::uint64_t number;  // ties in the order of making
      std::int64_t enters;   // the place of a worker and part, or behind them a switch; -1: a message ends
      ProgramRun::Message message;
      bool operator<(const Event& other) const { return std::tie(other.time_s, other.number) < std::tie(time_s, number); }
    };
    ProgramRun run(program, topology_.eager());
    std::priority_queue<Event> events;
    std::uint64_t made = 0;
    const std::int64_t n = program.workers(), places = n * program.parts();
    for (std::int64_t place = 0; place < places + program.switches(); ++place)
      events.push({place < places ? now[static_cast<std::size_t>(place)] : 0, made++, place, {}});
    std::vector<ProgramRun::Message> started;
    std::vector<std::int32_t> steps_ended;
    while (!events.empty()) {
      const Event event = events.top();
      events.pop();
      if (event.enters >= places) {
        run.enter(static_cast<std::int32_t>(event.enters - places + n), started);
      } else if (event.enters >= 0) {
        run.enter_part(static_cast<std::int32_t>(event.enters % n), event.enters / n, started);
      } else {
        steps_ended.clear();
        run.ended(event.message, steps_ended);
        for (const std::int32_t strand : steps_ended) {
          if (const std::int64_t place = run.place_of(strand); place >= 0) now[static_cast<std::size_t>(place)] = event.time_s;
          run.next(strand, started);
        }
      }
      for (const ProgramRun::Message& message : started) {
        const Path& path = paths_.path(run.worker_of(message.from), run.worker_of(message.to));
        const double duration = path.latency_s + static_cast<double>(message.bytes) / path.bandwidth_Bps;
        events.push({event.time_s + duration, made++, -1, message});
      }
      started.clear();
    }
    run.check_finished();
    timing.bytes_sent = run.bytes_sent();
    timing.messages = run.messages();
  }

  // The same for a ring, whose steps need no list of messages: n additions and maxima a step.
  void ring(const Program& program, std::vector<double>& now, CollectiveTiming& timing) {
    const auto blocks = program.ring_block_bytes();
    const std::size_t n = blocks.size();
    const std::int64_t steps = program.steps(0);
    timing.messages = static_cast<std::uint64_t>(steps) * n;
    timing.bytes_sent.assign(n, 0);
    if (steps == 0) return;
    std::vector<double> latency(n), bandwidth(n), end(n), size(2 * n);
    for (std::size_t i = 0; i < n; ++i) {
      const Path& path = paths_.path(static_cast<std::int64_t>(i), static_cast<std::int64_t>((i + 1) % n));
      latency[i] = path.latency_s;
      bandwidth[i] = path.bandwidth_Bps;
      size[i] = size[i + n] = static_cast<double>(blocks[i]);
    }
    now.push_back(now.front());
    for (std::int64_t s = 0; s < steps; ++s) {
      const std::size_t shift = (n - static_cast<std::size_t>(s) % n) % n;
      const double* const sent = size.data() + shift;  // worker i sends block (i - s) mod n
      for (std::size_t i = 0; i < n; ++i) end[i] = std::max(now[i], now[i + 1]) + (latency[i] + sent[i] / bandwidth[i]);
      now[0] = std::max(end[n - 1], end[0]);
      for (std::size_t i = 1; i < n; ++i) now[i] = std::max(end[i - 1], end[i]);
      now[n] = now[0];
    }
    now.pop_back();
    // What worker i sends: every block once per full round, then the blocks i, i - 1, ... of the rest.
    std::uint64_t all = 0;
    for (const std::uint64_t b : blocks) all += b;
    const auto rounds = static_cast<std::uint64_t>(steps) / n, rest = static_cast<std::uint64_t>(steps) % n;
    std::uint64_t window = 0;
    for (std::uint64_t k = 0; k < rest; ++k) window += blocks[(n - k) % n];
    for (std::size_t i = 0; i < n; ++i) {
      timing.bytes_sent[i] = rounds * all + window;
      window += blocks[(i + 1) % n];
      window -= blocks[(i + 1 + n - rest) % n];
    }
  }

  const platforms::Topology& topology_;
  Paths paths_;
};

}  // namespace

std::unique_ptr<Network> make_recurrence(const platforms::Topology& topology) { return std::make_unique<Recurrence>(topology); }

}  // namespace sparscale::sim
