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
};

class WaitFree {
 public:
  WaitFree(const std::vector<Piece>& pieces, TimelineContext& context)
      : pieces_(pieces),
        context_(context),
        streams_(context, std::vector<double>(static_cast<std::size_t>(context.workers()), 0)),
        workers_(static_cast<std::size_t>(context.workers())) {
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
    streams_.report(0);
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
    const TimelineOptions& options = context_.options();
    if (item.piece >= 0) {
      const Piece& piece = pieces_[static_cast<std::size_t>(item.piece)];
      for (const Kernel& kernel : piece.calls.empty() ? piece.after : piece.calls.front().before) kernel.run(streams_, worker, 0);
      state.reached_s.push_back(streams_.computes_until(worker));
    } else if (item.layer >= 0) {
      const auto l = static_cast<std::size_t>(item.layer);
      streams_.compute(worker, 0, options.layers[l].backward_s * context_.factor(worker), Streams::Kind::backward,
                       "backward " + std::to_string(l));
    } else {
      streams_.compute(worker, 0, options.forward_time_s * context_.factor(worker), Streams::Kind::forward, "forward");
    }
    return true;
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

  const std::vector<Piece>& pieces_;
  TimelineContext& context_;
  Streams streams_;
  std::vector<Worker> workers_;
  std::vector<Item> items_;
};

}  // namespace

void run_wait_free(const std::vector<Piece>& pieces, TimelineContext& context) { WaitFree(pieces, context).run(); }

}  // namespace sparscale::sim
