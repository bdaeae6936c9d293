"""What else has to stay in single precision where an artifact fails in half-precision arithmetic.

Rounding adds up where a signal gets smaller than what it is computed with: filters that take away
most of their input, differences of what is nearly equal. No range shows it, only the result does.
It is mostly the first part of a model that does so: what makes features of audio or of pixels.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import onnx_ir as ir

SECONDS = 180.0
"""CPU time after which the smallest part found so far is taken."""

Good = Callable[[frozenset[str]], bool]
"""Whether a model is right when the nodes with these results stay in single precision."""


def first_part(model: ir.Model, good: Good) -> frozenset[str]:
    """Find the shortest first part of a model that must stay in single precision.

    Args:
        model: float, its nodes in order.
        good: asked a few times; more nodes in single precision are taken to be no worse.

    Returns:
        Names of the nodes' first results; empty where no part with products behind it will do.
    """
    nodes = [n for n in model.graph if n.outputs and n.outputs[0].name]
    names = [n.outputs[0].name or "" for n in nodes]
    products = [i for i, n in enumerate(nodes) if n.op_type in ("Conv", "MatMul", "Gemm")]
    if not products:
        return frozenset()
    # The last product stays in half precision, or there would be nothing left of it.
    low, high = 0, products[-1]
    if high == 0 or not good(frozenset(names[:high])):
        return frozenset()
    until = time.process_time() + SECONDS
    while high - low > 1 and time.process_time() < until:
        middle = (low + high) // 2
        if good(frozenset(names[:middle])):
            high = middle
        else:
            low = middle
    return frozenset(names[:high])
