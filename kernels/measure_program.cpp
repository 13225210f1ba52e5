// Measures GPU 0 without the rest of the program: sparscale_kernel_measure OUT.json [MAX_ELEMENTS]. What kernels/gpu-check.sh runs.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>

#include "kernels/measure.hpp"

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: sparscale_kernel_measure OUT.json [MAX_ELEMENTS]\n");
    return 2;
  }
  try {
    sparscale::kernels::MeasureOptions options;
    options.device = "cuda";
    options.samples = 7;
    if (argc > 2) options.max_elements = std::atoll(argv[2]);
    options.progress = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
    const std::string text = sparscale::kernels::measure_profile(options).dump(1) + "\n";
    std::ofstream out(argv[1]);
    out << text;
    out.close();
    if (!out) throw std::runtime_error(std::string("cannot write ") + argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sparscale_kernel_measure: %s\n", error.what());
    return 1;
  }
  return 0;
}
