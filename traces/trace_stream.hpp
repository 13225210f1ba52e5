// Gradients from a pipe, iteration by iteration (docs/formats.md, Stream).
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "traces/expansion.hpp"
#include "traces/trace.hpp"

namespace sparscale::traces {

/// The first `workers` workers of a stream. gradient() and has() read on to the iteration asked for; earlier ones cannot be had again.
/// Holds one iteration.
class StreamSource final : public GradientSource {
 public:
  /// Reads the head of the stream; `name` is what messages call it. Errors: InputError (wrong head, more workers than the stream has).
  StreamSource(std::FILE* stream, std::string name, std::int64_t workers);
  ~StreamSource() override;
  const TraceInfo& info() const;
  /// Whether the stream has this iteration (0, 1, ...). Errors: InputError (wrong or incomplete frame, an iteration that was passed).
  bool has(std::int64_t iteration);
  /// Whether the stream is over and had no end mark, as when its writer was killed between two frames.
  bool cut() const;
  std::int64_t workers() const override;
  std::int64_t gradients() const override;
  std::int64_t position(std::int64_t iteration) const override { return iteration; }
  std::span<const float> gradient(std::int64_t iteration, std::int64_t worker) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparscale::traces
