// The sparsifier interface. To add one: write one file in sim/sparsifiers/, add one line to sim/sparsifiers/registry.cpp
// (docs/adding-a-sparsifier.md).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "kernels/kernels.hpp"
#include "sim/exchange.hpp"
#include "traces/trace.hpp"

namespace sparscale::sim {

using kernels::Index;

/// The accumulators a = e + g of all workers, handed out by range.
class AccumulatorView {
 public:
  virtual ~AccumulatorView() = default;
  /// values [begin, end) of one worker; valid until the next call.
  virtual std::span<const float> range(std::int64_t worker, Index begin, Index end) const = 0;
};

/// What does not change during a replay.
struct ReplayShape {
  std::int64_t workers = 0;  // n
  Index gradients = 0;       // N
  double density = 0;        // d
  Index target_k = 0;        // trunc(d * N) in double
  std::uint64_t seed = 1;
  std::vector<traces::Layer> layers;
};

/// Kernel time that a worker spends: which operation, over how many elements, with how many selected, and before which call of the exchange
/// (its index; the number of calls for work after the last one).
struct KernelWork {
  std::string operation;  // as in kernel profiles
  Index elements = 0;
  Index selected = 0;
  std::int64_t before_call = 0;
};

/// Which accumulator entries become zero; what is left is the next residual.
enum class ResidualRule { at_exchanged, at_own_selection, none };

/// What one iteration selected and sent.
struct Selection {
  std::vector<std::vector<Index>> selected;  // I_r per worker, ascending
  std::vector<Index> exchanged;              // union of what is exchanged, ascending
  std::vector<double> threshold;             // empty, one for all, or one per worker
  Exchange exchange;
  std::vector<std::vector<KernelWork>> work;  // one list per worker, or one list for all
  ResidualRule residual_rule = ResidualRule::at_exchanged;
  Json details = Json::object();  // further keys of the record (partitions, leader, ...)
};

class Sparsifier {
 public:
  virtual ~Sparsifier() = default;
  /// One iteration. `iteration` counts 0, 1, 2, ...
  virtual Selection select(std::int64_t iteration, const AccumulatorView& accumulators, const kernels::Kernels& kernels) = 0;
};

struct Parameter {
  std::string name;
  Json default_value;
  std::string range;  // for people: "code | intended", "4 | 8", "> 0"
  std::string meaning;
  Json schema;  // JSON Schema of one value
};

struct SparsifierInfo {
  std::string name, title, paper, rule, exchange, cost;
  std::vector<Parameter> parameters;
  /// Dense exchanges keep no residual and select nothing.
  bool dense = false;
  /// Makes one replay's state. `values` has every parameter of `parameters`, checked.
  std::function<std::unique_ptr<Sparsifier>(const ReplayShape& shape, const Json& values)> make;
};

/// All sparsifiers, in the order in which they are listed.
const std::vector<SparsifierInfo>& sparsifiers();
/// Errors: InputError listing the names.
const SparsifierInfo& find_sparsifier(const std::string& name);
/// Defaults overridden by `given`. Errors: InputError on an unknown parameter or a value outside its range; `place` is where `given`
/// stands.
Json resolve_parameters(const SparsifierInfo& info, const Json& given, const std::string& file, const std::string& place);

}  // namespace sparscale::sim
