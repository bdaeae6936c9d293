/* What stands before and behind a tape: a batch is checked and copied, and of each row of logits the
 * largest is looked for, while it is in the caches. Layout: backends/llm/batch.py. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define PAGE 16

typedef struct {
  int32_t vocab, positions, sequences, columns, pages, window;
  int32_t *tokens, *place, *owner, *rows, *tiles, *table;
} room;

enum { TOKENS = 1, POSITIONS = 2, OWNER = 4, ROWS = 8, PAGES = 16, HOLES = 32, ALONE = 64 };

static int outside(const int32_t *values, int count, int32_t end) {
  int found = 0;
  for (int i = 0; i < count; i++) found |= (uint32_t)values[i] >= (uint32_t)end;
  return found;
}

/* Look at the pages that a token reads and writes: those that the one before it did are known. */
static int pages_of(const room *r, const int32_t *row, int32_t first, int32_t last) {
  int found = 0;
  for (int32_t place = first; place <= last; place++)
    found |= row[place] < 0 ? HOLES : row[place] >= r->pages ? PAGES : 0;
  return found;
}

/* Returns what is outside, and nothing was copied; or ALONE where no sequence has two tokens, or 0.
 * A table has `columns` places a row here, at most as many as there. */
EXPORT int batch_take(const room *r, const int32_t *tokens, const int32_t *positions,
                      const int32_t *owner, const int32_t *rows, const int32_t *table, int count,
                      int outputs, int sequences, int columns) {
  int32_t most = columns * PAGE < r->positions ? columns * PAGE : r->positions;
  int found = outside(tokens, count, r->vocab) ? TOKENS : 0;
  if (outside(positions, count, most)) found |= POSITIONS;
  if (outside(owner, count, sequences)) found |= OWNER;
  if (outside(rows, outputs, count)) found |= ROWS;
  if (found) return found;
  int alone = ALONE;
  for (int i = 0; i < count; i++) {
    const int32_t *row = table + (size_t)owner[i] * (size_t)columns;
    int32_t first = r->window ? positions[i] - r->window + 1 : 0;
    int same = i && owner[i] == owner[i - 1];
    first = first > 0 ? first / PAGE : 0;
    if (same && positions[i] == positions[i - 1] + 1) first = positions[i] / PAGE;
    found |= pages_of(r, row, first, positions[i] / PAGE);
    if (same) alone = 0;
  }
  if (found) return found;
  memcpy(r->tokens, tokens, sizeof(int32_t) * (size_t)count);
  memcpy(r->place, positions, sizeof(int32_t) * (size_t)count);
  memcpy(r->owner, owner, sizeof(int32_t) * (size_t)count);
  memcpy(r->rows, rows, sizeof(int32_t) * (size_t)outputs);
  for (int i = 0; i < count; i++) {
    r->tiles[i] = i;
    if (!i || owner[i] != owner[i - 1])
      memcpy(r->table + (size_t)owner[i] * (size_t)r->columns,
             table + (size_t)owner[i] * (size_t)columns, sizeof(int32_t) * (size_t)columns);
  }
  return alone;
}

#ifdef __x86_64__
#define WIDE __attribute__((target("avx2"))) /* the least that there are kernels for */
#else
#define WIDE
#endif

typedef float values __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t masks __attribute__((vector_size(32), aligned(4), may_alias));
enum { LANES = sizeof(values) / sizeof(float), STRANDS = 4 };

/* The first of the largest, or -1 where a number is not finite. */
WIDE static int32_t best_of(const float *row, int32_t count) {
  values most[STRANDS], zero[STRANDS];
  float best = -INFINITY, wrong = 0;
  int32_t at = 0;
  for (int s = 0; s < STRANDS; s++) zero[s] = (values){0}, most[s] = zero[s] - INFINITY;
  for (; at + STRANDS * LANES <= count; at += STRANDS * LANES)
#pragma GCC unroll 8
    for (int s = 0; s < STRANDS; s++) {
      values x = *(const values *)(row + at + s * LANES);
      masks more = x > most[s];
      most[s] = (values)((more & (masks)x) | (~more & (masks)most[s]));
      zero[s] += x - x;
    }
  for (int s = 0; s < STRANDS; s++)
    for (int j = 0; j < LANES; j++) {
      best = most[s][j] > best ? most[s][j] : best;
      wrong += zero[s][j];
    }
  for (; at < count; at++) {
    best = row[at] > best ? row[at] : best;
    wrong += row[at] - row[at];
  }
  if (wrong != 0) return -1;
  for (at = 0; at + LANES <= count; at += LANES) {
    masks same = *(const values *)(row + at) == best;
    int32_t any = 0;
    for (int j = 0; j < LANES; j++) any |= same[j];
    if (any) break;
  }
  while (row[at] != best) at++;
  return at;
}

typedef struct {
  int32_t kind;
  uint32_t zero;
  union {
    const void *pointer;
    int64_t number;
  } value;
} argument;

/* A phase over rows of logits: these, numbers a row has room for, numbers it has, the results, and
 * the thread's span. */
EXPORT int logits_best(void *none, const argument *given, int32_t count, argument *result) {
  (void)none, (void)count, (void)result;
  const float *logits = given[0].value.pointer;
  int64_t stride = given[1].value.number;
  int32_t vocab = (int32_t)given[2].value.number;
  int32_t *best = (int32_t *)given[3].value.pointer;
  const int32_t *span = given[4].value.pointer;
  for (int32_t row = span[0]; row < span[1]; row++)
    best[row] = best_of(logits + row * stride, vocab);
  return 0;
}
