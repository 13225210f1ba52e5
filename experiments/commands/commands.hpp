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
void add_list_command(CLI::App& program);
void add_schema_command(CLI::App& program);

/// Writes data to stdout, or to a file (atomically) when `file` is not empty. Errors: RunError when stdout cannot take it.
void write_output(const std::string& data, const std::string& file);

/// Runs analysis/plot.py with an interpreter that has matplotlib. Returns its exit status; its output goes to ours. Errors: RunError when
/// no such interpreter is found.
int run_plot_program(const std::vector<std::string>& arguments);

}  // namespace sparscale::experiments
