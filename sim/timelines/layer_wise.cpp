// Layer by layer: what belongs to a piece of the gradient - a layer, or a bucket of layers - is selected and exchanged as soon as the
// backward pass is through with it, while the rest is still computed. For sparsifiers that go by layer or bucket (parameter scope); a
// global selection has to wait for the last gradient and is refused. Dense gradients go layer by layer as well. Source: the wait-free
// backpropagation of Poseidon (Zhang et al., USENIX ATC 2017) with a selection before each call; design: specification of layer-wise
// selection in docs/timeline.md.
#include <algorithm>
#include <map>

#include "base/error.hpp"
#include "sim/sparsifier.hpp"
#include "sim/timelines/dense_pieces.hpp"
#include "sim/timelines/wait_free.hpp"

namespace sparscale::sim {
namespace {

constexpr std::int64_t whole = -1;  // calls and kernels of no piece

std::vector<Piece> pieces_of(const Json& record, TimelineContext& context) {
  const auto sizes = record.at("piece_sizes").get<std::vector<std::int64_t>>();
  const auto n = static_cast<std::size_t>(context.workers());
  std::int64_t all = 0;
  std::vector<std::int64_t> begins;
  for (const std::int64_t size : sizes) {
    begins.push_back(all);
    all += size;
  }
  const auto piece_of = [&](const Json& one) {
    const std::int64_t piece = one.value("piece", whole);
    if (piece != whole && (piece < 0 || piece >= std::ssize(sizes)))
      throw InputError("replay record", "/piece", "a piece, 0 to " + std::to_string(sizes.size() - 1), std::to_string(piece));
    return piece;
  };
  std::map<std::int64_t, std::vector<std::int64_t>> calls;  // piece -> its calls, in order
  std::map<std::int64_t, Piece> pieces;
  std::int64_t number = 0;
  for (const Json& entry : record.at("exchange")) {
    Piece& piece = pieces[piece_of(entry)];
    piece.calls.push_back({{}, CollectiveCall::from_json(entry, context.workers())});
    calls[piece_of(entry)].push_back(number++);
  }
  const auto add = [&](std::int64_t of, std::int64_t before_call, Kernel kernel) {
    const std::vector<std::int64_t>& numbers = calls[of];
    const auto next = std::lower_bound(numbers.begin(), numbers.end(), before_call);
    Piece& piece = pieces[of];
    if (next == numbers.end())
      piece.after.push_back(std::move(kernel));
    else
      piece.calls[static_cast<std::size_t>(next - numbers.begin())].before.push_back(std::move(kernel));
  };
  // What precedes the pieces' own kernels and covers the whole gradient (accumulating) is shared out by elements.
  bool has_pieces = false;
  for (const Json& item : record.at("work")) has_pieces = has_pieces || item.contains("piece");
  for (const Json& item : record.at("work")) {
    const auto operation = item.at("operation").get<std::string>();
    const auto before_call = item.at("before_call").get<std::int64_t>();
    const std::int64_t of = piece_of(item);
    Kernel kernel{operation, std::vector<double>(n)};
    for (std::size_t worker = 0; worker < n; ++worker)
      kernel.work_s[worker] =
          context.kernel_s(worker, operation, number_of(item.at("elements"), worker), number_of(item.at("selected"), worker));
    if (of != whole || operation != "accumulate" || !has_pieces || before_call != 0) {
      add(of, before_call, std::move(kernel));
      continue;
    }
    for (std::size_t piece = 0; piece < sizes.size(); ++piece) {
      Kernel part = kernel;
      for (double& work_s : part.work_s) work_s *= static_cast<double>(sizes[piece]) / static_cast<double>(all);
      add(static_cast<std::int64_t>(piece),
          calls[static_cast<std::int64_t>(piece)].empty() ? 0 : calls[static_cast<std::int64_t>(piece)].front(), std::move(part));
    }
  }
  // From the end of the gradient to its beginning; what covers the whole comes last.
  std::vector<Piece> in_order;
  for (std::size_t piece = sizes.size(); piece-- > 0;) {
    Piece& one = pieces[static_cast<std::int64_t>(piece)];
    one.begin = begins[piece];
    in_order.push_back(std::move(one));
  }
  if (pieces.contains(whole)) {
    in_order.push_back(std::move(pieces[whole]));
    in_order.back().joins = true;
  }
  return in_order;
}

class LayerWise : public TimelineMode {
 public:
  void time(const Json& record, TimelineContext& context) override {
    if (record.contains("piece_sizes")) {
      run_wait_free(pieces_of(record, context), context);
      return;
    }
    if (!is_dense_record(record))
      throw InputError("replay record", "", "the key piece_sizes, as the timeline is layer_wise", "no such key");
    const DenseGradient gradient(record, context);
    std::vector<Piece> pieces;
    std::int64_t begin = gradient.elements();
    for (std::size_t l = context.options().layers.size(); l-- > 0;) {
      const std::int64_t elements = context.options().layers[l].elements;
      begin -= elements;
      if (elements > 0) pieces.push_back(gradient.piece(begin, elements));
    }
    run_wait_free(pieces, context);
  }
};

std::string refused(const std::string& sparsifier, const Json& parameters) {
  const SparsifierInfo& info = find_sparsifier(sparsifier);
  if (info.dense || (info.exchanges_by_scope && parameters.at("scope") != "global")) return "";
  std::string names;
  for (const SparsifierInfo& other : sparsifiers())
    if (other.exchanges_by_scope) names += (names.empty() ? "" : ", ") + other.name;
  return "a sparsifier that selects layer by layer: " + names + " with scope layer or bucket, or a dense exchange";
}

}  // namespace

TimelineModeInfo layer_wise_timeline() {
  return {"layer_wise",
          "Every layer or bucket is selected and exchanged as soon as it is there",
          "wait-free backpropagation: Zhang et al., USENIX ATC 2017",
          {"streams", "overlap_slowdown", "layer_times"},
          false,
          true,
          refused,
          [] { return std::unique_ptr<TimelineMode>(std::make_unique<LayerWise>()); },
          16};
}

}  // namespace sparscale::sim
