// Files: whole reads, atomic writes, checksums.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace sparscale {

/// The whole file. Errors: InputError naming the file when it cannot be opened or read.
std::string read_file(const std::filesystem::path& file);

/// Whether there is a file or folder. What cannot be looked at (no permission, a name that is too long) is not there.
bool path_exists(const std::filesystem::path& path) noexcept;

/// Writes to a temporary name in the same folder, flushes, renames: readers see the old file or the new one, never half. A symbolic link
/// stays and its target is written; a device or pipe (/dev/stdout) takes the bytes directly. Creates missing parent folders.
/// Errors: RunError.
void write_file_atomic(const std::filesystem::path& file, std::string_view content);

/// SHA-256, lower-case hexadecimal.
std::string sha256_hex(std::string_view bytes);
std::string sha256_hex_of_file(const std::filesystem::path& file);
/// SHA-256 over indices as little-endian int64, as the replay records define it.
std::string sha256_hex_of_indices(std::span<const std::int64_t> indices);

/// Where shipped data lie: $SPARSCALE_DATA, share/sparscale beside an installed program, or the source folder it was built from.
std::filesystem::path data_directory();

}  // namespace sparscale
