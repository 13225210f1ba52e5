// Bytes are conserved: what the calls of every exchange carry is what the workers selected, no more and no less.
#include <algorithm>
#include <map>
#include <numeric>

#include "sim/sparsifiers/common.hpp"
#include "tests/catch.hpp"
#include "tests/sparsifier_support.hpp"

using namespace sparscale;
using namespace sparscale::sim;
using namespace sparscale::test;

namespace {

// A matrix, a bias, an empty and a tiny tensor, and so on.
const std::vector<std::int64_t> sizes = {1200, 30, 0, 700, 1, 465, 64, 4};

ReplayShape shape_of(std::int64_t workers, double density) {
  ReplayShape shape;
  shape.workers = workers;
  shape.layers = layers_of_sizes(sizes);
  for (traces::Layer& layer : shape.layers)
    if (layer.size > 100) layer.shape = {layer.size / 5, 5};
  shape.gradients = std::accumulate(sizes.begin(), sizes.end(), Index{0});
  shape.density = density;
  shape.target_k = truncated(density, shape.gradients);
  return shape;
}

std::vector<std::vector<float>> accumulators_of(const ReplayShape& shape, int iteration) {
  std::vector<std::vector<float>> all;
  for (std::int64_t worker = 0; worker < shape.workers; ++worker) {
    Random random(stream_key(3, "exchange test", {static_cast<std::uint64_t>(iteration), static_cast<std::uint64_t>(worker)}));
    auto& values = all.emplace_back(static_cast<std::size_t>(shape.gradients));
    for (float& value : values) value = static_cast<float>(random.normal());
  }
  return all;
}

// Sums over the workers of what they hand in (without padding), by "operation payload".
std::map<std::string, std::uint64_t> carried(const Exchange& exchange, std::int64_t workers) {
  std::map<std::string, std::uint64_t> sums;
  for (const CollectiveCall& call : exchange) {
    const std::vector<std::uint64_t> bytes = call.bytes_of_all(workers, true);
    sums[operation_name(call.operation) + " " + call.payload] += std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
  }
  return sums;
}

void check_form(const Exchange& exchange, std::int64_t workers) {
  for (const CollectiveCall& call : exchange) {
    REQUIRE((call.bytes.size() == 1 || std::ssize(call.bytes) == workers));
    REQUIRE(call.root >= 0);
    REQUIRE(call.root < workers);
    if (call.bytes_unpadded.empty()) continue;
    REQUIRE(std::ssize(call.bytes_unpadded) == workers);
    // Padding is up to the largest, no further.
    REQUIRE(call.bytes.size() == 1);
    REQUIRE(call.bytes.front() == *std::max_element(call.bytes_unpadded.begin(), call.bytes_unpadded.end()));
  }
}

using Check = std::function<void(const ReplayShape&, const Selection&, std::map<std::string, std::uint64_t>)>;

void replay(const std::string& name, const Json& parameters, const Check& check, double density = 0.02) {
  for (const std::int64_t n : {1, 2, 3, 8, 33, 65}) {
    const ReplayShape shape = shape_of(n, density);
    const SparsifierInfo& info = find_sparsifier(name);
    const auto sparsifier = info.make(shape, resolve_parameters(info, parameters, "test", "/parameters"));
    for (int t = 0; t < 4; ++t) {
      INFO(name << " " << parameters.dump() << ", " << n << " workers, iteration " << t);
      const Selection selection = sparsifier->select(t, MemoryView(accumulators_of(shape, t)), kernels::cpu_kernels());
      check_form(selection.exchange, n);
      check(shape, selection, carried(selection.exchange, n));
    }
  }
}

std::uint64_t total(const Selection& selection) { return static_cast<std::uint64_t>(sum_of(counts_of(selection.selected))); }
std::uint64_t united(const Selection& selection) { return selection.exchanged.size(); }

using Sums = std::map<std::string, std::uint64_t>;

// Indices gathered, values all-reduced at the union (X1, X2).
Check reduced_at_union(std::uint64_t index_bytes, bool counts) {
  return [=](const ReplayShape& shape, const Selection& s, const Sums& sums) {
    const auto n = static_cast<std::uint64_t>(shape.workers);
    Sums expected = {{"all_gather indices", index_bytes * total(s)}, {"all_reduce values", 4 * n * united(s)}};
    if (counts) expected["all_gather counts"] = 8 * n;
    REQUIRE(sums == expected);
  };
}

// Values and indices gathered (X4), after `extra` bytes of other calls per worker.
Check gathered(std::uint64_t index_bytes, const Sums& extra = {}) {
  return [=](const ReplayShape& shape, const Selection& s, const Sums& sums) {
    Sums expected = {{"all_gather values", 4 * total(s)}, {"all_gather indices", index_bytes * total(s)}};
    for (const auto& [key, bytes] : extra) expected[key] = bytes * static_cast<std::uint64_t>(shape.workers);
    REQUIRE(sums == expected);
  };
}

const std::uint64_t tensors = 7;  // that are not empty

}  // namespace

TEST_CASE("Exchanges that reduce at the union carry every selected index once and every united value") {
  replay("topk", Json::object(), reduced_at_union(8, false));
  replay("topk", {{"index_bytes", 4}, {"scope", "layer"}}, reduced_at_union(4, false));
  replay("topk", {{"scope", "bucket"}, {"bucket_bytes", 4096}}, reduced_at_union(8, false));
  replay("hard_threshold", {{"threshold", 2.5}}, reduced_at_union(8, true));
  replay("sage", {{"threshold", 2.5}}, reduced_at_union(8, true));
  replay("micro", {{"index_bytes", 4}}, reduced_at_union(4, true));
  replay("exdyna", {{"blocks", 70}}, reduced_at_union(8, true));
}

TEST_CASE("Exchanges that gather entries carry every selected entry once") {
  replay("topk", {{"generation", "2023a"}}, gathered(4));
  replay("hard_threshold", {{"generation", "2023a"}, {"threshold", 2.5}},
         gathered(4, {{"all_gather counts", 8}, {"all_gather plan", 2 * 8 * tensors}}));
  replay("sage", {{"generation", "2023a"}, {"threshold", 2.5}},
         gathered(4, {{"all_gather counts", 8}, {"all_gather plan", 2 * 8 * tensors}}));
  replay("global_topk", Json::object(), gathered(8));
  replay("random_k", Json::object(), gathered(4));
  replay("random_k", {{"scope", "layer"}}, gathered(4));
  for (const char* variant : {"gk", "gkfork"}) replay("gaussiank", {{"variant", variant}}, gathered(4));
  replay("gaussiank", {{"variant", "ok"}}, gathered(4, {{"all_gather counts", 4}}));
  replay("gaussiank", {{"variant", "ok"}, {"scope", "layer"}, {"fused", false}}, gathered(4, {{"all_gather counts", 4 * tensors}}));
  for (const char* fit : {"exponential", "pareto", "gamma_pareto"})
    for (const bool fused : {true, false})
      replay("sidco", {{"fit", fit}, {"stages", 2}, {"scope", "layer"}, {"fused", fused}}, gathered(4));
  replay("grace_topk", {{"variant", "horovod"}}, gathered(8));
  replay("grace_topk", {{"fused", true}}, gathered(4));
  replay("dgc", {{"variant", "grace"}}, gathered(8, {{"all_gather counts", 16}}));
  replay("dgc", {{"variant", "grace"}, {"fused", false}, {"index_bytes", 4}}, gathered(4, {{"all_gather counts", 16 * tensors}}));
  replay("grace_threshold", {{"threshold", 2.5}, {"variant", "horovod"}}, gathered(8));
  replay("grace_threshold", {{"threshold", 2.5}}, gathered(4, {{"all_gather counts", 16 * tensors}}));
}

TEST_CASE("CLT-k, DEFT, gTop-k and shared Random-k carry one agreed list") {
  const auto cltk = [](const ReplayShape& shape, const Selection& s, const Sums& sums) {
    const auto n = static_cast<std::uint64_t>(shape.workers);
    REQUIRE(sums == Sums{{"broadcast indices", 8 * n * united(s)}, {"all_reduce values", 4 * n * united(s)}});
  };
  replay("cltk", Json::object(), [&](const ReplayShape& shape, const Selection& s, const Sums& sums) {
    REQUIRE(std::ssize(s.exchanged) == shape.target_k);
    cltk(shape, s, sums);
  });
  replay("cltk", {{"cltk_mode", "leader_only"}, {"scope", "layer"}}, cltk);
  replay("cltk", {{"scope", "bucket"}, {"bucket_bytes", 4096}}, cltk);
  replay("random_k", {{"indices", "shared"}}, [](const ReplayShape& shape, const Selection& s, const Sums& sums) {
    REQUIRE(sums == Sums{{"all_reduce values", 4 * static_cast<std::uint64_t>(shape.workers) * united(s)}});
  });
  replay("deft", Json::object(), [](const ReplayShape& shape, const Selection& s, const Sums& sums) {
    const auto n = static_cast<std::uint64_t>(shape.workers);
    std::uint64_t fragments = s.details.at("common_fragments").size();
    for (const Json& bin : s.details.at("bins")) fragments += bin.size();
    REQUIRE(united(s) >= total(s));  // plus the common fragments
    REQUIRE(sums == Sums{{"broadcast plan", n * (4 * n + 4 * fragments)},
                         {"all_gather counts", 8 * n},
                         {"all_gather indices", 8 * total(s)},
                         {"all_reduce values", 4 * n * united(s)}});
  });
  for (const std::string scope : {"global", "layer"})
    replay("gtopk", {{"scope", scope}}, [](const ReplayShape& shape, const Selection& s, const Sums& sums) {
      const auto n = static_cast<std::uint64_t>(shape.workers);
      REQUIRE(united(s) * n == total(s));  // k each, k in the end
      REQUIRE(sums == Sums{{"reduce values", 16 * total(s)}, {"broadcast values", 16 * total(s)}});
    });
}

TEST_CASE("DGC and the original Accordion carry sparse tensors as entries and the others whole") {
  const auto check = [](std::uint64_t index_bytes, const Sums& extra) {
    return [=](const ReplayShape& shape, const Selection& s, const Sums& sums) {
      const auto n = static_cast<std::uint64_t>(shape.workers), dense = s.details.at("dense_elements").get<std::uint64_t>();
      REQUIRE(dense == 30 + 1 + 64 + 4);
      const std::uint64_t entries = total(s) - n * dense;
      Sums expected = {
          {"all_gather values", 4 * entries}, {"all_gather indices", index_bytes * entries}, {"all_reduce gradient", 4 * n * dense}};
      for (const auto& [key, bytes] : extra) expected[key] = n * bytes;
      REQUIRE(sums == expected);
    };
  };
  replay("dgc", Json::object(), check(8, {}));
  replay("dgc", {{"fused", false}, {"index_bytes", 4}}, check(4, {}));
  replay("accordion", {{"variant", "original"}, {"switch_iterations", 1}}, check(8, {{"broadcast plan", 4 * tensors}}));
  replay("accordion", {{"switch_iterations", 1}}, gathered(4, {{"broadcast plan", 4 * tensors}}));
}

TEST_CASE("Ok-Topk sends what lies outside the own region, and all that is sent arrives") {
  for (const char* variant : {"bert", "vgg", "lstm"})
    replay("oktopk", {{"variant", variant}}, [&](const ReplayShape& shape, const Selection& s, const Sums& sums) {
      const auto n = static_cast<std::uint64_t>(shape.workers);
      auto starts = s.details.at("region_starts").get<std::vector<Index>>();
      starts.push_back(shape.gradients);
      std::vector<std::uint64_t> arrived(n), between(n * n, 0), final_of(n, 0);
      std::uint64_t outside = 0;
      const auto region_of = [&](Index index) {
        std::size_t region = 0;
        while (index >= starts[region + 1]) ++region;
        return region;
      };
      for (std::size_t worker = 0; worker < n; ++worker)
        for (const Index index : s.selected[worker]) {
          const std::size_t region = region_of(index);
          ++arrived[region];
          outside += region != worker ? 1 : 0;
          between[worker * n + region] += region != worker ? 8 : 0;
        }
      for (const Index index : s.exchanged) ++final_of[region_of(index)];
      REQUIRE(s.details.at("region_received").get<std::vector<std::uint64_t>>() == arrived);
      REQUIRE(sums.at("all_to_all counts") == 4 * n * (n - 1));
      const bool bert = std::string(variant) == "bert";
      // First all-to-all of values: entries to their regions. A second one balances.
      std::vector<const CollectiveCall*> entries;
      for (const CollectiveCall& call : s.exchange)
        if (call.operation == Operation::all_to_all && call.payload == "values") entries.push_back(&call);
      if (n > 1) REQUIRE(entries.size() == (bert && !sums.contains("all_reduce plan") ? 2 : 1));
      const std::vector<std::uint64_t> first = entries.front()->bytes_of_all(shape.workers);
      REQUIRE(std::accumulate(first.begin(), first.end(), std::uint64_t{0}) == 8 * outside);
      REQUIRE(entries.front()->parts.has_value() == (n > 1));
      if (n > 1) {
        REQUIRE(entries.front()->parts->bytes == between);
        for (std::size_t region = 0; region < n; ++region)
          REQUIRE(entries.front()->parts->ranges[region] == static_cast<std::uint64_t>(starts[region + 1] - starts[region]));
      }
      if (entries.size() == 2 && n > 1) {
        // After the moves everyone has as much as it gathers, and moves are from the sender's region.
        const PartnerBytes& moves = *entries.back()->parts;
        REQUIRE(moves.ranges_of_senders);
        const auto out = moves.sent(), in = moves.received();
        for (const CollectiveCall& call : s.exchange)
          if (call.operation == Operation::all_gather && call.payload == "indices")
            for (std::size_t worker = 0; worker < n; ++worker) {
              const std::uint64_t dealt = final_of[worker] + in[worker] / 8 - out[worker] / 8;
              REQUIRE(call.bytes_of_all(shape.workers)[worker] == 4 * dealt);
              REQUIRE((out[worker] == 0 || in[worker] == 0 || n > 2));
              REQUIRE(dealt <= united(s) / n + 1);
            }
      }
      const std::uint64_t gathered_bytes = sums.at("all_gather values") + (bert ? sums.at("all_gather indices") : 0);
      const bool first_iteration = sums.contains("all_reduce plan");
      if (first_iteration) {
        REQUIRE(sums.at("all_reduce plan") == 4 * n * (n - 1));
        REQUIRE(gathered_bytes >= 8 * united(s));  // all sums that are not zero
        REQUIRE(gathered_bytes <= 8 * total(s));
      } else if (n > 1) {
        REQUIRE(gathered_bytes == 8 * united(s));
      }
    });
}

TEST_CASE("TopkDSA sends what lies outside the own region and gathers the union, or everything") {
  for (const double density : {0.02, 0.2})
    replay(
        "topk_dsa", Json::object(),
        [&](const ReplayShape& shape, const Selection& s, const Sums& sums) {
          const auto n = static_cast<std::uint64_t>(shape.workers);
          const Index width = shape.gradients / shape.workers;
          std::uint64_t outside = 0;
          std::vector<std::uint64_t> between(n * n, 0);
          for (std::int64_t worker = 0; worker < shape.workers; ++worker)
            for (const Index index : s.selected[static_cast<std::size_t>(worker)]) {
              const Index region = std::min(index / width, shape.workers - 1);
              outside += region != worker ? 1 : 0;
              between[static_cast<std::size_t>(worker * shape.workers + region)] += region != worker ? 8 : 0;
            }
          if (n > 1) {
            REQUIRE(s.exchange.at(1).parts->bytes == between);
            REQUIRE(s.exchange.at(1).parts->ranges.back() == static_cast<std::uint64_t>(shape.gradients - (shape.workers - 1) * width));
          }
          const bool dense = 3 * united(s) > static_cast<std::uint64_t>(shape.gradients);
          Sums expected = {{"all_to_all counts", 4 * n * (n - 1)},
                           {"all_to_all values", 8 * outside},
                           {"all_gather counts", 4 * n},
                           {dense ? "all_gather gradient" : "all_gather values",
                            dense ? 4 * static_cast<std::uint64_t>(shape.gradients) : 8 * united(s)}};
          REQUIRE(sums == expected);
          REQUIRE(total(s) == n * static_cast<std::uint64_t>(shape.target_k));
        },
        density);
}

TEST_CASE("OmniReduce sends every block once to its aggregator and the union back") {
  replay("omnireduce", {{"block_elements", 16}, {"aggregators", 1}, {"threshold", 2.5}},
         [](const ReplayShape& shape, const Selection& s, const Sums&) {
           const auto n = static_cast<std::uint64_t>(shape.workers);
           const std::vector<std::uint64_t> sent = s.exchange.at(0).bytes_of_all(shape.workers);
           REQUIRE_FALSE(s.everything);
           REQUIRE(s.block_elements == 16);
           // Block b is worker b mod n's; the last one holds what is left.
           const auto bytes_of = [&](Index block) {
             return 4 + 4 * static_cast<std::uint64_t>(std::min<Index>(16, shape.gradients - 16 * block));
           };
           std::vector<std::uint64_t> between(n * n, 0), back(n, 0);
           for (std::size_t worker = 0; worker < n; ++worker) {
             std::uint64_t own = 0;
             for (const Index block : s.selected[worker]) {
               const std::size_t owner = static_cast<std::size_t>(block) % n;
               if (owner != worker) between[worker * n + owner] += bytes_of(block);
               own += owner != worker ? bytes_of(block) : 0;
             }
             REQUIRE(sent[worker] == own);
           }
           for (const Index block : s.exchanged) back[static_cast<std::size_t>(block) % n] += bytes_of(block);
           if (n > 1) REQUIRE(s.exchange.at(0).parts->bytes == between);
           REQUIRE(s.exchange.at(1).bytes_of_all(shape.workers) == back);
         });
}

TEST_CASE("OmniReduce's streams carry the same blocks, stretch by stretch") {
  for (const double threshold : {2.5, 0.0})  // some blocks, all of them
    replay("omnireduce", {{"block_elements", 16}, {"aggregators", 1}, {"threshold", threshold}, {"exchange", "streaming"}},
           [&](const ReplayShape& shape, const Selection& s, const Sums&) {
             REQUIRE(s.exchange.size() == 1);
             const CollectiveCall& call = s.exchange.front();
             REQUIRE(call.operation == Operation::sparse_all_reduce);
             REQUIRE(call.stream.has_value());
             REQUIRE(call.stream->aggregators == 1);
             const Index blocks = s.details.at("blocks").get<Index>();
             REQUIRE(s.everything == (threshold == 0));
             std::vector<Index> all(static_cast<std::size_t>(s.everything ? blocks : 0));
             std::iota(all.begin(), all.end(), Index{0});
             // Bytes of a list of blocks of 16 (the last: what is left), in every eighth of the blocks.
             const auto stretches_of = [&](const std::vector<Index>& list) {
               std::vector<std::uint64_t> bytes(8, 0);
               for (const Index block : list) {
                 std::size_t stretch = 0;
                 while (block >= blocks * static_cast<Index>(stretch + 1) / 8) ++stretch;
                 bytes[stretch] += 4 + 4 * static_cast<std::uint64_t>(std::min<Index>(16, shape.gradients - 16 * block));
               }
               return bytes;
             };
             for (std::size_t worker = 0; worker < static_cast<std::size_t>(shape.workers); ++worker) {
               REQUIRE(call.stream->sent_bytes[worker] == stretches_of(s.everything ? all : s.selected[worker]));
               const std::vector<std::uint64_t>& own = call.stream->sent_bytes[worker];
               REQUIRE(call.bytes[worker] == std::accumulate(own.begin(), own.end(), std::uint64_t{0}));
             }
             REQUIRE(call.stream->back_bytes == stretches_of(s.everything ? all : s.exchanged));
           });
}

TEST_CASE("Dense exchanges carry every gradient") {
  for (const auto& [name, parameters, bytes] : std::vector<std::tuple<std::string, Json, std::uint64_t>>{
           {"dense", Json::object(), 4}, {"dense", {{"bucket_bytes", 1000}}, 4}, {"dense_fp16", Json::object(), 2}})
    replay(name, parameters, [&, each = bytes](const ReplayShape& shape, const Selection& s, const Sums& sums) {
      REQUIRE(s.everything);
      REQUIRE(sums == Sums{{"all_reduce gradient", each * static_cast<std::uint64_t>(shape.workers * shape.gradients)}});
    });
}
