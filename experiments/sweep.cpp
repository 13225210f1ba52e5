#include "experiments/sweep.hpp"

#include <algorithm>
#include <set>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/random.hpp"

namespace sparscale::embedded {
extern const char* const experiment_schema;
}

namespace sparscale::experiments {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t most_points = 1'000'000;
constexpr std::size_t most_parents = 100;

std::string child(const std::string& pointer, const std::string& key) {
  Json::json_pointer last;
  last.push_back(key);
  return pointer + last.to_string();
}

std::string child(const std::string& pointer, std::size_t index) { return pointer + "/" + std::to_string(index); }

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// The schema of one value of an axis; null when the field is none.
const Json* single_form(const Json& rule) {
  if (!rule.contains("anyOf") || rule.at("anyOf").size() != 2) return nullptr;
  const Json &one = rule.at("anyOf").at(0), &list = rule.at("anyOf").at(1);
  return list.value("type", "") == "array" && list.contains("items") && list.at("items") == one ? &one : nullptr;
}

/// Named axes and exclusions may set every field that is an axis: those parts of the schema follow from the rest of it.
Json complete_schema() {
  Json schema = parse_json(embedded::experiment_schema, "experiment.schema.json");
  Json setting = Json::object(), rule = Json::object();
  for (const auto& [key, field] : schema.at("properties").items())
    if (const Json* one = single_form(field)) {
      setting[key] = *one;
      rule[key] = field;
      rule[key].erase("default");
      rule[key].erase("description");
    }
  schema["definitions"]["setting"]["properties"] = setting;
  schema["definitions"]["exclusion"]["properties"] = rule;
  return schema;
}

/// The same without the keys that must be there: a file that extends another need not repeat them.
Json partial_schema() {
  Json schema = experiment_schema();
  schema["required"] = {"schema_version"};
  for (const auto& [key, rule] : experiment_schema().at("properties").items())
    if (const Json* one = single_form(rule); one != nullptr && one->contains("$ref"))
      schema[Json::json_pointer(one->at("$ref").get<std::string>().substr(1))].erase("required");
  schema["definitions"]["synthesis"]["properties"]["synthesize"].erase("required");
  return schema;
}

/// Takes out the keys whose value is null: "extends" removes what they name.
Json without_nulls(const Json& value) {
  if (!value.is_object()) return value;
  Json kept = Json::object();
  for (const auto& [key, member] : value.items())
    if (!member.is_null()) kept[key] = without_nulls(member);
  return kept;
}

using Origins = std::map<std::string, std::string>;

void forget(Origins& origins, const std::string& pointer) {
  origins.erase(pointer);
  std::erase_if(origins, [&](const auto& entry) { return entry.first.starts_with(pointer + "/"); });
}

void merge(Json& into, const Json& from, const std::string& pointer, const std::string& file, Origins& origins) {
  for (const auto& [key, value] : from.items()) {
    const std::string here = child(pointer, key);
    if (value.is_null()) {
      if (!into.contains(key)) throw InputError(file, here, "a value, as there is none to remove from what is extended", "null");
      into.erase(key);
      forget(origins, here);
      continue;
    }
    // Parameters of one sparsifier mean nothing to another, nor options of one gossip.
    const auto name_of = [](const Json& sparsifier) { return sparsifier.contains("name") ? sparsifier.at("name") : Json(); };
    const bool merges = into.contains(key) && into.at(key).is_object() && value.is_object() &&
                        ((key != "sparsifier" && key != "gossip") || name_of(into.at(key)) == name_of(value));
    if (merges) {
      merge(into[key], value, here, file, origins);
      continue;
    }
    into[key] = value;
    forget(origins, here);
    origins[here] = file;
  }
}

/// A place as the file has it: symbolic links and dots resolved, so that a cycle is seen.
fs::path real_place(const fs::path& file) {
  std::error_code code;
  const fs::path real = fs::weakly_canonical(file, code);
  return code ? fs::absolute(file).lexically_normal() : real;
}

}  // namespace

const Json& experiment_schema() {
  static const Json schema = complete_schema();
  return schema;
}

const std::vector<std::string>& axis_fields() {
  static const std::vector<std::string> fields = [] {
    std::vector<std::string> names;
    for (const auto& [key, rule] : experiment_schema().at("properties").items())
      if (single_form(rule) != nullptr) names.push_back(key);
    return names;
  }();
  return fields;
}

std::uint64_t replicate_seed(std::uint64_t seed, std::uint64_t replicate) {
  return replicate == 0 ? seed : stream_key(seed, "replicate", {replicate}) >> 11;
}

const std::string& Document::file_of(const std::string& pointer) const {
  for (std::string prefix = pointer; !prefix.empty(); prefix.resize(prefix.rfind('/')))
    if (const auto found = origin_.find(prefix); found != origin_.end()) return found->second;
  return file_;
}

Document Document::load(const fs::path& path) {
  Document document;
  document.file_ = path.string();

  // From the file to the one that nothing is inherited by.
  struct Part {
    std::string file;
    Json json;
  };
  static const Json partial = partial_schema();
  std::vector<Part> parts;
  std::set<fs::path> seen;
  fs::path next = path;
  while (true) {
    const std::string text = read_file(next);
    Part part{next.string(), parse_json(text, next.string())};
    if (!parts.empty()) document.parents_.emplace_back(real_place(next).string(), sha256_hex(text));
    seen.insert(real_place(next));
    const bool extends = part.json.is_object() && part.json.contains("extends");
    validate_json(extends ? without_nulls(part.json) : part.json, partial, part.file);
    parts.push_back(std::move(part));
    if (!extends) break;
    const Part& last = parts.back();
    const fs::path wish = last.json.at("extends").get<std::string>();
    const fs::path parent = wish.is_absolute() ? wish : next.parent_path() / wish;
    std::error_code code;
    if (!fs::is_regular_file(parent, code)) throw InputError(last.file, "/extends", "an experiment file", "no file " + parent.string());
    if (seen.contains(real_place(parent)))
      throw InputError(last.file, "/extends", "a file that does not extend this one in turn", parent.string());
    if (parts.size() > most_parents)
      throw InputError(last.file, "/extends", "at most " + std::to_string(most_parents) + " files that extend one another", "more");
    next = parent;
  }
  if (!parts.front().json.contains("name")) throw InputError(document.file_, "/", "the key \"name\"", "no such key");

  Json& json = document.json_;
  json = parts.back().json;
  for (const auto& [key, value] : json.items()) document.origin_[child("", key)] = parts.back().file;
  for (std::size_t i = parts.size() - 1; i-- > 0;) {
    Json from = parts[i].json;
    from.erase("extends");
    json.erase("extends");
    merge(json, from, "", parts[i].file, document.origin_);
  }
  const Json& schema = experiment_schema();
  // What is merged of parts that are right may still lack a key.
  for (const auto& [key, value] : json.items()) {
    const Json& rule = schema.at("properties").at(key);
    const Json* one = single_form(rule);
    if (one == nullptr || !value.is_object() || !one->contains("$ref")) continue;
    const Json& full = schema.at(Json::json_pointer(one->at("$ref").get<std::string>().substr(1)));
    for (const Json& needed : full.value("required", Json::array()))
      if (!value.contains(needed.get<std::string>()))
        throw InputError(document.file_of(child("", key)), child("", key), "the key \"" + needed.get<std::string>() + '"', "no such key");
  }
  validate_json(json, schema, document.file_);

  Json complete = Json::object();
  std::set<std::string> set_by_axes;
  if (json.contains("axes"))
    for (const auto& [name, values] : json.at("axes").items())
      for (const auto& [label, setting] : values.items())
        for (const auto& [field, value] : setting.items()) set_by_axes.insert(field);
  for (const auto& [key, rule] : schema.at("properties").items()) {
    if (json.contains(key))
      complete[key] = json.at(key);
    else if (rule.contains("default") && !set_by_axes.contains(key))
      complete[key] = rule.at("default");
  }
  json = complete;

  if (const auto replicates = json.at("replicates").get<std::uint64_t>(); replicates > 1) {
    const std::string place = "/replicates";
    if (!json.contains("seed") || json.at("seed").is_array())
      throw InputError(document.file_of(place), place, "1, as seed has values of its own", std::to_string(replicates));
    Json seeds = Json::array();
    for (std::uint64_t i = 0; i < replicates; ++i) seeds.push_back(replicate_seed(json.at("seed").get<std::uint64_t>(), i));
    json["seed"] = seeds;
    json["replicates"] = 1;
  }
  return document;
}

void Document::visit_field(const std::string& field,
                           const std::function<void(Json& value, const Written& place, bool in_exclusion)>& visit) {
  const auto visit_one = [&](Json& value, const std::string& pointer, bool in_exclusion) {
    visit(value, {value, file_of(pointer), pointer}, in_exclusion);
  };
  const auto visit_all = [&](Json& value, const std::string& pointer, bool in_exclusion) {
    if (!value.is_array()) return visit_one(value, pointer, in_exclusion);
    for (std::size_t i = 0; i < value.size(); ++i) visit_one(value[i], child(pointer, i), in_exclusion);
  };
  if (json_.contains(field)) visit_all(json_[field], child("", field), false);
  if (json_.contains("axes"))
    for (auto& [name, values] : json_["axes"].items())
      for (auto& [label, setting] : values.items())
        if (setting.contains(field)) visit_one(setting[field], child(child(child("/axes", name), label), field), false);
  if (json_.contains("exclude"))
    for (std::size_t i = 0; i < json_["exclude"].size(); ++i)
      if (Json& rule = json_["exclude"][i]; rule.contains(field)) visit_all(rule[field], child(child("/exclude", i), field), true);
}

void Document::for_each_point(const std::function<std::vector<Written>(const Written&)>& expand,
                              const std::function<void(const Point&)>& visit) const {
  // What moves together: each value sets some fields, and some labels.
  struct Dimension {
    std::string name;
    std::vector<Point> values;
  };
  const auto fail = [&](const std::string& pointer, const std::string& expected, const std::string& found) {
    throw InputError(file_of(pointer), pointer, expected, found);
  };
  std::map<std::string, std::string> given_by;  // field -> pointer
  std::vector<Dimension> dimensions;
  const auto values_of = [&](const std::string& field, const Json& value, const std::string& pointer) {
    const Written written{value, file_of(pointer), pointer};
    return field == "sparsifier" ? expand(written) : std::vector<Written>{written};
  };
  const Json axes = json_.value("axes", Json::object());
  for (const auto& [name, named] : axes.items()) {
    const std::string place = child("/axes", name);
    const auto& fields = axis_fields();
    if (std::find(fields.begin(), fields.end(), name) != fields.end()) fail(place, "a name that is not one of the fields", brief(name));
    if (named.empty()) fail(place, "at least one value", "none");
    Dimension dimension{name, {}};
    std::set<std::string> first;
    for (const auto& [label, setting] : named.items()) {
      const std::string here = child(place, label);
      std::set<std::string> keys;
      std::vector<Point> points(1);
      points.front().labels[name] = label;
      for (const auto& [field, value] : setting.items()) {
        keys.insert(field);
        const std::vector<Written> values = values_of(field, value, child(here, field));
        if (values.size() != 1) fail(child(here, field), "one value, as it has a name", brief(value));
        points.front().fields[field] = values.front();
      }
      if (dimension.values.empty()) first = keys;
      if (keys != first)
        fail(here, "the fields that the other values of this axis set: " + join({first.begin(), first.end()}),
             join({keys.begin(), keys.end()}));
      dimension.values.push_back(points.front());
    }
    for (const std::string& field : first) {
      const std::string where = child(child(place, named.begin().key()), field);
      if (json_.contains(field)) fail(where, "a field that is not given outside the axis", field + " at " + child("", field));
      const auto [other, is_new] = given_by.emplace(field, place);
      if (!is_new) fail(where, "a field that no other axis sets", field + " at " + other->second);
    }
    dimensions.push_back(std::move(dimension));
  }
  for (const std::string& field : axis_fields()) {
    if (!json_.contains(field)) {
      const Json& needed = experiment_schema().at("x-required-axes");
      if (!given_by.contains(field) && std::find(needed.begin(), needed.end(), field) != needed.end())
        fail("/", "the key \"" + field + '"', "no such key");
      continue;
    }
    Dimension dimension{field, {}};
    const Json& value = json_.at(field);
    const std::string place = child("", field);
    for (std::size_t i = 0; i < (value.is_array() ? value.size() : 1); ++i)
      for (const Written& one : values_of(field, value.is_array() ? value[i] : value, value.is_array() ? child(place, i) : place)) {
        Point point;
        point.fields[field] = one;
        dimension.values.push_back(point);
      }
    dimensions.push_back(std::move(dimension));
  }

  // Zips: the values of the later members join those of the first.
  const Json zips = json_.value("zip", Json::array());
  std::map<std::string, std::string> zipped;
  for (std::size_t i = 0; i < zips.size(); ++i) {
    std::size_t target = dimensions.size();
    for (std::size_t j = 0; j < zips[i].size(); ++j) {
      const std::string place = child(child("/zip", i), j);
      const auto name = zips[i][j].get<std::string>();
      const auto found = std::find_if(dimensions.begin(), dimensions.end(), [&](const Dimension& one) { return one.name == name; });
      std::vector<std::string> names;
      for (const Dimension& one : dimensions) names.push_back(one.name);
      if (const auto [other, is_new] = zipped.emplace(name, place); !is_new)
        fail(place, "each axis in one zip once", brief(name) + ", which stands at " + other->second + " too");
      if (found == dimensions.end()) fail(place, "one of the axes " + join(names), brief(name));
      if (j == 0) {
        target = static_cast<std::size_t>(found - dimensions.begin());
        continue;
      }
      Dimension& first = dimensions[target];
      if (found->values.size() != first.values.size())
        fail(place, "an axis with as many values as " + first.name + ", " + std::to_string(first.values.size()),
             name + " with " + std::to_string(found->values.size()));
      for (std::size_t k = 0; k < first.values.size(); ++k) {
        first.values[k].fields.insert(found->values[k].fields.begin(), found->values[k].fields.end());
        first.values[k].labels.update(found->values[k].labels);
      }
      const auto position = static_cast<std::size_t>(found - dimensions.begin());
      dimensions.erase(found);
      if (position < target) --target;
    }
  }

  std::size_t count = 1;
  for (const Dimension& dimension : dimensions) {
    count *= dimension.values.size();
    if (count > most_points) throw InputError(file_, "/", "a sweep of at most " + std::to_string(most_points) + " points", "more of them");
  }
  std::vector<std::size_t> at(dimensions.size(), 0);
  while (true) {
    Point point;
    for (std::size_t i = 0; i < dimensions.size(); ++i) {
      const Point& part = dimensions[i].values[at[i]];
      point.fields.insert(part.fields.begin(), part.fields.end());
      point.labels.update(part.labels);
    }
    visit(point);
    std::size_t i = dimensions.size();
    while (i > 0 && ++at[i - 1] == dimensions[i - 1].values.size()) at[--i] = 0;
    if (i == 0) return;
  }
}

}  // namespace sparscale::experiments
