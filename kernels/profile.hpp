// Kernel profiles: measured (or modelled) times of the selection kernels on one device, as data, and the cost model over them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.hpp"

namespace sparscale::kernels {

struct ProfileRecord {
  std::string operation;  // as in docs/kernels.md; variants after a dot
  std::string backend;
  std::int64_t elements = 0;  // N the kernel ran over (unite: the sum of the lists' lengths)
  std::int64_t selected = 0;  // what it actually selected, zeroed, gathered (unite: size of the union)
  double median_s = 0, q25_s = 0, q75_s = 0;
};

/// Whether the time of an operation (or of a variant of it) follows from the number of selected too, not from that of elements alone.
bool depends_on_selected(const std::string& operation);

/// A time with its origin.
struct KernelTime {
  double time_s = 0;
  bool extrapolated = false;
};

class Profile {
 public:
  /// Loads and checks a profile file. After the file's name, "+topk.sampled" and the like take the times of an operation (topk) from its
  /// variant; name() ends in the same and content_sha256() is another. accumulate_topk then costs accumulate and that top-k, since the
  /// fused one is made of topk.sampled. Errors: InputError.
  static Profile load(const std::filesystem::path& file);
  /// The same from a document in memory, which messages call `file`; content_sha256 is that of its text.
  static Profile parse(std::string_view text, const std::string& file);

  const std::string& name() const { return name_; }
  const std::string& device() const { return device_; }
  /// "measured" or "modelled".
  const std::string& origin() const { return origin_; }
  const std::string& content_sha256() const { return sha256_; }
  const std::vector<ProfileRecord>& records() const { return records_; }

  /// Time of one operation, interpolated between the measured points: linear in selected at each measured size, then, at the wanted
  /// density, linear in log N of the logarithm of the time. `selected` counts where depends_on_selected says so. elements = 0 takes no
  /// time. Outside the measured range: InputError naming operation, range and wish, unless `extrapolate`, which continues the nearest edge
  /// linearly in elements and flags it. Cost: O(log points).
  KernelTime time(const std::string& operation, std::int64_t elements, std::int64_t selected, bool extrapolate = false) const;

  /// Errors: InputError as of time() when the operation is not in the profile or, unless `extrapolate`, this number of elements (0: none)
  /// lies outside its range, whatever the number selected.
  void check_covers(const std::string& operation, std::int64_t elements, bool extrapolate = false) const;

  /// The same with the lower (or upper) quartile of every measured time in the place of its median. Name and content_sha256() stay.
  Profile at_quartile(bool upper) const;

 private:
  struct Point {
    double selected = 0, time_s = 0;
  };
  struct Curve {
    std::int64_t elements = 0;
    std::vector<Point> points;  // ascending in selected
  };
  const std::vector<Curve>& curves_of(const std::string& operation) const;
  void fill_curves(double ProfileRecord::*time);
  static std::string range_of(const std::vector<Curve>& curves);
  static bool inside(const Curve& curve, double selected);
  static double time_at(const Curve& curve, double selected);
  std::string name_, device_, origin_, sha256_, file_;
  bool separate_topk_ = false;  // a variant that cannot be fused with accumulate
  std::vector<ProfileRecord> records_;
  std::vector<std::string> variants_;                 // whose times stand for those of their operation
  std::map<std::string, std::vector<Curve>> curves_;  // ascending in elements
};

/// File of a shipped profile by name, or the argument itself when it is a path; variants ("+topk.sampled") stay behind it. Errors:
/// InputError listing the names.
std::filesystem::path find_profile(const std::string& name_or_path);
/// The file of "FILE+topk.sampled": what stands before the variants.
std::string profile_file(const std::string& path_with_variants);
/// Shipped profile names, sorted.
std::vector<std::string> profile_names();

/// The JSON Schema of a profile.
const Json& profile_schema();

}  // namespace sparscale::kernels
