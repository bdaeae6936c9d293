"""Infinities that a graph brings along, and kernels that would make large numbers of them.

Without XNNPACK, LiteRT 2.3.0 adds, subtracts and multiplies to the largest finite number where the
result is infinite, and its extremes start from there. What comes from a constant that is infinite
(a mask, most often) goes through kernels that do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeinfer.convert.lower.tflite import doubles
from edgeinfer.convert.lower.tflite.graph import Graph, Tensor

if TYPE_CHECKING:
    from edgeinfer.convert.lower.tflite.builder import Builder

_CLAMPED = frozenset({"ADD", "SUB", "MUL"})
_EXTREMES = {"REDUCE_MAX": -np.inf, "REDUCE_MIN": np.inf}
_LOOKED_AT = frozenset({*_CLAMPED, "SELECT_V2", "PACK", "CONCATENATION"})
"""Operators whose constants are looked at; those of others may be large."""

_HAND_ON = frozenset(
    {
        *("RESHAPE", "TRANSPOSE", "BROADCAST_TO", "EXPAND_DIMS", "SQUEEZE", "SLICE", "TILE"),
        *("STRIDED_SLICE", "GATHER", "GATHER_ND", "NEG", "ABS", "SPLIT", "SPLIT_V", "UNPACK"),
        *("STABLEHLO_ADD", "STABLEHLO_MULTIPLY", *_EXTREMES, *_LOOKED_AT),
    }
)


def spread(code: str, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
    """Mark the results of an operator that has infinite operands."""
    if code in _HAND_ON and any(_is_unbounded(code, t) for t in inputs):
        for out in outputs:
            out.unbounded = out.dtype == np.float32


def is_clamped(code: str, inputs: Sequence[Tensor | None], options: Mapping[str, Any]) -> bool:
    """Whether a kernel would lose an infinity."""
    if code not in _CLAMPED and code not in _EXTREMES:
        return False
    if options.get("fused_activation_function", 0):
        return False
    first = inputs[0]
    if first is None or first.dtype != np.float32:
        return False
    if code in _EXTREMES and (inputs[1] is None or inputs[1].data is None):
        return False
    return any(_is_unbounded(code, t) for t in inputs)


def _is_unbounded(code: str, x: Tensor | None) -> bool:
    if x is None or x.dtype != np.float32:
        return False
    if x.data is not None and code in _LOOKED_AT:
        return bool(x.data.size) and bool(np.isinf([x.data.min(), x.data.max()]).any())
    return x.unbounded


def kept(
    g: Builder, code: str, inputs: Sequence[Tensor | None], output: Tensor, keepdims: bool
) -> Tensor:
    """The operator, by kernels that keep infinities."""
    operands = [t for t in inputs if t is not None]
    if code in _EXTREMES:
        limit = g.const(_EXTREMES[code], np.float32)
        every = g.emit(
            "REDUCE_ALL",
            [g.binary("EQUAL", operands[0], limit), operands[1]],
            output.shape,
            np.bool_,
            keep_dims=keepdims,
        )
        # What is not all infinite comes out right.
        found = g.tensor(output.shape, np.float32)
        Graph.add(g, code, operands, [found], keep_dims=keepdims)
        return g.emit("SELECT_V2", [every, limit, found], output.shape, np.float32)
    a, b = operands
    if code == "SUB":
        return doubles.binary(g, "STABLEHLO_ADD", a, g.unary("NEG", b))
    return doubles.binary(g, "STABLEHLO_ADD" if code == "ADD" else "STABLEHLO_MULTIPLY", a, b)
