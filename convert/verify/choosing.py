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


_SCORES = 4 * NOISE
"""Of a score: one that adds up some hundred products is rounded by more than an input."""

DRAW = "edgeinfer_draw"
"""Input of a shaken model, of which each number is another noise."""


def shaken(model: ir.Model) -> ir.Model:
    """Return a copy in which what is chosen by differs by a few last bits, as ``DRAW`` says.

    A score may hang on less than its own last bit (a bias that a small product is added to), which
    moving the inputs does not show. Values that need few digits, such as counts, zeros and steps of
    a grid, are exact and stay; so do scores that are all equal, of which every engine takes the
    first.
    """
    copy = model.clone()
    draw = ir.Value(name=DRAW, shape=ir.Shape([]), type=ir.TensorType(ir.DataType.FLOAT))
    copy.graph.inputs.append(draw)
    for node in list(copy.graph):
        for place, value in enumerate(node.inputs if node.op_type in CHOOSES else ()):
            if value is None or value.dtype != ir.DataType.FLOAT:
                continue
            if _is_rounded(value, copy.graph):
                added = _moving(value, draw, f"{node.outputs[0].name}__{place}")
                copy.graph.insert_before(node, added)
                node.replace_input_with(place, added[-1].outputs[0])
    return copy


def _moving(value: ir.Value, draw: ir.Value, name: str) -> list[ir.Node]:
    """Return nodes of which the last gives the value with noise in its last bits.

    The noise is the fraction of a steep sine of positions: operators that draw random numbers have
    versions that engines lack.
    """
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
        kind = "value_int" if isinstance(value, int) else "value_float"
        return op("Constant", **{kind: value})

    apart = op("Greater", op("ReduceMax", value, keepdims=0), op("ReduceMin", value, keepdims=0))
    step = op("Where", apart, number(_SCORES), number(0.0))
    positions = op("Cast", op("Range", number(0), op("Size", value), number(1)), to=1)
    angle = op("Add", op("Mul", positions, number(12.9898)), op("Mul", draw, number(78.233)))
    steep = op("Mul", op("Sin", angle), number(43758.547))
    noise = op("Reshape", op("Mod", steep, number(1.0), fmod=1), op("Shape", value))
    moved = op("Add", value, op("Mul", value, op("Mul", noise, step)))
    grid = op("Mul", value, number(256.0))
    op("Where", op("Equal", grid, op("Round", grid)), value, moved)
    return nodes
