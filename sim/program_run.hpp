// Walks a message program: which messages can start, given which have ended. Both network back-ends do this, so that a message waits for
// the same things in both: a worker is in one step at a time, and a message starts when both its ends are in the step that names it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/collective.hpp"

namespace sparscale::sim {

class ProgramRun {
 public:
  struct Message {
    std::int32_t from = 0, to = 0;
    std::uint64_t bytes = 0;
  };

  /// The program must outlive this. Errors: RunError when it names a worker that does not exist or a worker sends to itself.
  explicit ProgramRun(const Program& program);
  /// The worker enters its first step. Messages that can start now are appended to `started`.
  void enter(std::int32_t worker, std::vector<Message>& started);
  /// The message has ended for the worker (call it for both ends). True when this ended the worker's step: then call next().
  bool ended(std::int32_t worker) { return --workers_[static_cast<std::size_t>(worker)].open == 0; }
  /// The worker goes on to its next step. Messages that can start now are appended to `started`.
  void next(std::int32_t worker, std::vector<Message>& started);

  bool all_finished() const { return finished_ == workers_.size(); }
  /// Errors: RunError saying who waits on whom, unless all workers have finished.
  void check_finished() const;
  const std::vector<std::uint64_t>& bytes_sent() const { return bytes_sent_; }
  std::uint64_t messages() const { return messages_; }

 private:
  struct Arrival {
    std::int32_t from;
    std::uint64_t bytes;
  };
  struct Worker {
    std::int64_t steps = 0, number = -1;  // steps of the program, the one the worker is in
    std::size_t open = 0;                 // messages of this step that have not ended
    std::vector<std::int32_t> expected;   // receives of this step without their message, in order
    std::vector<Arrival> waiting;         // messages to this worker that it does not receive yet, in order
  };
  void post(std::int32_t worker, std::vector<Message>& started);

  const Program& program_;
  std::vector<Worker> workers_;
  std::vector<std::uint64_t> bytes_sent_;
  std::uint64_t messages_ = 0;
  std::size_t finished_ = 0;
  Step step_;
};

}  // namespace sparscale::sim
