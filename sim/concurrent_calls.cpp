#include "sim/concurrent_calls.hpp"

#include <algorithm>
#include <limits>

#include "base/error.hpp"
#include "sim/merged_program.hpp"
#include "sim/network_backends.hpp"

namespace sparscale::sim {
namespace {

double earliest(const std::vector<double>& times_s) { return *std::min_element(times_s.begin(), times_s.end()); }
// Calls that meet for no longer than this share of the group do not meet: one may begin where another ends.
constexpr double rounding = 1e-12;

double latest(const std::vector<double>& times_s) { return *std::max_element(times_s.begin(), times_s.end()); }

// Calls in the order of time: a group of calls that meet, then the next group, which begins when the last one is over.
class Sweep {
 public:
  Sweep(std::span<const ConcurrentCall> calls, Network& network, Network& alone)
      : calls_(calls), network_(network), alone_(alone), timings_(calls.size()), state_(calls.size(), State::open) {}

  std::vector<ConcurrentTiming> run() {
    for (std::size_t begun = 0; begun < calls_.size(); begun += group_.size()) {
      std::size_t first = calls_.size();
      for (std::size_t call = 0; call < calls_.size(); ++call)
        if (can_begin(call) && (first == calls_.size() || begins_s(call) < begins_s(first))) first = call;
      if (first == calls_.size()) throw RunError("calls that wait for each other");
      group_.clear();
      join(first);
      do {
        // What meets even without sharing, which costs little to know; then see whom that makes meet.
        while (grow()) {
        }
        time_group();
      } while (grow());
      for (const std::size_t call : group_) state_[call] = State::done;
    }
    return std::move(timings_);
  }

 private:
  enum class State { open, grouped, done };

  bool can_begin(std::size_t call) const {
    return state_[call] == State::open && (calls_[call].after < 0 || state_[static_cast<std::size_t>(calls_[call].after)] != State::open);
  }

  std::vector<double> begin_s(std::size_t call) const {
    std::vector<double> begin = calls_[call].ready_s;
    if (const std::int64_t after = calls_[call].after; after >= 0) {
      const std::vector<double>& end_s = timings_[static_cast<std::size_t>(after)].timing.end_s;
      for (std::size_t worker = 0; worker < begin.size(); ++worker) begin[worker] = std::max(begin[worker], end_s[worker]);
    }
    return begin;
  }
  double begins_s(std::size_t call) const { return earliest(begin_s(call)); }

  void join(std::size_t call) {
    state_[call] = State::grouped;
    group_.insert(std::upper_bound(group_.begin(), group_.end(), call), call);
    timings_[call].begin_s = begin_s(call);
    timings_[call].timing = alone_.time(*calls_[call].program, timings_[call].begin_s);
  }

  // Takes the calls in that begin before the group is over. False when there are none.
  bool grow() {
    double from_s = std::numeric_limits<double>::infinity(), over_s = -from_s;
    for (const std::size_t call : group_) {
      from_s = std::min(from_s, earliest(timings_[call].begin_s));
      over_s = std::max(over_s, latest(timings_[call].timing.end_s));
    }
    over_s -= rounding * (over_s - from_s);
    bool grown = false;
    for (std::size_t call = 0; call < calls_.size(); ++call)
      if (can_begin(call) && begins_s(call) < over_s) {
        join(call);
        grown = true;
      }
    return grown;
  }

  void time_group() {
    if (group_.size() == 1) {
      ConcurrentTiming& only = timings_[group_.front()];
      only.timing = network_.time(*calls_[group_.front()].program, only.begin_s);
      return;
    }
    std::vector<const Program*> programs;
    std::vector<std::int64_t> after;
    std::vector<double> start_s;
    for (const std::size_t call : group_) {
      programs.push_back(calls_[call].program);
      const auto before = std::find(group_.begin(), group_.end(), static_cast<std::size_t>(calls_[call].after));
      const bool together = calls_[call].after >= 0 && before != group_.end();
      after.push_back(together ? before - group_.begin() : -1);
      const std::vector<double> from_s = together ? calls_[call].ready_s : begin_s(call);
      start_s.insert(start_s.end(), from_s.begin(), from_s.end());
    }
    const MergedProgram merged(std::move(programs), std::move(after));
    const CollectiveTiming timing = network_.time(merged, start_s);
    const std::int64_t n = merged.workers();
    for (std::size_t part = 0; part < group_.size(); ++part) {
      ConcurrentTiming& one = timings_[group_[part]];  // bytes and messages are those of the call alone
      const auto first = timing.end_s.begin() + static_cast<std::int64_t>(part) * n;
      one.timing.end_s.assign(first, first + n);
      one.timing.network = timing.network;
      one.begin_s = begin_s(group_[part]);
      // A worker that has nothing to do in a call is through when it could begin.
      for (std::size_t worker = 0; worker < one.begin_s.size(); ++worker)
        one.timing.end_s[worker] = std::max(one.timing.end_s[worker], one.begin_s[worker]);
    }
  }

  std::span<const ConcurrentCall> calls_;
  Network& network_;
  Network& alone_;
  std::vector<ConcurrentTiming> timings_;
  std::vector<State> state_;
  std::vector<std::size_t> group_;  // ascending
};

}  // namespace

ConcurrentCalls::ConcurrentCalls(Network& network) : network_(network), alone_(make_recurrence(network.topology())) {}

std::vector<ConcurrentTiming> ConcurrentCalls::time(std::span<const ConcurrentCall> calls) {
  for (const ConcurrentCall& call : calls)
    if (call.program == nullptr || call.after >= &call - calls.data()) throw RunError("a call after one that is not before it");
  return Sweep(calls, network_, *alone_).run();
}

}  // namespace sparscale::sim
