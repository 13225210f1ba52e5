#include "kernels/measure.hpp"

#include <cstdio>
#include <memory>

#include "base/error.hpp"
#include "experiments/commands/commands.hpp"

namespace sparscale::experiments {

void add_measure_command(CLI::App& program) {
  struct Options {
    kernels::MeasureOptions measure;
    std::string out;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand("measure", "Measure the selection kernels of a device; prints a kernel profile");
  command->add_option("--device", options->measure.device, "cpu or cuda (default cpu)")->check(CLI::IsMember({"cpu", "cuda"}));
  command->add_option("--backend", options->measure.backend, "cpu.scalar, cpu.avx2, cpu.avx512 (default: the fastest here)");
  command->add_option("--threads", options->measure.threads, "cpu: threads that share each call (default 1)")->check(CLI::Range(1, 1024));
  command->add_option("--name", options->measure.name, "Name of the profile (default: made from the device)");
  add_number(*command, "--max-elements", options->measure.max_elements, 1024, std::int64_t{1} << 31,
             "Largest vector, elements (default 67108864)");
  add_number(*command, "--samples", options->measure.samples, 3, 1000, "Samples kept for each point (default 15)");
  command->add_option("--out", options->out, "File for the profile (default: standard output)");
  command->callback([options] {
    options->measure.progress = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
    write_output(kernels::measure_profile(options->measure).dump(1) + "\n", options->out);
  });
}

}  // namespace sparscale::experiments
