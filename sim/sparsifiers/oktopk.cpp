// Ok-Topk.
// Paper:    Li, Hoefler, PPoPP 2022 (arXiv 2201.07598); as in Shigangli/Ok-Topk, whose three programs differ in constants (variant).
// Rule:     every worker selects |a| > tau_l, strictly; tau_l is the exact k-th largest |a| every 32 (BERT: 128) iterations and is nudged
//           by the count in between. The vector is cut into n regions with about equal counts (every 64 iterations); worker j sums region
//           j and keeps sums with |sum| > tau_g, tau_g being the exact k-th largest |sum| every 32 (128) iterations and nudged in between.
//           By layer or bucket (scope) each piece has its own thresholds, regions and exchange, one after the other.
// Exchange: [all-reduce of n-1 boundaries], all-to-all of sizes, all-to-all of entries (8 bytes each), [BERT: balancing], all-gather of
//           sizes, all-gather of the kept sums. Residuals become 0 where the own selection and the final one agree.
// Cost:     one scan (every 32nd iteration an exact top-k), the summing of a region; about 6k entries of volume whatever n.
//
// Sums are taken in the order of the workers. Iterations before dense_iterations exchange densely and keep no residual: 512 (VGG) and 128
// (LSTM) in the authors' code, 0 here in every variant unless given, since traces are short. The balancing step is the paper's and BERT's;
// its moves are counted as one all-to-all of the surplus over the mean. VGG and LSTM ship index and value in one float32 buffer, BERT in
// two.
#include <algorithm>
#include <cmath>

#include "base/checked.hpp"
#include "sim/sparsifiers/common.hpp"

namespace sparscale::sim {
namespace {

// The constants in which the three programs differ.
struct Variant {
  std::int64_t exact_every;
  // Raising tau_l while too many pass: numerator / denominator of k, 0: not done.
  Index raise_numerator, raise_denominator;
  double local_low, local_step, global_low, global_down, global_high, global_up;
  bool balance, two_gathers;
};

constexpr double local_high = 5.0 / 4;

Variant variant_of(const std::string& name) {
  if (name == "vgg") return {32, 4, 3, 2.0 / 3, 1.012, 2.0 / 3, 1.008, 4.0 / 3, 1.008, false, false};
  if (name == "lstm") return {32, 3, 2, 3.0 / 4, 1.012, 3.0 / 4, 1.01, 5.0 / 4, 1.008, false, false};
  return {128, 0, 1, 4.0 / 5, 1.025, 4.0 / 5, 1.036, 5.0 / 4, 1.025, true, true};
}

class OkTopk : public Sparsifier {
 public:
  OkTopk(const ReplayShape& shape, const Json& values)
      : shape_(shape),
        schedule_(shape, values, true),
        variant_(variant_of(values.at("variant").get<std::string>())),
        dense_iterations_(values.at("dense_iterations").get<std::int64_t>()),
        local_(static_cast<std::size_t>(shape.workers), 0),
        sums_(static_cast<std::size_t>(shape.gradients), 0.0F) {
    schedule_.require_k("oktopk");
  }

  Accumulation accumulation() const override { return Accumulation::plain; }

  Selection select(std::int64_t iteration, const AccumulatorView& accumulators, const kernels::Kernels& kernels) override {
    const Index N = shape_.gradients, n = shape_.workers, k = schedule_.k(iteration);
    Selection selection;
    selection.target_k = schedule_.target_k(iteration);
    WorkLog work(n);
    if (iteration < dense_iterations_) {
      selection.everything = true;
      selection.exchange = {all_reduce("gradient", "float32", 4 * static_cast<std::uint64_t>(N))};
      selection.residual = Residual::cleared;
      return selection;
    }
    const std::int64_t step = iteration - dense_iterations_;
    const bool exact = step % variant_.exact_every == 0;
    work.all("accumulate", N, N, 0);

    selection.selected.resize(static_cast<std::size_t>(n));
    std::vector<Index> counts(static_cast<std::size_t>(n));
    std::vector<std::vector<float>> entries(static_cast<std::size_t>(n));  // values at the selected indices
    accumulators.each_worker(
        n,
        [&](std::int64_t worker) {
          const std::size_t at = static_cast<std::size_t>(worker);
          if (exact) {
            std::vector<Index> top;
            local_[at] = accumulators.topk(worker, 0, N, k, kernels, top);
            work.one(worker, "topk", N, k, 0);
          } else if (variant_.raise_numerator > 0) {
            for (int test = 0; test < 5; ++test) {
              const Index count = count_above(accumulators, kernels, worker, 0, N, static_cast<float>(local_[at]));
              work.one(worker, "count", N, count, 0);
              if (count <= variant_.raise_numerator * k / variant_.raise_denominator) break;
              local_[at] *= 1.03;
            }
          }
          select_above(accumulators, kernels, worker, 0, N, static_cast<float>(local_[at]), selection.selected[at]);
          counts[at] = std::ssize(selection.selected[at]);
          work.one(worker, "threshold_select", N, counts[at], 0);
          entries[at].resize(selection.selected[at].size());
          kernels.gather(accumulators.range(worker, 0, N), selection.selected[at], 0, entries[at]);
        },
        [&](std::int64_t worker, WorkerShare& carry) {
          const auto at = static_cast<std::size_t>(worker);
          carry(local_[at]);
          carry(selection.selected[at]);
          carry(counts[at]);
          carry(entries[at]);
          work.share(worker, carry);
        });
    selection.threshold = local_;

    Exchange& exchange = selection.exchange;
    if (step % 64 == 0) {
      cut_regions(selection.selected);
      if (n > 1) exchange.push_back(all_reduce("plan", "int32", 4 * static_cast<std::uint64_t>(n - 1)));
    }
    // tau_l of the next iteration.
    for (std::size_t at = 0; at < counts.size(); ++at) {
      const double count = static_cast<double>(counts[at]), wanted = static_cast<double>(k);
      if (count < variant_.local_low * wanted) local_[at] /= variant_.local_step;
      if (count > local_high * wanted) local_[at] *= variant_.local_step;
    }

    // Split and reduce: what a worker sends is what lies outside its own region.
    const std::vector<Index> parts = counts_by_region(selection.selected, region_starts());
    std::vector<Index> received(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < parts.size(); ++i) received[i % received.size()] += parts[i];
    exchange.push_back(all_to_all_of_counts(n));
    work.each_of("gather", counts, exchange.size());
    append_entries(exchange, parts, false);

    // Sums of the regions, in the order of the workers.
    std::vector<Index> touched = kernels.unite(selection.selected, N);
    for (std::size_t worker = 0; worker < entries.size(); ++worker) {
      const std::vector<Index>& own = selection.selected[worker];
      for (std::size_t i = 0; i < own.size(); ++i) sums_[static_cast<std::size_t>(own[i])] += entries[worker][i];
    }
    for (std::int64_t region = 0; region < n; ++region) {
      const auto [begin, end] = region_of(region);
      const Index distinct =
          std::lower_bound(touched.begin(), touched.end(), end) - std::lower_bound(touched.begin(), touched.end(), begin);
      work.one(region, "unite", received[static_cast<std::size_t>(region)], distinct, exchange.size());
    }

    std::vector<float> region_sums(touched.size());
    kernels.gather(sums_, touched, 0, region_sums);
    for (const Index index : touched) sums_[static_cast<std::size_t>(index)] = 0;
    std::vector<Index> kept;  // positions in touched
    double used = 0;          // tau_g of this iteration
    if (exact) {
      kernels.topk(region_sums, k, 0, kept);
      // All non-zero sums are gathered, the k largest are the result, the k-th is the threshold from now on.
      std::vector<float> chosen(kept.size());
      kernels.gather(region_sums, kept, 0, chosen);
      global_ = chosen.empty()
                    ? 0
                    : std::abs(*std::min_element(chosen.begin(), chosen.end(), [](float a, float b) { return std::abs(a) < std::abs(b); }));
      used = global_;
      std::vector<Index> non_zero;
      for (std::size_t i = 0; i < touched.size(); ++i)
        if (region_sums[i] != 0) non_zero.push_back(touched[i]);
      append_gather(exchange, work, non_zero, false);
      work.all("topk", std::ssize(non_zero), std::min<Index>(k, std::ssize(non_zero)), exchange.size());
      for (const Index position : kept) selection.exchanged.push_back(touched[static_cast<std::size_t>(position)]);
    } else {
      used = global_;
      for (std::size_t i = 0; i < touched.size(); ++i)
        if (std::abs(region_sums[i]) > static_cast<float>(global_)) selection.exchanged.push_back(touched[i]);
      append_gather(exchange, work, selection.exchanged, variant_.balance);
      const double total = static_cast<double>(selection.exchanged.size()), wanted = static_cast<double>(k);
      if (total < variant_.global_low * wanted) global_ /= variant_.global_down;
      if (total > variant_.global_high * wanted) global_ *= variant_.global_up;
    }
    work.all("zero", std::ssize(selection.exchanged), std::ssize(selection.exchanged), exchange.size());

    selection.contribution = Contribution::at_own_and_exchanged;
    selection.details["global_threshold"] = used;
    selection.details["region_starts"] = region_starts();
    selection.details["region_received"] = received;
    selection.work = work.take();
    return selection;
  }

 private:
  static std::vector<std::uint64_t> bytes_of(const std::vector<Index>& entries, std::uint64_t each) {
    std::vector<std::uint64_t> bytes;
    for (const Index count : entries) bytes.push_back(static_cast<std::uint64_t>(count) * each);
    return bytes;
  }

  // Entries to other workers (n x n): index and value are posted together, so one call carries both. Those that are moved are from the
  // sender's region, others from the receiver's.
  void append_entries(Exchange& exchange, const std::vector<Index>& entries, bool moved) const {
    std::vector<std::uint64_t> ranges;
    for (std::int64_t region = 0; region < shape_.workers; ++region)
      ranges.push_back(static_cast<std::uint64_t>(region_of(region).second - region_of(region).first));
    CollectiveCall call = all_to_all("values", "float32", entries, 8, std::move(ranges), moved);
    call.entry_index_bytes = call.entry_value_bytes = 4;
    exchange.push_back(std::move(call));
  }

  // The all-gather of the regions' results. Balancing deals the joined list out again in equal, contiguous parts.
  void append_gather(Exchange& exchange, WorkLog& work, const std::vector<Index>& entries, bool balance) const {
    const Index n = shape_.workers;
    std::vector<Index> held;
    for (std::int64_t region = 0; region < n; ++region) {
      const auto [begin, end] = region_of(region);
      held.push_back(std::lower_bound(entries.begin(), entries.end(), end) - std::lower_bound(entries.begin(), entries.end(), begin));
    }
    work.each_of("gather", held, exchange.size());
    exchange.push_back(all_gather("counts", "int32", 4));
    if (balance) {
      const Index total = std::ssize(entries);
      std::vector<Index> moved(static_cast<std::size_t>(n * n), 0), dealt;
      for (Index worker = 0; worker < n; ++worker) dealt.push_back(total / n + (worker < total % n ? 1 : 0));
      // Both ways to cut the joined list, side by side.
      Index holder = 0, receiver = 0, held_left = held.front(), dealt_left = dealt.front();
      while (true) {
        const Index common = std::min(held_left, dealt_left);
        moved[static_cast<std::size_t>(holder * n + receiver)] += common;
        held_left -= common;
        dealt_left -= common;
        if (held_left == 0 && ++holder < n) held_left = held[static_cast<std::size_t>(holder)];
        if (dealt_left == 0 && ++receiver < n) dealt_left = dealt[static_cast<std::size_t>(receiver)];
        if (holder == n || receiver == n) break;
      }
      append_entries(exchange, moved, true);
      held = dealt;
    }
    const auto gather = [&](const char* payload, const char* dtype, std::uint64_t each) {
      CollectiveCall call = all_gather(payload, dtype, 0);
      call.bytes = bytes_of(held, each);
      if (each == 8) call.entry_index_bytes = call.entry_value_bytes = 4;
      call.lists_are_selections = false;
      // Without balancing a list is from one region, so no bitmap is longer than that of the largest.
      Index range = balance ? shape_.gradients : 0;
      for (std::int64_t region = 0; region < n; ++region) range = std::max(range, region_of(region).second - region_of(region).first);
      call.index_range = static_cast<std::uint64_t>(range);
      exchange.push_back(std::move(call));
    };
    if (variant_.two_gathers) {
      gather("indices", "int32", 4);
      gather("values", "float32", 4);
    } else {
      gather("values", "float32", 8);
    }
  }

  // Boundary j: the mean over the workers of the index at position j (L / n) of their lists, as integers.
  void cut_regions(const std::vector<std::vector<Index>>& selected) {
    const Index n = shape_.workers;
    ends_.assign(static_cast<std::size_t>(n), shape_.gradients);
    for (Index j = 1; j < n; ++j) {
      Index sum = 0;
      for (const auto& own : selected)
        sum += own.empty() ? shape_.gradients / n * j : own[static_cast<std::size_t>(j * (std::ssize(own) / n))];
      ends_[static_cast<std::size_t>(j - 1)] = sum / n;
    }
  }

  std::pair<Index, Index> region_of(std::int64_t region) const {
    return {region == 0 ? 0 : ends_[static_cast<std::size_t>(region - 1)], ends_[static_cast<std::size_t>(region)]};
  }

  std::vector<Index> region_starts() const {
    std::vector<Index> starts{0};
    starts.insert(starts.end(), ends_.begin(), ends_.end() - 1);
    return starts;
  }

  ReplayShape shape_;
  DensitySchedule schedule_;
  Variant variant_;
  std::int64_t dense_iterations_;
  std::vector<double> local_;  // tau_l per worker
  double global_ = 0;          // tau_g
  std::vector<Index> ends_;    // end of every region
  std::vector<float> sums_;    // all zero between iterations
};

}  // namespace

SparsifierInfo describe_oktopk() {
  SparsifierInfo info;
  info.name = "oktopk";
  info.title = "Ok-Topk";
  info.paper = "Li, Hoefler, PPoPP 2022 (arXiv 2201.07598)";
  info.rule = "Local selections are summed region by region, one region per worker, and the sums are thresholded again.";
  info.exchange = "all-to-all of sizes and of entries (8 bytes each), all-gather of sizes and of the kept sums; at times boundaries";
  info.cost = "one scan of N; about 6k entries of volume whatever n";
  info.parameters = {choice_parameter("variant", {"bert", "vgg", "lstm"}, "which of the authors' programs the constants are from"),
                     integer_parameter("dense_iterations", 0, ">= 0", Json{{"minimum", 0}},
                                       "first iterations that exchange densely (the authors': 512 in vgg, 128 in lstm)"),
                     scope_parameter(), bucket_bytes_parameter(),
                     density_schedule_parameter("; thresholds go there at the next exact top-k, and by their steps until then")};
  info.exchanges_by_scope = true;
  info.make = [](const ReplayShape& shape, const Json& values) {
    return make_by_scope(shape, values, [&](const ReplayShape& part) { return std::make_unique<OkTopk>(part, values); });
  };
  info.state_bytes = [](const ReplayShape& shape, const Json&) {  // sums and the selected entries
    return 4 * (static_cast<std::uint64_t>(shape.gradients) +
                checked_multiply(static_cast<std::uint64_t>(shape.workers), static_cast<std::uint64_t>(shape.target_k), "oktopk"));
  };
  return info;
}

}  // namespace sparscale::sim
