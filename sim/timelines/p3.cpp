// P3: layers are cut into slices; whenever the network is free, the slice of the lowest layer that is ready goes next, as the next forward
// pass needs that layer first, and each layer's next forward pass starts when its own slices are there. An iteration is counted from the
// backward pass to the end of the next forward pass. Sparsifiers, which select from the whole gradient, are timed as in sequential.
// Source: Jayarajan et al., MLSys 2019 (slices of 50,000 parameters).
#include <algorithm>

#include "sim/timelines/dense_pieces.hpp"
#include "sim/timelines/next_forward.hpp"

namespace sparscale::sim {
namespace {

class P3 : public TimelineMode {
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
    std::vector<LayerJob> jobs;
    std::int64_t begin = gradient.elements();
    for (std::size_t l = layers.size(); l-- > 0;) {
      begin -= layers[l].elements;
      const auto slice = std::max<std::int64_t>(1, context.options().slice_bytes / static_cast<std::int64_t>(gradient.bytes(1)));
      for (std::int64_t done = 0; done < layers[l].elements; done += slice)
        jobs.push_back({l, gradient.piece(begin + done, std::min(slice, layers[l].elements - done)), ""});
    }
    run_next_forward(jobs, true, context, clock_);
  }

 private:
  std::vector<double> clock_;
};

}  // namespace

TimelineModeInfo p3_timeline() {
  return {"p3",
          "Slices of dense gradients by priority of their layer, overlapping the next forward pass; sparsifiers sequentially",
          "Jayarajan et al., MLSys 2019",
          {"slice_bytes", "overlap_slowdown", "layer_times"},
          true,
          true,
          [](const std::string&, const Json&) { return std::string(); },
          [] { return std::unique_ptr<TimelineMode>(std::make_unique<P3>()); }};
}

}  // namespace sparscale::sim
