// What the tests of the timeline share: numbers that are easy to compute with.
#pragma once

#include <string>
#include <utility>

#include "base/json.hpp"
#include "kernels/profile.hpp"
#include "platforms/platform.hpp"
#include "sim/timeline.hpp"
#include "tests/catch.hpp"

namespace sparscale::test {

/// A profile in which every operation takes 1 us for 100 elements and 4 us for 1000, linear between them, whatever it selects.
inline kernels::Profile hand_profile() {
  Json document = parse_json(
      R"({"schema_version":1,"name":"hand","device":"paper","origin":"measured","provenance":"made up","context":{},"records":[]})",
      "hand");
  for (const char* operation : {"accumulate", "threshold_select", "topk", "zero", "gather", "unite", "cast_half"})
    for (const auto& [elements, time_s] : {std::pair{100, 1e-6}, std::pair{1000, 4e-6}})
      for (const int selected : {0, elements}) {
        const std::string name = operation;
        if (selected == 0 && name != "threshold_select" && name != "topk" && name != "unite") continue;
        document["records"].push_back({{"operation", operation},
                                       {"backend", "hand"},
                                       {"elements", elements},
                                       {"selected", selected},
                                       {"density", static_cast<double>(selected) / elements},
                                       {"median_s", time_s},
                                       {"q25_s", time_s},
                                       {"q75_s", time_s},
                                       {"samples", 1},
                                       {"bytes", 4 * elements}});
      }
  return kernels::Profile::parse(document.dump(), "hand.json");
}

inline constexpr double alpha_s = 4e-6, bandwidth_Bps = 11e9;  // crossbar-100g: two links of 2 us, 11 GB/s

inline platforms::Platform crossbar() { return platforms::Platform::load(platforms::find_platform("crossbar-100g")); }

inline void check_phases_add_up(const sim::IterationTime& time) {
  CHECK(time.forward_backward_time_s + time.selection_time_s + time.index_exchange_time_s + time.value_exchange_time_s +
            time.other_time_s ==
        Approx(time.iteration_time_s).epsilon(1e-12));
}

}  // namespace sparscale::test
