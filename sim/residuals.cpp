#include "sim/residuals.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <new>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/json.hpp"
#include "traces/half.hpp"
#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace sparscale::sim {
namespace fs = std::filesystem;

const char* const memory_choices = "full, sample:FRACTION, f16, disk[:FOLDER] or recompute";

std::string MemoryChoice::text() const {
  switch (mode) {
    case Mode::full:
      return "full";
    case Mode::sample:
      return "sample:" + number_text(fraction);
    case Mode::f16:
      return "f16";
    case Mode::disk:
      return "disk:" + folder.string();
    case Mode::recompute:
      return "recompute";
  }
  return "?";
}

MemoryChoice MemoryChoice::parse(const std::string& text, const std::string& place) {
  MemoryChoice choice;
  const auto colon = text.find(':');
  const std::string name = text.substr(0, colon), rest = colon == std::string::npos ? "" : text.substr(colon + 1);
  const bool bare = colon == std::string::npos;
  if (bare && name == "full") return choice;
  if (bare && name == "f16") {
    choice.mode = Mode::f16;
    return choice;
  }
  if (bare && name == "recompute") {
    choice.mode = Mode::recompute;
    return choice;
  }
  if (name == "disk") {
    choice.mode = Mode::disk;
    std::error_code code;
    choice.folder = bare ? fs::temp_directory_path(code) : fs::path(rest);
    if (rest.find('\0') != std::string::npos || !fs::is_directory(choice.folder, code))
      throw InputError(place, "a folder for the residuals' file after disk:", '"' + choice.folder.string() + '"');
    return choice;
  }
  if (name == "sample") {
    choice.mode = Mode::sample;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), choice.fraction);
    if (error == std::errc() && end == rest.data() + rest.size() && choice.fraction > 0 && choice.fraction < 1) return choice;
    throw InputError(place, "sample:FRACTION with 0 < FRACTION < 1", '"' + text + '"');
  }
  throw InputError(place, memory_choices, '"' + text + '"');
}

namespace {

constexpr float largest_half = 65504;
// The largest gradient becomes about 2^6: sums may grow to a thousand times that, and what is 2^-20 of it keeps all its bits.
constexpr int exponent_of_largest = 6;

#ifdef __x86_64__
#define SPARSCALE_HALVES __attribute__((target("avx2,f16c")))
SPARSCALE_HALVES std::size_t load_wide(const std::uint16_t* from, float factor, float* to, std::size_t size) {
  const __m256 factors = _mm256_set1_ps(factor);
  std::size_t i = 0;
  for (; i + 8 <= size; i += 8)
    _mm256_storeu_ps(to + i, _mm256_mul_ps(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))), factors));
  return i;
}
SPARSCALE_HALVES std::size_t store_wide(float* from, float scale, float factor, std::uint16_t* to, std::size_t size, float& most) {
  const __m256 scales = _mm256_set1_ps(scale), factors = _mm256_set1_ps(factor), sign = _mm256_set1_ps(-0.0F);
  __m256 largest = _mm256_setzero_ps();
  std::size_t i = 0;
  for (; i + 8 <= size; i += 8) {
    const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(from + i), scales);
    largest = _mm256_max_ps(_mm256_andnot_ps(sign, scaled), largest);
    const __m128i halves = _mm256_cvtps_ph(scaled, _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), halves);
    _mm256_storeu_ps(from + i, _mm256_mul_ps(_mm256_cvtph_ps(halves), factors));
  }
  float lanes[8];
  _mm256_storeu_ps(lanes, largest);
  for (const float lane : lanes) most = std::max(most, lane);
  return i;
}
bool has_halves() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  return has;
}
#endif

}  // namespace

Residuals::Residuals(MemoryChoice::Mode mode, std::int64_t first_worker, std::int64_t workers, Index gradients, const fs::path& folder,
                     float largest)
    : first_worker_(first_worker), gradients_(gradients) {
  const auto count = static_cast<std::size_t>(
      checked_multiply(static_cast<std::uint64_t>(workers), static_cast<std::uint64_t>(gradients), "workers x gradients"));
  if (mode == MemoryChoice::Mode::f16) {
    halves_.assign(count, 0);
    if (largest > 0) scale_ = std::ldexp(1.0F, std::clamp(exponent_of_largest - std::ilogb(largest), -100, 100));
    return;
  }
  constexpr Index line = 64 / sizeof(float);
  stride_ = (gradients + line - 1) / line * line;
  mapped_bytes_ = static_cast<std::size_t>(
      checked_multiply(checked_multiply(static_cast<std::uint64_t>(workers), static_cast<std::uint64_t>(stride_), "workers x gradients"),
                       sizeof(float), "bytes of residuals"));
  if (mode != MemoryChoice::Mode::disk) {
    // Zero pages, each given when it is first touched, by the thread that does.
    mapped_ = mmap(nullptr, std::max<std::size_t>(mapped_bytes_, 1), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped_ == MAP_FAILED) {
      mapped_ = nullptr;
      throw std::bad_alloc();
    }
    madvise(mapped_, mapped_bytes_, MADV_HUGEPAGE);
    floats_ = static_cast<float*>(mapped_);
    return;
  }
  in_file_ = true;
  struct statvfs room {};
  if (statvfs(folder.c_str(), &room) == 0 && mapped_bytes_ / room.f_frsize > room.f_bavail)
    throw InputError("memory", "a folder with " + std::to_string(mapped_bytes_ >> 20) + " MiB of room for the residuals",
                     std::to_string((room.f_bavail * room.f_frsize) >> 20) + " MiB in " + folder.string());
  std::string name = (folder / "sparscale-residuals-XXXXXX").string();
  const int file = mkstemp(name.data());
  if (file < 0) throw RunError("cannot make a file for the residuals in " + folder.string() + ": " + std::strerror(errno));
  unlink(name.c_str());  // gone when the program ends, however it ends
  // Room is taken now: a full disk must not kill the program later.
  const int refused = posix_fallocate(file, 0, static_cast<off_t>(mapped_bytes_));
  if (refused == 0) mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int error = refused != 0 ? refused : errno;
  close(file);
  if (refused != 0 || mapped_ == MAP_FAILED) {
    mapped_ = nullptr;
    throw RunError("cannot take " + std::to_string(mapped_bytes_) + " bytes for the residuals in " + folder.string() + ": " +
                   std::strerror(error));
  }
  madvise(mapped_, mapped_bytes_, MADV_SEQUENTIAL);
  floats_ = static_cast<float*>(mapped_);
}

Residuals::~Residuals() {
  if (mapped_ != nullptr) munmap(mapped_, std::max<std::size_t>(mapped_bytes_, 1));
}

void Residuals::load(std::int64_t worker, Index first, std::span<float> values) const {
  const std::uint16_t* const from = halves_.data() + (worker - first_worker_) * gradients_ + first;
  const float factor = 1 / scale_;  // exact
  std::size_t i = 0;
#ifdef __x86_64__
  if (has_halves()) i = load_wide(from, factor, values.data(), values.size());
#endif
  for (; i < values.size(); ++i) values[i] = traces::float_from_half(from[i]) * factor;
}

void Residuals::store(std::int64_t worker, Index first, std::span<float> values) {
  std::uint16_t* const to = halves_.data() + (worker - first_worker_) * gradients_ + first;
  const float factor = 1 / scale_;
  float most = 0;
  std::size_t i = 0;
#ifdef __x86_64__
  if (has_halves()) i = store_wide(values.data(), scale_, factor, to, values.size(), most);
#endif
  for (; i < values.size(); ++i) {
    const float scaled = values[i] * scale_;
    most = std::max(most, std::abs(scaled));
    to[i] = traces::half_from_float(scaled);
    values[i] = traces::float_from_half(to[i]) * factor;
  }
  if (most > largest_half)
    throw RunError("F16 residuals overflow: an accumulator of worker " + std::to_string(worker) + " is more than " +
                   number_text(largest_half * factor) + "; choose another way to keep them (" + memory_choices + ")");
}

void Residuals::zero(std::int64_t worker, std::span<const Index> indices) {
  std::uint16_t* const to = halves_.data() + (worker - first_worker_) * gradients_;
  for (const Index index : indices) to[index] = 0;
}

void Residuals::release(std::int64_t worker) const {
  if (!in_file_) return;
  // Whole pages inside the worker's part; the file keeps what they hold.
  static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(in_place(worker)),
             end = begin + static_cast<std::uintptr_t>(gradients_) * sizeof(float);
  const std::uintptr_t first = (begin + page - 1) / page * page, last = end / page * page;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace sparscale::sim
