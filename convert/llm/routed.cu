// Experts of a language model's step on an NVIDIA GPU; `step.cu` stands before it.
//
// A pair is a token and one of its experts: pair p is of token p / used. Products take the pairs of an
// expert together, so its matrix is read once for all of them; how many there are is known when the
// router has run, and blocks beyond that end at once. A pair's sums are made alone, and a token's pairs
// are added in the order of their ranks: its bits depend on no other token.

enum { MOST_EXPERTS = 1024, ROUTERS = 32 };

// Takes the largest scores of a token, of equals the first, with their shares of a softmax; by one warp.
DEVICE void choose(const float *scores, int *chosen, float *shares, int experts, int used, bool normalised) {
  const int lane = threadIdx.x % 32, NONE = 0x7FFFFFFF;
  u32 taken = 0;
  float most = 0.0f, of_used = 0.0f, total = 0.0f;
  for (int rank = 0; rank < used; rank++) {
    float best = -INFINITY;
    int at = NONE;
    for (int e = lane; e < experts; e += 32) {
      if (taken >> e / 32 & 1) continue;
      // NaN is taken last; the sum of all has it.
      float score = scores[e] == scores[e] ? scores[e] : -INFINITY;
      if (at == NONE || score > best) { best = score; at = e; }
    }
    for (int by = 16; by; by /= 2) {
      float other = __shfl_xor_sync(0xFFFFFFFF, best, by);
      int where = __shfl_xor_sync(0xFFFFFFFF, at, by);
      bool better = other > best || (other == best && where < at);
      if (where != NONE && (at == NONE || better)) { best = other; at = where; }
    }
    if (at % 32 == lane) taken |= 1u << at / 32;
    if (!rank) most = best;
    float share = expf(best - most);
    of_used = of_used + share;
    if (lane == 0) { chosen[rank] = at; shares[rank] = share; }
  }
  for (int e = lane; e < experts; e += 32) total = total + expf(scores[e] - most);
  total = total_of_warp(total);
  float whole = normalised && total == total ? of_used : total;
  __syncwarp();
  for (int rank = lane; rank < used; rank += 32) shares[rank] = shares[rank] / whole;
}

// Jobs of SIZE pairs at most of an expert; by one warp.
template <int SIZE> DEVICE void list_jobs(int *jobs, const int *counts, int expert, int experts, int first) {
  int before = 0, own = (counts[expert] + SIZE - 1) / SIZE;
  for (int e = threadIdx.x % 32; e < expert; e += 32) before += (counts[e] + SIZE - 1) / SIZE;
  for (int by = 16; by; by /= 2) before += __shfl_xor_sync(0xFFFFFFFF, before, by);
  for (int j = threadIdx.x % 32; j < own; j += 32)
    ((Job *)(jobs + 1))[before + j] = {expert, first + j * SIZE, min(counts[expert] - j * SIZE, SIZE)};
  if (expert == experts - 1 && threadIdx.x % 32 == 0) *jobs = before + own;
}

// One block chooses each token's experts and lists, for each expert, its pairs and what there is to do.
extern "C" __global__ void __launch_bounds__(1024) route(const float *router, const int *count, int *chosen, float *shares, int *order, int *jobs1, int *jobs4, int experts, int padded, int used, int normalised) {
  __shared__ alignas(16) int counts[MOST_EXPERTS];
  let_next_start();
  wait_for_last();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, pairs = *count * used;
  for (int token = warp; token < *count; token += ROUTERS)
    choose(router + (long long)token * padded, chosen + token * used, shares + token * used, experts, used, normalised);
  __syncthreads();
  for (int e = warp; e < experts; e += ROUTERS) {
    int found = 0;
    for (int p = 0; p < pairs; p += 32) found += __popc(__ballot_sync(0xFFFFFFFF, p + lane < pairs && chosen[p + lane] == e));
    if (lane == 0) counts[e] = found;
  }
  __syncthreads();
  for (int e = warp; e < experts; e += ROUTERS) {
    int first = 0;
    for (int k = lane; k < e; k += 32) first += counts[k];
    for (int by = 16; by; by /= 2) first += __shfl_xor_sync(0xFFFFFFFF, first, by);
    list_jobs<8>(jobs1, counts, e, experts, first);
    list_jobs<32>(jobs4, counts, e, experts, first);
    if (!counts[e]) continue;
    for (int p = 0, at = first; p < pairs; p += 32) {
      const bool is = p + lane < pairs && chosen[p + lane] == e;
      const u32 all = __ballot_sync(0xFFFFFFFF, is);
      if (is) order[at + __popc(all & ((1u << lane) - 1))] = p + lane;
      at += __popc(all);
    }
  }
}

// Adds what a token's experts give, by their shares.
extern "C" __global__ void __launch_bounds__(256) sum_experts(const float *xe, const float *shares, float *x, const int *count, int size, int used, const float *next, u16 *split, float *parts) {
  let_next_start();
  wait_for_last();
  long long row = blockIdx.x;
  if (row >= *count) return;
  xe += row * used * size;
  shares += row * used;
  x += row * size;
  for (int k = threadIdx.x; k < size; k += WARPS * 32) {
    float sum = 0.0f;
    for (int rank = 0; rank < used; rank++) sum = fmaf(xe[(long long)rank * size + k], shares[rank], sum);
    x[k] = x[k] + sum;
  }
  hand_on(x, next, split, parts, size);
}
