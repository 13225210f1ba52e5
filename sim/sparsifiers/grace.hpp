// What the two sparsifiers after GRACE share: tensor by tensor, its residual memory, its all-gather communicator.
#pragma once

#include "sim/sparsifiers/common.hpp"

namespace sparscale::sim {

/// variant: ddp | horovod.
Parameter grace_variant_parameter(const std::string& meaning);
/// residual: true | false.
Parameter grace_residual_parameter();
/// Fills exchanged, exchange, contribution, residual and work. `sizes_differ`: the DDP communicator gathers two sizes and pads.
void finish_grace(Selection& selection, WorkLog& work, const ReplayShape& shape, const kernels::Kernels& kernels,
                  const std::vector<std::vector<Index>>& counts, const Json& values, bool sizes_differ);

}  // namespace sparscale::sim
