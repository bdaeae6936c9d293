"""Operators that choose: whose results jump where rounding alone moves their operands."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.families import COMPARISONS, MOVES
from edgeinfer.convert.verify.decided import NOISE

CHOOSES = frozenset({
    *("TopK", "ArgMax", "ArgMin", "NonMaxSuppression", "Hardmax", "Unique", "NonZero", "Compress"),
    *COMPARISONS,
    *("Sign", "Round", "Floor", "Ceil"),
})  # fmt: skip
"""Operators whose results jump where their operands hardly move."""

EXACT = MOVES | {"Relu", "Neg", "Abs"}
"""Operators that give elements of their first operand, rounded by nothing."""


def chooses(model: ir.Model) -> bool:
    """Whether a model has operators whose results may hang on rounding alone."""
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


def shaken(model: ir.Model) -> ir.Model:
    """Return a copy in which what is chosen by differs by a few last bits, other ones in each run.

    A score may hang on less than its own last bit (a bias that a small product is added to), which
    moving the inputs does not show. Values that need few digits, such as counts, zeros and steps of
    a grid, are exact and stay; so do scores that are all equal, of which every engine takes the
    first.
    """
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
