#include "sim/replay.hpp"

#include <cstdio>
#include <memory>

#include "base/error.hpp"
#include "base/files.hpp"
#include "experiments/commands/commands.hpp"
#include "experiments/experiment.hpp"
#include "sim/sparsifier.hpp"
#include "traces/trace_stream.hpp"

namespace sparscale::experiments {
namespace {

/// "key=value" pairs; a value is JSON when it reads as JSON, else a string.
Json parse_settings(const std::vector<std::string>& settings) {
  Json values = Json::object();
  for (const std::string& setting : settings) {
    const auto equals = setting.find('=');
    if (equals == std::string::npos || equals == 0) throw InputError("--set", "KEY=VALUE", '"' + setting + '"');
    const std::string key = setting.substr(0, equals), text = setting.substr(equals + 1);
    if (values.contains(key)) throw InputError("--set", "each key once", key + " twice");
    values[key] = Json::accept(text) ? parse_json(text, "--set " + key) : Json(text);
  }
  return values;
}

/// Replays a stream on standard input until it ends: every record is written before the next iteration is read.
void replay_stream(const sim::ReplayOptions& options, const std::string& out) {
  if (options.captured != 0)
    throw InputError("--captured", "no such option with a stream (--workers takes its first ones)", std::to_string(options.captured));
  if (options.expansion != "auto" && options.expansion != "captured")
    throw InputError("--expansion", "captured with a stream, which cannot be expanded", options.expansion);
  auto source = std::make_unique<traces::StreamSource>(stdin, "standard input", options.workers);
  traces::StreamSource& stream = *source;
  const std::vector<traces::Layer> layers = stream.info().layers;
  sim::Replay run(std::move(source), layers, options);
  std::string lines;
  for (std::int64_t i = 0; options.iterations == 0 || i < options.iterations; ++i) {
    // The first record needs the warm-up, which next() reads.
    if (!stream.has(i == 0 ? 0 : options.warmup + i)) break;
    lines += run.next().dump() + "\n";
    if (!out.empty()) continue;
    write_output(lines, "");
    lines.clear();
  }
  if (!out.empty()) write_output(lines, out);
}

}  // namespace

void add_replay_command(CLI::App& program) {
  struct Options {
    std::string trace, out;
    sim::ReplayOptions replay;
    std::vector<std::string> settings;
    bool no_error_feedback = false, no_verify = false;
  };
  auto options = std::make_shared<Options>();
  options->replay.workers = 0;
  CLI::App* command = program.add_subcommand("replay", "Replay a trace through a sparsifier; one JSON record per iteration");
  command->add_option("--trace", options->trace, "Trace directory, the name of a shipped sample, or - for a stream on standard input")
      ->required();
  command->add_option("--sparsifier", options->replay.sparsifier, "A name from 'sparscale list sparsifiers'")->required();
  command->add_option("--workers", options->replay.workers, "Virtual workers n")->required();
  command->add_option("--density", options->replay.density, "Wanted fraction of gradients (default 0.01)");
  command->add_option("--set", options->settings, "Parameter of the sparsifier, KEY=VALUE; may be given again");
  command->add_option("--iterations", options->replay.iterations, "Recorded iterations (default: as many as the trace has)");
  command->add_option("--warmup", options->replay.warmup, "Iterations before the first recorded one (default 0)");
  command->add_option("--captured", options->replay.captured, "Use only the trace's first so many workers");
  command->add_option("--expansion", options->replay.expansion, "auto, captured, boot or hybrid (default auto)");
  command->add_option("--seed", options->replay.seed, "Seed (default 1)");
  command->add_flag("--no-error-feedback", options->no_error_feedback, "The accumulator is the bare gradient");
  command->add_flag("--lr-in-accumulator", options->replay.lr_in_accumulator, "Accumulate lr * gradient, as in the papers");
  command->add_flag("--hashes", options->replay.hashes, "Add SHA-256 of every selection to the records");
  command->add_flag("--no-verify", options->no_verify, "Do not compare the trace with its checksums first");
  command->add_option("--out", options->out, "File for the records (default: standard output)");
  command->callback([options] {
    sim::ReplayOptions& replay = options->replay;
    if (replay.workers < 1) throw InputError("--workers", "integer >= 1", std::to_string(replay.workers));
    if (!(replay.density > 0 && replay.density <= 1)) throw InputError("--density", "number > 0 <= 1", number_text(replay.density));
    if (replay.iterations < 0) throw InputError("--iterations", "integer >= 0", std::to_string(replay.iterations));
    if (replay.warmup < 0) throw InputError("--warmup", "integer >= 0", std::to_string(replay.warmup));
    replay.error_feedback = !options->no_error_feedback;
    const sim::SparsifierInfo& info = sim::find_sparsifier(replay.sparsifier);
    replay.parameters = sim::resolve_parameters(info, parse_settings(options->settings), "", "--set");
    if (options->trace == "-") {
      replay_stream(replay, options->out);
      return;
    }
    const traces::Trace trace = traces::Trace::open(find_trace(options->trace));
    if (!options->no_verify) trace.verify_checksums();
    if (replay.iterations == 0) replay.iterations = trace.iterations();
    sim::Replay run(trace, replay);
    for (const std::string& warning : run.expansion().warnings) std::fprintf(stderr, "sparscale: warning: %s\n", warning.c_str());
    if (options->out.empty()) {
      for (std::int64_t i = 0; i < replay.iterations; ++i) write_output(run.next().dump() + "\n", "");
    } else {
      std::string lines;
      for (std::int64_t i = 0; i < replay.iterations; ++i) lines += run.next().dump() + "\n";
      write_output(lines, options->out);
    }
  });
}

}  // namespace sparscale::experiments
