"""Sums of 64-bit integers, which ONNX Runtime adds up in float64."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.faults import builder
from edgeinfer.convert.lower.rules import given
from edgeinfer.convert.lower.whole_spans import Spans

SUMS = frozenset({"ReduceL1", "ReduceSum", "ReduceSumSquare"})

_EXACT = 1 << 53
"""What float64 counts up to."""

_HALF = 1 << 32

_ELEMENTS = 1 << 20
"""Elements of an axis of open size; halves of as many are summed exactly."""

_HALVES = "edgeinfer.halves"


def inexact_sum(node: ir.Node) -> str:
    """Say whether a sum of integers may leave what float64 holds."""
    x = given(node, 0)
    if x is None or x.dtype != ir.DataType.INT64 or _HALVES in node.meta:
        return ""
    span = Spans(elements=_ELEMENTS).before_fitting(node)
    if span is not None and -_EXACT <= span[0] <= span[1] <= _EXACT:
        return ""
    return "int64 is added up in float64"


def sum_halves(model: ir.Model, node: ir.Node) -> bool:
    """Add up the upper and the lower 32 bits by themselves, in place.

    Given::

        y = ReduceSum(x, axes)

    Result::

        low = Mod(x, 2**32); high = Div(Sub(x, low), 2**32)
        y = Add(Mul(ReduceSum(high, axes), 2**32), ReduceSum(low, axes))
    """
    x, axes = given(node, 0), given(node, 1)
    if x is None:
        return False
    build = builder(model, node)
    if node.op_type == "ReduceL1":
        x = build.op("Abs", x)
    if node.op_type == "ReduceSumSquare":
        x = build.op("Mul", x, x)
    half = build.const(np.asarray(_HALF, np.int64), "half")
    low = build.op("Mod", x, half)
    high = build.op("Div", build.op("Sub", x, low), half)
    options = {name: a.as_int() for name, a in node.attributes.items()}
    sums = [
        build.op("ReduceSum", part, *([axes] if axes else []), **options) for part in (high, low)
    ]
    for value in sums:
        maker = value.producer()
        if maker is not None:
            maker.meta[_HALVES] = True
    build.op("Add", build.op("Mul", sums[0], half), sums[1])
    for made in build.nodes:
        made.outputs[0].type = ir.TensorType(ir.DataType.INT64)
    build.commit(model.graph, node)
    return True
