#include "sim/program_run.hpp"

#include <algorithm>
#include <limits>

#include "base/error.hpp"

namespace sparscale::sim {

ProgramRun::ProgramRun(const Program& program, bool eager) : program_(program), eager_(eager) {
  const std::int64_t n = program.workers(), ends = n + program.switches(), lanes = program.lanes();
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  if (n < 1 || lanes < 1 || n > most || lanes > most / ends)
    throw RunError("a message program for " + std::to_string(n) + " workers with " + std::to_string(lanes) + " lanes each");
  one_part_ = program.parts() == 1;
  workers_ = static_cast<std::int32_t>(n);
  lanes_ = static_cast<std::int32_t>(lanes);
  strands_.resize(static_cast<std::size_t>(ends * lanes));
  bytes_sent_.resize(static_cast<std::size_t>(n));
  for (std::size_t strand = 0; strand < strands_.size(); ++strand)
    strands_[strand].steps = program.steps(static_cast<std::int64_t>(strand));
}

void ProgramRun::enter(std::int32_t worker, std::vector<Message>& started) {
  for (std::int32_t lane = 0; lane < lanes_; ++lane) next(worker * lanes_ + lane, started);
}

void ProgramRun::enter_part(std::int32_t worker, std::int64_t part, std::vector<Message>& started) {
  for (std::int32_t lane = 0; lane < lanes_; ++lane)
    if (program_.part_of(lane) == part) next(worker * lanes_ + lane, started);
}

void ProgramRun::next(std::int32_t strand, std::vector<Message>& started) {
  advance(strand, started);
  if (lanes_ == 1) return;
  // What this step's end frees may free more, as steps without messages are over at once.
  const std::int32_t first = strand / lanes_ * lanes_;
  for (bool moved = true; moved;) {
    moved = false;
    for (std::int32_t other = first; other < first + lanes_; ++other)
      if (strands_[static_cast<std::size_t>(other)].held && try_step(other, started)) {
        if (strands_[static_cast<std::size_t>(other)].open == 0) advance(other, started);
        moved = true;
      }
  }
}

void ProgramRun::advance(std::int32_t strand, std::vector<Message>& started) {
  Strand& state = strands_[static_cast<std::size_t>(strand)];
  while (++state.number < state.steps) {
    if (!try_step(strand, started)) return;
    if (state.open > 0) return;  // a step without messages is over at once
  }
  ++finished_;
}

// Starts the strand's step unless it must wait for other lanes.
bool ProgramRun::try_step(std::int32_t strand, std::vector<Message>& started) {
  Strand& state = strands_[static_cast<std::size_t>(strand)];
  program_.step(strand, state.number, step_);
  const std::int32_t first = strand / lanes_ * lanes_;
  state.held = std::any_of(step_.after.begin(), step_.after.end(), [&](const After& after) {
    return strands_[static_cast<std::size_t>(first) + static_cast<std::size_t>(after.lane)].number < after.steps;
  });
  if (state.held) return false;
  post(strand, started);
  return true;
}

void ProgramRun::post(std::int32_t strand, std::vector<Message>& started) {
  Strand& state = strands_[static_cast<std::size_t>(strand)];
  const auto check = [&](std::int64_t peer) {
    if (peer < 0 || peer >= std::ssize(strands_) || peer / lanes_ == strand / lanes_)
      throw RunError(place(strand) + " exchanges a message with strand " + std::to_string(peer) + " in step " +
                     std::to_string(state.number));
    return static_cast<std::int32_t>(peer);
  };
  state.open = step_.sends.size() + step_.receives.size();
  for (const Transfer& transfer : step_.sends) {
    const std::int32_t to = check(transfer.peer);
    Strand& receiver = strands_[static_cast<std::size_t>(to)];
    const auto expected = eager_ ? receiver.expected.end() : std::find(receiver.expected.begin(), receiver.expected.end(), strand);
    if (eager_) {
      started.push_back({strand, to, transfer.bytes});
    } else if (expected != receiver.expected.end()) {
      receiver.expected.erase(expected);
      started.push_back({strand, to, transfer.bytes});
    } else {
      receiver.waiting.push_back({strand, transfer.bytes});
    }
    const auto worker = static_cast<std::size_t>(strand / lanes_);
    if (worker < bytes_sent_.size()) bytes_sent_[worker] += transfer.bytes;
    ++messages_;
  }
  for (const std::int64_t peer : step_.receives) {
    const std::int32_t from = check(peer);
    const auto waiting = std::find_if(state.waiting.begin(), state.waiting.end(), [&](const Arrival& a) { return a.from == from; });
    if (waiting != state.waiting.end()) {
      if (eager_)
        --state.open;  // it is there already
      else
        started.push_back({from, strand, waiting->bytes});
      state.waiting.erase(waiting);
    } else {
      state.expected.push_back(from);
    }
  }
}

void ProgramRun::ended(const Message& message, std::vector<std::int32_t>& steps_ended) {
  if (--strands_[static_cast<std::size_t>(message.from)].open == 0) steps_ended.push_back(message.from);
  Strand& receiver = strands_[static_cast<std::size_t>(message.to)];
  if (eager_) {
    const auto expected = std::find(receiver.expected.begin(), receiver.expected.end(), message.from);
    if (expected == receiver.expected.end()) {
      receiver.waiting.push_back({message.from, message.bytes});
      return;
    }
    receiver.expected.erase(expected);
  }
  if (--receiver.open == 0) steps_ended.push_back(message.to);
}

std::string ProgramRun::place(std::int32_t strand) const {
  std::string text = "worker " + std::to_string(strand / lanes_);
  if (lanes_ > 1) text += " (lane " + std::to_string(strand % lanes_) + ")";
  return text;
}

void ProgramRun::check_finished() const {
  const bool unheard = std::any_of(strands_.begin(), strands_.end(), [](const Strand& strand) { return !strand.waiting.empty(); });
  if (all_finished() && !unheard) return;
  std::string text;
  int listed = 0;
  for (std::int32_t strand = 0; strand < static_cast<std::int32_t>(strands_.size()); ++strand) {
    const Strand& state = strands_[static_cast<std::size_t>(strand)];
    const auto say = [&](const std::string& what) {
      if (++listed <= 4) text += (text.empty() ? "" : "; ") + what;
    };
    if (state.held) say(place(strand) + " in step " + std::to_string(state.number) + " waits for its other lanes");
    for (const std::int32_t from : state.expected)
      say(place(strand) + " in step " + std::to_string(state.number) + " waits for a message from " + place(from));
    for (const Arrival& arrival : state.waiting)
      say(place(arrival.from) + " in step " + std::to_string(strands_[static_cast<std::size_t>(arrival.from)].number) + " waits for " +
          place(strand) + " to receive its message");
  }
  if (listed > 4) text += "; and " + std::to_string(listed - 4) + " more";
  throw RunError("a collective never ends: " + text);
}

}  // namespace sparscale::sim
