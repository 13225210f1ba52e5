// gTop-k.
// Paper:    Shi et al., ICDCS 2019 (arXiv 1901.04359); as in hclhkbu/gtopkssgd.
// Rule:     each worker selects its k = max(1, trunc(d N)) largest |a|. A binary tree merges the lists: in round j a worker that is a
//           multiple of 2^(j+1) adds its partner's list, 2^j away, to its own and keeps the k largest |sum|, ties to the lower index. By
//           layer or bucket (scope; the authors' merged groups of tensors) each piece has its own exchange, one after the other.
// Exchange: log2(n) rounds of one message of k entries (16 bytes: the authors' index and value travel as float64), a broadcast of the
//           final k entries. Residuals become 0 at the own selection, and what did not make it into the final list is put back. Entries
//           lost inside the tree although their index survives are not put back.
// Cost:     top-k over N and up to log2(n) merges of 2 k entries; no build-up.
//
// The authors' code needs a power of two; the tree here takes any n (a worker without a partner waits for the next round). The merges stand
// in the kernel work before the broadcast: their time adds up on the path to worker 0, but does not delay single rounds.
#include <algorithm>
#include <bit>
#include <cmath>

#include "sim/sparsifiers/common.hpp"

namespace sparscale::sim {
namespace {

struct Entry {
  Index index;
  double value;
};

// Sum of two lists (ascending by index), cut to the k largest |value|; ascending by index.
std::vector<Entry> merge(const std::vector<Entry>& a, const std::vector<Entry>& b, Index k) {
  std::vector<Entry> sum;
  sum.reserve(a.size() + b.size());
  std::size_t i = 0, j = 0;
  while (i < a.size() || j < b.size()) {
    if (j == b.size() || (i < a.size() && a[i].index < b[j].index)) {
      sum.push_back(a[i++]);
    } else if (i == a.size() || b[j].index < a[i].index) {
      sum.push_back(b[j++]);
    } else {
      sum.push_back({a[i].index, a[i].value + b[j].value});
      ++i;
      ++j;
    }
  }
  if (std::ssize(sum) > k) {
    std::nth_element(sum.begin(), sum.begin() + k, sum.end(), [](const Entry& x, const Entry& y) {
      return std::abs(x.value) != std::abs(y.value) ? std::abs(x.value) > std::abs(y.value) : x.index < y.index;
    });
    sum.resize(static_cast<std::size_t>(k));
    std::sort(sum.begin(), sum.end(), [](const Entry& x, const Entry& y) { return x.index < y.index; });
  }
  return sum;
}

class GTopK : public Sparsifier {
 public:
  GTopK(const ReplayShape& shape, const Json& values)
      : shape_(shape), schedule_(shape, values, true), entry_bytes_(values.at("entry_bytes").get<std::uint64_t>()) {}

  Accumulation accumulation() const override { return Accumulation::plain; }

  Selection select(std::int64_t iteration, const AccumulatorView& accumulators, const kernels::Kernels& kernels) override {
    const Index N = shape_.gradients, n = shape_.workers;
    const Index k = std::max<Index>(1, schedule_.k(iteration));
    Selection selection;
    selection.target_k = schedule_.target_k(iteration);
    selection.selected.resize(static_cast<std::size_t>(n));
    WorkLog work(n);
    work.all("accumulate", N, N, 0);
    work.all("topk", N, k, 0);
    work.all("gather", k, k, 0);
    work.all("zero", k, k, 0);
    std::vector<std::vector<Entry>> lists(static_cast<std::size_t>(n));
    selection.threshold.resize(selection.selected.size());
    accumulators.each_worker(
        n,
        [&](std::int64_t worker) {
          const auto at = static_cast<std::size_t>(worker);
          std::vector<Index>& own = selection.selected[at];
          selection.threshold[at] = accumulators.topk(worker, 0, N, k, kernels, own);
          const std::span<const float> values = accumulators.range(worker, 0, N);
          for (const Index index : own) lists[at].push_back({index, values[static_cast<std::size_t>(index)]});
        },
        [&](std::int64_t worker, WorkerShare& carry) {
          const auto at = static_cast<std::size_t>(worker);
          carry(selection.selected[at]);
          carry(selection.threshold[at]);
          carry(lists[at]);
        });
    for (std::int64_t distance = 1; distance < n; distance *= 2)
      for (std::int64_t worker = 0; worker + distance < n; worker += 2 * distance) {
        std::vector<Entry>& own = lists[static_cast<std::size_t>(worker)];
        own = merge(own, lists[static_cast<std::size_t>(worker + distance)], k);
        work.one(worker, "unite", 2 * k, std::ssize(own), 1);
        work.one(worker, "topk", 2 * k, k, 1);
      }
    for (const Entry& entry : lists.front()) selection.exchanged.push_back(entry.index);
    const std::uint64_t message = entry_bytes_ * static_cast<std::uint64_t>(k);
    CollectiveCall tree = all_reduce("values", entry_bytes_ == 16 ? "float64" : "float32", message);
    tree.operation = Operation::reduce;
    tree.entry_value_bytes = entry_bytes_ == 16 ? 8 : 4;
    tree.entry_index_bytes = entry_bytes_ - tree.entry_value_bytes;
    tree.index_range = static_cast<std::uint64_t>(N);  // every list is from all of them
    CollectiveCall back = broadcast("values", tree.dtype, message, 0);
    back.entry_value_bytes = tree.entry_value_bytes;
    back.entry_index_bytes = tree.entry_index_bytes;
    back.index_range = tree.index_range;
    selection.exchange = {tree, back};
    selection.contribution = Contribution::at_own_and_exchanged;
    selection.work = work.take();
    selection.details["rounds"] = n > 1 ? static_cast<Index>(std::bit_width(static_cast<std::uint64_t>(n - 1))) : 0;
    return selection;
  }

 private:
  ReplayShape shape_;
  DensitySchedule schedule_;
  std::uint64_t entry_bytes_;
};

}  // namespace

SparsifierInfo describe_gtopk() {
  SparsifierInfo info;
  info.name = "gtopk";
  info.title = "gTop-k";
  info.paper = "Shi et al., ICDCS 2019 (arXiv 1901.04359)";
  info.rule = "Local Top-k lists are summed along a binary tree that keeps the k largest sums; what is lost is put back.";
  info.exchange = "log2(n) rounds of 16k bytes to worker 0, broadcast of 16k bytes";
  info.cost = "top-k over N on every worker, up to log2(n) merges of 2k entries; no build-up";
  info.parameters = {
      scope_parameter(),
      bucket_bytes_parameter(),
      density_schedule_parameter(" (the authors' code: 0.004 in the first epoch)"),
      {"entry_bytes", 16, "8 | 12 | 16", "bytes of one index and value (16: both as float64, as the authors' arrays are promoted)",
       Json{{"enum", Json::array({8, 12, 16})}}}};
  info.exchanges_by_scope = true;
  info.make = [](const ReplayShape& shape, const Json& values) {
    return make_by_scope(shape, values, [&](const ReplayShape& part) { return std::make_unique<GTopK>(part, values); });
  };
  return info;
}

}  // namespace sparscale::sim
