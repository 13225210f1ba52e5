#include "sim/replay.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "base/error.hpp"
#include "base/files.hpp"
#include "experiments/commands/commands.hpp"
#include "experiments/experiment.hpp"
#include "kernels/live_measure.hpp"
#include "kernels/measure.hpp"
#include "sim/ranks.hpp"
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

/// `wanted` numbers spread evenly over [0, count), the last one among them: whether `number` is one.
bool is_sampled(std::int64_t number, std::int64_t count, std::int64_t wanted) {
  return wanted >= count || number * wanted / count != (number + 1) * wanted / count;
}

/// Times the kernels on the accumulators of some workers in some iterations.
void measure_replay(sim::ReplayOptions& replay, kernels::LiveMeasurement& live, std::int64_t iterations, std::int64_t workers) {
  replay.observer = [&live, &replay, iterations, workers](std::int64_t iteration, std::int64_t worker, std::span<const float> accumulator,
                                                          const sim::Selection& selection) {
    if (!is_sampled(iteration, replay.iterations, iterations) || !is_sampled(worker, replay.workers, workers)) return;
    const auto& work = selection.work.size() == 1 ? selection.work.front() : selection.work[static_cast<std::size_t>(worker)];
    std::vector<kernels::LiveCall> calls;
    for (const sim::KernelWork& item : work) calls.push_back({item.operation, item.elements, item.selected});
    live.add(accumulator, calls, selection.selected, selection.exchanged);
  };
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
  try {
    for (std::int64_t i = 0; options.iterations == 0 || i < options.iterations; ++i) {
      // The first record needs the warm-up, which next() reads.
      if (!stream.has(i == 0 ? 0 : options.warmup + i)) break;
      lines += run.next().dump() + "\n";
      if (!out.empty()) continue;
      write_output(lines, "");
      lines.clear();
    }
  } catch (const InputError&) {
    // The training job cannot be asked again: what was whole is kept, as on standard output.
    if (!out.empty() && !lines.empty()) write_output(lines, out);
    throw;
  }
  if (stream.cut())
    std::fprintf(stderr, "sparscale: warning: standard input: no mark at the end of the stream: was the training job stopped?\n");
  if (!out.empty()) write_output(lines, out);
}

struct Options {
  std::string trace, out;
  sim::ReplayOptions replay;
  std::vector<std::string> settings;
  bool no_error_feedback = false, no_verify = false, no_norms = false;
  std::string profile, measured_device = "cpu", memory = "full";
  std::uint64_t memory_limit_mib = 0;
  std::int64_t measured_iterations = 4, measured_workers = 4;
  int threads = 1;
};

void run_replay(Options& options) {
  sim::ReplayOptions& replay = options.replay;
  if (!(replay.density > 0 && replay.density <= 1)) throw InputError("--density", "number > 0 <= 1", number_text(replay.density));
  replay.error_feedback = !options.no_error_feedback;
  replay.norms = !options.no_norms;
  replay.memory = sim::MemoryChoice::parse(options.memory, "--memory");
  replay.memory_limit_bytes = options.memory_limit_mib << 20;
  if (replay.warmup_window > 0 && replay.warmup == 0)
    throw InputError("--warmup-window", "--warmup with it, the iterations that go over the window", "none");
  if (replay.index_gaps && replay.memory.mode == sim::MemoryChoice::Mode::sample)
    throw InputError("--index-gaps",
                     "no such option with --memory sample, as distances between sampled gradients are not those of the model",
                     replay.memory.text());
  const sim::SparsifierInfo& info = sim::find_sparsifier(replay.sparsifier);
  replay.parameters = sim::resolve_parameters(info, parse_settings(options.settings), "", "--set");
  const bool first = replay.ranks == nullptr || replay.ranks->first();
  if (replay.ranks != nullptr && (options.trace == "-" || !options.profile.empty()))
    throw InputError(options.trace == "-" ? "--trace" : "--measure", "a stream or a measurement in one process",
                     std::to_string(replay.ranks->size()) + " processes");
  if (options.trace == "-") {
    if (!options.profile.empty()) throw InputError("--measure", "no such option with a stream", options.profile);
    replay_stream(replay, options.out);
    return;
  }
  const traces::Trace trace = traces::Trace::open(find_trace(options.trace));
  if (!options.no_verify) trace.verify_checksums();
  if (replay.iterations == 0) replay.iterations = trace.iterations();
  std::optional<kernels::LiveMeasurement> live;
  if (!options.profile.empty()) {
    if (info.dense) throw InputError("--measure", "a sparsifier that selects", replay.sparsifier);
    if (options.measured_device != "cpu" && options.threads != 1)
      throw InputError("--measure-threads", "1 on a device other than the cpu", std::to_string(options.threads));
    live.emplace(kernels::measured_device(options.measured_device, replay.kernels, options.threads, 1), 5);
    measure_replay(replay, *live, options.measured_iterations, options.measured_workers);
    if (replay.memory.mode == sim::MemoryChoice::Mode::sample || replay.memory.mode == sim::MemoryChoice::Mode::recompute)
      throw InputError("--measure", "whole accumulators (--memory full, f16 or disk)", "--memory " + options.memory);
  }
  sim::Replay run(trace, replay);
  for (const std::string& warning : run.expansion().warnings)
    if (first) std::fprintf(stderr, "sparscale: warning: %s\n", warning.c_str());
  if (options.out.empty()) {
    for (std::int64_t i = 0; i < replay.iterations; ++i) {
      const Json record = run.next();
      if (first) write_output(record.dump() + "\n", "");
    }
  } else {
    std::string lines;
    for (std::int64_t i = 0; i < replay.iterations; ++i) lines += run.next().dump() + "\n";
    if (first) write_output(lines, options.out);
  }
  if (options.profile.empty()) return;
  const std::string what = "the accumulators of " + std::to_string(std::min(options.measured_workers, replay.workers)) + " workers in " +
                           std::to_string(std::min(options.measured_iterations, replay.iterations)) + " iterations of a replay: trace " +
                           trace.info().name + ", " + replay.sparsifier + ", " + std::to_string(replay.workers) + " workers, density " +
                           number_text(replay.density);
  write_output(live->profile("live-" + replay.sparsifier, what).dump(1) + "\n", options.profile);
}

/// Runs `work` in every process that mpirun has started (one, without it): an error of one ends all of them, with one line.
void in_ranks(sim::ReplayOptions& replay, const std::function<void()>& work) {
  const std::unique_ptr<sim::Ranks> ranks = sim::Ranks::start();
  if (!ranks) return work();
  replay.ranks = ranks.get();
  int status = 0;
  try {
    work();
    ranks->finish();
  } catch (...) {
    status = ranks->leave(std::current_exception());
  }
  if (status != 0) throw CLI::RuntimeError(status);  // it is said already
}

}  // namespace

void add_replay_command(CLI::App& program) {
  auto options = std::make_shared<Options>();
  options->replay.workers = 0;
  options->replay.threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, 1024U));
  CLI::App* command = program.add_subcommand("replay", "Replay a trace through a sparsifier; one JSON record per iteration");
  command->add_option("--trace", options->trace, "Trace directory, the name of a shipped sample, or - for a stream on standard input")
      ->required();
  command->add_option("--sparsifier", options->replay.sparsifier, "A name from 'sparscale list sparsifiers'")->required();
  add_number(*command, "--workers", options->replay.workers, 1, most_workers, "Virtual workers n")->required();
  command->add_option("--density", options->replay.density, "Wanted fraction of gradients (default 0.01)");
  command->add_option("--set", options->settings, "Parameter of the sparsifier, KEY=VALUE; may be given again");
  add_number(*command, "--iterations", options->replay.iterations, 0, most_iterations,
             "Recorded iterations (default: as many as the trace has)");
  add_number(*command, "--warmup", options->replay.warmup, 0, most_iterations, "Iterations before the first recorded one (default 0)");
  add_number(
      *command, "--warmup-window", options->replay.warmup_window, 1, most_iterations,
      "Warm up on the first so many of the trace's iterations (default: with --lr-in-accumulator those before the learning rate falls, "
      "else all)");
  add_number(*command, "--captured", options->replay.captured, 0, most_workers, "Use only the trace's first so many workers");
  command->add_option("--expansion", options->replay.expansion, "auto, captured, boot, hybrid or shift (default auto)");
  add_number(*command, "--seed", options->replay.seed, 0, most_seed, "Seed (default 1)");
  command->add_flag("--no-error-feedback", options->no_error_feedback, "The accumulator is the bare gradient");
  command->add_flag("--lr-in-accumulator", options->replay.lr_in_accumulator, "Accumulate lr * gradient, as in the papers");
  add_number(*command, "--threads", options->replay.threads, 1, 1024,
             "Threads that share the workers (default: the number of cores); records do not depend on it");
  command->add_option("--memory", options->memory,
                      "How residuals are kept: full (default), sample:FRACTION of the rows, f16, disk[:FOLDER], recompute");
  add_number(*command, "--memory-limit", options->memory_limit_mib, 1, 1 << 30,
             "MiB; a replay that needs more is refused (default: the memory that is available)");
  command->add_flag("--no-norms", options->no_norms, "Leave residual_norm and energy_exchanged out of the records, which saves a pass");
  command->add_flag("--hashes", options->replay.hashes, "Add SHA-256 of every selection to the records");
  command->add_flag("--index-gaps", options->replay.index_gaps, "Add the lengths of delta-coded index lists to the exchange");
  command->add_flag("--no-verify", options->no_verify, "Do not compare the trace with its checksums first");
  command->add_option("--measure", options->profile,
                      "Time the kernels on the accumulators of sampled workers and iterations; file for the kernel profile");
  command->add_option("--measure-iterations", options->measured_iterations, "Iterations to time in (default 4)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1000000}));
  command->add_option("--measure-workers", options->measured_workers, "Workers to time in each of them (default 4)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1000000}));
  command->add_option("--measure-threads", options->threads, "Threads that share each timed call (default 1)")->check(CLI::Range(1, 1024));
  command->add_option("--measure-device", options->measured_device, "cpu, or cuda (GPU 0) (default cpu)");
  command->add_option("--out", options->out, "File for the records (default: standard output)");
  command->callback([options] { in_ranks(options->replay, [&options] { run_replay(*options); }); });
}

}  // namespace sparscale::experiments
