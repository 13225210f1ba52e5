// The SimGrid back-end: the reference. Rendezvous messages, flow-level sharing of links (CM02 without cross traffic and TCP window), no
// actors.
//
// Every program runs in a forked process: SimGrid's clock cannot be set back, so that a second run in one process would round differently
// and results would depend on what was run before; and SimGrid aborts the process on errors, which then fails one run only.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xbt/log.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <set>
#include <simgrid/kernel/Timer.hpp>
#include <unordered_map>

#include "base/error.hpp"
#include "base/files.hpp"
#include "sim/network_backends.hpp"
#include "sim/program_run.hpp"
#include "sim/simgrid_compat.hpp"

namespace sparscale::sim {
namespace {

namespace s4u = simgrid::s4u;

std::int64_t strands_of(const Program& program) { return (program.workers() + program.switches()) * program.lanes(); }

// The pairs between which the program sends messages.
std::set<std::pair<std::int32_t, std::int32_t>> used_pairs(const Program& program) {
  std::set<std::pair<std::int32_t, std::int32_t>> pairs;
  const bool ring = !program.ring_block_bytes().empty();  // its pairs are the same in every step
  const std::int64_t lanes = program.lanes();
  Step step;
  for (std::int64_t strand = 0; strand < strands_of(program); ++strand) {
    const std::int64_t steps = ring ? std::min<std::int64_t>(program.steps(strand), 1) : program.steps(strand);
    std::int64_t last = -1;
    for (std::int64_t number = 0; number < steps; ++number) {
      program.step(strand, number, step);
      for (const Transfer& transfer : step.sends)
        if (transfer.peer != last) {
          pairs.emplace(static_cast<std::int32_t>(strand / lanes), static_cast<std::int32_t>(transfer.peer / lanes));
          last = transfer.peer;
        }
    }
  }
  return pairs;
}

// Messages under way at once where they are simulated apart: few, as lists are then short, but not so few that SimGrid's clock, which runs
// on while the program's time stands, loses digits. It gets 16 times later than the program for more than 1,024 workers.
std::size_t most_apart(std::int64_t workers) { return std::max<std::size_t>(64, static_cast<std::size_t>(workers) / 16); }

// One run of one program in the process that calls it, once.
//
// `apart`: messages that never meet on a link take the same time whatever else is under way, so a message may be simulated earlier or later
// than its time in the program, and only most_apart() at once. Its duration is SimGrid's; that it had its links for itself is checked with
// the times that come out. Before version 3.34 SimGrid walks through all messages under way for every one that ends, which with 1,024 of
// them takes nearly half of its time.
class Simulation {
 public:
  Simulation(const Program& program, const platforms::Topology& topology, std::span<const double> start_s, double precision_s, bool apart)
      : run_(program, topology.eager()),
        workers_(static_cast<std::size_t>(program.workers())),
        topology_(topology),
        most_(apart ? most_apart(program.workers()) : 0),
        end_s_(start_s.begin(), start_s.end()),
        engine_((xbt_log_control_set("root.thres:critical"), "sparscale")) {
    // Pure latency and bandwidth: no factors, no reverse traffic, no TCP window. The names stay valid up to SimGrid 4.1.
    s4u::Engine::set_config("network/model:CM02");
    s4u::Engine::set_config("network/crosstraffic:0");
    s4u::Engine::set_config("network/TCP-gamma:1e20");
    s4u::Engine::set_config(simgrid_compat::timing_precision_option(), precision_s);
    build(program, topology);
    simgrid_compat::on_comm_completion([this](const s4u::Activity& activity) { completed(activity); });
  }

  void simulate(std::span<const double> start_s) {
    if (most_ > 0) {
      step_end_s_ = end_s_;
      routes_.resize(end_s_.size());
      link_free_s_.assign(topology_.links().size(), 0);
      for (std::size_t worker = 0; worker < end_s_.size(); ++worker) run_.enter(static_cast<std::int32_t>(worker), started_);
      send_started();
      engine_.run();
      run_.check_finished();
      return;
    }
    for (std::size_t place = 0; place < end_s_.size(); ++place) {
      const auto worker = static_cast<std::int32_t>(place % workers_);
      const auto part = static_cast<std::int64_t>(place / workers_);
      if (start_s[place] > 0)
        simgrid::kernel::timer::Timer::set(start_s[place], [this, worker, part] {
          run_.enter_part(worker, part, started_);
          send_started();
        });
      else
        run_.enter_part(worker, part, started_);
    }
    for (std::size_t end = workers_; end < hosts_.size(); ++end) run_.enter(static_cast<std::int32_t>(end), started_);
    send_started();
    engine_.run();
    run_.check_finished();
  }

  const std::vector<double>& end_s() const { return end_s_; }
  const ProgramRun& run() const { return run_; }

 private:
  void build(const Program& program, const platforms::Topology& topology) {
    s4u::NetZone* const zone = simgrid_compat::full_root_zone(engine_);
    for (std::int64_t worker = 0; worker < topology.workers() + program.switches(); ++worker)
      hosts_.push_back(simgrid_compat::add_host(zone, "w" + std::to_string(worker), 1e9));
    std::vector<s4u::Link*> links;
    for (const platforms::Link& link : topology.links())
      links.push_back(simgrid_compat::add_link(zone, link.name, link.bandwidth_Bps)->set_latency(link.latency_s)->seal());
    const auto pairs = used_pairs(program);
    const auto host = [&](std::int32_t worker) { return hosts_[static_cast<std::size_t>(worker)]; };
    for (const auto& [from, to] : pairs) {
      std::vector<s4u::LinkInRoute> route;
      for (const std::int32_t link : topology.route(from, to)) route.emplace_back(links[static_cast<std::size_t>(link)]);
      simgrid_compat::add_route(zone, host(from), host(to), route);
    }
    zone->seal();
    // SimGrid has lost links of routes silently before (issue 389): look.
    for (const auto& [from, to] : pairs) {
      const auto route = topology.route(from, to);
      std::vector<s4u::Link*> found;
      double latency_s = 0;
      host(from)->route_to(host(to), found, &latency_s);
      bool same = found.size() == route.size() && std::abs(latency_s - topology.latency_s(route)) <= 1e-12 * latency_s;
      for (std::size_t i = 0; same && i < route.size(); ++i) same = found[i] == links[static_cast<std::size_t>(route[i])];
      if (!same)
        throw RunError("SimGrid routes messages from worker " + std::to_string(from) + " to worker " + std::to_string(to) +
                       " over other links than the platform says");
    }
  }

  // A message under way, or a free place for one.
  struct Slot {
    ProgramRun::Message message;
    s4u::CommPtr comm;
    double begin_s = 0, clock_s = 0;  // apart: in the program, and on SimGrid's clock
  };
  struct Route {
    std::int32_t to = -1;
    std::vector<std::int32_t> links;
  };

  void send_started() {
    for (; next_ < started_.size() && (most_ == 0 || under_way_ < most_); ++next_) {
      const ProgramRun::Message& message = started_[next_];
      ++under_way_;
      if (free_slots_.empty()) {
        slots_.emplace_back();
        free_slots_.push_back(slots_.size() - 1);
      }
      const std::size_t number = free_slots_.back();
      free_slots_.pop_back();
      // A comm must not lose its last reference while it completes, so the slot that just became free is not taken next.
      s4u::CommPtr comm = s4u::Comm::sendto_init();
      comm->set_payload_size(message.bytes);
      comm->set_data(reinterpret_cast<void*>(number + 1));
      comm->set_source(hosts_[static_cast<std::size_t>(run_.worker_of(message.from))]);
      comm->set_destination(hosts_[static_cast<std::size_t>(run_.worker_of(message.to))]);
      if (comm->get_state() != s4u::Activity::State::STARTED) comm->start();
      slots_[number].message = message;
      slots_[number].comm = std::move(comm);
      if (most_ > 0) begin_apart(slots_[number]);
    }
    if (next_ < started_.size() && next_ < end_s_.size()) return;  // the list is shortened from time to time only
    started_.erase(started_.begin(), started_.begin() + static_cast<std::ptrdiff_t>(next_));
    next_ = 0;
  }

  const std::vector<std::int32_t>& route_of(const ProgramRun::Message& message) {
    Route& known = routes_[static_cast<std::size_t>(message.from)];
    if (known.to != message.to) known = {message.to, topology_.route(message.from, message.to)};
    return known.links;
  }

  void begin_apart(Slot& slot) {
    slot.clock_s = s4u::Engine::get_clock();
    slot.begin_s = std::max(end_s_[static_cast<std::size_t>(slot.message.from)], end_s_[static_cast<std::size_t>(slot.message.to)]);
    for (const std::int32_t link : route_of(slot.message)) {
      double& free_s = link_free_s_[static_cast<std::size_t>(link)];
      if (slot.begin_s < free_s)
        throw RunError("messages meet on link " + topology_.links()[static_cast<std::size_t>(link)].name +
                       " of a collective that was taken for one without shared links");
      free_s = std::numeric_limits<double>::infinity();  // until it has ended
    }
  }

  void end_apart(const Slot& slot) {
    const double end_s = slot.begin_s + (s4u::Engine::get_clock() - slot.clock_s);
    for (const std::int32_t link : route_of(slot.message)) link_free_s_[static_cast<std::size_t>(link)] = end_s;
    for (const std::int32_t worker : {slot.message.from, slot.message.to}) {
      double& last_s = step_end_s_[static_cast<std::size_t>(worker)];
      last_s = std::max(last_s, end_s);
    }
  }

  void completed(const s4u::Activity& activity) {
    const std::size_t number = reinterpret_cast<std::size_t>(activity.get_data<void>()) - 1;
    const ProgramRun::Message message = slots_[number].message;
    const double now_s = s4u::Engine::get_clock();
    if (most_ > 0) end_apart(slots_[number]);
    // The slot becomes free when the next message has completed: see send_started().
    if (just_completed_ >= 0) free_slots_.push_back(static_cast<std::size_t>(just_completed_));
    just_completed_ = static_cast<std::int64_t>(number);
    steps_ended_.clear();
    run_.ended(message, steps_ended_);
    for (const std::int32_t strand : steps_ended_) {
      // The last of its lanes counts.
      if (const std::int64_t place = run_.place_of(strand); place >= 0)
        end_s_[static_cast<std::size_t>(place)] = most_ > 0 ? step_end_s_[static_cast<std::size_t>(place)] : now_s;
      run_.next(strand, started_);
    }
    --under_way_;
    send_started();
  }

  ProgramRun run_;
  std::size_t workers_;
  const platforms::Topology& topology_;
  std::size_t most_;  // messages under way at once; 0: as many as there are, each at its time
  std::size_t under_way_ = 0, next_ = 0;
  std::vector<double> end_s_;  // of every worker's last step, in every part
  // Apart only: the last end of a worker's messages; the route that its last message took; when a link becomes free.
  std::vector<double> step_end_s_;
  std::vector<Route> routes_;
  std::vector<double> link_free_s_;
  s4u::Engine engine_;
  std::vector<s4u::Host*> hosts_;
  std::vector<ProgramRun::Message> started_;
  std::vector<std::int32_t> steps_ended_;
  std::vector<Slot> slots_;
  std::vector<std::size_t> free_slots_;
  std::int64_t just_completed_ = -1;
};

// What the forked process hands back, in memory that both see; end_s of all workers and parts and bytes_sent of all workers follow.
struct Answer {
  enum class State : int { none, done, failed };
  std::atomic<State> state{State::none};
  std::uint64_t messages = 0;
  std::array<char, 2000> error{};
};

class SharedAnswer {
 public:
  /// `places`: workers times parts.
  SharedAnswer(std::size_t workers, std::size_t places)
      : workers_(workers), places_(places), size_(sizeof(Answer) + places * sizeof(double) + workers * sizeof(std::uint64_t)) {
    memory_ = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) throw RunError("no memory for a simulation: " + std::string(std::strerror(errno)));
    answer_ = new (memory_) Answer;
  }
  SharedAnswer(const SharedAnswer&) = delete;
  SharedAnswer& operator=(const SharedAnswer&) = delete;
  ~SharedAnswer() { ::munmap(memory_, size_); }
  Answer& answer() { return *answer_; }
  std::span<double> end_s() { return {reinterpret_cast<double*>(answer_ + 1), places_}; }
  std::span<std::uint64_t> bytes_sent() { return {reinterpret_cast<std::uint64_t*>(end_s().data() + places_), workers_}; }

 private:
  std::size_t workers_, places_, size_;
  void* memory_;
  Answer* answer_;
};
static_assert(sizeof(Answer) % alignof(double) == 0);

// The forked process: never returns, whatever is thrown.
[[noreturn]] void child(const Program& program, const platforms::Topology& topology, std::span<const double> start_s, double precision_s,
                        bool apart, SharedAnswer& shared, int log) noexcept {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto restore_signals = [] {
    for (const int signal : {SIGINT, SIGTERM, SIGSEGV, SIGABRT, SIGFPE, SIGILL, SIGBUS}) std::signal(signal, SIG_DFL);
  };
  restore_signals();  // the caller's handlers are not for this process
  // SimGrid flushes stdout: what the caller has in its buffer must not come out twice.
  ::dup2(log, STDOUT_FILENO);
  ::dup2(log, STDERR_FILENO);
  Answer& answer = shared.answer();
  const auto fail = [&](const char* what) {
    std::strncpy(answer.error.data(), what, answer.error.size() - 1);
    answer.state = Answer::State::failed;
  };
  try {
    // Never destroyed: the process ends here, and SimGrid's own clean-up has nothing to add.
    auto* const simulation = new Simulation(program, topology, start_s, precision_s, apart);
    restore_signals();  // nor are SimGrid's
    simulation->simulate(start_s);
    std::copy(simulation->end_s().begin(), simulation->end_s().end(), shared.end_s().begin());
    std::copy(simulation->run().bytes_sent().begin(), simulation->run().bytes_sent().end(), shared.bytes_sent().begin());
    answer.messages = simulation->run().messages();
    answer.state = Answer::State::done;
  } catch (const std::exception& error) {
    fail(error.what());
  } catch (...) {
    fail("an unknown error");
  }
  ::_exit(0);
}

// The last words of a process that died, in one line.
std::string last_words(int log) {
  std::array<char, 1500> buffer{};
  const off_t size = ::lseek(log, 0, SEEK_END);
  const off_t from = std::max<off_t>(0, size - static_cast<off_t>(buffer.size()));
  const ssize_t got = ::pread(log, buffer.data(), buffer.size(), from);
  std::string text(buffer.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text.empty() ? "no message" : text;
}

class SimGrid : public Network {
 public:
  SimGrid(const platforms::Topology& topology, std::int64_t apart_above)
      : topology_(topology), apart_above_(apart_above), recurrence_(make_recurrence(topology)) {}

  std::span<const std::int64_t> node_of_worker() const override { return topology_.node_of_worker(); }
  const platforms::Topology& topology() const override { return topology_; }

  CollectiveTiming time(const Program& program, std::span<const double> start_s) override {
    check_start(program, topology_, start_s);
    const double origin = *std::min_element(start_s.begin(), start_s.end());
    std::vector<double> start(start_s.begin(), start_s.end());
    for (double& t : start) t -= origin;
    const std::string key = key_of(program, start);
    auto known = memo_.find(key);
    if (known == memo_.end()) {
      if (memo_.size() >= memo_limit / start.size()) memo_.clear();
      known = memo_.emplace(key, simulate(program, start)).first;
    }
    CollectiveTiming timing = known->second;
    for (double& t : timing.end_s) t += origin;
    return timing;
  }

 private:
  CollectiveTiming simulate(const Program& program, std::span<const double> start_s) {
    const bool exact = recurrence_is_exact(program, topology_);
    const double precision = precision_s(program, start_s, exact);  // finds programs that never end as well
    const bool apart = exact && program.workers() > apart_above_ && program.lanes() == 1 && program.switches() == 0 && !topology_.eager();
    SharedAnswer shared(static_cast<std::size_t>(program.workers()), start_s.size());
    const int log = ::memfd_create("simulation log", MFD_CLOEXEC);
    if (log < 0) throw RunError("no file for a simulation's log: " + std::string(std::strerror(errno)));
    std::fflush(nullptr);
    const pid_t process = ::fork();
    if (process == 0) child(program, topology_, start_s, precision, apart, shared, log);
    int status = 0;
    pid_t ended = -1;
    if (process > 0) do {
        ended = ::waitpid(process, &status, 0);
      } while (ended < 0 && errno == EINTR);
    const std::string words = last_words(log);
    ::close(log);
    if (process < 0) throw RunError("cannot start a simulation process: " + std::string(std::strerror(errno)));
    // Where the caller ignores SIGCHLD there is no status to wait for, but the answer is there all the same.
    const Answer& answer = shared.answer();
    if (answer.state == Answer::State::failed) throw RunError(answer.error.data());
    if (answer.state != Answer::State::done)
      throw RunError("a SimGrid simulation ended early (" +
                     (ended == process && WIFSIGNALED(status) ? std::string("signal ") + strsignal(WTERMSIG(status)) : "no answer") +
                     "): " + words);
    CollectiveTiming timing;
    timing.end_s.assign(shared.end_s().begin(), shared.end_s().end());
    timing.bytes_sent.assign(shared.bytes_sent().begin(), shared.bytes_sent().end());
    timing.messages = answer.messages;
    timing.network = "simgrid";
    return timing;
  }

  // SimGrid takes events that are less than this apart as one, by default a nanosecond, which adds up to visible errors over many steps.
  // The time without sharing of links sets the scale: far below it, but well above the rounding of a clock that contention has made n times
  // later.
  double precision_s(const Program& program, std::span<const double> start_s, bool exact) {
    const CollectiveTiming timing = recurrence_->time(program, start_s);
    const double scale_s = *std::max_element(timing.end_s.begin(), timing.end_s.end());
    const double contention = exact ? 1 : static_cast<double>(start_s.size());
    const double precision = std::max(1e-18, 2e-14 * contention * scale_s);
    // The same for calls that differ in a start alone: whoever looks for starts that fit the ends must not be led about by roundings.
    return program.parts() > 1 ? std::exp2(std::floor(std::log2(precision))) : precision;
  }

  // A collision-free name of what is simulated: all that the result depends on besides the topology.
  static std::string key_of(const Program& program, std::span<const double> start_s) {
    std::string text(reinterpret_cast<const char*>(start_s.data()), start_s.size_bytes());
    const auto add = [&](std::uint64_t number) { text.append(reinterpret_cast<const char*>(&number), sizeof number); };
    const auto blocks = program.ring_block_bytes();
    add(blocks.empty());
    if (!blocks.empty()) {
      add(static_cast<std::uint64_t>(program.steps(0)));
      text.append(reinterpret_cast<const char*>(blocks.data()), blocks.size_bytes());
      return sha256_hex(text);
    }
    add(static_cast<std::uint64_t>(program.parts()));
    add(static_cast<std::uint64_t>(program.lanes()));
    for (std::int64_t lane = 0; lane < program.lanes(); ++lane) add(static_cast<std::uint64_t>(program.part_of(lane)));
    Step step;
    for (std::int64_t strand = 0; strand < strands_of(program); ++strand) {
      add(static_cast<std::uint64_t>(program.steps(strand)));
      for (std::int64_t number = 0; number < program.steps(strand); ++number) {
        program.step(strand, number, step);
        add(step.sends.size());
        for (const Transfer& transfer : step.sends) {
          add(static_cast<std::uint64_t>(transfer.peer));
          add(transfer.bytes);
        }
        add(step.receives.size());
        for (const std::int64_t peer : step.receives) add(static_cast<std::uint64_t>(peer));
        add(step.after.size());
        for (const After& after : step.after) {
          add(static_cast<std::uint64_t>(after.lane));
          add(static_cast<std::uint64_t>(after.steps));
        }
      }
    }
    return sha256_hex(text);
  }

  static constexpr std::size_t memo_limit = std::size_t{1} << 22;  // workers x programs: 64 MiB
  const platforms::Topology& topology_;
  std::int64_t apart_above_;
  std::unique_ptr<Network> recurrence_;
  std::unordered_map<std::string, CollectiveTiming> memo_;
};

}  // namespace

std::unique_ptr<Network> make_simgrid(const platforms::Topology& topology, std::int64_t apart_above) {
  return std::make_unique<SimGrid>(topology, apart_above);
}

}  // namespace sparscale::sim
