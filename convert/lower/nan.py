"""NaN that engines drop: which inputs may hold none, and how one that arises inside stays.

What an engine makes a number of is a table of the engine's own, by operator.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import onnx_ir as ir

from edgeinfer.bundle.values import FINITE, KEY, NOT_NAN
from edgeinfer.convert.lower.faults import builder
from edgeinfer.convert.lower.rules import given
from edgeinfer.convert.lower.single import has_subgraph, walk
from edgeinfer.convert.passes.control_flow import connect
from edgeinfer.convert.passes.inference import infer
from edgeinfer.convert.passes.infra import Namer, bodies
from edgeinfer.convert.passes.rewrite import ReplacementBuilder
from edgeinfer.errors import Remarks

FLOATS = frozenset(
    {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}
)

KEPT = "keeps NaN"
"""Metadata of a node next to which another one looks for NaN."""

WEIGHED = "weighs all"
"""Metadata of a product with weights, most of them zero: an infinity makes NaN of what it meets."""

_POOLED = frozenset({
    *("GlobalMaxPool", "MaxPool", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMin"),
})  # fmt: skip
_ELEMENTS = frozenset(
    {"Celu", "Clip", "Cosh", "Exp", "HardSigmoid", "HardSwish", "Max", "Min", "Relu"}
)
"""Operators of windows and axes, and of each element for itself, whose NaN can be kept."""

_UNDEFINED = frozenset({
    *("Acos", "Acosh", "Asin", "Atanh", "Div", "Log", "Mod", "Pow", "ReduceLogSum", "Sqrt"),
})  # fmt: skip
"""Operators without a result for some finite numbers."""

_POSITIVE = frozenset({"Exp", "Softplus", "Sigmoid", "Softmax", "Cosh", "ReduceSumExp"})
_NOT_NEGATIVE = frozenset({
    *("Abs", "Relu", "ReduceL1", "ReduceL2", "ReduceSumSquare", "Shape", "Size", "IsNaN"),
})  # fmt: skip
_STAYS = frozenset({
    *("AveragePool", "Cast", "Concat", "Expand", "Flatten", "Gather", "GlobalAveragePool"),
    *("GlobalMaxPool", "Identity", "MaxPool", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd"),
    *("ReduceSum", "Reshape", "Slice", "Sqrt", "Squeeze", "Sum", "Transpose", "Unsqueeze"),
})  # fmt: skip
"""Operators whose result is positive, or not negative, where all their operands are."""


def reached(model: ir.Model) -> tuple[set[ir.Node], set[ir.Node]]:
    """Nodes of the main graph that floats of an input flow into, and those that no NaN does.

    What is only compared, or picked out of a table by what was compared, holds none of them: trees
    ask whether a sample is NaN, and then it is gone. What is missing may be filled in.
    """
    held = {v for v in model.graph.inputs if v.dtype in FLOATS or v.dtype is None}
    filled: set[ir.Value] = set()
    found: tuple[set[ir.Node], set[ir.Node]] = set(), set()
    for node in model.graph:
        operands = {v for v in node.inputs if v is not None}
        missing = bool(held & operands) or has_subgraph(node)
        if not missing and not filled & operands:
            continue
        found[not missing].add(node)
        results = {v for v in node.outputs if v.dtype in FLOATS or v.dtype is None}
        (held if missing and not _fills_in(node, held | filled) else filled).update(results)
    return found


def _fills_in(node: ir.Node, held: Collection[ir.Value]) -> bool:
    """Whether it is ``Where(IsNaN(x), c, x)``, whose ``c`` comes of no input."""
    if node.op_type != "Where" or node.domain or len(node.inputs) != len(("c", "a", "b")):
        return False
    condition, constant, x = node.inputs
    test = condition.producer() if condition is not None else None
    asked = test is not None and test.op_type == "IsNaN" and test.inputs[0] is x
    return asked and constant not in held


def input_constraint(
    model: ir.Model,
    loses: Callable[[ir.Node], bool],
    weighs: Callable[[ir.Node], bool] = lambda _: False,
) -> dict[str, str]:
    """Return which values inputs may have, ``not_nan`` or ``finite``; nothing where any.

    Args:
        model: that is written.
        loses: says whether a node makes a number of NaN.
        weighs: says whether a node becomes a product with weights of which most are zero.
    """
    if not any(v.dtype in FLOATS for v in model.graph.inputs):
        return {}
    missing, _ = reached(model)
    nodes = [n for _, n in walk(model) if n.graph is not model.graph or n in missing]
    if any(WEIGHED in n.meta or weighs(n) for n in nodes):
        return {KEY: FINITE}
    return {KEY: NOT_NAN} if any(KEPT not in n.meta and loses(n) for n in nodes) else {}


def keep(model: ir.Model, loses: Callable[[ir.Node], bool], notes: Remarks) -> None:
    """Have NaN that arises inside a model stay where the engine would drop it, in place.

    Given::

        y = MaxPool(Log(x))

    Result::

        l = Log(x)
        y = Where(MaxPool(Cast<float>(IsNaN(l))) > 0, NaN, MaxPool(l))
    """
    arising = _arising(model)
    if not arising:
        return
    found = 0
    for name, node in list(walk(model)):
        held = [v for v in node.inputs if v in arising]
        takes = not node.domain and node.op_type in _POOLED | _ELEMENTS
        if not held or KEPT in node.meta or not takes or not loses(node):
            continue
        _keep(model, node, [v for v in held if v is not None])
        notes.add(f"{name}: NaN that may arise before it stays NaN")
        found += 1
    if found:
        infer(model)


def _keep(model: ir.Model, node: ir.Node, held: list[ir.Value]) -> None:
    build = builder(model, node)
    wrong = build.op("IsNaN", held[0])
    for value in held[1:]:
        wrong = build.op("Or", wrong, build.op("IsNaN", value))
    made = _alike(build, node, node.inputs)
    seen = [wrong]
    if node.op_type in _POOLED:
        ones = build.op("Cast", wrong, to=ir.DataType.FLOAT.value)
        ones.dtype = ir.DataType.FLOAT
        seen = _alike(build, node, [ones, *node.inputs[1:]])
        wrong = build.op("Greater", seen[0], build.const(np.zeros((), np.float32), "zero"))
    kind = ir.DataType.FLOAT if made[0].dtype is None else made[0].dtype
    seen[0] = build.const(np.asarray(np.nan, kind.numpy()), "nan")
    results = [build.op("Where", wrong, a, b) for a, b in zip(seen, made, strict=True)]
    for old, new in zip(node.outputs, results, strict=True):
        new.type = old.type
    build.insert(model.graph, node)
    connect(node, results, Namer(model))


def _alike(
    build: ReplacementBuilder, node: ir.Node, inputs: Sequence[ir.Value | None]
) -> list[ir.Value]:
    """Add the same operator of other operands."""
    first = inputs[0]
    is_same = first is node.inputs[0]
    op = "ReduceMax" if not is_same and node.op_type.startswith("Reduce") else node.op_type
    stated, count = list(node.attributes.values()), len(node.outputs)
    made = ir.Node("", op, inputs, stated, num_outputs=count)
    made.meta[KEPT] = True
    for old, new in zip(node.outputs, made.outputs, strict=True):
        new.type, new.shape = old.type, old.shape
    if not is_same:
        made.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    build.nodes.append(made)
    return list(made.outputs)


def _arising(model: ir.Model) -> set[ir.Value]:
    """Floats that may be NaN although no input is and nothing leaves the range of its type."""
    found = {v for g in model.graphs() for v in g.initializers.values() if _holds_nan(v)}
    for _ in range(_ROUNDS):
        before = len(found)
        for _, node in walk(model):
            _pass_on(node, found)
        if len(found) == before:
            break
    return found


_ROUNDS = 4
"""Through bodies of loops and what they carry."""


def _pass_on(node: ir.Node, found: set[ir.Value]) -> None:
    inner = [v for g in bodies(node) for n in g for v in n.outputs]
    taken = [*(v for v in node.inputs if v is not None), *inner]
    arises = any(v in found for v in taken) and not _fills_in(node, found)
    if not (arises or _is_undefined(node) or any(map(_holds_nan, node.outputs))):
        return
    carried = [v for g in bodies(node) for v in g.inputs]
    found.update(v for v in (*node.outputs, *carried) if v.dtype in (*FLOATS, None))


def _holds_nan(value: ir.Value) -> bool:
    known = ir.convenience.get_const_tensor(value)
    if known is None or known.dtype not in FLOATS or known.size > _READ:
        return False
    return bool(np.isnan(known.numpy()).any())


_READ = 1 << 12
"""Elements up to which constants are looked at; weights with NaN are none."""


def _is_undefined(node: ir.Node) -> bool:
    """Whether an operator has no result for some finite operands that it may get."""
    if node.domain or node.op_type not in _UNDEFINED or node.outputs[0].dtype not in FLOATS:
        return False
    first, second = given(node, 0), given(node, 1)
    if node.op_type in ("Log", "Sqrt", "ReduceLogSum"):
        return not _is_above(first, or_zero=True)
    if node.op_type in ("Div", "Mod"):
        # Something by zero is infinite, and only zero by zero is nothing.
        return not (_is_never_zero(second) or _is_never_zero(first))
    if node.op_type == "Pow":
        raised = None if second is None else ir.convenience.get_const_tensor(second)
        whole = raised is not None and bool(np.all(raised.numpy() % 1 == 0))
        return not (whole or _is_above(first, or_zero=True))
    return True


def _is_never_zero(value: ir.Value | None) -> bool:
    known = None if value is None else ir.convenience.get_const_tensor(value)
    return _is_above(value) if known is None else bool(np.all(known.numpy() != 0))


def _is_above(value: ir.Value | None, *, or_zero: bool = False, depth: int = 12) -> bool:
    """Whether all elements are proven to be positive, or not negative."""
    if value is None or not depth:
        return False
    if (known := ir.convenience.get_const_tensor(value)) is not None:
        numbers = known.numpy()
        return bool(np.all(numbers >= 0 if or_zero else numbers > 0))
    node = value.producer()
    if node is None or node.domain:
        return False
    taken = [v for v in node.inputs if v is not None]

    def above(*which: ir.Value, zero: bool = or_zero, ask: Callable[..., bool] = all) -> bool:
        return ask(_is_above(v, or_zero=zero, depth=depth - 1) for v in which)

    op = node.op_type
    if op in _POSITIVE or (or_zero and op in _NOT_NEGATIVE):
        return True
    if op in ("Add", "Sum"):
        return above(*taken, zero=True) and (or_zero or above(*taken, ask=any))
    if op == "Max" or (op == "Clip" and len(taken) > 1):
        return above(*taken, ask=any) if op == "Max" else above(taken[1])
    if op in ("Mul", "MatMul", "Pow"):
        even = op == "Pow" and _is_even(taken[1])
        squared = or_zero and (even or (op == "Mul" and taken[0] is taken[1]))
        return squared or above(*taken[: 1 if op == "Pow" else None])
    if op == "Div":
        return above(*taken)
    return op in _STAYS and above(*(taken if op in ("Concat", "Sum") else taken[:1]))


def _is_even(value: ir.Value) -> bool:
    known = ir.convenience.get_const_tensor(value)
    return known is not None and bool(np.all(known.numpy() % 2 == 0))
