#include "sim/sparsifiers/common.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <unordered_set>

#include "base/checked.hpp"
#include "base/error.hpp"

namespace sparscale::sim {

void AccumulatorView::each_worker(std::int64_t workers, const std::function<void(std::int64_t)>& work,
                                  const std::function<void(std::int64_t, WorkerShare&)>& /*share*/) const {
  for (std::int64_t worker = 0; worker < workers; ++worker) work(worker);
}

void AccumulatorView::select_at_least(std::int64_t worker, Index begin, Index end, float threshold, const kernels::Kernels& kernels,
                                      std::vector<Index>& indices) const {
  for (Index first = begin; first < end;) {
    const Index last = std::min(end, (first / tile_elements + 1) * tile_elements);
    kernels.threshold_select(range(worker, first, last), threshold, first, indices);
    first = last;
  }
}

Index AccumulatorView::count_at_least(std::int64_t worker, Index begin, Index end, float threshold, const kernels::Kernels& kernels) const {
  Index count = 0;
  for (Index first = begin; first < end;) {
    const Index last = std::min(end, (first / tile_elements + 1) * tile_elements);
    count += kernels.count(range(worker, first, last), threshold);
    first = last;
  }
  return count;
}

void AccumulatorView::gather(std::int64_t worker, std::span<const Index> indices, std::span<float> values) const {
  if (indices.empty()) return;
  const auto [least, most] = std::minmax_element(indices.begin(), indices.end());
  const std::span<const float> all = range(worker, *least, *most + 1);
  for (std::size_t j = 0; j < indices.size(); ++j) values[j] = all[static_cast<std::size_t>(indices[j] - *least)];
}

float AccumulatorView::topk(std::int64_t worker, Index begin, Index end, Index k, const kernels::Kernels& kernels,
                            std::vector<Index>& indices) const {
  const std::size_t old = indices.size();
  const std::span<const float> values = range(worker, begin, end);
  kernels.topk(values, k, begin, indices);
  return least_magnitude(values, std::span(indices).subspan(old), begin);
}

float least_magnitude(std::span<const float> values, std::span<const Index> indices, Index first) {
  if (indices.empty()) return std::numeric_limits<float>::quiet_NaN();
  float least = std::numeric_limits<float>::infinity();
  for (const Index index : indices) least = std::min(least, std::abs(values[static_cast<std::size_t>(index - first)]));
  return least;
}

void Sparsifier::see_gradient(std::int64_t /*worker*/, std::span<const float> /*gradient*/, const kernels::Kernels& /*kernels*/) {}

void Sparsifier::accumulate(std::int64_t /*worker*/, Index /*first*/, std::span<const float> gradient, float scale,
                            std::span<float> accumulator, const kernels::Kernels& kernels) {
  kernels.accumulate(gradient, scale, accumulator);
}

void Sparsifier::keep_residual(std::int64_t /*worker*/, const Selection& /*selection*/, std::span<float> /*accumulator*/) {}

// ---- parameters -------------------------------------------------------------------------------------------------------------------

Parameter choice_parameter(const std::string& name, std::initializer_list<const char*> choices, const std::string& meaning) {
  Parameter parameter{name, *choices.begin(), "", meaning, Json{{"enum", Json::array()}}};
  for (const char* choice : choices) {
    parameter.range += (parameter.range.empty() ? "" : " | ") + std::string(choice);
    parameter.schema["enum"].push_back(choice);
  }
  return parameter;
}

Parameter boolean_parameter(const std::string& name, bool default_value, const std::string& meaning) {
  return {name, default_value, "true | false", meaning, Json{{"type", "boolean"}}};
}

Parameter number_parameter(const std::string& name, double default_value, const std::string& range, const Json& limits,
                           const std::string& meaning) {
  Json schema = limits;
  schema["type"] = "number";
  return {name, default_value, "a number " + range, meaning, schema};
}

Parameter integer_parameter(const std::string& name, std::int64_t default_value, const std::string& range, const Json& limits,
                            const std::string& meaning) {
  Json schema = limits;
  schema["type"] = "integer";
  return {name, default_value, "an integer " + range, meaning, schema};
}

Parameter index_bytes_parameter(std::int64_t default_value) {
  return {"index_bytes", default_value, "4 | 8", "bytes of one index on the wire (8: int64, as the authors send)",
          Json{{"enum", Json::array({4, 8})}}};
}

Parameter index_bytes_by_generation_parameter() {
  return {"index_bytes", 0, "0 | 4 | 8", "bytes of one index on the wire; 0: as the authors send, 8 or (generation 2023a) 4",
          Json{{"enum", Json::array({0, 4, 8})}}};
}

std::int64_t index_bytes_by_generation(const Json& values) {
  const std::int64_t given = values.at("index_bytes").get<std::int64_t>();
  return given != 0 ? given : (values.at("generation") == "2023a" ? 4 : 8);
}

Parameter generation_parameter() {
  return choice_parameter(
      "generation", {"current", "2023a"},
      "current: one flat vector, values all-reduced, residuals 0 at the union; 2023a (the authors' code of February 2023): "
      "tensor by tensor, values gathered, residuals 0 at the own selection");
}

Json resolve_parameters(const SparsifierInfo& info, const Json& given, const std::string& file, const std::string& place) {
  if (!given.is_object()) throw InputError(file, place, "an object with parameters of " + info.name, brief(given));
  Json values = Json::object();
  std::string names;
  for (const Parameter& parameter : info.parameters) {
    values[parameter.name] = parameter.default_value;
    names += (names.empty() ? "" : ", ") + parameter.name;
  }
  for (auto entry = given.begin(); entry != given.end(); ++entry) {
    const std::string& name = entry.key();
    const Json& value = entry.value();
    const auto parameter = std::find_if(info.parameters.begin(), info.parameters.end(), [&](const Parameter& p) { return p.name == name; });
    Json::json_pointer key;
    key.push_back(name);
    const std::string where = place + key.to_string();
    if (parameter == info.parameters.end())
      throw InputError(file, where, names.empty() ? "no parameter (" + info.name + " has none)" : "one of the parameters " + names,
                       "the unknown parameter \"" + name + "\"");
    try {
      validate_json(value, parameter->schema, file);
    } catch (const InputError&) {
      throw InputError(file, where, parameter->range, brief(value));
    }
    values[name] = value;
  }
  return values;
}

// ---- pieces of the vector -----------------------------------------------------------------------------------------------------------

Parameter scope_parameter(const std::string& default_scope) {
  Parameter parameter = choice_parameter("scope", {"global", "layer", "bucket"},
                                         "what the rule is applied to: the whole vector, each layer, or buckets of consecutive layers");
  parameter.default_value = default_scope;
  return parameter;
}

Parameter bucket_bytes_parameter() {
  return integer_parameter("bucket_bytes", 26214400, ">= 4", Json{{"minimum", 4}}, "bytes of gradient in a bucket (scope = bucket)");
}

std::vector<Segment> layer_segments(const ReplayShape& shape) {
  std::vector<Segment> segments;
  for (const traces::Layer& layer : shape.layers)
    if (layer.size > 0) segments.push_back({layer.offset, layer.offset + layer.size});
  return segments;
}

std::vector<Segment> segments_of(const ReplayShape& shape, const Json& values) {
  const std::string scope = values.at("scope").get<std::string>();
  if (scope == "global") return {{0, shape.gradients}};
  const std::vector<Segment> layers = layer_segments(shape);
  if (scope == "layer") return layers;
  const Index bucket = values.at("bucket_bytes").get<Index>() / 4;
  std::vector<Segment> segments;
  for (const Segment& layer : layers) {
    if (!segments.empty() && layer.end - segments.back().begin <= bucket)
      segments.back().end = layer.end;
    else
      segments.push_back(layer);
  }
  return segments;
}

namespace {

// The accumulators of one piece.
class PieceView : public AccumulatorView {
 public:
  PieceView(const AccumulatorView& whole, Index begin) : whole_(whole), begin_(begin) {}
  std::span<const float> range(std::int64_t worker, Index begin, Index end) const override {
    return whole_.range(worker, begin_ + begin, begin_ + end);
  }
  void each_worker(std::int64_t workers, const std::function<void(std::int64_t)>& work,
                   const std::function<void(std::int64_t, WorkerShare&)>& share) const override {
    whole_.each_worker(workers, work, share);
  }
  void select_at_least(std::int64_t worker, Index begin, Index end, float threshold, const kernels::Kernels& kernels,
                       std::vector<Index>& indices) const override {
    const std::size_t old = indices.size();
    whole_.select_at_least(worker, begin_ + begin, begin_ + end, threshold, kernels, indices);
    for (std::size_t i = old; i < indices.size(); ++i) indices[i] -= begin_;
  }
  Index count_at_least(std::int64_t worker, Index begin, Index end, float threshold, const kernels::Kernels& kernels) const override {
    return whole_.count_at_least(worker, begin_ + begin, begin_ + end, threshold, kernels);
  }
  float topk(std::int64_t worker, Index begin, Index end, Index k, const kernels::Kernels& kernels,
             std::vector<Index>& indices) const override {
    const std::size_t old = indices.size();
    const float least = whole_.topk(worker, begin_ + begin, begin_ + end, k, kernels, indices);
    for (std::size_t i = old; i < indices.size(); ++i) indices[i] -= begin_;
    return least;
  }

 private:
  const AccumulatorView& whole_;
  Index begin_;
};

class ByPieces : public Sparsifier {
 public:
  ByPieces(const ReplayShape& shape, const std::vector<Segment>& pieces,
           const std::function<std::unique_ptr<Sparsifier>(const ReplayShape&)>& make)
      : workers_(shape.workers), pieces_(pieces) {
    for (const Segment& piece : pieces) {
      ReplayShape part = shape;
      part.gradients = piece.size();
      part.target_k = std::max<Index>(1, truncated(shape.density, piece.size()));
      part.layers.clear();
      for (traces::Layer layer : shape.layers) {
        if (layer.size == 0 || layer.offset < piece.begin || layer.offset >= piece.end) continue;
        layer.offset -= piece.begin;
        part.layers.push_back(std::move(layer));
      }
      target_k_.push_back(part.target_k);
      parts_.push_back(make(part));
    }
  }

  Accumulation accumulation() const override {
    Accumulation all = Accumulation::plain;
    for (const auto& part : parts_) all = std::max(all, part->accumulation());
    return all;
  }
  bool keeps_residual() const override {
    return std::any_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->keeps_residual(); });
  }
  bool sees_gradient(std::int64_t worker) const override {
    return std::any_of(parts_.begin(), parts_.end(), [&](const auto& part) { return part->sees_gradient(worker); });
  }
  void see_gradient(std::int64_t worker, std::span<const float> gradient, const kernels::Kernels& kernels) override {
    for (std::size_t p = 0; p < parts_.size(); ++p)
      parts_[p]->see_gradient(
          worker, gradient.subspan(static_cast<std::size_t>(pieces_[p].begin), static_cast<std::size_t>(pieces_[p].size())), kernels);
  }

  void accumulate(std::int64_t worker, Index first, std::span<const float> gradient, float scale, std::span<float> accumulator,
                  const kernels::Kernels& kernels) override {
    const Index last = first + std::ssize(gradient);
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      const Index begin = std::max(first, pieces_[p].begin), end = std::min(last, pieces_[p].end);
      if (begin >= end) continue;
      const auto from = static_cast<std::size_t>(begin - first), size = static_cast<std::size_t>(end - begin);
      parts_[p]->accumulate(worker, begin - pieces_[p].begin, gradient.subspan(from, size), scale, accumulator.subspan(from, size),
                            kernels);
    }
  }

  Selection select(std::int64_t iteration, const AccumulatorView& accumulators, const kernels::Kernels& kernels) override {
    chosen_.clear();
    Selection all;
    all.selected.resize(static_cast<std::size_t>(workers_));
    all.work.resize(static_cast<std::size_t>(workers_));
    Index k = 0;
    Json details = Json::array();
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      Selection one = parts_[p]->select(iteration, PieceView(accumulators, pieces_[p].begin), kernels);
      const Index calls = std::ssize(all.exchange);
      all.piece_sizes.push_back(pieces_[p].size());
      const auto append = [&](std::vector<Index>& to, const std::vector<Index>& from) {
        for (const Index index : from) to.push_back(pieces_[p].begin + index);
      };
      // Whether everything is sent, what is contributed and what stays is the same for every piece.
      all.everything = one.everything;
      all.contribution = one.contribution;
      all.residual = one.residual;
      for (std::size_t worker = 0; worker < one.selected.size(); ++worker) append(all.selected[worker], one.selected[worker]);
      append(all.exchanged, one.exchanged);
      for (const CollectiveCall& call : one.exchange) {
        all.exchange.push_back(call);
        if (call.index_range == 0) all.exchange.back().index_range = static_cast<std::uint64_t>(pieces_[p].size());
        all.exchange.back().piece = static_cast<std::int64_t>(p);
      }
      for (std::size_t worker = 0; worker < all.work.size() && !one.work.empty(); ++worker)
        for (KernelWork work : one.work[one.work.size() == 1 ? 0 : worker]) {
          work.before_call += calls;
          work.piece = static_cast<std::int64_t>(p);
          all.work[worker].push_back(std::move(work));
        }
      k += one.target_k.value_or(target_k_[p]);
      details.push_back(one.details);
      chosen_.push_back(std::move(one));
    }
    all.target_k = k;
    if (all.everything) {
      all.selected.clear();
      all.exchanged.clear();
    }
    all.details["pieces"] = std::move(details);
    return all;
  }

  void keep_residual(std::int64_t worker, const Selection& /*selection*/, std::span<float> accumulator) override {
    for (std::size_t p = 0; p < parts_.size(); ++p)
      parts_[p]->keep_residual(
          worker, chosen_[p], accumulator.subspan(static_cast<std::size_t>(pieces_[p].begin), static_cast<std::size_t>(pieces_[p].size())));
  }

 private:
  std::int64_t workers_;
  std::vector<Segment> pieces_;
  std::vector<std::unique_ptr<Sparsifier>> parts_;
  std::vector<Index> target_k_;    // of each piece
  std::vector<Selection> chosen_;  // of this iteration
};

}  // namespace

std::unique_ptr<Sparsifier> make_by_scope(const ReplayShape& shape, const Json& values,
                                          const std::function<std::unique_ptr<Sparsifier>(const ReplayShape&)>& make) {
  if (values.at("scope") == "global") return make(shape);
  return std::make_unique<ByPieces>(shape, segments_of(shape, values), make);
}

Parameter density_schedule_parameter(const std::string& note) {
  return {
      "density_schedule", Json::array(), "a list of [iteration, density]",
      "densities that replace the given one: each holds from its iteration on (warm-up counts)" + note,
      parse_json(R"({"type":"array","items":{"type":"array","minItems":2,"maxItems":2,"items":{"type":"number"}}})", "density_schedule")};
}

DensitySchedule::DensitySchedule(const ReplayShape& shape, const Json& values, bool of_piece)
    : density_(shape.density),
      gradients_(shape.gradients),
      target_k_(shape.target_k),
      whole_target_k_(shape.whole_target_k),
      least_k_(of_piece && values.at("scope") != "global" ? 1 : 0) {
  for (const Json& step : values.at("density_schedule")) {
    const double iteration = step.at(0).get<double>(), density = step.at(1).get<double>();
    const bool ascending = steps_.empty() ? iteration >= 0 : iteration > static_cast<double>(steps_.back().first);
    if (!(ascending && iteration == std::floor(iteration) && iteration < 1e15 && density > 0 && density <= 1))
      throw InputError("density_schedule", "a list of [iteration >= 0, 0 < density <= 1], iterations ascending",
                       brief(values.at("density_schedule")));
    steps_.emplace_back(static_cast<std::int64_t>(iteration), density);
  }
}

const std::pair<std::int64_t, double>* DensitySchedule::step(std::int64_t iteration) const {
  const auto next = std::upper_bound(steps_.begin(), steps_.end(), iteration,
                                     [](std::int64_t at, const std::pair<std::int64_t, double>& step) { return at < step.first; });
  return next == steps_.begin() ? nullptr : &*std::prev(next);
}

double DensitySchedule::density(std::int64_t iteration) const {
  const auto* found = step(iteration);
  return found == nullptr ? density_ : found->second;
}

Index DensitySchedule::k(std::int64_t iteration) const {
  const auto* found = step(iteration);
  return found == nullptr ? target_k_ : std::max(least_k_, truncated(found->second, gradients_));
}

std::optional<Index> DensitySchedule::target_k(std::int64_t iteration) const {
  if (!given()) return std::nullopt;
  return k(iteration);
}

double DensitySchedule::model_k(std::int64_t iteration) const {
  const auto* found = step(iteration);
  if (whole_target_k_ == 0) return static_cast<double>(k(iteration));
  if (found == nullptr) return static_cast<double>(whole_target_k_);
  return std::max(1.0, std::trunc(static_cast<double>(whole_target_k_) * (found->second / density_)));
}

void DensitySchedule::require_k(const std::string& sparsifier) const {
  const auto require = [&](const char* parameter, double density, Index k) {
    if (k < 1)
      throw InputError(parameter, "trunc(density x gradients) >= 1 for " + sparsifier,
                       "trunc(" + number_text(density) + " x " + std::to_string(gradients_) + ") = 0");
  };
  if (!given() || steps_.front().first > 0) require("density", density_, target_k_);
  for (const auto& [from, density] : steps_) require("density_schedule", density, k(from));
}

void DensitySchedule::require_none(const std::string& expected) const {
  if (given()) throw InputError("density_schedule", expected, "a schedule");
}

void count_scheduled_memory(SparsifierInfo& info) {
  const auto scheduled = [](const Parameter& parameter) { return parameter.name == "density_schedule"; };
  if (std::none_of(info.parameters.begin(), info.parameters.end(), scheduled)) return;
  info.state_bytes = [own = info.state_bytes](const ReplayShape& shape, const Json& values) {
    std::uint64_t bytes = own ? own(shape, values) : 0;
    double highest = 0;
    for (const Json& step : values.at("density_schedule")) highest = std::max(highest, std::min(1.0, step.at(1).get<double>()));
    if (highest <= shape.density) return bytes;
    // The replay counts 8 bytes for each of n k + min(n k, N) indices of its own density.
    const auto indices = [&](Index k) {
      const std::uint64_t all = checked_multiply(static_cast<std::uint64_t>(shape.workers), static_cast<std::uint64_t>(k), "workers x k");
      return checked_multiply(8, all + std::min(all, static_cast<std::uint64_t>(shape.gradients)), "selected indices");
    };
    return bytes + (indices(truncated(highest, shape.gradients)) - indices(truncated(shape.density, shape.gradients)));
  };
}

Index truncated(double density, Index size) { return static_cast<Index>(density * static_cast<double>(size)); }

// ---- selection --------------------------------------------------------------------------------------------------------------------

void select_at_least(const AccumulatorView& accumulators, const kernels::Kernels& kernels, std::int64_t worker, Index begin, Index end,
                     float threshold, std::vector<Index>& indices) {
  accumulators.select_at_least(worker, begin, end, threshold, kernels, indices);
}

Index count_at_least(const AccumulatorView& accumulators, const kernels::Kernels& kernels, std::int64_t worker, Index begin, Index end,
                     float threshold) {
  return accumulators.count_at_least(worker, begin, end, threshold, kernels);
}

namespace {

// |a| > x for floats is |a| >= the next float above x. Nothing is above infinity or NaN; everything is above a negative number.
float just_above(float threshold) {
  if (threshold == std::numeric_limits<float>::infinity()) return std::numeric_limits<float>::quiet_NaN();
  return std::nextafter(threshold, std::numeric_limits<float>::infinity());
}

}  // namespace

void select_above(const AccumulatorView& accumulators, const kernels::Kernels& kernels, std::int64_t worker, Index begin, Index end,
                  float threshold, std::vector<Index>& indices) {
  select_at_least(accumulators, kernels, worker, begin, end, just_above(threshold), indices);
}

void topk_of_all(const AccumulatorView& accumulators, const kernels::Kernels& kernels, const ReplayShape& shape, Index k,
                 Selection& selection) {
  selection.selected.resize(static_cast<std::size_t>(shape.workers));
  selection.threshold.resize(selection.selected.size());
  accumulators.each_worker(
      shape.workers,
      [&](std::int64_t worker) {
        const auto at = static_cast<std::size_t>(worker);
        selection.threshold[at] = accumulators.topk(worker, 0, shape.gradients, k, kernels, selection.selected[at]);
      },
      [&](std::int64_t worker, WorkerShare& carry) {
        carry(selection.selected[static_cast<std::size_t>(worker)]);
        carry(selection.threshold[static_cast<std::size_t>(worker)]);
      });
}

Index count_above(const AccumulatorView& accumulators, const kernels::Kernels& kernels, std::int64_t worker, Index begin, Index end,
                  float threshold) {
  return count_at_least(accumulators, kernels, worker, begin, end, just_above(threshold));
}

std::vector<Index> counts_of(const std::vector<std::vector<Index>>& lists) {
  std::vector<Index> counts;
  counts.reserve(lists.size());
  for (const std::vector<Index>& list : lists) counts.push_back(static_cast<Index>(list.size()));
  return counts;
}

Index sum_of(std::span<const Index> counts) { return std::accumulate(counts.begin(), counts.end(), Index{0}); }

Index max_of(std::span<const Index> counts) { return counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end()); }

// ---- exchange ---------------------------------------------------------------------------------------------------------------------

namespace {

CollectiveCall call(Operation operation, const std::string& payload, const std::string& dtype, std::vector<std::uint64_t> bytes) {
  CollectiveCall made;
  made.operation = operation;
  made.payload = payload;
  made.dtype = dtype;
  made.bytes = std::move(bytes);
  return made;
}

}  // namespace

CollectiveCall all_gather(const std::string& payload, const std::string& dtype, std::uint64_t bytes) {
  return call(Operation::all_gather, payload, dtype, {bytes});
}

CollectiveCall all_reduce(const std::string& payload, const std::string& dtype, std::uint64_t bytes) {
  return call(Operation::all_reduce, payload, dtype, {bytes});
}

CollectiveCall broadcast(const std::string& payload, const std::string& dtype, std::uint64_t bytes, std::int64_t root) {
  CollectiveCall made = call(Operation::broadcast, payload, dtype, {bytes});
  made.root = root;
  return made;
}

CollectiveCall padded_all_gather(const std::string& payload, const std::string& dtype, std::span<const Index> counts,
                                 std::uint64_t bytes_per_entry) {
  CollectiveCall made = all_gather(payload, dtype, static_cast<std::uint64_t>(max_of(counts)) * bytes_per_entry);
  for (const Index count : counts) made.bytes_unpadded.push_back(static_cast<std::uint64_t>(count) * bytes_per_entry);
  return made;
}

CollectiveCall all_to_all(const std::string& payload, const std::string& dtype, const std::vector<Index>& counts,
                          std::uint64_t bytes_per_entry, std::vector<std::uint64_t> ranges, bool ranges_of_senders) {
  PartnerBytes parts = PartnerBytes::of_counts(counts, bytes_per_entry);
  parts.ranges = std::move(ranges);
  parts.ranges_of_senders = ranges_of_senders;
  CollectiveCall made = call(Operation::all_to_all, payload, dtype, parts.sent());
  for (const std::uint64_t range : parts.ranges) made.index_range = std::max(made.index_range, range);
  if (parts.workers() > 1) made.parts = std::move(parts);
  return made;
}

CollectiveCall all_to_all_of_counts(std::int64_t workers) {
  return call(Operation::all_to_all, "counts", "int32", {4 * static_cast<std::uint64_t>(workers - 1)});
}

std::vector<Index> counts_by_region(const std::vector<std::vector<Index>>& lists, std::span<const Index> starts) {
  std::vector<Index> counts;
  counts.reserve(lists.size() * starts.size());
  for (const std::vector<Index>& list : lists) {
    auto from = list.begin();
    for (std::size_t region = 0; region < starts.size(); ++region) {
      const auto to = region + 1 < starts.size() ? std::lower_bound(from, list.end(), starts[region + 1]) : list.end();
      counts.push_back(to - from);
      from = to;
    }
  }
  return counts;
}

std::string index_dtype(std::int64_t index_bytes) { return index_bytes == 4 ? "int32" : "int64"; }

Exchange padded_index_exchange(std::span<const Index> counts, Index values, std::int64_t index_bytes) {
  return {all_gather("counts", "int64", 8),
          padded_all_gather("indices", index_dtype(index_bytes), counts, static_cast<std::uint64_t>(index_bytes)),
          all_reduce("values", "float32", 4 * static_cast<std::uint64_t>(values))};
}

Exchange gathered_exchange_2023a(std::span<const Index> counts, std::size_t tensors, std::int64_t index_bytes) {
  return {all_gather("counts", "int64", 8), all_gather("plan", "int64", 8 * tensors), all_gather("plan", "int64", 8 * tensors),
          padded_all_gather("values", "float32", counts, 4),
          padded_all_gather("indices", index_dtype(index_bytes), counts, static_cast<std::uint64_t>(index_bytes))};
}

Exchange gathered_exchange(Index k, std::int64_t index_bytes) {
  return {all_gather("values", "float32", 4 * static_cast<std::uint64_t>(k)),
          all_gather("indices", index_dtype(index_bytes), static_cast<std::uint64_t>(index_bytes * k))};
}

void append_entry_gathers(Exchange& exchange, const std::vector<std::vector<Index>>& counts, std::span<const Segment> pieces,
                          const GatherStyle& style) {
  if (counts.empty()) return;  // nothing is compressed
  const auto append = [&](const std::vector<Index>& sizes, std::uint64_t range) {
    if (style.size_bytes > 0) exchange.push_back(all_gather("counts", "int64", style.size_bytes));
    for (const bool values : {true, false}) {
      const std::string payload = values ? "values" : "indices";
      const std::string dtype = values ? "float32" : index_dtype(style.index_bytes);
      const std::uint64_t bytes = values ? 4 : static_cast<std::uint64_t>(style.index_bytes);
      CollectiveCall call = padded_all_gather(payload, dtype, sizes, bytes);
      if (!style.padded) {
        call.bytes = call.bytes_unpadded;
        call.bytes_unpadded.clear();
      }
      if (!values) call.index_range = range;
      exchange.push_back(std::move(call));
    }
  };
  if (!style.fused) {
    for (std::size_t p = 0; p < counts.size(); ++p) append(counts[p], static_cast<std::uint64_t>(pieces[p].size()));
    return;
  }
  std::vector<Index> sums(counts.front().size(), 0);
  for (const auto& sizes : counts)
    for (std::size_t worker = 0; worker < sums.size(); ++worker) sums[worker] += sizes[worker];
  append(sums, 0);
}

Parameter fused_parameter(bool default_value, const std::string& whose) {
  return boolean_parameter("fused", default_value, "one set of calls for all pieces together, instead of one per piece" + whose);
}

// ---- kernel work ------------------------------------------------------------------------------------------------------------------

void WorkLog::all(const std::string& operation, Index elements, Index selected, std::size_t before_call) {
  for (auto& list : lists_) list.push_back({operation, elements, selected, static_cast<std::int64_t>(before_call), piece_});
}

void WorkLog::each(const std::string& operation, Index elements, std::span<const Index> selected, std::size_t before_call) {
  for (std::size_t worker = 0; worker < lists_.size(); ++worker)
    lists_[worker].push_back({operation, elements, selected[worker], static_cast<std::int64_t>(before_call), piece_});
}

void WorkLog::each_of(const std::string& operation, std::span<const Index> counts, std::size_t before_call) {
  for (std::size_t worker = 0; worker < lists_.size(); ++worker)
    lists_[worker].push_back({operation, counts[worker], counts[worker], static_cast<std::int64_t>(before_call), piece_});
}

void WorkLog::one(std::int64_t worker, const std::string& operation, Index elements, Index selected, std::size_t before_call) {
  lists_[static_cast<std::size_t>(worker)].push_back({operation, elements, selected, static_cast<std::int64_t>(before_call), piece_});
}

void WorkLog::share(std::int64_t worker, WorkerShare& carry) {
  std::vector<KernelWork>& list = lists_[static_cast<std::size_t>(worker)];
  std::size_t size = list.size();
  carry(size);
  list.resize(size);
  for (KernelWork& one : list) {
    carry(one.operation);
    carry(one.elements);
    carry(one.selected);
    carry(one.before_call);
    carry(one.piece);
  }
}

void finish_united_or_gathered(Selection& selection, WorkLog& work, const ReplayShape& shape, const kernels::Kernels& kernels, bool old,
                               std::int64_t index_bytes) {
  const std::vector<Index> counts = counts_of(selection.selected);
  selection.exchanged = kernels.unite(selection.selected, shape.gradients);
  const Index united = std::ssize(selection.exchanged);
  if (old) {
    selection.exchange = gathered_exchange_2023a(counts, layer_segments(shape).size(), index_bytes);
    selection.contribution = Contribution::at_own_selection;
    work.each_of("gather", counts, 0);
    work.each_of("zero", counts, 0);
    work.all("unite", sum_of(counts), united, selection.exchange.size());
  } else {
    selection.exchange = padded_index_exchange(counts, united, index_bytes);
    work.all("unite", sum_of(counts), united, 2);
    work.all("gather", united, united, 2);
    work.all("zero", united, united, 3);
  }
  selection.work = work.take();
}

namespace {

// One number when all are equal, else one per worker.
Json compact(const std::vector<Index>& numbers) {
  if (std::all_of(numbers.begin(), numbers.end(), [&](Index number) { return number == numbers.front(); })) return numbers.front();
  return numbers;
}

Index number_at(const Json& json, const char* key, std::size_t entry, std::int64_t worker, std::int64_t workers) {
  const std::string place = "/work" + ("/" + std::to_string(entry)) + "/" + key;
  const Json value = json.is_object() && json.contains(key) ? json.at(key) : Json();
  if (value.is_number_integer() && value.get<Index>() >= 0) return value.get<Index>();
  if (value.is_array() && std::ssize(value) == workers) {
    const Json& own = value.at(static_cast<std::size_t>(worker));
    if (own.is_number_integer() && own.get<Index>() >= 0) return own.get<Index>();
  }
  throw InputError(place, "a number >= 0, or one for each of " + std::to_string(workers) + " workers", brief(value));
}

}  // namespace

Json work_to_json(const std::vector<std::vector<KernelWork>>& work, std::int64_t workers) {
  // Column c of the list is the j-th occurrence of one operation before one call, over all workers; a worker without it has 0 elements.
  struct Column {
    KernelWork key;
    std::vector<Index> elements, selected;
  };
  std::vector<Column> columns;
  std::map<std::tuple<std::int64_t, std::string, std::int64_t, std::int64_t>, std::size_t> places;
  for (std::int64_t worker = 0; worker < workers && !work.empty(); ++worker) {
    std::map<std::tuple<std::int64_t, std::string, std::int64_t>, std::int64_t> occurrences;
    for (const KernelWork& one : work[work.size() == 1 ? 0 : static_cast<std::size_t>(worker)]) {
      const std::int64_t occurrence = occurrences[{one.before_call, one.operation, one.piece}]++;
      const auto [place, is_new] = places.try_emplace({one.before_call, one.operation, one.piece, occurrence}, columns.size());
      if (is_new)
        columns.push_back(
            {one, std::vector<Index>(static_cast<std::size_t>(workers)), std::vector<Index>(static_cast<std::size_t>(workers))});
      columns[place->second].elements[static_cast<std::size_t>(worker)] = one.elements;
      columns[place->second].selected[static_cast<std::size_t>(worker)] = one.selected;
    }
  }
  std::stable_sort(columns.begin(), columns.end(), [](const Column& a, const Column& b) { return a.key.before_call < b.key.before_call; });
  Json list = Json::array();
  for (const Column& column : columns) {
    list.push_back({{"operation", column.key.operation},
                    {"before_call", column.key.before_call},
                    {"elements", compact(column.elements)},
                    {"selected", compact(column.selected)}});
    if (column.key.piece >= 0) list.back()["piece"] = column.key.piece;
  }
  return list;
}

std::vector<std::vector<KernelWork>> work_from_json(const Json& json, std::int64_t workers) {
  if (!json.is_array()) throw InputError("/work", "a list of kernels", brief(json));
  std::vector<std::vector<KernelWork>> work(static_cast<std::size_t>(workers));
  for (std::size_t entry = 0; entry < json.size(); ++entry) {
    const Json& one = json.at(entry);
    if (!one.is_object() || !one.contains("operation") || !one.at("operation").is_string())
      throw InputError("/work" + ("/" + std::to_string(entry)), "an object with an operation", brief(one));
    for (std::int64_t worker = 0; worker < workers; ++worker)
      work[static_cast<std::size_t>(worker)].push_back(
          {one.at("operation").get<std::string>(), number_at(one, "elements", entry, worker, workers),
           number_at(one, "selected", entry, worker, workers), number_at(one, "before_call", entry, worker, workers),
           one.contains("piece") ? number_at(one, "piece", entry, worker, workers) : -1});
  }
  return work;
}

std::vector<Index> random_subset(Random& random, Index size, Index count) {
  // Floyd's sampling: one draw per index; the j-th draw is below size - count + j + 1.
  std::vector<Index> chosen;
  chosen.reserve(static_cast<std::size_t>(count));
  std::unordered_set<Index> seen(static_cast<std::size_t>(count));
  for (Index top = size - count; top < size; ++top) {
    const Index draw = static_cast<Index>(random.below(static_cast<std::uint64_t>(top) + 1));
    const Index index = seen.contains(draw) ? top : draw;
    seen.insert(index);
    chosen.push_back(index);
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace sparscale::sim
