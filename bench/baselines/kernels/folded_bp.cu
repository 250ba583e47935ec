// Belief propagation, fused by hand: messages into a vertex, their sum, its belief.
//
// -DK: states. -DG: lanes a vertex (K <= 8: each lane takes a whole edge; K == 32: a
// warp takes an edge, a state a lane). Psi is one symmetric matrix for all edges.
// The first `hub_count` blocks take one hub each.

constexpr int THREADS = 256;
constexpr unsigned ALL = 0xffffffffu;

#if K <= 8
// A row of K floats, in loads of 16 bytes.
struct Row {
  float x[K];
};
__device__ inline Row load(const float *__restrict__ from, long long row) {
  Row r;
#pragma unroll
  for (int i = 0; i < K; i += 4) {
    float4 a = *reinterpret_cast<const float4 *>(from + row * K + i);
    r.x[i] = a.x, r.x[i + 1] = a.y, r.x[i + 2] = a.z, r.x[i + 3] = a.w;
  }
  return r;
}
__device__ inline void store(float *to, long long row, const Row &r) {
#pragma unroll
  for (int i = 0; i < K; i += 4)
    *reinterpret_cast<float4 *>(to + row * K + i) =
        make_float4(r.x[i], r.x[i + 1], r.x[i + 2], r.x[i + 3]);
}
__device__ inline float largest(const Row &r) {
  float top = r.x[0];
#pragma unroll
  for (int i = 1; i < K; ++i) top = fmaxf(top, r.x[i]);
  return top;
}
__device__ inline bool moved(const Row &a, const Row &b, float epsilon) {
  bool over = false;
#pragma unroll
  for (int i = 0; i < K; ++i) over |= fabsf(a.x[i] - b.x[i]) > epsilon;
  return over;
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, K == 8 ? 3 : 4) bp_folded(
    const int *__restrict__ offsets, const int *__restrict__ sources,
    const int *__restrict__ twin, const float *__restrict__ psi,
    const float *__restrict__ phi, const float *__restrict__ msg,
    float *__restrict__ msg_next, const float *__restrict__ belief,
    float *__restrict__ belief_next, int n, float epsilon, int *committed,
    const int *__restrict__ hubs, int hub_count, int hub_degree) {
  int thread = threadIdx.x;
  bool is_hub = (int)blockIdx.x < hub_count;
  int v = is_hub ? hubs[blockIdx.x]
                 : (int)(((blockIdx.x - hub_count) * THREADS + thread) / G);
  bool is_mine = v < n;
  int begin = 0, end = 0;
  if (is_mine) {
    begin = offsets[v], end = offsets[v + 1];
    is_mine = is_hub || end - begin < hub_degree;
    if (!is_mine) end = begin;
  }
  bool commits = false;
#if K <= 8
  __shared__ float matrix[K * K];
  __shared__ Row parts[THREADS / 32];
  if (thread < K * K) matrix[thread] = psi[thread];
  __syncthreads();
  Row total;
#pragma unroll
  for (int i = 0; i < K; ++i) total.x[i] = 0.0f;
  int first = is_hub ? thread : thread % G, step = is_hub ? THREADS : G;
  for (int slot = begin + first; slot < end; slot += step) {
    Row x = load(belief, sources[slot]), back = load(msg, twin[slot]);
    Row before = load(msg, slot), m;
#pragma unroll
    for (int i = 0; i < K; ++i) x.x[i] -= back.x[i];
    float top = largest(x);
#pragma unroll
    for (int i = 0; i < K; ++i) x.x[i] = expf(x.x[i] - top);
#pragma unroll
    for (int i = 0; i < K; ++i) {
      float product = 0.0f;
#pragma unroll
      for (int j = 0; j < K; ++j) product += matrix[i * K + j] * x.x[j];
      m.x[i] = logf(product);
    }
    top = largest(m);
#pragma unroll
    for (int i = 0; i < K; ++i) m.x[i] -= top;
    bool sends = moved(m, before, epsilon);
#pragma unroll
    for (int i = 0; i < K; ++i) m.x[i] = sends ? m.x[i] : before.x[i];
    store(msg_next, slot, m);
#pragma unroll
    for (int i = 0; i < K; ++i) total.x[i] += m.x[i];
  }
#pragma unroll
  for (int i = 0; i < K; ++i)
#pragma unroll
    for (int lanes = 1; lanes < G; lanes *= 2)
      total.x[i] += __shfl_xor_sync(ALL, total.x[i], lanes);
  if (is_hub) {  // what is above the G lanes
#pragma unroll
    for (int i = 0; i < K; ++i)
#pragma unroll
      for (int lanes = G; lanes < 32; lanes *= 2)
        total.x[i] += __shfl_xor_sync(ALL, total.x[i], lanes);
    if (thread % 32 == 0) parts[thread / 32] = total;
    __syncthreads();
    total = parts[0];
    for (int warp = 1; warp < THREADS / 32; ++warp)
#pragma unroll
      for (int i = 0; i < K; ++i) total.x[i] += parts[warp].x[i];
  }
  if (is_mine && (is_hub ? thread == 0 : thread % G == 0)) {
    Row old = load(belief, v), p = load(phi, v);
#pragma unroll
    for (int i = 0; i < K; ++i) p.x[i] += total.x[i];
    commits = moved(p, old, epsilon);
#pragma unroll
    for (int i = 0; i < K; ++i) p.x[i] = commits ? p.x[i] : old.x[i];
    store(belief_next, v, p);
  }
#else
  __shared__ float4 staged[THREADS / 32][K / 4];
  __shared__ float parts[THREADS / 32][K];
  int f = thread % 32, warp = thread / 32;
  float row[K];  // row f of Psi stays in registers
#pragma unroll
  for (int j = 0; j < K; ++j) row[j] = psi[j * K + f];
  float total = 0.0f;
  int first = is_hub ? warp : 0, step = is_hub ? THREADS / 32 : 1;
  for (int slot = begin + first; slot < end; slot += step) {
    float x = belief[(long long)sources[slot] * K + f];
    x -= msg[(long long)twin[slot] * K + f];
    float before = msg[(long long)slot * K + f], top = x;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2)
      top = fmaxf(top, __shfl_xor_sync(ALL, top, lanes));
    __syncwarp();
    reinterpret_cast<float *>(staged[warp])[f] = expf(x - top);
    __syncwarp();
    float product = 0.0f;
#pragma unroll
    for (int j = 0; j < K / 4; ++j) {
      float4 a = staged[warp][j];
      product += row[4 * j] * a.x + row[4 * j + 1] * a.y + row[4 * j + 2] * a.z +
                 row[4 * j + 3] * a.w;
    }
    float m = logf(product);
    top = m;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2)
      top = fmaxf(top, __shfl_xor_sync(ALL, top, lanes));
    m -= top;
    if (!__any_sync(ALL, fabsf(m - before) > epsilon)) m = before;
    msg_next[(long long)slot * K + f] = m;
    total += m;
  }
  if (is_hub) {
    parts[warp][f] = total;
    __syncthreads();
    total = 0.0f;
    for (int other = 0; other < THREADS / 32; ++other) total += parts[other][f];
  }
  if (is_mine && (!is_hub || warp == 0)) {
    float old = belief[(long long)v * K + f], p = phi[(long long)v * K + f] + total;
    bool over = __any_sync(ALL, fabsf(p - old) > epsilon);
    belief_next[(long long)v * K + f] = over ? p : old;
    commits = over && f == 0;
  }
#endif
  int here = __syncthreads_count(commits);
  if (thread == 0 && here > 0) atomicAdd(committed, here);
}
