#include "sim/sparsifiers/grace.hpp"

namespace sparscale::sim {

Parameter grace_variant_parameter(const std::string& meaning) { return choice_parameter("variant", {"ddp", "horovod"}, meaning); }

Parameter grace_residual_parameter() {
  return boolean_parameter("residual", true, "GRACE's residual memory; false: its memory none, nothing is kept");
}

Parameter grace_beta_parameter() {
  return number_parameter("beta", 1, ">= 0", Json{{"minimum", 0}}, "weight of the residual in a = beta e + gamma g");
}

Parameter grace_gamma_parameter() {
  return number_parameter("gamma", 1, "> 0", Json{{"exclusiveMinimum", 0}}, "weight of the gradient in a = beta e + gamma g");
}

void GraceSparsifier::accumulate(std::int64_t, Index, std::span<const float> gradient, float scale, std::span<float> accumulator,
                                 const kernels::Kernels& kernels) {
  if (beta_ != 1)
    for (float& residual : accumulator) residual *= beta_;
  kernels.accumulate(gradient, scale * gamma_, accumulator);
}

void finish_grace(Selection& selection, WorkLog& work, const ReplayShape& shape, const kernels::Kernels& kernels,
                  const std::vector<std::vector<Index>>& counts, const Json& values, bool sizes_differ) {
  const bool ddp = values.at("variant") == "ddp";
  GatherStyle style;
  style.index_bytes = ddp ? 4 : 8;
  style.fused = values.at("fused").get<bool>();
  if (ddp && sizes_differ) {
    style.size_bytes = 16;  // one size for the values, one for the indices
    style.padded = true;
  }
  selection.exchanged = kernels.unite(selection.selected, shape.gradients);
  const std::vector<Index> all = counts_of(selection.selected);
  work.each_of("gather", all, 0);
  work.each_of("zero", all, 0);
  append_entry_gathers(selection.exchange, counts, layer_segments(shape), style);
  work.all("unite", sum_of(all), std::ssize(selection.exchanged), selection.exchange.size());
  selection.contribution = Contribution::at_own_selection;
  if (!values.at("residual").get<bool>()) selection.residual = Residual::cleared;
  selection.work = work.take();
}

}  // namespace sparscale::sim
