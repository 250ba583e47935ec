// SGD over the edges of a matrix in a given order, both ends of an edge locked.
//
// Groups of 4 lanes take edges of 16 features in turn, and keep an edge until they have
// got both locks. A lane that does not get the second lock gives the first one back, so
// that no two edges wait for each other. The lock of the user is taken first: items have
// more edges.

constexpr int K = 16, LANES = 4;
constexpr unsigned ALL = 0xffffffffu;

__device__ inline bool take(int *locks, int u, int v) {
  if (atomicCAS(locks + u, 0, 1)) return false;
  if (!atomicCAS(locks + v, 0, 1)) return true;
  atomicExch(locks + u, 0);
  return false;
}

__device__ inline float4 load(const float *x, int vertex, int lane) {
  const float *at = x + (long long)vertex * K + lane * 4;
  return __ldcg(reinterpret_cast<const float4 *>(at));  // the L1 may have an old row
}

__device__ inline void store(float *x, int vertex, int lane, float4 p, float4 q,
                             float step, float shrink) {
  float4 r = make_float4(p.x + step * q.x - shrink * p.x, p.y + step * q.y - shrink * p.y,
                         p.z + step * q.z - shrink * p.z, p.w + step * q.w - shrink * p.w);
  float *at = x + (long long)vertex * K + lane * 4;
  __stcg(reinterpret_cast<float4 *>(at), r);
}

extern "C" __global__ void __launch_bounds__(128) sgd_edge_locked(
    const int *__restrict__ users, const int *__restrict__ items,
    const float *__restrict__ ratings, float *x, int *locks, int edges, float rate,
    float ridge) {
  int lane = threadIdx.x % LANES;
  int groups = gridDim.x * blockDim.x / LANES;
  int place = (blockIdx.x * blockDim.x + threadIdx.x) / LANES;
  bool has_edge = place < edges, is_new = true;
  int u = 0, v = 0;
  float rating = 0;
  while (__any_sync(ALL, has_edge)) {
    if (has_edge && is_new) u = users[place], v = items[place], rating = ratings[place];
    int is_mine = has_edge && lane == 0 && take(locks, u, v);
    is_mine |= __shfl_xor_sync(ALL, is_mine, 1);
    is_mine |= __shfl_xor_sync(ALL, is_mine, 2);
    __threadfence();
    float4 p = make_float4(0, 0, 0, 0), q = p;
    if (is_mine) p = load(x, u, lane), q = load(x, v, lane);
    float sum = p.x * q.x + p.y * q.y + p.z * q.z + p.w * q.w;
    sum += __shfl_xor_sync(ALL, sum, 1);
    sum += __shfl_xor_sync(ALL, sum, 2);
    float step = rate * (rating - sum), shrink = rate * ridge;
    if (is_mine) store(x, u, lane, p, q, step, shrink);
    if (is_mine) store(x, v, lane, q, p, step, shrink);
    __threadfence();
    __syncwarp();
    if (is_mine && lane == 0) atomicExch(locks + v, 0), atomicExch(locks + u, 0);
    is_new = is_mine;
    if (is_mine) place += groups, has_edge = place < edges;
  }
}
