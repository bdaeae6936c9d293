"""Normalisations in operators that give the same bits in every engine.

Engines add up in orders of their own, so that the last bits of a mean differ, and where such a
number is then rounded to 8 bits, one in a million goes the other way. In a net of attention that
one moves most of those behind it. Integers are different: float32 adds them exactly, in any order,
as long as sums stay below 2**24. So mean and variance are taken of values rounded to integers, and
all else is single operators of IEEE arithmetic: a rounding stands wherever an engine could join a
product with a sum, or two divisions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import (
    Namer,
    add_initializer,
    attr,
    constant,
    is_op,
    static_shape,
)
from edgeinfer.convert.passes.rewrite import ReplacementBuilder
from edgeinfer.convert.quantize.calibrate.histogram import Histogram
from edgeinfer.records import dataclass
from edgeinfer.types import Array

_MOST = 2.0**24
"""Below it float32 knows every integer."""

_RESERVE = 1.5
"""Squares may be this much larger than the largest that was seen and still be added exactly."""

_LEAST = 8.0
"""Steps that the elements of an ordinary vector have, at least, in the mean of squares. Where a few
vectors are so much longer that they leave less, their sums are not exact."""

_ROOT = 2.0**22
"""What is divided by a root. With more binary digits a quotient could be near to halfway."""

_DIGITS = 17
"""Of a result, binary."""

_SPREAD = 6.0
"""Standard deviations that those digits are meant for; more are held too."""

_MEANS = 16.0
"""Parts of a step that means are rounded to."""


@dataclass(frozen=True, slots=True)
class Norm:
    """One normalisation.

    Attributes:
        node: the operator.
        axes: that are normalised over, of ``groups`` where there are some.
        count: elements of them.
        groups: shape that the operand is brought to first; empty where it is not.
        centred: whether the mean is taken off.
        scale: factors, shaped to broadcast over the operand.
        bias: likewise; None for none.
        epsilon: added to the variance.
    """

    node: ir.Node
    axes: tuple[int, ...]
    count: int
    groups: tuple[int, ...]
    centred: bool
    scale: Array
    bias: Array | None
    epsilon: float


def norms(graph: ir.Graph) -> Iterator[Norm]:
    """Find the normalisations with constant factors and known sizes."""
    for node in graph:
        kinds = ("LayerNormalization", "RMSNormalization", "GroupNormalization")
        if not is_op(node, *kinds, "InstanceNormalization"):
            continue
        shape, out = static_shape(node.inputs[0]), node.outputs[0]
        used = any(o.uses() or o.is_graph_output() for o in node.outputs[1:])
        parameters = [constant(v) for v in node.inputs[1:] if v is not None]
        if shape is None or len(shape) < 2 or used or None in parameters:
            continue
        if out.dtype != ir.DataType.FLOAT or not parameters:
            continue
        arrays = [np.asarray(p.numpy(), np.float64) for p in parameters if p is not None]
        found = _norm(node, shape, arrays[0], arrays[1] if len(arrays) > 1 else None)
        if found.count > 1 and found.scale.any():
            yield found


def _norm(node: ir.Node, shape: tuple[int, ...], scale: Array, bias: Array | None) -> Norm:
    epsilon = float(attr(node, "epsilon", 1e-5))
    if node.op_type in ("LayerNormalization", "RMSNormalization"):
        first = int(attr(node, "axis", -1)) % len(shape)
        axes = tuple(range(first, len(shape)))
        centred = node.op_type == "LayerNormalization"
        return Norm(node, axes, math.prod(shape[first:]), (), centred, scale, bias, epsilon)
    channels = [shape[1], *(1 for _ in shape[2:])]
    wide = None if bias is None else bias.reshape(channels)
    if node.op_type == "InstanceNormalization":
        axes, count = tuple(range(2, len(shape))), math.prod(shape[2:])
        return Norm(node, axes, count, (), True, scale.reshape(channels), wide, epsilon)
    groups = int(attr(node, "num_groups", 1))
    count = math.prod(shape[1:]) // groups
    grouped = shape[0], groups, count
    return Norm(node, (2,), count, grouped, True, scale.reshape(channels), wide, epsilon)


def watched(model: ir.Model) -> tuple[ir.Model, dict[str, str]]:
    """Return a copy that also computes how long each vector is that is normalised.

    Returns:
        The copy, and by the name of a normalisation the name of its vectors' lengths.
    """
    copy = model.clone()
    namer, names = Namer(copy), {}
    for norm in list(norms(copy.graph)):
        x = norm.node.inputs[0]
        if x is None or not norm.node.name:
            continue
        base = f"{norm.node.name}.length"
        build = ReplacementBuilder(namer, base)
        source = x
        if norm.groups:
            source = build.op("Reshape", x, build.const(np.array(norm.groups), "shape"))
        axes = build.const(np.array(norm.axes), "axes")
        length = build.op("ReduceL2", source, axes, keepdims=1)
        length.name, length.type = namer.fresh(base), ir.TensorType(ir.DataType.FLOAT)
        for value in build.constants:
            copy.graph.register_initializer(value)
        for node in build.nodes:
            node.name = node.outputs[0].name = node.outputs[0].name or namer.fresh(base)
        copy.graph.insert_before(norm.node, build.nodes)
        names[norm.node.name] = length.name
    return copy, names


def step_of(lengths: Histogram, count: int) -> float | None:
    """Return the power of two that elements are rounded to for mean and variance.

    Args:
        lengths: Lengths of the vectors that were seen.
        count: elements of one.
    """
    if lengths.high <= 0 or not math.isfinite(lengths.high):
        return None
    most = math.sqrt(_MOST / _RESERVE)
    step = 2.0 ** math.ceil(math.log2(lengths.high / most))
    below = np.cumsum(lengths.counts)
    median = float(lengths.centres[np.searchsorted(below, below[-1] / 2)])
    usual = median / math.sqrt(count)
    return min(step, 2.0 ** math.floor(math.log2(usual / _LEAST))) if usual > 0 else step


def write_norms(model: ir.Model, lengths: Mapping[str, Histogram]) -> int:
    """Rewrite the normalisations whose vectors were measured, in place; returns how many.

    Args:
        model: with the integers in it.
        lengths: Lengths of the vectors, by the name of the normalisation.
    """
    namer, count = Namer(model), 0
    for norm in list(norms(model.graph)):
        x = norm.node.inputs[0]
        seen = lengths.get(norm.node.name or "")
        step = None if seen is None else step_of(seen, norm.count)
        if x is None or step is None:
            continue
        _join_constants(x)
        build = ReplacementBuilder(namer, norm.node.outputs[0].name or norm.node.op_type)
        _build(norm, x, step, build)
        build.commit(model.graph, norm.node)
        count += 1
    return count


def _build(norm: Norm, x: ir.Value, step: float, build: ReplacementBuilder) -> None:
    def number(value: float | Array, hint: str = "c") -> ir.Value:
        return build.const(np.asarray(value, np.float32), hint)

    def mul(a: ir.Value, b: float | Array | ir.Value) -> ir.Value:
        return build.op("Mul", a, b if isinstance(b, ir.Value) else number(b))

    def rounded(a: ir.Value, factor: float) -> ir.Value:
        return build.op("Round", mul(a, factor))

    n, shape = norm.count, static_shape(x)
    if norm.groups:
        x = build.op("Reshape", x, build.const(np.array(norm.groups), "shape"))
    axes = build.const(np.array(norm.axes), "axes")
    whole = rounded(x, 1.0 / step)
    energy = build.op("ReduceSum", mul(whole, whole), axes, keepdims=1)
    if norm.centred:
        total = build.op("ReduceSum", whole, axes, keepdims=1)
        mean = mul(rounded(total, _MEANS / n), step / _MEANS)
        near = rounded(total, 1.0 / n)
        rest = build.op("Sub", mul(total, 2.0), mul(near, float(n)))
        energy = build.op("Sub", energy, mul(near, rest))
        x = build.op("Sub", x, mean)
    # Rounding to whole steps adds a twelfth of one to the mean of the squares.
    shifted = build.op("Add", energy, number(norm.epsilon * n / step**2 - n / 12.0))
    least = build.op("Max", shifted, number(max(1.0, n / 16.0)))
    root = build.op("Round", build.op("Sqrt", least))
    inverse = build.op("Round", build.op("Div", number(_ROOT), root))
    x = mul(x, inverse)
    if norm.groups:
        x = build.op("Reshape", x, build.const(np.array(shape), "shape"))
    top = _SPREAD * np.abs(norm.scale).max() + (0 if norm.bias is None else np.abs(norm.bias).max())
    fine = 2.0 ** math.floor(_DIGITS - math.log2(top))
    factors = norm.scale * (fine * math.sqrt(n) / step / _ROOT)
    y = build.op("Round", mul(x, factors))
    if norm.bias is not None:
        y = build.op("Add", y, number(np.rint(norm.bias * fine)))
    mul(y, 1.0 / fine)


def _join_constants(value: ir.Value) -> None:
    """Add two constants before anything else, in place: some engines do so by themselves.

    Given: ``y = Add(Add(x, c), d)``
    Result: ``y = Add(x, c + d)``
    """
    node = value.producer()
    if not is_op(node, "Add") or node is None or node.graph is None:
        return
    for place in (0, 1):
        inner, outer = node.inputs[1 - place], constant(node.inputs[place])
        before = inner.producer() if inner is not None else None
        if outer is None or before is None or not is_op(before, "Add"):
            continue
        if inner is None or len(inner.uses()) != 1 or inner.is_graph_output():
            return
        for other in (0, 1):
            first = constant(before.inputs[other])
            if first is None or first.dtype != outer.dtype:
                continue
            name = f"{value.name}.both"
            if name in node.graph.initializers:
                return
            both = add_initializer(node.graph, name, first.numpy() + outer.numpy())
            node.replace_input_with(place, both)
            node.replace_input_with(1 - place, before.inputs[1 - other])
            return
