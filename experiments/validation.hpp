// Comparison of simulated collectives with measurements of real machines (docs/validation.md).
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace sparscale::experiments {

/// One measurement and what the simulator says.
struct ValidationRow {
  std::string source, system, platform, network, operation, algorithm;
  std::int64_t workers = 0, nodes = 0;
  std::uint64_t bytes = 0;  // as the source counts them
  double skew = 0;          // of the sizes, mpi only: below 1 they spread over bytes (1 +- skew), above 1 worker 0 has skew times as many
  double measured_s = 0, simulated_s = 0;
  std::string series;                             // rows that were measured in one way; empty for nccl
  std::int64_t repeats = 0;                       // mpi only: measured_s is their median,
  double measured_min_s = 0, measured_max_s = 0;  // and these are the fastest and the slowest
  double core_wait_s = std::nan("");              // mpi only: time that a process was ready but waited for a core, mean; NaN: not measured
  /// compared, middle (where the published curves are not monotonic), calibration (the platform's numbers come from this row) or
  /// not_network (not the time of a collective).
  std::string use;
  std::string why;  // of a compared row that is missed: the reason, empty where none is known
  double error() const { return simulated_s / measured_s - 1; }
  bool inside_spread() const { return simulated_s >= measured_min_s && simulated_s <= measured_max_s; }
};

/// What the compared rows of a series say together.
struct ValidationSummary {
  std::string series;
  std::size_t rows = 0, compared = 0;
  double median_error = 0, worst_error = 0;  // absolute
  std::size_t close = 0;                     // compared rows that are not missed
  std::size_t inside_spread = 0;             // mpi only: between the fastest and the slowest repeat
};

struct Validation {
  std::vector<ValidationRow> rows;
  std::vector<ValidationSummary> summaries;  // in order of appearance
  double close = 0;                          // a compared row with a larger absolute error is missed
};

/// Public nccl-tests, OSU and training-log measurements on the platforms of the catalogue; nothing is fitted to a row.
Validation validate_nccl();
/// Open MPI over rate-limited links, in several series of measurements; the platform's two numbers come from the ping-pong rows of the
/// series.
Validation validate_mpi();

/// Columns with their units; one line per row.
std::string validation_csv(const Validation& validation);
/// The same for people, with the summary.
std::string validation_text(const Validation& validation);

}  // namespace sparscale::experiments
