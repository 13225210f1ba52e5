// The order in which the kernels of fused.cuh run. `launch(kernel, blocks, threads, arguments...)` starts one kernel after the other: on a
// stream, or in the tests on an emulator. Nothing here waits for the device: Space::state tells afterwards.
#pragma once

#include <cstdint>

#include "kernels/cuda/fused.cuh"

namespace sparscale::kernels::cuda::fused {

namespace detail {

inline unsigned blocks_for(long long items, unsigned each, unsigned most) {
  const long long blocks = (items + each - 1) / each;
  return blocks < 1 ? 1U : blocks > static_cast<long long>(most) ? most : static_cast<unsigned>(blocks);
}

inline bool aligned(const Task& task) {
  return reinterpret_cast<std::uintptr_t>(task.values) % 16 == 0 && reinterpret_cast<std::uintptr_t>(task.gradient) % 16 == 0;
}

template <typename Launch>
void filter(const Launch& launch, const Task& task, const Space& space) {
  const auto blocks = static_cast<unsigned>(tiles_of(task.size));
  const auto start = [&](auto kernel) {
    launch(kernel, blocks, kThreads, task.gradient, task.scale, task.values, task.size, space.state, space.values, space.positions,
           space.tiles);
  };
  if (task.gradient != nullptr)
    aligned(task) ? start(&filter_kernel<true, true>) : start(&filter_kernel<true, false>);
  else
    aligned(task) ? start(&filter_kernel<false, true>) : start(&filter_kernel<false, false>);
}

// 1024 blocks fill any device several times over.
template <typename Launch>
void digits(const Launch& launch, const float* values, long long size, long long expected, const Space& space) {
  for (int pass = 0; pass < 3; ++pass)
    launch(&digit_kernel, blocks_for(expected, 4 * kThreads, 1024), kThreads, values, size, pass, space.state, space.bins);
}

template <typename Launch>
void finish(const Launch& launch, const Task& task, const Space& space) {
  const long long tiles = tiles_of(task.size);
  const unsigned blocks = blocks_for(tiles, kWarps, 4096);
  launch(&tally_kernel, blocks, kThreads, static_cast<const float*>(space.values), static_cast<const TileRecord*>(space.tiles), tiles,
         static_cast<const State*>(space.state), space.greater, space.equal);
  launch(&scan_kernel, 1U, kScanThreads, static_cast<const std::uint32_t*>(space.greater), static_cast<const std::uint32_t*>(space.equal),
         tiles, space.state, space.offsets, space.ties);
  launch(&write_kernel, blocks, kThreads, static_cast<const float*>(space.values), static_cast<const std::uint32_t*>(space.positions),
         static_cast<const TileRecord*>(space.tiles), tiles, static_cast<const State*>(space.state),
         static_cast<const unsigned long long*>(space.offsets), static_cast<const unsigned long long*>(space.ties), task.first, task.out,
         task.out_values, task.zero ? task.values : nullptr);
}

}  // namespace detail

/// Keys from `lowest` to that of infinity. Failed (candidates > capacity) only when there was too little room: size is always enough.
template <typename Launch>
void run_threshold(const Launch& launch, const Task& task, std::uint32_t lowest, const Space& space) {
  State start;
  start.bound = lowest;
  start.span = 0x7f800000U - lowest;
  start.capacity = space.capacity;
  start.take_all = 1;
  launch(&start_kernel, 1U, kThreads, space.state, start, space.bins);
  detail::filter(launch, task, space);
  detail::finish(launch, task, space);
}

/// The k largest by a sampled bound; only where sample_helps. When state->failed or state->candidates > state->capacity afterwards, the
/// values have been accumulated, but nothing selected: run_radix without a gradient does it.
template <typename Launch>
void run_sampled(const Launch& launch, const Task& task, long long k, const Space& space) {
  const long long most = task.size / 256;
  const unsigned runs = most < static_cast<long long>(kMostRuns) ? static_cast<unsigned>(most) : kMostRuns;
  const auto expected =
      static_cast<unsigned long long>(static_cast<double>(k) * (static_cast<double>(runs) * kRun) / static_cast<double>(task.size));
  State start;
  start.rank = static_cast<unsigned long long>(k);
  start.capacity = space.capacity;
  launch(&start_kernel, 1U, kThreads, space.state, start, space.bins);
  const auto sample = [&](auto kernel) {
    launch(kernel, detail::blocks_for(runs, 4 * kWarps, 64), kThreads, task.gradient, task.scale, static_cast<const float*>(task.values),
           task.size, runs, expected, space.state, space.bins);
  };
  if (task.gradient != nullptr) {
    sample(&sample_kernel<true>);
    sample(&spread_kernel<true>);
  } else {
    sample(&sample_kernel<false>);
    sample(&spread_kernel<false>);
  }
  detail::filter(launch, task, space);
  detail::digits(launch, space.values, -1, k + k / 2, space);
  detail::finish(launch, task, space);
}

/// The k-th largest key, 1 <= k <= size, to state->prefix, and how many of its equals are among the k largest to state->rank.
template <typename Launch>
void run_kth(const Launch& launch, const float* values, long long size, long long k, const Space& space) {
  State start;
  start.rank = static_cast<unsigned long long>(k);
  start.capacity = space.capacity;
  launch(&start_kernel, 1U, kThreads, space.state, start, space.bins);
  detail::digits(launch, values, size, size, space);
}

/// The k largest, 1 <= k <= size, by three histograms of all keys and one pass. No gradient. Room for `size` candidates is always enough.
template <typename Launch>
void run_radix(const Launch& launch, const Task& task, long long k, const Space& space) {
  run_kth(launch, task.values, task.size, k, space);
  launch(&bound_kernel, 1U, 1U, space.state);
  detail::filter(launch, task, space);
  detail::finish(launch, task, space);
}

}  // namespace sparscale::kernels::cuda::fused
