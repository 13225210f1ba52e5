#include "sim/timelines/streams.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "sim/concurrent_calls.hpp"

namespace sparscale::sim {
namespace {

constexpr double unknown = std::numeric_limits<double>::quiet_NaN();
// Starts that differ by less than this share of the iteration are the same; after many passes by less than the second, as the network may
// round a call in another way for every start of a later one.
constexpr double same = 1e-12, same_after_all = 1e-9;

}  // namespace

struct Streams::Known {
  bool timed = false;
  std::vector<double> begin_s, end_s;
};

Streams::Streams(TimelineContext& context, const std::vector<double>& start_s)
    : context_(context),
      slowdown_(context.options().overlap_slowdown),
      compute_s_(start_s),
      communicate_s_(start_s),
      segments_(start_s.size()),
      calls_(start_s.size()),
      first_call_(start_s.size(), 0) {
  if (IterationLog* log = context_.log()) log->compute.assign(start_s.size(), {});
}

std::optional<double> Streams::call_end(std::size_t call, std::size_t worker) const {
  const double end_s = end_s_[call][worker];
  return std::isnan(end_s) ? std::nullopt : std::optional(end_s);
}

void Streams::know(const std::vector<StreamCall>& calls, const std::vector<Known>& known) {
  const std::size_t n = workers();
  ready_s_.assign(calls.size(), std::vector<double>(n, unknown));
  end_s_ = ready_s_;
  busy_.assign(n, {});
  for (std::size_t call = 0; call < calls.size(); ++call) {
    if (!known[call].timed) continue;
    end_s_[call] = known[call].end_s;
    for (std::size_t worker = 0; worker < n; ++worker) {
      communicate_s_[worker] = std::max(communicate_s_[worker], known[call].end_s[worker]);
      if (known[call].end_s[worker] > known[call].begin_s[worker])
        calls_[worker].push_back({known[call].begin_s[worker], known[call].end_s[worker], carries_indices(calls[call].call.payload)});
    }
  }
  for (std::size_t worker = 0; worker < n; ++worker) {
    std::vector<Call>& own = calls_[worker];
    std::vector<Call>& busy = busy_[worker];
    std::stable_sort(own.begin(), own.end(), [](const Call& a, const Call& b) { return a.begin_s < b.begin_s; });
    for (const Call& call : own)
      if (!busy.empty() && call.begin_s <= busy.back().end_s)
        busy.back().end_s = std::max(busy.back().end_s, call.end_s);
      else
        busy.push_back(call);
    std::stable_sort(own.begin(), own.end(), [](const Call& a, const Call& b) { return a.end_s < b.end_s; });
  }
}

Streams Streams::side_by_side(TimelineContext& context, const std::vector<double>& start_s, const std::vector<StreamCall>& calls,
                              const std::function<void(Streams&)>& play) {
  const std::size_t n = start_s.size();
  std::vector<TimelineContext::Prepared> prepared;
  for (const StreamCall& call : calls) prepared.push_back(context.prepare(call.call, call.algorithm));
  std::vector<Known> known(calls.size());
  std::vector<ConcurrentTiming> timings;
  std::vector<std::size_t> timed;
  std::vector<std::vector<double>> last_ready_s;
  ConcurrentCalls network(context.network());
  const double begin_s = *std::min_element(start_s.begin(), start_s.end());
  for (std::size_t times = 0; times <= calls.size() * n + 1; ++times) {
    Streams streams(context, start_s);
    streams.know(calls, known);
    play(streams);
    double over_s = begin_s;
    for (const double end_s : streams.ends()) over_s = std::max(over_s, end_s);
    const double apart_s = (times <= calls.size() ? same : same_after_all) * (over_s - begin_s);
    bool all_known = true, fits = !last_ready_s.empty() || calls.empty();
    for (std::size_t call = 0; call < calls.size(); ++call)
      for (std::size_t worker = 0; worker < n; ++worker) {
        const double now_s = streams.ready_s_[call][worker], before_s = fits ? last_ready_s[call][worker] : unknown;
        all_known = all_known && !std::isnan(now_s);
        fits = fits && (std::isnan(now_s) ? std::isnan(before_s) : std::abs(now_s - before_s) <= apart_s);
      }
    if (fits && !all_known) throw RunError("calls of an iteration that wait for each other");
    if (fits) {
      for (std::size_t i = 0; i < timed.size(); ++i)
        context.account(calls[timed[i]].call, prepared[timed[i]], timings[i].begin_s, timings[i].timing, calls[timed[i]].stream);
      return streams;
    }
    last_ready_s = streams.ready_s_;
    // Calls for which all workers are ready at a time that is known; the last of them in each stream.
    std::vector<ConcurrentCall> together;
    std::map<std::int64_t, std::int64_t> last_of_stream;
    std::map<std::int64_t, bool> ended;
    timed.clear();
    for (std::size_t call = 0; call < calls.size(); ++call) {
      const std::vector<double>& ready_s = last_ready_s[call];
      bool& stream_ended = ended[calls[call].stream];
      stream_ended = stream_ended || std::any_of(ready_s.begin(), ready_s.end(), [](double t) { return std::isnan(t); });
      if (stream_ended) continue;
      const auto last = last_of_stream.find(calls[call].stream);
      together.push_back({prepared[call].program.get(), ready_s, last == last_of_stream.end() ? -1 : last->second});
      last_of_stream[calls[call].stream] = std::ssize(together) - 1;
      timed.push_back(call);
    }
    timings = network.time(together);
    known.assign(calls.size(), {});
    for (std::size_t i = 0; i < timed.size(); ++i) known[timed[i]] = {true, timings[i].begin_s, timings[i].timing.end_s};
  }
  throw RunError("starts of calls side by side that do not settle within " + std::to_string(calls.size() * n + 2) + " passes");
}

double Streams::end_of(std::size_t worker, double begin_s, double work_s) const {
  if (slowdown_ == 1) return begin_s + work_s;
  const std::vector<Call>& calls = busy_.empty() ? calls_[worker] : busy_[worker];
  std::size_t& first = first_call_[worker];
  while (first < calls.size() && calls[first].end_s <= begin_s) ++first;
  double now = begin_s, left = work_s;
  for (std::size_t i = first; i < calls.size(); ++i) {
    const double alone = std::max(0.0, calls[i].begin_s - now);
    if (left <= alone) return now + left;
    left -= alone;
    now = std::max(now, calls[i].begin_s);
    const double together = std::max(0.0, calls[i].end_s - now);
    if (left * slowdown_ <= together) return now + left * slowdown_;
    left -= together / slowdown_;
    now = std::max(now, calls[i].end_s);
  }
  return now + left;
}

double Streams::compute(std::size_t worker, double ready_s, double work_s, Kind kind, const std::string& name) {
  const double begin = std::max(compute_s_[worker], ready_s), end = end_of(worker, begin, work_s);
  compute_s_[worker] = end;
  if (end > begin) {
    segments_[worker].push_back({begin, end, kind});
    if (IterationLog* log = context_.log()) log->compute[worker].push_back({begin, end, kind, name});
  }
  return end;
}

bool Streams::compute_by(std::size_t worker, double ready_s, double work_s, double limit_s, Kind kind, const std::string& name) {
  if (end_of(worker, std::max(compute_s_[worker], ready_s), work_s) > limit_s) return false;
  compute(worker, ready_s, work_s, kind, name);
  return true;
}

const std::vector<double>& Streams::communicate(const CollectiveCall& call, const std::vector<double>& ready_s,
                                                const std::string& algorithm) {
  std::vector<double> begin(ready_s.size());
  for (std::size_t worker = 0; worker < begin.size(); ++worker) begin[worker] = std::max(ready_s[worker], communicate_s_[worker]);
  const CollectiveTiming timing = context_.collective(call, begin, algorithm);
  for (std::size_t worker = 0; worker < begin.size(); ++worker)
    if (timing.end_s[worker] > begin[worker])
      calls_[worker].push_back({begin[worker], timing.end_s[worker], carries_indices(call.payload)});
  communicate_s_ = timing.end_s;
  return communicate_s_;
}

std::vector<double> Streams::ends() const {
  std::vector<double> ends(compute_s_.size());
  for (std::size_t worker = 0; worker < ends.size(); ++worker) ends[worker] = std::max(compute_s_[worker], communicate_s_[worker]);
  return ends;
}

void Streams::report(double begin_s) const {
  const std::vector<double> end_s = ends();
  const auto [earliest, latest] = std::minmax_element(end_s.begin(), end_s.end());
  IterationTime& result = context_.result();
  result.iteration_time_s = *latest - begin_s;
  result.worker_spread_s = *latest - *earliest;
  if (IterationLog* log = context_.log()) {
    log->begin_s = begin_s;
    log->end_s = *latest;
  }
  std::vector<double> computes_s(workers(), 0);
  for (std::size_t of = 0; of < workers(); ++of)
    for (const Segment& segment : segments_[of]) computes_s[of] += segment.end_s - segment.begin_s;
  const std::size_t worker = last_worker(end_s, computes_s, result.iteration_time_s);

  const std::vector<Call>& calls = calls_[worker];
  std::size_t call = 0;
  const auto skip_to = [&](double now) {
    while (call < calls.size() && calls[call].end_s <= now) ++call;
  };
  // While nothing is computed: the call that is under way, or the next one, which waits for other workers.
  const auto expose = [&](double from, double to) {
    while (from < to) {
      skip_to(from);
      const double until = call < calls.size() ? std::min(to, calls[call].end_s) : to;
      (call < calls.size() && calls[call].indices ? result.index_exchange_time_s : result.value_exchange_time_s) += until - from;
      from = until;
    }
  };
  const std::vector<Call>& busy = busy_.empty() ? calls : busy_[worker];
  std::size_t stretch = 0;
  const auto overlap = [&](double from, double to) {
    while (stretch < busy.size() && busy[stretch].end_s <= from) ++stretch;
    for (std::size_t i = stretch; i < busy.size() && busy[i].begin_s < to; ++i)
      result.overlapped_time_s += std::max(0.0, std::min(to, busy[i].end_s) - std::max(from, busy[i].begin_s));
  };
  double now = begin_s;
  for (const Segment& segment : segments_[worker]) {
    if (segment.end_s <= now) continue;
    expose(now, segment.begin_s);
    const double from = std::max(now, segment.begin_s);
    overlap(from, segment.end_s);
    const double spent = segment.end_s - from;
    switch (segment.kind) {
      case Kind::forward:
      case Kind::backward:
        result.forward_backward_time_s += spent;
        break;
      case Kind::selection:
        result.selection_time_s += spent;
        break;
      case Kind::other:
        result.other_time_s += spent;
        break;
    }
    now = segment.end_s;
  }
  expose(now, *latest);
}

void Kernel::run(Streams& streams, std::size_t worker, double ready_s) const {
  streams.compute(worker, ready_s, work_s[worker], is_selection(operation) ? Streams::Kind::selection : Streams::Kind::other, operation);
}

}  // namespace sparscale::sim
