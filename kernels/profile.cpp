#include "kernels/profile.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.hpp"
#include "base/files.hpp"

namespace sparscale::embedded {
extern const char* const profile_schema;
}

namespace sparscale::kernels {
namespace {

std::filesystem::path profiles_directory() { return data_directory() / "kernels" / "profiles"; }

// Straight line through two points; never below the lower of the two when it falls, so that no time becomes negative.
double continued(double x0, double y0, double x1, double y1, double x) {
  const double y = y0 + (y1 - y0) / (x1 - x0) * (x - x0);
  return std::max(y, std::min(y0, y1));
}

}  // namespace

bool depends_on_selected(const std::string& operation) {
  const std::string base = operation.substr(0, operation.find('.'));
  return base == "threshold_select" || base == "topk" || base == "unite" || base == "accumulate_select" || base == "accumulate_topk";
}

const Json& profile_schema() {
  static const Json schema = parse_json(embedded::profile_schema, "profile schema");
  return schema;
}

std::vector<std::string> profile_names() {
  std::vector<std::string> names;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(profiles_directory(), code))
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

// "name+topk.sampled+unite.bitmap" -> name, {topk.sampled, unite.bitmap}. A file whose own name looks like that is meant as it stands.
std::pair<std::string, std::vector<std::string>> split_variants(std::string text) {
  std::vector<std::string> variants;
  std::error_code code;
  while (!std::filesystem::exists(text, code)) {
    const auto plus = text.rfind('+');
    if (plus == std::string::npos || text.find('/', plus) != std::string::npos) break;
    variants.insert(variants.begin(), text.substr(plus + 1));
    text.resize(plus);
  }
  return {text, variants};
}

std::string profile_file(const std::string& path_with_variants) { return split_variants(path_with_variants).first; }

std::filesystem::path find_profile(const std::string& name_or_path) {
  const auto [name, variants] = split_variants(name_or_path);
  std::string suffix;
  for (const std::string& variant : variants) suffix += "+" + variant;
  if (name.find('/') != std::string::npos || name.ends_with(".json")) return name + suffix;
  std::string list;
  for (const std::string& known : profile_names()) {
    if (known == name) return (profiles_directory() / (known + ".json")).string() + suffix;
    list += (list.empty() ? "" : ", ") + known;
  }
  throw InputError("profile", "one of " + list + ", or a path that ends in .json", "\"" + name_or_path + "\"");
}

Profile Profile::load(const std::filesystem::path& file) {
  const auto [name, variants] = split_variants(file.string());
  Profile profile = parse(read_file(name), name);
  for (const std::string& variant : variants) {
    const auto found = profile.curves_.find(variant);
    const auto dot = variant.find('.');
    if (found == profile.curves_.end() || dot == std::string::npos) {
      std::string list;
      for (const auto& [known, ignored] : profile.curves_)
        if (known.find('.') != std::string::npos) list += (list.empty() ? "" : ", ") + known;
      throw InputError(name, "variant of an operation", list.empty() ? "none, this profile has no variants" : "one of " + list,
                       "\"" + variant + "\"");
    }
    profile.curves_[variant.substr(0, dot)] = found->second;
    if (variant.starts_with("topk.")) profile.separate_topk_ = variant != "topk.sampled";
    profile.variants_.push_back(variant);
    profile.name_ += "+" + variant;
    profile.sha256_ = sha256_hex(profile.sha256_ + "+" + variant);
  }
  return profile;
}

Profile Profile::parse(std::string_view text, const std::string& file) {
  const Json document = parse_json(text, file);
  validate_json(document, profile_schema(), file);
  Profile profile;
  profile.file_ = file;
  profile.name_ = document.at("name").get<std::string>();
  profile.device_ = document.at("device").get<std::string>();
  profile.origin_ = document.at("origin").get<std::string>();
  profile.sha256_ = sha256_hex(text);
  std::map<std::string, std::map<std::int64_t, std::set<std::int64_t>>> seen;
  std::size_t place = 0;
  for (const Json& entry : document.at("records")) {
    const std::string pointer = "/records/" + std::to_string(place++);
    ProfileRecord record{entry.at("operation"), entry.at("backend"), entry.at("elements"), entry.at("selected"),
                         entry.at("median_s"),  entry.at("q25_s"),   entry.at("q75_s")};
    if (record.selected > record.elements)
      throw InputError(file, pointer + "/selected", "at most elements = " + std::to_string(record.elements),
                       std::to_string(record.selected));
    if (!(record.q25_s <= record.median_s && record.median_s <= record.q75_s))
      throw InputError(file, pointer, "q25_s <= median_s <= q75_s",
                       number_text(record.q25_s) + ", " + number_text(record.median_s) + ", " + number_text(record.q75_s));
    auto& at_size = seen[record.operation][record.elements];
    if (!depends_on_selected(record.operation) && !at_size.empty())
      throw InputError(file, pointer, "one record of " + record.operation + " for each number of elements",
                       "a second one for " + std::to_string(record.elements));
    if (!at_size.insert(record.selected).second)
      throw InputError(
          file, pointer, "each point of an operation once",
          record.operation + " twice at elements = " + std::to_string(record.elements) + ", selected = " + std::to_string(record.selected));
    profile.records_.push_back(std::move(record));
  }
  profile.fill_curves(&ProfileRecord::median_s);
  return profile;
}

void Profile::fill_curves(double ProfileRecord::*time) {
  std::map<std::string, std::map<std::int64_t, std::map<std::int64_t, double>>> times;
  for (const ProfileRecord& record : records_) times[record.operation][record.elements][record.selected] = record.*time;
  curves_.clear();
  for (const auto& [operation, sizes] : times)
    for (const auto& [elements, points] : sizes) {
      Curve curve;
      curve.elements = elements;
      for (const auto& [selected, time_s] : points) curve.points.push_back({static_cast<double>(selected), time_s});
      curves_[operation].push_back(std::move(curve));
    }
  for (const std::string& variant : variants_) curves_[variant.substr(0, variant.rfind('.'))] = curves_.at(variant);
}

Profile Profile::at_quartile(bool upper) const {
  Profile other = *this;
  other.fill_curves(upper ? &ProfileRecord::q75_s : &ProfileRecord::q25_s);
  return other;
}

// Less than one selected element is a matter of looking at a smaller size at the same density, so the least measured point answers for it.
bool Profile::inside(const Curve& curve, double selected) {
  const double least = curve.points.front().selected, most = curve.points.back().selected;
  return (selected >= least || least <= 1) && selected <= most * (1 + 1e-12);
}

double Profile::time_at(const Curve& curve, double selected) {
  const auto& points = curve.points;
  if (points.size() == 1) return points.front().time_s;
  if (selected <= points.front().selected && points.front().selected <= 1) return points.front().time_s;
  std::size_t right = 1;
  while (right + 1 < points.size() && points[right].selected < selected) ++right;
  const Point &a = points[right - 1], &b = points[right];
  return continued(a.selected, a.time_s, b.selected, b.time_s, selected);
}

const std::vector<Profile::Curve>& Profile::curves_of(const std::string& operation) const {
  if (const auto found = curves_.find(operation); found != curves_.end()) return found->second;
  std::string list;
  for (const auto& [known, ignored] : curves_) list += (list.empty() ? "" : ", ") + known;
  throw InputError(file_, "operation", "one of " + list, "\"" + operation + "\"");
}

std::string Profile::range_of(const std::vector<Curve>& curves) {
  return "elements from " + std::to_string(curves.front().elements) + " to " + std::to_string(curves.back().elements) +
         ", as this profile covers";
}

void Profile::check_covers(const std::string& operation, std::int64_t elements, bool extrapolate) const {
  if (separate_topk_ && operation == "accumulate_topk") {
    check_covers("accumulate", elements, extrapolate);
    return check_covers("topk", elements, extrapolate);
  }
  const std::vector<Curve>& curves = curves_of(operation);
  if (elements == 0 || extrapolate || (elements >= curves.front().elements && elements <= curves.back().elements)) return;
  throw InputError(file_, operation, range_of(curves) + " (or leave to extrapolate)", "elements = " + std::to_string(elements));
}

KernelTime Profile::time(const std::string& operation, std::int64_t elements, std::int64_t selected, bool extrapolate) const {
  if (separate_topk_ && operation == "accumulate_topk") {
    const KernelTime first = time("accumulate", elements, elements, extrapolate), then = time("topk", elements, selected, extrapolate);
    return {first.time_s + then.time_s, first.extrapolated || then.extrapolated};
  }
  const std::vector<Curve>& curves = curves_of(operation);
  if (elements == 0) return {};
  const bool selects = depends_on_selected(operation);
  if (elements < 0 || (selects && (selected < 0 || selected > elements)))
    throw InputError(file_, operation, "0 <= selected <= elements",
                     "elements = " + std::to_string(elements) + ", selected = " + std::to_string(selected));
  KernelTime result;
  const auto refuse = [&](const std::string& range) {
    if (!extrapolate)
      throw InputError(file_, operation, range + " (or leave to extrapolate)",
                       "elements = " + std::to_string(elements) + ", selected = " + std::to_string(selected));
    result.extrapolated = true;
  };
  if (elements < curves.front().elements || elements > curves.back().elements) refuse(range_of(curves));
  const auto n = static_cast<double>(elements);
  // The time at a measured size, at the density wanted: both parts of the cost grow with N along a line of equal density.
  const auto at_size = [&](const Curve& curve) {
    const double there = selects ? static_cast<double>(selected) * (static_cast<double>(curve.elements) / n) : 0;
    if (selects && !inside(curve, there))
      refuse("selected from " + number_text(curve.points.front().selected) + " to " + number_text(curve.points.back().selected) + " at " +
             std::to_string(curve.elements) + " elements, as this profile covers (this asks for " + number_text(there) + " there)");
    return time_at(curve, there);
  };
  auto right = std::lower_bound(curves.begin(), curves.end(), elements,
                                [](const Curve& curve, std::int64_t wanted) { return curve.elements < wanted; });
  if (right != curves.end() && right->elements == elements) {
    result.time_s = at_size(*right);
  } else if (right == curves.begin()) {
    result.time_s = at_size(*right);  // below the smallest size: no less than that
  } else if (right == curves.end()) {
    const Curve& last = curves.back();
    const double last_s = at_size(last), last_n = static_cast<double>(last.elements);
    if (curves.size() == 1) {
      result.time_s = last_s * (n / last_n);
    } else {
      const Curve& before = curves[curves.size() - 2];
      result.time_s = continued(static_cast<double>(before.elements), at_size(before), last_n, last_s, n);
      result.time_s = std::max(result.time_s, last_s);
    }
  } else {
    const Curve &a = *(right - 1), &b = *right;
    const double log_a = std::log(at_size(a)), log_b = std::log(at_size(b));
    const double log_na = std::log(static_cast<double>(a.elements)), log_nb = std::log(static_cast<double>(b.elements));
    result.time_s = std::exp(log_a + (log_b - log_a) * (std::log(n) - log_na) / (log_nb - log_na));
  }
  return result;
}

}  // namespace sparscale::kernels
