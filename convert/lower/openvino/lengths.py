"""Ranges that lead nowhere, and recurrent layers whose sequences have lengths of their own."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.families import MOVES
from edgeinfer.convert.lower.faults import builder
from edgeinfer.convert.lower.rules import Rule, by_definition, given

_GROWING = MOVES | {"Add", "Cast", "Concat", "Mul", "Max", "ReduceProd", "ReduceSum"}
"""Operators that make a size, or more, of sizes."""

_DEPTH = 8


def _backward(node: ir.Node) -> str:
    start, limit, step = (given(node, i) for i in range(3))
    if start is None or limit is None or step is None:
        return ""
    known = [ir.convenience.get_const_tensor(v) for v in (start, limit, step)]
    if all(k is not None for k in known):
        return ""
    first, _, by = known
    is_forward = by is not None and bool(np.all(by.numpy() > 0))
    from_zero = first is not None and bool(np.all(first.numpy() <= 0))
    if is_forward and from_zero and _is_size(limit, _DEPTH):
        return ""
    return "a range whose limit lies behind its start has elements"


def _is_size(value: ir.Value, depth: int) -> bool:
    """Whether a value is made of sizes alone, none taken from another."""
    known = ir.convenience.get_const_tensor(value)
    if known is not None:
        return known.dtype.is_integer() and bool(np.all(known.numpy() >= 0))
    node = value.producer()
    if node is None or not depth or node.domain:
        return False
    if node.op_type in ("Shape", "Size"):
        return True
    if node.op_type not in _GROWING:
        return False
    # Of what is moved, axes and places say nothing.
    taken = node.inputs[:1] if node.op_type in (*MOVES, "Cast") else node.inputs
    return all(v is not None and _is_size(v, depth - 1) for v in taken)


def stop_at_start(model: ir.Model, node: ir.Node) -> bool:
    """Have a range end where it begins, where its limit lies behind.

    Given::

        y = Range(start, limit, step)

    Result::

        end = Where(Greater(step, 0), Max(start, limit), Min(start, limit))
        y = Range(start, end, step)
    """
    start, limit, step = (given(node, i) for i in range(3))
    if start is None or limit is None or step is None or start.dtype is None:
        return False
    build = builder(model, node)
    known = ir.convenience.get_const_tensor(step)
    if known is not None:
        forward = bool(np.all(known.numpy() > 0))
        end = build.op("Max" if forward else "Min", start, limit)
    else:
        zero = build.const(np.zeros((), start.dtype.numpy()), "zero")
        ends = (build.op(op, start, limit) for op in ("Max", "Min"))
        end = build.op("Where", build.op("Greater", step, zero), *ends)
    build.op("Range", start, end, step)
    build.nodes[-1].meta[_STOPPED] = True
    build.commit(model.graph, node)
    return True


_STOPPED = "ends no earlier than it begins"


def _own_lengths(node: ir.Node) -> str:
    x, lengths = given(node, 0), given(node, 4)
    if x is None or lengths is None:
        return ""
    known = ir.convenience.get_const_tensor(lengths)
    longest = None if x.shape is None else x.shape[0]
    if known is not None and isinstance(longest, int) and np.all(known.numpy() == longest):
        return ""
    return "lengths of sequences are ignored"


LENGTHS: tuple[Rule, ...] = (
    Rule(
        ops=frozenset({"Range"}),
        fault=lambda node: "" if _STOPPED in node.meta else _backward(node),
        source="openvino 2026.4.1: Range(0, -2, 1) gives [0, 1]",
        repair=stop_at_start,
    ),
    Rule(
        ops=frozenset({"LSTM", "GRU", "RNN"}),
        fault=_own_lengths,
        source="openvino 2026.4.1: a GRU of five steps gives five where 2 are requested",
        repair=by_definition,
    ),
)
"""What the CPU plugin takes for another number of steps."""
