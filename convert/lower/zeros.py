"""The sign of zero, where a later number hangs on it: a quotient by minus zero is minus infinity.

What an engine loses it in is a table of the engine's own. Elsewhere zeros of both signs are one
number, and nothing is written for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.faults import builder
from edgeinfer.convert.lower.nan import FLOATS
from edgeinfer.convert.lower.rules import attribute, given
from edgeinfer.convert.lower.single import walk
from edgeinfer.convert.passes.control_flow import connect
from edgeinfer.convert.passes.inference import infer
from edgeinfer.convert.passes.infra import Namer, bodies, is_op
from edgeinfer.convert.passes.rewrite import ReplacementBuilder
from edgeinfer.errors import Remarks

Form = Literal["", "operand", "plus", "product", "chosen"]
"""How a zero gets its sign: of the first operand, none, as a product, of what is chosen."""

_ALL = frozenset({
    *("Add", "Concat", "Max", "Mean", "Min", "Mul", "Sub", "Sum", "Where"),
})  # fmt: skip
_FIRST = frozenset({
    *("Asin", "Asinh", "Atan", "Atanh", "Cast", "Ceil", "Celu", "Clip", "Div", "Elu", "Erf"),
    *("Expand", "Flatten", "Floor", "Gather", "GatherElements", "GatherND", "Identity"),
    *("LeakyRelu", "MaxPool", "Mod", "Neg", "PRelu", "Pad", "ReduceMax", "ReduceMin", "Relu"),
    *("Reshape", "Round", "ScatterElements", "Selu", "Shrink", "Sign", "Sin", "Sinh", "Slice"),
    *("Softsign", "Split", "Sqrt", "Squeeze", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Tile"),
    *("Transpose", "Unsqueeze"),
})  # fmt: skip
"""Operators whose zeros have a sign of all their operands, or of the first."""


def keep(model: ir.Model, loses: Callable[[ir.Node], Form], notes: Remarks) -> None:
    """Write, in place, zeros with their sign where something is divided by them.

    Given::

        y = Tanh(x); z = Reciprocal(y)

    Result::

        t = Tanh(x); y = Where(Equal(t, 0), Mul(x, 0), t); z = Reciprocal(y)
    """
    seen = _divisors(model)
    found = [(name, n, loses(n)) for name, n in walk(model) if seen.intersection(n.outputs)]
    for name, node, form in found:
        if form and not node.domain and node.outputs[0].dtype in FLOATS:
            _write(model, node, form)
            notes.add(f"{name}: zeros keep their sign, as something is divided by them")
    if any(form for _, _, form in found):
        infer(model)


def _divisors(model: ir.Model) -> set[ir.Value]:
    """Floats whose sign at zero is seen by what is made of them."""
    seen: set[ir.Value] = set()
    for _, node in walk(model):
        if is_op(node, "Reciprocal"):
            _follow(node.inputs[0], seen)
        elif is_op(node, "Div"):
            _follow(node.inputs[1], seen)
        elif is_op(node, "Pow") and not _is_power(node.inputs[1]):
            _follow(node.inputs[0], seen)
    return seen


def _is_power(exponent: ir.Value | None) -> bool:
    known = None if exponent is None else ir.convenience.get_const_tensor(exponent)
    return known is not None and bool(np.all(known.numpy() >= 0))


def _follow(value: ir.Value | None, seen: set[ir.Value]) -> None:
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if value is None or value in seen or value.dtype not in (*FLOATS, None):
            continue
        seen.add(value)
        if (node := value.producer()) is not None:
            waiting += _sources(node)


def _sources(node: ir.Node) -> list[ir.Value | None]:
    """What the sign of a zero of an operator comes from; none where it has no zero."""
    if inner := [v for g in bodies(node) for v in g.outputs]:
        return [*inner, *node.inputs]
    if node.domain:
        return []
    taken = list(node.inputs)
    if node.op_type in ("Add", "Sub", "Sum", "Max", "Clip"):
        known = [ir.convenience.get_const_tensor(v) for v in taken if v is not None]
        numbers = [k.numpy() for k in known if k is not None and k.dtype in FLOATS]
        away = [bool(np.all(n > 0)) for n in numbers]
        if node.op_type in ("Add", "Sub", "Sum"):
            away = [bool(np.all(n != 0)) for n in numbers]
        if any(away[:1] if node.op_type == "Clip" else away):
            return []
    return taken if node.op_type in _ALL else taken[:1] if node.op_type in _FIRST else []


def _write(model: ir.Model, node: ir.Node, form: Form) -> None:
    build, kind = builder(model, node), node.outputs[0].dtype
    x = node.inputs[0]
    if kind is None or x is None:
        return

    def number(value: float, hint: str) -> ir.Value:
        return build.const(np.asarray(value, kind.numpy()), hint)

    if form == "product":
        made = build.op("Mul", x, number(-1.0, "minus"))
    else:
        made = _again(build, node)
        zero = number(0.0, "zero")
        is_zero = build.op("Equal", made, zero)
        if form == "chosen":
            sign = _of_chosen(build, node, is_zero, (zero, number(-1.0, "minus"), number(1, "one")))
            made = build.op("Mul", made, sign)
        else:
            instead = build.op("Mul", x, zero) if form == "operand" else zero
            made = build.op("Where", is_zero, instead, made)
    made.type = node.outputs[0].type
    build.insert(model.graph, node)
    connect(node, [made], Namer(model))


def _again(build: ReplacementBuilder, node: ir.Node) -> ir.Value:
    copy = ir.Node("", node.op_type, node.inputs, list(node.attributes.values()), num_outputs=1)
    copy.outputs[0].type, copy.outputs[0].shape = node.outputs[0].type, node.outputs[0].shape
    build.nodes.append(copy)
    return copy.outputs[0]


def _of_chosen(
    build: ReplacementBuilder,
    node: ir.Node,
    is_zero: ir.Value,
    numbers: tuple[ir.Value, ir.Value, ir.Value],
) -> ir.Value:
    """-1 where minus zero was chosen, which one over it tells."""
    zero, minus, one = numbers
    over = [build.op("Div", one, v) for v in node.inputs[1:]]
    below = build.op("Less", build.op("Where", node.inputs[0], *over), zero)
    return build.op("Where", build.op("And", is_zero, below), minus, one)


def of_remainder(node: ir.Node) -> Form:
    """A remainder has the sign of the dividend, or of the divisor."""
    return "operand" if attribute(node, "fmod", 0) else ""


def of_sum(node: ir.Node) -> Form:
    """A sum with zero, which some engines take for the other operand."""
    first, second = (_known_sign(given(node, i)) for i in (0, 1))
    if node.op_type == "Add":
        return "plus" if first == 1 or second == 1 else ""
    return "plus" if first == 1 or second == -1 else ""


def _known_sign(value: ir.Value | None) -> int:
    """The sign of a known zero; 0 of anything else."""
    known = None if value is None else ir.convenience.get_const_tensor(value)
    if known is None or known.dtype not in FLOATS or known.size > 1 or np.any(known.numpy()):
        return 0
    return -1 if np.any(np.signbit(known.numpy())) else 1
