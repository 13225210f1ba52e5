// Folding: how all-reduces for powers of two serve other numbers of workers.
//
// With p the largest power of two up to n and r = n - p, the first 2 r workers pair up: the even one of a pair sends its buffer to the odd
// one and takes no part until the odd one sends the result back (MPICH).
#pragma once

#include <bit>

#include "sim/collectives/parts.hpp"

namespace sparscale::sim {

class FoldedProgram : public Program {
 public:
  FoldedProgram(std::int64_t workers, std::uint64_t bytes)
      : workers_(workers),
        live_(static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(workers)))),
        rest_(workers - live_),
        bytes_(bytes) {}
  std::int64_t workers() const override { return workers_; }

  std::int64_t steps(std::int64_t worker) const override {
    if (worker < 2 * rest_) return worker % 2 == 0 ? 2 : live_steps() + 2;
    return live_steps();
  }

  void step(std::int64_t worker, std::int64_t number, Step& step) const override {
    step.clear();
    if (worker >= 2 * rest_) return live_step(worker - rest_, number, step);
    const bool even = worker % 2 == 0;
    const bool first = number == 0;
    if (!even && !first && number <= live_steps()) return live_step(worker / 2, number - 1, step);
    if (even == first)
      step.sends.push_back({even ? worker + 1 : worker - 1, bytes_, 0, workers_});
    else
      step.receives.push_back(even ? worker + 1 : worker - 1);
    step.reduces = first;
  }

 protected:
  std::int64_t live() const { return live_; }
  std::int64_t levels() const { return std::countr_zero(static_cast<std::uint64_t>(live_)); }
  std::uint64_t bytes() const { return bytes_; }
  std::int64_t worker_of(std::int64_t rank) const { return rank < rest_ ? 2 * rank + 1 : rank + rest_; }
  virtual std::int64_t live_steps() const = 0;
  /// A step of one of the live() ranks; the step comes empty.
  virtual void live_step(std::int64_t rank, std::int64_t number, Step& step) const = 0;

 private:
  std::int64_t workers_, live_, rest_;
  std::uint64_t bytes_;
};

}  // namespace sparscale::sim
