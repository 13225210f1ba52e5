// Which part of a trace a replay warms up on.
#pragma once

#include <cstdint>
#include <memory>

#include "sim/replay.hpp"
#include "traces/expansion.hpp"

namespace sparscale::sim {

/// Positions [0, P) of the trace's window that warm-up iterations loop over: options.warmup_window; where that is 0, those before the
/// learning rate first falls by a quarter or more when it is in the accumulator, and else all T. Residuals that come out of a pass across
/// the fall are not those of workers that reach it. Errors: InputError (more positions than the trace has).
std::int64_t warmup_positions(const traces::Trace& trace, const ReplayOptions& options);

/// `source` in the order warm-up, window: `warmup` iterations over positions [0, warmup_positions), the last of them at the end of these,
/// then its window of `positions` from the first position on, again and again. Draws are new in every pass.
std::unique_ptr<traces::GradientSource> warmed_up(std::unique_ptr<traces::GradientSource> source, std::int64_t positions,
                                                  std::int64_t warmup, std::int64_t warmup_positions);

}  // namespace sparscale::sim
