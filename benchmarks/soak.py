"""Whether memory stays where it is: loads and closes, then runs of ever new lengths.

    python benchmarks/soak.py [--cycles 200] [--runs 2000]

Resident memory after the first 50 of each part is the base; exits 1 if it grows by 5 % or more.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import edgeinfer
from benchmarks.overhead import machine
from benchmarks.tiny import SEQUENCE, bundle
from edgeinfer.machine.pages import resident_mb
from edgeinfer.types import Array

SETTLE = 50
LIMIT = 0.05
MAX_LENGTH = 512


def draw(rng: np.random.Generator, length: int) -> Array:
    return rng.standard_normal((1, length, 64), np.float32)


def grown(name: str, n: int, step: Callable[[int], object]) -> bool:
    """Do a step n times; print and return whether memory grew past the limit."""
    base = peak = 0.0
    start = time.perf_counter()
    for i in range(n):
        step(i)
        if i == SETTLE - 1:
            gc.collect()
            base = resident_mb()
        elif i >= SETTLE and i % 10 == 0:
            peak = max(peak, resident_mb())
    gc.collect()
    end = resident_mb()
    growth = end / base - 1
    verdict = "ok" if growth < LIMIT else "GROWS"
    print(
        f"{name:28} n={n:5}  {base:7.1f} MB after {SETTLE}, {end:7.1f} MB at the end, "
        f"peak {peak:7.1f}: {growth:+.1%}, limit {LIMIT:.0%}  {verdict}  "
        f"({time.perf_counter() - start:.1f} s)"
    )
    return growth >= LIMIT


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--bundle", type=Path, help="another bundle for the cycles")
    parser.add_argument("--backend", help="of the sessions; the bundle's best without")
    given = parser.parse_args()
    if not resident_mb():
        print("this system does not tell resident memory cheaply; nothing was measured")
        return 1
    print(f"command: python {' '.join(sys.argv)}")
    print(f"machine: {machine()}")
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EDGEINFER_CACHE"] = folder
        made = bundle(SEQUENCE, Path(folder) / "sequence.edge", {"x": draw(rng, 16)})

        def cycle(_: int) -> None:
            with edgeinfer.load(given.bundle or made, backend=given.backend) as session:
                if given.bundle is None:
                    session(draw(rng, 16))
                else:
                    session.verify()

        failed = grown("load, run, close", given.cycles, cycle)
        with edgeinfer.load(made, backend=given.backend) as session:

            def run(_: int) -> None:
                session(draw(rng, int(rng.integers(1, MAX_LENGTH + 1))))

            failed |= grown(f"runs of length 1..{MAX_LENGTH}", given.runs, run)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
