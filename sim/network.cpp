#include "sim/network.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <unordered_set>

#include "base/error.hpp"
#include "base/json.hpp"
#include "sim/network_backends.hpp"

namespace sparscale::sim {
namespace {

// What is known of one link of the program so far.
struct LinkUse {
  std::int64_t sender = -1, receiver = -1;  // of its first message
  bool senders = false, receivers = false;  // more than one of them
};

class Auto : public Network {
 public:
  Auto(const platforms::Platform& platform, std::int64_t workers, const std::string& name, const std::vector<SlowLink>& slow)
      : platform_(platform), topology_(platform_, workers) {
    if (name == "nccl" && !slow.empty()) throw InputError("network", "simgrid, recurrence or auto where links are slowed", "nccl");
    for (const SlowLink& one : slow) topology_.slow_link(one.link, one.factor);
    if (name == "nccl") nccl_ = make_nccl(platform_, topology_);
    if (name == "recurrence" || name == "auto") recurrence_ = make_recurrence(topology_);
    if (name == "simgrid" || name == "auto") simgrid_ = make_simgrid(topology_);
  }

  std::span<const std::int64_t> node_of_worker() const override { return topology_.node_of_worker(); }
  const platforms::Topology& topology() const override { return topology_; }

  CollectiveTiming time(const Program& program, std::span<const double> start_s) override {
    check_start(program, topology_, start_s);
    if (nccl_) return nccl_->time(program, start_s);
    if (recurrence_ && exact(program)) return recurrence_->time(program, start_s);
    if (simgrid_) return simgrid_->time(program, start_s);
    throw InputError(platform_.file, "network", "simgrid or auto, as messages of this collective share links on this platform",
                     "recurrence");
  }

 private:
  // All rings use the same pairs, so one answer serves them.
  bool exact(const Program& program) {
    if (program.ring_block_bytes().empty()) return recurrence_is_exact(program, topology_);
    if (!ring_is_exact_) ring_is_exact_ = recurrence_is_exact(program, topology_);
    return *ring_is_exact_;
  }

  platforms::Platform platform_;
  platforms::Topology topology_;
  std::unique_ptr<Network> recurrence_, simgrid_, nccl_;
  std::optional<bool> ring_is_exact_;
};

}  // namespace

const Path& Paths::path(std::int64_t from, std::int64_t to) {
  const std::uint64_t key = static_cast<std::uint64_t>(from) << 32 | static_cast<std::uint64_t>(to);
  const auto known = known_.find(key);
  if (known != known_.end()) return known->second;
  const auto route = topology_.route(from, to);
  return known_.emplace(key, Path{topology_.latency_s(route), topology_.bandwidth_Bps(route)}).first->second;
}

void check_start(const Program& program, const platforms::Topology& topology, std::span<const double> start_s) {
  if (program.workers() != topology.workers() || std::ssize(start_s) != topology.workers() * program.parts())
    throw RunError("a collective of " + std::to_string(program.workers()) + " workers with " + std::to_string(start_s.size()) +
                   " starts on a network for " + std::to_string(topology.workers()));
  for (const double start : start_s)
    if (!std::isfinite(start) || start < 0) throw RunError("a worker that starts at " + number_text(start) + " s");
}

bool recurrence_is_exact(const Program& program, const platforms::Topology& topology) {
  // A worker's messages follow one another when no step of it has two of them in the same direction and one lane has them all. The messages
  // of a link then never overlap if they all leave one such worker, or all enter one. Anything else may overlap.
  const std::int64_t lanes = program.lanes(), ends = program.workers() + program.switches();
  std::vector<LinkUse> uses(topology.links().size());
  struct Port {
    std::int64_t lane = -1;
    bool together = false;
    void use(std::int64_t by, std::size_t messages) {
      if (messages == 0) return;
      together |= messages > 1 || (lane >= 0 && lane != by);
      lane = by;
    }
  };
  std::vector<Port> out(static_cast<std::size_t>(ends)), in(static_cast<std::size_t>(ends));
  const bool ring = !program.ring_block_bytes().empty();
  Step step;
  // Pairs whose route has been looked at: some programs repeat theirs many times.
  const bool few = ends <= 8192;
  std::vector<bool> seen(few ? static_cast<std::size_t>(ends * ends) : 0);
  std::unordered_set<std::int64_t> seen_of_many;
  const auto is_new = [&](std::int64_t pair) {
    if (!few) return seen_of_many.insert(pair).second;
    const bool known = seen[static_cast<std::size_t>(pair)];
    seen[static_cast<std::size_t>(pair)] = true;
    return !known;
  };
  for (std::int64_t strand = 0; strand < ends * lanes; ++strand) {
    const std::int64_t worker = strand / lanes;
    const std::int64_t steps = ring ? std::min<std::int64_t>(program.steps(strand), 1) : program.steps(strand);
    std::int64_t last = -1;
    for (std::int64_t number = 0; number < steps; ++number) {
      program.step(strand, number, step);
      out[static_cast<std::size_t>(worker)].use(strand % lanes, step.sends.size());
      in[static_cast<std::size_t>(worker)].use(strand % lanes, step.receives.size());
      for (const Transfer& transfer : step.sends) {
        const std::int64_t peer = transfer.peer / lanes;
        if (peer == last) continue;  // the same route again
        last = peer;
        if (!is_new(worker * ends + peer)) continue;
        for (const std::int32_t link : topology.route(worker, peer)) {
          LinkUse& use = uses[static_cast<std::size_t>(link)];
          if (use.sender < 0) {
            use.sender = worker;
            use.receiver = peer;
          }
          use.senders |= use.sender != worker;
          use.receivers |= use.receiver != peer;
        }
      }
    }
  }
  return std::all_of(uses.begin(), uses.end(), [&](const LinkUse& use) {
    if (use.sender < 0) return true;
    const bool one_after_another_out = !use.senders && !out[static_cast<std::size_t>(use.sender)].together;
    // Eager senders do not wait for their turn at the receiver.
    const bool one_after_another_in = !topology.eager() && !use.receivers && !in[static_cast<std::size_t>(use.receiver)].together;
    return one_after_another_out || one_after_another_in;
  });
}

std::unique_ptr<Network> make_network(const std::string& name, const platforms::Platform& platform, std::int64_t workers,
                                      const std::vector<SlowLink>& slow) {
  if (name != "simgrid" && name != "recurrence" && name != "auto" && name != "nccl")
    throw InputError("network", "one of auto, recurrence, simgrid, nccl", "\"" + name + "\"");
  return std::make_unique<Auto>(platform, workers, name, slow);
}

}  // namespace sparscale::sim
