#include "sim/replay.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "base/machine.hpp"
#include "kernels/kernels.hpp"
#include "sim/sparsifier.hpp"
#include "sim/wire_format.hpp"

namespace sparscale::sim {
namespace {

// Elements that are added, checked and normed at a time: a piece of gradient and of residual stay in cache until they are scanned. Norms
// are summed by these pieces, so they do not depend on the order in which a sparsifier reads.
constexpr Index piece_elements = 16384;

std::string mib(std::uint64_t bytes) { return std::to_string((bytes + (1U << 20) - 1) >> 20) + " MiB"; }

void check_memory(std::uint64_t needed, std::uint64_t limit) {
  const std::uint64_t allowed = limit != 0 ? limit : available_memory_bytes();
  if (needed > allowed)
    throw InputError("workers", "a replay that fits in " + mib(allowed) + " of memory", "one that needs " + mib(needed));
}

void check_options(const ReplayOptions& options) {
  if (options.workers < 1) throw InputError("workers", "a number >= 1", std::to_string(options.workers));
  if (!(options.density > 0 && options.density <= 1)) throw InputError("density", "a number > 0 and <= 1", number_text(options.density));
  if (options.iterations < 0) throw InputError("iterations", "a number >= 0", std::to_string(options.iterations));
  if (options.warmup < 0) throw InputError("warmup", "a number >= 0", std::to_string(options.warmup));
}

ReplayShape make_shape(const ReplayOptions& options, Index gradients, std::vector<traces::Layer> layers,
                       std::vector<double> learning_rate) {
  ReplayShape shape;
  shape.workers = options.workers;
  shape.gradients = gradients;
  shape.density = options.density;
  shape.target_k = static_cast<Index>(options.density * static_cast<double>(gradients));
  shape.seed = options.seed;
  shape.layers = std::move(layers);
  shape.learning_rate = std::move(learning_rate);
  return shape;
}

std::uint64_t state_bytes(const SparsifierInfo& info, const ReplayShape& shape, const Json& values) {
  if (info.dense) return 0;
  const std::uint64_t elements =
      checked_multiply(static_cast<std::uint64_t>(shape.workers), static_cast<std::uint64_t>(shape.gradients), "workers x gradients");
  const std::uint64_t own = info.state_bytes ? info.state_bytes(shape, values) : 0;
  return checked_multiply(elements, 4, "workers x gradients x 4 bytes") + own;
}

traces::ExpansionOptions expansion_options(const ReplayOptions& options) {
  traces::ExpansionOptions expansion;
  expansion.method = options.expansion;
  expansion.workers = options.workers;
  expansion.captured = options.captured;
  expansion.seed = options.seed;
  return expansion;
}

// Sum of squares of the values at ascending indices, which become zero. Four lanes: one chain of additions would wait for itself.
double take(std::span<float> values, std::span<const Index> indices) {
  double sums[4] = {0, 0, 0, 0};
  for (std::size_t i = 0; i < indices.size(); ++i) {
    float& value = values[static_cast<std::size_t>(indices[i])];
    sums[i % 4] += static_cast<double>(value) * static_cast<double>(value);
    value = 0;
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

}  // namespace

std::uint64_t replay_memory_bytes(const traces::Trace& trace, const ReplayOptions& options) {
  check_options(options);
  const SparsifierInfo& info = find_sparsifier(options.sparsifier);
  const Json values = resolve_parameters(info, options.parameters, "", "/parameters");
  traces::choose_expansion(trace, expansion_options(options));  // checks them
  if (info.dense) return 0;
  const ReplayShape shape = make_shape(options, trace.gradients(), trace.info().layers, trace.info().learning_rate);
  return state_bytes(info, shape, values) + traces::expansion_memory_bytes(trace, expansion_options(options));
}

struct Replay::State : public AccumulatorView {
  State(const SparsifierInfo& info_in, ReplayShape shape_in, std::string origin_in, const ReplayOptions& options_in)
      : info(info_in),
        shape(std::move(shape_in)),
        origin(std::move(origin_in)),
        options(options_in),
        kernels(kernels::cpu_kernels(options.kernels)) {}

  std::span<const float> range(std::int64_t worker, Index begin, Index end) const override {
    const_cast<State*>(this)->reach(worker, end);
    return {accumulator(worker) + begin, static_cast<std::size_t>(end - begin)};
  }

  float* accumulator(std::int64_t worker) const { return const_cast<float*>(memory.data()) + worker * shape.gradients; }

  // Makes the elements [0, end) of a worker's accumulator those of this iteration. A gradient is asked for once per worker and iteration:
  // the worker that was read before is finished first.
  void reach(std::int64_t worker, Index end) {
    if (worker != current) {
      finish_current();
      if (reached[static_cast<std::size_t>(worker)] == shape.gradients) return;
      current = worker;
      gradient = source->gradient(iteration, worker);
      sparsifier->see_gradient(worker, gradient, kernels);
    }
    Index& done = reached[static_cast<std::size_t>(worker)];
    while (done < end) {
      const Index size = std::min(piece_elements, shape.gradients - done);
      add_piece(worker, done, size);
      done += size;
    }
  }

  void finish_current() {
    if (current < 0) return;
    const std::int64_t worker = current;
    reach(worker, shape.gradients);
    current = -1;
  }

  void add_piece(std::int64_t worker, Index first, Index size) {
    const std::span<const float> piece = gradient.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(size));
    if (kernels::count_non_finite(piece) > 0) refuse_non_finite(worker, first, piece);
    const std::span<float> sums(accumulator(worker) + first, static_cast<std::size_t>(size));
    if (!options.error_feedback) std::fill(sums.begin(), sums.end(), 0.0F);
    sparsifier->accumulate(worker, first, piece, scale, sums, kernels);
    if (measuring) {
      const double norm = kernels.l2_norm(sums);
      energy[static_cast<std::size_t>(worker)] += norm * norm;
    }
  }

  [[noreturn]] void refuse_non_finite(std::int64_t worker, Index first, std::span<const float> piece) const {
    const auto bad = std::find_if(piece.begin(), piece.end(), [](float x) { return !std::isfinite(x); });
    const Index index = first + (bad - piece.begin());
    std::string layer = "?";
    for (const traces::Layer& candidate : shape.layers)
      if (index >= candidate.offset && index < candidate.offset + candidate.size) layer = candidate.name;
    std::string when = std::to_string(iteration);
    if (!trace_iterations.empty())
      when += " (the trace's iteration " + std::to_string(trace_iterations[static_cast<std::size_t>(source->position(iteration))]) + ")";
    throw InputError(origin, "iteration " + when + ", worker " + std::to_string(worker) + ", layer " + layer, "finite gradients",
                     number_text(*bad) + " at gradient " + std::to_string(index));
  }

  Selection run_iteration(bool record) {
    measuring = record && options.norms && !info.dense;
    if (!info.dense) {
      std::fill(reached.begin(), reached.end(), 0);
      std::fill(energy.begin(), energy.end(), 0.0);
      scale = 1;
      if (options.lr_in_accumulator) scale = static_cast<float>(shape.learning_rate[static_cast<std::size_t>(source->position(iteration))]);
    }
    Selection selection = sparsifier->select(iteration, *this, kernels);
    if (!info.dense) {
      for (std::int64_t worker = 0; worker < shape.workers; ++worker) {
        reach(worker, shape.gradients);
        if (record && options.observer)
          options.observer(iteration - options.warmup, worker, {accumulator(worker), static_cast<std::size_t>(shape.gradients)}, selection);
        keep(worker, selection);
      }
      current = -1;
    }
    ++iteration;
    return selection;
  }

  // Turns one worker's accumulator into its residual; measures what it contributed and what is left.
  void keep(std::int64_t worker, const Selection& selection) {
    const std::size_t at = static_cast<std::size_t>(worker);
    const std::span<float> values(accumulator(worker), static_cast<std::size_t>(shape.gradients));
    std::vector<Index> both;
    std::span<const Index> contributed;
    if (!selection.everything) {
      contributed = selection.contribution == Contribution::at_exchanged ? selection.exchanged : selection.selected[at];
      if (selection.contribution == Contribution::at_own_and_exchanged) {
        std::set_intersection(selection.selected[at].begin(), selection.selected[at].end(), selection.exchanged.begin(),
                              selection.exchanged.end(), std::back_inserter(both));
        contributed = both;
      }
    }
    double sent = 0;
    if (selection.everything) {
      sent = energy[at];
    } else if (selection.residual == Residual::by_sparsifier) {
      for (const Index index : contributed) {
        const double value = values[static_cast<std::size_t>(index)];
        sent += value * value;
      }
    } else if (measuring) {
      sent = take(values, contributed);
    } else {
      kernels.zero(values, contributed);
    }
    if (selection.residual == Residual::by_sparsifier) sparsifier->keep_residual(worker, selection, values);
    if (selection.residual == Residual::cleared || selection.everything) std::fill(values.begin(), values.end(), 0.0F);
    if (!measuring) return;
    sent_energy[at] = sent;
    const double left = energy[at] - sent;
    if (selection.residual == Residual::cleared || selection.everything)
      residual_norm[at] = 0;
    else if (selection.residual == Residual::rest && left > 1e-4 * energy[at])  // the difference still carries 11 digits
      residual_norm[at] = std::sqrt(left);
    else
      residual_norm[at] = kernels.l2_norm(values);
  }

  Json record(const Selection& selection, std::int64_t number) {
    const std::int64_t n = shape.workers;
    const Index N = shape.gradients;
    const Index target_k = info.dense ? N : selection.target_k.value_or(shape.target_k);
    std::vector<Index> counts(static_cast<std::size_t>(n), N);
    if (!selection.everything)
      for (std::size_t worker = 0; worker < counts.size(); ++worker) counts[worker] = std::ssize(selection.selected[worker]);
    const Index sum = std::accumulate(counts.begin(), counts.end(), Index{0});
    const Index largest = *std::max_element(counts.begin(), counts.end());
    const Index united = selection.everything ? N : std::ssize(selection.exchanged);
    const auto ratio = [](double a, double b) { return b > 0 ? Json(a / b) : Json(); };

    Json json = {{"iteration", number},
                 {"sparsifier", info.name},
                 {"workers", n},
                 {"target_k", target_k},
                 {"selected", counts},
                 {"selected_sum", sum},
                 {"selected_max", largest},
                 {"union", united},
                 {"density", static_cast<double>(united) / static_cast<double>(N)},
                 {"build_up", ratio(static_cast<double>(united), static_cast<double>(target_k))},
                 {"padding", ratio(static_cast<double>(n) * static_cast<double>(largest), static_cast<double>(sum))}};
    json["threshold"] = nullptr;
    if (selection.threshold.size() == 1) json["threshold"] = number_or_null(selection.threshold.front());
    if (selection.threshold.size() > 1) {
      json["threshold"] = Json::array();
      for (const double threshold : selection.threshold) json["threshold"].push_back(number_or_null(threshold));
    }
    if (options.norms) {
      json["residual_norm"] = residual_norm;
      json["energy_exchanged"] = info.dense ? Json(1.0)
                                            : ratio(std::accumulate(sent_energy.begin(), sent_energy.end(), 0.0),
                                                    std::accumulate(energy.begin(), energy.end(), 0.0));
    }
    json["exchange"] = Json::array();
    const Exchange exchange = options.index_gaps && !selection.everything ? with_delta_bytes(selection) : selection.exchange;
    for (const CollectiveCall& call : exchange) json["exchange"].push_back(call.to_json());
    json["work"] = work_to_json(selection.work, n);
    for (const auto& [key, value] : selection.details.items()) json[key] = value;
    if (options.hashes) {
      json["selected_sha256"] = Json::array();
      for (std::size_t worker = 0; worker < counts.size(); ++worker)
        json["selected_sha256"].push_back(selection.everything ? hash_of_everything() : sha256_hex_of_indices(selection.selected[worker]));
      json["union_sha256"] = selection.everything ? hash_of_everything() : sha256_hex_of_indices(selection.exchanged);
    }
    return json;
  }

  // Adds the lengths of delta-coded lists where the calls of payload indices carry, one after the other, exactly what was selected.
  static Exchange with_delta_bytes(const Selection& selection) {
    Exchange exchange = selection.exchange;
    const std::size_t n = selection.selected.size();
    std::vector<std::size_t> done(n, 0);  // how many of a worker's indices earlier calls have carried
    for (CollectiveCall& call : exchange) {
      const bool gather = call.operation == Operation::all_gather, broadcast = call.operation == Operation::broadcast;
      if (call.payload != "indices" || !call.lists_are_selections || !(gather || broadcast)) continue;
      const std::uint64_t width = call.dtype == "int64" ? 8 : 4;
      const std::vector<std::uint64_t> sizes = call.bytes_of_all(static_cast<std::int64_t>(n), true);
      // The worker that broadcasts, or every one.
      std::vector<std::uint64_t> lengths;
      for (std::size_t worker = broadcast ? static_cast<std::size_t>(call.root) : 0; worker < n; ++worker) {
        const std::vector<Index>& own = selection.selected[worker];
        const std::size_t count = sizes[worker] / width;
        if (count > own.size() - done[worker]) return selection.exchange;
        lengths.push_back(delta_bytes_of(std::span(own).subspan(done[worker], count)));
        if (!broadcast) done[worker] += count;
        if (broadcast) {
          for (std::size_t& other : done) other += count;  // all have the same list
          break;
        }
      }
      call.delta_bytes = std::move(lengths);
    }
    for (std::size_t worker = 0; worker < n; ++worker)
      if (done[worker] != 0 && done[worker] != selection.selected[worker].size()) return selection.exchange;
    return exchange;
  }

  static Json number_or_null(double number) { return std::isfinite(number) ? Json(number) : Json(); }

  const std::string& hash_of_everything() {
    if (everything_sha256.empty()) {
      std::vector<Index> all(static_cast<std::size_t>(shape.gradients));
      std::iota(all.begin(), all.end(), Index{0});
      everything_sha256 = sha256_hex_of_indices(all);
    }
    return everything_sha256;
  }

  void prepare(std::unique_ptr<traces::GradientSource> made) {
    const Json values = resolve_parameters(info, options.parameters, "", "/parameters");
    check_memory(state_bytes(info, shape, values), options.memory_limit_bytes);
    if (options.lr_in_accumulator && shape.learning_rate.empty())
      throw InputError(origin, "lr_in_accumulator", "a trace with a learning_rate for every iteration", "one without");
    sparsifier = info.make(shape, values);
    source = std::move(made);
    residual_norm.assign(static_cast<std::size_t>(shape.workers), 0);
    energy = sent_energy = residual_norm;
    if (info.dense) return;
    reached.assign(static_cast<std::size_t>(shape.workers), 0);
    memory.assign(static_cast<std::size_t>(shape.workers) * static_cast<std::size_t>(shape.gradients), 0.0F);
  }

  const SparsifierInfo& info;
  ReplayShape shape;
  std::string origin;  // what messages call the input
  ReplayOptions options;
  const kernels::Kernels& kernels;
  traces::ExpansionChoice choice;
  std::vector<std::int64_t> trace_iterations;
  std::unique_ptr<traces::GradientSource> source;
  std::unique_ptr<Sparsifier> sparsifier;

  std::vector<float> memory;  // n x N: residuals, which become accumulators and then the next residuals, in place
  std::int64_t iteration = 0;
  float scale = 1;
  bool measuring = false;
  std::int64_t current = -1;        // worker whose gradient is at hand
  std::span<const float> gradient;  // its gradient
  std::vector<Index> reached;       // per worker: elements whose gradient was added in this iteration
  std::vector<double> energy, sent_energy, residual_norm;
  std::string everything_sha256;
};

Replay::Replay(const traces::Trace& trace, const ReplayOptions& options) {
  check_options(options);
  const SparsifierInfo& info = find_sparsifier(options.sparsifier);
  check_memory(replay_memory_bytes(trace, options), options.memory_limit_bytes);
  state_ = std::make_unique<State>(info, make_shape(options, trace.gradients(), trace.info().layers, trace.info().learning_rate),
                                   trace.directory().string(), options);
  state_->choice = traces::choose_expansion(trace, expansion_options(options));
  state_->trace_iterations = trace.info().iterations;
  // The dense baselines look at no gradient.
  state_->prepare(info.dense ? nullptr : traces::make_gradient_source(trace, expansion_options(options)));
}

Replay::Replay(std::unique_ptr<traces::GradientSource> source, std::vector<traces::Layer> layers, const ReplayOptions& options) {
  check_options(options);
  const Index gradients = source->gradients();
  if (source->workers() != options.workers)
    throw InputError("workers", std::to_string(source->workers()) + " as the gradients have", std::to_string(options.workers));
  state_ = std::make_unique<State>(find_sparsifier(options.sparsifier), make_shape(options, gradients, std::move(layers), {}), "gradients",
                                   options);
  state_->choice.method = "captured";
  state_->choice.captured = options.workers;
  state_->prepare(std::move(source));
}

Replay::~Replay() = default;

const traces::ExpansionChoice& Replay::expansion() const { return state_->choice; }

Json Replay::next() {
  while (state_->iteration < state_->options.warmup) state_->run_iteration(false);
  const std::int64_t number = state_->iteration - state_->options.warmup;
  return state_->record(state_->run_iteration(true), number);
}

}  // namespace sparscale::sim
