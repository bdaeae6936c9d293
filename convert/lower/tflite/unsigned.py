"""Arithmetic of uint64 in int64, which wraps around at the same width."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.convert.lower.tflite.graph import Tensor

if TYPE_CHECKING:
    from edgeinfer.convert.lower.tflite.builder import Builder

TOP = -(2**63)
"""The highest bit."""

COMPARISONS = ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL")


def signed(g: Builder, x: Tensor) -> Tensor:
    """The same bits as int64."""
    if x.data is not None:
        return g.const(x.data.view(np.int64))
    return g.emit("BITCAST", [x], x.shape, np.dtype(np.int64))


def unsigned(g: Builder, x: Tensor) -> Tensor:
    """The same bits as uint64."""
    return g.emit("BITCAST", [x], x.shape, np.dtype(np.uint64))


def ordered(g: Builder, x: Tensor) -> Tensor:
    """An int64 that is larger where ``x`` is."""
    if x.data is not None:
        return g.const(x.data.view(np.int64) + np.int64(TOP))
    return g.binary("ADD", signed(g, x), TOP)


def unordered(g: Builder, x: Tensor) -> Tensor:
    """What ``ordered`` was made of."""
    return unsigned(g, g.binary("ADD", x, TOP))


def _wrapping(code: str) -> Callable[[Builder, Tensor, Tensor], Tensor]:
    return lambda g, a, b: unsigned(g, g.binary(code, signed(g, a), signed(g, b)))


def _extreme(code: str) -> Callable[[Builder, Tensor, Tensor], Tensor]:
    return lambda g, a, b: unordered(g, g.binary(code, ordered(g, a), ordered(g, b)))


def _compared(code: str) -> Callable[[Builder, Tensor, Tensor], Tensor]:
    return lambda g, a, b: g.binary(code, ordered(g, a), ordered(g, b))


def halved(g: Builder, bits: Tensor) -> Tensor:
    """The bits moved one place to the right, zero above."""
    # Half of a negative number in two's complement lacks the highest bit.
    whole = g.binary("SUB", bits, g.binary("FLOOR_MOD", bits, 2))
    high = g.binary("LESS", bits, 0)
    # What is left of a whole number without its highest bit fits float64 in two parts.
    low = g.binary("FLOOR_MOD", whole, 1 << 32)
    upper = g.binary("SUB", whole, low)
    parts = [g.cast(_doubled(g, g.cast(part, np.float64), 0.5), np.int64) for part in (upper, low)]
    total = g.binary("ADD", parts[0], parts[1])
    return g.emit("SELECT_V2", [high, g.binary("SUB", total, TOP), total], total.shape, np.int64)


def _doubled(g: Builder, x: Tensor, factor: float) -> Tensor:
    return g.binary("MUL", x, g.const(factor, np.float64))


def to_real(g: Builder, x: Tensor, dtype: np.dtype[np.generic]) -> Tensor:
    """As a float, rounded once."""
    if dtype == np.float16:
        # What float32 would round is beyond the range of float16.
        return g.cast(to_real(g, x, np.dtype(np.float32)), dtype)
    bits = signed(g, x)
    half = halved(g, bits)
    # The bit that is dropped decides a tie, so it is kept in the last place.
    even = g.binary("SUB", half, g.binary("FLOOR_MOD", half, 2))
    last = g.binary("MAXIMUM", g.binary("FLOOR_MOD", half, 2), g.binary("FLOOR_MOD", bits, 2))
    sticky = g.cast(g.binary("ADD", even, last), dtype)
    large = g.binary("MUL", sticky, g.const(2, dtype))
    high = g.binary("LESS", bits, 0)
    return g.emit("SELECT_V2", [high, large, g.cast(bits, dtype)], x.shape, dtype)


def of_real(g: Builder, x: Tensor) -> Tensor:
    """A float from 0 on as uint64."""
    limit = g.const(2.0**63, x.dtype)
    high = g.binary("GREATER_EQUAL", x, limit)
    low = g.binary("SUB", x, limit)
    rest = g.cast(g.emit("SELECT_V2", [high, low, x], x.shape), np.int64)
    moved = g.binary("ADD", rest, TOP)
    return unsigned(g, g.emit("SELECT_V2", [high, moved, rest], x.shape, np.int64))


BINARY: dict[str, Callable[[Builder, Tensor, Tensor], Tensor]] = {
    **{code: _wrapping(code) for code in ("ADD", "SUB", "MUL", "BITWISE_XOR")},
    **{code: _extreme(code) for code in ("MAXIMUM", "MINIMUM")},
    **{code: _compared(code) for code in COMPARISONS},
}
