// A file mapped read-only.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace sparscale::traces {

/// Errors of the constructor: InputError (missing, not a regular file, cannot be mapped).
class Mapping {
 public:
  explicit Mapping(const std::filesystem::path& file);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::span<const std::byte> content() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace sparscale::traces
