// What low-rank adapters add to a product of a language model's step on an NVIDIA GPU: for each token
// `scale * B A x` of the adapter it has; `step.cu` stands before it. A token's sums are made alone.

// Of one adapter: A (rank / 8, columns / 8, 8, 8) and B (rows / 16, rank, 16) in float16.
struct LowRank {
  const u16 *a, *b;
  float scale;
  int rank;
};

// Tokens times first matrices: (tokens, parts, most), a row of a matrix by a warp.
extern "C" __global__ void __launch_bounds__(256) adapt_low(const LowRank *pairs, int parts, int most, const int *adapter, const int *count, const u16 *x, int columns, const float *squares, float epsilon, float *low) {
  let_next_start();
  wait_for_last();
  const int token = blockIdx.y, part = blockIdx.x / (most / 8), block = blockIdx.x % (most / 8), lane = threadIdx.x % 32;
  if (token >= *count || adapter[token] < 0) return;
  const LowRank pair = pairs[adapter[token] * parts + part];
  if (block * 8 >= pair.rank) return;
  const int row = block * 8 + threadIdx.x / 32;
  const uint4 *a = (const uint4 *)pair.a + (long long)block * columns + threadIdx.x / 32;
  const uint4 *given = (const uint4 *)(x + (long long)token * columns * 2);
  float sum = 0.0f;
  for (int k = lane; k < columns / 8; k += 32) {
    const uint4 w = a[k * 8];
    const u32 words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int four = 0; four < 2; four++) {
      const uint4 v = given[k * 2 + four];
      const u32 high[2] = {v.x, v.y}, rest[2] = {v.z, v.w};
#pragma unroll
      for (int i = 0; i < 4; i++) {
        float value = of_bf16(high[i / 2] >> i % 2 * 16 & 0xFFFF) + of_bf16(rest[i / 2] >> i % 2 * 16 & 0xFFFF);
        sum = fmaf(half_to_float((u16)(words[four * 2 + i / 2] >> i % 2 * 16)), value, sum);
      }
    }
  }
  sum = total_of_warp(sum);
  if (squares) sum = sum * of_squares(squares + (long long)token * (columns / 16), columns, epsilon);
  if (lane == 0) low[((long long)token * parts + part) * most + row] = sum;
}

// And these times second ones: (tokens, wide). `ends` has the rows of all parts up to each one's end.
extern "C" __global__ void __launch_bounds__(256) adapt_high(const LowRank *pairs, int parts, int most, const int *adapter, const int *count, const float *low, const int *ends, float *more, int wide) {
  let_next_start();
  wait_for_last();
  const int token = blockIdx.y, row = blockIdx.x * 256 + threadIdx.x;
  if (token >= *count || row >= ends[parts - 1] || adapter[token] < 0) return;
  int part = 0;
  while (row >= ends[part]) part++;
  const LowRank pair = pairs[adapter[token] * parts + part];
  const int own = part ? row - ends[part - 1] : row;
  const u16 *b = pair.b + (long long)(own / 16) * pair.rank * 16 + own % 16;
  low += ((long long)token * parts + part) * most;
  float sum = 0.0f;
  for (int r = 0; r < pair.rank; r++) sum = fmaf(half_to_float(b[r * 16]), low[r], sum);
  more[(long long)token * wide + row] = sum * pair.scale;
}
