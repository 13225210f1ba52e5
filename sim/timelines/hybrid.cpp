// The hybrid of Kim, Yeo and Oh: every layer is all-reduced by itself and its synchronisation may last until its own next forward pass.
// Layers near the input are ready last and needed first: where a ring does not fit into that window, a butterfly is used, elsewhere a ring.
// With two streams all butterflies go in one and all rings in the other, side by side.
// An iteration is counted from the backward pass to the end of the next forward pass. Sparsifiers are timed as in sequential. Source: Kim,
// Yeo, Oh, KIPS Transactions on Computer and Communication Systems 10-7, 2021 (abstract: butterfly for convolutional layers, ring for fully
// connected ones); the window and the rule "window" follow its reasons, as the text could not be read.
#include <algorithm>
#include <map>

#include "sim/timelines/dense_pieces.hpp"
#include "sim/timelines/next_forward.hpp"

namespace sparscale::sim {
namespace {

constexpr const char* butterfly = "recursive_doubling";

class Hybrid : public TimelineMode {
 public:
  void time(const Json& record, TimelineContext& context) override {
    std::vector<double> start(static_cast<std::size_t>(context.workers()), 0);
    if (!is_dense_record(record)) {
      run_sequential(record, context, start);
      return;
    }
    if (clock_.empty()) clock_ = start;
    const DenseGradient gradient(record, context);
    const std::vector<LayerTime>& layers = context.options().layers;
    std::vector<double> window_s;  // from a layer's gradient to its next forward pass, when nothing is waited for
    double sum_s = 0;
    for (const LayerTime& layer : layers) {
      window_s.push_back(sum_s);
      sum_s += layer.backward_s + layer.forward_s;
    }
    std::vector<LayerJob> jobs;
    std::int64_t begin = gradient.elements();
    double ready_s = 0, rings_until_s = 0;  // when nothing is waited for and rings have the network to themselves
    for (std::size_t l = layers.size(); l-- > 0;) {
      begin -= layers[l].elements;
      ready_s += layers[l].backward_s;
      if (layers[l].elements == 0) continue;
      const std::uint64_t bytes = gradient.bytes(layers[l].elements);
      // In one stream calls wait whatever their kind is; in two a ring waits for the rings before it alone.
      const double waits_s = context.options().streams == 1 ? 0 : std::max(0.0, rings_until_s - ready_s);
      const std::string chosen = algorithm(context, l, bytes, window_s[l] - waits_s);
      const bool is_ring = chosen != butterfly;
      if (is_ring && context.options().streams > 1) rings_until_s = std::max(rings_until_s, ready_s) + alone_s(context, "ring", bytes);
      jobs.push_back({l, gradient.piece(begin, layers[l].elements), chosen, is_ring ? 1 : 0});
    }
    if (context.options().streams == 1)
      run_next_forward(jobs, false, context, clock_);
    else
      run_next_forward_side_by_side(jobs, context, clock_);
  }

 private:
  std::string algorithm(TimelineContext& context, std::size_t layer, std::uint64_t bytes, double window_s) {
    const std::string& by = context.options().by_layer;
    if (by == "ring") return "ring";
    if (by == "butterfly") return butterfly;
    if (by == "kind") return context.options().layers[layer].convolution ? butterfly : "ring";
    const double ring_s = alone_s(context, "ring", bytes);
    if (by == "window") return ring_s <= window_s ? "ring" : butterfly;
    return ring_s <= alone_s(context, butterfly, bytes) ? "ring" : butterfly;
  }

  // When all workers begin at once.
  double alone_s(TimelineContext& context, const std::string& name, std::uint64_t bytes) {
    const auto [place, is_new] = alone_s_.try_emplace({&context.network(), name, bytes});
    if (!is_new) return place->second;
    const auto n = static_cast<std::size_t>(context.workers());
    const std::unique_ptr<Program> program =
        find_collective(Operation::all_reduce, name).make(std::vector<std::uint64_t>(n, bytes), 0, context.network().node_of_worker());
    const std::vector<double> end_s = context.network().time(*program, std::vector<double>(n, 0)).end_s;
    return place->second = *std::max_element(end_s.begin(), end_s.end());
  }

  std::vector<double> clock_;
  std::map<std::tuple<const Network*, std::string, std::uint64_t>, double> alone_s_;
};

}  // namespace

TimelineModeInfo hybrid_timeline() {
  return {"hybrid",
          "Butterfly for layers whose next forward pass comes soon, ring for the others, overlapping it; sparsifiers sequentially",
          "Kim, Yeo, Oh, KTCCS 10-7, 2021",
          {"by_layer", "streams", "overlap_slowdown", "layer_times"},
          true,
          true,
          [](const std::string&, const Json&) { return std::string(); },
          [] { return std::unique_ptr<TimelineMode>(std::make_unique<Hybrid>()); },
          2};
}

}  // namespace sparscale::sim
