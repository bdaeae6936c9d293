"""Attention over pages beside ONNX Runtime's, one new token after a context, in turns.

    python -m benchmarks.attention [--rounds 15]

One thread each, over arrays that stay where they are. ONNX Runtime's ``GroupQueryAttention`` has
its cache in float32, in one piece, and writes the new token into it; ours is in pages that lie in
any order, of float16, 8 or 4 bits, and two kernels do the same: one adds the token, one attends.
``whole`` is the kernel over float32 in one piece, which adds nothing. Every result is
compared with ONNX Runtime's. Wall time (CPU time), medians over rounds of the best of four; then
ratios of CPU times, which hold where the machine does other work too.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.gemv import compiled, machines_here
from benchmarks.kernels import Call, interleaved, rounds_asked
from edgeinfer.backends.testing.cases import graph
from edgeinfer.kernels.defs.attend import Short, attend
from edgeinfer.kernels.defs.attention import PAGE, AttentionCall, LayerCache, append, attention
from edgeinfer.types import Array

CASES = ((32, 8, 128, 256), (32, 8, 128, 2048), (32, 32, 64, 1024), (8, 1, 256, 1024))
"""Heads, heads of keys and values, size of a head, tokens of the context."""

BOUNDS = {"whole": 1e-5, "float16": 2e-3, "uint8": 2e-2, "uint4": 0.3}
"""How far results may be from those of a cache in float32, of the largest."""


def main() -> None:
    """Measure and print."""
    rounds = rounds_asked(__doc__)
    name = list(machines_here())[-1]
    for heads, shared, size, context in CASES:
        rng = np.random.default_rng(0)
        q = rng.standard_normal((1, heads, size)).astype(np.float32)
        keys, values = rng.standard_normal((2, context, shared, size)).astype(np.float32)
        theirs, want = _theirs(q, keys, values)
        calls: dict[str, Call] = {"onnxruntime": theirs}
        for kind, bound in BOUNDS.items():
            make = _whole if kind == "whole" else partial(_ours, kind=kind)
            calls[kind], out = make(name, q, keys, values)
            calls[kind]()
            theirs()
            error = np.abs(out.ravel() - want.ravel()).max() / np.abs(want).max()
            if not error <= bound:
                raise ValueError(f"{kind}: {error:.2g} from ONNX Runtime's result")
        times = interleaved(calls, rounds)
        cells = ", ".join(f"{n} {w:.1f} ({c:.1f})" for n, (w, c) in times.items())
        ratios = ", ".join(f"{n} {times['onnxruntime'][1] / times[n][1]:.2f}" for n in BOUNDS)
        print(f"{heads}/{shared} heads of {size}, {context} tokens: {cells}; {ratios}", flush=True)


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


def _whole(name: str, q: Array, keys: Array, values: Array) -> tuple[Call, Array]:
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


def _ours(name: str, q: Array, keys: Array, values: Array, *, kind: str) -> tuple[Call, Array]:
    """Our kernels, the pages in any order."""
    import tvm_ffi

    (_, heads, size), (context, shared, _) = q.shape, keys.shape
    count = -(-context // PAGE)
    cache = LayerCache(count, shared, size, kind)
    table = np.random.default_rng(1).permutation(count).astype(np.int32)
    held = [np.zeros(*what) for what in cache.buffers().values()]
    length, out = np.array([context], np.int32), np.empty(q.shape, np.float32)

    def of(array: Array) -> Any:
        return tvm_ffi.from_dlpack(np.ascontiguousarray(array))

    places = [of(table), of(length), *(tvm_ffi.from_dlpack(a) for a in held)]
    compiled(append(cache, context, count), name)(of(keys), of(values), *places)
    add = partial(compiled(append(cache, 1, count), name), of(keys[-1:]), of(values[-1:]), *places)
    kernel = compiled(attention(AttentionCall(cache, 1, heads, count)), name)
    ours = [of(q), *(tvm_ffi.from_dlpack(a) for a in held), places[0], places[1]]
    attend = partial(kernel, *ours, tvm_ffi.from_dlpack(out))

    def both() -> None:
        add()
        attend()

    return both, out


if __name__ == "__main__":
    main()
