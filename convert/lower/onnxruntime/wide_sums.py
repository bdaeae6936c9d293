"""Sums, means and products of 64-bit integers, which ONNX Runtime computes in float64."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.faults import builder
from edgeinfer.convert.lower.rules import attribute, given
from edgeinfer.convert.lower.whole_spans import Span, Spans
from edgeinfer.convert.passes.rewrite import ReplacementBuilder

SUMS = frozenset({"ReduceL1", "ReduceSum", "ReduceSumSquare"})

_EXACT = 1 << 53
"""What float64 counts up to."""

_HALF = 1 << 32

_ELEMENTS = 1 << 20
"""Elements of an axis of open size; halves of as many are summed exactly."""

_HALVES = "edgeinfer.halves"

_FACTORS = 64
"""Elements of an axis that are multiplied one after the other."""


def inexact_sum(node: ir.Node) -> str:
    """Say whether a sum of integers may leave what float64 holds."""
    if _HALVES in node.meta or not _leaves(node, Spans(elements=_ELEMENTS).before_fitting(node)):
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
    high, low, half = _halves(build, node, x, axes)
    build.op("Add", build.op("Mul", high, half), low)
    _finish(build, model, node)
    return True


def inexact_mean(node: ir.Node) -> str:
    """Say whether the sum behind a mean of integers may leave what float64 holds."""
    return "int64 is added up in float64" if _leaves(node, _sum_behind(node)) else ""


def mean_of_halves(model: ir.Model, node: ir.Node) -> bool:
    """Divide both halves of the sum, whose whole may be too large for 64 bits, in place.

    Given::

        y = ReduceMean(x, axes)                      # n elements each, rounded towards zero

    Result::

        high, low = ...                              # as in sum_halves; low is not negative
        rest = Mod(high, n); tail = Add(Mul(rest, 2**32), low)
        floor = Add(Mul(Div(Sub(high, rest), n), 2**32), Div(tail, n))
        y = Where(And(Less(floor, 0), Greater(Mod(tail, n), 0)), Add(floor, 1), floor)
    """
    x, axes = given(node, 0), given(node, 1)
    if x is None:
        return False
    build = builder(model, node)
    high, low, half = _halves(build, node, x, axes)
    zero, one = (build.const(np.asarray(v, np.int64), f"c{v}") for v in (0, 1))
    means = build.op("Max", build.op("Size", high), one)
    n = build.op("Max", build.op("Div", build.op("Size", x), means), one)
    rest = build.op("Mod", high, n)
    tail = build.op("Add", build.op("Mul", rest, half), low)
    wholes = build.op("Mul", build.op("Div", build.op("Sub", high, rest), n), half)
    floor = build.op("Add", wholes, build.op("Div", tail, n))
    below = build.op("Less", floor, zero)
    broken = build.op("Greater", build.op("Mod", tail, n), zero)
    build.op("Where", build.op("And", below, broken), build.op("Add", floor, one), floor)
    _finish(build, model, node)
    return True


def inexact_product(node: ir.Node) -> str:
    """Say whether a product of integers may leave what float64 holds."""
    inexact = _leaves(node, Spans(elements=_ELEMENTS).before_fitting(node))
    return "int64 is multiplied in float64" if inexact else ""


def multiply_in_turn(model: ir.Model, node: ir.Node) -> bool:
    """Multiply the elements of each axis one by one, in place; of axes of known, small size."""
    x, axes = given(node, 0), given(node, 1)
    if x is None or x.shape is None or (axes is not None and axes.const_value is None):
        return False
    rank = len(x.shape)
    constant = None if axes is None else axes.const_value
    named: list[int] = [] if constant is None else constant.numpy().ravel().tolist()
    if not named and attribute(node, "noop_with_empty_axes", 0):
        return False
    reduced = sorted({a % rank for a in named} or range(rank), reverse=True)
    sizes = [d for d in (x.shape[axis] for axis in reduced) if isinstance(d, int)]
    if len(sizes) < len(reduced) or not all(0 < size <= _FACTORS for size in sizes):
        return False
    build = builder(model, node)
    value = x
    for axis, size in zip(reduced, sizes, strict=True):
        indices = [build.const(np.asarray([i], np.int64), f"place{i}") for i in range(size)]
        parts = [build.op("Gather", value, index, axis=axis) for index in indices]
        value = parts[0]
        for part in parts[1:]:
            value = build.op("Mul", value, part)
    if attribute(node, "keepdims", 1):
        build.op("Identity", value)
    else:
        build.op("Squeeze", value, build.const(np.asarray(sorted(reduced), np.int64), "axes"))
    _finish(build, model, node)
    return True


def inexact_einsum(node: ir.Node) -> str:
    """Say whether an index of one operand alone is summed."""
    x = given(node, 0)
    if x is None or x.dtype != ir.DataType.INT64 or not any(_alone(node)):
        return ""
    return "int64 is added up in float64"


def sum_before(model: ir.Model, node: ir.Node) -> bool:
    """Sum indices of one operand alone before the products, by ``ReduceSum``, in place."""
    left, right = str(attribute(node, "equation", "")).replace(" ", "").split("->")
    terms, alone = left.split(","), _alone(node)
    build = builder(model, node)
    operands = []
    for term, letters, value in zip(terms, alone, node.inputs, strict=True):
        indices = [_place(term, letter) for letter in letters]
        if indices:
            axes = build.const(np.asarray(indices, np.int64), "axes")
            value = build.op("ReduceSum", value, axes, keepdims=0)
        operands.append(value)
    kept = ["".join(c for c in term if c not in n) for term, n in zip(terms, alone, strict=True)]
    build.op("Einsum", *operands, equation=f"{','.join(kept)}->{right}")
    _finish(build, model, node)
    return True


def _leaves(node: ir.Node, span: Span | None) -> bool:
    """Whether a node of int64 may come to what float64 does not hold."""
    x = given(node, 0)
    is_wide = x is not None and x.dtype == ir.DataType.INT64
    return is_wide and (span is None or max(map(abs, span)) > _EXACT)


def _sum_behind(node: ir.Node) -> Span | None:
    """Return what the sum behind a mean of all elements lies between."""
    x = given(node, 0)
    span = Spans(elements=_ELEMENTS).of(x)
    if x is None or x.shape is None or span is None:
        return None
    count = math.prod(d if isinstance(d, int) else _ELEMENTS for d in x.shape)
    return span[0] * count, span[1] * count


def _alone(node: ir.Node) -> list[list[str]]:
    """Return, for each operand, the indices that it alone has and the result has not."""
    left, arrow, right = str(attribute(node, "equation", "")).replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow:
        # What comes once is in the result.
        return [[] for _ in terms]
    return [
        [c for c in term if c.isalpha() and left.count(c) == 1 and c not in right] for term in terms
    ]


def _place(term: str, letter: str) -> int:
    """Return the axis of an index, from the end where axes without a name come before."""
    before, _, after = term.partition("...")
    return before.index(letter) if letter in before else after.index(letter) - len(after)


def _halves(
    build: ReplacementBuilder, node: ir.Node, x: ir.Value, axes: ir.Value | None
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return the sums of the upper and of the lower 32 bits, and 2**32."""
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
    return sums[0], sums[1], half


def _finish(build: ReplacementBuilder, model: ir.Model, node: ir.Node) -> None:
    for made in build.nodes:
        is_bool = made.op_type in {"Less", "Greater", "And"}
        kind = ir.DataType.BOOL if is_bool else ir.DataType.INT64
        made.outputs[0].type = ir.TensorType(kind)
    build.commit(model.graph, node)
