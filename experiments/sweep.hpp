// From the text of an experiment to the points of its sweep: inheritance, axes, zip, exclusions, replicate seeds (docs/experiments.md).
// Knows the form of an experiment, not what its fields mean.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/json.hpp"

namespace sparscale::experiments {

/// A value and where the user wrote it.
struct Written {
  Json value;
  std::string file, pointer;
};

/// One value of every field that is an axis (fields that are not given and have no default are absent), and of every named axis.
struct Point {
  std::map<std::string, Written> fields;
  Json labels = Json::object();  // named axis -> name of its value

  const Written& at(const std::string& field) const { return fields.at(field); }
  bool contains(const std::string& field) const { return fields.contains(field); }
};

/// An experiment with what it inherits, checked against the schema, every default written out, replicate seeds derived.
class Document {
 public:
  /// Reads the file and those it extends. Errors: InputError with the file and pointer where the user wrote it.
  static Document load(const std::filesystem::path& file);

  const Json& json() const { return json_; }
  /// The file that was asked for.
  const std::string& file() const { return file_; }
  /// The file in which the value at this pointer stands: `file()` or one that it extends.
  const std::string& file_of(const std::string& pointer) const;
  /// Files that were inherited from, nearest first, with the SHA-256 of their bytes.
  const std::vector<std::pair<std::string, std::string>>& parents() const { return parents_; }

  /// Calls `visit` for every value of a field: its own or those of its list, in named axes, in exclusions. What it leaves in Json is
  /// written back. Values of exclusions come last.
  void visit_field(const std::string& field, const std::function<void(Json& value, const Written& place, bool in_exclusion)>& visit);

  /// Calls `visit` for every point of the product of the axes; the last field of the schema moves fastest, named axes move slowest.
  /// `expand` gives the values that one written value of the field "sparsifier" stands for. Errors: InputError when lists of a zip differ
  /// in length, a field is given twice or not at all, or there are more than a million points.
  void for_each_point(const std::function<std::vector<Written>(const Written&)>& expand,
                      const std::function<void(const Point&)>& visit) const;

 private:
  std::string file_;
  Json json_;
  std::map<std::string, std::string> origin_;  // pointer -> file, for values that were taken over whole
  std::vector<std::pair<std::string, std::string>> parents_;
};

/// The JSON Schema of an experiment.
const Json& experiment_schema();

/// Fields of the schema that may be lists, in its order.
const std::vector<std::string>& axis_fields();

/// The seed of replicate number r of a seed; that of number 0 is the seed itself. Below 2^53, so that every reader of JSON keeps it.
std::uint64_t replicate_seed(std::uint64_t seed, std::uint64_t replicate);

}  // namespace sparscale::experiments
