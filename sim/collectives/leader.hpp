// Collectives in which one worker of every node, its leader, exchanges with other nodes for all of them.
#pragma once

#include "sim/collectives/parts.hpp"

namespace sparscale::sim {

/// Nodes of any size. Every worker hands its block to its leader, the leaders gather round a ring, and every node passes the nodes' blocks
/// down a chain.
std::unique_ptr<Program> leader_all_gather_program(const CollectiveInput& input, const std::string& algorithm);
/// Nodes of any size. Reduce-scatter round a ring in the node and gather to the leader, ring all-reduce of the leaders, scatter and
/// all-gather in the node.
std::unique_ptr<Program> leader_all_reduce_program(const CollectiveInput& input, const std::string& algorithm);

}  // namespace sparscale::sim
