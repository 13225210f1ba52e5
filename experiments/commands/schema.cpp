#include <functional>
#include <map>
#include <memory>

#include "experiments/commands/commands.hpp"
#include "experiments/experiment.hpp"
#include "kernels/profile.hpp"
#include "platforms/platform.hpp"
#include "traces/synthesis.hpp"
#include "traces/trace.hpp"

namespace sparscale::experiments {

void add_schema_command(CLI::App& program) {
  static const std::map<std::string, std::function<const Json&()>> schemas = {{"experiment", experiment_schema},
                                                                              {"platform", platforms::platform_schema},
                                                                              {"profile", kernels::profile_schema},
                                                                              {"trace", traces::trace_schema},
                                                                              {"model", traces::model_schema}};
  auto name = std::make_shared<std::string>("experiment");
  CLI::App* command = program.add_subcommand("schema", "Print the JSON Schema of a file format");
  command->add_option("format", *name, "experiment, platform, profile, trace or model (default experiment)")
      ->check(CLI::IsMember({"experiment", "platform", "profile", "trace", "model"}));
  command->callback([name] { write_output(schemas.at(*name)().dump(2) + "\n", ""); });
}

}  // namespace sparscale::experiments
