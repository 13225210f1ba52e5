// The command line: one file per command, one line in main.cpp.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace sparscale::experiments {

/// Adds a subcommand to the program; its callback does the work and throws on failure.
void add_run_command(CLI::App& program);
void add_check_command(CLI::App& program);
void add_replay_command(CLI::App& program);
void add_collective_command(CLI::App& program);
void add_measure_command(CLI::App& program);
void add_timeline_command(CLI::App& program);
void add_trace_command(CLI::App& program);
void add_status_command(CLI::App& program);
void add_plot_command(CLI::App& program);
void add_report_command(CLI::App& program);
void add_compare_command(CLI::App& program);
void add_answer_command(CLI::App& program);
void add_claims_command(CLI::App& program);
void add_list_command(CLI::App& program);
void add_completion_command(CLI::App& program);
void add_schema_command(CLI::App& program);
void add_validate_command(CLI::App& program);

/// The whole number in `text`, decimal digits and nothing else. Errors: InputError naming the option when it is none from `least` to
/// `most`.
std::int64_t parse_number(const std::string& option, const std::string& text, std::int64_t least, std::int64_t most);

/// An option for a whole number from `least` to `most`: nothing is rounded, wrapped, cut to fit or read as octal.
template <typename Number>
CLI::Option* add_number(CLI::App& command, const std::string& name, Number& target, std::int64_t least, std::int64_t most,
                        const std::string& meaning) {
  return command
      .add_option_function<std::string>(
          name,
          [&target, name, least, most](const std::string& text) { target = static_cast<Number>(parse_number(name, text, least, most)); },
          meaning)
      ->type_name("INT");
}

// The limits of an experiment hold for the commands that take the same numbers one by one.
inline constexpr std::int64_t most_workers = 1048576, most_iterations = 1000000, most_seed = std::numeric_limits<std::int64_t>::max();

/// Writes data to stdout, or to a file (atomically) when `file` is not empty. Errors: RunError when stdout cannot take it.
void write_output(const std::string& data, const std::string& file);

/// Runs a script of analysis/ with an interpreter that has matplotlib (when it draws) or is Python 3.9 or newer. Returns its exit status;
/// its output goes to ours. Errors: RunError when no such interpreter is found.
int run_analysis_program(const std::string& script, const std::vector<std::string>& arguments, bool draws);

}  // namespace sparscale::experiments
