// Walks a message program: which messages can start, given which have ended. Both network back-ends do this, so that a message waits for
// the same things in both: a strand is in one step at a time, and a message starts when both its ends are in the step that names it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/collective.hpp"

namespace sparscale::sim {

class ProgramRun {
 public:
  struct Message {
    std::int32_t from = 0, to = 0;  // strands
    std::uint64_t bytes = 0;
  };

  /// The program must outlive this. Errors: RunError when it names a worker that does not exist or a worker sends to itself.
  /// `eager`: a message starts when its sender is in the step that names it, and waits for its receiver when it has arrived.
  explicit ProgramRun(const Program& program, bool eager = false);
  /// The worker (or switch) enters the first step of each lane, or of each lane of one part. Messages that can start now are appended to
  /// `started`.
  void enter(std::int32_t worker, std::vector<Message>& started);
  void enter_part(std::int32_t worker, std::int64_t part, std::vector<Message>& started);
  /// The message has ended. Appends the strands (its ends) whose step this ended: then call next() for each.
  void ended(const Message& message, std::vector<std::int32_t>& steps_ended);
  /// The strand goes on to its next step, and with it the lanes of its worker that waited for it. Messages that can start now are appended
  /// to `started`.
  void next(std::int32_t strand, std::vector<Message>& started);
  std::int32_t worker_of(std::int32_t strand) const { return strand / lanes_; }
  /// Where the strand's worker and part stand in a list of all workers of one part after the other; -1 for a switch.
  std::int64_t place_of(std::int32_t strand) const {
    const std::int32_t worker = strand / lanes_;
    if (worker >= workers_) return -1;
    return one_part_ ? worker : program_.part_of(strand % lanes_) * workers_ + worker;
  }

  bool all_finished() const { return finished_ == strands_.size(); }
  /// Errors: RunError saying who waits on whom, unless all workers have finished.
  void check_finished() const;
  const std::vector<std::uint64_t>& bytes_sent() const { return bytes_sent_; }
  std::uint64_t messages() const { return messages_; }

 private:
  struct Arrival {
    std::int32_t from;
    std::uint64_t bytes;
  };
  struct Strand {
    std::int64_t steps = 0, number = -1;  // steps of the program, the one the strand is in
    bool held = false;                    // the step waits for other lanes
    std::size_t open = 0;                 // messages of this step that have not ended
    std::vector<std::int32_t> expected;   // receives of this step without their message, in order
    std::vector<Arrival> waiting;         // messages to this strand that it does not receive yet, in order; eager: that have arrived
  };
  void advance(std::int32_t strand, std::vector<Message>& started);
  bool try_step(std::int32_t strand, std::vector<Message>& started);
  void post(std::int32_t strand, std::vector<Message>& started);
  std::string place(std::int32_t strand) const;

  const Program& program_;
  bool eager_;
  bool one_part_ = true;
  std::int32_t workers_ = 0, lanes_ = 1;
  std::vector<Strand> strands_;
  std::vector<std::uint64_t> bytes_sent_;
  std::uint64_t messages_ = 0;
  std::size_t finished_ = 0;
  Step step_;
};

}  // namespace sparscale::sim
