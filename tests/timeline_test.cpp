// The timeline by hand: two or three workers, times that can be added up on paper.
#include "sim/timeline.hpp"

#include <cmath>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "tests/catch.hpp"
#include "tests/timeline_support.hpp"

using namespace sparscale;
using namespace sparscale::sim;
using namespace sparscale::test;

namespace {

TimelineOptions options() {
  TimelineOptions result;
  result.forward_time_s = 10e-6;
  result.backward_time_s = 20e-6;
  return result;
}

Json record(std::int64_t workers, const char* exchange, const char* work) {
  return {{"workers", workers}, {"exchange", parse_json(exchange, "exchange")}, {"work", parse_json(work, "work")}};
}

}  // namespace

TEST_CASE("A worker that selects longer holds up the others: each phase is the growth of the latest clock") {
  const kernels::Profile profile = hand_profile();
  const auto network = make_network("auto", crossbar(), 2);
  Timeline timeline(profile, *network, options());
  // accumulate 1 us on both; select 1 us and 4 us; gather of 1100 B blocks on a ring of two: one step; zero 1 us.
  const IterationTime time = timeline.time(record(2, R"([{"op":"all_gather","payload":"indices","dtype":"int64","bytes":[1100,550]}])",
                                                  R"([{"operation":"accumulate","before_call":0,"elements":100,"selected":0},
                                                      {"operation":"threshold_select","before_call":0,"elements":[100,1000],"selected":[10,10]},
                                                      {"operation":"zero","before_call":1,"elements":100,"selected":0}])"));
  CHECK(time.forward_backward_time_s == Approx(30e-6));
  CHECK(time.selection_time_s == Approx(4e-6));
  // Padded to 1100 bytes; both start when the slower one is there.
  CHECK(time.index_exchange_time_s == Approx(alpha_s + 1100 / bandwidth_Bps));
  CHECK(time.value_exchange_time_s == 0);
  CHECK(time.other_time_s == Approx(2e-6));
  CHECK(time.iteration_time_s == Approx(30e-6 + 4e-6 + alpha_s + 1100 / bandwidth_Bps + 2e-6).epsilon(1e-12));
  CHECK(time.bytes_sent_mean == 1100);
  CHECK(time.messages == 2);
  CHECK_FALSE(time.extrapolated);
  CHECK(time.networks == std::vector<std::string>{"recurrence"});
}

TEST_CASE("Counts and plans belong to the index exchange, values and gradients to the value exchange") {
  const kernels::Profile profile = hand_profile();
  const auto network = make_network("auto", crossbar(), 4);
  Timeline timeline(profile, *network, options());
  const IterationTime time = timeline.time(record(4,
                                                  R"([{"op":"all_gather","payload":"counts","dtype":"int64","bytes":8},
                                                      {"op":"broadcast","payload":"plan","dtype":"int32","bytes":16,"root":1},
                                                      {"op":"all_reduce","payload":"values","dtype":"float32","bytes":4000}])",
                                                  "[]"));
  CHECK(time.index_exchange_time_s == Approx(3 * (alpha_s + 8 / bandwidth_Bps) + 2 * (alpha_s + 16 / bandwidth_Bps)));
  CHECK(time.value_exchange_time_s == Approx(6 * (alpha_s + 1000 / bandwidth_Bps)));
  CHECK(time.selection_time_s + time.other_time_s == 0);
}

TEST_CASE("Un-padded all-gathers send what was selected") {
  const kernels::Profile profile = hand_profile();
  const auto network = make_network("auto", crossbar(), 3);
  TimelineOptions unpadded = options();
  unpadded.collectives.all_gather = "ring";
  const Json gathered =
      record(3, R"([{"op":"all_gather","payload":"indices","dtype":"int64","bytes":800,"bytes_unpadded":[800,80,8]}])", "[]");
  // Ring of three: worker r sends its own block and the one before it.
  const IterationTime ring = Timeline(profile, *network, unpadded).time(gathered);
  CHECK(ring.bytes_sent_max == 880);
  CHECK(ring.bytes_sent_mean == Approx((808 + 880 + 88) / 3.0));
  const IterationTime padded = Timeline(profile, *network, options()).time(gathered);
  CHECK(padded.bytes_sent_mean == 1600);
  // Without chunking the heaviest block goes round just the same.
  CHECK(ring.iteration_time_s == Approx(padded.iteration_time_s).epsilon(1e-12));
}

TEST_CASE("One worker neither sends nor waits") {
  const kernels::Profile profile = hand_profile();
  const auto network = make_network("auto", crossbar(), 1);
  Timeline timeline(profile, *network, options());
  const IterationTime time = timeline.time(record(1, R"([{"op":"all_reduce","payload":"gradient","dtype":"float32","bytes":4000}])", "[]"));
  CHECK(time.iteration_time_s == Approx(30e-6));
  CHECK(time.messages == 0);
  CHECK(time.networks.empty());
}

TEST_CASE("Kernel times outside the profile are an error unless asked for, then they are flagged") {
  const kernels::Profile profile = hand_profile();
  const auto network = make_network("auto", crossbar(), 2);
  const Json large = record(2, "[]", R"([{"operation":"topk","before_call":0,"elements":100000,"selected":10}])");
  Timeline strict(profile, *network, options());
  CHECK_THROWS_AS(strict.time(large), InputError);
  TimelineOptions extrapolating = options();
  extrapolating.extrapolate_profile = true;
  const IterationTime time = Timeline(profile, *network, extrapolating).time(large);
  CHECK(time.extrapolated);
  CHECK(time.selection_time_s > 4e-6);
}

TEST_CASE("The same record twice takes the same time") {
  const kernels::Profile profile = hand_profile();
  const auto network = make_network("auto", crossbar(), 2);
  Timeline timeline(profile, *network, options());
  const Json small = record(2, R"([{"op":"all_reduce","payload":"gradient","dtype":"float32","bytes":4000}])", "[]");
  const Json big = record(2, R"([{"op":"all_reduce","payload":"gradient","dtype":"float32","bytes":8000}])", "[]");
  const double first = timeline.time(small).iteration_time_s;
  CHECK(timeline.time(big).iteration_time_s > first);
  CHECK(timeline.time(small).iteration_time_s == first);
}
