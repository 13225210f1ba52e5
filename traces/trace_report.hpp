// What a trace holds, for people: the table behind `sparscale trace info`.
#pragma once

#include <string>
#include <vector>

#include "base/json.hpp"
#include "traces/trace.hpp"

namespace sparscale::traces {

/// Name, sizes, provenance, layers (size, share of the parameters, share of the gradients' energy) and statistics: mean L2 norm of a
/// worker's gradient, its coefficient of variation over workers, mean cosine between the gradients of two workers, share of exact zeros.
/// Of every layer also its share of the exact zeros and, over the first iteration and up to four workers, its share of the largest 1 % of
/// the gradient, its kurtosis and its tail index (Hill, over the largest 1 % that are not zero; null below 8 values; small: heavy). Means
/// are over iterations (and workers). The cosine is null with one worker. Cost: reads everything once.
Json trace_report(const Trace& trace);

/// The same as lines of text.
std::vector<std::string> trace_report_lines(const Json& report);

}  // namespace sparscale::traces
