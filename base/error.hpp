// Errors that end a command: InputError (the user's input is wrong, exit 2) and RunError (a run failed, exit 1).
#pragma once

#include <stdexcept>
#include <string>

namespace sparscale {

/// Wrong input from the user. what() is the one line the user sees: "FILE: PLACE: expected EXPECTED, found FOUND".
/// `place` is a JSON pointer, a byte offset, an option name or empty.
class InputError : public std::runtime_error {
 public:
  InputError(const std::string& file, const std::string& place, const std::string& expected, const std::string& found);
  /// For input that has no file, an option of the command line for instance.
  InputError(const std::string& place, const std::string& expected, const std::string& found);
  /// For a message that is complete already, to put a further place in front of another error's.
  explicit InputError(const std::string& complete_message);
};

/// A run that could not be finished although its input was accepted.
class RunError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace sparscale
