// Bytes as text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sparscale {

/// Base 64 (RFC 4648) with padding. Cost O(size).
std::string base64_of(const std::vector<std::uint8_t>& bytes);
/// The reverse. Errors: InputError unless `text` is such a text; `place` is where it stands.
std::vector<std::uint8_t> bytes_of_base64(std::string_view text, const std::string& place);

}  // namespace sparscale
