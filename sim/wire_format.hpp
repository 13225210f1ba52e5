// How selected gradients are written on the wire: another encoding of the same exchange.
#pragma once

#include <cstdint>
#include <string>

#include "sim/exchange.hpp"

namespace sparscale::sim {

struct WireFormat {
  enum class Value { fp32, fp16, bf16 };
  enum class Index { as_sent, int64, int32, bitmap, delta };
  Value value = Value::fp32;
  Index index = Index::as_sent;

  /// "fp32", "fp16" or "bf16" and "as_sent", "int64", "int32", "bitmap" or "delta". Errors: InputError.
  static WireFormat from_text(const std::string& value, const std::string& index);
};

/// Bytes of `selected` indices out of `gradients`: 8 or 4 each; bitmap: a bit per gradient; delta: log2(gradients / selected) + 2 bits per
/// index, what variable-length coded distances take (modelled). Errors: InputError when int32 cannot count the gradients or more are
/// selected than there are.
std::uint64_t index_bytes(WireFormat::Index index, std::uint64_t selected, std::uint64_t gradients);

/// The exchange with its calls of payload indices (int32, int64) and of payload values (float32) rewritten. Dense gradients, counts and
/// plans stay as they are. Errors: as index_bytes.
Exchange encoded(Exchange exchange, const WireFormat& format, std::uint64_t gradients);

}  // namespace sparscale::sim
