// Runs kernels of this folder on the host, thread by thread, for tests without a GPU.
//
// Each thread of a block is a fiber. A warp function hands its value in and waits until
// all 32 lanes have; __syncthreads waits for the block. A lane that never comes is an
// error. Blocks run one after another, so atomics are plain.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(...)

struct alignas(16) float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct Index {
  unsigned x;
};
static Index threadIdx, blockIdx, blockDim, gridDim;

namespace on_host {
enum Wait { RUNS, WARP, BLOCK, DONE };
struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(1 << 17);
  Wait wait = RUNS;
  unsigned in = 0;       // what the lane handed in
  unsigned seen[32];     // what all lanes of the warp handed in
  int total = 0;         // __syncthreads_count
};
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static unsigned current;

inline void pause(Wait wait) {
  Fiber &own = fibers[current];
  own.wait = wait;
  swapcontext(&own.context, &scheduler);
  threadIdx.x = current;
}
inline Fiber &meet(unsigned value) {
  fibers[current].in = value;
  pause(WARP);
  return fibers[current];
}
template <class T> unsigned bits(T value) {
  unsigned b;
  std::memcpy(&b, &value, 4);
  return b;
}
template <class... A, std::size_t... I>
void call(void (*kernel)(A...), void **args, std::index_sequence<I...>) {
  kernel(*static_cast<A *>(args[I])...);
}
static void (*body)();
inline void enter() {
  body();
  fibers[current].wait = DONE;
  swapcontext(&fibers[current].context, &scheduler);
}
// Lets all lanes of a warp, or threads of a block, go on once each has arrived.
inline bool release(unsigned begin, unsigned end, Wait wait) {
  unsigned arrived = 0, done = 0;
  int total = 0;
  for (unsigned i = begin; i < end; ++i) {
    arrived += fibers[i].wait == wait;
    done += fibers[i].wait == DONE;
    total += fibers[i].wait == wait && fibers[i].in != 0;
  }
  if (arrived == 0) return false;
  if (arrived != end - begin) return false;
  for (unsigned i = begin; i < end; ++i) {
    for (unsigned j = begin; wait == WARP && j < end; ++j)
      fibers[i].seen[j - begin] = fibers[j].in;
    fibers[i].total = total;
    fibers[i].wait = RUNS;
  }
  return true;
}
template <class... A>
void launch(void (*kernel)(A...), int grid, int block, void **args) {
  static void (*held)(A...);
  static void **given;
  held = kernel, given = args;
  body = [] { call(held, given, std::index_sequence_for<A...>{}); };
  fibers.resize(block);
  blockDim.x = block, gridDim.x = grid;
  for (int b = 0; b < grid; ++b) {
    blockIdx.x = b;
    for (Fiber &fiber : fibers) {
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.data();
      fiber.context.uc_stack.ss_size = fiber.stack.size();
      fiber.context.uc_link = nullptr;
      fiber.wait = RUNS;
      makecontext(&fiber.context, enter, 0);
    }
    for (unsigned done = 0; done < fibers.size();) {
      bool ran = false;
      for (unsigned i = 0; i < fibers.size(); ++i)
        if (fibers[i].wait == RUNS) {
          current = threadIdx.x = i;
          swapcontext(&scheduler, &fibers[i].context);
          done += fibers[i].wait == DONE;
          ran = true;
        }
      for (unsigned i = 0; i < fibers.size(); i += 32)
        ran |= release(i, i + 32 < fibers.size() ? i + 32 : fibers.size(), WARP);
      ran |= release(0, fibers.size(), BLOCK);
      if (!ran) {
        std::fprintf(stderr, "lanes of a block wait for one another for ever\n");
        std::abort();
      }
    }
  }
}
}  // namespace on_host

inline float __shfl_xor_sync(unsigned, float value, int lanes) {
  unsigned lane = threadIdx.x % 32;
  unsigned b = on_host::meet(on_host::bits(value)).seen[lane ^ lanes];
  std::memcpy(&value, &b, 4);
  return value;
}
inline int __shfl_xor_sync(unsigned, int value, int lanes) {
  unsigned lane = threadIdx.x % 32;
  return (int)on_host::meet((unsigned)value).seen[lane ^ lanes];
}
inline int __any_sync(unsigned, int condition) {
  on_host::Fiber &own = on_host::meet(condition != 0);
  for (unsigned i = 0; i < 32; ++i)
    if (own.seen[i]) return 1;
  return 0;
}
inline void __syncwarp() { on_host::meet(0); }
inline void __syncthreads() { on_host::pause(on_host::BLOCK); }
inline int __syncthreads_count(int condition) {
  on_host::fibers[on_host::current].in = condition != 0;
  on_host::pause(on_host::BLOCK);
  return on_host::fibers[on_host::current].total;
}
inline int atomicAdd(int *at, int value) {
  int old = *at;
  *at += value;
  return old;
}
inline int atomicExch(int *at, int value) { return std::exchange(*at, value); }
inline int atomicCAS(int *at, int expected, int value) {
  return *at == expected ? std::exchange(*at, value) : *at;
}
inline void __threadfence() {}
inline float4 __ldcg(const float4 *at) { return *at; }
inline void __stcg(float4 *at, float4 value) { *at = value; }
#define KERNEL(name)                                                                   \
  extern "C" void host_##name(int grid, int block, void **args) {                      \
    on_host::launch(name, grid, block, args);                                          \
  }
