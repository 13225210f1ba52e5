// Synthetic gradients from the description of a model (docs/formats.md), for models of which no capture is at hand.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "traces/expansion.hpp"

namespace sparscale::traces {

/// The JSON Schema of model descriptions.
const Json& model_schema();

/// Checks a description against the schema, and that its layers add up to `parameters`; returns how many gradients it has. `name` is what
/// messages call it. Errors: InputError.
std::int64_t check_model(const Json& model, const std::string& name);

/// A shipped description by name, or a file; checked. Errors: InputError.
Json load_model(const std::string& name_or_file);

/// Names of the shipped descriptions, sorted.
std::vector<std::string> shipped_models();

struct SynthesisOptions {
  std::int64_t workers = 8, iterations = 16;
  std::int64_t gradients = 0;  // keep rows of the larger layers until about so many gradients remain; 0: all
  std::uint64_t seed = 1;
};

/// Gradients made on the fly, a function of seed, iteration and worker. Every one is amplitude x sigma x (mean + deviation): sigma is fixed
/// per coordinate and log-normal within its layer; mean is common to the workers and autoregressive in time, deviation a worker's own, both
/// Gaussian. The amplitude is 1 in dense layers. In a row that the worker drew c times it is sqrt(c); other rows of an embedding
/// are exactly zero, and those of a softmax have min(1, e), e being how often the worker was expected to draw it. `manifest` is that of a
/// trace, without "files": name and model say that it is synthetic, and so does `synthetic`, which holds the description. Memory: 16 bytes
/// per gradient.
class SyntheticSource final : public GradientSource {
 public:
  /// `name` is what messages call the description. Errors: InputError.
  SyntheticSource(const Json& model, const std::string& name, const SynthesisOptions& options);
  ~SyntheticSource() override;
  std::int64_t workers() const override;
  std::int64_t gradients() const override;
  std::int64_t position(std::int64_t iteration) const override;
  std::span<const float> gradient(std::int64_t iteration, std::int64_t worker) override;
  const Json& manifest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Writes a synthetic trace (F16 with `half`). Errors: as of SyntheticSource and write_trace().
void synthesize_trace(const Json& model, const std::string& name, const SynthesisOptions& options, const std::filesystem::path& directory,
                      bool half);

}  // namespace sparscale::traces
