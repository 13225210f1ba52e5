// Bruck's all-gather, which recursive doubling falls back on.
#pragma once

#include "sim/collectives/parts.hpp"

namespace sparscale::sim {

std::unique_ptr<Program> make_bruck(std::span<const std::uint64_t> bytes);

}  // namespace sparscale::sim
