// What the machine says of itself.
#pragma once

#include <cstdint>
#include <string>

namespace sparscale {

/// Bytes of memory that are available now: of the machine, or what a container's limit leaves, whichever is less. 2^64 - 1 when neither
/// is known.
std::uint64_t available_memory_bytes();

/// The first value of a field of /proc/cpuinfo ("model name", "flags", ...); empty when there is none.
std::string cpuinfo(const std::string& field);

}  // namespace sparscale
