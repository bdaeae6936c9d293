from __future__ import annotations

import resource
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.llm.arrays import ARGUMENT
from edgeinfer.backends.llm.team import PHASE, Team
from edgeinfer.convert.llm.compiled import _DRIVER
from edgeinfer.convert.lower.tvm import hosted

_KERNELS = """
#include <stdint.h>
#include <time.h>
#define EXPORT __attribute__((visibility("default")))
typedef struct { int32_t kind; uint32_t zero; void *value; } argument;

static void sleep_ms(long ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&t, 0);
}

/* Arguments: the thread's span, counts of each item, milliseconds that each item takes; below zero
 * for one that takes so many when the next one is done, which another thread has to do. */
EXPORT int counted(void *self, const argument *a, int32_t count, argument *result) {
  const int32_t *span = a[0].value, *pause = a[2].value;
  int32_t *counts = a[1].value;
  for (int32_t i = span[0]; i < span[1]; i++) {
    while (pause[i] < 0 && !__atomic_load_n(&counts[i + 1], __ATOMIC_RELAXED)) sleep_ms(20);
    if (pause[i]) sleep_ms(pause[i] < 0 ? -pause[i] : pause[i]);
    __atomic_fetch_add(&counts[i], 1, __ATOMIC_RELAXED);
  }
  return 0;
}
"""


class Counting:
    """A team whose phases count their items, some of which take milliseconds."""

    def __init__(self, path: Path, threads: int, items: int, phases: int) -> None:
        self.team = Team(path, threads, phases)
        self.counts = np.zeros((phases, items), np.int32)
        self.pauses = np.zeros((phases, items), np.int32)
        self.phases = np.zeros(phases, PHASE)
        spans = [span for span, _ in self.team.spans()]
        self._kept = np.zeros((phases, threads, 3), ARGUMENT)
        for at, phase in enumerate(self.phases):
            self._kept["value"][at, :, 0] = spans
            self._kept["value"][at, :, 1] = self.counts[at].ctypes.data
            self._kept["value"][at, :, 2] = self.pauses[at].ctypes.data
            phase["main"] = self.team.function("counted", "")
            phase["arguments"] = self._kept[at].ctypes.data
            phase["count"], phase["items"], phase["chunk"] = 3, items, 1

    def run(self, phases: int) -> None:
        self.team.run(int(self.phases.ctypes.data), phases)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    place = tmp_path_factory.mktemp("team")
    (place / "kernels.c").write_text(_KERNELS)
    headers = f"-I{Path(hosted.__file__).parent}"
    parts = ["-shared", "-fPIC", "-O2", "-pthread", headers, str(place / "kernels.c"), *_DRIVER]
    subprocess.run(["gcc", *parts, "-lm", "-o", str(place / "team.so")], check=True)
    return place / "team.so"


def test_who_waits_for_a_chunk_sleeps(path: Path) -> None:
    counting = Counting(path, threads=2, items=2, phases=1)
    counting.pauses[0, 0] = -400
    before = resource.getrusage(resource.RUSAGE_SELF)
    counting.run(1)
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.2
    # Of its own accord, again and again: looking and yielding are none.
    assert after.ru_nvcsw - before.ru_nvcsw > 40
    assert counting.counts.tolist() == [[1, 1]]
    counting.team.close()


def test_each_item_is_done_once_whoever_waits(path: Path) -> None:
    """Tapes of changing length, with threads that come late or sleep."""
    rng = np.random.default_rng(3)
    counting = Counting(path, threads=4, items=5, phases=6)
    expected = np.zeros_like(counting.counts)
    for _ in range(150):
        counting.pauses[...] = rng.random(counting.pauses.shape) < 0.04
        count = int(rng.integers(1, 7))
        counting.run(count)
        expected[:count] += 1
        assert np.array_equal(counting.counts, expected)
    counting.team.close()
