// A dense exchange cut into pieces of the gradient.
#pragma once

#include "sim/timelines/wait_free.hpp"

namespace sparscale::sim {

class DenseGradient {
 public:
  /// The record of a dense exchange (is_dense_record), whose calls and kernels cover the whole gradient together. Errors: RunError when the
  /// bytes are no multiple of the elements of the options' layers.
  DenseGradient(const Json& record, TimelineContext& context);
  std::int64_t elements() const { return elements_; }
  std::uint64_t bytes(std::int64_t elements) const { return static_cast<std::uint64_t>(elements) * bytes_per_element_; }
  /// One all-reduce of elements [begin, begin + elements), with the casts that belong to it.
  Piece piece(std::int64_t begin, std::int64_t elements) const;

 private:
  const Json& record_;
  TimelineContext& context_;
  CollectiveCall call_;
  std::int64_t elements_ = 0;
  std::uint64_t bytes_per_element_ = 4;
};

}  // namespace sparscale::sim
