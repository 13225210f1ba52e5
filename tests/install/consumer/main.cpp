// A program that uses the installed libraries: replays one iteration of a shipped trace.
#include <cstdio>

#include "base/files.hpp"
#include "sim/replay.hpp"
#include "sim/sparsifier.hpp"

int main() {
  using namespace sparscale;
  const traces::Trace trace = traces::Trace::open(data_directory() / "traces" / "samples" / "digits-cnn-8w");
  sim::ReplayOptions options;
  options.sparsifier = "topk";
  options.parameters = sim::resolve_parameters(sim::find_sparsifier("topk"), Json::object(), "", "");
  options.density = 0.01;
  options.workers = 2;
  options.iterations = 1;
  sim::Replay replay(trace, options);
  std::printf("%lld\n", replay.next().at("selected_sum").get<long long>());
}
