#include "base/error.hpp"

namespace sparscale {
namespace {

std::string one_line(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  return text;
}

std::string message(const std::string& file, const std::string& place, const std::string& expected, const std::string& found) {
  std::string line;
  if (!file.empty()) line += file + ": ";
  if (!place.empty()) line += place + ": ";
  return one_line(line + "expected " + expected + ", found " + found);
}

}  // namespace

InputError::InputError(const std::string& file, const std::string& place, const std::string& expected, const std::string& found)
    : std::runtime_error(message(file, place, expected, found)) {}

InputError::InputError(const std::string& place, const std::string& expected, const std::string& found)
    : std::runtime_error(message("", place, expected, found)) {}

InputError::InputError(const std::string& complete_message) : std::runtime_error(one_line(complete_message)) {}

}  // namespace sparscale
