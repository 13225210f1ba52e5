#include "sim/network.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

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
  Auto(const platforms::Platform& platform, std::int64_t workers, bool recurrence, bool simgrid)
      : topology_(platform, workers), file_(platform.file) {
    if (recurrence) recurrence_ = make_recurrence(topology_);
    if (simgrid) simgrid_ = make_simgrid(topology_);
  }

  CollectiveTiming time(const Program& program, std::span<const double> start_s) override {
    check_start(program, topology_, start_s);
    if (recurrence_ && exact(program)) return recurrence_->time(program, start_s);
    if (simgrid_) return simgrid_->time(program, start_s);
    throw InputError(file_, "network", "simgrid or auto, as messages of this collective share links on this platform", "recurrence");
  }

 private:
  // All rings use the same pairs, so one answer serves them.
  bool exact(const Program& program) {
    if (program.ring_block_bytes().empty()) return recurrence_is_exact(program, topology_);
    if (!ring_is_exact_) ring_is_exact_ = recurrence_is_exact(program, topology_);
    return *ring_is_exact_;
  }

  platforms::Topology topology_;
  std::string file_;
  std::unique_ptr<Network> recurrence_, simgrid_;
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
  if (program.workers() != topology.workers() || static_cast<std::int64_t>(start_s.size()) != topology.workers())
    throw RunError("a collective of " + std::to_string(program.workers()) + " workers with " + std::to_string(start_s.size()) +
                   " starts on a network for " + std::to_string(topology.workers()));
  for (const double start : start_s)
    if (!std::isfinite(start) || start < 0) throw RunError("a worker that starts at " + number_text(start) + " s");
}

bool recurrence_is_exact(const Program& program, const platforms::Topology& topology) {
  const std::int64_t n = program.workers();
  // A worker's messages follow one another when no step of it has two of them in the same direction. The messages of a link then never
  // overlap if they all leave one such worker, or all enter one. Anything else may overlap.
  std::vector<LinkUse> uses(topology.links().size());
  std::vector<char> sends_together(static_cast<std::size_t>(n), 0), receives_together(static_cast<std::size_t>(n), 0);
  std::vector<std::int64_t> last_peer(static_cast<std::size_t>(n), -1);
  const bool ring = !program.ring_block_bytes().empty();
  Step step;
  for (std::int64_t worker = 0; worker < n; ++worker) {
    const std::int64_t steps = ring ? std::min<std::int64_t>(program.steps(worker), 1) : program.steps(worker);
    for (std::int64_t number = 0; number < steps; ++number) {
      program.step(worker, number, step);
      if (step.sends.size() > 1) sends_together[static_cast<std::size_t>(worker)] = 1;
      if (step.receives.size() > 1) receives_together[static_cast<std::size_t>(worker)] = 1;
      for (const Transfer& transfer : step.sends) {
        std::int64_t& last = last_peer[static_cast<std::size_t>(worker)];
        if (transfer.peer == last) continue;  // the same route again
        last = transfer.peer;
        for (const std::int32_t link : topology.route(worker, transfer.peer)) {
          LinkUse& use = uses[static_cast<std::size_t>(link)];
          if (use.sender < 0) {
            use.sender = worker;
            use.receiver = transfer.peer;
          }
          use.senders |= use.sender != worker;
          use.receivers |= use.receiver != transfer.peer;
        }
      }
    }
  }
  return std::all_of(uses.begin(), uses.end(), [&](const LinkUse& use) {
    if (use.sender < 0) return true;
    const bool one_after_another_out = !use.senders && !sends_together[static_cast<std::size_t>(use.sender)];
    const bool one_after_another_in = !use.receivers && !receives_together[static_cast<std::size_t>(use.receiver)];
    return one_after_another_out || one_after_another_in;
  });
}

std::unique_ptr<Network> make_network(const std::string& name, const platforms::Platform& platform, std::int64_t workers) {
  if (name != "simgrid" && name != "recurrence" && name != "auto")
    throw InputError("network", "one of auto, recurrence, simgrid", "\"" + name + "\"");
  return std::make_unique<Auto>(platform, workers, name != "simgrid", name != "recurrence");
}

}  // namespace sparscale::sim
