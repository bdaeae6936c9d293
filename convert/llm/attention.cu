// Attention of a language model's step on an NVIDIA GPU; `step.cu` stands before it.

struct Heads {
  int queries, kept, dims, window;
  float scale, cap, epsilon;
};

// A head's elements, normed and turned: by one warp, in `own`.
DEVICE void turn(float *own, const float *from, const float *weight, const float *cos, const float *sin, int dims, float epsilon) {
  int lane = threadIdx.x % 32, half = dims / 2;
  float scale = 1.0f;
  if (weight) {
    float sum = 0.0f;
    for (int e = lane; e < HEAD; e += 32) sum = fmaf(from[e], from[e], sum);
    scale = 1.0f / sqrtf(total_of_warp(sum) / (float)HEAD + epsilon);
  }
  for (int e = lane; e < HEAD; e += 32) own[e] = weight ? from[e] * scale * weight[e] : from[e];
  __syncwarp();
  for (int e = lane; e < half; e += 32) {
    float low = own[e], high = own[e + half];
    own[e] = fmaf(low, cos[e], -(high * sin[e]));
    own[e + half] = fmaf(high, cos[e], low * sin[e]);
  }
  __syncwarp();
}


// A page has, of a layer, keys of all heads, then values, of float16; or bytes, and behind them a scale and
// a zero of each token's keys and values.
template <bool BYTES> DEVICE const char *kept_at(const u16 *page, int which, int head, int heads) {
  return (const char *)page + (which * heads + head) * PAGE * HEAD * (BYTES ? 1 : 2);
}

DEVICE float2 *levels_of(const u16 *page, int which, int head, int heads) {
  return (float2 *)((char *)page + 2 * heads * PAGE * HEAD) + (which * heads + head) * PAGE;
}

template <bool BYTES> DEVICE void read_eight(float (&to)[8], const char *row, int e, float zero) {
  if (BYTES) {
    uint2 v = *(const uint2 *)(row + e);
#pragma unroll
    for (int i = 0; i < 8; i++) to[i] = (float)((i < 4 ? v.x : v.y) >> i % 4 * 8 & 255) - zero;
    return;
  }
  uint4 v = *(const uint4 *)((const u16 *)row + e);
  const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 8; i++) to[i] = half_to_float((u16)(words[i / 2] >> i % 2 * 16));
}

// Pairs of neighbours, as they are kept.
template <bool BYTES> DEVICE u32 read_pair(const char *row, int pair) {
  return BYTES ? ((const u16 *)row)[pair] : ((const u32 *)row)[pair];
}

template <bool BYTES> DEVICE float of_pair(u32 pair, int which, float zero) {
  return BYTES ? (float)(pair >> which * 8 & 255) - zero : half_to_float((u16)(pair >> which * 16));
}

// Rounds a head to bytes, by one warp; zero is one of their values. What is not finite stays so.
DEVICE void keep_bytes(unsigned char *to, float2 *levels, const float *own) {
  int lane = threadIdx.x % 32;
  float low = 0.0f, high = 0.0f, none = 0.0f;
  for (int e = lane; e < HEAD; e += 32) {
    low = own[e] < low ? own[e] : low;
    high = own[e] > high ? own[e] : high;
    none = none + own[e] * 0.0f;
  }
  for (int by = 16; by; by /= 2) {
    float lower = __shfl_xor_sync(0xFFFFFFFF, low, by), higher = __shfl_xor_sync(0xFFFFFFFF, high, by);
    low = lower < low ? lower : low;
    high = higher > high ? higher : high;
  }
  none = total_of_warp(none);
  float scale = high > low ? (high - low) / 255.0f : 1.0f, zero = rintf(-low / scale);
  for (int e = lane; e < HEAD; e += 32) {
    float level = rintf(own[e] / scale) + zero;
    to[e] = (unsigned char)(level > 0.0f ? level < 255.0f ? level : 255.0f : 0.0f);
  }
  if (lane == 0) *levels = make_float2(scale + none, zero);
}

// Turns one head of a token, by one warp: a query in place, a key or value into the cache.
template <bool BYTES> DEVICE void turn_head(float *own, float *row, u16 *page, Heads heads, int head, int position, const float *cos, const float *sin, const float *qnorm, const float *knorm) {
  int lane = threadIdx.x % 32, half = heads.dims / 2;
  cos += (long long)position * half;
  sin += (long long)position * half;
  float *from = row + head * HEAD;
  if (head < heads.queries) {
    turn(own, from, qnorm, cos, sin, heads.dims, heads.epsilon);
    for (int e = lane; e < HEAD; e += 32) from[e] = own[e];
    return;
  }
  int which = head - heads.queries >= heads.kept, kept = head - heads.queries - which * heads.kept, at = position % PAGE;
  if (which == 0) turn(own, from, knorm, cos, sin, heads.dims, heads.epsilon);
  char *to = (char *)kept_at<BYTES>(page, which, kept, heads.kept);
  if (BYTES) keep_bytes((unsigned char *)to + at * HEAD, levels_of(page, which, kept, heads.kept) + at, which ? from : own);
  else
    for (int e = lane; e < HEAD; e += 32) ((u16 *)to)[at * HEAD + e] = float_to_half(which ? from[e] : own[e]);
}

// What comes before attention where a sequence has several tokens.
template <bool BYTES>
DEVICE void turn_all(float *qkv, u16 *cache, const int *table, const int *positions, const int *owner, const int *count, const float *cos, const float *sin, const float *qnorm, const float *knorm, int columns, int page_size, int layer_at, int queries, int kept, int dims, float epsilon) {
  __shared__ alignas(16) float own[WARPS][HEAD];
  let_next_start();
  wait_for_last();
  int token = blockIdx.x, head = blockIdx.y * WARPS + threadIdx.x / 32;
  if (token >= *count || head >= queries + 2 * kept) return;
  int position = positions[token], page = table[(long long)owner[token] * columns + position / PAGE];
  Heads heads = {queries, kept, dims, 0, 1.0f, 0.0f, epsilon};
  turn_head<BYTES>(own[threadIdx.x / 32], qkv + (long long)token * (queries + 2 * kept) * HEAD, cache + (long long)page * page_size + layer_at, heads, head, position, cos, sin, qnorm, knorm);
}

// A token's heads that share keys, SHARE of them; FUSED turns them and appends first.
template <bool BYTES, bool FUSED>
DEVICE void attend(float *qkv, u16 *cache, const int *table, const int *positions, const int *owner, const int *count, const float *cos, const float *sin, const float *qnorm, const float *knorm, u16 *to, int columns, int page_size, int layer_at, Heads heads) {
  enum { PAIRS = HEAD / 2, EACH = (PAIRS + 31) / 32 };
  __shared__ alignas(16) float q[SHARE][HEAD];
  __shared__ alignas(16) float own[WARPS][HEAD];
  __shared__ alignas(16) float shares[WARPS][SHARE][PAGE];
  __shared__ alignas(16) float mosts[SHARE][WARPS], totals[SHARE][WARPS];
  let_next_start();
  wait_for_last();
  int token = blockIdx.x, first_head = blockIdx.y * SHARE, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (token >= *count) return;
  int position = positions[token], kept = first_head / (heads.queries / heads.kept);
  const int *pages = table + (long long)owner[token] * columns;
  float *row = qkv + (long long)token * (heads.queries + 2 * heads.kept) * HEAD;
  if (FUSED) {
    u16 *page = cache + (long long)pages[position / PAGE] * page_size + layer_at;
    for (int n = warp; n < SHARE + 2; n += WARPS) {
      // Queries stay as they are where blocks that share keys may still read them.
      if (n < SHARE) {
        turn(q[n], row + (first_head + n) * HEAD, qnorm, cos + (long long)position * (heads.dims / 2), sin + (long long)position * (heads.dims / 2), heads.dims, heads.epsilon);
        continue;
      }
      int head = heads.queries + kept + (n - SHARE) * heads.kept;
      turn_head<BYTES>(own[warp], row, page, heads, head, position, cos, sin, qnorm, knorm);
    }
  } else {
    for (int e = threadIdx.x; e < SHARE * HEAD; e += WARPS * 32) q[e / HEAD][e % HEAD] = row[first_head * HEAD + e];
  }
  __syncthreads();
  int begin = heads.window && position + 1 > heads.window ? position + 1 - heads.window : 0;
  float most[SHARE], total[SHARE], sum[SHARE][EACH][2];
#pragma unroll
  for (int h = 0; h < SHARE; h++) {
    most[h] = -INFINITY;
    total[h] = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++) sum[h][i][0] = sum[h][i][1] = 0.0f;
  }
  int first_page = begin / PAGE;
  for (int p = first_page + (warp - first_page % WARPS + WARPS) % WARPS; p <= position / PAGE; p += WARPS) {
    const u16 *page = cache + (long long)pages[p] * page_size + layer_at;
    const char *keys = kept_at<BYTES>(page, 0, kept, heads.kept), *values = kept_at<BYTES>(page, 1, kept, heads.kept);
    enum { ROW = HEAD * (BYTES ? 1 : 2) };
    float2 key_levels = make_float2(1.0f, 0.0f), value_levels = key_levels;
    if (BYTES) {
      key_levels = levels_of(page, 0, kept, heads.kept)[lane / 2];
      value_levels = levels_of(page, 1, kept, heads.kept)[lane / 2];
    }
    // All that is read of a page is asked for at once.
    u32 held[PAGE][EACH];
#pragma unroll
    for (int t = 0; t < PAGE; t++)
#pragma unroll
      for (int i = 0; i < EACH; i++) held[t][i] = read_pair<BYTES>(values + t * ROW, min(lane + i * 32, PAIRS - 1));
    int at = p * PAGE + lane / 2;
    bool seen = at >= begin && at <= position;
    float score[SHARE];
#pragma unroll
    for (int h = 0; h < SHARE; h++) score[h] = 0.0f;
#pragma unroll
    for (int e = lane % 2 * 8; e < HEAD; e += 16) {
      float key[8];
      read_eight<BYTES>(key, keys + lane / 2 * ROW, e, key_levels.y);
#pragma unroll
      for (int i = 0; i < 8; i++)
#pragma unroll
        for (int h = 0; h < SHARE; h++) score[h] = fmaf(key[i], q[h][e + i], score[h]);
    }
#pragma unroll
    for (int h = 0; h < SHARE; h++) {
      float s = (score[h] + __shfl_xor_sync(0xFFFFFFFF, score[h], 1)) * heads.scale;
      if (BYTES) s = s * key_levels.x;
      if (heads.cap > 0.0f) s = heads.cap * tanhf(s / heads.cap);
      // What lies where no token is may be NaN.
      if (!seen) s = -INFINITY;
      float largest = s;
      for (int by = 16; by > 1; by /= 2) {
        float other = __shfl_xor_sync(0xFFFFFFFF, largest, by);
        // NaN stays.
        largest = other > largest || other != other ? other : largest;
      }
      float now = largest > most[h] || largest != largest ? largest : most[h];
      float share = seen ? expf(s - now) : 0.0f, less = expf(most[h] - now), added = share;
      for (int by = 16; by > 1; by /= 2) added = added + __shfl_xor_sync(0xFFFFFFFF, added, by);
      most[h] = now;
      total[h] = fmaf(total[h], less, added);
#pragma unroll
      for (int i = 0; i < EACH; i++) {
        sum[h][i][0] = sum[h][i][0] * less;
        sum[h][i][1] = sum[h][i][1] * less;
      }
      if (lane % 2 == 0) shares[warp][h][lane / 2] = BYTES && seen ? share * value_levels.x : share;
    }
    __syncwarp();
    int low = begin > p * PAGE ? begin - p * PAGE : 0, high = position - p * PAGE < PAGE - 1 ? position - p * PAGE : PAGE - 1;
#pragma unroll
    for (int t = 0; t < PAGE; t++) {
      if (t < low || t > high) continue;
      float zero = BYTES ? __shfl_sync(0xFFFFFFFF, value_levels.y, t * 2) : 0.0f;
#pragma unroll
      for (int i = 0; i < EACH; i++) {
        float one = of_pair<BYTES>(held[t][i], 0, zero), two = of_pair<BYTES>(held[t][i], 1, zero);
#pragma unroll
        for (int h = 0; h < SHARE; h++) {
          sum[h][i][0] = fmaf(shares[warp][h][t], one, sum[h][i][0]);
          sum[h][i][1] = fmaf(shares[warp][h][t], two, sum[h][i][1]);
        }
      }
    }
    __syncwarp();
  }
#pragma unroll
  for (int h = 0; h < SHARE; h++)
    if (lane == 0) { mosts[h][warp] = most[h]; totals[h][warp] = total[h]; }
#pragma unroll
  for (int h = 0; h < SHARE; h++) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; i++)
      if (!(PAIRS % 32) || lane + i * 32 < PAIRS) {
        own[warp][(lane + i * 32) * 2] = sum[h][i][0];
        own[warp][(lane + i * 32) * 2 + 1] = sum[h][i][1];
      }
    __syncthreads();
    float best = mosts[h][0];
    for (int w = 1; w < WARPS; w++) best = mosts[h][w] > best || mosts[h][w] != mosts[h][w] ? mosts[h][w] : best;
    float whole = 0.0f, factor[WARPS];
    for (int w = 0; w < WARPS; w++) {
      factor[w] = mosts[h][w] == -INFINITY ? 0.0f : expf(mosts[h][w] - best);
      whole = fmaf(totals[h][w], factor[w], whole);
    }
    for (int e = threadIdx.x; e < HEAD; e += WARPS * 32) {
      float value = 0.0f;
      for (int w = 0; w < WARPS; w++) value = fmaf(own[w][e], factor[w], value);
      put(to + (long long)token * heads.queries * HEAD * 2, (first_head + h) * HEAD + e, value / whole);
    }
  }
}
