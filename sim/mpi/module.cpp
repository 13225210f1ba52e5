// The module sparscale-mpi.so: the only file that uses MPI (sim/ranks.hpp). Errors of MPI end all ranks, as is its default.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstring>

#include "sim/ranks.hpp"

namespace {

using sparscale::sim::RanksModule;

void all_gather(std::int64_t own, std::int64_t* all) { MPI_Allgather(&own, 1, MPI_INT64_T, all, 1, MPI_INT64_T, MPI_COMM_WORLD); }
void broadcast(void* data, std::uint64_t bytes, int root) { MPI_Bcast(data, static_cast<int>(bytes), MPI_BYTE, root, MPI_COMM_WORLD); }
void finish() { MPI_Finalize(); }
void abort_all(int status) { MPI_Abort(MPI_COMM_WORLD, status); }

}  // namespace

/// Starts MPI. Null when it cannot, or when the functions of another library (SimGrid's, for simulated processes) have been bound.
extern "C" const RanksModule* sparscale_mpi_start() {
  char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(version, &length);
  if (std::strstr(version, "SMPI") != nullptr) return nullptr;
  int provided = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) return nullptr;
  static RanksModule module{0, 1, 1, all_gather, broadcast, finish, abort_all};
  MPI_Comm_rank(MPI_COMM_WORLD, &module.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &module.size);
  MPI_Comm machine;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
  MPI_Comm_size(machine, &module.on_this_machine);
  MPI_Comm_free(&machine);
  return &module;
}
