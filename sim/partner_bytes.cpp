#include "sim/partner_bytes.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/base64.hpp"
#include "base/checked.hpp"
#include "base/error.hpp"

namespace sparscale::sim {
namespace {

const std::string place = "exchange call /parts";

std::uint64_t added(std::uint64_t a, std::uint64_t b) {
  if (a > UINT64_MAX - b) throw InputError(place, "fewer than 2^64 bytes of a worker", "more");
  return a + b;
}

}  // namespace

PartnerBytes PartnerBytes::of_counts(const std::vector<std::int64_t>& counts, std::uint64_t bytes_per_entry) {
  PartnerBytes parts;
  parts.bytes.reserve(counts.size());
  for (const std::int64_t count : counts)
    parts.bytes.push_back(checked_multiply(static_cast<std::uint64_t>(count), bytes_per_entry, "bytes of a message"));
  const std::size_t n = parts.workers();
  for (std::size_t worker = 0; worker < n; ++worker) parts.bytes[worker * n + worker] = 0;
  return parts;
}

std::size_t PartnerBytes::workers() const {
  const auto n = static_cast<std::size_t>(std::llround(std::sqrt(static_cast<double>(bytes.size()))));
  if (n * n != bytes.size()) throw RunError("an all-to-all with " + std::to_string(bytes.size()) + " messages");
  return n;
}

std::vector<std::uint64_t> PartnerBytes::sent() const {
  const std::size_t n = workers();
  std::vector<std::uint64_t> sums(n, 0);
  for (std::size_t i = 0; i < bytes.size(); ++i) sums[i / n] = added(sums[i / n], bytes[i]);
  return sums;
}

std::vector<std::uint64_t> PartnerBytes::received() const {
  const std::size_t n = workers();
  std::vector<std::uint64_t> sums(n, 0);
  for (std::size_t i = 0; i < bytes.size(); ++i) sums[i % n] = added(sums[i % n], bytes[i]);
  return sums;
}

Json PartnerBytes::to_json() const {
  std::uint64_t unit = 0;
  for (const std::uint64_t one : bytes) unit = std::gcd(unit, one);
  if (unit == 0) unit = 1;
  std::vector<std::uint64_t> counts;
  counts.reserve(bytes.size());
  for (const std::uint64_t one : bytes) counts.push_back(one / unit);
  Json json = {{"unit_bytes", unit}, {"counts", packed_numbers(counts)}};
  if (!ranges.empty()) {
    json["ranges"] = ranges;
    json["ranges_of"] = ranges_of_senders ? "senders" : "receivers";
  }
  return json;
}

PartnerBytes PartnerBytes::from_json(const Json& json, const std::vector<std::uint64_t>& sent) {
  static const Json schema = parse_json(
      R"({"type":"object","required":["unit_bytes","counts"],"additionalProperties":false,
          "dependencies":{"ranges":["ranges_of"],"ranges_of":["ranges"]},
          "properties":{"unit_bytes":{"type":"integer","minimum":1},"counts":{"type":"string"},
          "ranges":{"type":"array","items":{"type":"integer","minimum":0}},"ranges_of":{"enum":["senders","receivers"]}}})",
      "parts");
  validate_json(json, schema, place);
  const std::size_t n = sent.size();
  PartnerBytes parts;
  const auto unit = json.at("unit_bytes").get<std::uint64_t>();
  parts.bytes = unpacked_numbers(json.at("counts").get_ref<const std::string&>(), n * n, place + "/counts");
  for (std::uint64_t& one : parts.bytes) one = checked_multiply(one, unit, "bytes of a message");
  for (std::size_t worker = 0; worker < n; ++worker)
    if (parts.bytes[worker * n + worker] != 0)
      throw InputError(place + "/counts", "nothing from a worker to itself",
                       std::to_string(parts.bytes[worker * n + worker]) + " bytes of worker " + std::to_string(worker));
  const std::vector<std::uint64_t> sums = parts.sent();
  for (std::size_t worker = 0; worker < n; ++worker)
    if (sums[worker] != sent[worker])
      throw InputError(place + "/counts", "the " + std::to_string(sent[worker]) + " bytes that worker " + std::to_string(worker) + " sends",
                       std::to_string(sums[worker]));
  if (json.contains("ranges")) {
    parts.ranges = json.at("ranges").get<std::vector<std::uint64_t>>();
    if (parts.ranges.size() != n)
      throw InputError(place + "/ranges", std::to_string(n) + " numbers, one per worker", std::to_string(parts.ranges.size()));
    parts.ranges_of_senders = json.at("ranges_of") == "senders";
  }
  return parts;
}

std::string packed_numbers(const std::vector<std::uint64_t>& numbers) {
  std::vector<std::uint8_t> bytes;
  const auto append = [&](std::uint64_t number) {
    for (; number >= 128; number >>= 7) bytes.push_back(static_cast<std::uint8_t>(number & 127) | 128);
    bytes.push_back(static_cast<std::uint8_t>(number));
  };
  for (std::size_t i = 0; i < numbers.size();) {
    if (numbers[i] > 0) {
      if (numbers[i] > UINT64_MAX / 2) throw RunError("a number that is too large to be packed");
      append(2 * numbers[i++] - 1);
      continue;
    }
    const auto end = std::find_if(numbers.begin() + static_cast<std::ptrdiff_t>(i), numbers.end(), [](auto number) { return number > 0; });
    const auto run = static_cast<std::uint64_t>(end - numbers.begin()) - i;
    append(2 * (run - 1));
    i += run;
  }
  return base64_of(bytes);
}

std::vector<std::uint64_t> unpacked_numbers(const std::string& text, std::size_t size, const std::string& where) {
  const std::vector<std::uint8_t> bytes = bytes_of_base64(text, where);
  const auto fail = [&](const std::string& found) { throw InputError(where, std::to_string(size) + " packed numbers", found); };
  std::vector<std::uint64_t> numbers;
  numbers.reserve(size);
  for (std::size_t at = 0; at < bytes.size();) {
    std::uint64_t token = 0;
    for (unsigned shift = 0;; shift += 7) {
      if (at == bytes.size()) fail("one that breaks off");
      const std::uint64_t digit = bytes[at] & 127;
      if (shift > 63 || (shift == 63 && digit > 1)) fail("one above 2^64");
      token |= digit << shift;
      if ((bytes[at++] & 128) == 0) break;
    }
    const std::uint64_t half = token / 2 + 1;  // the number, or how many zeros
    if (token % 2 == 1) {
      if (numbers.size() == size) fail("more");
      numbers.push_back(half);
    } else {
      if (half > size - numbers.size()) fail("more");
      numbers.resize(numbers.size() + half, 0);
    }
  }
  if (numbers.size() != size) fail(std::to_string(numbers.size()));
  return numbers;
}

std::vector<std::uint64_t> bytes_from_totals(const std::vector<std::uint64_t>& sent, const std::vector<std::uint64_t>& received) {
  const std::size_t n = sent.size();
  std::vector<std::uint64_t> bytes(n * n, 0);
  double all = 0;
  for (const std::uint64_t one : received) all += static_cast<double>(one);
  for (std::size_t from = 0; from < n; ++from) {
    const double others = all - static_cast<double>(received[from]);
    double share = 0;  // of the receivers so far
    std::uint64_t given = 0;
    for (std::size_t to = 0, passed = 0; to < n; ++to) {
      if (to == from) continue;
      ++passed;
      share += others > 0 ? static_cast<double>(received[to]) / others : 1 / static_cast<double>(n - 1);
      const std::uint64_t until =
          passed + 1 == n ? sent[from]
                          : std::max(given, std::min(sent[from], static_cast<std::uint64_t>(share * static_cast<double>(sent[from]))));
      bytes[from * n + to] = until - given;
      given = until;
    }
  }
  return bytes;
}

}  // namespace sparscale::sim
