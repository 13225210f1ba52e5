#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "base/error.hpp"
#include "experiments/commands/commands.hpp"
#include "experiments/expansion_validity.hpp"
#include "experiments/experiment.hpp"
#include "traces/synthesis.hpp"
#include "traces/trace_import.hpp"
#include "traces/trace_report.hpp"

namespace sparscale::experiments {

void add_trace_command(CLI::App& program) {
  struct Options {
    std::string trace;
    bool json = false;
    std::vector<std::string> files;
    std::string layers, out, drop;
    bool half = false, full = false;
    traces::SynthesisOptions synthesis;
    ExpansionValidityOptions validity;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand("trace", "Look at and check gradient traces");
  command->require_subcommand(1);

  CLI::App* info = command->add_subcommand("info", "What a trace holds: sizes, layers, norms, how alike its workers are");
  info->add_option("trace", options->trace, "Trace directory, or the name of a shipped sample")->required();
  info->add_flag("--json", options->json, "As one JSON object");
  info->add_option("--figure", options->out, "Draw the layers too: a file name that ends in .pdf, .svg or .png");
  info->callback([options] {
    if (const std::string suffix = std::filesystem::path(options->out).extension().string();
        !options->out.empty() && suffix != ".pdf" && suffix != ".svg" && suffix != ".png")
      throw InputError("--figure", "a file name that ends in .pdf, .svg or .png", '"' + options->out + '"');
    const Json report = traces::trace_report(traces::Trace::open(find_trace(options->trace)));
    if (!options->out.empty()) {
      write_output(report.dump(1) + "\n", options->out + ".json");
      if (run_analysis_program("trace_figures.py", {"info", options->out + ".json", options->out}, true) != 0)
        throw RunError("the figure could not be made");
    }
    if (options->json) {
      write_output(report.dump(2, ' ', false, Json::error_handler_t::replace) + "\n", "");
      return;
    }
    std::string text;
    for (const std::string& line : traces::trace_report_lines(report)) text += line + "\n";
    write_output(text, "");
  });

  CLI::App* verify = command->add_subcommand("verify", "Check structure, checksums and that every gradient is finite");
  verify->add_option("trace", options->trace, "Trace directory, or the name of a shipped sample")->required();
  verify->callback([options] {
    const traces::Trace trace = traces::Trace::open(find_trace(options->trace));
    trace.verify_checksums();
    trace.verify_finite();
    write_output(trace.directory().string() + ": verified: " + std::to_string(trace.workers()) + " workers x " +
                     std::to_string(trace.iterations()) + " iterations x " + std::to_string(trace.gradients()) +
                     " gradients, checksums match, all finite\n",
                 "");
  });

  CLI::App* importing = command->add_subcommand("import", "Make a trace of .npy or .safetensors files [iterations, workers, gradients]");
  importing->add_option("files", options->files, "Files; the workers of several follow each other")->required();
  importing
      ->add_option("--layers", options->layers, "JSON: list of layers (name, shape), or an object with it and other keys of trace.json")
      ->required();
  importing->add_option("--out", options->out, "Folder of the new trace")->required();
  importing->add_flag("--half", options->half, "Store F16 with a scale");
  importing->callback([options] {
    traces::import_trace({options->files.begin(), options->files.end()}, load_json(options->layers), options->layers, options->out,
                         options->half);
  });

  CLI::App* exporting = command->add_subcommand("export", "Write a trace's gradients as one array, and its layers beside it");
  exporting->add_option("trace", options->trace, "Trace directory, or the name of a shipped sample")->required();
  exporting->add_option("--out", options->out, "File, .npy or .safetensors; the layers go to FILE.layers.json")->required();
  exporting->callback([options] { traces::export_trace(traces::Trace::open(find_trace(options->trace)), options->out); });

  CLI::App* synthesize = command->add_subcommand("synthesize", "Make a synthetic trace from the description of a model");
  std::string models;
  for (const std::string& name : traces::shipped_models()) models += (models.empty() ? "" : ", ") + name;
  synthesize->add_option("model", options->trace, "Description (JSON file), or one of " + models)->required();
  synthesize->add_option("--out", options->out, "Folder of the new trace")->required();
  synthesize->add_option("--workers", options->synthesis.workers, "Workers W (default 8)");
  synthesize->add_option("--iterations", options->synthesis.iterations, "Iterations T (default 16)");
  synthesize->add_option("--gradients", options->synthesis.gradients,
                         "Keep rows of the larger layers until about so many gradients remain (default: all)");
  synthesize->add_option("--seed", options->synthesis.seed, "Seed (default 1)");
  synthesize->add_flag("--full", options->full, "Store F32 (default: F16 with a scale)");
  synthesize->callback([options] {
    traces::synthesize_trace(traces::load_model(options->trace), options->trace, options->synthesis, options->out, !options->full);
  });

  CLI::App* validity = command->add_subcommand(
      "expansion-validity", "Predict captured workers from a few of them: table of errors, and cases, table and figure in a folder");
  validity->add_option("--traces", options->trace,
                       "Folder of traces with 16 workers or more (default: $SPARSCALE_EXPANSION_TRACES; without, the shipped sample only)");
  CLI::Option* sparsifiers =
      validity->add_option("--sparsifiers", options->validity.sparsifiers, "Besides local top-k, on those traces")->delimiter(',');
  validity->add_option("--seeds", options->validity.seeds, "Seeds to take the mean of (default 3)");
  validity
      ->add_option("--learning-rate-drop", options->drop,
                   "POSITION:FACTOR: instead, how local top-k builds up before and after learning rates are FACTOR times as large from "
                   "that position of the window on")
      ->excludes(sparsifiers);
  validity->add_option("--out", options->out, "Folder for expansion-validity.json, .csv, .txt, .pdf, .svg and .png");
  validity->callback([options] {
    if (const char* set = std::getenv("SPARSCALE_EXPANSION_TRACES"); options->trace.empty() && set != nullptr) options->trace = set;
    options->validity.traces = options->trace;
    if (!options->drop.empty()) options->validity.drop = LearningRateDrop::parse(options->drop);
    const Json report = expansion_validity(options->validity);
    std::string text;
    for (const std::string& line : expansion_validity_lines(report)) text += line + "\n";
    if (!options->out.empty()) {
      const std::filesystem::path folder = options->out;
      write_output(report.dump(1) + "\n", (folder / "expansion-validity.json").string());
      write_output(expansion_validity_csv(report), (folder / "expansion-validity.csv").string());
      write_output(text, (folder / "expansion-validity.txt").string());
      if (run_analysis_program("trace_figures.py", {"validity", options->out}, true) != 0)
        throw RunError("the figure could not be made; the table is in " + options->out);
    }
    write_output(text, "");
  });
}

}  // namespace sparscale::experiments
