// Networks whose links are slowed for part of a run.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sim/network.hpp"
#include "sim/timeline_options.hpp"

namespace sparscale::sim {

/// Errors: InputError when a node or link of the list is not in the topology; `place` is where the object with the list stands.
void check_slowed(const std::vector<Slowed>& slowed, const platforms::Topology& topology, const std::string& file,
                  const std::string& place);

/// The network of every recorded iteration, made once for each set of slowed links.
class DisturbedNetworks {
 public:
  DisturbedNetworks(std::string name, platforms::Platform platform, std::int64_t workers, std::vector<Slowed> slowed);
  /// Factors of several entries for one link multiply.
  Network& at(std::int64_t iteration);

 private:
  std::string name_;
  platforms::Platform platform_;
  std::int64_t workers_;
  std::vector<Slowed> slowed_;
  std::map<std::vector<bool>, std::unique_ptr<Network>> networks_;  // by which entries hold
};

}  // namespace sparscale::sim
