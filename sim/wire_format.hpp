// How selected gradients are written on the wire: another encoding of the same exchange.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/json.hpp"
#include "sim/exchange.hpp"

namespace sparscale::sim {

struct WireFormat {
  enum class Value { fp32, fp16, bf16 };
  enum class Index { as_sent, int64, int32, bitmap, delta };
  Value value = Value::fp32;
  Index index = Index::as_sent;

  /// "fp32", "fp16" or "bf16" and "as_sent", "int64", "int32", "bitmap" or "delta". Errors: InputError.
  static WireFormat from_text(const std::string& value, const std::string& index);
  /// What the sparsifier sends, unchanged.
  bool is_plain() const { return value == Value::fp32 && index == Index::as_sent; }
};

/// Bytes of ascending indices when the first one, and from then on the distance to the one before minus 1, are written with 7 bits a byte
/// (LEB128). The first one counts from `begin`, the first gradient of what the list is from. Cost O(size).
std::uint64_t delta_bytes_of(std::span<const std::int64_t> indices, std::int64_t begin = 0);

/// Bytes of `selected` indices out of `range` gradients: 8 or 4 each; bitmap: a bit per gradient; delta: the most that delta_bytes_of can
/// give for so many indices. Errors: InputError when int32 cannot count the gradients or more are selected than there are.
std::uint64_t index_bytes(WireFormat::Index index, std::uint64_t selected, std::uint64_t range);

/// Lengths of delta-coded lists in encoded records: from the indices themselves, or bounds from above.
struct WireUse {
  bool values = false, indices = false;            // whether anything was rewritten
  bool delta_actual = false, delta_bound = false;  // which lengths were used
};

/// A replay record as it would be with this wire format: its exchange and its kernel work, nothing else. Indices (int32, int64) and entries
/// that carry their index are recoded, float32 values halved for fp16 and bf16. A padded all-gather pads to the longest of the recoded
/// blocks. Delta-coded lists have lengths that only their owner knows: a call of payload counts with 8 bytes each is put before them where
/// none stands there. Halving is charged as kernel cast_half of what is handed in before the call, and of what arrives after it; coding of
/// indices is not charged. Dense gradients, counts, plans and blocks stay as they are. `gradients`: N. Errors: as index_bytes; InputError
/// for a bitmap where an exchange gathers several lists and does not say which gradients each is from.
Json encoded_record(const Json& record, const WireFormat& format, std::uint64_t gradients, WireUse& use);

}  // namespace sparscale::sim
