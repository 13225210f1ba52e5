// Virtual workers: the gradients of n workers out of W captured ones (docs/expansion.md).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "traces/trace.hpp"

namespace sparscale::traces {

/// An order of a gradient's elements that is not the model's.
struct ElementOrder {
  std::vector<std::int32_t> element;  // [N]: which element stands at place p
  std::vector<std::int32_t> place;    // [N]: where element i stands
  std::vector<std::int64_t> bounds;   // ascending, from 0 to N: between two of these stand the same elements as in the model's order
};

/// Elements of a gradient that need not be written down: mean[i] + (sign * deviation[i]) * values[i], each product and sum rounded.
struct GradientForm {
  const float* values = nullptr;
  const float* mean = nullptr;
  const float* deviation = nullptr;
  float sign = 1;
};

/// Gradients of n workers, iteration by iteration. Not thread safe; one per thread (clone).
class GradientSource {
 public:
  virtual ~GradientSource() = default;
  virtual std::int64_t workers() const = 0;
  virtual std::int64_t gradients() const = 0;
  /// The gradient of `worker` in replay iteration `iteration` (0, 1, ...), N floats. The span is valid until the next call. Depends on the
  /// arguments and the seed only, not on the order of calls.
  virtual std::span<const float> gradient(std::int64_t iteration, std::int64_t worker) = 0;
  /// Elements [begin, end) of that gradient; valid until the next call. Worth it where by_pieces() is true: only the piece is made, so that
  /// it can be used while it is in cache.
  virtual std::span<const float> piece(std::int64_t iteration, std::int64_t worker, std::int64_t begin, std::int64_t end);
  virtual bool by_pieces() const { return false; }
  /// What piece() would hand out, as a form of memory that does not change, where it has one and is known to be finite; else false.
  virtual bool form(std::int64_t /*iteration*/, std::int64_t /*worker*/, std::int64_t /*begin*/, std::int64_t /*end*/,
                    GradientForm& /*form*/) {
    return false;
  }
  /// The order in which gradient() and piece() hand out elements; null: the model's. [begin, end) of piece() are places in it.
  virtual const ElementOrder* order() const { return nullptr; }
  /// Whether all gradients are known to be finite.
  virtual bool known_finite() const { return false; }
  /// Whether the memory that gradients are handed out from never changes: what was looked at once need not be again.
  virtual bool lies_ready() const { return false; }
  /// The same gradients for another thread, sharing what does not change; null when there is no second one (streams).
  virtual std::unique_ptr<GradientSource> clone() const { return nullptr; }
  /// Window position (0..T-1) that replay iteration `iteration` stands for.
  virtual std::int64_t position(std::int64_t iteration) const = 0;
};

struct ExpansionOptions {
  std::string method = "auto";  // auto, captured, boot, hybrid, shift
  std::int64_t workers = 0;     // n
  std::int64_t captured = 0;    // use the first so many captured workers; 0 = all
  std::uint64_t seed = 1;
  bool any_order = false;  // gradients may come in the order in which they are made fastest (GradientSource::order)
};

/// What was done, for the result.
struct ExpansionChoice {
  std::string method;         // captured, boot, hybrid or shift: never auto
  std::int64_t captured = 0;  // captured workers used
  double ratio = 1.0;         // n / captured
  std::int64_t pool = 0;      // captured x T: distinct samples available to boot
  bool validated = true;      // inside the range that was compared with captured workers
  std::vector<std::string> warnings;
};

/// Chooses and checks the method. Errors: InputError (unknown method, captured out of range, boot without a sample per worker).
ExpansionChoice choose_expansion(const Trace& trace, const ExpansionOptions& options);

/// Upper bound of the memory that make_gradient_source() and its gradients take, in bytes (decoded trace, tables of hybrid).
std::uint64_t expansion_memory_bytes(const Trace& trace, const ExpansionOptions& options);

/// The gradients themselves. `generate_all` makes every worker by the method, also those that were captured (self-check).
std::unique_ptr<GradientSource> make_gradient_source(const Trace& trace, const ExpansionOptions& options, bool generate_all = false);

}  // namespace sparscale::traces
