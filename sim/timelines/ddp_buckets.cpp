// Wait-free backpropagation with buckets, as PyTorch's DistributedDataParallel: gradients become ready from the last layer to the first and
// fill buckets; a full bucket is all-reduced while the backward pass goes on, one bucket at a time and in order; the step waits for the
// last. Sparsifiers select after the last layer, as they must when they select from the whole gradient: they are timed as in sequential.
// Source: Li et al., VLDB 2020; torch/csrc/distributed/c10d/reducer.cpp (a bucket is closed by the tensor that fills it; the first one is
// smaller).
#include "sim/timelines/dense_pieces.hpp"
#include "sim/timelines/wait_free.hpp"

namespace sparscale::sim {
namespace {

class DdpBuckets : public TimelineMode {
 public:
  void time(const Json& record, TimelineContext& context) override {
    if (!is_dense_record(record)) {
      std::vector<double> clock(static_cast<std::size_t>(context.workers()), 0);
      run_sequential(record, context, clock);
      return;
    }
    const TimelineOptions& options = context.options();
    const DenseGradient gradient(record, context);
    std::vector<Piece> pieces;
    std::int64_t begin = gradient.elements(), elements = 0;
    for (std::size_t l = options.layers.size(); l-- > 0;) {
      begin -= options.layers[l].elements;
      elements += options.layers[l].elements;
      const std::int64_t limit = pieces.empty() ? options.first_bucket_bytes : options.bucket_bytes;
      if (elements > 0 && (l == 0 || gradient.bytes(elements) >= static_cast<std::uint64_t>(limit))) {
        pieces.push_back(gradient.piece(begin, elements));
        elements = 0;
      }
    }
    run_wait_free(pieces, context);
  }
};

}  // namespace

TimelineModeInfo ddp_buckets_timeline() {
  return {"ddp_buckets",
          "Dense gradients leave in buckets while the backward pass goes on; sparsifiers after it",
          "Li et al., VLDB 2020 (PyTorch's DistributedDataParallel)",
          {"bucket_bytes", "first_bucket_bytes", "streams", "overlap_slowdown", "layer_times"},
          false,
          true,
          [](const std::string&, const Json&) { return std::string(); },
          [] { return std::unique_ptr<TimelineMode>(std::make_unique<DdpBuckets>()); },
          16};
}

}  // namespace sparscale::sim
