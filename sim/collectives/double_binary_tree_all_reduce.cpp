// Double binary tree all-reduce: two trees that each sum one half of the buffer up to their root and send it down again, chunk by chunk.
//
// Tree 0 is the in-order tree over the ranks: with b the lowest set bit of a rank, its parent is (rank ^ b) | 2 b, or rank ^ b when that
// does not exist; rank 0 is the root. Tree 1 is its mirror image when n is even, else the same shifted by one, so that (nearly) every
// worker is a leaf in one of them.
#include <bit>

#include "sim/collectives/parts.hpp"

namespace sparscale::sim {
namespace {

class DoubleBinaryTree : public Program {
 public:
  DoubleBinaryTree(std::int64_t workers, std::uint64_t bytes, std::uint64_t chunk_bytes) : workers_(workers) {
    const std::vector<std::uint64_t> halves = split_evenly(bytes, 2);
    for (std::size_t tree = 0; tree < 2; ++tree) {
      chunks_[tree] = cut_into_chunks(halves[tree], chunk_bytes);
      parent_[tree].assign(static_cast<std::size_t>(workers), -1);
      children_[tree].resize(static_cast<std::size_t>(workers));
      for (std::int64_t worker = 0; worker < workers; ++worker) {
        const std::int64_t parent = parent_in(tree == 1, worker);
        parent_[tree][static_cast<std::size_t>(worker)] = parent;
        if (parent >= 0) children_[tree][static_cast<std::size_t>(parent)].push_back(worker);
      }
    }
  }

  std::int64_t workers() const override { return workers_; }
  std::int64_t lanes() const override { return 8; }  // of each tree: in from below, out above, in from above, out below
  std::int64_t blocks() const override { return std::ssize(chunks_[0]) + std::ssize(chunks_[1]); }

  std::int64_t steps(std::int64_t strand) const override {
    const Place place = place_of(strand);
    const bool below = place.lane == in_below || place.lane == out_below;
    return (below ? children(place).empty() : parent(place) < 0) ? 0 : std::ssize(chunks_[place.tree]);
  }

  void step(std::int64_t strand, std::int64_t number, Step& step) const override {
    const Place place = place_of(strand);
    const std::uint64_t bytes = chunks_[place.tree][static_cast<std::size_t>(number)];
    const std::int64_t block = number + (place.tree == 1 ? std::ssize(chunks_[0]) : 0);
    const auto strand_of = [&](std::int64_t worker, Lane lane) { return 8 * worker + 4 * static_cast<std::int64_t>(place.tree) + lane; };
    const auto after = [&](Lane lane) { step.after.push_back({4 * static_cast<std::int64_t>(place.tree) + lane, number + 1}); };
    step.clear();
    switch (place.lane) {
      case in_below:
        for (const std::int64_t child : children(place)) step.receives.push_back(strand_of(child, out_above));
        step.reduces = true;
        return;
      case out_above:
        if (!children(place).empty()) after(in_below);
        step.sends.push_back({strand_of(parent(place), in_below), bytes, block, 1});
        return;
      case in_above:
        step.receives.push_back(strand_of(parent(place), out_below));
        return;
      case out_below:
        after(parent(place) < 0 ? in_below : in_above);
        for (const std::int64_t child : children(place)) step.sends.push_back({strand_of(child, in_above), bytes, block, 1});
        return;
    }
  }

 private:
  enum Lane : std::int64_t { in_below, out_above, in_above, out_below };
  struct Place {
    std::size_t worker, tree;
    Lane lane;
  };
  static Place place_of(std::int64_t strand) {
    return {static_cast<std::size_t>(strand / 8), static_cast<std::size_t>(strand % 8 / 4), static_cast<Lane>(strand % 4)};
  }
  std::int64_t parent(const Place& place) const { return parent_[place.tree][place.worker]; }
  const std::vector<std::int64_t>& children(const Place& place) const { return children_[place.tree][place.worker]; }

  // -1: the root.
  std::int64_t parent_in(bool second, std::int64_t worker) const {
    if (!second) {
      if (worker == 0) return -1;
      const std::int64_t bit = worker & -worker, up = (worker ^ bit) | bit << 1;
      return up < workers_ ? up : worker ^ bit;
    }
    const bool mirror = workers_ % 2 == 0;
    const std::int64_t parent = parent_in(false, mirror ? workers_ - 1 - worker : (worker + workers_ - 1) % workers_);
    if (parent < 0) return -1;
    return mirror ? workers_ - 1 - parent : (parent + 1) % workers_;
  }

  std::int64_t workers_;
  std::vector<std::uint64_t> chunks_[2];
  std::vector<std::int64_t> parent_[2];
  std::vector<std::vector<std::int64_t>> children_[2];
};

}  // namespace

CollectiveAlgorithm double_binary_tree_all_reduce() {
  return {"double_binary_tree",
          Operation::all_reduce,
          "Double binary tree all-reduce, chunk by chunk",
          "ncclAllReduce (Tree). Sanders, Speck, Traeff, Parallel Computing 2009",
          "at least 2 m / B for n > 2 on equal links, whose two directions every worker but the roots fills; about 2 log2 n (alpha + c / "
          "B) more",
          [](const CollectiveInput& input) -> std::unique_ptr<Program> {
            const std::uint64_t buffer = equal_bytes(input.bytes, "all_reduce double_binary_tree");
            return std::make_unique<DoubleBinaryTree>(std::ssize(input.bytes), buffer, input.chunk_bytes);
          }};
}

}  // namespace sparscale::sim
