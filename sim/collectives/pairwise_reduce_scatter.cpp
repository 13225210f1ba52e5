// Pairwise reduce-scatter: in step s every worker sends worker i + s its part of that one's chunk. Worker i ends with chunk i.
#include "sim/collectives/parts.hpp"

namespace sparscale::sim {
namespace {

std::unique_ptr<Program> pairwise(const CollectiveInput& input) {
  const std::int64_t n = std::ssize(input.bytes);
  const auto chunks = split_evenly(equal_bytes(input.bytes, "reduce_scatter pairwise"), n);
  auto program = std::make_unique<WrittenProgram>(n, 1);
  for (std::int64_t worker = 0; worker < n; ++worker)
    for (std::int64_t s = 1; s < n; ++s) {
      const std::int64_t to = (worker + s) % n;
      Step& step = program->add(worker);
      step.sends.push_back({to, chunks[static_cast<std::size_t>(to)], to, 1});
      step.receives.push_back((worker - s + n) % n);
      step.reduces = true;
    }
  return program;
}

}  // namespace

CollectiveAlgorithm pairwise_reduce_scatter() {
  return {"pairwise",
          Operation::reduce_scatter,
          "Pairwise reduce-scatter",
          "MPI_Reduce_scatter of long buffers in MPICH. Thakur, Rabenseifner, Gropp, IJHPCA 2005",
          "(n - 1) (alpha + m / (n B)) on equal links",
          pairwise};
}

}  // namespace sparscale::sim
