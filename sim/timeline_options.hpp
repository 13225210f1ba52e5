// What a timeline needs besides the replay records: the mode and its options, what disturbs the workers and links.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "sim/collective.hpp"

namespace sparscale::sim {

/// The algorithm that carries out each operation of an exchange.
struct CollectiveChoice {
  std::string all_gather = "ring_padded";
  std::string all_reduce = "ring";
  std::string broadcast = "binomial";
  std::string reduce_scatter = "ring";
  std::string reduce = "binomial";
  std::string all_to_all = "pairwise";
  std::string gossip = "exponential";
  std::string sparse_all_reduce = "streaming";
};

/// Recorded iterations [from, to).
struct Window {
  std::int64_t from = 0, to = INT64_MAX;
  bool holds(std::int64_t iteration) const { return iteration >= from && iteration < to; }
};

/// Every worker's device is slower by a random factor in every iteration.
struct Jitter {
  std::string distribution;  // uniform, lognormal, exponential
  double spread = 0;         // uniform: half-width; lognormal: coefficient of variation; exponential: mean of what is added
  std::uint64_t seed = 1;
};

/// Some workers' devices are slower by a factor.
struct Stragglers {
  std::vector<std::int64_t> workers;  // or
  double fraction = 0;                // of the workers, chosen by the seed
  std::uint64_t seed = 1;
  double factor = 1;
  Window window;
};

/// The links of a node, or one link, have an n-th of their bandwidth.
struct Slowed {
  std::int64_t node = -1;
  std::string link;
  double factor = 1;
  Window window;
};

struct Disturbance {
  std::optional<Jitter> jitter;
  std::optional<Stragglers> stragglers;
  std::vector<Slowed> slowed;

  bool of_workers() const { return jitter || stragglers; }
  /// How much longer than stated every worker's device takes for everything in this iteration. Streams "jitter" (of worker and iteration)
  /// and "stragglers" of the seeds. Cost O(workers).
  std::vector<double> factors(std::int64_t iteration, std::int64_t workers) const;
  /// From the experiment's object, which fits its schema. Errors: InputError; `file` and `place` are where it stands.
  static Disturbance from_json(const Json& json, const std::string& file, const std::string& place);
  /// Errors: InputError when a straggler is no worker.
  void check_workers(std::int64_t workers, const std::string& file, const std::string& place) const;
};

/// One layer of the model, in parameter order.
struct LayerTime {
  std::int64_t elements = 0;
  double forward_s = 0, backward_s = 0;
  bool convolution = false;  // a kernel of at least three extents, or what follows one: its bias, a normalisation
};

struct TimelineOptions {
  double forward_time_s = 0;
  double backward_time_s = 0;
  CollectiveChoice collectives;
  bool extrapolate_profile = false;

  std::string mode = "sequential";
  double overlap_slowdown = 1;                      // computing takes this times as long while the worker communicates
  std::int64_t bucket_bytes = 26214400;             // ddp_buckets
  std::int64_t first_bucket_bytes = 1048576;        // ddp_buckets: the first to be ready
  std::int64_t slice_bytes = 200000;                // p3
  std::string by_layer = "window";                  // hybrid: window, kind, fastest, butterfly, ring
  std::int64_t streams = 1;                         // ddp_buckets, layer_wise, hybrid: that communicate side by side
  std::uint64_t gossip_seed = 1;                    // gossip: of random peers
  std::int64_t gossip_segments = default_segments;  // gossip crossover
  std::vector<LayerTime> layers;                    // of the model; modes other than sequential and gossip
  Disturbance disturbance;
};

/// The experiment's object or name, with the defaults of its mode written out: "mode" and the options that belong to it. Errors: InputError
/// on an unknown mode or an option of another mode.
Json resolve_timeline(const Json& given, const std::string& file, const std::string& place);
/// Fills mode and options from a resolved object.
void apply_timeline(const Json& resolved, TimelineOptions& options);

/// Times of the layers: as given one by one, or (layer_times by_elements or equal) the totals shared out. Errors: InputError when
/// layer_times is given and there are only totals.
std::vector<LayerTime> layer_times(const std::vector<std::int64_t>& elements, const std::vector<double>& forward_s,
                                   const std::vector<double>& backward_s, const std::string& layer_times, const std::string& file,
                                   const std::string& place);

}  // namespace sparscale::sim
