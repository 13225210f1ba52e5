#include "traces/mapping.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.hpp"

namespace sparscale::traces {

Mapping::Mapping(const std::filesystem::path& file) {
  // O_NONBLOCK: a pipe in the place of a file must not hang.
  const int handle = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (handle < 0) throw InputError(file.string(), "", "a readable file", std::strerror(errno));
  struct stat status {};
  if (::fstat(handle, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(handle);
    throw InputError(file.string(), "", "a regular file", "something else");
  }
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ > 0) {
    void* data = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, handle, 0);
    const int reason = errno;
    ::close(handle);
    if (data == MAP_FAILED) throw InputError(file.string(), "", "a file that can be mapped into memory", std::strerror(reason));
    data_ = static_cast<const std::byte*>(data);
  } else {
    ::close(handle);
  }
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace sparscale::traces
