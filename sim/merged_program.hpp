// Several collective calls as one message program, so that a back-end times them side by side and lets them share links.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/collective.hpp"

namespace sparscale::sim {

/// Every call is a part of the program: it has lanes of its own, each worker enters it at a time of its own, and messages of different
/// calls never match.
class MergedProgram : public Program {
 public:
  /// `after[i]`: the call (one before i) that a worker must have finished before it begins call i, or -1. The programs, which have the same
  /// workers and one part each, must outlive this. Errors: RunError when they do not fit.
  MergedProgram(std::vector<const Program*> calls, std::vector<std::int64_t> after);

  std::int64_t workers() const override { return calls_.front()->workers(); }
  std::int64_t lanes() const override { return static_cast<std::int64_t>(lanes_.size()); }
  std::int64_t steps(std::int64_t strand) const override;
  void step(std::int64_t strand, std::int64_t number, Step& step) const override;
  std::int64_t switches() const override { return switches_; }
  std::int64_t parts() const override { return std::ssize(calls_); }
  std::int64_t part_of(std::int64_t lane) const override { return lanes_[static_cast<std::size_t>(lane)].call; }

 private:
  struct Lane {
    std::int64_t call, lane;
  };
  /// The strand of a call's own program, or -1 when it has no such switch.
  std::int64_t own_strand(std::int64_t strand) const;

  std::vector<const Program*> calls_;
  std::vector<std::int64_t> after_, first_lane_;  // per call
  std::vector<Lane> lanes_;
  std::int64_t switches_ = 0;
};

}  // namespace sparscale::sim
