#include "sim/wire_format.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "sim/sparsifier.hpp"

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

std::uint64_t delta_bytes_of(std::span<const std::int64_t> indices, std::int64_t begin) {
  std::uint64_t bytes = 0;
  std::int64_t next = begin;  // the lowest index that can follow
  for (const std::int64_t index : indices) {
    for (auto distance = static_cast<std::uint64_t>(index - next); distance >= 128; distance >>= 7) ++bytes;
    ++bytes;
    next = index + 1;
  }
  return bytes;
}

std::uint64_t index_bytes(WireFormat::Index index, std::uint64_t selected, std::uint64_t range) {
  if (selected > range) throw InputError("selected indices", "at most " + std::to_string(range), std::to_string(selected));
  switch (index) {
    case WireFormat::Index::int32:
      if (range > std::uint64_t{1} << 31)
        throw InputError("index encoding", "int64, as int32 counts up to 2147483648 gradients", "int32 for " + std::to_string(range));
      return checked_multiply(selected, 4, "indices");
    case WireFormat::Index::bitmap:
      return range / 8 + (range % 8 != 0 ? 1 : 0);
    case WireFormat::Index::delta: {
      // A distance of 2^(7 j) or more takes j further bytes, and as distances add up to `range` at most, range / 2^(7 j) of them can.
      std::uint64_t bytes = selected;
      for (std::uint64_t rest = range >> 7; rest > 0; rest >>= 7) bytes += std::min(selected, rest);
      return bytes;
    }
    case WireFormat::Index::as_sent:
    case WireFormat::Index::int64:
      break;
  }
  return checked_multiply(selected, 8, "indices");
}

namespace {

std::uint64_t width_of(const std::string& dtype) {
  return dtype == "int64" || dtype == "float64" ? 8 : dtype == "int32" || dtype == "float32" ? 4 : 0;
}

// Entries of several values behind one offset.
bool carries_blocks(const CollectiveCall& call) { return call.dtype == "float32" && call.entry_value_bytes > 4; }

// One call, recoded. Knows how many entries every worker handed in, for the casts.
class Recoder {
 public:
  Recoder(const WireFormat& format, std::uint64_t gradients, std::size_t lists) : format_(format), gradients_(gradients), lists_(lists) {}

  bool recodes_indices(const CollectiveCall& call) const {
    if (format_.index == WireFormat::Index::as_sent) return false;
    return (call.payload == "indices" && width_of(call.dtype) > 0) || call.entry_index_bytes > 0;
  }
  bool recodes_values(const CollectiveCall& call) const {
    if (format_.value == WireFormat::Value::fp32) return false;
    if (carries_blocks(call)) return true;
    if (call.payload != "values") return false;
    return call.entry_index_bytes > 0 ? call.entry_value_bytes > 2 : call.dtype == "float32";
  }

  // Entries of every worker (or one number for all): what `bytes_unpadded` says where there is padding. Of blocks, their values.
  std::vector<std::uint64_t> entries_of(const CollectiveCall& call) const {
    if (carries_blocks(call)) {
      std::vector<std::uint64_t> values = call.bytes;
      for (std::uint64_t& one : values) one = (one - offsets_of_blocks(call, one)) / 4;
      return values;
    }
    const std::uint64_t each = call.entry_index_bytes > 0 ? call.entry_index_bytes + call.entry_value_bytes : width_of(call.dtype);
    std::vector<std::uint64_t> entries = call.bytes_unpadded.empty() ? call.bytes : call.bytes_unpadded;
    for (std::uint64_t& one : entries) one /= each;
    return entries;
  }

  CollectiveCall recoded(const CollectiveCall& call, WireUse& use) const {
    const bool indices = recodes_indices(call), values = recodes_values(call);
    if (!indices && !values) return call;
    use.indices |= indices;
    use.values |= values;
    CollectiveCall made = call;
    const bool told = call.index_range > 0 || (call.parts && !call.parts->ranges.empty()) || carries_blocks(call);
    if (indices && format_.index == WireFormat::Index::bitmap && !told && lists_ > 1)
      throw InputError("index encoding",
                       "as_sent, int32, int64 or delta, as the exchange has " + std::to_string(lists_) +
                           " lists of indices and does not say which gradients each is from",
                       "bitmap");
    const std::uint64_t range = range_of(call);
    if (call.stream || call.parts || carries_blocks(call)) {
      use.delta_bound |= indices && format_.index == WireFormat::Index::delta;
      const auto recode = [&](std::uint64_t bytes, std::uint64_t of) { return recoded_bytes(call, bytes, of, indices, values); };
      if (call.stream) {
        const std::uint64_t stretches = made.stream->back_bytes.size();
        for (std::uint64_t i = 0; i < stretches; ++i) {
          const std::uint64_t of = range * (i + 1) / stretches - range * i / stretches;
          for (auto& own : made.stream->sent_bytes) own[i] = recode(own[i], of);
          made.stream->back_bytes[i] = recode(made.stream->back_bytes[i], of);
        }
        made.bytes.clear();
        for (const auto& own : made.stream->sent_bytes) made.bytes.push_back(std::accumulate(own.begin(), own.end(), std::uint64_t{0}));
      } else if (call.parts) {
        const std::size_t n = made.parts->workers();
        for (std::size_t i = 0; i < n * n; ++i)
          if (i / n != i % n)
            made.parts->bytes[i] = recode(made.parts->bytes[i], made.parts->ranges.empty() ? range : made.parts->range(i / n, i % n));
        made.parts->ranges.clear();
        made.bytes = made.parts->sent();
      } else {
        for (std::uint64_t& one : made.bytes) one = recode(one, range);
      }
      made.entry_index_bytes = made.entry_value_bytes = made.index_range = 0;
      made.dtype = "uint8";
      return made;
    }
    std::vector<std::uint64_t> sizes = entries_of(call);
    const bool delta = indices && format_.index == WireFormat::Index::delta, actual = delta && !call.delta_bytes.empty();
    if (delta) (actual ? use.delta_actual : use.delta_bound) = true;
    if (actual && sizes.size() == 1) sizes.resize(call.delta_bytes.size(), sizes.front());
    const std::uint64_t value_bytes = call.entry_index_bytes > 0 ? (values ? 2 : call.entry_value_bytes) : values ? 2 : 0;
    const bool has_indices = call.payload == "indices" || call.entry_index_bytes > 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const std::uint64_t count = sizes[i];
      std::uint64_t bytes = checked_multiply(count, value_bytes, "values");
      if (indices)
        bytes += actual ? call.delta_bytes[i] : index_bytes(format_.index, count, range);
      else if (has_indices)
        bytes += count * call.entry_index_bytes;
      sizes[i] = bytes;
    }
    made.bytes = sizes;
    made.bytes_unpadded.clear();
    made.delta_bytes.clear();
    // What was padded stays so; equal lists whose codes differ in length must be padded too.
    const bool equal_before = call.bytes.size() == 1,
               differ = std::any_of(sizes.begin(), sizes.end(), [&](auto size) { return size != sizes.front(); });
    if (!call.bytes_unpadded.empty() || (call.operation == Operation::all_gather && equal_before && differ)) {
      made.bytes_unpadded = sizes;
      made.bytes = {*std::max_element(sizes.begin(), sizes.end())};
    }
    if (call.payload == "indices")
      made.dtype = format_.index == WireFormat::Index::int64 ? "int64" : format_.index == WireFormat::Index::int32 ? "int32" : "uint8";
    else if (call.entry_index_bytes > 0)
      made.dtype = "uint8";
    else
      made.dtype = format_.value == WireFormat::Value::fp16 ? "float16" : "bfloat16";
    made.entry_index_bytes = made.entry_value_bytes = made.index_range = 0;
    return made;
  }

 private:
  // What the indices of a list count: gradients or blocks.
  std::uint64_t range_of(const CollectiveCall& call) const {
    if (call.index_range > 0) return call.index_range;
    const std::uint64_t each = carries_blocks(call) ? call.entry_value_bytes / 4 : 1;
    return (gradients_ + each - 1) / each;
  }

  // So many bytes of entries or blocks, of a list of which `range` says where it is from.
  std::uint64_t recoded_bytes(const CollectiveCall& call, std::uint64_t bytes, std::uint64_t range, bool indices, bool values) const {
    const bool blocks = carries_blocks(call);
    const std::uint64_t offsets = offsets_of_blocks(call, bytes), entry = call.entry_index_bytes + call.entry_value_bytes;
    const std::uint64_t count = blocks ? offsets / call.entry_index_bytes : bytes / entry;
    const std::uint64_t width = call.dtype == "float64" ? 8 : 4, held = blocks ? bytes - offsets : count * call.entry_value_bytes;
    // Counts that a sample stands for are rounded: no more than there are.
    return (values ? held / width * 2 : held) +
           (indices ? index_bytes(format_.index, std::min(count, range), range) : count * call.entry_index_bytes);
  }

  // The bytes among these that say where blocks stand; the last block may be shorter than the others.
  static std::uint64_t offsets_of_blocks(const CollectiveCall& call, std::uint64_t bytes) {
    const std::uint64_t block = call.entry_index_bytes + call.entry_value_bytes;
    return std::min(bytes, (bytes + block - 1) / block * call.entry_index_bytes);
  }

  const WireFormat& format_;
  std::uint64_t gradients_;
  std::size_t lists_;
};

}  // namespace

Json encoded_record(const Json& record, const WireFormat& format, std::uint64_t gradients, WireUse& use) {
  if (format.is_plain()) return record;
  const auto workers = record.at("workers").get<std::int64_t>();
  const auto n = static_cast<std::size_t>(workers);
  std::vector<CollectiveCall> calls;
  for (const Json& call : record.at("exchange")) calls.push_back(CollectiveCall::from_json(call, workers));
  // A list of a piece is from its gradients.
  if (record.contains("piece_sizes"))
    for (CollectiveCall& call : calls)
      if (call.piece >= 0 && call.index_range == 0 && (call.payload == "indices" || call.entry_index_bytes > 0))
        call.index_range = record.at("piece_sizes").at(static_cast<std::size_t>(call.piece)).get<std::uint64_t>();
  std::vector<std::vector<KernelWork>> work = work_from_json(record.at("work"), workers);
  if (work.size() == 1 && n > 1) work.assign(n, work.front());
  const auto lists = static_cast<std::size_t>(
      std::count_if(calls.begin(), calls.end(), [](const auto& call) { return call.payload == "indices" || call.entry_index_bytes > 0; }));
  const Recoder recoder(format, gradients, lists);
  Json exchange = Json::array();
  std::vector<std::vector<KernelWork>> new_work(n);
  const auto move_work = [&](std::int64_t from, std::int64_t to) {
    for (std::size_t worker = 0; worker < n; ++worker)
      for (KernelWork item : work[worker])
        if (item.before_call == from) {
          item.before_call = to;
          new_work[worker].push_back(std::move(item));
        }
  };
  const auto cast = [&](const std::vector<std::uint64_t>& elements, std::int64_t before_call, std::int64_t piece) {
    for (std::size_t worker = 0; worker < n; ++worker) {
      const auto count = static_cast<Index>(elements[elements.size() == 1 ? 0 : worker]);
      if (count > 0) new_work[worker].push_back({"cast_half", count, count, before_call, piece});
    }
  };
  std::vector<std::uint64_t> arrived;  // halved values of the call before, to be widened
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const CollectiveCall& call = calls[i];
    if (!arrived.empty()) cast(arrived, std::ssize(exchange), calls[i - 1].piece);
    arrived.clear();
    move_work(static_cast<std::int64_t>(i), std::ssize(exchange));
    if (recoder.recodes_values(call)) {
      const std::vector<std::uint64_t> entries = recoder.entries_of(call);
      // A broadcast's root alone narrows; who gets lists of all widens them all.
      if (call.operation == Operation::broadcast) {
        std::vector<std::uint64_t> of_root(n, 0);
        of_root[static_cast<std::size_t>(call.root)] = entries.front();
        cast(of_root, std::ssize(exchange), call.piece);
      } else {
        cast(entries, std::ssize(exchange), call.piece);
      }
      arrived = entries;
      if (call.operation == Operation::all_gather) {
        const std::uint64_t all = entries.size() == 1 ? checked_multiply(entries.front(), n, "values of all workers")
                                                      : std::accumulate(entries.begin(), entries.end(), std::uint64_t{0});
        arrived = {all};
      }
      if (call.parts) {
        CollectiveCall comes = call;
        comes.bytes = call.parts->received();
        arrived = recoder.entries_of(comes);
      }
      if (call.operation == Operation::sparse_all_reduce && call.stream) {
        std::uint64_t back = 0;
        for (const std::uint64_t stretch : call.stream->back_bytes) back += stretch;
        CollectiveCall sum = call;
        sum.bytes = {back};
        arrived = recoder.entries_of(sum);
      }
      if (call.operation == Operation::reduce) {  // a list for every round in which a worker receives (reduce binomial)
        arrived.assign(n, 0);
        for (std::size_t distance = 1; distance < n; distance *= 2)
          for (std::size_t worker = 0; worker + distance < n; worker += 2 * distance) arrived[worker] += entries.front();
      }
    }
    const bool lengths_vary = format.index == WireFormat::Index::delta && recoder.recodes_indices(call) &&
                              (call.operation == Operation::all_gather || call.operation == Operation::broadcast);
    if (lengths_vary && (i == 0 || calls[i - 1].payload != "counts")) {
      CollectiveCall lengths;
      lengths.operation = call.operation == Operation::broadcast ? Operation::broadcast : Operation::all_gather;
      lengths.root = call.root;
      lengths.piece = call.piece;
      lengths.payload = "counts";
      lengths.dtype = "int64";
      lengths.bytes = {8};
      lengths.piece = call.piece;
      exchange.push_back(lengths.to_json());
    }
    exchange.push_back(recoder.recoded(call, use).to_json());
  }
  if (!arrived.empty()) cast(arrived, std::ssize(exchange), calls.back().piece);
  move_work(std::ssize(calls), std::ssize(exchange));
  Json made = record;
  made["exchange"] = std::move(exchange);
  made["work"] = work_to_json(new_work, workers);
  return made;
}

}  // namespace sparscale::sim
