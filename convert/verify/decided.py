"""What rounding alone decides: places of scores that are equal but for their last bits.

A selection (the best so many, the largest, boxes by score) has no right order where scores are as
near as the rounding of what they are computed from. Engines add up in orders of their own, so each
gives another one, and all are right. Which elements of an answer hang on it is found by asking the
oracle again with inputs that differ by a few last bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.metrics import Budget, OutputMetrics, budget_for, check, compare
from edgeinfer.types import Array, Feeds

if TYPE_CHECKING:
    # The process that asks for a conversion imports this module and no graph library.
    import onnx_ir as ir

    from edgeinfer.convert.verify.answers import Answer

CHOOSES = frozenset({
    *("TopK", "ArgMax", "ArgMin", "NonMaxSuppression", "Hardmax", "Unique", "NonZero", "Compress"),
    *("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"),
    *("Sign", "Round", "Floor", "Ceil"),
})  # fmt: skip
"""Operators whose results jump where their operands hardly move."""

EXACT = frozenset({
    *("Identity", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Relu"),
    *("Neg", "Abs", "Expand", "Gather"),
})  # fmt: skip
"""Operators that give elements of their first operand, rounded by nothing."""

DRAWS = 4
"""Perturbed inputs that are tried for each vector."""

NOISE = 2.0**-21
"""Of an element: eight times a rounding, as sums inside a model are rounded more than once."""

MOST = 0.5
"""Share of an output's elements above which nothing of it is judged."""


def chooses(model: ir.Model) -> bool:
    """Whether a model has operators whose results may hang on rounding alone."""
    import onnx_ir as ir

    floats = (None, ir.DataType.FLOAT, ir.DataType.FLOAT16)
    return any(
        v.dtype in floats and _is_rounded(v, model.graph)
        for node in model.graph.all_nodes()
        if node.op_type in CHOOSES
        for v in node.inputs
        if v is not None
    )


def _is_rounded(value: ir.Value, root: ir.Graph) -> bool:
    """Whether arithmetic has rounded a value; what comes from an input as it is has exact ties."""
    while (node := value.producer()) is not None and node.op_type in EXACT:
        first = node.inputs[0]
        if first is None:
            return True
        value = first
    if node is not None:
        return node.op_type != "Constant"
    # What comes into a body is not followed.
    return value.const_value is None and value.graph is not root


def nearly(feeds: Feeds, seed: int) -> dict[str, Array]:
    """Return inputs that differ by a few last bits; integers stay."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, given in feeds.items():
        array = np.asarray(given)
        if array.dtype.kind == "f":
            step = max(NOISE, 2 * float(np.finfo(array.dtype).eps))
            noise = 1.0 + step * rng.uniform(-1, 1, array.shape)
            array = (array * noise).astype(array.dtype)
        found[name] = array
    return found


def shaken(model: ir.Model) -> ir.Model:
    """Return a copy in which what is chosen by differs by a few last bits, other ones in each run.

    A score may hang on less than its own last bit (a bias that a small product is added to), which
    moving the inputs does not show. Values that need few digits, such as counts, zeros and steps of
    a grid, are exact and stay; so do scores that are all equal, of which every engine takes the
    first.
    """
    import onnx_ir as ir

    copy = model.clone()
    for node in list(copy.graph):
        for place, value in enumerate(node.inputs if node.op_type in CHOOSES else ()):
            if value is None or value.dtype != ir.DataType.FLOAT:
                continue
            if _is_rounded(value, copy.graph):
                added = _moving(value, f"{node.outputs[0].name}__{place}")
                copy.graph.insert_before(node, added)
                node.replace_input_with(place, added[-1].outputs[0])
    return copy


def _moving(value: ir.Value, name: str) -> list[ir.Node]:
    """Return nodes of which the last gives the value with noise in its last bits."""
    import onnx_ir as ir

    nodes: list[ir.Node] = []

    def op(kind: str, *inputs: ir.Value, **numbers: float) -> ir.Value:
        given = [
            ir.AttrInt64(key, number) if isinstance(number, int) else ir.AttrFloat32(key, number)
            for key, number in numbers.items()
        ]
        nodes.append(ir.Node("", kind, list(inputs), given, num_outputs=1))
        nodes[-1].outputs[0].name = f"{name}__{len(nodes)}"
        return nodes[-1].outputs[0]

    def number(value: float) -> ir.Value:
        return op("Constant", value_float=value)

    apart = op("Greater", op("ReduceMax", value, keepdims=0), op("ReduceMin", value, keepdims=0))
    step = op("Where", apart, number(NOISE), number(0.0))
    noise = op("RandomUniformLike", value, low=-1.0, high=1.0, seed=1.0)
    moved = op("Add", value, op("Mul", value, op("Mul", noise, step)))
    grid = op("Mul", value, number(256.0))
    op("Where", op("Equal", grid, op("Round", grid)), value, moved)
    return nodes


def undecided(answer: dict[str, Array], draws: Sequence[dict[str, Array]]) -> dict[str, Array]:
    """Return for each output which elements rounding alone moves; outputs without any are left out.

    Args:
        answer: of the oracle.
        draws: its answers to inputs that hardly differ.
    """
    found = {}
    for name, value in answer.items():
        right = np.asarray(value) if not isinstance(value, list) else None
        if right is None or right.dtype.kind not in "iufb":
            continue
        mask = np.zeros(right.shape, bool)
        for draw in draws:
            other = np.asarray(draw[name])
            if other.shape != right.shape:
                mask[...] = True
                break
            mask |= _moved(right, other)
        if mask.any():
            found[name] = mask
    return found


def _moved(right: Array, other: Array) -> Array:
    if right.dtype.kind != "f":
        return np.asarray(right != other)
    wide, near = right.astype(np.float64), other.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    scale = float(np.abs(finite).max(initial=0.0))
    same = (wide == near) | (np.isnan(wide) & np.isnan(near))
    with np.errstate(invalid="ignore"):
        moved = np.abs(wide - near) > 0.5 * budget_for("fp32").max_rel * scale
    return np.asarray(~same & (moved | (np.isfinite(wide) != np.isfinite(near))))


def compared(
    name: str, right: Answer, found: Mapping[str, Array], budget: Budget
) -> OutputMetrics | None:
    """Measure an output in what rounding alone does not decide; None where that is too little.

    What moving the scores themselves changes is left out only where that mends it, and from then
    on: an engine has shown that it is so.
    """
    if name not in found:
        return OutputMetrics(problem="the artifact does not give this output")
    mask = right.undecided.get(name)
    metrics = _measured(right.outputs[name], found[name], mask, budget)
    if metrics is None or not check(metrics, budget) or name not in right.shaky:
        return metrics
    wider = right.shaky[name] if mask is None else mask | right.shaky[name]
    fewer = _measured(right.outputs[name], found[name], wider, budget)
    if fewer is not None and check(fewer, budget):
        return metrics
    right.undecided[name] = wider
    return fewer


def _measured(
    right: Array, found: Array, mask: Array | None, budget: Budget
) -> OutputMetrics | None:
    parts = judged_part(right, found, mask)
    return None if parts is None else compare(*parts, channel_floor=budget.channel_floor)


def judged_part(right: Array, found: Array, mask: Array | None) -> tuple[Array, Array] | None:
    """Return an expected and an actual output without what rounding decides; None for nothing left.

    Args:
        right: expected.
        found: actual.
        mask: elements that rounding alone moves; None for none.
    """
    if mask is None or not mask.any():
        return right, found
    if float(mask.mean()) > MOST:
        return None
    if np.shape(found) != np.shape(right):
        return right, found
    return right, np.where(mask, right, found).astype(np.asarray(found).dtype)
