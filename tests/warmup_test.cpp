#include "sim/warmup.hpp"

#include <cmath>
#include <cstdlib>
#include <vector>

#include "base/error.hpp"
#include "base/random.hpp"
#include "sim/replay.hpp"
#include "sim/sparsifier.hpp"
#include "tests/catch.hpp"
#include "tests/command.hpp"
#include "traces/trace_writer.hpp"

using namespace sparscale;
using sparscale::tests::Scratch;

namespace {

constexpr std::int64_t gradients = 3000, all_positions = 44, fall = 32, workers = 12;

// Iterations [first, 44) of a training of 12 workers whose learning rate falls to a tenth at iteration 32: Gaussian gradients, scales of
// the coordinates over two decades.
traces::Trace training(const Scratch& folder, const char* name, std::int64_t first) {
  Json manifest = {{"schema_version", 1}, {"name", name}, {"gradients", gradients}, {"workers", workers}, {"data_order", "iid"}};
  manifest["layers"] = {{{"name", "all"}, {"shape", {gradients}}, {"offset", 0}, {"size", gradients}}};
  for (std::int64_t t = first; t < all_positions; ++t) {
    manifest["iterations"].push_back(t);
    manifest["learning_rate"].push_back(t < fall ? 0.5 : 0.05);
  }
  std::vector<float> values(gradients);
  traces::write_trace(folder / name, manifest, [&](std::int64_t t, std::int64_t w) -> std::span<const float> {
    Random scales(stream_key(3, "scales", {})),
        random(stream_key(3, "gradient", {static_cast<std::uint64_t>(first + t), static_cast<std::uint64_t>(w)}));
    for (float& value : values) value = static_cast<float>(std::exp(1.2 * scales.normal()) * random.normal());
    return values;
  });
  return traces::Trace::open(folder / name);
}

sim::ReplayOptions options(std::int64_t captured, std::int64_t warmup, std::int64_t window) {
  sim::ReplayOptions options;
  options.sparsifier = "topk";
  options.workers = workers;
  options.captured = captured;
  options.warmup = warmup;
  options.warmup_window = window;
  options.lr_in_accumulator = true;
  options.norms = false;
  return options;
}

// Mean build-up of the four iterations after the fall.
double after_fall(const traces::Trace& trace, const sim::ReplayOptions& options, std::int64_t at) {
  sim::Replay replay(trace, options);
  double sum = 0;
  for (std::int64_t t = 0; t < at + 4; ++t) {
    const double build_up = replay.next().at("build_up").get<double>();
    if (t >= at) sum += build_up / 4;
  }
  return sum;
}

// Gradients that say which iteration was asked for.
class Counting final : public traces::GradientSource {
 public:
  std::int64_t workers() const override { return 1; }
  std::int64_t gradients() const override { return 1; }
  std::int64_t position(std::int64_t iteration) const override { return iteration % 10; }
  std::span<const float> gradient(std::int64_t iteration, std::int64_t) override {
    value_ = static_cast<float>(iteration);
    return {&value_, 1};
  }

 private:
  float value_ = 0;
};

}  // namespace

TEST_CASE("Warm-up loops over the first positions and ends at the last of them") {
  const auto source = sim::warmed_up(std::make_unique<Counting>(), 10, 7, 3);
  // Seven iterations over positions 0 to 2, every pass a new one of the source; then its window of ten.
  const std::vector<float> expected = {2, 10, 11, 12, 20, 21, 22, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40};
  for (std::size_t t = 0; t < expected.size(); ++t) {
    CHECK(source->gradient(static_cast<std::int64_t>(t), 0)[0] == expected[t]);
    CHECK(source->position(static_cast<std::int64_t>(t)) == static_cast<std::int64_t>(expected[t]) % 10);
  }
  const auto whole = sim::warmed_up(std::make_unique<Counting>(), 10, 7, 10);
  CHECK(whole->gradient(8, 0)[0] == 8);
}

TEST_CASE("Residuals across a fall of the learning rate come from a warm-up before it") {
  const Scratch scratch("warmup");
  const traces::Trace whole = training(scratch, "whole", 0), part = training(scratch, "part", 24);
  sim::ReplayOptions choice = options(0, 0, 0);
  CHECK(sim::warmup_positions(part, choice) == 8);
  choice.warmup_window = 5;
  CHECK(sim::warmup_positions(part, choice) == 5);
  choice.warmup_window = 0;
  choice.lr_in_accumulator = false;
  CHECK(sim::warmup_positions(part, choice) == 20);

  // All workers, residuals 32 iterations old when the learning rate falls; from 4 of them and the last 8 iterations before it.
  const double truth = after_fall(whole, options(0, 0, 0), fall);
  CHECK(after_fall(part, options(4, 24, 0), 8) / truth == Approx(1).margin(0.05));
  CHECK(after_fall(part, options(4, 24, 8), 8) == after_fall(part, options(4, 24, 0), 8));
  // A cold start, and a warm-up that goes across the fall, leave too little in the residuals.
  CHECK(after_fall(part, options(4, 0, 0), 8) / truth < 0.93);
  CHECK(after_fall(part, options(4, 40, 20), 8) / truth < 0.93);

  // Whatever the number of threads and the way residuals are kept.
  sim::ReplayOptions one = options(4, 24, 0), three = one, again = one;
  three.threads = 3;
  again.sparsifier = one.sparsifier = three.sparsifier = "micro";
  for (sim::ReplayOptions* o : {&one, &three, &again})
    o->parameters = sim::resolve_parameters(sim::find_sparsifier("micro"), Json::object(), "", "");
  again.memory = sim::MemoryChoice::parse("recompute", "memory");
  sim::Replay first(part, one), second(part, three), third(part, again);
  for (int t = 0; t < 12; ++t) {
    const std::string record = first.next().dump();
    CHECK(second.next().dump() == record);
    Json other = third.next();
    CHECK(other.at("memory") == "recompute");
    other.erase("memory");
    CHECK(other.dump() == record);
  }

  // Generated workers too, in whatever order their elements are made.
  sim::ReplayOptions made = one, in_order = one;
  made.expansion = in_order.expansion = "hybrid";
  in_order.any_order = false;
  sim::Replay fourth(part, made), fifth(part, in_order);
  for (int t = 0; t < 12; ++t) CHECK(fourth.next().dump() == fifth.next().dump());
}

TEST_CASE("A sparsifier that looks at the learning rate sees that of the gradients") {
  const Scratch scratch("warmup");
  const traces::Trace part = training(scratch, "part", 24);
  for (const std::int64_t warmup : {0, 5, 24}) {
    sim::ReplayOptions accordion = options(0, warmup, 0);
    accordion.sparsifier = "accordion";
    // High when the learning rate falls, and never because of a norm.
    accordion.parameters = sim::resolve_parameters(sim::find_sparsifier("accordion"),
                                                   Json{{"switch_iterations", 1}, {"density_low", 0.01}, {"change", 1e9}}, "", "");
    sim::Replay replay(part, accordion);
    for (int t = 0; t < 2 * 20; ++t) {
      INFO(warmup << ' ' << t);
      CHECK(replay.next().at("high").at(0).get<bool>() == (t % 20 == 8 || (warmup == 0 && t == 0)));
    }
  }
}

TEST_CASE("A warm-up window that the trace does not have is refused") {
  const auto run = [](const std::string& more) {
    return tests::run_program("replay --trace digits-cnn-8w --sparsifier topk --workers 4 --warmup 3 " + more);
  };
  CHECK(run("--warmup-window 10").status == 0);
  const auto without = tests::run_program("replay --trace digits-cnn-8w --sparsifier topk --workers 4 --warmup-window 3");
  CHECK(without.status == 2);
  CHECK(without.err == "sparscale: --warmup-window: expected --warmup with it, the iterations that go over the window, found none\n");
  const auto wrong = run("--warmup-window 11");
  CHECK(wrong.status == 2);
  CHECK(wrong.err == "sparscale: warmup window: expected 0 to 10, the iterations of the trace digits-cnn-8w, found 11\n");
}
