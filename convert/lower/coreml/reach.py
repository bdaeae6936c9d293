"""What floats lie between, as far as operators say it: a proof for integers made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from edgeinfer.convert.lower.coreml.tensor import Reach, Tensor

_FIXED: dict[str, Reach] = {
    "sigmoid": (0.0, 1.0),
    "softmax": (0.0, 1.0),
    "sigmoid_hard": (0.0, 1.0),
    "tanh": (-1.0, 1.0),
    "erf": (-1.0, 1.0),
    "sin": (-1.0, 1.0),
    "cos": (-1.0, 1.0),
    "sign": (-1.0, 1.0),
}
"""Operators whose results lie there whatever they are given."""

_ALIKE = frozenset(
    {
        *("identity", "reshape", "transpose", "squeeze", "expand_dims", "slice_by_index", "tile"),
        *("slice_by_size", "gather", "gather_along_axis", "gather_nd", "split", "reverse"),
        *("reduce_max", "reduce_min"),
    }
)
"""Operators whose results lie where their operand ``x`` does."""

_STEPS: dict[str, Callable[[float], float]] = {
    "floor": lambda v: float(np.floor(v)),
    "ceil": lambda v: float(np.ceil(v)),
    "round": lambda v: float(np.rint(v)),
    "sqrt": lambda v: float(np.sqrt(max(v, 0.0))),
    "relu": lambda v: max(v, 0.0),
    "relu6": lambda v: min(max(v, 0.0), 6.0),
}
"""Operators that keep the order of numbers."""


_LEAST_LOG, _LARGEST_LOG = -104.0, 89.0
"""Logarithms of the least and the largest float32, rounded away from zero."""


def reach_of(op: str, dtype: np.dtype[Any], operands: Mapping[str, Any]) -> Reach | None:
    """What the floats of a result lie between; None where nothing says it."""
    if op in _FIXED:
        return _FIXED[op]
    own = {name: _of(value) for name, value in operands.items()}
    x = own.get("x")
    if op in _ALIKE:
        return x
    if op in ("select", "concat"):
        parts = [own.get("a"), own.get("b")]
        if op == "concat":
            parts = [_of(v) for v in operands.get("values", ())]
        held = [p for p in parts if p is not None]
        both = len(held) == len(parts) > 0
        return (min(p[0] for p in held), max(p[1] for p in held)) if both else None
    if op == "fill":
        return _of(operands.get("value"))
    if op == "clip":
        low, high = (
            float(operands.get(k, d)) for k, d in (("alpha", -math.inf), ("beta", math.inf))
        )
        return kept(dtype, _between(x, low, high))
    if op == "abs" and x is not None:
        return (0.0 if x[0] <= 0 <= x[1] else min(map(abs, x))), max(map(abs, x))
    if op == "log" and x is not None and x[1] > 0:
        # What is not above zero has no logarithm that an integer could stand for: its cast is not
        # defined, and the least number above zero is what counts.
        return _LEAST_LOG, math.log(x[1]) if math.isfinite(x[1]) else _LARGEST_LOG
    if op in _STEPS:
        low, high = x or (-math.inf, math.inf)
        return kept(dtype, (_STEPS[op](low), _STEPS[op](high)))
    return _of_two(op, dtype, x, own.get("y"))


def _of_two(op: str, dtype: np.dtype[Any], x: Reach | None, y: Reach | None) -> Reach | None:
    """Arithmetic between two operands."""
    if op in ("maximum", "minimum"):
        lows, highs = [[r[i] for r in (x, y) if r is not None] for i in (0, 1)]
        return _extreme(op, lows, highs, both=len(lows) == 2)
    if x is None or y is None:
        return None
    pairs = [(a, b) for a in x for b in y]
    match op:
        case "add":
            ends = [x[0] + y[0], x[1] + y[1]]
        case "sub":
            ends = [x[0] - y[1], x[1] - y[0]]
        case "mul":
            ends = [a * b for a, b in pairs]
        case "real_div" if not y[0] <= 0 <= y[1]:
            ends = [a / b for a, b in pairs]
        case _:
            return None
    if any(math.isnan(e) for e in ends):
        return None
    # Operands and the result are rounded, at most by this share of the largest.
    margin = 2 * float(np.finfo(dtype).eps) * max(map(abs, (*ends, *x, *y)))
    if math.isinf(margin):
        margin = 0.0 if op in ("add", "sub") else math.nan
    return None if math.isnan(margin) else kept(dtype, (min(ends) - margin, max(ends) + margin))


def _extreme(op: str, lows: list[float], highs: list[float], *, both: bool) -> Reach | None:
    """One bounded operand bounds the result on one side, which is a start for the next."""
    if not lows:
        return None
    if op == "maximum":
        return max(lows), (max(highs) if both else math.inf)
    return (min(lows) if both else -math.inf), min(highs)


def _between(x: Reach | None, low: float, high: float) -> Reach:
    found = x or (-math.inf, math.inf)
    return min(max(found[0], low), high), max(min(found[1], high), low)


def kept(dtype: np.dtype[Any], found: Reach) -> Reach | None:
    """A bound that the element type does not hold becomes infinite in a run, and none."""
    most = float(np.finfo(dtype).max)
    low = -math.inf if found[0] < -most else found[0]
    high = math.inf if found[1] > most else found[1]
    return None if math.isinf(low) and math.isinf(high) else (low, high)


def _of(value: Any) -> Reach | None:
    if isinstance(value, Tensor):
        return value.between
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value), float(value)
    return None
