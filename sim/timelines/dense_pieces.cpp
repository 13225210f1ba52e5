#include "sim/timelines/dense_pieces.hpp"

#include "base/error.hpp"

namespace sparscale::sim {

DenseGradient::DenseGradient(const Json& record, TimelineContext& context) : record_(record), context_(context) {
  for (const LayerTime& layer : context.options().layers) elements_ += layer.elements;
  std::uint64_t bytes = 0;
  for (const Json& entry : record.at("exchange")) {
    call_ = CollectiveCall::from_json(entry, context.workers());
    bytes += call_.bytes_of_all(context.workers()).front();
  }
  if (elements_ <= 0 || bytes % static_cast<std::uint64_t>(elements_) != 0)
    throw RunError("a dense exchange of " + std::to_string(bytes) + " bytes for layers of " + std::to_string(elements_) + " gradients");
  bytes_per_element_ = bytes / static_cast<std::uint64_t>(elements_);
}

Piece DenseGradient::piece(std::int64_t begin, std::int64_t elements) const {
  Piece piece;
  piece.begin = begin;
  piece.calls.emplace_back();
  piece.calls.front().call = call_;
  piece.calls.front().call.bytes = {bytes(elements)};
  for (const Json& item : record_.at("work")) {
    Kernel kernel;
    kernel.operation = item.at("operation").get<std::string>();
    for (std::size_t worker = 0; worker < static_cast<std::size_t>(context_.workers()); ++worker)
      kernel.work_s.push_back(context_.kernel_s(worker, kernel.operation, elements, elements));
    (item.at("before_call").get<std::int64_t>() == 0 ? piece.calls.front().before : piece.after).push_back(std::move(kernel));
  }
  return piece;
}

}  // namespace sparscale::sim
