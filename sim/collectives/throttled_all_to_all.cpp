// All-to-all with at most four messages of a worker under way: the sends of Ok-Topk's split and reduce, to workers i + 1, i + 2, ... (mod
// n) in groups of four.
#include "sim/collectives/parts.hpp"

namespace sparscale::sim {
namespace {

constexpr std::int64_t outstanding = 4;

std::unique_ptr<Program> throttled(const CollectiveInput& input) {
  const std::vector<std::uint64_t> bytes = partner_bytes(input, "all_to_all throttled");
  const std::int64_t n = std::ssize(input.bytes);
  auto program = std::make_unique<WrittenProgram>(n, 1);
  for (std::int64_t worker = 0; worker < n && n > 1; ++worker) {
    for (std::int64_t distance = 1; distance < n; ++distance) {
      Step& step = (distance - 1) % outstanding == 0 ? program->add(worker) : program->last(worker);
      const std::int64_t to = (worker + distance) % n;
      step.sends.push_back({to, bytes[static_cast<std::size_t>(worker * n + to)], to, 1});
      step.receives.push_back((worker - distance + n) % n);
      step.reduces = true;
    }
  }
  return program;
}

}  // namespace

CollectiveAlgorithm throttled_all_to_all() {
  return {"throttled",
          Operation::all_to_all,
          "All-to-all, rotated, four messages under way",
          "The split and reduce of Ok-Topk's authors (Li, Hoefler, PPoPP 2022)",
          "ceil((n - 1) / 4) alpha + m / B on equal links when sizes are equal",
          throttled};
}

}  // namespace sparscale::sim
