"""Elements that are only moved, which OpenVINO's CPU plugin takes through float32.

Each operator was run alone on numbers near 1.79e9, openvino 2026.4.1; the other ones that move
elements (Gather, Tile, Expand, Slice, Concat, ScatterND and so on) keep every bit.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.faults import builder
from edgeinfer.convert.lower.openvino.whole_numbers import (
    FAULT,
    SETTLED,
    SIXTEEN,
    Arithmetic,
    is_held,
    is_wide,
)
from edgeinfer.convert.lower.rules import attribute, given
from edgeinfer.convert.passes.infra import attr, ints, rank

LOST = "a value that a run gives is taken for zero"


def moved(node: ir.Node) -> str:
    """Integers that are not held, in an operator that takes them through float32."""
    x = given(node, 0)
    is_right = not is_wide(x) or is_held(x) or SETTLED in node.meta
    return "" if is_right else FAULT


def move_halves(model: ir.Model, node: ir.Node) -> bool:
    """Move, or shift, the upper and the lower half: float32 holds both, and their quotients.

    What both quotients of a shift are cut by together is less than one, so nothing is carried.

    Given::

        y = ReverseSequence(x, n)

    Result::

        low = BitwiseAnd(x, 65535)
        y = Add(ReverseSequence(Sub(x, low), n), ReverseSequence(low, n))
    """
    x = given(node, 0)
    if x is None:
        return False
    build = builder(model, node)
    steps = Arithmetic(build, x)
    low = steps.op("BitwiseAnd", x, steps.number(SIXTEEN - 1))
    options = {k: a.value for k, a in node.attributes.items()}
    parts = []
    for half in (steps.op("Sub", x, low), low):
        part = build.op(node.op_type, half, *node.inputs[1:], **options)
        part.type = x.type
        build.nodes[-1].meta[SETTLED] = True
        parts.append(part)
    steps.op("Add", *parts)
    build.commit(model.graph, node)
    return True


def padded(node: ir.Node) -> str:
    """A border of a number that a run gives, that float32 does not hold, or behind integers."""
    value = given(node, 2)
    if value is None or attribute(node, "mode", "constant") != "constant":
        return ""
    if value.const_value is None:
        return LOST
    if np.any(value.const_value.numpy() != 0) and is_of_integers(node):
        return "a border in front of a scale is cut to an integer"
    return FAULT if is_wide(value) and not is_held(value) else ""


def wrapped(node: ir.Node) -> str:
    """Tell of a border that begins again at the other end."""
    return "no such mode" if attribute(node, "mode", "constant") == "wrap" else ""


def gather_around(model: ir.Model, node: ir.Node) -> bool:
    """Gather what each place of a wrapped axis holds.

    Given::

        y = Pad<mode="wrap">(float[N,4] x, [0, 1, 0, 2])

    Result::

        y = Gather<axis=1>(x, Range(-1, 4 + 2, 1) % 4)
    """
    x, axes = given(node, 0), given(node, 3)
    amounts = given(node, 1)
    pads = None if amounts is None else ints(amounts)
    padded = list(range(rank(x) or 0)) if axes is None else ints(axes)
    if x is None or x.shape is None or pads is None or not padded or len(pads) != 2 * len(padded):
        return False
    build, made = builder(model, node), x
    for place, begin, end in zip(padded, pads, pads[len(padded) :], strict=False):
        axis = place % len(x.shape)
        size = x.shape[axis]
        if begin == end == 0:
            continue
        if isinstance(size, int):
            index = build.const(np.arange(-begin, size + end) % size, "indices")
        else:
            shape = build.op("Shape", x, start=axis, end=axis + 1)
            length = build.op("Squeeze", shape)
            ends = build.const(np.array(-begin), "first"), build.const(np.array(end), "end")
            last = build.op("Add", length, ends[1])
            index = build.op("Range", ends[0], last, build.const(np.array(1), "step"))
            index = build.op("Mod", index, length)
        made = build.op("Gather", made, index, axis=axis)
    if made is x:
        build.op("Identity", x)
    build.commit(model.graph, node)
    return True


def is_of_integers(node: ir.Node) -> bool:
    """Tell whether scaled integers come before a node, whose scale the plugin moves behind it."""
    left, seen = [node], {node}
    while left:
        makers = [v.producer() for v in left.pop().inputs if v is not None]
        fresh = {m for m in makers if m is not None} - seen
        if any(m.op_type == "DequantizeLinear" for m in fresh):
            return True
        seen |= fresh
        left += fresh
    return False


def counts_integers(node: ir.Node) -> str:
    """Tell of a mean over padding that counts, behind integers."""
    pads, counted = (attr(node, name, 0) for name in ("pads", "count_include_pad"))
    x = node.inputs[0]
    maker = None if x is None else x.producer()
    settled = maker is not None and SETTLED in maker.meta
    if not counted or not pads or not any(pads) or settled or not is_of_integers(node):
        return ""
    return "a zero point or a sum moved behind it counts where there is padding, too"


def scale_before(model: ir.Model, node: ir.Node) -> bool:
    """Put an activation that changes nothing in front, behind which no scale is moved.

    Given::

        y = AveragePool<count_include_pad=1, pads=[1, 1]>(x)

    Result::

        y = AveragePool<count_include_pad=1, pads=[1, 1]>(PRelu(x, 1))
    """
    x = given(node, 0)
    if x is None or x.dtype is None:
        return False
    build = builder(model, node)
    same = build.op("PRelu", x, build.const(np.ones(1, x.dtype.numpy()), "one"))
    same.type, same.shape = x.type, x.shape
    build.nodes[-1].meta[SETTLED] = True
    options = {k: a.value for k, a in node.attributes.items()}
    build.op("AveragePool", same, **options)
    build.commit(model.graph, node)
    return True


def fill_apart(model: ir.Model, node: ir.Node) -> bool:
    """Choose between what is padded with zeros and the value, by a padded mask.

    Given::

        y = Pad(x, p, v)

    Result::

        y = Where(Cast<bool>(Pad(Expand(1.0, Shape(x)), p)), Pad(x, p), v)
    """
    x, value = given(node, 0), given(node, 2)
    if x is None or value is None:
        return False
    build = builder(model, node)
    amounts = (node.inputs[1], None, *node.inputs[3:])
    one = build.const(np.asarray(1.0, np.float32), "one")
    inside = build.op("Pad", build.op("Expand", one, build.op("Shape", x)), *amounts)
    mask = build.op("Cast", inside, to=ir.DataType.BOOL.value)
    mask.type = ir.TensorType(ir.DataType.BOOL)
    zeros = build.op("Pad", x, *amounts)
    zeros.type = x.type
    build.op("Where", mask, zeros, value)
    build.commit(model.graph, node)
    return True
