// Strict JSON input and deterministic JSON output.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace sparscale {

/// Keeps the order in which keys were written, so that the same values give the same bytes.
using Json = nlohmann::ordered_json;

/// Parses one JSON document. Errors: InputError with the byte offset (syntax) or the pointer (a key given twice).
/// `name` is what the message calls the document.
Json parse_json(std::string_view text, const std::string& name);

/// Reads and parses one JSON file. Errors: InputError when missing, unreadable or malformed.
Json load_json(const std::filesystem::path& file);

/// Checks a document against a JSON Schema (draft 7; $ref within the schema only). The error names the file, the JSON
/// pointer, what the schema expects there and what the document has.
void validate_json(const Json& document, const Json& schema, const std::string& file);

/// Shortest decimal text that reads back as the same double; "nan", "inf", "-inf" for non-finite values.
std::string number_text(double value);

/// A short one-line rendering of a value for error messages.
std::string brief(const Json& value);

}  // namespace sparscale
