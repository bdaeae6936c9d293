/* A tape of phases run by a team of threads.
 *
 * A phase is over when its chunks are done, not when all threads came by: one that the system does
 * not run keeps nobody waiting unless it holds a chunk. Threads that come late skip what is over.
 *
 * Such a thread may look at phases of the next run. Therefore a run first moves all counters to its
 * epoch and then writes its phases: whoever has read any of these finds a counter of another epoch.
 */

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "hosted.h"

#define EXPORT __attribute__((visibility("default")))

typedef struct {
  int32_t kind;
  uint32_t zero;
  void *value;
} argument;

typedef int (*function)(void *, const argument *, int32_t, argument *);

/* Arguments lie one thread's behind the other's. Layout: runtime/llm/native.py. */
typedef struct {
  function main;
  const argument *arguments;
  function before; /* once a thread that takes part, for one item; or null */
  const argument *arguments_before;
  const int32_t *late; /* where the items are counted by a phase before; or null */
  int32_t count, count_before, items, chunk, extra, zero;
} phase;

typedef struct {
  _Alignas(64) _Atomic uint64_t next; /* epoch in the high half, chunks given out in the low one */
  _Alignas(64) _Atomic uint32_t done;
} counter;

/* Microseconds that a thread looks at what others have not done before it sleeps. */
#define PATIENCE 300

/* Two spans of four numbers for each thread, each on a line of its own. */
#define SPAN 16

typedef struct team {
  int threads, most, used, quit;
  long spin;
  pthread_t *ids;
  counter *counters;
  int32_t *spans;
  phase *tape;
  _Atomic int phases;
  _Alignas(64) _Atomic uint32_t epoch;
  _Alignas(64) _Atomic uint32_t sleepers;
  _Atomic uint32_t waiting;
  _Atomic int fault;
#ifndef __linux__
  pthread_mutex_t lock;
  pthread_cond_t woken;
#endif
} team;

typedef struct {
  team *of;
  int me;
} worker;

static inline void relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

#ifdef __linux__
static void sleep_on(_Atomic uint32_t *word, uint32_t seen, const struct timespec *most) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, most, 0, 0);
}

static void wake_all(_Atomic uint32_t *word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1 << 30, 0, 0, 0);
}
#endif

static void sleep_until(team *t, uint32_t seen) {
  atomic_fetch_add(&t->sleepers, 1);
#ifdef __linux__
  sleep_on(&t->epoch, seen, 0);
#else
  pthread_mutex_lock(&t->lock);
  while (atomic_load(&t->epoch) == seen) pthread_cond_wait(&t->woken, &t->lock);
  pthread_mutex_unlock(&t->lock);
#endif
  atomic_fetch_sub(&t->sleepers, 1);
}

static void wake(team *t) {
  if (!atomic_load(&t->sleepers)) return;
#ifdef __linux__
  wake_all(&t->epoch);
#else
  pthread_mutex_lock(&t->lock);
  pthread_cond_broadcast(&t->woken);
  pthread_mutex_unlock(&t->lock);
#endif
}

/* Who sleeps keeps its share of a processor that a neighbour is busy on; who yields gives it away,
 * and is not there when the thread with the chunk is. For a while at most: a thread that comes late
 * may wait for a phase of the next run. */
static void wait_for_chunk(team *t, counter *c, uint32_t seen) {
#ifdef __linux__
  const struct timespec most = {0, 2000000};
  atomic_fetch_add(&t->waiting, 1);
  sleep_on(&c->done, seen, &most);
  atomic_fetch_sub(&t->waiting, 1);
#else
  (void)t, (void)c, (void)seen;
  sched_yield();
#endif
}

static void end_phase(team *t, counter *c) {
#ifdef __linux__
  if (atomic_load(&t->waiting)) wake_all(&c->done);
#else
  (void)t, (void)c;
#endif
}

static void call(team *t, function f, const argument *arguments, int32_t count) {
  argument result = {0, 0, 0};
  if (f(0, arguments, count, &result)) atomic_store(&t->fault, 1);
}

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void wait_for_phase(team *t, counter *c, uint32_t chunks, uint32_t epoch) {
  double until = 0;
  for (long k = 1;; k++) {
    uint32_t done = atomic_load(&c->done);
    if (done >= chunks || atomic_load_explicit(&t->epoch, memory_order_relaxed) != epoch) return;
    relax();
    if (k % 128) continue;
    if (!until)
      until = now_us() + PATIENCE;
    else if (now_us() > until)
      wait_for_chunk(t, c, done);
  }
}

static void take_part(team *t, int me, int place, uint32_t epoch) {
  const phase copy = t->tape[place], *p = &copy;
  counter *c = t->counters + place;
  int32_t *span = t->spans + me * 2 * SPAN, *before = span + SPAN;
  /* What this reads was written by phases before, which are over. */
  int32_t items = p->late ? *p->late : p->items;
  uint32_t chunks = (uint32_t)((items + p->chunk - 1) / p->chunk);
  int first = 1;
  atomic_thread_fence(memory_order_acquire);
  for (;;) {
    uint64_t now = atomic_load_explicit(&c->next, memory_order_acquire);
    uint32_t mine;
    do {
      if ((uint32_t)(now >> 32) != epoch) return;
      mine = (uint32_t)now;
      if (mine >= chunks) {
        wait_for_phase(t, c, chunks, epoch);
        return;
      }
    } while (!atomic_compare_exchange_weak_explicit(&c->next, &now, now + 1, memory_order_acq_rel,
                                                    memory_order_acquire));
    if (first && p->before) {
      before[0] = 0, before[1] = 1, before[2] = 1;
      call(t, p->before, p->arguments_before + (size_t)me * p->count_before, p->count_before);
    }
    first = 0;
    int32_t end = (int32_t)(mine + 1) * p->chunk;
    span[0] = (int32_t)mine * p->chunk;
    span[1] = end < items ? end : items;
    span[2] = p->extra;
    call(t, p->main, p->arguments + (size_t)me * p->count, p->count);
    /* Sequentially consistent, as who waits is: one of both sees the other. */
    if (atomic_fetch_add(&c->done, 1) + 1 == chunks) end_phase(t, c);
  }
}

static void walk(team *t, int me, uint32_t epoch, double *times) {
  for (int place = 0; place < atomic_load_explicit(&t->phases, memory_order_relaxed); place++) {
    double start = times ? now_us() : 0;
    take_part(t, me, place, epoch);
    if (times) times[place] += now_us() - start;
    if (me && atomic_load_explicit(&t->epoch, memory_order_relaxed) != epoch) return;
  }
}

static void *work(void *given) {
  worker *w = given;
  team *t = w->of;
  int me = w->me;
  free(w);
  for (uint32_t seen = 0;;) {
    uint32_t epoch;
    for (long k = 0; (epoch = atomic_load_explicit(&t->epoch, memory_order_acquire)) == seen; k++) {
      if (k < t->spin) {
        relax();
      } else {
        sleep_until(t, seen);
        k = 0;
      }
    }
    if (t->quit) return 0;
    seen = epoch;
    walk(t, me, epoch, 0);
  }
}

EXPORT void team_free(team *t) {
  t->quit = 1;
  atomic_fetch_add(&t->epoch, 1);
  wake(t);
  for (int i = 1; i < t->threads; i++) pthread_join(t->ids[i], 0);
  free(t->ids);
  free(t->counters);
  free(t->spans);
  free(t->tape);
  free(t);
}

static void *lines(size_t bytes) {
  void *made = aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (made) memset(made, 0, bytes);
  return made;
}

/* Null where memory or threads lack. */
EXPORT team *team_new(int threads, int most, long spin) {
  team *t = lines(sizeof *t);
  if (!t) return 0;
  t->threads = 1;
  t->most = most;
  t->spin = spin;
  t->counters = lines(sizeof(counter) * (size_t)most);
  t->spans = lines(sizeof(int32_t) * 2 * SPAN * (size_t)threads);
  t->ids = lines(sizeof(pthread_t) * (size_t)threads);
  t->tape = lines(sizeof(phase) * (size_t)most);
#ifndef __linux__
  pthread_mutex_init(&t->lock, 0);
  pthread_cond_init(&t->woken, 0);
#endif
  if (!t->counters || !t->spans || !t->ids || !t->tape) {
    team_free(t);
    return 0;
  }
  for (int i = 1; i < threads; i++) {
    worker *w = malloc(sizeof *w);
    if (w) *w = (worker){t, i};
    if (!w || pthread_create(t->ids + i, 0, work, w)) {
      free(w);
      team_free(t);
      return 0;
    }
    t->threads = i + 1;
  }
  return t;
}

EXPORT int32_t *team_spans(team *t) { return t->spans; }

/* 0 where all went well. `times`, in microseconds, is added to, or null. */
EXPORT int team_run(team *t, const phase *tape, int phases, double *times) {
  if (phases > t->most) return 2;
  uint32_t epoch = atomic_load(&t->epoch) + 1;
  if (phases > t->used) t->used = phases;
  for (int p = 0; p < t->used; p++) {
    atomic_store_explicit(&t->counters[p].done, 0, memory_order_relaxed);
    atomic_store_explicit(&t->counters[p].next, (uint64_t)epoch << 32, memory_order_relaxed);
  }
  atomic_thread_fence(memory_order_seq_cst);
  atomic_store(&t->fault, 0);
  memcpy(t->tape, tape, sizeof(phase) * (size_t)phases);
  atomic_store(&t->phases, phases);
  atomic_store_explicit(&t->epoch, epoch, memory_order_release);
  wake(t);
  walk(t, 0, epoch, times);
  return atomic_load(&t->fault);
}
