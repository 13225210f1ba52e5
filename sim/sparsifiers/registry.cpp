// The list of sparsifiers. A new one is one line here.
#define SPARSCALE_SPARSIFIERS(X) \
  X(dense)                       \
  X(dense_fp16)                  \
  X(topk)                        \
  X(hard_threshold)              \
  X(sage)                        \
  X(deft)                        \
  X(micro)                       \
  X(exdyna)                      \
  X(cltk)                        \
  X(global_topk)                 \
  X(gtopk)                       \
  X(random_k)                    \
  X(dgc)                         \
  X(gaussiank)                   \
  X(sidco)                       \
  X(accordion)                   \
  X(oktopk)                      \
  X(topk_dsa)                    \
  X(omnireduce)                  \
  X(grace_topk)                  \
  X(grace_threshold)

#include "base/error.hpp"
#include "sim/sparsifiers/common.hpp"

namespace sparscale::sim {

// Each file sim/sparsifiers/NAME.cpp defines describe_NAME().
#define SPARSCALE_DECLARE(name) SparsifierInfo describe_##name();
SPARSCALE_SPARSIFIERS(SPARSCALE_DECLARE)
#undef SPARSCALE_DECLARE

const std::vector<SparsifierInfo>& sparsifiers() {
#define SPARSCALE_ENTRY(name) describe_##name(),
  static const std::vector<SparsifierInfo> all = [] {
    std::vector<SparsifierInfo> list = {SPARSCALE_SPARSIFIERS(SPARSCALE_ENTRY)};
    for (SparsifierInfo& info : list) count_scheduled_memory(info);
    return list;
  }();
#undef SPARSCALE_ENTRY
  return all;
}

const SparsifierInfo& find_sparsifier(const std::string& name) {
  std::string names;
  for (const SparsifierInfo& info : sparsifiers()) {
    if (info.name == name) return info;
    names += (names.empty() ? "" : ", ") + info.name;
  }
  throw InputError("sparsifier", "one of " + names, "\"" + name + "\"");
}

std::string sparsifier_reference() {
  std::string text;
  for (const SparsifierInfo& info : sparsifiers()) {
    text += info.name + ": " + info.title + "\n";
    const auto line = [&text](std::string what, const std::string& value) {
      what.resize(10, ' ');
      text += "    " + what + value + "\n";
    };
    line("paper", info.paper);
    line("rule", info.rule);
    line("exchange", info.exchange);
    line("cost", info.cost);
    for (const Parameter& parameter : info.parameters)
      line("parameter", parameter.name + " = " + parameter.default_value.dump() + " (" + parameter.range + "): " + parameter.meaning);
  }
  return text;
}

}  // namespace sparscale::sim
