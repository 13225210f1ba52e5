#include "sim/program_run.hpp"

#include <algorithm>
#include <limits>

#include "base/error.hpp"

namespace sparscale::sim {

ProgramRun::ProgramRun(const Program& program) : program_(program) {
  const std::int64_t n = program.workers();
  if (n < 1 || n > std::numeric_limits<std::int32_t>::max()) throw RunError("a message program for " + std::to_string(n) + " workers");
  workers_.resize(static_cast<std::size_t>(n));
  bytes_sent_.resize(static_cast<std::size_t>(n));
  for (std::int64_t worker = 0; worker < n; ++worker) workers_[static_cast<std::size_t>(worker)].steps = program.steps(worker);
}

void ProgramRun::enter(std::int32_t worker, std::vector<Message>& started) { next(worker, started); }

void ProgramRun::next(std::int32_t worker, std::vector<Message>& started) {
  Worker& state = workers_[static_cast<std::size_t>(worker)];
  while (++state.number < state.steps) {
    post(worker, started);
    if (state.open > 0) return;  // a step without messages is over at once
  }
  ++finished_;
}

void ProgramRun::post(std::int32_t worker, std::vector<Message>& started) {
  Worker& state = workers_[static_cast<std::size_t>(worker)];
  program_.step(worker, state.number, step_);
  const auto check = [&](std::int64_t peer) {
    if (peer < 0 || peer >= program_.workers() || peer == worker)
      throw RunError("worker " + std::to_string(worker) + " exchanges a message with worker " + std::to_string(peer) + " in step " +
                     std::to_string(state.number));
    return static_cast<std::int32_t>(peer);
  };
  state.open = step_.sends.size() + step_.receives.size();
  for (const Transfer& transfer : step_.sends) {
    const std::int32_t to = check(transfer.peer);
    Worker& receiver = workers_[static_cast<std::size_t>(to)];
    const auto expected = std::find(receiver.expected.begin(), receiver.expected.end(), worker);
    if (expected != receiver.expected.end()) {
      receiver.expected.erase(expected);
      started.push_back({worker, to, transfer.bytes});
    } else {
      receiver.waiting.push_back({worker, transfer.bytes});
    }
    bytes_sent_[static_cast<std::size_t>(worker)] += transfer.bytes;
    ++messages_;
  }
  for (const std::int64_t peer : step_.receives) {
    const std::int32_t from = check(peer);
    const auto waiting = std::find_if(state.waiting.begin(), state.waiting.end(), [&](const Arrival& a) { return a.from == from; });
    if (waiting != state.waiting.end()) {
      started.push_back({from, worker, waiting->bytes});
      state.waiting.erase(waiting);
    } else {
      state.expected.push_back(from);
    }
  }
}

void ProgramRun::check_finished() const {
  if (all_finished()) return;
  std::string text;
  int listed = 0;
  for (std::size_t w = 0; w < workers_.size(); ++w) {
    const Worker& state = workers_[w];
    const auto say = [&](const std::string& what) {
      if (++listed <= 4) text += (text.empty() ? "" : "; ") + what;
    };
    for (const std::int32_t from : state.expected)
      say("worker " + std::to_string(w) + " in step " + std::to_string(state.number) + " waits for a message from worker " +
          std::to_string(from));
    for (const Arrival& arrival : state.waiting)
      say("worker " + std::to_string(arrival.from) + " in step " + std::to_string(workers_[static_cast<std::size_t>(arrival.from)].number) +
          " waits for worker " + std::to_string(w) + " to receive its message");
  }
  if (listed > 4) text += "; and " + std::to_string(listed - 4) + " more";
  throw RunError("a collective never ends: " + text);
}

}  // namespace sparscale::sim
