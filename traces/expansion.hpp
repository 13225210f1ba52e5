// Virtual workers: the gradients of n workers out of W captured ones (docs/expansion.md).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "traces/trace.hpp"

namespace sparscale::traces {

/// Gradients of n workers, iteration by iteration. Not thread safe; one per replay.
class GradientSource {
 public:
  virtual ~GradientSource() = default;
  virtual std::int64_t workers() const = 0;
  virtual std::int64_t gradients() const = 0;
  /// The gradient of `worker` in replay iteration `iteration` (0, 1, ...), N floats. The span is valid until the next call. Depends on the
  /// arguments and the seed only, not on the order of calls.
  virtual std::span<const float> gradient(std::int64_t iteration, std::int64_t worker) = 0;
  /// Window position (0..T-1) that replay iteration `iteration` stands for.
  virtual std::int64_t position(std::int64_t iteration) const = 0;
};

struct ExpansionOptions {
  std::string method = "auto";  // auto, captured, boot, hybrid, shift
  std::int64_t workers = 0;     // n
  std::int64_t captured = 0;    // use the first so many captured workers; 0 = all
  std::uint64_t seed = 1;
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
