// Runs CUDA kernels on the CPU, for tests: every thread is a fibre, several blocks are under way at a time, and who goes on at which point
// is up to a schedule. Threads change at barriers, warp operations and before atomics, so what is tested is the logic: missing barriers,
// divergent barriers, lanes missing from a warp operation, deadlocks. Not weak memory ordering, and not speed.
//
// Include this before the .cuh file. Kernels use what is defined here and nothing else of CUDA.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#if !defined(__x86_64__) || defined(__SANITIZE_ADDRESS__)
#define SPARSCALE_SIMT_UCONTEXT
#include <ucontext.h>
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

#include "base/random.hpp"

#ifndef SPARSCALE_SIMT_UCONTEXT
// void simt_switch(void** save, void* restore): the registers that a call keeps, and the stack.
asm(R"(
.text
.p2align 4
.type simt_switch, @function
simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size simt_switch, .-simt_switch
)");
extern "C" void simt_switch(void** save, void* restore);
#endif

namespace simt {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};

// forward: first come, first served; reverse: the last to become ready goes first; random: any.
enum class Order { forward, reverse, random };
inline const char* name(Order order) { return order == Order::forward ? "forward" : order == Order::reverse ? "reverse" : "random"; }

// How kernels are run; what a test may change.
struct Settings {
  Order order = Order::forward;
  std::uint64_t seed = 1;
  unsigned resident_blocks = 4;  // under way at a time
  int dropped_barrier = -1;      // left out of every kernel
  // forward only: this thread, once its block has passed so many barriers, waits until nothing else can go on. -1: none.
  int starved_thread = -1;
  unsigned starved_block = 0, starved_after = 0;
};
inline Settings settings;

class Machine {
 public:
  static constexpr std::size_t kStack = 128 * 1024;

  // Runs body once for each thread of the grid. Errors: Error when a barrier or a warp operation is not reached by all who have to.
  void launch(unsigned blocks, unsigned threads, const std::function<void()>& body) {
    body_ = &body;
    grid_ = {blocks, 1, 1};
    block_ = {threads, 1, 1};
    random_ = sparscale::Random(sparscale::stream_key(settings.seed, "simt", {blocks, threads}));
    slots_.resize(std::min(blocks, settings.resident_blocks));
    while (stacks_.size() < slots_.size() * threads) stacks_.emplace_back(new char[kStack]);
    next_block_ = 0;
    runnable_.clear();
    front_ = 0;
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) start_block(slot);
    unsigned done = 0;
    while (done < blocks) {
      if (runnable_.empty()) throw Error("deadlock: some threads of a block or warp wait for others that do not come");
      Fibre* const fibre = take();
      run(*fibre);
      Slot& slot = slots_[fibre->slot];
      if (fibre->state == State::finished && --slot.alive == 0) {
        ++done;
        start_block(fibre->slot);
      } else if (fibre->state == State::finished && slot.at_barrier > 0) {
        throw Error("divergent barrier: a thread ended while others wait at barrier " + std::to_string(slot.barrier));
      }
    }
  }

  Index3 thread_index() const { return {current_->thread, 0, 0}; }
  Index3 block_index() const { return {slots_[current_->slot].block, 0, 0}; }
  Index3 block_size() const { return block_; }
  Index3 grid_size() const { return grid_; }

  void barrier(int number) {
    if (number == settings.dropped_barrier) return;
    Slot& slot = slots_[current_->slot];
    if (slot.alive != block_.x) throw_in_machine("divergent barrier: some threads have ended before barrier " + std::to_string(number));
    if (slot.at_barrier > 0 && slot.barrier != number)
      throw_in_machine("divergent barrier: threads wait at " + std::to_string(slot.barrier) + " and at " + std::to_string(number));
    slot.barrier = number;
    if (++slot.at_barrier == block_.x) {
      slot.at_barrier = 0;
      ++slot.phase;
      for (Fibre& fibre : slot.fibres) make_runnable(fibre);
    }
    wait();
  }

  // The 32 lanes hand in a value each and get the answer that `answer` makes of all. Operations are told apart by their kind.
  template <typename Answer>
  std::uint64_t exchange(std::uint32_t mask, int kind, std::uint64_t value, const Answer& answer) {
    Slot& slot = slots_[current_->slot];
    const unsigned lane = current_->thread % 32, first = current_->thread - lane;
    Warp& warp = slot.warps[current_->thread / 32];
    if ((mask >> lane & 1U) == 0) throw_in_machine("a lane takes part in a warp operation that its mask leaves out");
    if (warp.present != 0 && (warp.kind != kind || warp.mask != mask)) throw_in_machine("lanes of a warp are at different operations");
    warp.kind = kind;
    warp.mask = mask;
    warp.present |= 1U << lane;
    warp.values[lane] = value;
    if (warp.present == mask) {
      for (unsigned l = 0; l < 32; ++l)
        if ((mask >> l & 1U) != 0) {
          slot.fibres[first + l].answer = answer(warp.values.data(), l);
          make_runnable(slot.fibres[first + l]);
        }
      warp.present = 0;
    }
    wait();
    return current_->answer;
  }

  // Lets others go first; where order between threads could matter.
  void pause() {
    make_runnable(*current_);
    wait();
  }

  // Memory of the block of the running thread, full of a pattern when a block first asks for it.
  void* shared(const void* tag, std::size_t bytes) {
    auto& memory = slots_[current_->slot].shared[tag];
    if (memory.size() != bytes) memory.assign(bytes, static_cast<unsigned char>(0xa5));
    return memory.data();
  }

  [[noreturn]] static void enter();

 private:
  enum class State { ready, waiting, finished };
  struct Fibre {
    State state = State::ready;
    unsigned thread = 0;
    std::size_t slot = 0;
    std::uint64_t answer = 0;
    void* stack = nullptr;
#ifdef SPARSCALE_SIMT_UCONTEXT
    ucontext_t context;
#else
    void* pointer = nullptr;
#endif
  };
  struct Warp {
    std::uint32_t present = 0, mask = 0;
    int kind = 0;
    std::array<std::uint64_t, 32> values;
  };
  struct Slot {
    unsigned block = 0, alive = 0, at_barrier = 0, phase = 0;
    int barrier = 0;
    std::vector<Fibre> fibres;
    std::vector<Warp> warps;
    std::map<const void*, std::vector<unsigned char>> shared;
  };

  void start_block(std::size_t at) {
    if (next_block_ == grid_.x) return;
    Slot& slot = slots_[at];
    slot.block = settings.order == Order::reverse ? grid_.x - 1 - next_block_ : next_block_;
    ++next_block_;
    slot.alive = block_.x;
    slot.at_barrier = slot.phase = 0;
    slot.shared.clear();
    slot.warps.assign((block_.x + 31) / 32, Warp());
    if (slot.fibres.size() != block_.x) slot.fibres = std::vector<Fibre>(block_.x);
    for (unsigned thread = 0; thread < block_.x; ++thread) {
      Fibre& fibre = slot.fibres[thread];
      fibre.thread = thread;
      fibre.slot = at;
      fibre.stack = stacks_[at * block_.x + thread].get();
      prepare(fibre);
      make_runnable(fibre);
    }
  }

  void make_runnable(Fibre& fibre) {
    fibre.state = State::ready;
    runnable_.push_back(&fibre);
  }

  bool is_starved(const Fibre& fibre) const {
    const Slot& slot = slots_[fibre.slot];
    return static_cast<int>(fibre.thread) == settings.starved_thread && slot.block == settings.starved_block &&
           slot.phase >= settings.starved_after;
  }
  Fibre* take() {
    std::size_t at = 0;
    if (settings.order == Order::reverse) at = runnable_.size() - 1;
    if (settings.order == Order::random) at = static_cast<std::size_t>(random_.below(runnable_.size()));
    if (settings.order == Order::forward) {
      Fibre* first = runnable_[front_];
      if (is_starved(*first) && front_ + 1 < runnable_.size()) {
        runnable_.push_back(first);
        first = runnable_[++front_];
      }
      if (++front_ == runnable_.size()) {
        runnable_.clear();
        front_ = 0;
      }
      return first;
    }
    std::swap(runnable_[at], runnable_.back());
    Fibre* const fibre = runnable_.back();
    runnable_.pop_back();
    return fibre;
  }

  void wait() {
    Fibre& fibre = *current_;
    if (fibre.state != State::ready) fibre.state = State::waiting;
    leave(fibre, false);
  }

  // An error is thrown on the scheduler's stack: none of the fibres can go on.
  [[noreturn]] void throw_in_machine(std::string message) {
    error_ = std::move(message);
    leave(*current_, true);
    std::abort();
  }

  void run(Fibre& fibre) {
    current_ = &fibre;
    fibre.state = State::waiting;
    go_to(fibre);
    if (!error_.empty()) throw Error(std::exchange(error_, std::string()));
  }

#ifdef __SANITIZE_ADDRESS__
  void start_switch(void** save, const void* bottom, std::size_t size) { __sanitizer_start_switch_fiber(save, bottom, size); }
  void finish_switch(void* save, const void** bottom, std::size_t* size) { __sanitizer_finish_switch_fiber(save, bottom, size); }
  void* fake_ = nullptr;
  const void* bottom_ = nullptr;
  std::size_t bottom_size_ = 0;
#endif

  void prepare(Fibre& fibre) {
#ifdef SPARSCALE_SIMT_UCONTEXT
    getcontext(&fibre.context);
    fibre.context.uc_stack.ss_sp = fibre.stack;
    fibre.context.uc_stack.ss_size = kStack;
    fibre.context.uc_link = nullptr;
    makecontext(&fibre.context, reinterpret_cast<void (*)()>(&Machine::enter), 0);
#else
    // As if simt_switch had been called at the start of enter: six registers and the place to return to, then one word so that the stack is
    // aligned as after a call.
    auto** top = reinterpret_cast<void**>(static_cast<char*>(fibre.stack) + kStack);
    top -= 8;
    std::fill(top, top + 8, nullptr);
    top[6] = reinterpret_cast<void*>(&Machine::enter);
    fibre.pointer = top;
#endif
  }

  void go_to(Fibre& fibre) {
#ifdef __SANITIZE_ADDRESS__
    void* fake = nullptr;
    start_switch(&fake, fibre.stack, kStack);
#endif
#ifdef SPARSCALE_SIMT_UCONTEXT
    swapcontext(&home_, &fibre.context);
#else
    simt_switch(&home_, fibre.pointer);
#endif
#ifdef __SANITIZE_ADDRESS__
    finish_switch(fake, nullptr, nullptr);
#endif
  }

  void leave(Fibre& fibre, [[maybe_unused]] bool for_good) {
#ifdef __SANITIZE_ADDRESS__
    void* fake = nullptr;
    start_switch(for_good ? nullptr : &fake, bottom_, bottom_size_);
#endif
#ifdef SPARSCALE_SIMT_UCONTEXT
    swapcontext(&fibre.context, &home_);
#else
    simt_switch(&fibre.pointer, home_);
#endif
#ifdef __SANITIZE_ADDRESS__
    finish_switch(fake, &bottom_, &bottom_size_);
#endif
  }

  const std::function<void()>* body_ = nullptr;
  Index3 grid_, block_;
  sparscale::Random random_{0};
  std::vector<Slot> slots_;
  std::vector<std::unique_ptr<char[]>> stacks_;
  std::vector<Fibre*> runnable_;
  std::size_t front_ = 0;
  unsigned next_block_ = 0;
  Fibre* current_ = nullptr;
  std::string error_;
#ifdef SPARSCALE_SIMT_UCONTEXT
  ucontext_t home_;
#else
  void* home_ = nullptr;
#endif
};

inline Machine machine;

inline void Machine::enter() {
#ifdef __SANITIZE_ADDRESS__
  machine.finish_switch(nullptr, &machine.bottom_, &machine.bottom_size_);
#endif
  (*machine.body_)();
  machine.current_->state = State::finished;
  machine.leave(*machine.current_, true);
  std::abort();
}

template <typename T, std::size_t kCount>
T (&shared_array(const void* tag))
[kCount] {
  return *static_cast<T(*)[kCount]>(machine.shared(tag, sizeof(T) * kCount));
}

template <typename Kernel, typename... Arguments>
void launch(Kernel kernel, unsigned blocks, unsigned threads, Arguments... arguments) {
  machine.launch(blocks, threads, [&] { kernel(arguments...); });
}

}  // namespace simt

// ---- what a kernel sees -----------------------------------------------------------------------------------------------------------

#define __global__
#define __device__
#define __host__
#define threadIdx (simt::machine.thread_index())
#define blockIdx (simt::machine.block_index())
#define blockDim (simt::machine.block_size())
#define gridDim (simt::machine.grid_size())
#define SPARSCALE_KERNEL inline void
#define SPARSCALE_BARRIER(number) simt::machine.barrier(number)
#define SPARSCALE_SHARED(type, name, count) \
  static const char name##_tag = 0;         \
  auto& name = simt::shared_array<type, count>(&name##_tag)

struct float4 {
  float x, y, z, w;
};

inline void __threadfence() {}
inline std::uint32_t __float_as_uint(float value) { return std::bit_cast<std::uint32_t>(value); }
inline float __uint_as_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline int __popc(std::uint32_t bits) { return std::popcount(bits); }

template <typename T>
T atomicAdd(T* place, T value) {
  simt::machine.pause();
  const T old = *place;
  *place = old + value;
  return old;
}
template <typename T>
T atomicExch(T* place, T value) {
  simt::machine.pause();
  const T old = *place;
  *place = value;
  return old;
}

template <typename T>
T atomicOr(T* place, T bits) {
  simt::machine.pause();
  const T old = *place;
  *place = old | bits;
  return old;
}

inline std::uint32_t __ballot_sync(std::uint32_t mask, bool vote) {
  return static_cast<std::uint32_t>(simt::machine.exchange(mask, 1, vote ? 1 : 0, [mask](const std::uint64_t* votes, unsigned) {
    std::uint64_t bits = 0;
    for (unsigned lane = 0; lane < 32; ++lane)
      if ((mask >> lane & 1U) != 0) bits |= votes[lane] << lane;
    return bits;
  }));
}
template <typename T, typename From>
T shuffled(std::uint32_t mask, int kind, T value, const From& from) {
  std::uint64_t word = 0;
  std::memcpy(&word, &value, sizeof value);
  word = simt::machine.exchange(mask, kind, word, [&](const std::uint64_t* words, unsigned lane) {
    const unsigned source = from(lane);
    return words[source < 32 ? source : lane];
  });
  std::memcpy(&value, &word, sizeof value);
  return value;
}
template <typename T>
T __shfl_up_sync(std::uint32_t mask, T value, unsigned step) {
  return shuffled(mask, 2, value, [step](unsigned lane) { return lane - step; });
}
template <typename T>
T __shfl_down_sync(std::uint32_t mask, T value, unsigned step) {
  return shuffled(mask, 3, value, [step](unsigned lane) { return lane + step; });
}
template <typename T>
T __shfl_sync(std::uint32_t mask, T value, unsigned source) {
  return shuffled(mask, 4, value, [source](unsigned) { return source; });
}
