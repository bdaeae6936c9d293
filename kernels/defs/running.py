"""Sums and products of all elements up to each one, along an axis of any length."""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs.emit import Buffer, Expr, function


def running(
    shape: tuple[Expr, Expr, Expr], dtype: str, *, product: bool, exclusive: bool, reverse: bool
) -> tirx.PrimFunc:
    """Combine the elements before each one, and itself.

    The kernel takes ``x`` and gives ``y``, both of the shape (outer, size, inner). Halves are
    combined in single precision.

    Args:
        shape: sizes before, along and behind the axis.
        dtype: Element type of the elements.
        product: multiply instead of adding.
        exclusive: without the element itself.
        reverse: from the end.
    """
    outer, size, inner = shape
    wide = "float32" if dtype == "float16" else dtype

    def body(x: Buffer, y: Buffer) -> None:
        with T.serial(outer) as o, T.serial(inner) as n:
            state = T.alloc_buffer((1,), wide)
            T.buffer_store(state, tirx.const(1 if product else 0, wide), [0])
            with T.serial(size) as i:
                place = [o, size - 1 - i if reverse else i, n]
                before, value = T.BufferLoad(state, [0]), T.BufferLoad(x, place).astype(wide)
                if exclusive:
                    T.buffer_store(y, before.astype(dtype), place)
                T.buffer_store(state, before * value if product else before + value, [0])
                if not exclusive:
                    T.buffer_store(y, T.BufferLoad(state, [0]).astype(dtype), place)

    return function("running", {"x": (shape, dtype), "y": (shape, dtype)}, body)
