// One thread a vertex, every vertex in every superstep, four features: the plain way.
//
// Each kernel does one superstep of a recurrence of bench/learning/problems.py, fused:
// gather, update, and the commit of what moved by over epsilon. A vertex's in-edges are
// the slots offsets[v] to offsets[v + 1]; rows of four floats are read at once.
// `committed` counts the vertices that moved.

__device__ inline float4 operator+(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
__device__ inline float4 operator-(float4 a, float4 b) {
  return make_float4(a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w);
}
__device__ inline float4 operator*(float4 a, float4 b) {
  return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}
__device__ inline float4 operator*(float s, float4 a) {
  return make_float4(s * a.x, s * a.y, s * a.z, s * a.w);
}
__device__ inline float sum(float4 a) { return (a.x + a.y) + (a.z + a.w); }
__device__ inline float largest(float4 a) {
  return fmaxf(fmaxf(a.x, a.y), fmaxf(a.z, a.w));
}
__device__ inline float4 minus(float4 a, float s) {
  return make_float4(a.x - s, a.y - s, a.z - s, a.w - s);
}
__device__ inline float4 normalized(float4 a) {
  float total = sum(a);
  return total != 0.0f ? make_float4(a.x / total, a.y / total, a.z / total, a.w / total)
                       : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}
__device__ inline bool moved(float4 a, float4 b, float epsilon) {
  float4 c = a - b;
  return fabsf(c.x) > epsilon || fabsf(c.y) > epsilon || fabsf(c.z) > epsilon ||
         fabsf(c.w) > epsilon;
}

// All threads of the block must come here.
__device__ inline void count(bool commits, int *committed) {
  int here = __syncthreads_count(commits);
  if (threadIdx.x == 0 && here > 0) atomicAdd(committed, here);
}

extern "C" __global__ void lp_sweep(
    const int *__restrict__ offsets, const int *__restrict__ sources,
    const float *__restrict__ weight, const unsigned char *__restrict__ clamped,
    const float4 *__restrict__ label, float4 *__restrict__ label_next, int n,
    float alpha, float epsilon, int *committed) {
  int v = blockIdx.x * blockDim.x + threadIdx.x;
  bool commits = false;
  if (v < n) {
    float4 old = label[v], p = old;
    if (!clamped[v]) {
      float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      int end = offsets[v + 1];
#pragma unroll 4
      for (int slot = offsets[v]; slot < end; ++slot)
        total = total + weight[slot] * label[sources[slot]];
      p = normalized(alpha * normalized(total) + (1.0f - alpha) * old);
      commits = moved(p, old, epsilon);
    }
    label_next[v] = commits ? p : old;
  }
  count(commits, committed);
}

extern "C" __global__ void mmr_sweep(
    const int *__restrict__ offsets, const int *__restrict__ sources,
    const float4 *__restrict__ weight, const float4 *__restrict__ given,
    const float4 *__restrict__ score, float4 *__restrict__ score_next, int n,
    float alpha, float epsilon, int *committed) {
  int v = blockIdx.x * blockDim.x + threadIdx.x;
  bool commits = false;
  if (v < n) {
    float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f), mass = total;
    int end = offsets[v + 1];
#pragma unroll 4
    for (int slot = offsets[v]; slot < end; ++slot) {
      float4 w = weight[slot];
      total = total + w * score[sources[slot]];
      mass = mass + w;
    }
    float4 old = score[v];
    total.x = mass.x > 0.0f ? total.x / mass.x : 0.0f;
    total.y = mass.y > 0.0f ? total.y / mass.y : 0.0f;
    total.z = mass.z > 0.0f ? total.z / mass.z : 0.0f;
    total.w = mass.w > 0.0f ? total.w / mass.w : 0.0f;
    float4 p = alpha * total + (1.0f - alpha) * given[v];
    commits = moved(p, old, epsilon);
    score_next[v] = commits ? p : old;
  }
  count(commits, committed);
}

extern "C" __global__ void mml_sweep(
    const int *__restrict__ offsets, const int *__restrict__ sources,
    const float *__restrict__ weight, const float4 *__restrict__ given,
    const float4 *__restrict__ mode, float4 *__restrict__ mode_next, int n, float rest,
    float epsilon, int *committed) {
  int v = blockIdx.x * blockDim.x + threadIdx.x;
  bool commits = false;
  if (v < n) {
    float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    int end = offsets[v + 1];
#pragma unroll 4
    for (int slot = offsets[v]; slot < end; ++slot)
      total = total + weight[slot] * mode[sources[slot]];
    float4 old = mode[v];
    float4 p = total + rest * given[v];
    commits = moved(p, old, epsilon);
    mode_next[v] = commits ? p : old;
  }
  count(commits, committed);
}

// One side of a bipartite graph in place: it reads the factors of the other side only.
extern "C" __global__ void als_sweep(
    const int *__restrict__ side, int side_count, const int *__restrict__ offsets,
    const int *__restrict__ sources, const float *__restrict__ rating, float4 *factor,
    float ridge, float epsilon, int *committed) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  bool commits = false;
  if (i < side_count) {
    int v = side[i], begin = offsets[v], end = offsets[v + 1];
    float4 b = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float a00 = 0, a10 = 0, a11 = 0, a20 = 0, a21 = 0, a22 = 0;
    float a30 = 0, a31 = 0, a32 = 0, a33 = 0;
#pragma unroll 2
    for (int slot = begin; slot < end; ++slot) {
      float4 x = factor[sources[slot]];
      b = b + rating[slot] * x;
      a00 += x.x * x.x;
      a10 += x.y * x.x, a11 += x.y * x.y;
      a20 += x.z * x.x, a21 += x.z * x.y, a22 += x.z * x.z;
      a30 += x.w * x.x, a31 += x.w * x.y, a32 += x.w * x.z, a33 += x.w * x.w;
    }
    float diagonal = ridge * (float)(end - begin);
    // Cholesky, A = L L^T, and both triangular systems, in registers.
    float l00 = sqrtf(a00 + diagonal);
    float l10 = a10 / l00, l20 = a20 / l00, l30 = a30 / l00;
    float l11 = sqrtf(a11 + diagonal - l10 * l10);
    float l21 = (a21 - l20 * l10) / l11, l31 = (a31 - l30 * l10) / l11;
    float l22 = sqrtf(a22 + diagonal - l20 * l20 - l21 * l21);
    float l32 = (a32 - l30 * l20 - l31 * l21) / l22;
    float l33 = sqrtf(a33 + diagonal - l30 * l30 - l31 * l31 - l32 * l32);
    float y0 = b.x / l00, y1 = (b.y - l10 * y0) / l11;
    float y2 = (b.z - l20 * y0 - l21 * y1) / l22;
    float y3 = (b.w - l30 * y0 - l31 * y1 - l32 * y2) / l33;
    float4 p;
    p.w = y3 / l33;
    p.z = (y2 - l32 * p.w) / l22;
    p.y = (y1 - l21 * p.z - l31 * p.w) / l11;
    p.x = (y0 - l10 * p.y - l20 * p.z - l30 * p.w) / l00;
    commits = moved(p, factor[v], epsilon);
    if (commits) factor[v] = p;
  }
  count(commits, committed);
}

__device__ inline float4 logs(float4 a) {
  return make_float4(logf(a.x), logf(a.y), logf(a.z), logf(a.w));
}
__device__ inline float4 exps(float4 a) {
  return make_float4(expf(a.x), expf(a.y), expf(a.z), expf(a.w));
}

// Messages into v, their sum, and the belief, in one pass. Psi is one matrix for all
// edges (psi_stride 0) or one an edge (4 rows of four); it is symmetric.
extern "C" __global__ void bp_sweep(
    const int *__restrict__ offsets, const int *__restrict__ sources,
    const int *__restrict__ twin, const float4 *__restrict__ psi, int psi_stride,
    const float4 *__restrict__ phi, const float4 *__restrict__ msg,
    float4 *__restrict__ msg_next, const float4 *__restrict__ belief,
    float4 *__restrict__ belief_next, int n, float epsilon, int *committed) {
  int v = blockIdx.x * blockDim.x + threadIdx.x;
  bool commits = false;
  if (v < n) {
    float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    int end = offsets[v + 1];
#pragma unroll 2
    for (int slot = offsets[v]; slot < end; ++slot) {
      float4 cavity = belief[sources[slot]] - msg[twin[slot]];
      float4 x = exps(minus(cavity, largest(cavity)));
      const float4 *rows = psi + (long long)psi_stride * slot;
      float4 m = logs(make_float4(sum(rows[0] * x), sum(rows[1] * x), sum(rows[2] * x),
                                  sum(rows[3] * x)));
      m = minus(m, largest(m));
      float4 before = msg[slot];
      float4 now = moved(m, before, epsilon) ? m : before;
      msg_next[slot] = now;
      total = total + now;
    }
    float4 old = belief[v];
    float4 p = phi[v] + total;
    commits = moved(p, old, epsilon);
    belief_next[v] = commits ? p : old;
  }
  count(commits, committed);
}
