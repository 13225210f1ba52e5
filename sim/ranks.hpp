// Several processes that share one replay, started by mpirun: the ranks. Each holds the accumulators of its own workers, all run the same
// sparsifier on the same selections.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace sparscale::sim {

/// What the module sparscale-mpi.so offers (sim/mpi/module.cpp): all that is used of MPI. Every rank calls the same functions in the same
/// order.
struct RanksModule {
  int rank, size;
  int on_this_machine;                                           // ranks that share this machine's memory
  void (*all_gather)(std::int64_t own, std::int64_t* all);       // one number of every rank
  void (*broadcast)(void* data, std::uint64_t bytes, int root);  //
  void (*finish)();                                              // waits for all; nothing may be called after it
  void (*abort)(int status);                                     // ends all ranks at once
};

/// Some rank has failed, and all ranks know: every one of them throws this.
struct RanksFailed : std::exception {
  int status = 1;    // of the program
  std::string text;  // the line for the user
  const char* what() const noexcept override { return text.c_str(); }
};

/// The ranks of a replay. Not thread safe: for the main thread. Every function that talks to other ranks throws RanksFailed when one of
/// them has left.
class Ranks {
 public:
  /// Null unless an MPI launcher has started several processes; only then is MPI loaded. Errors: InputError (no sparscale-mpi.so in this
  /// build), RunError.
  static std::unique_ptr<Ranks> start();
  /// The rank that the launcher's environment names, without MPI; 0 without a launcher.
  static int rank_in_environment();

  explicit Ranks(const RanksModule& module) : module_(module) {}
  int rank() const { return module_.rank; }
  int size() const { return module_.size; }
  int on_this_machine() const { return module_.on_this_machine; }
  bool first() const { return rank() == 0; }

  /// Workers are dealt in blocks: rank r has [begin_of(r, n), begin_of(r + 1, n)).
  std::int64_t begin_of(int rank, std::int64_t workers) const;
  int owner_of(std::int64_t worker, std::int64_t workers) const;

  /// What every rank hands in, in the order of the ranks.
  std::vector<std::vector<std::byte>> gather(std::span<const std::byte> own);
  /// The root's bytes on every rank; all give the same size.
  void broadcast(std::span<std::byte> data, int root);
  /// The root's list on every rank.
  void broadcast_list(std::vector<std::int64_t>& list, int root);

  /// The end of a replay that went well on this rank: waits for all. Throws RanksFailed when another one did not.
  void finish();
  /// The end after an exception: tells the other ranks, which fail at their next call. One line, on rank 0, for all: that of the lowest
  /// rank that failed. The exit status for every rank: 2 for wrong input, else 1.
  int leave(const std::exception_ptr& error);

 private:
  std::vector<std::int64_t> meet(std::int64_t own);
  RanksFailed failure_of(const std::vector<std::int64_t>& all, RanksFailed own);
  void send(void* data, std::uint64_t bytes, int root);

  RanksModule module_;
};

}  // namespace sparscale::sim
