/* What low-rank adapters add to a product: for each token B A x of the adapter it has. Layout:
 * backends/llm/adapters.py.
 *
 * A token's sums are made in one order, by explicit fused steps, whoever is in the batch besides. An
 * item has a part of the matrices for all tokens, so that each is read from memory once a step.
 */

#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
enum { BLOCK = 8, STEP = 8, PANEL = 16 }; /* rows and columns of A, rows of B, that lie together */
enum { TILE = 4 };     /* tokens that share what was read */
enum { AHEAD = 2048 }; /* numbers that are asked for ahead, 4 KB */

#ifdef __x86_64__
#include <immintrin.h>
#define WIDE __attribute__((target("avx2,fma,f16c")))
typedef __m256 lanes;
enum { LANES = 8 };
#define HALVES(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p)))
#define LOAD(p) _mm256_loadu_ps(p)
#define KEEP(p, x) _mm256_storeu_ps(p, x)
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define ALL(x) _mm256_set1_ps(x)
WIDE static inline float total(lanes x) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
#else
#include <arm_neon.h>
#define WIDE
typedef float32x4_t lanes;
enum { LANES = 4 };
#define HALVES(p) vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))
#define LOAD(p) vld1q_f32(p)
#define KEEP(p, x) vst1q_f32(p, x)
#define FMA(a, b, c) vfmaq_f32(c, a, b)
#define ALL(x) vdupq_n_f32(x)
#define total(x) vaddvq_f32(x)
#endif

/* Of one adapter: A (rank / BLOCK, columns / STEP, BLOCK, STEP) and B (rows / PANEL, rank, PANEL)
 * in float16, or null where it has none here. */
typedef struct {
  const uint16_t *a, *b;
  float scale;
  int32_t rank;
} pair;

typedef struct {
  const pair *pairs;      /* (adapters, parts) */
  const int32_t *adapter; /* of each token, -1 for none */
  const int32_t *ends;    /* of each part, in panels */
  const float *x;         /* (tokens, columns) */
  float *low, *y;         /* (tokens, parts, most) and (tokens, stride) */
  int32_t parts, columns, most, stride;
  int32_t fresh; /* y has nothing yet */
} adapted;

#define SOME WIDE static inline __attribute__((always_inline))

typedef struct {
  int32_t kind;
  uint32_t zero;
  const void *pointer;
} argument;

static const pair *of_token(const adapted *d, int32_t token, int32_t part) {
  int32_t which = d->adapter[token];
  const pair *p = d->pairs + which * d->parts + part;
  return which < 0 || !p->a ? 0 : p;
}

/* The first token behind one with another adapter. */
static int32_t alike(const adapted *d, int32_t token, int32_t count) {
  int32_t which = d->adapter[token];
  while (token < count && d->adapter[token] == which) token++;
  return token;
}

/* Some rows of a block for some tokens; both counts are constants where this is called. */
SOME void some_rows(const adapted *d, const pair *p, const uint16_t *a, const float *x, float *low,
                    int rows, int tokens) {
  lanes sums[BLOCK];
  int64_t columns = d->columns, apart = (int64_t)d->parts * d->most;
#pragma GCC unroll 8
  for (int i = 0; i < rows * tokens; i++) sums[i] = ALL(0.0f);
  for (int64_t k = 0; k < columns; k += STEP, a += BLOCK * STEP) {
    for (int line = 0; line < 2; line++) __builtin_prefetch(a + AHEAD + line * 32);
#pragma GCC unroll 2
    for (int at = 0; at < STEP; at += LANES)
#pragma GCC unroll 8
      for (int r = 0; r < rows; r++) {
        lanes weights = HALVES(a + r * STEP + at);
#pragma GCC unroll 4
        for (int t = 0; t < tokens; t++)
          sums[r * tokens + t] = FMA(weights, LOAD(x + t * columns + k + at), sums[r * tokens + t]);
      }
  }
#pragma GCC unroll 8
  for (int i = 0; i < rows * tokens; i++)
    low[i % tokens * apart + i / tokens] = total(sums[i]) * p->scale;
}

/* A block of A for tokens of one adapter. */
WIDE static void one_block(const adapted *d, const pair *p, int32_t part, int32_t block,
                           int32_t first, int32_t end) {
  const uint16_t *a = p->a + (int64_t)block * BLOCK * d->columns;
  for (; first < end; first += end - first >= TILE ? TILE : 1) {
    const float *x = d->x + (int64_t)first * d->columns;
    float *low = d->low + ((int64_t)first * d->parts + part) * d->most + block * BLOCK;
    if (end - first >= TILE)
      for (int r = 0; r < BLOCK; r += BLOCK / TILE)
        some_rows(d, p, a + r * STEP, x, low + r, BLOCK / TILE, TILE);
    else
      some_rows(d, p, a, x, low, BLOCK, 1);
  }
}

/* Items are (part, block of the largest rank). */
WIDE EXPORT int adapters_low(void *none, const argument *given, int32_t count, argument *result) {
  (void)none, (void)count, (void)result;
  const adapted *d = given[0].pointer;
  const int32_t *span = given[1].pointer;
  int32_t blocks = d->most / BLOCK;
  for (int32_t item = span[0]; item < span[1]; item++) {
    int32_t part = item / blocks, block = item % blocks;
    for (int32_t first = 0, end; first < span[2]; first = end) {
      const pair *p = of_token(d, first, part);
      end = alike(d, first, span[2]);
      if (p && block * BLOCK < p->rank) one_block(d, p, part, block, first, end);
    }
  }
  return 0;
}

/* A panel of B for some tokens, whose number is a constant where this is called. */
SOME void some_tokens(const adapted *d, const uint16_t *b, int32_t rank, const float *low, float *y,
                      int tokens) {
  enum { EACH = PANEL / LANES };
  lanes sums[EACH * TILE];
  int64_t apart = (int64_t)d->parts * d->most;
#pragma GCC unroll 16
  for (int i = 0; i < EACH * tokens; i++)
    sums[i] = d->fresh ? ALL(0.0f) : LOAD(y + i / EACH * (int64_t)d->stride + i % EACH * LANES);
  for (int32_t r = 0; r < rank; r++, b += PANEL) {
    __builtin_prefetch(b + AHEAD);
#pragma GCC unroll 4
    for (int i = 0; i < EACH; i++) {
      lanes weights = HALVES(b + i * LANES);
#pragma GCC unroll 4
      for (int t = 0; t < tokens; t++)
        sums[t * EACH + i] = FMA(weights, ALL(low[t * apart + r]), sums[t * EACH + i]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < EACH * tokens; i++)
    KEEP(y + i / EACH * (int64_t)d->stride + i % EACH * LANES, sums[i]);
}

/* A panel of B for tokens of one adapter; `panel` is that of the part. */
WIDE static void one_panel(const adapted *d, const pair *p, int32_t part, int32_t panel, float *y,
                           int32_t first, int32_t end) {
  const uint16_t *b = p->b + (int64_t)panel * p->rank * PANEL;
  const float *low = d->low + ((int64_t)first * d->parts + part) * d->most;
  int64_t apart = (int64_t)d->parts * d->most;
  for (; end - first >= TILE; first += TILE, low += TILE * apart, y += TILE * (int64_t)d->stride)
    some_tokens(d, b, p->rank, low, y, TILE);
  for (; first < end; first++, low += apart, y += d->stride)
    some_tokens(d, b, p->rank, low, y, 1);
}

/* Items are panels of all parts. Where y is fresh, tokens without an adapter get what changes no
 * number that it is added to. */
WIDE EXPORT int adapters_high(void *none, const argument *given, int32_t count, argument *result) {
  (void)none, (void)count, (void)result;
  const adapted *d = given[0].pointer;
  const int32_t *span = given[1].pointer;
  for (int32_t item = span[0], part = 0; item < span[1]; item++) {
    while (item >= d->ends[part]) part++;
    for (int32_t first = 0, end; first < span[2]; first = end) {
      const pair *p = of_token(d, first, part);
      float *y = d->y + (int64_t)first * d->stride + (int64_t)item * PANEL;
      end = alike(d, first, span[2]);
      if (p)
        one_panel(d, p, part, item - (part ? d->ends[part - 1] : 0), y, first, end);
      else if (d->fresh)
        for (; first < end; first++, y += d->stride)
          for (int i = 0; i < PANEL; i++) y[i] = -0.0f;
    }
  }
  return 0;
}
