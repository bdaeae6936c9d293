"""Kernels over rows next to ONNX Runtime, in turns.

    python -m benchmarks.rows [--rounds 15]

One thread each, bound calls over the caller's arrays. Wall time (CPU time), medians over
rounds of the best of four; then the ratio of CPU times, which hold where the machine does other
work too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gemv import compiled, machines_here
from benchmarks.kernels import Call, bound, interleaved, rounds_asked
from edgeinfer.backends.testing.cases import graph
from edgeinfer.kernels.defs import rows
from edgeinfer.kernels.defs.emit import KernelCpu
from edgeinfer.types import Array


def cases(cpu: KernelCpu) -> Iterator[tuple[str, Any, Any, list[Array], list[Array]]]:
    """Yield title, ONNX graph, kernel, inputs and outputs."""
    rng = np.random.default_rng(0)

    def numbers(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    for n, size in ((12 * 128, 128), (32, 1000), (1, 32000)):
        soft = graph(
            f"(float[{n},{size}] x) => (float[{n},{size}] y) {{ y = Softmax<axis=-1>(x) }}"
        )
        made = [np.zeros((n, size), np.float32)]
        yield f"softmax {n}x{size}", soft, rows.softmax(cpu, n, size), [numbers(n, size)], made
    for tokens, heads, size in ((1, 32, 128), (64, 32, 64)):
        shape = f"1,{tokens},{heads * size}"
        turn = graph(
            f"(float[{shape}] x) => (float[{shape}] y) "
            f"{{ y = RotaryEmbedding<num_heads={heads}>(x, c, s, at) }}",
            c=numbers(256, size // 2),
            s=numbers(256, size // 2),
            at=np.arange(tokens)[None],
        )
        tables = [numbers(256, size // 2), numbers(256, size // 2)]
        given = [numbers(tokens, heads, size), *tables, np.arange(tokens, dtype=np.int32)]
        made = [np.zeros((tokens, heads, size), np.float32)]
        kernel = rows.rope(cpu, tokens, heads, size, 256)
        yield f"rotary {tokens}x{heads}x{size}", turn, kernel, given, made


def main() -> None:
    """Measure and print."""
    asked = rounds_asked(__doc__)
    import tvm_ffi

    names = machines_here()
    made = {n: list(cases(cpu)) for n, cpu in names.items()}
    for index, (title, model, *_) in enumerate(next(iter(made.values()))):
        with tempfile.TemporaryDirectory() as folder:
            calls: dict[str, Call] = {}
            calls["onnxruntime"], _ = bound(model, "onnxruntime", Path(folder, "o"))
            for name in names:
                _, _, kernel, given, results = made[name][index]
                arrays = [tvm_ffi.from_dlpack(a) for a in (*given, *results)]
                calls[name] = partial(compiled(kernel, name), *arrays)
            times = interleaved(calls, asked)
        best = min(names, key=lambda n: times[n][1])
        cells = ", ".join(f"{n} {w:.2f} ({c:.2f})" for n, (w, c) in times.items())
        ratio = times["onnxruntime"][1] / times[best][1]
        print(f"{title}: {cells}; {ratio:.2f} times as fast", flush=True)


if __name__ == "__main__":
    main()
