#include "sim/timelines/wait_free.hpp"

#include <algorithm>
#include <deque>

namespace sparscale::sim {
namespace {

// What a worker's computing stream has to do in any case, in order.
struct Item {
  std::int64_t layer = -1, piece = -1;  // one of them; neither: the forward pass
};

struct Worker {
  std::size_t next_item = 0;
  struct Ready {
    double ready_s;
    const std::vector<Kernel>* kernels;
  };
  std::deque<Ready> ready;        // kernels that wait for a call that is over, in order
  std::vector<double> reached_s;  // per piece so far: when what comes before its first call was done

  // The same with several streams, where calls do not end in the order of their pieces.
  struct Awaited {
    double ready_s;
    std::size_t piece, call;  // before the call's number; that of all calls: after the last
  };
  std::vector<Awaited> awaited;
  double calls_over_s = 0;  // of the pieces so far, as far as they are known
  bool all_calls_known = true;
};

class WaitFree {
 public:
  WaitFree(const std::vector<Piece>& pieces, TimelineContext& context, Streams& streams)
      : pieces_(pieces), context_(context), streams_(streams), workers_(static_cast<std::size_t>(context.workers())) {
    for (std::size_t calls = 0; const Piece& piece : pieces) {
      first_call_.push_back(calls);
      calls += piece.calls.size();
    }
    const std::vector<LayerTime>& layers = context.options().layers;
    items_.push_back({});
    std::int64_t begin = 0;
    for (const LayerTime& layer : layers) begin += layer.elements;
    std::size_t piece = 0;
    for (std::size_t l = layers.size(); l-- > 0;) {
      begin -= layers[l].elements;
      items_.push_back({static_cast<std::int64_t>(l), -1});
      for (; piece < pieces.size() && (pieces[piece].begin >= begin || l == 0); ++piece)
        items_.push_back({-1, static_cast<std::int64_t>(piece)});
    }
  }

  void run() {
    std::vector<double> ready(workers_.size());
    for (std::size_t p = 0; p < pieces_.size(); ++p)
      for (std::size_t c = 0; c < pieces_[p].calls.size(); ++c) {
        for (std::size_t worker = 0; worker < workers_.size(); ++worker)
          ready[worker] = c == 0 ? reach(worker, p) : react(worker, pieces_[p].calls[c].before);
        const std::vector<double>& ends = streams_.communicate(pieces_[p].calls[c].call, ready);
        if (c + 1 == pieces_[p].calls.size() && !pieces_[p].after.empty())
          for (std::size_t worker = 0; worker < workers_.size(); ++worker)
            workers_[worker].ready.push_back({ends[worker], &pieces_[p].after});
      }
    for (std::size_t worker = 0; worker < workers_.size(); ++worker)
      while (step(worker)) {
      }
  }

  // All calls are known as far as they can be: computes until one is awaited that is not.
  void play() {
    for (std::size_t worker = 0; worker < workers_.size(); ++worker)
      while (play_step(worker)) {
      }
  }

 private:
  // The next thing that the worker computes: what a call was awaited for, if that is over, else the next item. False when all is done.
  bool step(std::size_t worker) {
    Worker& state = workers_[worker];
    const bool items_left = state.next_item < items_.size();
    if (!state.ready.empty() && (state.ready.front().ready_s <= streams_.computes_until(worker) || !items_left)) {
      const Worker::Ready next = state.ready.front();
      state.ready.pop_front();
      for (const Kernel& kernel : *next.kernels) kernel.run(streams_, worker, next.ready_s);
      return true;
    }
    if (!items_left) return false;
    const Item item = items_[state.next_item++];
    if (item.piece >= 0) {
      const Piece& piece = pieces_[static_cast<std::size_t>(item.piece)];
      for (const Kernel& kernel : piece.calls.empty() ? piece.after : piece.calls.front().before) kernel.run(streams_, worker, 0);
      state.reached_s.push_back(streams_.computes_until(worker));
    } else {
      pass(worker, item);
    }
    return true;
  }

  void pass(std::size_t worker, const Item& item) {
    const TimelineOptions& options = context_.options();
    if (item.layer >= 0) {
      const auto l = static_cast<std::size_t>(item.layer);
      streams_.compute(worker, 0, options.layers[l].backward_s * context_.factor(worker), Streams::Kind::backward,
                       "backward " + std::to_string(l));
    } else {
      streams_.compute(worker, 0, options.forward_time_s * context_.factor(worker), Streams::Kind::forward, "forward");
    }
  }

  // As step(), of what is awaited the first to be over. False when all is done, or all that can be.
  bool play_step(std::size_t worker) {
    Worker& state = workers_[worker];
    const bool items_left = state.next_item < items_.size();
    const Item item = items_left ? items_[state.next_item] : Item{};
    const bool joins = items_left && item.piece >= 0 && pieces_[static_cast<std::size_t>(item.piece)].joins;
    const auto first = first_awaited(state);
    if (first != state.awaited.end() && (first->ready_s <= streams_.computes_until(worker) * (1 + same) || !items_left || joins)) {
      const Worker::Awaited next = *first;
      state.awaited.erase(first);
      const Piece& piece = pieces_[next.piece];
      const bool last = next.call == piece.calls.size();
      for (const Kernel& kernel : last ? piece.after : piece.calls[next.call].before) kernel.run(streams_, worker, next.ready_s);
      if (!last) make(worker, next.piece, next.call, streams_.computes_until(worker));
      return true;
    }
    if (!items_left || (joins && !state.all_calls_known)) return false;
    ++state.next_item;
    if (item.piece < 0) {
      pass(worker, item);
      return true;
    }
    const auto number = static_cast<std::size_t>(item.piece);
    const Piece& piece = pieces_[number];
    const double ready_s = joins ? state.calls_over_s : 0;
    for (const Kernel& kernel : piece.calls.empty() ? piece.after : piece.calls.front().before) kernel.run(streams_, worker, ready_s);
    if (!piece.calls.empty()) make(worker, number, 0, std::max(ready_s, streams_.computes_until(worker)));
    return true;
  }

  // Of those that are over at the same time, but for rounding, the first in the order in which they were made.
  static std::vector<Worker::Awaited>::iterator first_awaited(Worker& state) {
    auto first = state.awaited.begin();
    for (auto one = first; one != state.awaited.end(); ++one)
      if (one->ready_s * (1 + same) < first->ready_s) first = one;
    return first;
  }

  // The worker is ready for the call; what comes next is awaited.
  void make(std::size_t worker, std::size_t piece, std::size_t call, double ready_s) {
    Worker& state = workers_[worker];
    const auto& calls = pieces_[piece].calls;
    streams_.call_ready(first_call_[piece] + call, worker, ready_s);
    const std::optional<double> end_s = streams_.call_end(first_call_[piece] + call, worker);
    state.all_calls_known = state.all_calls_known && end_s;
    if (!end_s) return;
    state.calls_over_s = std::max(state.calls_over_s, *end_s);
    const bool last = call + 1 == calls.size();
    if (!last && calls[call + 1].before.empty())
      make(worker, piece, call + 1, *end_s);
    else if (!last || !pieces_[piece].after.empty())
      state.awaited.push_back({*end_s, piece, call + 1});
  }

  // When the worker has the piece and has done what comes before its first call.
  double reach(std::size_t worker, std::size_t piece) {
    Worker& state = workers_[worker];
    while (state.reached_s.size() <= piece) step(worker);
    return state.reached_s[piece];
  }

  // When the worker has done what comes between the piece's last call and the next one.
  double react(std::size_t worker, const std::vector<Kernel>& kernels) {
    Worker& state = workers_[worker];
    const double ready_s = streams_.communicates_until()[worker];
    if (kernels.empty()) return ready_s;
    state.ready.push_back({ready_s, &kernels});
    while (!state.ready.empty()) step(worker);
    return streams_.computes_until(worker);
  }

  static constexpr double same = 1e-12;  // what a decision must not depend on, as times are played until they fit

  const std::vector<Piece>& pieces_;
  TimelineContext& context_;
  Streams& streams_;
  std::vector<Worker> workers_;
  std::vector<Item> items_;
  std::vector<std::size_t> first_call_;  // per piece
};

}  // namespace

void run_wait_free(const std::vector<Piece>& pieces, TimelineContext& context) {
  const std::vector<double> start_s(static_cast<std::size_t>(context.workers()), 0);
  const std::int64_t streams = context.options().streams;
  if (streams == 1) {
    Streams one(context, start_s);
    WaitFree(pieces, context, one).run();
    one.report(0);
    return;
  }
  std::vector<StreamCall> calls;
  for (std::size_t piece = 0; piece < pieces.size(); ++piece)
    for (const Piece::Call& call : pieces[piece].calls) calls.push_back({call.call, "", static_cast<std::int64_t>(piece) % streams});
  Streams::side_by_side(context, start_s, calls, [&](Streams& known) { WaitFree(pieces, context, known).play(); }).report(0);
}

}  // namespace sparscale::sim
