// Top-k by a dynamic sparse all-reduce (TopkDSA, SparCML's split all-gather).
// Paper:    Renggli et al., SC 2019 (arXiv 1802.08021); as Shigangli/Ok-Topk's baseline "topkSA".
// Rule:     each worker selects its k = trunc(d N) largest |a|. The vector is cut into n regions of floor(N / n), the last with the rest;
//           worker j sums region j. All sums are the result: nothing is selected a second time, so the union grows with n.
// Exchange: all-to-all of sizes, all-to-all of entries outside the own region (8 bytes each), all-gather of sizes, all-gather of the
//           regions' entries (8 bytes each), or of the regions as they are (4 N bytes in all) when the entries, two floats each, are more
//           than 2/3 N floats. Residuals become 0 at the own selection.
// Cost:     top-k over N on every worker, summing of a region.
//
// The authors' code gives the last region N mod floor(N / n) more elements instead of N mod n and stops for some N; here it ends at N.
#include <algorithm>

#include "sim/sparsifiers/common.hpp"

namespace sparscale::sim {
namespace {

class TopkDsa : public Sparsifier {
 public:
  TopkDsa(const ReplayShape& shape, const Json& values) : shape_(shape), schedule_(shape, values, true) {}

  Accumulation accumulation() const override { return Accumulation::plain; }

  Selection select(std::int64_t iteration, const AccumulatorView& accumulators, const kernels::Kernels& kernels) override {
    const Index N = shape_.gradients, n = shape_.workers, k = schedule_.k(iteration);
    Selection selection;
    selection.target_k = schedule_.target_k(iteration);
    topk_of_all(accumulators, kernels, shape_, k, selection);
    selection.exchanged = kernels.unite(selection.selected, N);

    std::vector<Index> starts, received(static_cast<std::size_t>(n));
    std::vector<std::uint64_t> pairs, whole, sizes;
    for (std::int64_t region = 0; region < n; ++region) {
      starts.push_back(region * (N / n));
      sizes.push_back(static_cast<std::uint64_t>(region + 1 == n ? N - starts.back() : N / n));
      whole.push_back(4 * sizes.back());
    }
    const std::vector<Index> parts = counts_by_region(selection.selected, starts);
    for (std::size_t i = 0; i < parts.size(); ++i) received[i % received.size()] += parts[i];
    const std::vector<Index> distinct = counts_by_region({selection.exchanged}, starts);
    for (const Index count : distinct) pairs.push_back(8 * static_cast<std::uint64_t>(count));
    const bool dense = 3 * std::ssize(selection.exchanged) > N;  // 2 U > 2/3 N

    Exchange& exchange = selection.exchange;
    exchange.push_back(all_to_all_of_counts(n));
    exchange.push_back(all_to_all("values", "float32", parts, 8, std::move(sizes)));
    exchange.back().entry_index_bytes = exchange.back().entry_value_bytes = 4;
    exchange.push_back(all_gather("counts", "int32", 4));
    if (dense) {
      exchange.push_back(all_gather("gradient", "float32", 0));
      exchange.back().bytes = std::move(whole);
    } else {
      CollectiveCall call = all_gather("values", "float32", 0);
      call.bytes = std::move(pairs);
      call.entry_index_bytes = call.entry_value_bytes = 4;
      call.lists_are_selections = false;
      call.index_range = static_cast<std::uint64_t>(N - (n - 1) * (N / n));  // the last region is the largest
      exchange.push_back(std::move(call));
    }

    WorkLog work(n);
    work.all("accumulate", N, N, 0);
    work.all("topk", N, k, 0);
    work.all("gather", k, k, 1);
    for (std::int64_t region = 0; region < n; ++region)
      work.one(region, "unite", received[static_cast<std::size_t>(region)], distinct[static_cast<std::size_t>(region)], 2);
    work.all("zero", k, k, 4);
    selection.work = work.take();
    selection.contribution = Contribution::at_own_selection;
    selection.details["region_received"] = received;
    selection.details["dense_gather"] = dense;
    return selection;
  }

 private:
  ReplayShape shape_;
  DensitySchedule schedule_;
};

}  // namespace

SparsifierInfo describe_topk_dsa() {
  SparsifierInfo info;
  info.name = "topk_dsa";
  info.title = "Top-k by a dynamic sparse all-reduce";
  info.paper = "Renggli et al., SC 2019 (arXiv 1802.08021)";
  info.rule = "Each worker selects its k largest |a|; entries are summed region by region, one region per worker, and all sums gathered.";
  info.exchange =
      "all-to-all of sizes and of entries (8 bytes each), all-gather of sizes and of the sums (8 bytes each, or dense when many)";
  info.cost = "top-k over N on every worker, summing of a region; U grows with n";
  info.parameters = {scope_parameter(), bucket_bytes_parameter(), density_schedule_parameter()};
  info.exchanges_by_scope = true;
  info.any_order = [](const Json&) { return true; };
  info.make = [](const ReplayShape& shape, const Json& values) {
    return make_by_scope(shape, values, [&](const ReplayShape& part) { return std::make_unique<TopkDsa>(part, values); });
  };
  return info;
}

}  // namespace sparscale::sim
