#include "sim/timelines/streams.hpp"

#include <algorithm>

namespace sparscale::sim {

Streams::Streams(TimelineContext& context, const std::vector<double>& start_s)
    : context_(context),
      slowdown_(context.options().overlap_slowdown),
      compute_s_(start_s),
      communicate_s_(start_s),
      segments_(start_s.size()),
      calls_(start_s.size()),
      first_call_(start_s.size(), 0) {
  if (IterationLog* log = context_.log()) log->compute.resize(start_s.size());
}

double Streams::end_of(std::size_t worker, double begin_s, double work_s) const {
  if (slowdown_ == 1) return begin_s + work_s;
  const std::vector<Call>& calls = calls_[worker];
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
  const auto latest = std::max_element(end_s.begin(), end_s.end());
  const auto worker = static_cast<std::size_t>(latest - end_s.begin());
  IterationTime& result = context_.result();
  result.iteration_time_s = *latest - begin_s;
  result.worker_spread_s = *latest - *std::min_element(end_s.begin(), end_s.end());
  if (IterationLog* log = context_.log()) {
    log->begin_s = begin_s;
    log->end_s = *latest;
  }

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
  const auto overlap = [&](double from, double to) {
    for (std::size_t i = call; i < calls.size() && calls[i].begin_s < to; ++i)
      result.overlapped_time_s += std::max(0.0, std::min(to, calls[i].end_s) - std::max(from, calls[i].begin_s));
  };
  double now = begin_s;
  for (const Segment& segment : segments_[worker]) {
    if (segment.end_s <= now) continue;
    expose(now, segment.begin_s);
    const double from = std::max(now, segment.begin_s);
    skip_to(from);
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
