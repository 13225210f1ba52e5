#include "base/machine.hpp"

#include <algorithm>
#include <fstream>
#include <limits>

namespace sparscale {

std::uint64_t available_memory_bytes() {
  std::uint64_t available = std::numeric_limits<std::uint64_t>::max();
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);)
    if (line.starts_with("MemAvailable:")) available = std::min<std::uint64_t>(available, std::stoull(line.substr(13)) * 1024);
  // A container may allow less than the machine has.
  std::string limit;
  std::uint64_t used_bytes = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit && std::ifstream("/sys/fs/cgroup/memory.current") >> used_bytes &&
      limit != "max") {
    const std::uint64_t limit_bytes = std::stoull(limit);
    available = std::min(available, limit_bytes > used_bytes ? limit_bytes - used_bytes : 0);
  }
  return available;
}

std::string cpuinfo(const std::string& field) {
  std::ifstream stream("/proc/cpuinfo");
  for (std::string line; std::getline(stream, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos || !line.starts_with(field)) continue;
    if (line.find_first_not_of(" \t", field.size()) != colon) continue;  // a longer name
    const auto start = line.find_first_not_of(' ', colon + 1);
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

}  // namespace sparscale
