#include "sim/merged_program.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace sparscale::sim {

MergedProgram::MergedProgram(std::vector<const Program*> calls, std::vector<std::int64_t> after)
    : calls_(std::move(calls)), after_(std::move(after)) {
  if (calls_.empty() || after_.size() != calls_.size()) throw RunError("a merged program of no calls");
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    const Program& call = *calls_[i];
    if (call.workers() != workers() || call.parts() != 1 || after_[i] < -1 || after_[i] >= static_cast<std::int64_t>(i))
      throw RunError("calls that do not fit together in one program");
    first_lane_.push_back(std::ssize(lanes_));
    for (std::int64_t lane = 0; lane < call.lanes(); ++lane) lanes_.push_back({static_cast<std::int64_t>(i), lane});
    switches_ = std::max(switches_, call.switches());
  }
}

std::int64_t MergedProgram::own_strand(std::int64_t strand) const {
  const Lane& lane = lanes_[static_cast<std::size_t>(strand % lanes())];
  const Program& call = *calls_[static_cast<std::size_t>(lane.call)];
  const std::int64_t end = strand / lanes();
  return end < call.workers() + call.switches() ? end * call.lanes() + lane.lane : -1;
}

std::int64_t MergedProgram::steps(std::int64_t strand) const {
  const std::int64_t own = own_strand(strand);
  return own < 0 ? 0 : calls_[static_cast<std::size_t>(part_of(strand % lanes()))]->steps(own);
}

void MergedProgram::step(std::int64_t strand, std::int64_t number, Step& step) const {
  const std::int64_t end = strand / lanes(), part = part_of(strand % lanes());
  const auto call = static_cast<std::size_t>(part);
  step.clear();  // programs of one lane leave `after` as it is
  calls_[call]->step(own_strand(strand), number, step);
  const std::int64_t own_lanes = calls_[call]->lanes(), first = first_lane_[call];
  const auto merged = [&](std::int64_t peer) { return peer / own_lanes * lanes() + first + peer % own_lanes; };
  for (Transfer& transfer : step.sends) transfer.peer = merged(transfer.peer);
  for (std::int64_t& peer : step.receives) peer = merged(peer);
  for (After& after : step.after) after.lane += first;
  if (number > 0 || end >= workers()) return;
  // What the call before has to do; where that is nothing, also what the one before it has.
  bool found = false;
  for (std::int64_t before = after_[call]; before >= 0 && !found; before = after_[static_cast<std::size_t>(before)]) {
    const std::int64_t from = first_lane_[static_cast<std::size_t>(before)];
    for (std::int64_t lane = from; lane < from + calls_[static_cast<std::size_t>(before)]->lanes(); ++lane) {
      const std::int64_t all = steps(end * lanes() + lane);
      step.after.push_back({lane, all});
      found = found || all > 0;
    }
  }
}

}  // namespace sparscale::sim
