#include "sim/wire_format.hpp"

#include <cmath>

#include "base/checked.hpp"
#include "base/error.hpp"

namespace sparscale::sim {

WireFormat WireFormat::from_text(const std::string& value, const std::string& index) {
  WireFormat format;
  if (value == "fp32")
    format.value = Value::fp32;
  else if (value == "fp16")
    format.value = Value::fp16;
  else if (value == "bf16")
    format.value = Value::bf16;
  else
    throw InputError("value format", "one of fp32, fp16, bf16", "\"" + value + "\"");
  if (index == "as_sent")
    format.index = Index::as_sent;
  else if (index == "int64")
    format.index = Index::int64;
  else if (index == "int32")
    format.index = Index::int32;
  else if (index == "bitmap")
    format.index = Index::bitmap;
  else if (index == "delta")
    format.index = Index::delta;
  else
    throw InputError("index format", "one of as_sent, int64, int32, bitmap, delta", "\"" + index + "\"");
  return format;
}

std::uint64_t index_bytes(WireFormat::Index index, std::uint64_t selected, std::uint64_t gradients) {
  if (selected > gradients) throw InputError("selected indices", "at most " + std::to_string(gradients), std::to_string(selected));
  switch (index) {
    case WireFormat::Index::int32:
      if (gradients > std::uint64_t{1} << 31)
        throw InputError("index format", "int64, as int32 counts up to 2147483648 gradients", "int32 for " + std::to_string(gradients));
      return checked_multiply(selected, 4, "indices");
    case WireFormat::Index::bitmap:
      return gradients / 8 + (gradients % 8 != 0 ? 1 : 0);
    case WireFormat::Index::delta: {
      if (selected == 0) return 0;
      const double k = static_cast<double>(selected), bits = k * (std::log2(static_cast<double>(gradients) / k) + 2);
      return static_cast<std::uint64_t>(std::ceil(bits / 8));
    }
    case WireFormat::Index::as_sent:
    case WireFormat::Index::int64:
      break;
  }
  return checked_multiply(selected, 8, "indices");
}

Exchange encoded(Exchange exchange, const WireFormat& format, std::uint64_t gradients) {
  for (CollectiveCall& call : exchange) {
    const bool wide = call.dtype == "int64";
    if (call.payload == "indices" && (wide || call.dtype == "int32") && format.index != WireFormat::Index::as_sent) {
      for (std::vector<std::uint64_t>* const sizes : {&call.bytes, &call.bytes_unpadded})
        for (std::uint64_t& bytes : *sizes) bytes = index_bytes(format.index, bytes / (wide ? 8 : 4), gradients);
      call.dtype = format.index == WireFormat::Index::int64 ? "int64" : format.index == WireFormat::Index::int32 ? "int32" : "uint8";
    }
    if (call.payload == "values" && call.dtype == "float32" && format.value != WireFormat::Value::fp32) {
      for (std::vector<std::uint64_t>* const sizes : {&call.bytes, &call.bytes_unpadded})
        for (std::uint64_t& bytes : *sizes) bytes /= 2;
      call.dtype = format.value == WireFormat::Value::fp16 ? "float16" : "bfloat16";
    }
  }
  return exchange;
}

}  // namespace sparscale::sim
