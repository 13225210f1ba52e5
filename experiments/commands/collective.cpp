#include "sim/collective.hpp"

#include <cstdint>
#include <memory>

#include "base/error.hpp"
#include "base/json.hpp"
#include "experiments/commands/commands.hpp"
#include "sim/collective_command.hpp"

namespace sparscale::experiments {
namespace {

/// A JSON array of numbers >= 0 in a file, one per worker.
template <typename Number>
std::vector<Number> numbers_in(const std::string& file, std::int64_t workers, const char* type) {
  static const Json integers = {{"type", "array"}, {"items", {{"type", "integer"}, {"minimum", 0}}}};
  static const Json numbers = {{"type", "array"}, {"items", {{"type", "number"}, {"minimum", 0}}}};
  const Json document = load_json(file);
  validate_json(document, std::is_integral_v<Number> ? integers : numbers, file);
  if (static_cast<std::int64_t>(document.size()) != workers)
    throw InputError(file, "/", std::to_string(workers) + " " + type + ", one per worker", std::to_string(document.size()));
  return document.get<std::vector<Number>>();
}

/// Bytes of every worker, or of every message of an all-to-all.
void read_bytes(const std::string& file, sim::CollectiveRequest& request) {
  const Json document = load_json(file);
  if (!document.is_array() || document.empty() || !document.front().is_array() || request.operation != "all_to_all") {
    request.bytes = numbers_in<std::uint64_t>(file, request.workers, "integers");
    return;
  }
  static const Json schema = parse_json(R"({"type":"array","items":{"type":"array","items":{"type":"integer","minimum":0}}})", "bytes");
  validate_json(document, schema, file);
  const auto n = static_cast<std::size_t>(request.workers);
  const auto fail = [&](const std::string& place, std::size_t found) {
    throw InputError(file, place, std::to_string(n) + " integers, or as many arrays of them", std::to_string(found));
  };
  if (document.size() != n) fail("/", document.size());
  sim::PartnerBytes parts;
  for (std::size_t worker = 0; worker < n; ++worker) {
    const auto row = document[worker].get<std::vector<std::uint64_t>>();
    if (row.size() != n) fail("/" + std::to_string(worker), row.size());
    if (row[worker] != 0)
      throw InputError(file, "/" + std::to_string(worker) + "/" + std::to_string(worker), "0, as nothing goes from a worker to itself",
                       std::to_string(row[worker]));
    parts.bytes.insert(parts.bytes.end(), row.begin(), row.end());
  }
  request.bytes = parts.sent();
  request.parts = std::move(parts.bytes);
}

}  // namespace

void add_collective_command(CLI::App& program) {
  struct Options {
    sim::CollectiveRequest request;
    std::int64_t bytes = -1;
    std::string bytes_file, start_file;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand("collective", "Time one collective on a platform; prints one JSON object");
  command->add_option("--platform", options->request.platform, "A name from 'sparscale list platforms', or a platform file")->required();
  add_number(*command, "--workers", options->request.workers, 1, most_workers, "Workers n")->required();
  command
      ->add_option("--op", options->request.operation,
                   "all_gather, all_reduce, reduce_scatter, broadcast, reduce, all_to_all, gossip, sparse_all_reduce")
      ->required();
  command->add_option("--algorithm", options->request.algorithm, "A name from 'sparscale list collectives'")->required();
  CLI::Option* bytes = add_number(*command, "--bytes", options->bytes, 0, std::numeric_limits<std::int64_t>::max(),
                                  "Bytes of every worker: its block of an all-gather, the whole buffer elsewhere");
  command
      ->add_option("--bytes-file", options->bytes_file,
                   "JSON array of bytes, one per worker; of an all_to_all also n arrays of n: what each worker sends to each")
      ->excludes(bytes);
  command->add_option("--start-file", options->start_file, "JSON array of seconds at which the workers enter (default: all at 0)");
  command->add_option("--network", options->request.network, "simgrid, recurrence, auto or nccl (default auto)");
  command->add_option("--placement", options->request.placement, "consecutive, round_robin or random:SEED (default: the platform's)");
  add_number(*command, "--chunk-bytes", options->request.chunk_bytes, 1, std::numeric_limits<std::int64_t>::max(),
             "Chunks of pipelined algorithms (default 262144)");
  add_number(*command, "--round", options->request.round, 0, std::numeric_limits<std::int64_t>::max(),
             "Iteration, which chooses the peers of gossip (default 0)");
  add_number(*command, "--segments", options->request.segments, 1, sim::most_segments, "Segments of gossip crossover (default 8)");
  add_number(*command, "--root", options->request.root, 0, most_workers, "Root of a broadcast (default 0)");
  command->callback([options] {
    sim::CollectiveRequest& request = options->request;
    if (!options->bytes_file.empty()) {
      read_bytes(options->bytes_file, request);
    } else {
      if (options->bytes < 0) throw InputError("--bytes", "a number of bytes, or --bytes-file", "neither");
      request.bytes = {static_cast<std::uint64_t>(options->bytes)};
    }
    if (!options->start_file.empty()) request.start_s = numbers_in<double>(options->start_file, request.workers, "numbers");
    write_output(sim::run_collective(request).dump() + "\n", "");
  });
}

}  // namespace sparscale::experiments
