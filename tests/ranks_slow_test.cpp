// Every sparsifier, and every way to keep residuals, over 1, 2 and 4 processes: records are those of one process, byte by byte.
#include <array>

#include "sim/sparsifier.hpp"
#include "tests/ranks.hpp"

using namespace sparscale;
using namespace sparscale::tests;

TEST_CASE("Every sparsifier over 1, 2 and 4 processes") {
  if (const std::string why = why_no_ranks(); !why.empty()) SPARSCALE_SKIP(why.c_str());
  for (const sim::SparsifierInfo& info : sim::sparsifiers()) {
    const std::string arguments = "replay --trace digits-cnn-8w --workers 11 --iterations 2 --warmup 1 --hashes --sparsifier " + info.name;
    const CommandResult alone = run_program(arguments);
    for (const int ranks : {1, 2, 4}) check_ranks(ranks, arguments, alone);
  }
}

TEST_CASE("Parameters with state per worker, pieces and memories over 3 processes") {
  if (const std::string why = why_no_ranks(); !why.empty()) SPARSCALE_SKIP(why.c_str());
  for (const char* rest :
       {"accordion --set variant=original --set switch_iterations=2 --set epoch_iterations=2", "cltk --set residual_filter=0.1",
        "cltk --set cltk_mode=leader_only --memory recompute --iterations 3", "micro --memory recompute", "dgc --set clip_norm=0.01",
        "dgc --set variant=grace", "sidco --set memory_weight=0.5 --set stages=-1", "gaussiank --set variant=gkfork --set scope=layer",
        "gtopk --set scope=layer", "oktopk --set variant=bert --set scope=layer", "topk --set scope=layer --set fused=false",
        "random_k --set indices=shared --set residual=true", "topk --memory f16", "exdyna --memory disk", "deft --memory sample:0.5",
        "sage --no-norms", "topk --index-gaps --lr-in-accumulator", "hard_threshold --no-error-feedback --expansion boot"}) {
    std::string arguments = std::string("replay --trace digits-cnn-8w --workers 9 --threads 2 --sparsifier ") + rest;
    if (arguments.find("--iterations") == std::string::npos) arguments += " --iterations 4";
    check_ranks(3, arguments, run_program(arguments));
  }
  const std::string words = "replay --trace kjv-lstm-8w --workers 10 --iterations 2 --hashes --sparsifier micro";
  check_ranks(4, words, run_program(words));
}
