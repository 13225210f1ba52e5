#include "sim/exchange.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/error.hpp"

namespace sparscale::sim {
namespace {

constexpr std::array<std::pair<Operation, const char*>, 8> operation_names{{{Operation::all_gather, "all_gather"},
                                                                            {Operation::all_reduce, "all_reduce"},
                                                                            {Operation::reduce_scatter, "reduce_scatter"},
                                                                            {Operation::broadcast, "broadcast"},
                                                                            {Operation::reduce, "reduce"},
                                                                            {Operation::all_to_all, "all_to_all"},
                                                                            {Operation::gossip, "gossip"},
                                                                            {Operation::sparse_all_reduce, "sparse_all_reduce"}}};

Json bytes_to_json(const std::vector<std::uint64_t>& bytes) {
  const bool equal = std::all_of(bytes.begin(), bytes.end(), [&](std::uint64_t b) { return b == bytes.front(); });
  return equal && !bytes.empty() ? Json(bytes.front()) : Json(bytes);
}

// Bytes of a call: a number, or one per worker.
std::vector<std::uint64_t> bytes_from_json(const Json& json, const std::string& key, std::int64_t workers) {
  const std::string place = "exchange call /" + key;
  const Json& value = json.at(key);
  std::vector<std::uint64_t> bytes;
  for (const Json& one : value.is_array() ? value : Json::array({value})) {
    if (!one.is_number_unsigned()) throw InputError(place, "a whole number >= 0 or one per worker", brief(one));
    bytes.push_back(one.get<std::uint64_t>());
  }
  if (value.is_array() && static_cast<std::int64_t>(bytes.size()) != workers)
    throw InputError(place, std::to_string(workers) + " numbers, one per worker", std::to_string(bytes.size()));
  return bytes;
}

std::string text_from_json(const Json& json, const std::string& key) {
  if (!json.contains(key) || !json.at(key).is_string())
    throw InputError("exchange call", "the key \"" + key + "\" with a text", json.contains(key) ? brief(json.at(key)) : "no such key");
  return json.at(key).get<std::string>();
}

}  // namespace

std::string operation_name(Operation operation) {
  for (const auto& [value, name] : operation_names)
    if (value == operation) return name;
  throw RunError("an operation without a name");
}

Operation operation_from_name(const std::string& name) {
  std::string list;
  for (const auto& [value, known] : operation_names) {
    if (name == known) return value;
    list += (list.empty() ? "one of " : ", ") + std::string(known);
  }
  throw InputError("operation", list, "\"" + name + "\"");
}

Json CollectiveCall::to_json() const {
  Json json = {{"op", operation_name(operation)}, {"payload", payload}, {"dtype", dtype}, {"bytes", bytes_to_json(bytes)}};
  if (!bytes_unpadded.empty()) json["bytes_unpadded"] = bytes_to_json(bytes_unpadded);
  if (operation == Operation::broadcast) json["root"] = root;
  if (entry_index_bytes > 0) json["entry"] = {entry_index_bytes, entry_value_bytes};
  if (index_range > 0) json["index_range"] = index_range;
  if (!delta_bytes.empty()) json["delta_bytes"] = delta_bytes;
  if (stream)
    json["stream"] = {{"sent_bytes", stream->sent_bytes}, {"back_bytes", stream->back_bytes}, {"aggregators", stream->aggregators}};
  if (parts) json["parts"] = parts->to_json();
  if (piece >= 0) json["piece"] = piece;
  return json;
}

CollectiveCall CollectiveCall::from_json(const Json& json, std::int64_t workers) {
  if (!json.is_object()) throw InputError("exchange call", "an object", brief(json));
  static constexpr std::array<std::string_view, 12> keys = {"op",    "payload",     "dtype",       "bytes",  "bytes_unpadded", "root",
                                                            "entry", "index_range", "delta_bytes", "stream", "parts",          "piece"};
  for (const auto& [key, value] : json.items())
    if (std::find(keys.begin(), keys.end(), key) == keys.end())
      throw InputError("exchange call",
                       "the keys op, payload, dtype, bytes, bytes_unpadded, root, entry, index_range, delta_bytes, stream, parts, piece",
                       "the unknown key \"" + key + "\"");
  CollectiveCall call;
  call.operation = operation_from_name(text_from_json(json, "op"));
  call.payload = text_from_json(json, "payload");
  call.dtype = text_from_json(json, "dtype");
  if (!json.contains("bytes")) throw InputError("exchange call", "the key \"bytes\"", "no such key");
  call.bytes = bytes_from_json(json, "bytes", workers);
  if (json.contains("bytes_unpadded")) {
    call.bytes_unpadded = bytes_from_json(json, "bytes_unpadded", workers);
    if (call.bytes_unpadded.size() == 1) call.bytes_unpadded.assign(static_cast<std::size_t>(workers), call.bytes_unpadded.front());
  }
  if (json.contains("root")) {
    const Json& root = json.at("root");
    if (!root.is_number_integer() || root.get<std::int64_t>() < 0 || root.get<std::int64_t>() >= workers)
      throw InputError("exchange call /root", "a worker, 0 to " + std::to_string(workers - 1), brief(root));
    call.root = root.get<std::int64_t>();
  }
  if (json.contains("entry")) {
    const std::vector<std::uint64_t> entry = bytes_from_json(json, "entry", 2);
    if (entry.size() != 2 || entry[0] == 0 || entry[1] == 0)
      throw InputError("exchange call /entry", "bytes of an index and of a value, both above 0", brief(json.at("entry")));
    call.entry_index_bytes = entry[0];
    call.entry_value_bytes = entry[1];
  }
  if (json.contains("index_range")) call.index_range = bytes_from_json(json, "index_range", 1).front();
  if (json.contains("delta_bytes")) {
    const std::int64_t lists = call.operation == Operation::broadcast ? 1 : workers;
    call.delta_bytes = bytes_from_json(json, "delta_bytes", lists);
    call.delta_bytes.resize(static_cast<std::size_t>(lists), call.delta_bytes.front());
  }
  if (json.contains("stream")) {
    static const Json schema = parse_json(
        R"({"type":"object","required":["sent_bytes","back_bytes","aggregators"],"additionalProperties":false,"properties":{
            "sent_bytes":{"type":"array","items":{"type":"array","items":{"type":"integer","minimum":0}}},
            "back_bytes":{"type":"array","minItems":1,"items":{"type":"integer","minimum":0}},
            "aggregators":{"type":"integer","minimum":0,"maximum":1048576}}})",
        "stream");
    validate_json(json.at("stream"), schema, "exchange call /stream");
    SparseStream stream{json.at("stream").at("sent_bytes").get<std::vector<std::vector<std::uint64_t>>>(),
                        json.at("stream").at("back_bytes").get<std::vector<std::uint64_t>>(),
                        json.at("stream").at("aggregators").get<std::int64_t>()};
    const std::size_t stretches = stream.back_bytes.size();
    if (static_cast<std::int64_t>(stream.sent_bytes.size()) != workers ||
        std::any_of(stream.sent_bytes.begin(), stream.sent_bytes.end(), [&](const auto& own) { return own.size() != stretches; }))
      throw InputError("exchange call /stream/sent_bytes",
                       std::to_string(stretches) + " numbers for each of " + std::to_string(workers) + " workers", "others");
    call.stream = std::move(stream);
  }
  if (json.contains("parts")) {
    if (call.operation != Operation::all_to_all)
      throw InputError("exchange call /parts", "no such key, as the operation is not all_to_all", operation_name(call.operation));
    call.parts = PartnerBytes::from_json(json.at("parts"), call.bytes_of_all(workers));
  }
  if (json.contains("piece")) {
    if (!json.at("piece").is_number_integer() || json.at("piece").get<std::int64_t>() < 0)
      throw InputError("exchange call /piece", "a whole number >= 0", brief(json.at("piece")));
    call.piece = json.at("piece").get<std::int64_t>();
  }
  return call;
}

std::vector<std::uint64_t> CollectiveCall::bytes_of_all(std::int64_t workers, bool unpadded) const {
  const std::vector<std::uint64_t>& given = unpadded && !bytes_unpadded.empty() ? bytes_unpadded : bytes;
  if (given.size() == 1) return std::vector<std::uint64_t>(static_cast<std::size_t>(workers), given.front());
  if (static_cast<std::int64_t>(given.size()) != workers)
    throw InputError("exchange call /bytes", "one number or " + std::to_string(workers), std::to_string(given.size()));
  return given;
}

}  // namespace sparscale::sim
