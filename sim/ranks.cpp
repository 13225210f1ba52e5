#include "sim/ranks.hpp"

#include <dlfcn.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>
#include <optional>
#include <string_view>

#include "base/error.hpp"

namespace sparscale::sim {
namespace {

constexpr const char* module_name = "sparscale-mpi.so";

std::optional<int> number_in_environment(const char* name) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return std::nullopt;
  int number = 0;
  const std::string_view whole(text);
  const auto [end, code] = std::from_chars(whole.data(), whole.data() + whole.size(), number);
  if (code != std::errc() || end != whole.data() + whole.size()) return std::nullopt;
  return number;
}

// Processes that a launcher (Open MPI's, one with PMI, Slurm's with PMIx) says it has started; 0: it does not say how many.
int ranks_in_environment() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (const auto size = number_in_environment(name)) return *size;
  if (!number_in_environment("PMIX_RANK")) return 1;
  return number_in_environment("SLURM_STEP_NUM_TASKS").value_or(0);
}

// Beside the program, or where it is installed.
std::filesystem::path find_module() {
  std::error_code code;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", code);
  for (const char* place : {"", "../" SPARSCALE_MPI_MODULE_FOLDER}) {
    const std::filesystem::path file = program.parent_path() / place / module_name;
    if (std::filesystem::exists(file, code)) return file;
  }
  return {};
}

}  // namespace

int Ranks::rank_in_environment() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"})
    if (const auto rank = number_in_environment(name)) return *rank;
  return 0;
}

std::unique_ptr<Ranks> Ranks::start() {
  const int expected = ranks_in_environment();
  if (expected == 1) return nullptr;
  const std::filesystem::path file = find_module();
  if (file.empty())
    throw InputError("mpirun", "a program that was built with MPI for several processes",
                     "one without it (no " + std::string(module_name) + ")");
  // Bound on its own: libsimgrid, which is loaded already, has functions of the same names.
  void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (library == nullptr) throw RunError(std::string("cannot load MPI: ") + ::dlerror());
  const auto begin = reinterpret_cast<const RanksModule* (*)()>(::dlsym(library, "sparscale_mpi_start"));
  const RanksModule* const module = begin == nullptr ? nullptr : begin();
  if (module == nullptr) throw RunError("cannot start MPI from " + file.string());
  if (module->size == 1) {
    module->finish();
    return nullptr;
  }
  return std::make_unique<Ranks>(*module);
}

std::int64_t Ranks::begin_of(int rank, std::int64_t workers) const {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(workers) * static_cast<std::uint64_t>(rank) /
                                   static_cast<std::uint64_t>(size()));
}

int Ranks::owner_of(std::int64_t worker, std::int64_t workers) const {
  int rank = 0;
  while (begin_of(rank + 1, workers) <= worker) ++rank;
  return rank;
}

RanksFailed Ranks::failure_of(const std::vector<std::int64_t>& all, RanksFailed own) {
  int failed = 0;
  while (all[static_cast<std::size_t>(failed)] >= 0) ++failed;
  std::uint64_t head[2] = {static_cast<std::uint64_t>(own.status), own.text.size()};
  send(head, sizeof head, failed);
  own.status = static_cast<int>(head[0]);
  own.text.resize(head[1]);
  send(own.text.data(), head[1], failed);
  return own;
}

// Every exchange starts with it, so that a rank that has failed meets the others wherever they are. Numbers of the ranks; negative: failed.
std::vector<std::int64_t> Ranks::meet(std::int64_t own) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(size()));
  module_.all_gather(own, all.data());
  for (const std::int64_t number : all)
    if (number < 0) throw failure_of(all, {});
  return all;
}

void Ranks::send(void* data, std::uint64_t bytes, int root) {
  constexpr std::uint64_t most = std::uint64_t{1} << 30;  // MPI counts in int
  for (std::uint64_t done = 0; done < bytes; done += most)
    module_.broadcast(static_cast<std::byte*>(data) + done, std::min(most, bytes - done), root);
}

std::vector<std::vector<std::byte>> Ranks::gather(std::span<const std::byte> own) {
  const std::vector<std::int64_t> sizes = meet(std::ssize(own));
  std::vector<std::vector<std::byte>> all;
  try {
    for (const std::int64_t bytes : sizes) all.emplace_back(static_cast<std::size_t>(bytes));
  } catch (const std::bad_alloc&) {  // the others are in the middle of the exchange
    std::fprintf(stderr, "sparscale: out of memory on rank %d\n", rank());
    module_.abort(1);
  }
  if (!own.empty()) std::memcpy(all[static_cast<std::size_t>(rank())].data(), own.data(), own.size());
  for (int root = 0; root < size(); ++root)
    send(all[static_cast<std::size_t>(root)].data(), static_cast<std::uint64_t>(sizes[static_cast<std::size_t>(root)]), root);
  return all;
}

void Ranks::broadcast(std::span<std::byte> data, int root) {
  meet(0);
  send(data.data(), data.size(), root);
}

void Ranks::broadcast_list(std::vector<std::int64_t>& list, int root) {
  const auto size = static_cast<std::size_t>(meet(std::ssize(list))[static_cast<std::size_t>(root)]);
  try {
    list.resize(size);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "sparscale: out of memory on rank %d\n", rank());
    module_.abort(1);
  }
  send(list.data(), size * sizeof(std::int64_t), root);
}

void Ranks::finish() {
  meet(0);
  module_.finish();
}

int Ranks::leave(const std::exception_ptr& error) {
  RanksFailed failure;
  bool known = false;
  try {
    std::rethrow_exception(error);
  } catch (const RanksFailed& agreed) {
    failure = agreed;
    known = true;
  } catch (const InputError& input) {
    failure.status = 2;
    failure.text = input.what();
  } catch (const std::bad_alloc&) {
    failure.text = "out of memory";
  } catch (const std::exception& other) {
    failure.text = other.what();
  }
  if (!known) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(size()));
    module_.all_gather(-1, all.data());
    failure = failure_of(all, std::move(failure));
  }
  if (first()) std::fprintf(stderr, "sparscale: %s\n", failure.text.c_str());
  std::fflush(stderr);
  module_.finish();  // the others wait for that line
  return failure.status;
}

}  // namespace sparscale::sim
