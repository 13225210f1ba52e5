// What the simulator says of real machines, and network nccl by hand.
#include <cmath>

#include "base/error.hpp"
#include "experiments/validation.hpp"
#include "sim/network.hpp"
#include "tests/catch.hpp"

using namespace sparscale;
using namespace sparscale::experiments;
using platforms::Platform;

namespace {

double nccl_us(const std::string& platform, std::int64_t workers, sim::Operation operation, std::uint64_t bytes) {
  const auto network = sim::make_network("nccl", Platform::load(platforms::find_platform(platform)), workers);
  const auto n = static_cast<std::size_t>(workers);
  const auto program = sim::find_collective(operation, "ring" + std::string(operation == sim::Operation::broadcast ? "_pipelined" : ""))
                           .make(std::vector<std::uint64_t>(n, bytes), 0);
  std::vector<double> start(n, 0.0);
  start.back() = 0.5;
  const auto timing = network->time(*program, start);
  for (const double end : timing.end_s) CHECK(end == timing.end_s.front());  // all wait for the last
  CHECK(timing.network == "nccl");
  return 1e6 * (timing.end_s.front() - 0.5);
}

}  // namespace

TEST_CASE("Network nccl takes the fastest of its algorithms and protocols") {
  using sim::Operation;
  // 8 A100 on 2 nodes of Polaris (AMD: 2 us a step within nodes), 36 GB/s between them.
  // Small ones use one of four channels; LL on a ring of 8 has 32 KiB for each, so that 64 KiB use two and 128 KiB all.
  CHECK(nccl_us("polaris", 8, Operation::all_reduce, 8) == Approx(6.8 + 2 * (3 * 0.6 + 5) + 8 / (36e3 / 2 / 4 / 2)).epsilon(1e-9));
  for (const auto& [block, channels] : {std::pair{128, 1}, {4096, 1}, {8192, 2}, {16384, 4}})
    CHECK(nccl_us("polaris", 8, Operation::all_gather, static_cast<std::uint64_t>(block)) ==
          Approx(6.6 + 6 * 2 + 2.7 + 8 * block / (18e3 * channels / 4 * 8 / 7)).epsilon(1e-9));
  const double gib = 1073741824;
  CHECK(nccl_us("polaris", 8, Operation::all_gather, 134217728) == Approx(8.4 + 6 * 6 + 14 + gib / (36e3 * 8 / 7)).epsilon(1e-9));
  CHECK(nccl_us("polaris", 8, Operation::all_reduce, 1073741824) ==
        Approx(1.4 * (8.4 + 12 * 6 + 2 * 14) + gib / (36e3 * 8 / 14)).epsilon(1e-9));
  CHECK(nccl_us("polaris", 8, Operation::reduce_scatter, 1073741824) == Approx(8.4 + 6 * 6 + 14 + gib / (36e3 * 8 / 7)).epsilon(1e-9));
  // Rings over more than 256 workers of Polaris use Simple, even for small ones.
  CHECK(nccl_us("polaris", 1024, Operation::all_gather, 16) ==
        Approx(8.4 + 768 * 6 + 255 * 14 + 16384 / (36e3 / 4 * 1024 / 1023)).epsilon(1e-9));
  // 8 H100 of one node reduce in the switch.
  CHECK(nccl_us("dgx-h100", 8, Operation::all_reduce, 1073741824) == Approx(23 + gib / (361e3 * 0.85 * 5 / 6)).epsilon(1e-9));
  CHECK(nccl_us("dgx-h100", 8, Operation::broadcast, 1073741824) == Approx(8.4 + 8 * 3.4 + gib / 361e3).epsilon(1e-9));
  double before = 0;
  for (std::uint64_t bytes = 8; bytes <= 1073741824; bytes *= 8) {
    const double now = nccl_us("dgx-a100", 64, Operation::all_gather, bytes);
    CHECK(now >= before);
    before = now;
  }
  const auto network = sim::make_network("nccl", Platform::load(platforms::find_platform("polaris")), 1);
  const auto alone = sim::find_collective(Operation::all_reduce, "ring").make(std::vector<std::uint64_t>{8}, 0);
  CHECK(network->time(*alone, std::vector<double>{0.25}).end_s == std::vector<double>{0.25});
  CHECK_THROWS_WITH(sim::make_network("nccl", Platform::load(platforms::find_platform("crossbar-100g")), 2),
                    ContainsSubstring("the key \"nccl\""));
  const auto reduce = sim::find_collective(Operation::reduce, "binomial").make(std::vector<std::uint64_t>(2, 8), 0);
  CHECK_THROWS_WITH(
      sim::make_network("nccl", Platform::load(platforms::find_platform("polaris")), 2)->time(*reduce, std::vector<double>(2, 0.0)),
      ContainsSubstring("simgrid, recurrence or auto"));
}

TEST_CASE("Public measurements of GPU clusters are met without fitting to them") {
  const Validation validation = validate_nccl();
  REQUIRE(validation.rows.size() == 54);
  std::size_t compared = 0, far = 0;
  for (const ValidationRow& row : validation.rows) {
    REQUIRE(row.simulated_s > 0);
    if (row.use != "compared") continue;
    ++compared;
    INFO(row.system << " n = " << row.workers << " " << row.operation << " " << row.bytes << ": " << row.error());
    // Small messages and MPI's short ones miss more often (docs/validation.md).
    CHECK(std::abs(row.error()) < 0.5);
    if (std::abs(row.error()) > 0.25) ++far;
  }
  CHECK(compared == 40);
  CHECK(far <= 4);
  CHECK(validation.median_error <= 0.10);
}

TEST_CASE("Open MPI over rate-limited links is met with a platform calibrated on ping-pongs") {
  const Validation validation = validate_mpi();
  REQUIRE(validation.rows.size() == 42);
  CHECK(validation.median_error <= 0.05);
  for (const ValidationRow& row : validation.rows) {
    INFO(row.operation << " " << row.algorithm << " n = " << row.workers << " " << row.bytes << " skew " << row.skew << ": "
                       << row.error());
    CHECK(std::abs(row.error()) < 0.25);
  }
}
