#include "sim/warmup.hpp"

#include <span>
#include <string>

#include "base/error.hpp"

namespace sparscale::sim {
namespace {

constexpr double largest_fallen = 0.75;  // of the learning rate before

class WarmedUp final : public traces::GradientSource {
 public:
  WarmedUp(std::unique_ptr<traces::GradientSource> source, std::int64_t positions, std::int64_t warmup, std::int64_t looped)
      : source_(std::move(source)),
        positions_(positions),
        warmup_(warmup),
        looped_(looped),
        skipped_((looped - warmup % looped) % looped) {}
  std::int64_t workers() const override { return source_->workers(); }
  std::int64_t gradients() const override { return source_->gradients(); }
  std::int64_t position(std::int64_t iteration) const override { return source_->position(of(iteration)); }
  std::span<const float> gradient(std::int64_t iteration, std::int64_t worker) override { return source_->gradient(of(iteration), worker); }
  std::span<const float> piece(std::int64_t iteration, std::int64_t worker, std::int64_t begin, std::int64_t end) override {
    return source_->piece(of(iteration), worker, begin, end);
  }
  bool by_pieces() const override { return source_->by_pieces(); }
  bool form(std::int64_t iteration, std::int64_t worker, std::int64_t begin, std::int64_t end, traces::GradientForm& form) override {
    return source_->form(of(iteration), worker, begin, end, form);
  }
  const traces::ElementOrder* order() const override { return source_->order(); }
  bool known_finite() const override { return source_->known_finite(); }
  bool lies_ready() const override { return source_->lies_ready(); }
  std::unique_ptr<traces::GradientSource> clone() const override {
    auto copy = source_->clone();
    if (!copy) return nullptr;
    return std::make_unique<WarmedUp>(std::move(copy), positions_, warmup_, looped_);
  }

 private:
  // The source's iteration: passes over the window, of which the warm-up takes the first positions only.
  std::int64_t of(std::int64_t iteration) const {
    if (iteration >= warmup_) return (warmup_ + skipped_) / looped_ * positions_ + iteration - warmup_;
    const std::int64_t at = iteration + skipped_;
    return at / looped_ * positions_ + at % looped_;
  }

  std::unique_ptr<traces::GradientSource> source_;
  std::int64_t positions_, warmup_, looped_, skipped_;
};

}  // namespace

std::int64_t warmup_positions(const traces::Trace& trace, const ReplayOptions& options) {
  const std::int64_t positions = trace.iterations();
  if (options.warmup_window < 0 || options.warmup_window > positions)
    throw InputError("warmup window", "0 to " + std::to_string(positions) + ", the iterations of the trace " + trace.info().name,
                     std::to_string(options.warmup_window));
  if (options.warmup_window > 0) return options.warmup_window;
  const std::vector<double>& rate = trace.info().learning_rate;
  if (options.lr_in_accumulator)
    for (std::size_t t = 1; t < rate.size(); ++t)
      if (rate[t] <= largest_fallen * rate[t - 1]) return static_cast<std::int64_t>(t);
  return positions;
}

std::unique_ptr<traces::GradientSource> warmed_up(std::unique_ptr<traces::GradientSource> source, std::int64_t positions,
                                                  std::int64_t warmup, std::int64_t warmup_positions) {
  if (warmup == 0 || warmup_positions == positions) return source;
  return std::make_unique<WarmedUp>(std::move(source), positions, warmup, warmup_positions);
}

}  // namespace sparscale::sim
