// DEFT.
// Paper:    Yoon, Oh, ICPP 2023 (arXiv 2307.03500); as in kljp/exdyna's DEFTReducer.
// Rule:     tensors are cut once into fragments of at most about N/n. Every worker splits k over the fragments by the norms of its own a. A
//           leader, worker t mod n, packs fragments into n bins by the cost of a top-k; worker r takes bin (t + r) mod n and selects in its
//           fragments the top k_f with its own k_f. Fragments that are selected whole (in the leader's view) go to a common list.
// Exchange: broadcast of bin sizes and of the packed list, all-gather of one count, all-gather of the indices padded to the largest count,
//           all-reduce of the values at all selected indices and in the common fragments. Residuals become 0 there on all workers.
// Cost:     norms over N on every worker, top-k over its bin; the leader packs while the others wait (host time, not in the kernel work).
//
// With one worker the authors' code forgets the common fragments; here they are exchanged as with any other number.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "sim/sparsifiers/common.hpp"

namespace sparscale::sim {
namespace {

class Deft : public Sparsifier {
 public:
  Deft(const ReplayShape& shape, const Json& values)
      : shape_(shape), schedule_(shape, values), index_bytes_(values.at("index_bytes").get<std::int64_t>()) {
    const Index n = shape.workers;
    for (const Segment& layer : layer_segments(shape)) {
      if (static_cast<double>(layer.size()) > static_cast<double>(shape.gradients) / static_cast<double>(n)) {
        Index start = layer.begin;
        for (Index piece = 0; piece < n; ++piece) {
          const Index size = layer.size() / n + (piece < layer.size() % n ? 1 : 0);
          fragments_.push_back({start, start + size});
          start += size;
        }
      } else {
        fragments_.push_back(layer);
      }
    }
  }

  Accumulation accumulation() const override { return Accumulation::plain; }

  Selection select(std::int64_t iteration, const AccumulatorView& accumulators, const kernels::Kernels& kernels) override {
    const Index n = shape_.workers, N = shape_.gradients, target_k = schedule_.k(iteration);
    const Index leader = iteration % n;
    const std::size_t fragments = fragments_.size();

    std::vector<std::vector<Index>> local_k(static_cast<std::size_t>(n));
    accumulators.each_worker(
        n, [&](std::int64_t worker) { local_k[static_cast<std::size_t>(worker)] = split_k(accumulators, kernels, worker, target_k); },
        [&](std::int64_t worker, WorkerShare& carry) { carry(local_k[static_cast<std::size_t>(worker)]); });
    std::vector<std::size_t> common;
    const std::vector<std::vector<std::size_t>> bins = pack(local_k[static_cast<std::size_t>(leader)], common);

    Selection selection;
    selection.target_k = schedule_.target_k(iteration);
    selection.selected.resize(static_cast<std::size_t>(n));
    WorkLog work(n);
    work.all("accumulate", N, N, 0);
    work.all("l2_norm", N, N, 0);
    std::vector<double> costs(static_cast<std::size_t>(n));
    accumulators.each_worker(
        n,
        [&](std::int64_t worker) {
          std::vector<Index>& own = selection.selected[static_cast<std::size_t>(worker)];
          const std::vector<Index>& k = local_k[static_cast<std::size_t>(worker)];
          double cost = 0;
          for (const std::size_t f : bins[static_cast<std::size_t>((leader + worker) % n)]) {
            const Segment& fragment = fragments_[f];
            kernels.topk(accumulators.range(worker, fragment.begin, fragment.end), k[f], fragment.begin, own);
            work.one(worker, "topk", fragment.size(), std::min(k[f], fragment.size()), 2);
            cost += static_cast<double>(fragment.size()) * (k[f] > 1 ? std::log2(static_cast<double>(k[f])) : 1);
          }
          std::sort(own.begin(), own.end());
          costs[static_cast<std::size_t>(worker)] = cost;
        },
        [&](std::int64_t worker, WorkerShare& carry) {
          carry(selection.selected[static_cast<std::size_t>(worker)]);
          carry(costs[static_cast<std::size_t>(worker)]);
          work.share(worker, carry);
        });
    const double largest_cost = *std::max_element(costs.begin(), costs.end());
    const std::vector<Index> counts = counts_of(selection.selected);
    for (const auto& own : selection.selected) selection.exchanged.insert(selection.exchanged.end(), own.begin(), own.end());
    for (const std::size_t f : common)
      for (Index index = fragments_[f].begin; index < fragments_[f].end; ++index) selection.exchanged.push_back(index);
    std::sort(selection.exchanged.begin(), selection.exchanged.end());
    const Index united = std::ssize(selection.exchanged);

    selection.exchange = {broadcast("plan", "int32", 4 * static_cast<std::uint64_t>(n), leader),
                          broadcast("plan", "int32", 4 * static_cast<std::uint64_t>(fragments), leader)};
    for (CollectiveCall& call : padded_index_exchange(counts, united, index_bytes_)) selection.exchange.push_back(std::move(call));
    work.all("gather", united, united, 4);
    work.all("zero", united, united, 5);
    selection.work = work.take();

    if (iteration == 0) {
      std::vector<Index> starts, ends;
      for (const Segment& fragment : fragments_) {
        starts.push_back(fragment.begin);
        ends.push_back(fragment.end);
      }
      selection.details["fragment_starts"] = starts;
      selection.details["fragment_ends"] = ends;
    }
    selection.details["bins"] = bins;
    selection.details["common_fragments"] = common;
    selection.details["leader"] = leader;
    // How much less work the slowest worker's top-k is than one over everything, by the authors' cost model.
    selection.details["selection_speed_up"] =
        largest_cost > 0 && target_k > 1 ? Json(static_cast<double>(N) * std::log2(static_cast<double>(target_k)) / largest_cost) : Json();
    return selection;
  }

 private:
  // k of every fragment for one worker: proportional to its norm, largest first, at least 1, what a full fragment cannot take is passed on.
  std::vector<Index> split_k(const AccumulatorView& accumulators, const kernels::Kernels& kernels, std::int64_t worker,
                             Index target_k) const {
    std::vector<double> norms;
    for (const Segment& fragment : fragments_)
      norms.push_back(static_cast<float>(kernels.l2_norm(accumulators.range(worker, fragment.begin, fragment.end))));
    // Ascending, then reversed: among equal norms the later fragment comes first.
    std::vector<std::size_t> order(fragments_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      if (std::isnan(norms[a]) || std::isnan(norms[b])) return !std::isnan(norms[a]) && std::isnan(norms[b]);
      return norms[a] < norms[b];
    });
    std::reverse(order.begin(), order.end());
    double rest_of_norms = std::accumulate(norms.begin(), norms.end(), 0.0);
    Index rest = target_k;
    std::vector<Index> k(fragments_.size());
    for (const std::size_t f : order) {
      const Index size = fragments_[f].size();
      const double share = rest_of_norms > 0 ? std::trunc(static_cast<double>(rest) * (norms[f] / rest_of_norms)) : 0;
      if (static_cast<double>(size) < share)
        k[f] = size;
      else
        k[f] = share > 1 ? static_cast<Index>(share) : 1;
      rest -= k[f];
      rest_of_norms -= norms[f];
    }
    return k;
  }

  // Largest cost first into the bin with the smallest load; a fragment that is selected whole goes to the common list and adds no load.
  std::vector<std::vector<std::size_t>> pack(const std::vector<Index>& k, std::vector<std::size_t>& common) const {
    std::vector<double> cost;
    for (std::size_t f = 0; f < fragments_.size(); ++f)
      cost.push_back(static_cast<double>(fragments_[f].size()) * (k[f] > 1 ? std::log2(static_cast<double>(k[f])) : 1));
    std::vector<std::size_t> order(fragments_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return cost[a] > cost[b]; });
    std::vector<std::vector<std::size_t>> bins(static_cast<std::size_t>(shape_.workers));
    std::set<std::pair<double, std::size_t>> loads;
    for (std::size_t bin = 0; bin < bins.size(); ++bin) loads.emplace(0.0, bin);
    for (const std::size_t f : order) {
      if (k[f] == fragments_[f].size()) {
        common.push_back(f);
        continue;
      }
      auto lightest = loads.extract(loads.begin());
      bins[lightest.value().second].push_back(f);
      lightest.value().first += cost[f];
      loads.insert(std::move(lightest));
    }
    return bins;
  }

  ReplayShape shape_;
  DensitySchedule schedule_;
  std::int64_t index_bytes_;
  std::vector<Segment> fragments_;
};

}  // namespace

SparsifierInfo describe_deft() {
  SparsifierInfo info;
  info.name = "deft";
  info.title = "DEFT";
  info.paper = "Yoon, Oh, ICPP 2023 (arXiv 2307.03500)";
  info.rule = "Layer fragments are dealt to workers by top-k cost; each selects the top k_f of its fragments, k_f by its own norms.";
  info.exchange =
      "two broadcasts of the plan (4n, 4L), all-gather of counts (8), padded all-gather of indices (8m), all-reduce of values (4K)";
  info.cost = "norms over N and top-k over a bin of about N/n on every worker; the leader packs alone";
  info.parameters = {density_schedule_parameter(), index_bytes_parameter()};
  info.make = [](const ReplayShape& shape, const Json& values) { return std::make_unique<Deft>(shape, values); };
  return info;
}

}  // namespace sparscale::sim
