// Label propagation, fused by hand: gather, two normalisations, update, commit.
//
// -DK: classes, a multiple of 4. -DG: lanes a vertex, a power of two, K / 4 to 32.
// K / 4 lanes take a row in loads of 16 bytes, so that G / (K / 4) edges are under way.
// The first `hub_count` blocks take one hub each, the others 256 / G vertices each,
// among which those of degree >= hub_degree are left out.

constexpr int LANES = K / 4;        // of a row
constexpr int THREADS = 256;

__device__ inline float sum(float4 a) { return (a.x + a.y) + (a.z + a.w); }
__device__ inline void add(float4 &a, float s, float4 b) {
  a.x += s * b.x, a.y += s * b.y, a.z += s * b.z, a.w += s * b.w;
}
__device__ inline float4 shuffled(float4 a, int lanes) {
  return make_float4(__shfl_xor_sync(0xffffffffu, a.x, lanes),
                     __shfl_xor_sync(0xffffffffu, a.y, lanes),
                     __shfl_xor_sync(0xffffffffu, a.z, lanes),
                     __shfl_xor_sync(0xffffffffu, a.w, lanes));
}
// The sum over the lanes of a row.
__device__ inline float row_sum(float4 a) {
  float total = sum(a);
#pragma unroll
  for (int lanes = 1; lanes < LANES; lanes *= 2)
    total += __shfl_xor_sync(0xffffffffu, total, lanes);
  return total;
}
__device__ inline void scale(float4 &a, float mass) {
  float s = mass != 0.0f ? 1.0f / mass : 0.0f;
  a.x *= s, a.y *= s, a.z *= s, a.w *= s;
}

// Weighted rows of every `step`-th slot.
__device__ inline float4 gather(const int *__restrict__ sources,
                                const float *__restrict__ weight,
                                const float4 *__restrict__ label, int slot, int end,
                                int step, int q) {
  float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
  for (; slot < end; slot += step)
    add(total, weight[slot], label[(long long)sources[slot] * LANES + q]);
  return total;
}

// Update and commit by lanes that all hold the gathered total of their part of the row.
__device__ inline bool settle(float4 total, float4 old, float alpha, float epsilon,
                              float4 &p) {
  scale(total, row_sum(total));
  p = make_float4(alpha * total.x, alpha * total.y, alpha * total.z, alpha * total.w);
  add(p, 1.0f - alpha, old);
  scale(p, row_sum(p));
  int over = fabsf(p.x - old.x) > epsilon || fabsf(p.y - old.y) > epsilon ||
             fabsf(p.z - old.z) > epsilon || fabsf(p.w - old.w) > epsilon;
#pragma unroll
  for (int lanes = 1; lanes < LANES; lanes *= 2)
    over |= __shfl_xor_sync(0xffffffffu, over, lanes);
  return over;
}

extern "C" __global__ void __launch_bounds__(THREADS) lp_folded(
    const int *__restrict__ offsets, const int *__restrict__ sources,
    const float *__restrict__ weight, const unsigned char *__restrict__ clamped,
    const float4 *__restrict__ label, float4 *__restrict__ label_next, int n,
    float alpha, float epsilon, int *committed, const int *__restrict__ hubs,
    int hub_count, int hub_degree) {
  __shared__ float4 parts[THREADS / 32][LANES];
  int thread = threadIdx.x, q = thread % LANES, writes;
  bool is_hub = (int)blockIdx.x < hub_count;
  int v = is_hub ? hubs[blockIdx.x]
                 : (int)(((blockIdx.x - hub_count) * THREADS + thread) / G);
  bool is_mine = v < n;
  int begin = 0, end = 0;
  float4 old = make_float4(0.0f, 0.0f, 0.0f, 0.0f), total = old, p;
  bool is_free = false;
  if (is_mine) {
    begin = offsets[v], end = offsets[v + 1];
    is_mine = is_hub || end - begin < hub_degree;
    is_free = is_mine && !clamped[v];
    old = label[(long long)v * LANES + q];
    if (!is_free) end = begin;
  }
  if (is_hub) {
    total = gather(sources, weight, label, begin + thread / LANES, end,
                   THREADS / LANES, q);
#pragma unroll
    for (int lanes = LANES; lanes < 32; lanes *= 2) {
      float4 other = shuffled(total, lanes);
      add(total, 1.0f, other);
    }
    if (thread % 32 < LANES) parts[thread / 32][q] = total;
    __syncthreads();
    total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int warp = 0; warp < THREADS / 32; ++warp) add(total, 1.0f, parts[warp][q]);
    writes = thread < LANES;
  } else {
    total = gather(sources, weight, label, begin + thread % G / LANES, end, G / LANES, q);
#pragma unroll
    for (int lanes = LANES; lanes < G; lanes *= 2) {
      float4 other = shuffled(total, lanes);
      add(total, 1.0f, other);
    }
    writes = is_mine && thread % G < LANES;
  }
  bool commits = settle(total, old, alpha, epsilon, p) && is_free;
  if (writes) label_next[(long long)v * LANES + q] = commits ? p : old;
  int here = __syncthreads_count(commits && writes && q == 0);
  if (thread == 0 && here > 0) atomicAdd(committed, here);
}
