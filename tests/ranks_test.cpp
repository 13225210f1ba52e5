// Replays whose workers are shared by processes that mpirun has started: records are those of one process, byte by byte.
#include "tests/ranks.hpp"

#include <algorithm>

#include "base/files.hpp"

using namespace sparscale;
using namespace sparscale::tests;

TEST_CASE("Records over 1, 2 and 4 processes are those of one") {
  if (const std::string why = why_no_ranks(); !why.empty()) SPARSCALE_SKIP(why.c_str());
  // 13 workers out of 8 captured: expansion is on, and the blocks of workers are unequal.
  const std::string common = "replay --trace digits-cnn-8w --workers 13 --iterations 3 --hashes --threads 1 --sparsifier ";
  for (const std::string sparsifier :
       {"topk", "hard_threshold", "sage", "deft", "micro", "exdyna", "cltk", "gtopk", "dgc", "oktopk", "omnireduce"}) {
    const std::string arguments = common + sparsifier;
    const CommandResult alone = run_program(arguments);
    check_ranks(4, arguments, alone);
    if (sparsifier == "topk") check_ranks(1, arguments, alone);
    if (sparsifier == "topk" || sparsifier == "deft") check_ranks(2, arguments, alone);
  }
}

TEST_CASE("An error in one of several processes ends all of them with one line") {
  if (const std::string why = why_no_ranks(); !why.empty()) SPARSCALE_SKIP(why.c_str());
  const Scratch scratch("ranks-errors");
  const std::string bad = (scratch / "bad").string();
  // A NaN among the gradients of the last worker, which the last process has.
  std::filesystem::copy(data_directory() / "traces/samples/digits-cnn-8w", bad, std::filesystem::copy_options::recursive);
  const std::filesystem::path file = std::filesystem::path(bad) / "workers.safetensors";
  std::string content = slurp(file);
  REQUIRE(content.size() > 1000);
  std::fill(content.end() - 16, content.end(), '\xff');
  std::filesystem::permissions(file, std::filesystem::perms::owner_write, std::filesystem::perm_options::add);
  spit(file, content);
  const std::string on_the_way = "replay --no-verify --trace '" + bad + "' --workers 8 --sparsifier topk";
  for (const std::string& arguments : {on_the_way, std::string("replay --trace digits-cnn-8w --workers 13 --sparsifier nothing"),
                                       std::string("replay --trace digits-cnn-8w --workers many --sparsifier topk"),
                                       std::string("replay --trace digits-cnn-8w --workers 8 --sparsifier topk --set index_bytes=5")}) {
    const CommandResult alone = run_program(arguments), shared = run_in_ranks(2, arguments);
    INFO(arguments);
    CHECK(alone.status == 2);
    if (arguments == on_the_way) CHECK(alone.err.find("worker 7") != std::string::npos);
    CHECK(shared.status == 2);
    CHECK((shared.out == alone.out));  // the records before it
    CHECK(program_lines(shared.err) == program_lines(alone.err));
  }
  // The first process cannot write when the other has finished.
  const std::string nowhere =
      "replay --trace digits-cnn-8w --workers 8 --iterations 1 --sparsifier topk --out '" + bad + "/trace.json/none'";
  const CommandResult unwritten = run_in_ranks(2, nowhere);
  CHECK(unwritten.status != 0);
  CHECK(program_lines(unwritten.err) == run_program(nowhere).err);
  // What has no meaning over several processes.
  for (const char* arguments :
       {"--workers 1 --trace digits-cnn-8w", "--workers 8 --trace -", "--workers 8 --trace digits-cnn-8w --measure /dev/null"}) {
    const CommandResult shared = run_in_ranks(2, std::string("replay --sparsifier topk ") + arguments);
    INFO(arguments << '\n' << shared.err);
    CHECK(shared.status == 2);
    CHECK(program_lines(shared.err).find("2 processes") != std::string::npos);
  }
}

TEST_CASE("A build without MPI refuses several processes") {
  const Scratch scratch("ranks-none");
  std::filesystem::copy_file(SPARSCALE_PROGRAM, scratch / "sparscale");  // no module beside it
  const std::string command = "OMPI_COMM_WORLD_SIZE=2 '" + (scratch / "sparscale").string() +
                              "' replay --trace digits-cnn-8w --workers 8 --sparsifier topk >'" + (scratch / "out").string() + "' 2>'" +
                              (scratch / "err").string() + "'";
  const int status = std::system(command.c_str());
  CHECK(WEXITSTATUS(status) == 2);
  CHECK(slurp(scratch / "out").empty());
  CHECK(
      slurp(scratch / "err") ==
      "sparscale: mpirun: expected a program that was built with MPI for several processes, found one without it (no sparscale-mpi.so)\n");
}

TEST_CASE("Each of several processes needs the memory of its own workers") {
  if (const std::string why = why_no_ranks(); !why.empty()) SPARSCALE_SKIP(why.c_str());
  // 200 residuals of 34,862 floats are 26.6 MiB; a quarter of them 6.7. The tables of hybrid take 14 in each.
  const std::string arguments =
      "replay --trace digits-cnn-8w --captured 4 --workers 200 --iterations 1 --density 0.001 --threads 1 --sparsifier topk "
      "--memory-limit ";
  CHECK(run_program(arguments + "24").status == 2);
  const CommandResult shared = run_in_ranks(4, arguments + "24");
  INFO(shared.err);
  CHECK(shared.status == 0);
  const CommandResult refused = run_in_ranks(4, arguments + "2");
  CHECK(refused.status == 2);
  CHECK(program_lines(refused.err).find("fits in 2 MiB of memory in each of 4 processes") != std::string::npos);
  CHECK(refused.out.empty());
}
