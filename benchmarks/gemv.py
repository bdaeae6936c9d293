"""Products of 4-bit and 8-bit weights with one vector, next to plain reading and llama.cpp.

    python -m benchmarks.gemv [--threads 2] [--rounds 15] [--ggml FOLDER]

Matrices of 4096 x 4096 and 2048 x 8192, as many copies as no cache holds together, each call
from memory. The rounds are interleaved; medians over rounds of the best of four, in GB of weights
(scales included) a second of wall time, and the CPU time of one product. ``--ggml`` names a folder
with llama.cpp's ggml as shared libraries (benchmarks/ggml.py says how to build it); its Q4_0
products of the same matrices then run in the same rounds, in its plain layout and in the one that
it makes for this CPU. Exits 1 if ours reads less than 85 % of what plain reading does, or is slower
than llama.cpp.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.kernels import Call, interleaved
from edgeinfer.types import Array

if TYPE_CHECKING:
    from edgeinfer.convert.lower.tvm.machines import Machine
    from edgeinfer.kernels.defs.emit import KernelCpu

SHAPES = ((4096, 4096), (2048, 8192))
BLOCK = 32
SHARE = 0.85
"""Of plain reading, that a product must reach."""


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--ggml", type=Path)
    asked = parser.parse_args()
    # Read once by TVM's runtime, when it is loaded.
    os.environ["TVM_NUM_THREADS"] = str(asked.threads)
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    short = [
        line
        for n, k in SHAPES
        for bits in (4, 8)
        for line in measure(n, k, bits, asked.threads, asked.rounds, asked.ggml)
    ]
    print("\n".join(f"SHORT {line}" for line in short) or "every limit holds")
    return int(bool(short))


def measure(n: int, k: int, bits: int, threads: int, rounds: int, ggml: Path | None) -> list[str]:
    """Measure one matrix; returns the limits that do not hold."""
    from edgeinfer.convert.lower.tvm.machines import machine
    from edgeinfer.kernels.defs.gemv import DOTS

    size = n * k * bits // 8 + n * k // BLOCK * 2
    copies = max(2, (256 << 20) // size)
    weights = _weights(n, k, bits)
    x = np.random.default_rng(1).standard_normal((1, k)).astype(np.float32)
    machines = [m for m in DOTS if _runs(machine(m))]
    # One place for all, so that what reads plainly reads the same pages. Those that were never
    # written are all one, which would stay in a cache.
    memory = np.ones(size * copies, np.uint8)
    calls: dict[str, Call] = {}
    for name in machines:
        calls[f"ours, {name}"] = _ours(name, weights, memory, copies, x)
    calls["reading"] = _reading(memory, machines[-1])
    if ggml is not None and bits == 4:
        calls |= _llama(ggml, weights[2], copies, x, threads)
    times = interleaved(calls, rounds, 0.1)
    rates = {name: size * copies / wall / 1e3 for name, (wall, _) in times.items()}
    cells = [
        f"{name} {rate:.1f} GB/s ({times[name][1] / copies:.0f} us of CPU)"
        for name, rate in rates.items()
    ]
    ours = max((r for name, r in rates.items() if name.startswith("ours")))
    peer = max((r for name, r in rates.items() if name.startswith("llama")), default=0.0)
    share = ours / rates["reading"]
    print(f"int{bits} ({n}, {k}), {threads} threads, n {rounds} x 4: {'; '.join(cells)}")
    print(f"  {share:.0%} of plain reading" + (f", {ours / peer:.2f} x llama.cpp" if peer else ""))
    sys.stdout.flush()
    short = [f"int{bits} ({n}, {k}): {share:.0%} of plain reading"] if share < SHARE else []
    if peer > ours:
        short.append(f"int{bits} ({n}, {k}): {ours / peer:.2f} x llama.cpp")
    return short


def _weights(n: int, k: int, bits: int) -> tuple[Array, Array, Array]:
    """Integers, scales and the same as float32."""
    rng = np.random.default_rng(0)
    low, high, zero, kind = (0, 16, 8, np.uint8) if bits == 4 else (-127, 128, 0, np.int8)
    q = rng.integers(low, high, (n, k)).astype(kind)
    # llama.cpp takes a block's scale from its largest value: with -8 in each block it is ours.
    q[:, ::BLOCK] = low
    scales = (rng.random((n, k // BLOCK)) * 0.01 + 0.005).astype(np.float16)
    wide = (q.astype(np.float32) - zero) * np.repeat(scales.astype(np.float32), BLOCK, axis=1)
    return q, scales, wide


def _ours(
    name: str, weights: tuple[Array, Array, Array], memory: Array, copies: int, x: Array
) -> Call:
    import tvm_ffi

    from edgeinfer.kernels.defs import gemv

    q, scales, wide = weights
    n, k = q.shape
    dot = gemv.DOTS[name]
    four = q.dtype == np.uint8
    pack, make = (gemv.pack_int4, gemv.gemv_int4) if four else (gemv.pack_int8, gemv.gemv_int8)
    w, s = pack(q, dot), gemv.pack_scales(scales, dot)
    # Only the last copy has right weights, and only until another machine's come: speed does not
    # depend on them.
    places = memory.reshape(copies, -1)
    sets = []
    for place in places:
        held = place[: w.nbytes].view(w.dtype).reshape(w.shape)
        factors = place[w.nbytes :].view(s.dtype).reshape(s.shape)
        sets.append((tvm_ffi.from_dlpack(held), tvm_ffi.from_dlpack(factors)))
    held[...], factors[...] = w, s
    y = np.zeros((1, n), np.float32)
    vector, out = tvm_ffi.from_dlpack(x), tvm_ffi.from_dlpack(y)
    kernel = compiled(make(dot, n, k), name)

    def run() -> None:
        for held, factors in sets:
            kernel(held, factors, vector, out)

    run()
    _check(y[0], wide @ x[0])
    return run


def _check(got: Array, want: Array) -> None:
    # The vector is rounded to 8 bits on both sides.
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    if not error < 0.02:
        raise SystemExit(f"wrong numbers: relative error {error:.3g}")


def _reading(memory: Array, name: str) -> Call:
    import tvm_ffi

    from edgeinfer.convert.lower.tvm.machines import machine
    from edgeinfer.kernels.defs.roofline import read_bytes

    whole = tvm_ffi.from_dlpack(memory.view(np.float32))
    total = tvm_ffi.from_dlpack(np.zeros(64, np.float32))
    kernel = compiled(read_bytes(memory.size // 4, machine(name).lanes), name)
    return lambda: kernel(whole, total)


def _llama(folder: Path, wide: Array, copies: int, x: Array, threads: int) -> dict[str, Call]:
    from benchmarks.ggml import Ggml

    ggml = Ggml(folder)
    calls: dict[str, Call] = {}
    for repacked in (False, True):
        try:
            run, read = ggml.products([wide] * copies, x[0], threads, repacked)
        except LookupError as error:
            print(f"llama.cpp: {error}")
            continue
        run()
        _check(read(), wide @ x[0])
        calls["llama.cpp Q4_0" + (", repacked" if repacked else "")] = run
    return calls


def _runs(where: Machine) -> bool:
    """Whether this CPU runs code for a machine."""
    from edgeinfer.backends.tvm.library import cpu_features

    return where.arch == platform.machine() and set(where.features) <= cpu_features()


def machines_here() -> dict[str, KernelCpu]:
    """The plain x86 machines whose code this CPU runs, and what kernels must know of them."""
    from edgeinfer.convert.lower.tvm.machines import machine
    from edgeinfer.kernels.defs.emit import KernelCpu

    found = {name: machine(name) for name in ("x86-64-v3", "x86-64-v4")}
    fit = {name: m for name, m in found.items() if _runs(m)}
    return {name: KernelCpu(m.lanes, m.registers) for name, m in fit.items()}


def compiled(kernel: Any, name: str) -> Callable[..., None]:
    import tvm

    from edgeinfer.convert.lower.tvm.machines import machine

    module = tvm.IRModule({"kernel": kernel.with_attr("global_symbol", "kernel")})
    made: Callable[..., None] = tvm.compile(module, target=machine(name).target())["kernel"]
    return made


if __name__ == "__main__":
    sys.exit(main())
