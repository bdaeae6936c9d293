"""What integers made of open sizes lie between: a tensor that exists has fewer than 2**31 elements.

coremltools has a symbol for each dynamic size. A product of sizes of one
tensor is at most its number of elements, whatever each of them could be alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from edgeinfer.convert.lower.coreml.tensor import INT32, Shape, Span

_DEPTH = 32
"""Operators between an integer and the sizes that it is made of."""

_MOVES = frozenset({"cast", "expand_dims", "identity", "reshape", "squeeze"})


class Counts:
    """The shapes of a program's tensors, as far as they are open.

    Args:
        most: the largest that a symbol of a size can be, by itself.
    """

    def __init__(self, most: Callable[[Any], int]) -> None:
        self._most = most
        self._shapes: set[Shape] = set()

    def see(self, shape: Shape) -> None:
        """Record a tensor that exists."""
        if any(not isinstance(size, int) for size in shape):
            self._shapes.add(shape)

    def span(self, variable: Any) -> Span | None:
        """Return what an integer lies between; None where it is not made of sizes."""
        entry = _expression(variable, _DEPTH)
        if entry is None:
            return None
        if isinstance(entry, int):
            return entry, entry
        low = high = 0
        polynomial = entry.as_poly()
        if polynomial is None:
            return None
        for powers, factor in polynomial.terms():
            if not factor.is_Integer:
                return None
            # Sizes are not negative.
            most = int(factor) * self._product(polynomial.gens, powers)
            least = int(factor) if not any(powers) else 0
            low, high = low + min(most, least), high + max(most, least)
        return low, high

    def _product(self, symbols: Any, powers: tuple[int, ...]) -> int:
        """The largest that a product of sizes can be."""
        used = [s for s, power in zip(symbols, powers, strict=True) for _ in range(power)]
        bound = math.prod(self._most(s) for s in used)
        for shape in self._shapes:
            rest = list(shape)
            for symbol in used:
                if symbol not in rest:
                    break
                rest.remove(symbol)
            else:
                others = math.prod(s for s in rest if isinstance(s, int))
                bound = min(bound, int(INT32.max) // max(others, 1))
        return bound


def _expression(variable: Any, depth: int) -> Any:
    """Return a number, or a polynomial of symbols of sizes; None for what is neither."""
    found = getattr(variable, "sym_val", None)
    if found is not None and np.size(found) == 1:
        entry = np.reshape(np.asarray(found, object), -1)[0]
        return int(entry) if isinstance(entry, (int, np.integer)) else entry
    made = getattr(variable, "op", None)
    if made is None or not depth:
        return None
    if made.op_type in _MOVES:
        return _expression(made.inputs["x"], depth - 1)
    if made.op_type in ("add", "mul", "sub"):
        a, b = (_expression(made.inputs[name], depth - 1) for name in "xy")
        if a is None or b is None:
            return None
        return a + b if made.op_type == "add" else a - b if made.op_type == "sub" else a * b
    return None
