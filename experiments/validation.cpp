#include "experiments/validation.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/json.hpp"
#include "sim/network.hpp"

namespace sparscale::experiments {
namespace {

namespace fs = std::filesystem;
using platforms::Platform;

fs::path data_file(const std::string& name) { return data_directory() / "experiments" / "validation" / name; }

using CsvRow = std::map<std::string, std::string>;

// A CSV file with a header; cells may be quoted.
std::vector<CsvRow> read_csv(const fs::path& file) {
  const std::string text = read_file(file);
  std::vector<std::vector<std::string>> lines{{""}};
  bool quoted = false;
  for (const char c : text) {
    if (c == '"')
      quoted = !quoted;
    else if (c == ',' && !quoted)
      lines.back().emplace_back();
    else if (c == '\n' && !quoted)
      lines.push_back({""});
    else if (c != '\r')
      lines.back().back() += c;
  }
  if (lines.back() == std::vector<std::string>{""}) lines.pop_back();
  std::vector<CsvRow> rows;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    if (lines[i].size() != lines[0].size())
      throw InputError(file.string(), "line " + std::to_string(i + 1), std::to_string(lines[0].size()) + " cells",
                       std::to_string(lines[i].size()));
    CsvRow& row = rows.emplace_back();
    for (std::size_t j = 0; j < lines[0].size(); ++j) row[lines[0][j]] = lines[i][j];
  }
  return rows;
}

// The platform with fewer devices used on every node, each with a NIC of its own as far as there are some.
Platform with_devices(Platform platform, std::int64_t devices) {
  if (devices == platform.devices_per_node) return platform;
  platform.devices_per_node = devices;
  Json& node = platform.document.at("node");
  node["devices"] = devices;
  Json& count = node.at("nics").at("count");
  count = std::min(count.get<std::int64_t>(), devices);
  return platform;
}

double time_s(const Platform& platform, const std::string& network_name, sim::Operation operation, const std::string& algorithm,
              const std::vector<std::uint64_t>& sizes) {
  const auto n = static_cast<std::int64_t>(sizes.size());
  const auto network = sim::make_network(network_name, platform, n);
  const auto program = sim::find_collective(operation, algorithm).make(sizes, 0, network->node_of_worker());
  const auto timing = network->time(*program, std::vector<double>(sizes.size(), 0.0));
  return *std::max_element(timing.end_s.begin(), timing.end_s.end());
}

// Reasons of rows that are missed, from missed.json; each must name one such row.
void explain(Validation& validation, const std::string& set) {
  const fs::path file = data_file("missed.json");
  const Json reasons = load_json(file);
  for (const Json& reason : reasons) {
    if (reason.at("set") != set) continue;
    const auto row = std::find_if(validation.rows.begin(), validation.rows.end(), [&](const ValidationRow& one) {
      return one.use == "compared" && one.why.empty() && std::abs(one.error()) > validation.close &&
             reason.at("system") == (one.series.empty() ? one.system : one.series) && reason.at("op") == one.operation &&
             reason.value("algorithm", one.algorithm) == one.algorithm && reason.at("workers") == one.workers &&
             reason.at("bytes") == one.bytes && reason.value("skew", 0.0) == one.skew;
    });
    if (row == validation.rows.end()) throw InputError(file.string(), "", "reasons of rows that are missed", reason.dump());
    row->why = reason.at("why").get<std::string>();
  }
}

void summarise(Validation& validation) {
  std::vector<std::vector<double>> errors;
  for (const ValidationRow& row : validation.rows) {
    std::size_t at = 0;
    while (at < validation.summaries.size() && validation.summaries[at].series != row.series) ++at;
    if (at == validation.summaries.size()) {
      validation.summaries.push_back({.series = row.series});
      errors.emplace_back();
    }
    ValidationSummary& summary = validation.summaries[at];
    ++summary.rows;
    if (row.use != "compared") continue;
    ++summary.compared;
    const double error = std::abs(row.error());
    errors[at].push_back(error);
    if (error <= validation.close) ++summary.close;
    if (row.inside_spread()) ++summary.inside_spread;
  }
  for (std::size_t at = 0; at < errors.size(); ++at) {
    std::sort(errors[at].begin(), errors[at].end());
    const std::size_t count = errors[at].size();
    if (count == 0) continue;
    validation.summaries[at].worst_error = errors[at].back();
    validation.summaries[at].median_error = (errors[at][(count - 1) / 2] + errors[at][count / 2]) / 2;
  }
}

std::string text_of(const char* format, double value) {
  char text[40];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string quoted(const std::string& cell) { return cell.find(',') == std::string::npos ? cell : '"' + cell + '"'; }

// The platform of the ping-pong rows of a series: latency from the smallest, bandwidth from the two largest, whose difference is free of
// the burst with which every message passes the rate limit. Where there are rows of two ranks that send to each other at once (sendrecv),
// their bandwidth is taken: collectives use both directions, which acknowledgements make slower. Times of a pingpong are there and back.
Platform shaped_links(const std::vector<CsvRow>& rows, const std::string& series, const fs::path& file) {
  std::map<double, double> one_way_s, both_ways_s;
  for (const CsvRow& row : rows) {
    if (row.at("series") != series) continue;
    const double bytes = std::stod(row.at("bytes_per_rank")), median_s = std::stod(row.at("median_s"));
    if (row.at("op") == "pingpong") one_way_s[bytes] = median_s / 2;
    if (row.at("op") == "sendrecv") both_ways_s[bytes] = median_s;
  }
  const auto& longest = both_ways_s.empty() ? one_way_s : both_ways_s;
  if (one_way_s.empty() || longest.size() < 2)
    throw InputError(file.string(), "series " + series, "two rows of the operation pingpong", std::to_string(one_way_s.size()));
  const auto largest = std::prev(longest.end()), second = std::prev(largest);
  const double latency_s = one_way_s.begin()->second;
  const double bandwidth_Bps = (largest->first - second->first) / (largest->second - second->second);
  Platform platform = Platform::load(platforms::find_platform("crossbar-10g"));
  platform.name = "shaped-links";
  platform.eager = true;  // as Open MPI was told to send
  platform.document["node"]["nics"]["bandwidth_GBps"] = bandwidth_Bps / 1e9;
  platform.document["node"]["nics"]["latency_us"] = latency_s * 1e6 / 2;
  return platform;
}

}  // namespace

Validation validate_nccl() {
  Validation validation;
  validation.close = 0.25;
  const Json systems = load_json(data_file("nccl_systems.json"));
  for (const CsvRow& cells : read_csv(data_file("nccl_points.csv"))) {
    ValidationRow row;
    row.source = cells.at("source");
    row.system = cells.at("system");
    row.workers = std::stoll(cells.at("gpus"));
    row.nodes = std::stoll(cells.at("nodes"));
    row.bytes = std::stoull(cells.at("bytes"));
    row.measured_s = 1e-6 * std::stod(cells.at("time_us"));
    const std::string& collective = cells.at("collective");
    row.operation = collective.find("all_reduce") != std::string::npos ? "all_reduce" : "all_gather";
    const auto system = std::find_if(systems.begin(), systems.end(), [&](const Json& one) { return one.at("system") == row.system; });
    if (system == systems.end())
      throw InputError(data_file("nccl_systems.json").string(), "", "an entry for the system \"" + row.system + "\"", "none");
    row.network = system->at("network").get<std::string>();
    row.algorithm = "ring";  // nccl chooses by itself
    for (const Json& rule : system->value("algorithms", Json::array()))
      if (row.bytes <= rule.at(0).get<std::uint64_t>() || rule.at(0) == 0) {
        row.algorithm = rule.at(1).get<std::string>();
        break;
      }
    const Platform platform =
        with_devices(Platform::load(platforms::find_platform(system->at("platform").get<std::string>())), row.workers / row.nodes);
    row.platform = platform.name;
    const auto n = static_cast<std::size_t>(row.workers);
    // All-gathers are counted by their result.
    const std::uint64_t own = row.operation == "all_gather" ? row.bytes / n : row.bytes;
    row.simulated_s =
        time_s(platform, row.network, sim::operation_from_name(row.operation), row.algorithm, std::vector<std::uint64_t>(n, own));
    row.use = "compared";
    if (system->contains("middle_bytes") && row.bytes >= system->at("middle_bytes").at(0).get<std::uint64_t>() &&
        row.bytes <= system->at("middle_bytes").at(1).get<std::uint64_t>())
      row.use = "middle";
    for (const Json& bytes : system->value("calibrates", Json::array()))
      if (bytes == row.bytes) row.use = "calibration";
    if (system->contains("not_a_network_time")) row.use = "not_network";
    if (row.network == "nccl") row.algorithm = "nccl";
    validation.rows.push_back(row);
  }
  explain(validation, "nccl");
  summarise(validation);
  return validation;
}

Validation validate_mpi() {
  Validation validation;
  validation.close = 0.05;
  const auto file = data_file("mpi_shaped_links.csv");
  const std::vector<CsvRow> rows = read_csv(file);
  std::map<std::string, Platform> platform_of_series;
  for (const CsvRow& row : rows)
    if (!platform_of_series.contains(row.at("series")))
      platform_of_series.emplace(row.at("series"), shaped_links(rows, row.at("series"), file));
  const std::map<std::string, sim::Operation> operations = {{"allgather", sim::Operation::all_gather},
                                                            {"allgatherv", sim::Operation::all_gather},
                                                            {"allreduce", sim::Operation::all_reduce},
                                                            {"bcast", sim::Operation::broadcast}};
  for (const CsvRow& cells : rows) {
    if (!operations.contains(cells.at("op"))) continue;  // messages between two ranks
    ValidationRow row;
    row.source = "Open MPI 4.1, 20 Mbit/s links, one switch";
    row.system = "shaped links";
    row.platform = platform_of_series.at(cells.at("series")).name;
    row.network = "auto";
    row.workers = row.nodes = std::stoll(cells.at("ranks"));
    row.bytes = std::stoull(cells.at("bytes_per_rank"));
    row.skew = std::stod(cells.at("skew"));
    row.series = cells.at("series");
    row.repeats = std::stoll(cells.at("repeats"));
    row.measured_s = std::stod(cells.at("median_s"));
    row.measured_min_s = std::stod(cells.at("min_s"));
    row.measured_max_s = std::stod(cells.at("max_s"));
    if (!cells.at("core_wait_s").empty()) row.core_wait_s = std::stod(cells.at("core_wait_s"));
    const sim::Operation operation = operations.at(cells.at("op"));
    row.operation = cells.at("op");
    // Open MPI's binomial broadcast sends to all children at once.
    row.algorithm = operation == sim::Operation::broadcast ? "binomial_concurrent" : cells.at("algorithm");
    const auto n = static_cast<std::size_t>(row.workers);
    std::vector<std::uint64_t> sizes(n, row.bytes);
    for (std::size_t i = 0; i < n && row.skew > 0 && row.skew < 1; ++i)
      sizes[i] = static_cast<std::uint64_t>(static_cast<double>(row.bytes) *
                                            (1 - row.skew + 2 * row.skew * static_cast<double>(i) / static_cast<double>(n - 1)));
    if (row.skew > 1) sizes[0] = static_cast<std::uint64_t>(row.skew) * row.bytes;
    row.simulated_s = time_s(platform_of_series.at(row.series), "auto", operation, row.algorithm, sizes);
    row.use = "compared";
    validation.rows.push_back(row);
  }
  explain(validation, "mpi");
  summarise(validation);
  return validation;
}

std::string validation_csv(const Validation& validation) {
  std::string text =
      "source,system,platform,network,op,algorithm,workers,nodes,bytes,skew,measured_s,simulated_s,error,use,series,repeats,"
      "measured_min_s,measured_max_s,core_wait_s,why_missed\n";
  for (const ValidationRow& row : validation.rows) {
    text += quoted(row.source) + ',' + quoted(row.system) + ',' + row.platform + ',' + row.network + ',' + row.operation + ',' +
            row.algorithm + ',' + std::to_string(row.workers) + ',' + std::to_string(row.nodes) + ',' + std::to_string(row.bytes) + ',' +
            text_of("%g", row.skew) + ',' + text_of("%.9g", row.measured_s) + ',' + text_of("%.9g", row.simulated_s) + ',' +
            text_of("%.4f", row.error()) + ',' + row.use + ',' + row.series + ',';
    if (row.repeats > 0)
      text += std::to_string(row.repeats) + ',' + text_of("%.9g", row.measured_min_s) + ',' + text_of("%.9g", row.measured_max_s) + ',' +
              (std::isnan(row.core_wait_s) ? "" : text_of("%.9g", row.core_wait_s));
    else
      text += ",,,";
    text += ',' + quoted(row.why) + '\n';
  }
  return text;
}

std::string validation_text(const Validation& validation) {
  char line[240];
  const auto print = [&line](const char* format, auto... values) {
    std::snprintf(line, sizeof line, format, values...);
    return std::string(line);
  };
  const bool repeated = !validation.rows.empty() && validation.rows.front().repeats > 0;
  std::string text = print("%-18s %-11s %-20s %5s %11s %5s %12s %12s %8s%s\n", repeated ? "series" : "platform", "op", "algorithm", "n",
                           "bytes", "skew", "measured ms", "simulated ms", "error", repeated ? "   fastest to slowest ms" : "");
  for (const ValidationRow& row : validation.rows) {
    text += print("%-18s %-11s %-20s %5lld %11llu %5g %12.4g %12.4g %+7.1f%%", (repeated ? row.series : row.platform).c_str(),
                  row.operation.c_str(), row.algorithm.c_str(), static_cast<long long>(row.workers),
                  static_cast<unsigned long long>(row.bytes), row.skew, 1e3 * row.measured_s, 1e3 * row.simulated_s, 100 * row.error());
    if (repeated)
      text += print("   %.4g to %.4g (%lld)%s", 1e3 * row.measured_min_s, 1e3 * row.measured_max_s, static_cast<long long>(row.repeats),
                    row.inside_spread()                    ? ""
                    : row.simulated_s < row.measured_min_s ? ", simulated is below"
                                                           : ", simulated is above");
    text += row.use == "compared" ? "\n" : ' ' + row.use + '\n';
  }
  bool first = true;
  for (const ValidationRow& row : validation.rows) {
    if (row.use != "compared" || std::abs(row.error()) <= validation.close) continue;
    if (first) text += print("\nMissed by more than %g %%:\n", 100 * validation.close);
    first = false;
    text += (repeated ? row.series : row.system) + ", " + row.operation + ' ' + row.algorithm + ", n = " + std::to_string(row.workers) +
            ", " + std::to_string(row.bytes) + " B" + (row.skew > 0 ? text_of(" skew %g", row.skew) : "") +
            text_of(", %+.1f %%: ", 100 * row.error()) + (row.why.empty() ? "no reason known" : row.why) + '\n';
  }
  text += '\n';
  for (const ValidationSummary& summary : validation.summaries) {
    text += repeated ? summary.series + ": " : "";
    text += print("%zu of %zu rows compared: median error %.1f %%, worst %.1f %%, %zu within %g %%", summary.compared, summary.rows,
                  100 * summary.median_error, 100 * summary.worst_error, summary.close, 100 * validation.close);
    if (repeated) text += print(", %zu between the fastest and the slowest repeat", summary.inside_spread);
    text += '\n';
  }
  return text;
}

}  // namespace sparscale::experiments
