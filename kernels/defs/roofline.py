"""What a machine's memory and arithmetic give at most: loops that do nothing else."""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs.emit import (
    Buffer,
    Expr,
    KernelCpu,
    function,
    load,
    loop,
    prefetch,
    splat,
    store,
)

_PARTS = 64
"""Threads share the array out in so many runs."""

_ROUNDS = 1 << 12
_LINE = 64


STREAMS = (1, 2, 4, 8)
"""Positions that one core may read from together; the best number is the processor's."""

_AHEAD = 256
"""Elements of each place that are prefetched, where there are several."""


def read_bytes(count: int, lanes: int, streams: int = 1) -> tirx.PrimFunc:
    """Sum ``count`` float32 elements, 16 vectors at a time; reads them all and little else."""
    step, run = 16 * lanes, 16 // streams * lanes
    each = count // _PARTS // step

    def body(x: Buffer, out: Buffer) -> None:
        with loop(_PARTS, True) as part:
            sums = T.alloc_buffer((step,), "float32")
            for v in range(16):
                store(sums, [v * lanes], splat(T.float32(0), lanes), lanes)
            with T.serial(each) as at:
                for v in range(16):
                    stream, inside = divmod(v * lanes, run)
                    place = (part * streams + stream) * (each * run) + at * run + inside
                    if streams > 1 and inside * 4 % _LINE == 0:
                        prefetch(x, [place + _AHEAD])
                    value = load(sums, [v * lanes], lanes) + load(x, [place], lanes)
                    store(sums, [v * lanes], value, lanes)
            _total(sums, out, part, step)

    return function("read", {"x": ((count,), "float32"), "out": ((_PARTS,), "float32")}, body)


def multiply_add(cpu: KernelCpu) -> tuple[tirx.PrimFunc, int]:
    """Multiply and add in registers only; also returns the operations of one call."""
    lanes, vectors = cpu.lanes, 12
    width = lanes * vectors

    def body(x: Buffer, out: Buffer) -> None:
        with loop(_PARTS, True) as part:
            sums = T.alloc_buffer((width,), "float32")
            for v in range(vectors):
                store(sums, [v * lanes], splat(T.BufferLoad(x, [v]), lanes), lanes)
            with T.serial(_ROUNDS):
                for v in range(vectors):
                    old = load(sums, [v * lanes], lanes)
                    # Neither factor is known, so nothing can be worked out beforehand.
                    value = old * splat(T.BufferLoad(x, [12]), lanes) + splat(
                        T.BufferLoad(x, [13]), lanes
                    )
                    store(sums, [v * lanes], value, lanes)
            _total(sums, out, part, width)

    kernel = function("peak", {"x": ((16,), "float32"), "out": ((_PARTS,), "float32")}, body)
    return kernel, 2 * _PARTS * _ROUNDS * width


def _total(sums: Buffer, out: Buffer, part: Expr, count: int) -> None:
    T.buffer_store(out, T.float32(0), [part])
    with T.serial(count) as i:
        T.buffer_store(out, T.BufferLoad(out, [part]) + T.BufferLoad(sums, [i]), [part])
