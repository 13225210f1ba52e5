// The few SimGrid calls that differ between 3.32 and 4.1.
#pragma once

#include <simgrid/version.h>

#include <simgrid/s4u.hpp>
#include <string>
#include <vector>

#if SIMGRID_VERSION < 33200
#error "SimGrid 3.32 or newer is needed"
#endif

namespace sparscale::sim::simgrid_compat {

/// The zone that holds all hosts and routes. Since 4.0 the engine comes with one, a Full zone.
inline simgrid::s4u::NetZone* full_root_zone([[maybe_unused]] simgrid::s4u::Engine& engine) {
#if SIMGRID_VERSION >= 40000
  return engine.get_netzone_root();
#else
  return simgrid::s4u::create_full_zone("root");
#endif
}

inline simgrid::s4u::Host* add_host(simgrid::s4u::NetZone* zone, const std::string& name, double speed) {
#if SIMGRID_VERSION >= 40000
  return zone->add_host(name, speed);
#else
  return zone->create_host(name, speed);
#endif
}

inline simgrid::s4u::Link* add_link(simgrid::s4u::NetZone* zone, const std::string& name, double bandwidth_Bps) {
#if SIMGRID_VERSION >= 40000
  return zone->add_link(name, bandwidth_Bps);
#else
  return zone->create_link(name, bandwidth_Bps);
#endif
}

/// One-way route between two hosts of a zone.
inline void add_route(simgrid::s4u::NetZone* zone, simgrid::s4u::Host* from, simgrid::s4u::Host* to,
                      const std::vector<simgrid::s4u::LinkInRoute>& links) {
#if SIMGRID_VERSION >= 33500
  zone->add_route(from, to, links, false);
#else
  zone->add_route(from->get_netpoint(), to->get_netpoint(), nullptr, nullptr, links, false);
#endif
}

/// Calls `callback` when a communication ends. Before 3.34 it is called for other activities as well: there must be none.
template <class Callback>
void on_comm_completion(Callback callback) {
#if SIMGRID_VERSION >= 33400
  simgrid::s4u::Comm::on_completion_cb([callback](const simgrid::s4u::Comm& comm) { callback(comm); });
#else
  simgrid::s4u::Activity::on_completion_cb([callback](const simgrid::s4u::Activity& comm) { callback(comm); });
#endif
}

/// Name of the option that says within which time events count as simultaneous, in seconds.
inline const char* timing_precision_option() {
#if SIMGRID_VERSION >= 33400
  return "precision/timing";
#else
  return "surf/precision";
#endif
}

}  // namespace sparscale::sim::simgrid_compat
