"""Attention of one new token over a context next to ONNX Runtime's, in turns.

    python -m benchmarks.attention [--rounds 15]

One thread each, over float32 arrays that stay where they are. ONNX Runtime's
``GroupQueryAttention`` writes the new token into its cache, ours adds nothing. Results are
compared. Wall time (CPU time), medians over rounds of the best of four; then the ratio of CPU
times, which holds where the machine does other work too.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.gemv import compiled, machines_here
from benchmarks.kernels import Call, interleaved, rounds_asked
from edgeinfer.backends.testing.cases import graph
from edgeinfer.kernels.defs.attend import Short, attend
from edgeinfer.types import Array

CASES = ((32, 8, 128, 256), (32, 8, 128, 2048), (32, 32, 64, 1024), (8, 1, 256, 1024))
"""Heads, heads of keys and values, size of a head, tokens of the context."""

BOUND = 1e-5
"""Largest difference to ONNX Runtime's result, as a share of its largest value."""


def main() -> None:
    """Measure and print."""
    rounds = rounds_asked(__doc__)
    name = list(machines_here())[-1]
    for heads, shared, size, context in CASES:
        rng = np.random.default_rng(0)
        q = rng.standard_normal((1, heads, size)).astype(np.float32)
        keys, values = rng.standard_normal((2, context, shared, size)).astype(np.float32)
        theirs, want = _theirs(q, keys, values)
        ours, out = _ours(name, q, keys, values)
        ours()
        theirs()
        error = np.abs(out.ravel() - want.ravel()).max() / np.abs(want).max()
        if not error <= BOUND:
            raise ValueError(f"{error:.2g} from ONNX Runtime's result")
        times = interleaved({"onnxruntime": theirs, "ours": ours}, rounds)
        cells = ", ".join(f"{n} {w:.1f} ({c:.1f})" for n, (w, c) in times.items())
        ratio = times["onnxruntime"][1] / times["ours"][1]
        print(
            f"{heads}/{shared} heads of {size}, {context} tokens: {cells}; {ratio:.2f}", flush=True
        )


def _theirs(q: Array, keys: Array, values: Array) -> tuple[Call, Array]:
    """ONNX Runtime, its cache in place, the last token new."""
    import onnxruntime as ort

    (_, heads, size), (context, shared, _) = q.shape, keys.shape
    cache = f"float[1,{shared},{context},{size}]"
    model: Any = graph(
        f"(float[1,1,{heads * size}] q, float[1,1,{shared * size}] k, "
        f"float[1,1,{shared * size}] v, {cache} pk, {cache} pv, int32[1] s, int32[1] t) => "
        f"(float[1,1,{heads * size}] y, {cache} ok, {cache} ov) "
        "{ y, ok, ov = com.microsoft.GroupQueryAttention"
        f"<num_heads={heads}, kv_num_heads={shared}>(q, k, v, pk, pv, s, t) }}"
    )
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    held = [np.ascontiguousarray(a.transpose(1, 0, 2)[None]) for a in (keys, values)]
    feeds = {
        "q": q.reshape(1, 1, -1),
        "k": keys[-1:].reshape(1, 1, -1).copy(),
        "v": values[-1:].reshape(1, 1, -1).copy(),
        "pk": held[0],
        "pv": held[1],
        "s": np.array([context - 1], np.int32),
        "t": np.array([context], np.int32),
    }
    out = np.empty((1, 1, heads * size), np.float32)
    given = {n: ort.OrtValue.ortvalue_from_numpy(a) for n, a in feeds.items()}
    binding = session.io_binding()
    for key, value in given.items():
        binding.bind_ortvalue_input(key, value)
    made = ort.OrtValue.ortvalue_from_numpy(out)
    for key, value in (("y", made), ("ok", given["pk"]), ("ov", given["pv"])):
        binding.bind_ortvalue_output(key, value)
    session.run_with_iobinding(binding)
    return partial(session.run_with_iobinding, binding), made.numpy()


def _ours(name: str, q: Array, keys: Array, values: Array) -> tuple[Call, Array]:
    """Our kernel over a cache in one piece."""
    import tvm_ffi

    (_, heads, size), (context, shared, _) = q.shape, keys.shape
    what = Short(
        *(1, shared, heads // shared, 1, context, size, size, size**-0.5),
        causal=True,
        counted=True,
    )
    out = np.empty((shared, heads // shared, size), np.float32)
    turned = [np.ascontiguousarray(a.transpose(1, 0, 2)) for a in (keys, values)]
    given = [q.reshape(out.shape), *turned, np.array([context], np.int32), out]
    return partial(compiled(attend(what), name), *map(tvm_ffi.from_dlpack, given)), out


if __name__ == "__main__":
    main()
