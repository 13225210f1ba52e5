// Binomial reduce to worker 0: in round j = 0, 1, ... every worker that is an odd multiple of 2^j sends what it holds to the worker 2^j
// below.
#include <bit>

#include "base/error.hpp"
#include "sim/collectives/parts.hpp"

namespace sparscale::sim {
namespace {

class BinomialReduce : public Program {
 public:
  BinomialReduce(std::int64_t workers, std::uint64_t bytes) : workers_(workers), bytes_(bytes) {}
  std::int64_t workers() const override { return workers_; }

  std::int64_t steps(std::int64_t worker) const override { return receives(worker) + (worker > 0 ? 1 : 0); }

  void step(std::int64_t worker, std::int64_t number, Step& step) const override {
    step.sends.clear();
    step.receives.clear();
    step.reduces = number < receives(worker);
    if (step.reduces)
      step.receives.push_back(worker + (std::int64_t{1} << number));
    else
      step.sends.push_back({worker - (std::int64_t{1} << rounds(worker)), bytes_, 0, workers_});
  }

 private:
  // Rounds in which the worker may receive: as many as its number has zeros at the end.
  std::int64_t rounds(std::int64_t worker) const {
    return worker == 0 ? std::bit_width(static_cast<std::uint64_t>(workers_ - 1)) : std::countr_zero(static_cast<std::uint64_t>(worker));
  }
  std::int64_t receives(std::int64_t worker) const {
    std::int64_t count = 0;
    while (count < rounds(worker) && worker + (std::int64_t{1} << count) < workers_) ++count;
    return count;
  }

  std::int64_t workers_;
  std::uint64_t bytes_;
};

}  // namespace

CollectiveAlgorithm binomial_reduce() {
  return {"binomial",
          Operation::reduce,
          "Binomial reduce to worker 0",
          "MPI_Reduce of short buffers; the tree of gTop-k (Shi et al., ICDCS 2019). Thakur, Rabenseifner, Gropp, IJHPCA 2005",
          "ceil(log2 n) (alpha + m / B) on equal links",
          [](const CollectiveInput& input) -> std::unique_ptr<Program> {
            const auto bytes = input.bytes;
            const auto n = static_cast<std::int64_t>(bytes.size());
            return std::make_unique<BinomialReduce>(n, equal_bytes(bytes, "reduce binomial"));
          }};
}

}  // namespace sparscale::sim
