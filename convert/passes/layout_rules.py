"""What each operator does when its operands are stored in another order of axes.

A ``Perm`` says how a value is stored: axis ``i`` of what is stored is axis ``perm[i]`` of what ONNX
means. A rule gets the order of one operand (or, backwards, of the result) and answers with a
``Move``: the orders of all operands and results with which the operator computes the same without
any transpose, and the edit of its attributes and constants that goes with it. It answers None where
there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.families import REDUCTIONS
from edgeinfer.convert.passes.infra import (
    add_initializer,
    attr,
    constant,
    dims_of,
    input_at,
    ints,
    rank,
)
from edgeinfer.convert.passes.layout_einsum import einsum
from edgeinfer.convert.passes.layout_moves import (
    PER_TRANSPOSE,
    Editor,
    Move,
    Perm,
    Rule,
    inverse,
    weight,
)
from edgeinfer.convert.passes.layout_reshape import reshape
from edgeinfer.types import Array


def _axis(node: ir.Node, name: str, default: int, perm: Perm) -> int:
    return perm.index(attr(node, name, default) % len(perm))


def _set_axis(node: ir.Node, axis: int) -> None:
    node.attributes["axis"] = ir.AttrInt64("axis", axis)


# Elementwise, with broadcasting.


def elementwise(node: ir.Node, perm: Perm, backwards: bool) -> Move | None:
    """Operands of the result's rank are stored alike; others are brought to its rank."""
    r = rank(node.outputs[0])
    if r != len(perm) or any(v is not None and rank(v) is None for v in node.inputs):
        return None
    inputs: dict[int, Perm] = {}
    fixed: list[int] = []
    lifted: list[int] = []
    for index, value in enumerate(node.inputs):
        if value is None or _is_one(value):
            continue
        if constant(value) is not None:
            fixed.append(index)
        elif rank(value) == r:
            inputs[index] = perm
        else:
            lifted.append(index)
    if not inputs:
        return None

    def edit(editor: Editor, node: ir.Node) -> None:
        for index in fixed:
            editor.constant(node, index, _stored(_array(node, index), perm))
        for index in lifted:
            value = node.inputs[index]
            if value is not None:
                node.replace_input_with(index, _lift(editor, node, value, perm))

    return Move(inputs, perm, edit, tuple(lifted))


def _is_one(value: ir.Value) -> bool:
    return all(d == 1 for d in dims_of(value)) and value.shape is not None


def _array(node: ir.Node, index: int) -> Array:
    tensor = constant(node.inputs[index])
    if tensor is None:
        raise ValueError(f"operand {index} of {node.name!r} is not constant")
    return tensor.numpy()


def _stored(array: Array, perm: Perm) -> Array:
    """Bring a broadcast constant into an order; leading axes of size 1 are left out again."""
    full = array.reshape((1,) * (len(perm) - array.ndim) + array.shape).transpose(perm)
    while full.ndim > 1 and full.shape[0] == 1:
        full = full[0]
    return np.ascontiguousarray(full)


def _lift(editor: Editor, node: ir.Node, value: ir.Value, perm: Perm) -> ir.Value:
    missing = len(perm) - len(dims_of(value))
    base = f"{value.name}/rank"
    axes = add_initializer(editor.graph, editor.namer.fresh(f"{base}_axes"), np.arange(missing))
    full = editor.insert(node, "Unsqueeze", [value, axes], {}, base)
    full.type = value.type
    full.shape = ir.Shape([*[1] * missing, *dims_of(value)])
    return editor.transpose(node, full, perm)


# Same rank, with an axis.


def _along(default: int | None = None, last_is_best: bool = False) -> Rule:
    """Operators with an ``axis`` attribute whose data operands and results have one rank."""

    def rule(node: ir.Node, perm: Perm, backwards: bool) -> Move | None:
        if any(rank(v) != len(perm) for v in node.outputs):
            return None
        if default is None and "axis" not in node.attributes:
            return None
        inputs: dict[int, Perm] = {}
        fixed: list[int] = []
        for index, value in enumerate(node.inputs):
            if value is None or rank(value) != len(perm):
                continue
            if constant(value) is not None:
                fixed.append(index)
            else:
                inputs[index] = perm
        if not inputs:
            return None
        axis = _axis(node, "axis", default or 0, perm)
        now = attr(node, "axis", default) % len(perm)

        def edit(editor: Editor, node: ir.Node) -> None:
            for index in fixed:
                editor.constant(
                    node, index, np.ascontiguousarray(_array(node, index).transpose(perm))
                )
            _set_axis(node, axis)

        size = weight(node.outputs[0]) if last_is_best else 0
        end = len(perm) - 1
        pieces = [node.inputs[i] for i in inputs] if node.op_type == "Concat" else []
        return Move(
            inputs,
            perm,
            edit,
            first=(0 if now == end else 2 * size) + _pieces(pieces, now, end),
            last=(0 if axis == end else 2 * size + 1) + _pieces(pieces, now, perm[end]),
        )

    return rule


NARROW = 16
"""Elements below which a copy takes longer to begin than to do."""


def _pieces(parts: Sequence[ir.Value | None], axis: int, last: int) -> int:
    """What cutting or joining costs where the axis comes last and the parts of it are narrow."""
    if axis != last:
        return 0
    known = [p for p in parts if p is not None and p.shape is not None]
    sizes = [p.shape[axis] for p in known if p.shape is not None]
    narrow = [p for p, s in zip(known, sizes, strict=True) if isinstance(s, int) and s < NARROW]
    return sum(weight(p) - PER_TRANSPOSE for p in narrow) // 2


def split(node: ir.Node, perm: Perm, backwards: bool) -> Move | None:
    """The sizes stay as they are; they are no data even at rank 1."""
    if any(rank(v) != len(perm) for v in node.outputs):
        return None
    axis, now = _axis(node, "axis", 0, perm), attr(node, "axis", 0) % len(perm)
    return Move(
        {0: perm},
        perm,
        lambda _, n: _set_axis(n, axis),
        first=_pieces(node.outputs, now, len(perm) - 1),
        last=_pieces(node.outputs, now, perm[-1]),
    )


def topk(node: ir.Node, perm: Perm, backwards: bool) -> Move | None:
    """Values and indices come in the same order."""
    axis = _axis(node, "axis", -1, perm)
    end, size = len(perm) - 1, weight(node.outputs[0])
    now = attr(node, "axis", -1) % len(perm)
    return Move(
        {0: perm},
        perm,
        lambda _, n: _set_axis(n, axis),
        first=0 if now == end else 2 * size,
        last=0 if axis == end else 2 * size + 1,
    )


def cumsum(node: ir.Node, perm: Perm, backwards: bool) -> Move | None:
    """The axis is a constant operand."""
    axis = ints(node.inputs[1])
    if axis is None or len(axis) != 1:
        return None
    index = np.array(perm.index(axis[0] % len(perm)), np.int64)
    return Move({0: perm}, perm, lambda e, n: e.constant(n, 1, index))


def quantize(node: ir.Node, perm: Perm, backwards: bool) -> Move | None:
    """Scales per tensor or along one axis."""
    if attr(node, "block_size", 0) or rank(node.inputs[0]) != len(perm):
        return None
    if constant(node.inputs[0]) is not None:
        return None
    axis = _axis(node, "axis", 1, perm)
    return Move({0: perm}, perm, lambda _, n: _set_axis(n, axis))


def gather(node: ir.Node, perm: Perm, backwards: bool) -> Move | None:
    """One index, or a vector of them; more axes of indices are left alone."""
    index_rank = rank(node.inputs[1])
    if backwards or index_rank not in {0, 1} or constant(node.inputs[0]) is not None:
        return None
    at = attr(node, "axis", 0) % len(perm)
    axis = perm.index(at)
    output = perm if index_rank == 1 else _without(perm, {at})
    return Move({0: perm}, output, lambda _, n: _set_axis(n, axis))


def _without(perm: Perm, axes: set[int]) -> Perm:
    """The order that is left when axes go."""
    kept = sorted(set(perm) - axes)
    return tuple(kept.index(p) for p in perm if p not in axes)


# Operators with one entry per axis in a constant operand.


def pad(node: ir.Node, perm: Perm, backwards: bool) -> Move | None:
    """Amounts for all axes are permuted, or the axes they are for are renamed."""
    axes = input_at(node, 3)
    if axes is not None:
        return _renamed_axes(node, perm)
    amounts = ints(node.inputs[1])
    if amounts is None or len(amounts) != 2 * len(perm):
        return None
    r = len(perm)
    new = np.array([amounts[p] for p in perm] + [amounts[r + p] for p in perm], np.int64)
    return Move({0: perm}, perm, lambda e, n: e.constant(n, 1, new))


def slices(node: ir.Node, perm: Perm, backwards: bool) -> Move | None:
    """Only the names of the axes change."""
    if input_at(node, 3) is not None:
        move = _renamed_axes(node, perm)
        axes = ints(input_at(node, 3)) or []
        if move is None or len(axes) != 1:
            return move
        now = axes[0] % len(perm)
        costs = [_pieces(node.outputs, now, last) for last in (len(perm) - 1, perm[-1])]
        return replace(move, first=costs[0], last=costs[1])
    starts = node.inputs[1]
    dims = [] if starts is None else dims_of(starts)
    if len(dims) != 1 or not isinstance(dims[0], int):
        return None
    kind = np.int64 if starts is None or starts.dtype is None else starts.dtype.numpy()
    new = np.array([perm.index(i) for i in range(dims[0])], kind)

    def edit(editor: Editor, node: ir.Node) -> None:
        value = add_initializer(editor.graph, editor.namer.fresh(f"{node.name}_axes"), new)
        rest = [node.inputs[4]] if len(node.inputs) > 4 else []
        node.resize_inputs(4 + len(rest))
        node.replace_input_with(3, value)

    return Move({0: perm}, perm, edit)


def _renamed_axes(node: ir.Node, perm: Perm) -> Move | None:
    axes = ints(input_at(node, 3))
    if axes is None:
        return None
    new = np.array([perm.index(a % len(perm)) for a in axes], np.int64)
    return Move({0: perm}, perm, lambda e, n: e.constant(n, 3, new))


def tile(node: ir.Node, perm: Perm, backwards: bool) -> Move | None:
    """One count per axis."""
    counts = ints(node.inputs[1])
    if counts is None or len(counts) != len(perm) or constant(node.inputs[0]) is not None:
        return None
    new = np.array([counts[p] for p in perm], np.int64)
    return Move({0: perm}, perm, lambda e, n: e.constant(n, 1, new))


def expand(node: ir.Node, perm: Perm, backwards: bool) -> Move | None:
    """The wanted shape is brought to the data's rank."""
    sizes = ints(node.inputs[1])
    same = rank(node.inputs[0]) == rank(node.outputs[0]) == len(perm)
    if sizes is None or not same or constant(node.inputs[0]) is not None:
        return None
    full = [1] * (len(perm) - len(sizes)) + sizes
    new = np.array([full[p] for p in perm], np.int64)
    return Move({0: perm}, perm, lambda e, n: e.constant(n, 1, new))


def resize(node: ir.Node, perm: Perm, backwards: bool) -> Move | None:
    """Sizes and scales belong to the axes of an attribute."""
    axes = attr(node, "axes") or tuple(range(len(perm)))
    new = [perm.index(a % len(perm)) for a in axes]

    def edit(editor: Editor, node: ir.Node) -> None:
        node.attributes["axes"] = ir.AttrInt64s("axes", new)

    return Move({0: perm}, perm, edit)


def reduction(node: ir.Node, perm: Perm, backwards: bool) -> Move | None:
    """Axes are renamed; those that go leave the order of the others."""
    given = input_at(node, 1)
    axes = ints(given)
    if given is not None and axes is None:
        return None
    if not axes:
        if attr(node, "noop_with_empty_axes", 0):
            return Move({0: perm}, perm)
        axes = list(range(len(perm)))
    names = {a % len(perm) for a in axes}
    new = np.array(sorted(perm.index(a) for a in names), np.int64)
    keeps = bool(attr(node, "keepdims", 1))
    if backwards and not keeps:
        return None

    def edit(editor: Editor, node: ir.Node) -> None:
        if given is not None:
            editor.constant(node, 1, new)

    return Move({0: perm}, perm if keeps else _without(perm, names), edit)


def arg(node: ir.Node, perm: Perm, backwards: bool) -> Move | None:
    """ArgMax and ArgMin."""
    at = attr(node, "axis", 0) % len(perm)
    keeps = bool(attr(node, "keepdims", 1))
    if backwards and not keeps:
        return None
    axis = perm.index(at)
    output = perm if keeps else _without(perm, {at})
    return Move({0: perm}, output, lambda _, n: _set_axis(n, axis))


def transpose(node: ir.Node, perm: Perm, backwards: bool) -> Move | None:
    """Stored alike before and after: nothing moves."""
    t = attr(node, "perm") or tuple(reversed(range(len(perm))))
    if backwards:
        return Move({0: tuple(t[p] for p in perm)}, perm)
    back = inverse(tuple(t))
    return Move({0: perm}, tuple(back[p] for p in perm))


def undone(node: ir.Node) -> Move | None:
    """A Transpose whose result is stored as its operand is."""
    perm = attr(node, "perm") or tuple(reversed(range(rank(node.inputs[0]) or 0)))
    return Move({0: tuple(range(len(perm)))}, inverse(tuple(perm))) if perm else None


_UNARY = frozenset(
    {
        *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Cast", "Ceil"),
        *("Celu", "Clip", "Cos", "Cosh", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid"),
        *("HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Log", "Mish", "Neg", "Not"),
        *("Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh"),
        *("Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu"),
    }
)

_BROADCAST = frozenset(
    {
        *("Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal"),
        *("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul"),
        *("Or", "PRelu", "Pow", "Sub", "Sum", "Where", "Xor"),
    }
)

RULES: dict[str, Rule] = {
    **dict.fromkeys(_UNARY | _BROADCAST, elementwise),
    **dict.fromkeys(REDUCTIONS, reduction),
    **dict.fromkeys(("Reshape", "Squeeze", "Unsqueeze", "Flatten"), reshape),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _along(-1, last_is_best=True)),
    **dict.fromkeys(("Hardmax", "LpNormalization"), _along(-1)),
    **dict.fromkeys(("ArgMax", "ArgMin"), arg),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), quantize),
    "Concat": _along(),
    "CumSum": cumsum,
    "Einsum": einsum,
    "Expand": expand,
    "Gather": gather,
    "GatherElements": _along(0),
    "Pad": pad,
    "Resize": resize,
    "ScatterElements": _along(0),
    "Slice": slices,
    "Split": split,
    "Tile": tile,
    "TopK": topk,
    "Transpose": transpose,
}
"""Operators that compute in any order."""
