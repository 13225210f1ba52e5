#include "experiments/coverage.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "base/error.hpp"
#include "base/random.hpp"
#include "experiments/runner.hpp"
#include "sim/sparsifier.hpp"

namespace sparscale::experiments {
namespace {

constexpr std::int64_t most_probed = 1 << 22;     // workers x gradients
constexpr std::int64_t most_stretched = 1 << 25;  // the same, where the density needs longer gradients

/// Normal values, every worker and iteration at an offset of its own in one list.
class MadeUpGradients : public traces::GradientSource {
 public:
  MadeUpGradients(std::int64_t workers, std::int64_t gradients)
      : workers_(workers), gradients_(gradients), values_(static_cast<std::size_t>(2 * gradients)) {
    Random random(stream_key(1, "coverage"));
    for (float& value : values_) value = static_cast<float>(random.normal());
  }
  std::int64_t workers() const override { return workers_; }
  std::int64_t gradients() const override { return gradients_; }
  std::span<const float> gradient(std::int64_t iteration, std::int64_t worker) override {
    const auto numbers = {static_cast<std::uint64_t>(iteration), static_cast<std::uint64_t>(worker)};
    const std::uint64_t offset = stream_key(1, "coverage offset", numbers) % static_cast<std::uint64_t>(gradients_);
    return std::span<const float>(values_).subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(gradients_));
  }
  std::int64_t position(std::int64_t) const override { return 0; }

 private:
  std::int64_t workers_, gradients_;
  std::vector<float> values_;
};

/// The layers of a gradient that is shortened in proportion, none of them empty.
std::vector<traces::Layer> shortened(std::vector<traces::Layer> layers, std::int64_t gradients, std::int64_t wanted) {
  if (gradients == wanted) return layers;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const double share = static_cast<double>(layers[i].offset + layers[i].size) / static_cast<double>(gradients);
    const std::int64_t rest = std::ssize(layers) - static_cast<std::int64_t>(i) - 1;
    const std::int64_t end =
        rest == 0 ? wanted : std::clamp(static_cast<std::int64_t>(share * static_cast<double>(wanted)), begin + 1, wanted - rest);
    layers[i].offset = begin;
    layers[i].size = end - begin;
    layers[i].shape.assign(std::max<std::size_t>(layers[i].shape.size(), 1), 1);  // as many dimensions, which some rules ask for
    layers[i].shape.back() = layers[i].size;
    begin = end;
  }
  return layers;
}

/// What a profile is asked for: elements and selected where they are known.
struct Wish {
  std::string operation;
  std::optional<std::int64_t> elements, selected;
  auto operator<=>(const Wish&) const = default;
};

std::set<Wish> wishes_of(const traces::Trace& trace, const sim::ReplayOptions& wanted, const std::string& place) {
  const std::int64_t gradients = trace.gradients(), n = wanted.workers;
  std::int64_t length = gradients;
  if (gradients > most_probed / n) {
    // Long enough for several selected gradients and for a part for every worker.
    const double least =
        std::max({16 / wanted.density, 4.0 * static_cast<double>(n), 2.0 * static_cast<double>(trace.info().layers.size())});
    if (least > static_cast<double>(std::max<std::int64_t>(most_stretched / n, 1))) return {};
    length = std::min(gradients, std::max(most_probed / n, static_cast<std::int64_t>(least)));
  }
  sim::ReplayOptions options = wanted;
  options.iterations = 2;
  options.warmup = 0;
  options.norms = false;
  options.lr_in_accumulator = false;
  std::set<Wish> wishes;
  std::optional<sim::Replay> replay;
  try {
    replay.emplace(std::make_unique<MadeUpGradients>(n, length), shortened(trace.info().layers, gradients, length), options);
  } catch (const InputError& error) {
    if (length != gradients) return {};  // perhaps only because they are short
    throw InputError(place + ": " + error.what());
  }
  try {
    const Json first = replay->next().at("work"), second = replay->next().at("work");
    const auto numbers = [](const Json& value) { return value.is_array() ? value : Json::array({value}); };
    for (std::size_t i = 0; i < first.size(); ++i) {
      const Json& item = first[i];
      Wish wish{item.at("operation").get<std::string>(), std::nullopt, std::nullopt};
      wishes.insert(wish);
      if (i >= second.size() || second[i].at("operation") != item.at("operation") || second[i].at("elements") != item.at("elements"))
        continue;
      const bool selects = wish.operation.starts_with("topk") && second[i].at("selected") == item.at("selected");
      const Json elements = numbers(item.at("elements")), selected = numbers(item.at("selected"));
      for (std::size_t worker = 0; worker < std::max(elements.size(), selected.size()); ++worker) {
        const auto count = elements[elements.size() == 1 ? 0 : worker].get<std::int64_t>();
        if (length != gradients && count != length) continue;  // whether and how it grows with the gradient is not known
        wish.elements = length == gradients ? count : gradients;
        wish.selected = std::nullopt;
        if (selects && length == gradients) wish.selected = selected[selected.size() == 1 ? 0 : worker].get<std::int64_t>();
        wishes.insert(wish);
      }
    }
  } catch (const InputError&) {
    return {};  // a sparsifier that does not like these gradients: the replay of the real ones will tell
  }
  return wishes;
}

}  // namespace

void check_profiles(const Experiment& experiment, const std::filesystem::path& directory) {
  std::map<std::string, std::set<Wish>> known;  // by what the wishes depend on
  std::set<std::tuple<std::string, std::string, bool, std::string>> checked;
  for (const RunPoint* run : unfinished_runs(experiment, directory)) {
    const ReplayPoint& replay = experiment.replays[run->replay];
    const sim::ReplayOptions& options = replay.options;
    const Json what = {replay.identity.at("trace_sha256"), options.sparsifier, options.parameters, options.density, options.workers};
    const bool extrapolate = run->timeline.extrapolate_profile;
    if (!checked.emplace(what.dump(), run->profile, extrapolate, run->value_encoding).second) continue;
    const kernels::Profile& profile = experiment.profiles.at(run->profile);
    const auto [place, is_new] = known.try_emplace(what.dump());
    if (is_new) place->second = wishes_of(experiment.traces.at(replay.trace), options, replay.sparsifier_place);
    std::set<Wish> wishes = place->second;
    if (run->value_encoding != "fp32") wishes.insert({"cast_half", std::nullopt, std::nullopt});
    for (const Wish& wish : wishes) try {
        if (wish.selected)
          profile.time(wish.operation, *wish.elements, *wish.selected, extrapolate);
        else
          profile.check_covers(wish.operation, wish.elements.value_or(0), extrapolate);
      } catch (const InputError& error) {
        throw InputError(run->profile_place + ": " + error.what() + ", for " + options.sparsifier +
                         " at n = " + std::to_string(options.workers));
      }
  }
}

}  // namespace sparscale::experiments
