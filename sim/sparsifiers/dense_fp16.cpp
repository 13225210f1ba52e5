// Dense in half precision: the cheapest compression there is, and so the baseline that a sparsifier must beat.
// Paper:    PyTorch's fp16_compress_hook
// Rule:     everything, cast to IEEE half and back; no residual.
// Exchange: all-reduce of 2 N bytes.
// Cost:     a cast of N elements before and after.
#include "sim/sparsifiers/common.hpp"

namespace sparscale::sim {
namespace {

class DenseFp16 : public Sparsifier {
 public:
  explicit DenseFp16(const ReplayShape& shape) : gradients_(shape.gradients) {}

  Selection select(std::int64_t, const AccumulatorView&, const kernels::Kernels&) override {
    Selection selection;
    selection.everything = true;
    selection.exchange = {all_reduce("gradient", "float16", 2 * static_cast<std::uint64_t>(gradients_))};
    selection.residual = Residual::cleared;
    selection.work = {{{"cast_half", gradients_, gradients_, 0}, {"cast_half", gradients_, gradients_, 1}}};
    return selection;
  }

 private:
  Index gradients_;
};

}  // namespace

SparsifierInfo describe_dense_fp16() {
  SparsifierInfo info;
  info.name = "dense_fp16";
  info.title = "Dense fp16 all-reduce";
  info.paper = "baseline (PyTorch's fp16_compress_hook)";
  info.rule = "Everything is sent in half precision; no residual.";
  info.exchange = "all-reduce of 2N bytes";
  info.cost = "two casts of N elements";
  info.dense = true;
  info.make = [](const ReplayShape& shape, const Json&) { return std::make_unique<DenseFp16>(shape); };
  return info;
}

}  // namespace sparscale::sim
