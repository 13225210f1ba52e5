#include "kernels/profile.hpp"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <sstream>

#include "base/error.hpp"
#include "base/files.hpp"
#include "kernels/cuda/cuda.hpp"
#include "kernels/kernels.hpp"
#include "kernels/live_measure.hpp"
#include "kernels/measure.hpp"
#include "kernels/measure_device.hpp"
#include "sim/sparsifier.hpp"
#include "tests/catch.hpp"
#include "tests/command.hpp"

using sparscale::InputError;
using sparscale::Json;
using namespace sparscale::kernels;

namespace {

Json record(const std::string& operation, std::int64_t elements, std::int64_t selected, double time_s) {
  return {{"operation", operation}, {"backend", "test"}, {"elements", elements}, {"selected", selected},
          {"median_s", time_s},     {"q25_s", time_s},   {"q75_s", time_s}};
}
Json document(const Json& records) {
  return {{"schema_version", 1},
          {"name", "test"},
          {"device", "a device"},
          {"origin", "modelled"},
          {"provenance", "made up for this test"},
          {"context", Json::object()},
          {"records", records}};
}
Profile profile_of(const Json& records) { return Profile::parse(document(records).dump(), "test.json"); }

// t = 3 us + 1 ns N + 10 ns k at three sizes.
Json affine(const std::string& operation) {
  Json records = Json::array();
  for (const std::int64_t n : {100, 1000, 10000})
    for (const std::int64_t k : {std::int64_t{0}, n / 10, n})
      records.push_back(record(operation, n, k, 3e-6 + 1e-9 * static_cast<double>(n) + 1e-8 * static_cast<double>(k)));
  return records;
}

}  // namespace

TEST_CASE("a profile returns what it holds at its points and straight lines in selected between them") {
  const Profile profile = profile_of(affine("threshold_select"));
  CHECK(profile.name() == "test");
  CHECK(profile.device() == "a device");
  CHECK(profile.origin() == "modelled");
  CHECK(profile.records().size() == 9);
  CHECK(profile.content_sha256() == sparscale::sha256_hex(document(affine("threshold_select")).dump()));
  for (const ProfileRecord& known : profile.records()) {
    const KernelTime time = profile.time("threshold_select", known.elements, known.selected);
    CHECK(time.time_s == Approx(known.median_s).epsilon(1e-14));
    CHECK_FALSE(time.extrapolated);
  }
  CHECK(profile.time("threshold_select", 1000, 37).time_s == Approx(3e-6 + 1e-6 + 37e-8));
  CHECK(profile.time("threshold_select", 1000, 550).time_s == Approx(3e-6 + 1e-6 + 550e-8));
  CHECK(profile.time("threshold_select", 0, 0).time_s == 0);
}

TEST_CASE("between sizes the logarithm of the time is linear in the logarithm of N at equal density") {
  const Profile profile = profile_of(affine("topk"));
  // Density 0.05 at N = 2000: 50 of 1000 and 500 of 10000.
  const double small_s = 3e-6 + 1e-6 + 50e-8, large_s = 3e-6 + 1e-5 + 500e-8;
  const double expected_s = small_s * std::pow(large_s / small_s, std::log(2.0) / std::log(10.0));
  CHECK(profile.time("topk", 2000, 100).time_s == Approx(expected_s).epsilon(1e-12));
  // A power law is met exactly, whatever the sizes.
  Json records = Json::array();
  for (const std::int64_t n : {16, 1024, 1000000}) records.push_back(record("accumulate", n, n, 1e-9 * std::pow(n, 0.8)));
  for (const std::int64_t n : {17, 500, 40000, 999999})
    CHECK(profile_of(records).time("accumulate", n, 0).time_s == Approx(1e-9 * std::pow(n, 0.8)).epsilon(1e-12));
}

TEST_CASE("outside its range a profile refuses in one line, or continues the edge and says so") {
  const Profile profile = profile_of(affine("threshold_select"));
  CHECK_THROWS_WITH(profile.time("threshold_select", 10001, 5), ContainsSubstring("test.json") && ContainsSubstring("threshold_select") &&
                                                                    ContainsSubstring("elements from 100 to 10000") &&
                                                                    ContainsSubstring("elements = 10001"));
  CHECK_THROWS_AS(profile.time("threshold_select", 99, 5), InputError);
  CHECK_THROWS_WITH(profile.time("sort", 100, 5), ContainsSubstring("one of threshold_select"));
  CHECK_THROWS_AS(profile.time("threshold_select", 100, 101, true), InputError);
  CHECK_THROWS_AS(profile.time("threshold_select", -1, 0, true), InputError);
  // An affine cost is continued exactly, at the density asked for.
  const KernelTime above = profile.time("threshold_select", 40000, 400, true);
  CHECK(above.extrapolated);
  CHECK(above.time_s == Approx(3e-6 + 4e-5 + 400e-8).epsilon(1e-12));
  const KernelTime below = profile.time("threshold_select", 10, 1, true);
  CHECK(below.extrapolated);
  CHECK(below.time_s == Approx(3e-6 + 1e-7 + 10e-8).epsilon(1e-12));  // no less than the smallest size
  CHECK_FALSE(profile.time("threshold_select", 10000, 0, true).extrapolated);

  const Profile narrow = profile_of(
      {record("topk", 1000, 100, 1e-6), record("topk", 1000, 200, 2e-6), record("topk", 2000, 200, 2e-6), record("topk", 2000, 400, 4e-6)});
  CHECK(narrow.time("topk", 1500, 150).time_s == Approx(1e-6 * std::pow(2, std::log(1.5) / std::log(2))));
  CHECK_THROWS_WITH(narrow.time("topk", 1500, 600), ContainsSubstring("selected from 100 to 200 at 1000 elements"));
  CHECK_THROWS_AS(narrow.time("topk", 1500, 10), InputError);
  CHECK(narrow.time("topk", 1000, 300, true).time_s == Approx(3e-6));
  CHECK(narrow.time("topk", 1000, 1, true).time_s > 0);
}

TEST_CASE("times fall nowhere below the points they come from, even when the points are noisy") {
  Json records = Json::array();
  for (const std::int64_t n : {1000, 2000}) {
    records.push_back(record("topk", n, 1, 5e-6));
    records.push_back(record("topk", n, n / 2, 1e-6));
  }
  const Profile profile = profile_of(records);
  for (const std::int64_t n : {1000, 1500, 2000, 100000})
    for (const std::int64_t k : {Index{0}, Index{1}, n / 4, n / 2, n - 1, n})
      CHECK(profile.time("topk", n, k, true).time_s >= 1e-6 * (1 - 1e-12));
}

TEST_CASE("selected smaller than one at a smaller size is not outside the range") {
  const Profile profile = profile_of(
      {record("topk", 1000, 1, 1e-6), record("topk", 1000, 1000, 2e-6), record("topk", 4000, 1, 2e-6), record("topk", 4000, 4000, 8e-6)});
  CHECK(profile.time("topk", 2000, 1).time_s == Approx(std::sqrt(1e-6 * (2e-6 + 6e-6 / 3999))).epsilon(1e-9));
  CHECK(profile.time("topk", 1000, 0).time_s == Approx(1e-6));
}

TEST_CASE("wrong profiles are refused with the place of the mistake") {
  const auto refused = [](const Json& wrong, const std::string& part) {
    CHECK_THROWS_AS(Profile::parse(wrong.dump(), "wrong.json"), InputError);
    CHECK_THROWS_WITH(Profile::parse(wrong.dump(), "wrong.json"), ContainsSubstring("wrong.json") && ContainsSubstring(part));
  };
  Json wrong = document(Json::array({record("topk", 10, 1, 1e-6)}));
  CHECK_NOTHROW(Profile::parse(wrong.dump(), "right.json"));
  wrong["records"][0]["median_s"] = 0;
  refused(wrong, "/records/0");
  wrong["records"][0] = record("topk", 10, 11, 1e-6);
  refused(wrong, "/records/0/selected");
  wrong["records"][0] = record("sort", 10, 1, 1e-6);
  refused(wrong, "/records/0/operation");
  wrong["records"] = Json::array({record("topk", 10, 1, 1e-6), record("topk", 10, 1, 2e-6)});
  refused(wrong, "/records/1");
  wrong["records"] = Json::array({record("zero", 10, 10, 1e-6), record("zero", 10, 5, 2e-6)});
  refused(wrong, "/records/1");
  wrong["records"] = Json::array();
  refused(wrong, "/records");
  wrong = document(Json::array({record("topk", 10, 1, 1e-6)}));
  wrong["records"][0]["q25_s"] = 2e-6;
  refused(wrong, "q25_s <= median_s");
  wrong = document(Json::array({record("topk", 10, 1, 1e-6)}));
  wrong["origin"] = "guessed";
  refused(wrong, "/origin");
  wrong["origin"] = "measured";
  wrong["speed"] = 1;
  refused(wrong, "speed");
  CHECK_THROWS_WITH(Profile::parse("{\"schema_version\": 1,", "half.json"), ContainsSubstring("half.json") && ContainsSubstring("byte"));
  CHECK_THROWS_AS(Profile::load("no/such/profile.json"), InputError);
}

TEST_CASE("shipped profiles load, name themselves and cover every operation from 1 to 64 Mi elements") {
  const auto names = profile_names();
  REQUIRE(names.size() >= 5);
  for (const std::string& name : names) {
    CAPTURE(name);
    const Profile profile = Profile::load(find_profile(name));
    CHECK(profile.name() == name);
    for (const std::string operation :
         {"accumulate", "threshold_select", "topk", "count", "zero", "gather", "unite", "cast_half", "l2_norm"}) {
      CAPTURE(operation);
      double last_s = 0;
      for (const std::int64_t n : {std::int64_t{1}, std::int64_t{100}, std::int64_t{35000}, std::int64_t{1000000}, std::int64_t{25557032},
                                   std::int64_t{1} << 26}) {
        const double time_s = profile.time(operation, n, std::max<std::int64_t>(1, n / 100)).time_s;
        CHECK(time_s > 0);
        CHECK(time_s < 3);
        CHECK(time_s > 0.2 * last_s);  // a much larger input is not much cheaper
        last_s = time_s;
      }
      CHECK(last_s > 1e-5);
    }
  }
  CHECK(find_profile("some/folder/mine.json") == std::filesystem::path("some/folder/mine.json"));
  CHECK_THROWS_WITH(find_profile("v1000"), ContainsSubstring(names.front()) && ContainsSubstring("v1000"));
}

TEST_CASE("a variant of an operation is chosen behind the profile's name") {
  const Profile plain = Profile::load(find_profile("a100-modelled"));
  const Profile chosen = Profile::load(find_profile("a100-modelled+topk.sampled"));
  CHECK(chosen.name() == "a100-modelled+topk.sampled");
  CHECK(chosen.content_sha256() != plain.content_sha256());
  CHECK(chosen.time("topk", 25000000, 250000).time_s == plain.time("topk.sampled", 25000000, 250000).time_s);
  CHECK(chosen.time("topk", 25000000, 250000).time_s < 0.2 * plain.time("topk", 25000000, 250000).time_s);
  CHECK(chosen.time("unite", 25000000, 250000).time_s == plain.time("unite", 25000000, 250000).time_s);
  const Profile two = Profile::load(find_profile("a100-modelled+topk.radix+unite.bitmap"));
  CHECK(two.time("unite", 25000000, 250000).time_s == plain.time("unite.bitmap", 25000000, 250000).time_s);
  CHECK(two.content_sha256() != chosen.content_sha256());
  CHECK(plain.time("topk.sort", 25000000, 250000).time_s == plain.time("topk", 25000000, 250000).time_s);
  // A fused top-k is the sampled one: with another, both costs are paid.
  const double accumulate_s = plain.time("accumulate", 25000000, 0).time_s,
               fused_s = plain.time("accumulate_topk", 25000000, 250000).time_s;
  CHECK(two.time("accumulate_topk", 25000000, 250000).time_s == accumulate_s + plain.time("topk.radix", 25000000, 250000).time_s);
  CHECK(chosen.time("accumulate_topk", 25000000, 250000).time_s == fused_s);
  CHECK(fused_s < accumulate_s + plain.time("topk.sampled", 25000000, 250000).time_s);
  CHECK(find_profile("some/mine.json+topk.sort") == std::filesystem::path("some/mine.json+topk.sort"));
  CHECK_THROWS_WITH(Profile::load(find_profile("a100-modelled+topk.best")), ContainsSubstring("topk.sampled"));
  CHECK_THROWS_AS(find_profile("a1000-modelled+topk.sampled"), InputError);
  CHECK_THROWS_AS(Profile::load("no/such.json+topk.sampled"), InputError);
}

TEST_CASE("the historic top-k takes what the published logs say") {
  // VGG-16 (14,728,266 parameters) on a V100: 185 ms for one selection; LSTM (28,949,319): 340 ms. Torch 1.x, docs/kernels.md.
  const Profile profile = Profile::load(find_profile("v100-torch-1.x"));
  CHECK(profile.time("topk", 14728266, 14728).time_s == Approx(0.185).epsilon(0.05));
  CHECK(profile.time("topk", 28949319, 28949).time_s == Approx(0.340).epsilon(0.12));
}

TEST_CASE("lists for measuring have the sum and the union that was asked for") {
  for (const auto& [sum, united] :
       std::vector<std::pair<Index, Index>>{{1, 1}, {32, 1}, {1000, 1000}, {1000, 1}, {1000, 37}, {5000, 2500}, {5000, 4000}}) {
    const auto lists = measured_lists(sum, united, 100000);
    Index total = 0;
    std::set<Index> all;
    for (const auto& list : lists) {
      total += static_cast<Index>(list.size());
      CHECK(std::is_sorted(list.begin(), list.end()));
      CHECK(std::set<Index>(list.begin(), list.end()).size() == list.size());
      all.insert(list.begin(), list.end());
    }
    CAPTURE(sum, united);
    CHECK(total == sum);
    CHECK(static_cast<double>(all.size()) == Approx(static_cast<double>(united)).epsilon(0.02));
  }
}

TEST_CASE("a measurement is a valid profile of this machine") {
  MeasureOptions options;
  options.max_elements = 4096;
  options.samples = 3;
  options.name = "here";
  std::vector<std::string> lines;
  options.progress = [&](const std::string& line) { lines.push_back(line); };
  const Json measured = measure_profile(options);
  CHECK(measured.at("origin") == "measured");
  CHECK(measured.contains("held_out_error_median"));
  CHECK(lines.size() >= 5);
  const Profile profile = Profile::parse(measured.dump(), "here.json");
  CHECK(profile.records().front().backend == cpu_kernels().name());
  for (const std::string operation :
       {"accumulate", "threshold_select", "topk", "topk.radix", "topk.sort", "accumulate_select", "accumulate_topk", "count", "zero",
        "gather", "scatter_add", "unite", "random_indices", "cast_half", "l2_norm", "moments", "block_maxima"}) {
    // 4096 elements cost more than one, and between 10 ps and 1 us for each.
    const double time_s = profile.time(operation, 4096, 41).time_s;
    CAPTURE(operation, time_s);
    CHECK(time_s > profile.time(operation, 1, 1).time_s);
    CHECK(time_s > 4096 * 5e-12);
    CHECK(time_s < 4096 * 1e-6);
  }
  options.max_elements = 10;
  CHECK_THROWS_AS(measure_profile(options), InputError);
  options.max_elements = 4096;
  options.device = "tpu";
  CHECK_THROWS_WITH(measure_profile(options), ContainsSubstring("cpu or cuda"));
}

TEST_CASE("modelled profiles are launches plus bytes at the stated share of the bandwidth") {
  // 2^26 elements; V100 900 GB/s, H100 3350 GB/s; 0.85 for streams, 0.70 for sorts; 3 us a launch.
  const std::int64_t n = std::int64_t{1} << 26, k = 671089;  // 1 %
  const double elements = static_cast<double>(n), selected = static_cast<double>(k);
  for (const auto& [name, bandwidth] : {std::pair{"v100-modelled", 900e9}, std::pair{"h100-modelled", 3350e9}}) {
    const Profile profile = Profile::load(find_profile(name));
    CHECK(profile.origin() == "modelled");
    const auto time_s = [&](const char* operation) { return profile.time(operation, n, k).time_s; };
    const auto model_s = [&](double bytes, double launches, double share) { return launches * 3e-6 + bytes / (bandwidth * share); };
    CHECK(time_s("accumulate") == Approx(model_s(12 * elements, 1, 0.85)).epsilon(1e-4));
    CHECK(time_s("threshold_select") == Approx(model_s(4 * elements + 8 * selected, 2, 0.85)).epsilon(1e-4));
    CHECK(time_s("topk") == Approx(model_s(80 * elements + 36 * selected, 13, 0.7)).epsilon(1e-4));
    CHECK(time_s("topk.sampled") == Approx(model_s(4 * elements + 48 * selected, 8, 0.85)).epsilon(1e-4));
    CHECK(time_s("count") == Approx(model_s(4 * elements, 2, 0.85)).epsilon(1e-4));
    CHECK(time_s("cast_half") == Approx(model_s(6 * elements, 1, 0.85)).epsilon(1e-4));
  }
}

TEST_CASE("a live measurement times the calls it is given on the values it is given") {
  const std::vector<float> values = measured_values(50000, 3);
  const std::vector<std::vector<Index>> lists{{1, 5, 9}, {5, 7}};
  const std::vector<Index> exchanged{1, 5, 7, 9};
  LiveMeasurement live(measured_device("cpu", "auto", 1, 1), 3);
  const std::vector<LiveCall> calls{{"accumulate", 50000, 50000},
                                    {"topk", 50000, 500},
                                    {"threshold_select", 20000, 77},
                                    {"zero", 4, 4},
                                    {"gather", 300, 300},
                                    {"unite", 5, 4},
                                    {"l2_norm", 50000, 50000},
                                    {"topk", 0, 0},
                                    {"accumulate_select", 50000, 500},
                                    {"accumulate_topk", 50000, 500},
                                    {"count", 50000, 500},
                                    {"moments", 50000, 0},
                                    {"block_maxima", 50000, 0},
                                    {"cast_half", 50000, 0},
                                    {"scatter_add", 4, 4},
                                    {"random_indices", 70000, 0}};
  CHECK_THROWS_AS(live.profile("empty", "nothing"), InputError);
  live.add(values, calls, lists, exchanged);
  live.add(values, calls, lists, exchanged);
  const Json measured = live.profile("here", "a test's values");
  const Profile profile = Profile::parse(measured.dump(), "here.json");
  CHECK(profile.origin() == "measured");
  CHECK(profile.records().size() == 15);
  for (const Json& record : measured.at("records"))
    CHECK((record.at("samples") == 6 || record.contains("disturbed") || record.at("discarded") > 0));
  CHECK(profile.time("topk", 50000, 500).time_s > 50000 * 1e-12);
  CHECK(profile.time("topk", 50000, 500).time_s < 0.1);
  CHECK(profile.time("accumulate", 50000, 0).time_s > profile.time("zero", 4, 4).time_s);
  CHECK(profile.time("accumulate_topk", 50000, 500).time_s > profile.time("accumulate", 50000, 0).time_s / 2);
  CHECK_THROWS_AS(measured_device("tpu", "auto", 1, 1), InputError);
  CHECK_THROWS_AS(live.add(values, std::vector<LiveCall>{{"topk", 50001, 5}}, lists, exchanged), InputError);
  CHECK_THROWS_WITH(live.add(values, std::vector<LiveCall>{{"sort", 5, 5}}, lists, exchanged), ContainsSubstring("sort"));
}

TEST_CASE("replay --measure writes a profile of its own accumulators that covers its own work") {
  const sparscale::tests::Scratch scratch("live");
  const std::string profile_file = (scratch / "live.json").string(), records_file = (scratch / "records.jsonl").string();
  const std::string replay = "replay --trace digits-cnn-8w --workers 4 --density 0.01 --iterations 3 --sparsifier ";
  for (const std::string sparsifier : {"topk", "deft", "sage"}) {
    CAPTURE(sparsifier);
    const auto plain = sparscale::tests::run_program(replay + sparsifier);
    const auto run = sparscale::tests::run_program(replay + sparsifier + " --measure " + profile_file +
                                                   " --measure-iterations 3 --measure-workers 4 --out " + records_file);
    CHECK(run.err.empty());
    REQUIRE(run.status == 0);
    CHECK(sparscale::tests::slurp(records_file) == plain.out);  // measuring changes nothing
    const Profile profile = Profile::load(profile_file);
    CHECK(profile.name() == "live-" + sparsifier);
    std::size_t timed = 0;
    std::istringstream lines(plain.out);
    for (std::string line; std::getline(lines, line);)
      for (const auto& worker : sparscale::sim::work_from_json(Json::parse(line).at("work"), 4))
        for (const auto& item : worker) {
          if (item.elements == 0) continue;
          CHECK(profile.time(item.operation, item.elements, item.selected).time_s > 0);
          ++timed;
        }
    CHECK(timed > 20);
  }
  // Without a GPU one line says so, before anything is replayed or written; with one a profile of it is written.
  const std::string gpu_file = (scratch / "gpu.json").string();
  const auto gpu = sparscale::tests::run_program(replay + "topk --measure-device cuda --measure " + gpu_file);
  if (cuda::unavailable().empty()) {
    REQUIRE(gpu.status == 0);
    CHECK(Profile::load(gpu_file).records().front().backend == "cuda");
  } else {
    CHECK(gpu.status == 1);
    CHECK(gpu.err == "sparscale: CUDA kernels: " + cuda::unavailable() + "\n");
    CHECK(gpu.out.empty());
    CHECK(!std::filesystem::exists(gpu_file));
  }
  const auto threads = sparscale::tests::run_program(replay + "topk --measure-device cuda --measure-threads 2 --measure " + gpu_file);
  CHECK(threads.status == 2);
  CHECK(threads.err == "sparscale: --measure-threads: expected 1 on a device other than the cpu, found 2\n");
  const auto dense = sparscale::tests::run_program(replay + "dense --measure " + profile_file);
  CHECK(dense.status == 2);
  CHECK(dense.err.find("--measure") != std::string::npos);
}
