// What the two sparsifiers after GRACE share: tensor by tensor, its residual memory, its all-gather communicator.
#pragma once

#include "sim/sparsifiers/common.hpp"

namespace sparscale::sim {

/// variant: ddp | horovod.
Parameter grace_variant_parameter(const std::string& meaning);
/// residual: true | false.
Parameter grace_residual_parameter();
/// beta and gamma of the residual memory a = beta e + gamma g.
Parameter grace_beta_parameter();
Parameter grace_gamma_parameter();

/// Sparsifiers with that memory.
class GraceSparsifier : public Sparsifier {
 public:
  explicit GraceSparsifier(const Json& values)
      : residual_(values.at("residual").get<bool>()),
        beta_(static_cast<float>(values.at("beta").get<double>())),
        gamma_(static_cast<float>(values.at("gamma").get<double>())) {}
  Accumulation accumulation() const override { return Accumulation::pure; }
  bool keeps_residual() const override { return residual_; }
  void accumulate(std::int64_t worker, Index first, std::span<const float> gradient, float scale, std::span<float> accumulator,
                  const kernels::Kernels& kernels) override;

 private:
  bool residual_;
  float beta_, gamma_;
};

/// Fills exchanged, exchange, contribution, residual and work. `sizes_differ`: the DDP communicator gathers two sizes and pads.
void finish_grace(Selection& selection, WorkLog& work, const ReplayShape& shape, const kernels::Kernels& kernels,
                  const std::vector<std::vector<Index>>& counts, const Json& values, bool sizes_differ);

}  // namespace sparscale::sim
