// Dense: what a sparsifier is compared with.
// Paper:    -
// Rule:     everything; no residual.
// Exchange: all-reduce of 4 N bytes, in one call or in buckets as PyTorch's DistributedDataParallel does.
// Cost:     nothing is selected.
#include <algorithm>

#include "sim/sparsifiers/common.hpp"

namespace sparscale::sim {
namespace {

class Dense : public Sparsifier {
 public:
  Dense(const ReplayShape& shape, std::int64_t bucket_bytes) {
    const Index bucket = bucket_bytes == 0 ? shape.gradients : std::max<Index>(1, bucket_bytes / 4);
    for (Index first = 0; first < shape.gradients; first += bucket)
      exchange_.push_back(all_reduce("gradient", "float32", 4 * static_cast<std::uint64_t>(std::min(bucket, shape.gradients - first))));
  }

  Selection select(std::int64_t, const AccumulatorView&, const kernels::Kernels&) override {
    Selection selection;
    selection.everything = true;
    selection.exchange = exchange_;
    selection.residual = Residual::cleared;
    return selection;
  }

 private:
  Exchange exchange_;
};

}  // namespace

SparsifierInfo describe_dense() {
  SparsifierInfo info;
  info.name = "dense";
  info.title = "Dense fp32 all-reduce";
  info.paper = "baseline";
  info.rule = "Everything is sent; no residual.";
  info.exchange = "all-reduce of 4N bytes";
  info.cost = "no selection";
  info.dense = true;
  info.parameters = {integer_parameter("bucket_bytes", 0, ">= 0", Json{{"minimum", 0}},
                                       "bytes of one all-reduce call; 0: one call for everything (PyTorch's default is 26214400)")};
  info.make = [](const ReplayShape& shape, const Json& values) {
    return std::make_unique<Dense>(shape, values.at("bucket_bytes").get<std::int64_t>());
  };
  return info;
}

}  // namespace sparscale::sim
