#include "base/base64.hpp"

#include <openssl/evp.h>

#include <algorithm>

#include "base/error.hpp"

namespace sparscale {
namespace {

// OpenSSL counts with int; pieces of a multiple of 3 bytes need no padding between them.
constexpr std::size_t piece = 3 * (std::size_t{1} << 20);

bool is_digit(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' || c == '/'; }

}  // namespace

std::string base64_of(const std::vector<std::uint8_t>& bytes) {
  std::string text;
  std::vector<unsigned char> out(piece / 3 * 4 + 1);  // EVP_EncodeBlock ends with a 0
  for (std::size_t from = 0; from < bytes.size(); from += piece) {
    const std::size_t size = std::min(piece, bytes.size() - from);
    const int written = EVP_EncodeBlock(out.data(), bytes.data() + from, static_cast<int>(size));
    text.append(reinterpret_cast<const char*>(out.data()), static_cast<std::size_t>(written));
  }
  return text;
}

std::vector<std::uint8_t> bytes_of_base64(std::string_view text, const std::string& place) {
  const std::size_t digits = text.size() - (text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0);
  // OpenSSL forgives white space, which would be another text for the same bytes.
  if (text.size() % 4 != 0 || !std::all_of(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(digits), is_digit))
    throw InputError(place, "base 64", text.size() > 40 ? std::string(text.substr(0, 40)) + "..." : std::string(text));
  std::vector<std::uint8_t> bytes(text.size() / 4 * 3);
  std::size_t at = 0;
  for (std::size_t from = 0; from < text.size(); from += piece / 3 * 4) {
    const std::string_view part = text.substr(from, piece / 3 * 4);
    const int read = EVP_DecodeBlock(bytes.data() + at, reinterpret_cast<const unsigned char*>(part.data()), static_cast<int>(part.size()));
    if (read < 0) throw InputError(place, "base 64", "something else");
    at += static_cast<std::size_t>(read);
  }
  bytes.resize(at - (text.size() - digits));
  // So would be padding behind bits that belong to no byte.
  if (digits < text.size()) {
    const std::ptrdiff_t last = digits + 1 == text.size() ? 2 : 1;
    if (base64_of({bytes.end() - last, bytes.end()}) != text.substr(text.size() - 4))
      throw InputError(place, "base 64", "bits behind the last byte");
  }
  return bytes;
}

}  // namespace sparscale
