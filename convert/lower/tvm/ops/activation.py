"""Activation functions."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tvm.builder import Builder, Tensor
from edgeinfer.convert.lower.tvm.ops.arith import larger, smaller
from edgeinfer.convert.lower.tvm.registry import NUMBERS, OPS


@OPS.lower("Clip", dtypes=NUMBERS)
def clip(g: Builder, input: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    """Bound from below and above; the upper bound wins."""
    for bound, pick in ((min, larger), (max, smaller)):
        if bound is None or _is_open(bound, below=bound is min):
            continue
        if bound.rank:
            raise Refusal("a bound with axes")
        input = g.map(lambda v, b, pick=pick: pick(v, b), input, bound)
    return input


def _is_open(bound: Tensor, *, below: bool) -> bool:
    if bound.data is None or "float" not in bound.dtype:
        return False
    return bool(bound.data.reshape(-1)[0] == (-np.inf if below else np.inf))
