#include "base/files.hpp"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>

#include "base/error.hpp"

namespace sparscale {
namespace {

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    if (!context_ || EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) != 1) throw RunError("SHA-256 is not available");
  }
  void add(const void* data, std::size_t size) {
    if (EVP_DigestUpdate(context_.get(), data, size) != 1) throw RunError("SHA-256 failed");
  }
  std::string hex() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned int size = 0;
    if (EVP_DigestFinal_ex(context_.get(), digest.data(), &size) != 1) throw RunError("SHA-256 failed");
    std::string text;
    for (unsigned int i = 0; i < size; ++i) {
      text += "0123456789abcdef"[digest[i] >> 4];
      text += "0123456789abcdef"[digest[i] & 15];
    }
    return text;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_;
};

[[noreturn]] void cannot_write(const std::filesystem::path& file) {
  throw RunError("cannot write " + file.string() + ": " + std::strerror(errno));
}

}  // namespace

std::string read_file(const std::filesystem::path& file) {
  std::error_code code;
  if (std::filesystem::is_directory(file, code)) throw InputError(file.string(), "", "a file", "a folder");
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw InputError(file.string(), "", "a readable file", std::strerror(errno));
  std::string content((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  if (stream.bad()) throw InputError(file.string(), "", "a readable file", "a read error");
  return content;
}

bool path_exists(const std::filesystem::path& path) noexcept {
  std::error_code code;
  return std::filesystem::exists(path, code);
}

void write_file_atomic(const std::filesystem::path& path, std::string_view content) {
  std::error_code code;
  const std::filesystem::file_status status = std::filesystem::status(path, code);
  // A rename would put a file in the place of a device.
  const bool directly = std::filesystem::is_character_file(status) || std::filesystem::is_fifo(status);
  std::filesystem::path file = path;
  constexpr int most_links = 40;
  for (int link = 0; !directly && std::filesystem::is_symlink(file, code); ++link) {
    const std::filesystem::path target = std::filesystem::read_symlink(file, code);
    if (code || link == most_links)
      throw RunError("cannot write " + path.string() + ": " + (code ? code.message() : "too many symbolic links"));
    file = file.parent_path() / target;  // an absolute target stands alone
  }
  code.clear();
  if (file.has_parent_path()) std::filesystem::create_directories(file.parent_path(), code);
  if (code) throw RunError("cannot create " + file.parent_path().string() + ": " + code.message());
  // Two machines that share a file system may have a process of the same number each.
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  const std::filesystem::path temporary =
      directly ? file : std::filesystem::path(file.string() + ".tmp." + host + "." + std::to_string(::getpid()));
  const int handle = ::open(temporary.c_str(), directly ? O_WRONLY | O_CLOEXEC : O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (handle < 0) cannot_write(file);
  const auto give_up = [&](bool is_open) {
    const int reason = errno;
    if (is_open) ::close(handle);
    if (!directly) ::unlink(temporary.c_str());
    errno = reason;
    cannot_write(file);
  };
  while (!content.empty()) {
    const ssize_t written = ::write(handle, content.data(), content.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      give_up(true);
    }
    content.remove_prefix(static_cast<std::size_t>(written));
  }
  if (!directly && ::fsync(handle) != 0) give_up(true);
  if (::close(handle) != 0) give_up(false);
  if (!directly && ::rename(temporary.c_str(), file.c_str()) != 0) give_up(false);
}

std::string sha256_hex(std::string_view bytes) {
  Sha256 sum;
  sum.add(bytes.data(), bytes.size());
  return sum.hex();
}

std::string sha256_hex_of_file(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw InputError(file.string(), "", "a readable file", std::strerror(errno));
  Sha256 sum;
  std::string buffer(1 << 20, '\0');
  while (stream.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) || stream.gcount() > 0)
    sum.add(buffer.data(), static_cast<std::size_t>(stream.gcount()));
  if (stream.bad()) throw InputError(file.string(), "", "a readable file", "a read error");
  return sum.hex();
}

std::string sha256_hex_of_indices(std::span<const std::int64_t> indices) {
  static_assert(std::endian::native == std::endian::little, "the hash is defined over little-endian int64");
  Sha256 sum;
  sum.add(indices.data(), indices.size_bytes());
  return sum.hex();
}

std::filesystem::path data_directory() {
  if (const char* set = std::getenv("SPARSCALE_DATA"); set != nullptr && *set != '\0') return set;
  // An installed program has its data in ../share/sparscale, wherever that was moved.
  static const std::filesystem::path found = [] {
    std::error_code code;
    const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", code);
    const std::filesystem::path beside = program.parent_path().parent_path() / "share" / "sparscale";
    for (const std::filesystem::path& folder : {beside, std::filesystem::path(SPARSCALE_DATA_DIRECTORY)})
      if (path_exists(folder / "platforms" / "catalogue")) return folder;
    return std::filesystem::path(SPARSCALE_INSTALLED_DATA_DIRECTORY);
  }();
  return found;
}

}  // namespace sparscale
