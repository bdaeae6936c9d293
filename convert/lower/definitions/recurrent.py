"""LSTM, GRU and RNN with every option: step by step, or as a Scan of many or open steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import onnx
import onnx_ir as ir

from edgeinfer.convert.lower.definitions.body import Body, attribute, input_at
from edgeinfer.convert.verify.operators.activations import with_numbers
from edgeinfer.records import dataclass

MOST_STEPS = 128
"""Each step is nodes of its own, in either direction."""

_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_PLAIN = frozenset({"Sigmoid", "Tanh", "Relu", "Softsign", "Softplus"})
_WITH_NUMBERS: dict[str, tuple[tuple[str, float], ...]] = {
    "LeakyRelu": (("alpha", 0.01),),
    "ThresholdedRelu": (("alpha", 1.0),),
    "Elu": (("alpha", 1.0),),
    "HardSigmoid": (("alpha", 0.2), ("beta", 0.5)),
}
_NAMES = {name.lower(): name for name in (*_PLAIN, *_WITH_NUMBERS, "Affine", "ScaledTanh")}


@dataclass(frozen=True, slots=True)
class _Way:
    """One direction, as names of values: weights transposed for a product from the left.

    Attributes:
        products: (steps, batch, gates * hidden), of the input, with all biases that can be added
            before.
        gates: the same of each step, where steps are written one by one.
        r: (hidden, gates * hidden).
        kept: a GRU's recurrent bias of the new state, where it is reset with the product.
        peephole: (hidden,) each: input, output, forget.
    """

    products: str
    gates: list[str]
    r: str
    kept: str
    peephole: tuple[str, ...]
    functions: tuple[Callable[[str], str], ...]


def recurrent(node: ir.Node) -> onnx.FunctionProto | None:
    """Return the definition of a recurrent node; None where its sizes are open."""
    kind = node.op_type
    x, r = input_at(node, 0), input_at(node, 2)
    layout = int(attribute(node, "layout", 0))
    if x is None or r is None or x.shape is None or len(x.shape) != 3:
        return None
    steps, hidden = x.shape[1 if layout else 0], attribute(node, "hidden_size", None)
    if hidden is None and r.shape is not None:
        hidden = r.shape[2]
    if not isinstance(hidden, int) or steps == 0:
        return None
    body = Body(node)
    direction = attribute(node, "direction", "forward")
    ways = 2 if direction == "bidirectional" else 1
    functions = _functions(node, body, ways)
    if functions is None:
        return None
    transposed = body.op("Transpose", "i0", perm=[1, 0, 2]) if layout else "i0"
    lengths = body.given(4)
    results, last = [], []
    for way in range(ways):
        own = _way(node, body, transposed, way, functions[way])
        state = _first(node, body, way, layout)
        backwards = direction == "reverse" or way == 1
        step = partial(_STEPS[kind], node, body, hidden=hidden)
        if isinstance(steps, int) and steps <= MOST_STEPS:
            own = replace(own, gates=_one_by_one(body, own, steps))
            shown, state = _run(body, partial(step, own), own, state, lengths, backwards)
        else:
            given = [s or _zeros(body, own, hidden) for s in state]
            shown, state = _scan(node, body, step, own, given, lengths, backwards)
        results.append(body.op("Unsqueeze", shown, body.const([1])))
        last.append(state)
    _give(node, body, results, last, layout)
    return body.function()


def _functions(
    node: ir.Node, body: Body, ways: int
) -> list[tuple[Callable[[str], str], ...]] | None:
    default = _DEFAULTS[node.op_type]
    names = list(attribute(node, "activations", ())) or list(default) * ways
    if node.op_type == "RNN" and names == ["Tanh", "Tanh"]:
        # ONNX's own default names both directions.
        names = names[:ways]
    if len(names) != len(default) * ways:
        return None
    given = with_numbers(
        names, attribute(node, "activation_alpha", ()), attribute(node, "activation_beta", ())
    )
    found = [_function(body, *each) for each in given]
    if any(f is None for f in found):
        return None
    known = [f for f in found if f is not None]
    return [tuple(known[i * len(default) : (i + 1) * len(default)]) for i in range(ways)]


def _function(
    body: Body, name: str, alpha: float | None, beta: float | None
) -> Callable[[str], str] | None:
    kind = _NAMES.get(name.lower())
    if kind is None:
        return None
    if kind in _PLAIN:
        return lambda x: body.op(kind, x)
    a, b = 1.0 if alpha is None else float(alpha), float(beta or 0.0)
    if kind == "Affine":
        return lambda x: body.op("Add", body.op("Mul", x, body.const(a)), body.const(b))
    if kind == "ScaledTanh":
        inner = 1.0 if beta is None else b
        return lambda x: body.op(
            "Mul", body.op("Tanh", body.op("Mul", x, body.const(inner))), body.const(a)
        )
    numbers = zip(_WITH_NUMBERS[kind], (alpha, beta), strict=False)
    about = {n: default if value is None else float(value) for (n, default), value in numbers}
    return lambda x: body.op(kind, x, **about)


def _of_way(body: Body, value: str, way: int) -> str:
    return body.op("Gather", value, body.const(np.array(way, np.int64)), axis=0)


def _way(
    node: ir.Node,
    body: Body,
    x: str,
    way: int,
    functions: tuple[Callable[[str], str], ...],
) -> _Way:
    w, r = (body.op("Transpose", _of_way(body, f"i{i}", way), perm=[1, 0]) for i in (1, 2))
    products, kept = body.op("MatMul", x, w), ""
    if body.given(3):
        both = body.reshape(_of_way(body, "i3", way), 2, _GATES[node.op_type], -1)
        of_input, of_state = body.ops("Split", 2, both, axis=0, num_outputs=2)
        if node.op_type == "GRU" and attribute(node, "linear_before_reset", 0):
            gates, new = body.ops("Split", 2, of_state, body.const([2, 1]), axis=1)
            kept = body.reshape(new, -1)
            none = body.op("Mul", new, body.const(0.0))
            of_state = body.op("Concat", gates, none, axis=1)
        bias = body.reshape(body.op("Add", of_input, of_state), -1)
        products = body.op("Add", products, bias)
    peephole: tuple[str, ...] = ()
    if node.op_type == "LSTM" and body.given(7):
        peephole = tuple(body.ops("Split", 3, _of_way(body, "i7", way), axis=0, num_outputs=3))
    return _Way(products, [], r, kept, peephole, functions)


def _one_by_one(body: Body, way: _Way, steps: int) -> list[str]:
    rows = [way.products]
    if steps > 1:
        rows = body.ops("Split", steps, way.products, axis=0, num_outputs=steps)
    return [body.op("Squeeze", row, body.const([0])) for row in rows]


def _zeros(body: Body, way: _Way, hidden: int) -> str:
    """A state before the first step: (batch, hidden)."""
    batch = body.op("Shape", way.products, start=1, end=2)
    shape = body.op("Concat", batch, body.const([hidden]), axis=0)
    zeros = body.op("ConstantOfShape", shape)
    return body.op("CastLike", zeros, way.products)


def _first(node: ir.Node, body: Body, way: int, layout: int) -> list[str]:
    """States before the first step; empty names for zeros."""
    found = []
    for index in (5, 6)[: 2 if node.op_type == "LSTM" else 1]:
        value = body.given(index)
        if value and layout:
            value = body.op("Transpose", value, perm=[1, 0, 2])
        found.append(_of_way(body, value, way) if value else "")
    return found


def _run(
    body: Body,
    step: Callable[[int, list[str]], list[str]],
    way: _Way,
    state: list[str],
    lengths: str,
    backwards: bool,
) -> tuple[str, list[str]]:
    nothing, shown = body.const(0.0) if lengths else "", dict[int, str]()
    count = len(way.gates)
    for index in reversed(range(count)) if backwards else range(count):
        after = step(index, state)
        shown[index] = after[0]
        if lengths:
            place = body.const(np.array(index, np.int32))
            shown[index], after = _live(body, lengths, place, after, [s or nothing for s in state])
        state = after
    rows = [body.op("Unsqueeze", shown[i], body.const([0])) for i in range(count)]
    return body.op("Concat", *rows, axis=0), state


def _live(
    body: Body, lengths: str, place: str, after: list[str], state: list[str]
) -> tuple[str, list[str]]:
    """Return what a step shows and the states after it; sequences that have ended keep theirs."""
    live = body.op("Unsqueeze", body.op("Greater", lengths, place), body.const([1]))
    nothing = body.op("CastLike", body.const(0.0), after[0])
    shown = body.op("Where", live, after[0], nothing)
    return shown, [body.op("Where", live, a, b) for a, b in zip(after, state, strict=True)]


def _scan(
    node: ir.Node,
    body: Body,
    step: Callable[..., list[str]],
    way: _Way,
    state: list[str],
    lengths: str,
    backwards: bool,
) -> tuple[str, list[str]]:
    """Write one step as the body of a Scan over any number of them."""
    kind = (node.inputs[0].dtype or ir.DataType.FLOAT) if node.inputs[0] else ir.DataType.FLOAT

    def info(name: str, dtype: ir.DataType = kind, rank: int = 2) -> onnx.ValueInfoProto:
        return onnx.helper.make_tensor_value_info(name, dtype.value, [None] * rank)

    before, row, place = [body.name() for _ in state], body.name(), body.name()
    with body.inside() as nodes:
        after = step(replace(way, gates=[row]), index=0, state=before)
        shown = body.op("Identity", after[0])
        if lengths:
            shown, after = _live(body, lengths, place, after, before)
    given, taken, rows = [way.products], [*map(info, before), info(row)], 1
    if lengths:
        count = body.op("Shape", way.products, start=0, end=1)
        zero, one = (body.const(np.array(v, np.int64)) for v in (0, 1))
        indices = body.op("Range", zero, body.op("Squeeze", count), one)
        given.append(body.op("Cast", indices, to=ir.DataType.INT32.value))
        taken.append(info(place, ir.DataType.INT32, 0))
        rows = 2
    graph = onnx.helper.make_graph(nodes, "step", taken, [*map(info, after), info(shown)])
    back = int(backwards)
    found = body.ops(
        "Scan",
        len(state) + 1,
        *state,
        *given,
        body=graph,
        num_scan_inputs=rows,
        scan_input_directions=[back] * rows,
        scan_output_directions=[back],
    )
    return found[-1], found[:-1]


def _clipped(node: ir.Node, body: Body, x: str) -> str:
    bound = float(attribute(node, "clip", 0.0))
    return body.op("Clip", x, body.const(-bound), body.const(bound)) if bound else x


def _summed(body: Body, own: str, state: str, weights: str) -> str:
    return body.op("Add", own, body.op("MatMul", state, weights)) if state else own


def _rnn(
    node: ir.Node, body: Body, way: _Way, index: int, state: list[str], hidden: int
) -> list[str]:
    total = _summed(body, way.gates[index], state[0], way.r)
    return [way.functions[0](_clipped(node, body, total))]


def _lstm(
    node: ir.Node, body: Body, way: _Way, index: int, state: list[str], hidden: int
) -> list[str]:
    h, c = state
    squash, bend, show = way.functions
    total = _summed(body, way.gates[index], h, way.r)
    i, o, f, new = body.ops("Split", 4, total, axis=1, num_outputs=4)

    def seen(gate: str, place: int, cell: str) -> str:
        if not way.peephole or not cell:
            return gate
        return body.op("Add", gate, body.op("Mul", cell, way.peephole[place]))

    i = squash(_clipped(node, body, seen(i, 0, c)))
    fresh = body.op("Mul", i, bend(_clipped(node, body, new)))
    if c:
        if attribute(node, "input_forget", 0):
            f = body.op("Sub", body.const(1.0), i)
        else:
            f = squash(_clipped(node, body, seen(f, 2, c)))
        c = body.op("Add", body.op("Mul", f, c), fresh)
    else:
        c = fresh
    o = squash(_clipped(node, body, seen(o, 1, c)))
    return [body.op("Mul", o, show(c)), c]


def _gru(
    node: ir.Node, body: Body, way: _Way, index: int, state: list[str], hidden: int
) -> list[str]:
    (h,) = state
    squash, bend = way.functions
    z, r, new = body.ops("Split", 3, way.gates[index], axis=1, num_outputs=3)
    after = bool(attribute(node, "linear_before_reset", 0))
    gates, last = body.ops("Split", 2, way.r, body.const([2 * hidden, hidden]), axis=1)
    if h:
        of_z, of_r = body.ops("Split", 2, body.op("MatMul", h, gates), axis=1, num_outputs=2)
        z, r = body.op("Add", z, of_z), body.op("Add", r, of_r)
    z, r = (squash(_clipped(node, body, gate)) for gate in (z, r))
    if after:
        back = body.op("MatMul", h, last) if h else ""
        if way.kept:
            back = body.op("Add", back, way.kept) if back else way.kept
        new = body.op("Add", new, body.op("Mul", r, back)) if back else new
    elif h:
        new = body.op("Add", new, body.op("MatMul", body.op("Mul", r, h), last))
    new = bend(_clipped(node, body, new))
    kept = body.op("Mul", body.op("Sub", body.const(1.0), z), new)
    return [body.op("Add", kept, body.op("Mul", z, h)) if h else kept]


_STEPS = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}


def _give(
    node: ir.Node, body: Body, results: list[str], last: list[list[str]], layout: int
) -> None:
    found = [body.op("Concat", *results, axis=1) if len(results) > 1 else results[0]]
    for states in zip(*last, strict=True):
        rows = [body.op("Unsqueeze", s, body.const([0])) for s in states]
        found.append(body.op("Concat", *rows, axis=0) if len(rows) > 1 else rows[0])
    for index, value in enumerate(found[: len(node.outputs)]):
        if layout:
            value = body.op("Transpose", value, perm=[2, 0, 1, 3] if index == 0 else [1, 0, 2])
        body.give(index, value)
