#include "base/json.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validation_results.hpp>
#include <valijson/validator.hpp>
#include <vector>

#include "base/error.hpp"
#include "base/files.hpp"

namespace sparscale {
namespace {

// Writing and validating recurse, so that a document of brackets would overflow the stack.
constexpr int deepest_nesting = 500;

std::string pointer_of(const std::vector<std::string>& path) {
  Json::json_pointer pointer;
  for (const std::string& part : path) pointer.push_back(part);
  const std::string text = pointer.to_string();
  return text.empty() ? "/" : text;
}

// Follows the parser: where it is, and whether a key stands twice in one object, which would silently lose a value.
class ParserPlace {
 public:
  explicit ParserPlace(const std::string& name) : name_(name) {}
  bool operator()(int depth, Json::parse_event_t event, const Json& parsed) {
    if (depth > deepest_nesting)
      throw InputError(name_, "", "JSON nested at most " + std::to_string(deepest_nesting) + " deep", "deeper nesting");
    switch (event) {
      case Json::parse_event_t::object_start:
        open_.push_back({});
        break;
      case Json::parse_event_t::array_start:
        open_.push_back({true, 0, {}, {}});
        break;
      case Json::parse_event_t::key:
        open_.back().key = parsed.get<std::string>();
        if (!open_.back().keys.insert(open_.back().key).second && duplicate_.empty()) duplicate_ = pointer();
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end:
        open_.pop_back();
        [[fallthrough]];
      case Json::parse_event_t::value:
        if (!open_.empty()) ++open_.back().index;
        break;
    }
    return true;
  }
  /// JSON pointer of the value that is being read.
  std::string pointer() const {
    std::vector<std::string> path;
    for (const Level& level : open_) path.push_back(level.is_array ? std::to_string(level.index) : level.key);
    return pointer_of(path);
  }
  /// JSON pointer of the first key that stands twice; empty when none does.
  const std::string& duplicate() const { return duplicate_; }

 private:
  struct Level {
    bool is_array = false;
    std::size_t index = 0;  // of an array
    std::string key;        // of an object
    std::set<std::string> keys;
  };
  const std::string& name_;
  std::vector<Level> open_;
  std::string duplicate_;
};

const Json& resolve(const Json& node, const Json& root) {
  if (node.is_object() && node.contains("$ref"))
    return resolve(root.at(Json::json_pointer(node.at("$ref").get<std::string>().substr(1))), root);
  return node;
}

// Whether a schema could be meant for a value of this kind, whatever its bounds say.
bool fits_kind(const Json& schema, const Json& root, const Json& value) {
  const Json& node = resolve(schema, root);
  for (const char* word : {"anyOf", "oneOf"})
    if (node.contains(word))
      return std::any_of(node.at(word).begin(), node.at(word).end(),
                         [&](const Json& alternative) { return fits_kind(alternative, root, value); });
  if (node.contains("enum")) return value.is_primitive();
  const std::string type = node.value("type", "");
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "number" || type == "integer") return value.is_number();
  return true;
}

// The part of a schema that speaks about the value at `path`; of alternatives, the one for values of this kind.
const Json* schema_at(const Json& node, const Json& root, const Json& value, const std::vector<std::string>& path, std::size_t depth) {
  const Json& here = resolve(node, root);
  for (const char* word : {"anyOf", "oneOf", "allOf"}) {
    if (!here.contains(word)) continue;
    for (const Json& alternative : here.at(word))
      if (fits_kind(alternative, root, value))
        if (const Json* found = schema_at(alternative, root, value, path, depth)) return found;
  }
  if (depth == path.size()) return &here;
  if (value.is_object() && here.contains("properties") && here.at("properties").contains(path[depth]))
    return schema_at(here.at("properties").at(path[depth]), root, value.at(path[depth]), path, depth + 1);
  if (value.is_object() && here.contains("additionalProperties") && here.at("additionalProperties").is_object())
    return schema_at(here.at("additionalProperties"), root, value.at(path[depth]), path, depth + 1);
  if (value.is_array() && here.contains("items"))
    return schema_at(here.at("items"), root, value.at(std::stoul(path[depth])), path, depth + 1);
  return nullptr;
}

std::string list_of(const Json& values) {
  std::string text;
  for (const Json& value : values) text += (text.empty() ? "" : ", ") + (value.is_string() ? value.get<std::string>() : value.dump());
  return text;
}

std::string describe(const Json& schema, const Json& root) {
  const Json& node = resolve(schema, root);
  if (node.contains("const")) return node.at("const").dump();
  if (node.contains("enum")) return "one of " + list_of(node.at("enum"));
  for (const char* word : {"anyOf", "oneOf"}) {
    if (!node.contains(word)) continue;
    std::string text;
    for (const Json& alternative : node.at(word)) text += (text.empty() ? "" : " or ") + describe(alternative, root);
    return text;
  }
  std::string text = "a value";
  if (node.contains("type")) {
    const Json& type = node.at("type");
    text = type.is_array() ? list_of(type) : type.get<std::string>();
  }
  if (text == "array" && node.contains("items")) text = "array of " + describe(node.at("items"), root);
  if (node.contains("exclusiveMinimum")) text += " > " + node.at("exclusiveMinimum").dump();
  if (node.contains("minimum")) text += " >= " + node.at("minimum").dump();
  if (node.contains("exclusiveMaximum")) text += " < " + node.at("exclusiveMaximum").dump();
  if (node.contains("maximum")) text += " <= " + node.at("maximum").dump();
  if (node.value("minLength", 0) > 0) text += " that is not empty";
  if (node.contains("maxLength")) text += " of at most " + node.at("maxLength").dump() + " characters";
  if (node.value("minItems", 0) > 0) text += " with at least " + node.at("minItems").dump() + " element(s)";
  if (node.contains("pattern")) text += " matching " + node.at("pattern").get<std::string>();
  return text;
}

// Where a document first leaves its schema: valijson says that it does, this walk says where in the user's terms.
struct Violation {
  std::vector<std::string> path;
  std::string description;
};

[[noreturn]] void report(const Violation& violation, const Json& document, const Json& schema, const std::string& file) {
  const Json* value = &document;
  for (const std::string& part : violation.path) value = value->is_array() ? &value->at(std::stoul(part)) : &value->at(part);
  const Json* node = schema_at(schema, schema, document, violation.path, 0);
  if (node != nullptr && value->is_object()) {
    if (node->contains("required"))
      for (const Json& key : node->at("required"))
        if (!value->contains(key.get<std::string>()))
          throw InputError(file, pointer_of(violation.path), "the key \"" + key.get<std::string>() + "\"", "no such key");
    if (node->value("additionalProperties", Json(true)) == Json(false)) {
      std::string keys;
      for (const auto& [key, ignored] : node->at("properties").items()) keys += (keys.empty() ? "" : ", ") + key;
      for (const auto& [key, ignored] : value->items())
        if (!node->at("properties").contains(key)) {
          std::vector<std::string> path = violation.path;
          path.push_back(key);
          throw InputError(file, pointer_of(path), "one of the keys " + keys, "the unknown key \"" + key + "\"");
        }
    }
  }
  throw InputError(file, pointer_of(violation.path), node != nullptr ? describe(*node, schema) : violation.description, brief(*value));
}

}  // namespace

Json parse_json(std::string_view text, const std::string& name) {
  ParserPlace place(name);
  Json document;
  try {
    document = Json::parse(text.begin(), text.end(),
                           [&place](int depth, Json::parse_event_t event, Json& parsed) { return place(depth, event, parsed); });
  } catch (const Json::parse_error& error) {
    std::string reason = error.what();
    const auto colon = reason.find("syntax error");
    if (colon != std::string::npos) reason = reason.substr(colon);
    throw InputError(name, "byte " + std::to_string(error.byte), "JSON", reason);
  } catch (const Json::out_of_range& error) {
    const std::string reason = error.what();
    throw InputError(name, place.pointer(), "numbers that a double can hold",
                     reason.substr(reason.find("] ") == std::string::npos ? 0 : reason.find("] ") + 2));
  }
  if (!place.duplicate().empty()) throw InputError(name, place.duplicate(), "each key once in an object", "this key twice");
  return document;
}

Json load_json(const std::filesystem::path& file) { return parse_json(read_file(file), file.string()); }

void validate_json(const Json& document, const Json& schema, const std::string& file) {
  const nlohmann::json plain_schema = nlohmann::json::parse(schema.dump());
  const nlohmann::json plain_document = nlohmann::json::parse(document.dump());
  valijson::Schema compiled;
  valijson::SchemaParser parser;
  const valijson::adapters::NlohmannJsonAdapter schema_adapter(plain_schema);
  parser.populateSchema(schema_adapter, compiled);
  valijson::Validator validator;
  valijson::ValidationResults results;
  const valijson::adapters::NlohmannJsonAdapter document_adapter(plain_document);
  if (validator.validate(compiled, document_adapter, &results)) return;
  Violation deepest;
  bool any = false;
  valijson::ValidationResults::Error error;
  while (results.popError(error)) {
    Violation violation;
    violation.description = error.description;
    for (std::size_t i = 1; i < error.context.size(); ++i) {
      const std::string& part = error.context[i];
      violation.path.push_back(part.size() >= 2 && part.front() == '[' ? part.substr(1, part.size() - 2) : part);
    }
    if (!any || violation.path.size() > deepest.path.size()) deepest = violation;
    any = true;
  }
  report(deepest, document, schema, file);
}

std::string number_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto [end, code] = std::to_chars(buffer, buffer + sizeof buffer, value);
  return {buffer, end};
}

std::string brief(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

}  // namespace sparscale
