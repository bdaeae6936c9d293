// The phases of a language model's step on an NVIDIA GPU, but for attention (`attention.cu`);
// `cuda_code.py` adds the entries of those that a model needs.
//
// Weights lie in tiles of 16 rows and 32 columns, so that a thread finds what it gives to two
// products of a warp's matrix unit (16 rows, 16 columns, 8 tokens) side by side. Vectors are sums of
// two numbers of bfloat16: 16 bits, with the range of float32. Weights become one such number, or two
// (float16) or three (float32), all exactly. What the matrix unit gives for a group of columns is
// multiplied by the group's scale and added in float32.
//
// Whatever the number of tokens, slice s of the columns has chunks s, s + S, ... of 32, and the sums of
// slices are added in one order; attention takes pages so. So the bits of a row depend on the row
// alone. A norm's factors are multiplied in before a product, and what all elements of a token share
// behind it: who adds to a row leaves it ready, with the sums of its squares. Compile without contraction: a product meets a sum only where fmaf says so.

typedef unsigned short u16;
typedef unsigned int u32;

enum { WARPS = 8, PAGE = 16 };
enum { STORE, ADD, SILU, GELU };
enum { NO_SCALE, HALF_SCALE, FLOAT_SCALE };

#define DEVICE static __device__ __forceinline__
#ifndef INFINITY
#define INFINITY __int_as_float(0x7F800000)
#endif

#ifdef __CUDACC__
DEVICE float half_to_float(u16 v) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v));
  return r;
}
DEVICE u16 float_to_half(float v) {
  u16 r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(v));
  return r;
}
// Pairs of bfloat16.
DEVICE u32 fma_pairs(u32 a, u32 b, u32 c) {
  u32 r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
DEVICE void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Of what no kernel writes.
DEVICE uint4 read_weights(const uint4 *from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
}
DEVICE uint2 read_weights(const uint2 *from) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from));
  return v;
}
// The next kernel may start before this one has ended; it waits before it reads what is written here.
DEVICE void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
DEVICE void wait_for_last() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
#endif

DEVICE float of_bf16(u32 v) { return __uint_as_float(v << 16); }
DEVICE u32 to_bf16(float v) {
  u32 bits = __float_as_uint(v);
  return v != v ? 0x7FFF : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

// Four elements of a row take 16 bytes: the numbers nearest to them, then to what is left of each.
DEVICE void put(u16 *row, int k, float value) {
  u32 high = to_bf16(value);
  u16 *at = row + k / 4 * 8 + k % 4;
  at[0] = (u16)high;
  at[4] = (u16)to_bf16(value - of_bf16(high));
}

DEVICE float total_of_warp(float v) {
  for (int by = 16; by; by /= 2) v = v + __shfl_xor_sync(0xFFFFFFFF, v, by);
  return v;
}

// ---- weights

// Kinds: 4 and 8 are integers, 16 is bfloat16, 17 float16, 32 float32.
template <int KIND> struct Kind {
  enum { BITS = KIND == 17 ? 16 : KIND, WORDS = BITS / 2, TERMS = KIND == 32 ? 3 : KIND == 17 ? 2 : 1 };
};

template <int WORDS> DEVICE void read_tile(u32 (&to)[WORDS], const u32 *from) {
  if (WORDS == 2) {
    uint2 v = read_weights((const uint2 *)from);
    to[0] = v.x;
    to[WORDS - 1] = v.y;
    return;
  }
#pragma unroll
  for (int i = 0; i < WORDS / 4; i++) {
    uint4 v = read_weights((const uint4 *)from + i);
    to[i * 4] = v.x;
    to[(i * 4 + 1) % WORDS] = v.y;
    to[(i * 4 + 2) % WORDS] = v.z;
    to[(i * 4 + 3) % WORDS] = v.w;
  }
}

DEVICE u32 pair(float low, float high) { return to_bf16(low) | to_bf16(high) << 16; }

// The terms of four pairs of weights for product j of two.
template <int KIND> DEVICE void decode(u32 (&a)[Kind<KIND>::TERMS][4], const u32 (&w)[Kind<KIND>::WORDS], int j, u32 less) {
  const u32 ONE = 0x3F803F80;
  enum { WORDS = Kind<KIND>::WORDS, TERMS = Kind<KIND>::TERMS };
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if (KIND == 4) {
      // 128 + n, less 128 and what n is too large by.
      a[0][i] = fma_pairs((w[j % WORDS] >> 4 * i & 0x000F000F) | 0x43004300, ONE, less);
    } else if (KIND == 8) {
      u32 both = __byte_perm(w[(j * 2 + i / 2) % WORDS], 0, i % 2 ? 0x4342 : 0x4140);
      u32 low = (both & 0x000F000F) | 0x43004300, high = (both >> 4 & 0x000F000F) | 0x43004300;
      // 16 (128 + high) - 2304 + (128 + low), each step exact.
      a[0][i] = fma_pairs(fma_pairs(high, 0x41804180, 0xC510C510), ONE, low);
    } else if (KIND == 16) {
      a[0][i] = w[(j * 4 + i) % WORDS];
    } else {
      float low, high;
      if (KIND == 17) {
        u32 v = w[(j * 4 + i) % WORDS];
        low = half_to_float((u16)v);
        high = half_to_float((u16)(v >> 16));
      } else {
        low = __uint_as_float(w[(j * 8 + i * 2) % WORDS]);
        high = __uint_as_float(w[(j * 8 + i * 2 + 1) % WORDS]);
      }
#pragma unroll
      for (int t = 0; t < TERMS; t++) {
        u32 v = pair(low, high);
        a[t][i] = v;
        low = low - of_bf16(v & 0xFFFF);
        high = high - of_bf16(v >> 16);
      }
    }
  }
}

template <int SCALE> DEVICE float2 factors(const void *from, long long at, int lane) {
  // Of rows g and g + 8, which lie side by side.
  if (SCALE == HALF_SCALE) {
    u32 v = ((const u32 *)from)[at * 8 + lane / 4];
    return make_float2(half_to_float((u16)v), half_to_float((u16)(v >> 16)));
  }
  return ((const float2 *)from)[at * 8 + lane / 4];
}

DEVICE float activated(float v, int how) {
  if (how == SILU) return v / (1.0f + expf(-v));
  float inner = 0.7978845608028654f * (v + 0.044715f * (v * v * v));
  return 0.5f * v * (1.0f + tanhf(inner));
}

// Tokens of an expert that are multiplied together: some of a list of pairs.
struct Job {
  int expert, first, count;
};

struct Matrix {
  const u32 *w;
  const void *s, *m;
  int zero, group, rows, columns;
};

// What becomes of a product: `squares` norms the tokens, `next` is the norm of what is added to, `more`
// has, in rows of `wide`, what the adapters of tokens that have one add.
struct After {
  void *target;
  int stride;
  const float *bias;
  float cap;
  const float *squares;
  float epsilon;
  const float *next;
  u16 *split;
  float *parts;
  const float *more;
  int wide;
  const int *adapter;
};

// One over the root of the mean of squares, of which each of 16 threads adds some up.
DEVICE float of_squares(const float *squares, int size, float epsilon) {
  float sum = 0.0f;
  for (int k = threadIdx.x % 16; k < size / 16; k += 16) sum = sum + squares[k];
  for (int by = 8; by; by /= 2) sum = sum + __shfl_xor_sync(0xFFFFFFFF, sum, by);
  return 1.0f / sqrtf(sum / (float)size + epsilon);
}

// Of one element, by 16 threads with a token's neighbours.
template <int END> DEVICE void finish(After after, float value, float input, int token, bool inside, int row, int rows) {
  const bool known = inside && row / 16 * 16 < rows;
  inside = inside && row < rows;
  if (after.more && inside && after.adapter[token] >= 0) {
    const float *more = after.more + (long long)token * after.wide + row;
    value = value + more[0];
    if (END >= SILU) input = input + more[rows];
  }
  if (END >= SILU) {
    if (inside) put((u16 *)after.target + (long long)token * after.stride * 2, row, activated(value, END) * input);
    return;
  }
  if (after.bias && inside) value = value + after.bias[row];
  if (after.cap > 0.0f) value = after.cap * tanhf(value / after.cap);
  float *at = (float *)after.target + (long long)token * after.stride + row;
  if (END == ADD) value = inside ? *at + value : 0.0f;
  if (inside) *at = value;
  if (END == ADD && after.next) {
    float square = value * value;
    for (int by = 8; by; by /= 2) square = square + __shfl_xor_sync(0xFFFFFFFF, square, by);
    if (inside) put(after.split + (long long)token * after.stride * 2, row, value * after.next[row]);
    if (known && threadIdx.x % 16 == 0) after.parts[(long long)token * (after.stride / 16) + row / 16] = square;
  }
}

// Multiplies SIDE tiles of rows (of gates and of inputs) with 8 * WIDTH tokens. Columns are cut into 8 * FOLD slices: a
// warp has one (TOGETHER is FOLD), or FOLD one after the other (it is 1), with the same sums.
// With `used`, matrices of experts lie one below the other, `places` lists pairs of a token and an expert,
// `count` what there is to do (`routed.cu`); x has rows of tokens with `used` pairs, or of pairs (it is 1).
template <int KIND, int SCALE, bool OFFSET, bool NARROW, int WIDTH, int SIDE, int END, int FOLD, int TOGETHER, bool ROUTED>
DEVICE void product(Matrix of, const uint4 *x, const int *places, const int *count, After after, int used) {
  enum { WORDS = Kind<KIND>::WORDS, TERMS = Kind<KIND>::TERMS, TILES = END >= SILU ? 2 * SIDE : SIDE, SLICES = WARPS * FOLD };
  enum { HERE = WARPS * TOGETHER, TURNS = FOLD / TOGETHER, FACTORS = NARROW ? 2 : 1 };
  enum { AHEAD = WIDTH > 2 || KIND > 16 ? 1 : WIDTH == 2 || FOLD == 4 || KIND > 8 ? 2 : 4 };
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int chunks = of.columns / 32, groups = SCALE == NO_SCALE ? 1 : of.columns / of.group;
  const int tile = blockIdx.x * SIDE, tiles = (of.rows + 15) / 16;
  int first = blockIdx.y * WIDTH * 8, tokens = 0, expert = 0;
  const u32 less = 0x43004300 + of.zero * 0x00010001 | 0x80008000;
  float sums[TILES][WIDTH][4], folded[TURNS > 1 ? TILES : 1][TURNS > 1 ? WIDTH : 1][4];
  const uint4 *from[WIDTH];
  const u32 *weights[TILES];
  long long factor_at[TILES];
  if (ROUTED) {
    let_next_start();
    wait_for_last();
    if (blockIdx.y >= *count) return;
    const Job job = ((const Job *)(count + 1))[blockIdx.y];
    expert = job.expert;
    first = job.first;
    tokens = first + job.count;
  }
#pragma unroll
  for (int r = 0; r < TILES; r++) {
    // Inputs stand below gates; tiles beyond the end are the last one again.
    long long row = min(tile + r % SIDE, tiles - 1) + (expert * (TILES / SIDE) + r / SIDE) * (long long)tiles;
    weights[r] = of.w + (row * chunks * 32 + lane) * WORDS;
    factor_at[r] = row * groups;
  }
  if (!ROUTED) let_next_start();
#pragma unroll
  for (int turn = 0; turn < TURNS; turn++) {
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
      for (int i = 0; i < WIDTH; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) sums[r][i][e] = 0.0f;
    const int slice = warp + turn * WARPS;
    // A slice without columns looks at the last ones, times zero.
    for (int start = slice; start == slice || start < chunks; start += SLICES * AHEAD) {
      u32 held[AHEAD][TILES][WORDS];
      float2 scales[AHEAD][TILES][FACTORS], offsets[OFFSET ? AHEAD : 1][TILES][FACTORS];
#pragma unroll
      for (int u = 0; u < AHEAD; u++) {
        int own = start + u * SLICES, chunk = min(own, chunks - 1);
#pragma unroll
        for (int r = 0; r < TILES; r++) {
          read_tile<WORDS>(held[u][r], weights[r] + chunk * (32 * WORDS));
#pragma unroll
          for (int j = 0; j < FACTORS; j++) {
            long long at = factor_at[r] + (NARROW ? chunk * 2 + j : SCALE == NO_SCALE ? 0 : chunk * 32 / of.group);
            scales[u][r][j] = SCALE == NO_SCALE ? make_float2(1.0f, 1.0f) : factors<SCALE>(of.s, at, lane);
            if (own >= chunks) scales[u][r][j] = make_float2(0.0f, 0.0f);
            if (OFFSET) offsets[u][r][j] = own < chunks ? factors<SCALE>(of.m, at, lane) : make_float2(0.0f, 0.0f);
          }
        }
      }
      if (turn == 0 && start == slice) {
        if (!ROUTED) {
          wait_for_last();
          tokens = *count;
          if (first >= tokens) return;
        }
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
          int token = first + i * 8 + lane / 4;
          if (token < tokens && places) token = ROUTED ? places[token] / used : places[token];
          from[i] = x + (long long)token * (of.columns / 4) + lane % 4;
        }
      }
      uint4 given[AHEAD][WIDTH][2];
#pragma unroll
      for (int u = 0; u < AHEAD; u++)
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
#pragma unroll
          for (int j = 0; j < 2; j++) {
            int chunk = min(start + u * SLICES, chunks - 1);
            given[u][i][j] = make_uint4(0, 0, 0, 0);
            if (first + i * 8 + lane / 4 < tokens) given[u][i][j] = from[i][chunk * 8 + j * 4];
          }
#pragma unroll
      for (int u = 0; u < AHEAD; u++)
#pragma unroll
        for (int r = 0; r < TILES; r++) {
          float parts[WIDTH][4], whole[OFFSET ? WIDTH : 1][4];
#pragma unroll
          for (int j = 0; j < 2; j++) {
            u32 a[TERMS][4];
            const u32 ones[4] = {0x3F803F80, 0x3F803F80, 0x3F803F80, 0x3F803F80};
            decode<KIND>(a, held[u][r], j, less);
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
              uint4 b = given[u][i][j];
              if (NARROW || !j)
#pragma unroll
                for (int e = 0; e < 4; e++) parts[i][e] = whole[OFFSET ? i : 0][e] = 0.0f;
#pragma unroll
              for (int t = TERMS - 1; t >= 0; t--) {
                multiply(parts[i], a[t], b.z, b.w);
                multiply(parts[i], a[t], b.x, b.y);
              }
              if (OFFSET) {
                multiply(whole[OFFSET ? i : 0], ones, b.z, b.w);
                multiply(whole[OFFSET ? i : 0], ones, b.x, b.y);
              }
            }
            if (!NARROW && !j) continue;
            float2 scale = scales[u][r][NARROW ? j : 0];
            float2 offset = OFFSET ? offsets[OFFSET ? u : 0][r][NARROW ? j : 0] : scale;
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
#pragma unroll
              for (int e = 0; e < 4; e++) {
                sums[r][i][e] = fmaf(e < 2 ? scale.x : scale.y, parts[i][e], sums[r][i][e]);
                if (OFFSET) sums[r][i][e] = fmaf(e < 2 ? offset.x : offset.y, whole[OFFSET ? i : 0][e], sums[r][i][e]);
              }
          }
        }
    }
    if (TURNS > 1)
#pragma unroll
      for (int r = 0; r < TILES; r++)
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
#pragma unroll
          for (int e = 0; e < 4; e++) {
            float &kept = folded[TURNS > 1 ? r : 0][TURNS > 1 ? i : 0][e];
            kept = turn ? kept + sums[r][i][e] : sums[r][i][e];
            if (turn == TURNS - 1) sums[r][i][e] = kept;
          }
  }
  __shared__ alignas(16) float met[HERE][TILES][8][16];
#pragma unroll
  for (int i = 0; i < WIDTH; i++) {
    if (first + i * 8 >= tokens) break;
    if (i) __syncthreads();
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
      for (int e = 0; e < 4; e++)
        met[warp][r][lane % 4 * 2 + e % 2][lane / 4 + e / 2 * 8] = sums[r][i][e];
    int token = first + i * 8 + thread / 16;
    const bool inside = token < tokens;
    float norm = 1.0f;
    if (ROUTED && inside) token = places[token];
    if (thread < 128 && after.squares) {
      int place = !inside ? 0 : ROUTED ? token / used : places ? places[token] : token;
      norm = of_squares(after.squares + (long long)place * (of.columns / 16), of.columns, after.epsilon);
    }
    __syncthreads();
    if (thread >= 128) continue;
#pragma unroll
    for (int r = 0; r < SIDE; r++) {
      float found[TILES / SIDE];
#pragma unroll
      for (int half = 0; half < TILES / SIDE; half++) {
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
          float part = met[w][r + half * SIDE][thread / 16][thread % 16];
#pragma unroll
          for (int f = 1; f < HERE / WARPS; f++) part = part + met[w + f * WARPS][r + half * SIDE][thread / 16][thread % 16];
          sum = sum + part;
        }
        found[half] = after.squares ? sum * norm : sum;
      }
      finish<END>(after, found[0], found[TILES / SIDE - 1], token, inside, (tile + r) * 16 + thread % 16, of.rows);
    }
  }
}

// One weight of a packed matrix.
template <int KIND, int SCALE, bool OFFSET> DEVICE float weight_at(Matrix of, int row, int column) {
  enum { WORDS = Kind<KIND>::WORDS };
  int chunk = column / 32, j = column / 16 % 2, inside = column % 16;
  int lane = row % 8 * 4 + inside / 4, i = inside % 4 / 2 * 2 + row % 16 / 8, which = inside % 2;
  const u32 *w = of.w + (((long long)(row / 16) * (of.columns / 32) + chunk) * 32 + lane) * WORDS;
  if (KIND == 16) return of_bf16(w[j * 4 + i] >> 16 * which & 0xFFFF);
  if (KIND == 17) return half_to_float((u16)(w[j * 4 + i] >> 16 * which));
  if (KIND == 32) return __uint_as_float(w[j * 8 + i * 2 + which]);
  float value = KIND == 4 ? (float)((int)(w[j] >> (4 * i + 16 * which) & 15) - of.zero)
                          : (float)((int)(w[j * 2 + i / 2] >> (i % 2 * 16 + which * 8) & 255) - 128);
  long long at = ((long long)(row / 16) * (of.columns / of.group) + column / of.group) * 16 + row % 8 * 2 + row % 16 / 8;
  value = value * (SCALE == HALF_SCALE ? half_to_float(((const u16 *)of.s)[at]) : ((const float *)of.s)[at]);
  if (OFFSET) value = value + (SCALE == HALF_SCALE ? half_to_float(((const u16 *)of.m)[at]) : ((const float *)of.m)[at]);
  return value;
}

// ---- norms

DEVICE float total_of_block(float sum) {
  __shared__ alignas(16) float parts[WARPS];
  sum = total_of_warp(sum);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = parts[0];
  for (int w = 1; w < WARPS; w++) sum = sum + parts[w];
  __syncthreads();
  return sum;
}

DEVICE float scale_of_norm(const float *x, int size, float epsilon) {
  float sum = 0.0f;
  for (int k = threadIdx.x; k < size; k += WARPS * 32) sum = fmaf(x[k], x[k], sum);
  return 1.0f / sqrtf(total_of_block(sum) / (float)size + epsilon);
}

// What the next product takes of a row: the row times a norm's factors, and its squares.
DEVICE void hand_on(const float *x, const float *next, u16 *split, float *parts, int size) {
  long long row = blockIdx.x;
  float sum = 0.0f;
  for (int k = threadIdx.x; k < size; k += WARPS * 32) {
    sum = fmaf(x[k], x[k], sum);
    put(split + row * size * 2, k, x[k] * next[k]);
  }
  sum = total_of_block(sum);
  for (int k = threadIdx.x; k < size / 16; k += WARPS * 32) parts[row * (size / 16) + k] = k ? 0.0f : sum;
}

// Rows of the embedding; a token of -1 has a row already.
template <int KIND, int SCALE, bool OFFSET>
DEVICE void embedded(Matrix of, const int *tokens, const int *count, float *x, float factor, const float *next, u16 *split, float *parts) {
  let_next_start();
  wait_for_last();
  int row = blockIdx.x;
  if (row >= *count) return;
  x += (long long)row * of.columns;
  if (tokens[row] >= 0)
    for (int k = threadIdx.x; k < of.columns; k += WARPS * 32)
      x[k] = weight_at<KIND, SCALE, OFFSET>(of, tokens[row], k) * factor;
  hand_on(x, next, split, parts, of.columns);
}

// Adds a norm of t to x.
extern "C" __global__ void __launch_bounds__(256) norm_add(const float *t, const float *weight, float *x, const int *count, int size, float epsilon, const float *next, u16 *split, float *parts) {
  let_next_start();
  wait_for_last();
  int row = blockIdx.x;
  if (row >= *count) return;
  t += (long long)row * size;
  x += (long long)row * size;
  float scale = scale_of_norm(t, size, epsilon);
  for (int k = threadIdx.x; k < size; k += WARPS * 32) x[k] = x[k] + t[k] * scale * weight[k];
  hand_on(x, next, split, parts, size);
}

// In place; rows lie `stride` apart.
extern "C" __global__ void __launch_bounds__(256) norm_rows(float *x, const float *weight, const int *count, int size, int stride, float epsilon) {
  let_next_start();
  wait_for_last();
  int row = blockIdx.x;
  if (row >= *count) return;
  x += (long long)row * stride;
  float scale = scale_of_norm(x, size, epsilon);
  for (int k = threadIdx.x; k < size; k += WARPS * 32) x[k] = x[k] * scale * weight[k];
}

// The largest of a row, of equals the first; -1 where one is not finite.
extern "C" __global__ void __launch_bounds__(1024) best(const float *logits, int *found, const int *count, int vocab, int stride) {
  __shared__ alignas(16) float values[32];
  __shared__ alignas(16) int places[32];
  let_next_start();
  wait_for_last();
  int row = blockIdx.x, lane = threadIdx.x % 32;
  if (row >= *count) return;
  logits += (long long)row * stride;
  float most = -INFINITY;
  int place = 0x7FFFFFFF;
  bool finite = true;
#pragma unroll 8
  for (int k = threadIdx.x * 4; k < vocab; k += 4096) {
    // Rows are padded to 16.
    float4 v = *(const float4 *)(logits + k);
    const float values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (k + i < vocab) {
        finite = finite && fabsf(values[i]) < INFINITY;
        if (values[i] > most) { most = values[i]; place = k + i; }
      }
  }
  for (int round = 0; round < 2; round++) {
    if (!finite) place = -1;
    for (int by = 16; by; by /= 2) {
      float other = __shfl_xor_sync(0xFFFFFFFF, most, by);
      int where = __shfl_xor_sync(0xFFFFFFFF, place, by);
      bool better = other > most || (other == most && where < place);
      if (place < 0 || where < 0) place = -1;
      else if (better) { most = other; place = where; }
    }
    if (round) break;
    if (lane == 0) { values[threadIdx.x / 32] = most; places[threadIdx.x / 32] = place; }
    __syncthreads();
    most = values[lane];
    place = places[lane];
    finite = true;
  }
  if (threadIdx.x == 0) found[row] = place;
}
