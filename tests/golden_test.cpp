// Replay against golden records: what the authors' own classes selected, exchanged and kept on the shipped digits trace, iteration by
// iteration.
#include <zlib.h>

#include <cmath>
#include <sstream>

#include "base/json.hpp"
#include "sim/replay.hpp"
#include "tests/catch.hpp"
#include "traces/trace.hpp"

using namespace sparscale;

namespace {

const std::string source_directory = SPARSCALE_SOURCE_DIRECTORY;

std::vector<Json> read_golden(const std::string& name) {
  const std::string file = source_directory + "/tests/data/golden/" + name + ".jsonl.gz";
  gzFile stream = gzopen(file.c_str(), "rb");
  REQUIRE(stream != nullptr);
  std::string text(1 << 16, '\0'), all;
  for (int read = 0; (read = gzread(stream, text.data(), static_cast<unsigned>(text.size()))) > 0;)
    all.append(text, 0, static_cast<std::size_t>(read));
  gzclose(stream);
  std::vector<Json> records;
  std::istringstream lines(all);
  for (std::string line; std::getline(lines, line);) records.push_back(parse_json(line, file));
  return records;
}

std::vector<std::uint64_t> per_worker(const Json& bytes, std::size_t workers) {
  if (bytes.is_number()) return std::vector<std::uint64_t>(workers, bytes.get<std::uint64_t>());
  return bytes.get<std::vector<std::uint64_t>>();
}

// Compares one record key by key; returns the first difference, or nothing.
std::string difference(const Json& golden, const Json& record, std::size_t workers) {
  for (const auto& [key, expected] : golden.items()) {
    if (key == "update_nonzeros" || key == "update_l2") continue;  // the replay makes no update vector
    if (key == "sage") {
      // alpha, beta, gamma, sample mean and examined density as the authors' class held them after the iteration.
      for (std::size_t worker = 0; worker < workers; ++worker)
        for (const auto& [name, value] : expected.at(worker).items()) {
          const Json& all = record.at("sage").at(name);
          const Json& own = all.is_array() ? all.at(worker) : all;
          // beta holds an exponential, whose last bit differs between libraries; the rule rounds it to float.
          const bool same = name == "beta" ? std::abs(own.get<double>() - value.get<double>()) < 4e-16 : own == value;
          if (!same) return "sage/" + name + " of worker " + std::to_string(worker) + ": " + value.dump() + " against " + own.dump();
        }
      continue;
    }
    if (!record.contains(key)) return "no key " + key;
    const Json& found = record.at(key);
    if (key == "residual_norm") {
      for (std::size_t worker = 0; worker < workers; ++worker)
        if (found.at(worker).get<double>() != Approx(expected.at(worker).get<double>()).epsilon(1e-5))
          return "residual_norm of worker " + std::to_string(worker) + ": " + expected.at(worker).dump() + " against " +
                 found.at(worker).dump();
    } else if (key == "exchange") {
      if (expected.size() != found.size()) return "number of calls";
      for (std::size_t call = 0; call < expected.size(); ++call) {
        const Json &a = expected.at(call), &b = found.at(call);
        if (a.at("op") != b.at("op") || a.at("dtype") != b.at("dtype") ||
            per_worker(a.at("bytes"), workers) != per_worker(b.at("bytes"), workers))
          return "call " + std::to_string(call) + ": " + a.dump() + " against " + b.dump();
      }
    } else if (key == "threshold" && expected.is_array() && found.is_number()) {
      // The golden record names a threshold that is common to all workers once for each.
      for (const Json& one : expected)
        if (one != found) return "threshold: " + expected.dump() + " against " + found.dump();
    } else if (expected != found) {
      return key + ": " + expected.dump() + " against " + found.dump();
    }
  }
  return "";
}

// Replays what the header of a golden file says and compares every record.
void check_golden(const std::string& file, const std::string& sparsifier, const Json& parameters, std::size_t iterations) {
  const std::vector<Json> golden = read_golden(file);
  REQUIRE(golden.size() == iterations + 1);
  const Json& header = golden.front();
  const traces::Trace trace = traces::Trace::open(source_directory + "/traces/samples/digits-cnn-8w");
  sim::ReplayOptions options;
  options.sparsifier = sparsifier;
  options.parameters = parameters;
  options.density = header.at("density").get<double>();
  options.workers = header.at("workers").get<std::int64_t>();
  options.seed = header.at("seed").get<std::uint64_t>();
  options.expansion = "captured";
  options.hashes = true;
  sim::Replay replay(trace, options);
  for (std::size_t t = 0; t < iterations; ++t) {
    INFO(file << " iteration " << t);
    const Json record = replay.next();
    REQUIRE(record.at("target_k") == header.at("target_k"));
    REQUIRE(difference(golden[t + 1], record, static_cast<std::size_t>(options.workers)) == "");
  }
}

}  // namespace

TEST_CASE("Local Top-k replays the authors' records") {
  check_golden("topk.n8.d0.01.t20", "topk", Json::object(), 20);
  check_golden("topk.n5.d0.003.t200", "topk", Json::object(), 200);
}

TEST_CASE("Hard threshold replays the authors' records") {
  check_golden("thresh.n8.d0.01.t20", "hard_threshold", Json::object(), 20);
  check_golden("thresh.n5.d0.003.t200", "hard_threshold", Json::object(), 200);
}

TEST_CASE("MiCRO replays the authors' records") {
  check_golden("micro.n8.d0.01.t20", "micro", Json::object(), 20);
  check_golden("micro.n5.d0.003.t200", "micro", Json::object(), 200);
}

TEST_CASE("ExDyna replays the authors' records") {
  check_golden("exdyna.n8.d0.01.t20", "exdyna", Json::object(), 20);
  check_golden("exdyna.n5.d0.003.t200", "exdyna", Json::object(), 200);
}

TEST_CASE("SAGE replays the authors' records with the authors' samples") {
  check_golden("sage.n8.d0.01.t20", "sage", Json::object(), 20);
  check_golden("sage.n5.d0.003.t200", "sage", Json::object(), 200);
}

TEST_CASE("DEFT replays the authors' records") {
  check_golden("deft.n8.d0.01.t20", "deft", Json::object(), 20);
  check_golden("deft.n5.d0.003.t200", "deft", Json::object(), 200);
}

TEST_CASE("CLT-k replays the authors' records") {
  check_golden("cltk.n8.d0.01.t20", "cltk", Json::object(), 20);
  check_golden("cltk.n5.d0.003.t200", "cltk", Json::object(), 200);
}

TEST_CASE("Global Top-k replays the authors' records") {
  check_golden("gtopk.n8.d0.01.t20", "global_topk", Json::object(), 20);
  check_golden("gtopk.n5.d0.003.t200", "global_topk", Json::object(), 200);
}

TEST_CASE("The 2023a generation replays the authors' records") {
  check_golden("2023a-topk.n8.d0.01.t20", "topk", {{"generation", "2023a"}}, 20);
  check_golden("2023a-thresh.n8.d0.01.t20", "hard_threshold", {{"generation", "2023a"}, {"threshold", 0.0268}}, 20);
  check_golden("2023a-sage.n8.d0.01.t20", "sage", {{"generation", "2023a"}, {"threshold", 0.0268}}, 20);
}

TEST_CASE("Golden records tell rules apart") {
  // The comparison itself: another rule, another density of the same rule and another seed all differ from the records.
  const std::vector<Json> golden = read_golden("micro.n8.d0.01.t20");
  const traces::Trace trace = traces::Trace::open(source_directory + "/traces/samples/digits-cnn-8w");
  const auto first_difference = [&](const std::string& sparsifier, const Json& parameters, double density) {
    sim::ReplayOptions options;
    options.sparsifier = sparsifier;
    options.parameters = parameters;
    options.density = density;
    options.workers = 8;
    options.expansion = "captured";
    options.hashes = true;
    sim::Replay replay(trace, options);
    for (std::size_t t = 0; t < 20; ++t) {
      const std::string found = difference(golden[t + 1], replay.next(), 8);
      if (!found.empty()) return found.substr(0, found.find(':'));
    }
    return std::string("none");
  };
  CHECK(first_difference("micro", Json::object(), 0.01) == "none");
  CHECK(first_difference("micro", {{"index_bytes", 4}}, 0.01) == "call 1");
  CHECK(first_difference("micro", Json::object(), 0.0101) == "selected");
  CHECK(first_difference("exdyna", Json::object(), 0.01) == "selected");
}
