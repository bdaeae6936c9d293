"""Nodes whose operands do not go together, by size or type: found by looking, before any is run.

onnx's inference in strict mode finds some; many operators it gives a shape without a look at what
else they take. Those have a rule here. Shapes that the file itself declares of results are left
out: they are often wrong, and no engine goes by them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from edgeinfer.convert.passes.inference import infer_shapes, without_weights
from edgeinfer.convert.passes.infra import DEFAULT_DOMAINS, walk
from edgeinfer.errors import EdgeInferError, SourceError
from edgeinfer.types import TensorSpec

if TYPE_CHECKING:
    from edgeinfer.convert.verify.vectors import UserData

Size = int | str | None
Shape = tuple[Size, ...] | None
_TOLD = re.compile(r"\(op_type:([\w.:]+), node name: (.*?)\): \[\w+\] (.*)")
_MOST = 10
"""Nodes that a message lists."""


def contradictions(model: ir.Model) -> list[str]:
    """Say of each node whose operands contradict each other: operator, name, sizes, what is wrong.

    Empty where nothing is known to be wrong, which is no proof that all is right.
    """
    bare = without_weights(model)
    for graph in walk(bare.graph):
        for node in graph:
            for value in node.outputs:
                value.shape = None
    proto = ir.to_proto(bare)
    shapes = _inferred(proto)
    found = dict(_told(proto, shapes))
    for node in proto.graph.node:
        if node.domain in DEFAULT_DOMAINS:
            where = [shapes.get(name) for name in node.input]
            rule = RULES.get(node.op_type)
            if rule is not None and (fault := rule(Operands(node, where, proto))):
                found[_key(node)] = _line(node, shapes, fault)
    return _most([found[_key(node)] for node in proto.graph.node if _key(node) in found])


def _most(lines: list[str]) -> list[str]:
    more = len(lines) - _MOST
    return [*lines[:_MOST], f"and {more} more"] if more > 0 else lines


def mixed_types(model: ir.Model) -> list[str]:
    """Say of each node whose operands differ in type where its operator has one type for them.

    The standard forbids that, and no engine opens such a model, though its numbers could be had.
    """
    version, lines = model.opset_imports.get("", 0), []
    for node in model.graph:
        if node.domain in DEFAULT_DOMAINS and (fault := _types_differ(node, version)):
            name = node.name or f"that gives {node.outputs[0].name}"
            lines.append(f"{node.op_type} {name!r}: {fault}")
    return _most(lines)


def _types_differ(node: ir.Node, version: int) -> str:
    """Say which operands have types of their own where the operator's schema has one for them."""
    try:
        schema = onnx.defs.get_schema(node.op_type, version, "")
    except onnx.defs.SchemaError:
        return ""
    many = onnx.defs.OpSchema.FormalParameterOption.Variadic
    known: dict[str, ir.Value] = {}
    for index, value in enumerate(node.inputs):
        if value is None or value.dtype is None or not schema.inputs:
            continue
        formal = schema.inputs[min(index, len(schema.inputs) - 1)]
        if "(" in formal.type_str or (formal.option == many and not formal.is_homogeneous):
            continue
        first = known.setdefault(formal.type_str, value)
        if first.dtype is not None and first.dtype != value.dtype:
            one, other = (
                f"{v.name!r} is {v.dtype.name.lower()}" for v in (first, value) if v.dtype
            )
            return f"{one}, {other}: one type is expected"
    return ""


def refuse_contradictions(
    model: ir.Model, inputs: Sequence[TensorSpec], *, data: UserData | None = None
) -> None:
    """Refuse a model with nodes whose operands contradict each other.

    onnx's inference is at times mistaken, so a model that does run is let pass, unless the weights
    alone contradict each other: an engine that runs those reads beyond them.

    Args:
        model: as read.
        inputs: its inputs, without those that have an initializer.
        data: inputs that it is said to run with; made-up ones are tried where there are none.

    Raises:
        SourceError: lists the nodes.
    """
    if mixed := mixed_types(model):
        raise SourceError("\n  ".join(("the model is no valid ONNX: types do not agree:", *mixed)))
    found = contradictions(model)
    if not found:
        return
    from edgeinfer.convert.verify.oracles import Oracles
    from edgeinfer.convert.verify.vectors import make_vectors

    one = "a node whose operands do" if len(found) == 1 else "nodes whose operands do"
    text = f"the model cannot run: it has {one} not go together"
    wrong = SourceError("\n  ".join((f"{text}:", *found)))
    if _weights_differ(model):
        raise wrong
    try:
        with Oracles(model) as oracles:
            for vector in make_vectors(model, inputs, oracles=oracles, user_data=data):
                oracles.run(vector.feeds)
    except EdgeInferError as error:
        raise wrong from error


def _weights_differ(model: ir.Model) -> bool:
    """Whether a rule is broken by the shapes of weights, which nothing has to infer."""
    proto = ir.to_proto(without_weights(model))
    known: dict[str, Shape] = {t.name: tuple(t.dims) for t in proto.graph.initializer}
    return any(
        RULES[node.op_type](Operands(node, [known.get(name) for name in node.input], proto))
        for node in proto.graph.node
        if node.domain in DEFAULT_DOMAINS and node.op_type in RULES
    )


class Operands:
    """One node's inputs, as far as their shapes are known, and its attributes."""

    def __init__(self, node: onnx.NodeProto, shapes: list[Shape], model: onnx.ModelProto) -> None:
        self._shapes = shapes
        self._attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        self._node, self._model = node, model
        self.count = len(shapes)

    def shape(self, index: int) -> Shape:
        """Shape of an input; None where it is left out or unknown."""
        return self._shapes[index] if index < len(self._shapes) else None

    def size(self, index: int, axis: int) -> int | None:
        """Size of an input along an axis; None where it is not known."""
        shape = self.shape(index)
        if shape is None or not -len(shape) <= axis < len(shape):
            return None
        size = shape[axis]
        return size if isinstance(size, int) else None

    def elements(self, index: int) -> int | None:
        """Number of elements of an input; None where it is not known."""
        shape = self.shape(index)
        sizes = [s for s in shape or () if isinstance(s, int)]
        return math.prod(sizes) if shape is not None and len(sizes) == len(shape) else None

    def attr(self, name: str, default: int) -> int:
        """A whole number among the attributes."""
        return int(self._attributes.get(name, default))

    def constant(self, index: int) -> list[int] | None:
        """Values of a small constant input; None where it is none."""
        if index >= len(self._node.input):
            return None
        name = self._node.input[index]
        for tensor in self._model.graph.initializer:
            if tensor.name == name:
                return [int(v) for v in onnx.numpy_helper.to_array(tensor).ravel()]
        return None


Rule = Callable[[Operands], str]


def _differ(what: str, wanted: int | None, got: int | None) -> str:
    if wanted is None or got is None or wanted == got:
        return ""
    return f"{what}: expected {wanted}, received {got}"


def _first(*faults: str) -> str:
    return next(filter(None, faults), "")


def _conv(x: int, w: int, bias: int | None, op: Operands) -> str:
    group = op.attr("group", 1)
    channels, each = op.size(x, 1), op.size(w, 1)
    outputs = op.size(w, 0)
    wanted = None if each is None else each * group
    faults = [_differ("channels of the input (the filter's times the groups)", wanted, channels)]
    if outputs is not None and outputs % group:
        faults.append(f"{outputs} filters do not divide into {group} groups")
    if bias is not None:
        faults.append(
            _differ("length of the bias (one for each filter)", outputs, op.size(bias, 0))
        )
    return _first(*faults)


def _conv_transpose(op: Operands) -> str:
    each = op.size(1, 1)
    outputs = None if each is None else each * op.attr("group", 1)
    return _first(
        _differ("channels of the input (the filter's first size)", op.size(1, 0), op.size(0, 1)),
        _differ("length of the bias (one for each output channel)", outputs, op.size(2, 0)),
    )


def _matmul(op: Operands) -> str:
    one, other = op.shape(0), op.shape(1)
    if one is None or other is None or not one or not other:
        return ""
    inner = op.size(1, -1 if len(other) == 1 else -2)
    return _first(
        _differ("inner size (the second's)", inner, op.size(0, -1)),
        _stretch(one[:-2], other[:-2]),
    )


def _concat(op: Operands) -> str:
    first = op.shape(0)
    if not first:
        return ""
    along = op.attr("axis", 0) % len(first)
    for index in range(1, op.count):
        shape = op.shape(index)
        if shape is not None and len(shape) != len(first):
            return f"input {index} has {len(shape)} axes, the first {len(first)}"
        for axis in range(len(first)):
            what = f"size of input {index} in axis {axis} (the first's)"
            if axis != along and (fault := _differ(what, op.size(0, axis), op.size(index, axis))):
                return fault
    return ""


def _elementwise(op: Operands) -> str:
    for index in range(1, op.count):
        if fault := _stretch(op.shape(0), op.shape(index)):
            return fault
    return ""


def _gemm(op: Operands) -> str:
    across, down = op.attr("transA", 0), op.attr("transB", 0)
    rows, columns = op.size(0, 1 if across else 0), op.size(1, 0 if down else 1)
    return _first(
        _differ("inner size", op.size(0, 0 if across else 1), op.size(1, 1 if down else 0)),
        _broadcasts("bias", op.shape(2), (rows, columns)),
    )


def _reshape(op: Operands) -> str:
    have, wanted = op.elements(0), op.constant(1)
    shape = op.shape(0)
    if have is None or wanted is None or shape is None:
        return ""
    if not op.attr("allowzero", 0):
        wanted = [op.size(0, i) or 0 if size == 0 else size for i, size in enumerate(wanted)]
    rest = math.prod(size for size in wanted if size != -1)
    fits = (rest and have % rest == 0) if -1 in wanted else have == rest
    return "" if fits or not have else f"{have} elements do not fill {wanted}"


def _recurrent(gates: int) -> Rule:
    def rule(op: Operands) -> str:
        hidden = op.size(2, 2)
        rows = None if hidden is None else gates * hidden
        both = None if rows is None else 2 * rows
        axis = 2
        return _first(
            _differ("size of the input (W's last)", op.size(1, 2), op.size(0, axis)),
            _differ(f"rows of W ({gates} times the hidden size)", rows, op.size(1, 1)),
            _differ(f"rows of R ({gates} times the hidden size)", rows, op.size(2, 1)),
            _differ(f"length of B (twice {gates} times the hidden size)", both, op.size(3, 1)),
        )

    return rule


def _channelled(*indices: int) -> Rule:
    def rule(op: Operands) -> str:
        channels = op.size(0, 1)
        return _first(*(_differ("one value a channel", channels, op.size(i, 0)) for i in indices))

    return rule


def _normalised(op: Operands) -> str:
    shape, axis = op.shape(0), op.attr("axis", -1)
    if shape is None:
        return ""
    tail = shape[axis % len(shape) :] if shape else ()
    return _first(
        _broadcasts("scale", op.shape(1), tail),
        _broadcasts("bias", op.shape(2), tail),
    )


def _prelu(op: Operands) -> str:
    return _broadcasts("slope", op.shape(1), op.shape(0))


def _stretch(one: Shape, other: Shape) -> str:
    """Say where two shapes cannot be stretched to each other."""
    for mine, its in zip(reversed(one or ()), reversed(other or ()), strict=False):
        if isinstance(mine, int) and isinstance(its, int) and mine != its and 1 not in (mine, its):
            return f"sizes {mine} and {its} are neither equal nor 1"
    return ""


def _broadcasts(what: str, shape: Shape, target: Shape) -> str:
    """Say where one shape cannot be stretched to another."""
    if shape is None or target is None:
        return ""
    if len(shape) > len(target):
        return f"{what} of shape {_shown(shape)} does not fit {_shown(target)}"
    for mine, other in zip(reversed(shape), reversed(target), strict=False):
        if isinstance(mine, int) and isinstance(other, int) and mine not in (1, other):
            return f"{what} of shape {_shown(shape)} does not fit {_shown(target)}"
    return ""


_COMPARE = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Xor")
_COMPUTE = ("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Max", "Min", "Sum", "Mean", "Where")

RULES: Mapping[str, Rule] = {
    **dict.fromkeys((*_COMPUTE, *_COMPARE), _elementwise),
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "Concat": _concat,
    "Conv": lambda op: _conv(0, 1, 2, op),
    "ConvInteger": lambda op: _conv(0, 1, None, op),
    "QLinearConv": lambda op: _conv(0, 3, 8, op),
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "Reshape": _reshape,
    "LSTM": _recurrent(4),
    "GRU": _recurrent(3),
    "RNN": _recurrent(1),
    "BatchNormalization": _channelled(1, 2, 3, 4),
    "InstanceNormalization": _channelled(1, 2),
    "LayerNormalization": _normalised,
    "RMSNormalization": _normalised,
    "PRelu": _prelu,
}
"""What an operator asks of its operands beyond what onnx's inference looks at."""


def _inferred(proto: onnx.ModelProto) -> dict[str, Shape]:
    """Shapes of all that is known, without those that follow from a contradiction."""
    try:
        inferred = infer_shapes(proto)
    # onnx raises RuntimeError subclasses of its own; without shapes nothing contradicts.
    except Exception:
        inferred = proto
    graph = inferred.graph
    found: dict[str, Shape] = {t.name: tuple(t.dims) for t in graph.initializer}
    for info in (*graph.input, *graph.value_info, *graph.output):
        if info.type.tensor_type.HasField("shape"):
            dims = info.type.tensor_type.shape.dim
            found[info.name] = tuple(
                d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in dims
            )
    return found


def _told(
    proto: onnx.ModelProto, shapes: Mapping[str, Shape]
) -> Iterator[tuple[tuple[str, str], str]]:
    """What onnx's own inference says, by node."""
    try:
        infer_shapes(proto, strict=True)
    except Exception as error:
        known = {(op, name): fault for op, name, fault in _TOLD.findall(str(error))}
        for node in proto.graph.node:
            if fault := known.get((node.op_type, node.name)):
                yield _key(node), _line(node, shapes, fault)


def _key(node: onnx.NodeProto) -> tuple[str, str]:
    return node.op_type, next(iter(node.output), "")


def _line(node: onnx.NodeProto, shapes: Mapping[str, Shape], fault: str) -> str:
    name = node.name or f"that gives {next(iter(node.output), '')}"
    operands = ", ".join(f"{n!r} {_shown(shapes.get(n))}" for n in node.input if n)
    return f"{node.op_type} {name!r} of {operands}: {fault}"


def _shown(shape: Shape) -> str:
    if shape is None:
        return "[?]"
    return "[" + ", ".join("?" if s is None else str(s) for s in shape) + "]"
