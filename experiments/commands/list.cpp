#include <memory>

#include "base/error.hpp"
#include "base/files.hpp"
#include "experiments/commands/commands.hpp"
#include "experiments/experiment.hpp"
#include "experiments/results.hpp"
#include "kernels/profile.hpp"
#include "platforms/platform.hpp"
#include "sim/collective.hpp"
#include "sim/sparsifier.hpp"
#include "sim/timelines/mode.hpp"

namespace sparscale::experiments {
namespace {

std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.resize(width, ' ');
  return text;
}

std::string list_collectives() {
  std::string text;
  for (const sim::CollectiveAlgorithm& algorithm : sim::collective_algorithms())
    text += padded(sim::operation_name(algorithm.operation), 19) + padded(algorithm.name, 26) + algorithm.title +
            "; T = " + algorithm.formula + "; " + algorithm.source + "\n";
  return text;
}

std::string list_platforms() {
  std::string text;
  for (const std::string& name : platforms::platform_names())
    text += padded(name, 22) + platforms::Platform::load(platforms::find_platform(name)).description + "\n";
  return text;
}

std::string list_profiles() {
  std::string text;
  for (const std::string& name : kernels::profile_names()) {
    const kernels::Profile profile = kernels::Profile::load(kernels::find_profile(name));
    text += padded(name, 22) + padded(profile.origin(), 10) + profile.device() + "\n";
  }
  return text;
}

std::string list_experiments() {
  std::string text;
  for (const std::string& name : experiment_names()) {
    const Json document = load_json(find_experiment(name));
    text += padded(name, 22) + document.value("title", "") + "\n";
  }
  return text;
}

std::string list_traces() {
  std::string text;
  for (const std::string& name : sample_trace_names()) {
    const traces::TraceInfo info = traces::Trace::open(find_trace(name)).info();
    text += padded(name, 22) + std::to_string(info.gradients) + " gradients, " + std::to_string(info.workers) + " workers, " +
            std::to_string(info.iterations.size()) + " iterations: " + info.model + " on " + info.dataset + "\n";
  }
  return text;
}

std::string list_timelines() {
  std::string text;
  for (const sim::TimelineModeInfo& mode : sim::timeline_modes()) {
    text += padded(mode.name, 14) + mode.title + "; " + mode.source;
    std::string options;
    for (const std::string& option : mode.options) options += (options.empty() ? "; options " : ", ") + option;
    text += options + "\n";
  }
  return text;
}

std::string list_columns() {
  std::string text;
  for (const Column& column : result_columns())
    text += padded(column.name, 30) + padded(column.group.empty() ? "key" : column.group, 12) + column.meaning + "\n";
  return text;
}

}  // namespace

void add_list_command(CLI::App& program) {
  auto what = std::make_shared<std::string>();
  CLI::App* command = program.add_subcommand("list", "List what is there");
  command->add_option("what", *what, "sparsifiers, collectives, platforms, profiles, figures, experiments, traces, timelines or columns")
      ->required()
      ->check(CLI::IsMember({"sparsifiers", "collectives", "platforms", "profiles", "figures", "experiments", "traces", "timelines", "columns"}));
  command->callback([what] {
    if (*what == "figures") {
      if (const int status = run_analysis_program("plot.py", {"--list"}, false); status != 0) throw CLI::RuntimeError(1);
      return;
    }
    if (*what == "sparsifiers") write_output(sim::sparsifier_reference(), "");
    if (*what == "collectives") write_output(list_collectives(), "");
    if (*what == "platforms") write_output(list_platforms(), "");
    if (*what == "profiles") write_output(list_profiles(), "");
    if (*what == "experiments") write_output(list_experiments(), "");
    if (*what == "traces") write_output(list_traces(), "");
    if (*what == "timelines") write_output(list_timelines(), "");
    if (*what == "columns") write_output(list_columns(), "");
  });
}

}  // namespace sparscale::experiments
