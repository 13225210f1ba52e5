// The command line: one file per command, one line in main.cpp.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace sparscale::experiments {

/// Adds a subcommand to the program; its callback does the work and throws on failure.
void add_run_command(CLI::App& program);
void add_check_command(CLI::App& program);
void add_replay_command(CLI::App& program);
void add_collective_command(CLI::App& program);
void add_measure_command(CLI::App& program);
void add_trace_command(CLI::App& program);
void add_plot_command(CLI::App& program);
void add_report_command(CLI::App& program);
void add_compare_command(CLI::App& program);
void add_answer_command(CLI::App& program);
void add_list_command(CLI::App& program);
void add_schema_command(CLI::App& program);

/// Writes data to stdout, or to a file (atomically) when `file` is not empty. Errors: RunError when stdout cannot take it.
void write_output(const std::string& data, const std::string& file);

/// Runs a script of analysis/ with an interpreter that has matplotlib (when it draws) or is Python 3.9 or newer. Returns its exit status;
/// its output goes to ours. Errors: RunError when no such interpreter is found.
int run_analysis_program(const std::string& script, const std::vector<std::string>& arguments, bool draws);

}  // namespace sparscale::experiments
