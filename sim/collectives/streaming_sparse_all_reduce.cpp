// Streaming aggregation: workers send the blocks that they have to aggregators, which send every sum to all once its last part is there.
// The vector is cut into stretches that follow one another, so that the sums of one are on their way back while the next one comes in.
// Aggregators are workers, evenly spread; the blocks of a stretch are dealt out to them in turn. Lane 0 of a worker carries the parts,
// lane 1 the sums; both go to workers i + 1, i + 2, ... (mod n), eight at a time. Block r A + a is what aggregator a has of stretch r.
#include "base/checked.hpp"
#include "base/error.hpp"
#include "sim/collectives/parts.hpp"

namespace sparscale::sim {
namespace {

constexpr std::int64_t together = 8, default_stretches = 8;

class Streaming : public Program {
 public:
  Streaming(std::int64_t workers, SparseStream stream)
      : n_(workers),
        stream_(std::move(stream)),
        aggregators_(stream_.aggregators == 0 ? workers : stream_.aggregators),
        stretches_(std::ssize(stream_.back_bytes)),
        groups_((workers - 1 + together - 1) / together),
        aggregator_of_(static_cast<std::size_t>(workers), -1) {
    for (std::int64_t a = 0; a < aggregators_; ++a) aggregator_of_[static_cast<std::size_t>(a * n_ / aggregators_)] = a;
  }
  std::int64_t workers() const override { return n_; }
  std::int64_t lanes() const override { return 2; }
  std::int64_t blocks() const override { return stretches_ * aggregators_; }
  std::int64_t owner(std::int64_t) const override { return 0; }
  std::int64_t steps(std::int64_t) const override { return stretches_ * groups_; }

  void step(std::int64_t strand, std::int64_t number, Step& step) const override {
    step.clear();
    const std::int64_t worker = strand / 2, lane = strand % 2, stretch = number / groups_, first = number % groups_ * together + 1;
    const std::int64_t own = aggregator(worker);
    const auto at = static_cast<std::size_t>(stretch);
    for (std::int64_t distance = first; distance < std::min(first + together, n_); ++distance) {
      const std::int64_t to = (worker + distance) % n_, from = (worker - distance + n_) % n_;
      if (lane == 0) {
        if (aggregator(to) >= 0) send(step, 2 * to, stream_.sent_bytes[static_cast<std::size_t>(worker)][at], stretch, aggregator(to));
        if (own >= 0) step.receives.push_back(2 * from);
      } else {
        if (own >= 0) send(step, 2 * to + 1, stream_.back_bytes[at], stretch, own);
        if (aggregator(from) >= 0) step.receives.push_back(2 * from + 1);
      }
    }
    step.reduces = lane == 0;
    // The sums of a stretch: all its parts must be there.
    if (lane == 1 && own >= 0 && number % groups_ == 0) step.after.push_back({0, (stretch + 1) * groups_});
  }

 private:
  std::int64_t aggregator(std::int64_t worker) const { return aggregator_of_[static_cast<std::size_t>(worker)]; }

  // An aggregator's share; which ones get an element more changes from stretch to stretch.
  void send(Step& step, std::int64_t peer, std::uint64_t bytes, std::int64_t stretch, std::int64_t to) const {
    const std::uint64_t element = bytes % 4 == 0 ? 4 : 1, elements = bytes / element, parts = static_cast<std::uint64_t>(aggregators_);
    const auto turn = static_cast<std::uint64_t>((to + stretch) % aggregators_);
    step.sends.push_back({peer, (elements / parts + (turn < elements % parts ? 1 : 0)) * element, stretch * aggregators_ + to, 1});
  }

  std::int64_t n_;
  SparseStream stream_;
  std::int64_t aggregators_, stretches_, groups_;
  std::vector<std::int64_t> aggregator_of_;  // -1: none
};

std::unique_ptr<Program> streaming(const CollectiveInput& input) {
  check_sizes(input.bytes, "sparse_all_reduce streaming");
  const std::int64_t n = std::ssize(input.bytes);
  if (n == 1) return std::make_unique<WrittenProgram>(1, 1);
  SparseStream stream;
  if (input.stream != nullptr) {
    stream = *input.stream;
    if (std::ssize(stream.sent_bytes) != n || stream.back_bytes.empty())
      throw InputError("sparse_all_reduce streaming", "stretches of " + std::to_string(n) + " workers",
                       std::to_string(stream.sent_bytes.size()));
    check_sizes(stream.back_bytes, "sparse_all_reduce streaming sums");
  } else {
    for (const std::uint64_t bytes : input.bytes) stream.sent_bytes.push_back(split_evenly(bytes, default_stretches));
    stream.back_bytes = split_evenly(*std::max_element(input.bytes.begin(), input.bytes.end()), default_stretches);
  }
  if (stream.aggregators < 0 || stream.aggregators > n)
    throw InputError("sparse_all_reduce streaming aggregators", "at most as many as workers (" + std::to_string(n) + ")",
                     std::to_string(stream.aggregators));
  return std::make_unique<Streaming>(n, std::move(stream));
}

}  // namespace

CollectiveAlgorithm streaming_sparse_all_reduce() {
  return {"streaming",
          Operation::sparse_all_reduce,
          "Streaming aggregation of sparse blocks",
          "OmniReduce. Fei et al., SIGCOMM 2021",
          "no closed form; with one aggregator, n <= 9 and R equal stretches of equal workers (R + 1) (alpha + (n - 1) m / (R B))",
          streaming};
}

}  // namespace sparscale::sim
