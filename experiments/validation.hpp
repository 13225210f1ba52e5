// Comparison of simulated collectives with measurements of real machines (docs/validation.md).
#pragma once

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
  /// compared, middle (where the published curves are not monotonic), calibration (the platform's numbers come from this row) or
  /// not_network (not the time of a collective).
  std::string use;
  double error() const { return simulated_s / measured_s - 1; }
};

struct Validation {
  std::vector<ValidationRow> rows;
  double median_error = 0, worst_error = 0;  // absolute, of the rows that are compared
};

/// Public nccl-tests, OSU and training-log measurements on the platforms of the catalogue; nothing is fitted to a row.
Validation validate_nccl();
/// Open MPI over rate-limited links; the platform's two numbers come from the ping-pong rows.
Validation validate_mpi();

/// Columns with their units; one line per row.
std::string validation_csv(const Validation& validation);
/// The same for people, with the summary.
std::string validation_text(const Validation& validation);

}  // namespace sparscale::experiments
