// From timed records to result rows, the CSV and the summary (docs/results.md).
#pragma once

#include <string>
#include <vector>

#include "experiments/experiment.hpp"
#include "sim/timeline.hpp"

namespace sparscale::experiments {

struct Column {
  std::string name;
  std::string group;  // "" for key columns, else selection, time or traffic
  std::string meaning;
};

/// The columns of results.csv in order.
const std::vector<Column>& result_columns();

/// Whether a sweep's claims name columns, series and keys that results have, with values of their kind. `file` and `place` for errors.
/// Errors: InputError.
void check_claims(const Json& claims, const std::string& file, const std::string& place);

/// One run: parameters, inputs, origins, warnings, series and summary. `expansion` and `self_check` as the replay stage wrote them,
/// `wire` what its encoding did, `log` the last iteration.
/// `kernel_low` and `kernel_high`: the times with the quartiles of the kernel profile; empty when they are not looked at.
Json run_document(const Experiment& experiment, const RunPoint& run, const Json& expansion, const Json& self_check,
                  const std::vector<Json>& records, const std::vector<sim::IterationTime>& times, const sim::WireUse& wire = {},
                  const sim::IterationLog& log = {}, const std::vector<sim::IterationTime>& kernel_low = {},
                  const std::vector<sim::IterationTime>& kernel_high = {});

/// One row per run and metric group, with the bands over runs that differ in their seed alone; numbers with the fewest digits that read
/// back.
std::string results_csv(const std::vector<Json>& run_documents);

/// Break-even points, warnings and the lines for people.
Json summarise(const Experiment& experiment, const std::vector<Json>& run_documents);

}  // namespace sparscale::experiments
