// Local Top-k.
// Paper:    Aji, Heafield, EMNLP 2017; Stich et al., NeurIPS 2018; as in kljp/exdyna's TopKReducer.
// Rule:     each worker selects its k = trunc(d N) largest |a|, ties to the lower index. k = 0 selects nothing.
// Exchange: all-gather of k indices, sort and unique, all-reduce of the values at the union of U indices. Residuals become 0 at the union.
// Cost:     top-k over N on every worker; k <= U <= min(N, n k): the build-up grows with n.
#include "sim/sparsifiers/common.hpp"

namespace sparscale::sim {
namespace {

class TopK : public Sparsifier {
 public:
  TopK(const ReplayShape& shape, const Json& values) : shape_(shape), index_bytes_(values.at("index_bytes").get<std::int64_t>()) {}

  Selection select(std::int64_t, const AccumulatorView& accumulators, const kernels::Kernels& kernels) override {
    const Index N = shape_.gradients, k = shape_.target_k;
    Selection selection;
    selection.selected.resize(static_cast<std::size_t>(shape_.workers));
    for (std::int64_t worker = 0; worker < shape_.workers; ++worker) {
      std::vector<Index>& own = selection.selected[static_cast<std::size_t>(worker)];
      kernels.topk(accumulators.range(worker, 0, N), k, 0, own);
      selection.threshold.push_back(smallest_magnitude(accumulators, worker, own, N));
    }
    selection.exchanged = kernels.unite(selection.selected, N);
    const Index united = std::ssize(selection.exchanged);
    selection.exchange = {all_gather("indices", index_dtype(index_bytes_), static_cast<std::uint64_t>(k * index_bytes_)),
                          all_reduce("values", "float32", 4 * static_cast<std::uint64_t>(united))};
    WorkLog work(shape_.workers);
    work.all("accumulate", N, N, 0);
    work.all("topk", N, k, 0);
    work.all("unite", shape_.workers * k, united, 1);
    work.all("gather", united, united, 1);
    work.all("zero", united, united, 2);
    selection.work = work.take();
    return selection;
  }

 private:
  ReplayShape shape_;
  std::int64_t index_bytes_;
};

}  // namespace

SparsifierInfo describe_topk() {
  SparsifierInfo info;
  info.name = "topk";
  info.title = "Local Top-k";
  info.paper = "Aji, Heafield, EMNLP 2017; Stich et al., NeurIPS 2018";
  info.rule = "Each worker selects its k largest |a|.";
  info.exchange = "all-gather of indices (8k), all-reduce of values at the union (4U)";
  info.cost = "top-k over N on every worker; U grows with n";
  info.parameters = {index_bytes_parameter()};
  info.make = [](const ReplayShape& shape, const Json& values) { return std::make_unique<TopK>(shape, values); };
  return info;
}

}  // namespace sparscale::sim
