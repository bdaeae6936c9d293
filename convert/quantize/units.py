"""Which nodes compute with integers, and which values therefore get a scale.

A *unit* is what an engine runs as one kernel: a convolution or product with its bias and the clip
behind it, or a single lighter operator. Nothing is rounded inside a unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import field

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.families import MOVES
from edgeinfer.convert.passes.infra import constant, rank, small
from edgeinfer.profiles.schema import FLOAT8, Quantization
from edgeinfer.records import dataclass
from edgeinfer.types import Array

WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""Operators with weights: they decide where integers pay."""

TABLE = 1024
"""Elements from which a table that rows are taken from becomes integers."""

STATEFUL_AXIS = 1
"""Axis of the gates in the weights of operators with a state."""

_PARTING = frozenset({"Gather", "Slice", "Split"})
"""Operators that take parts out of a value."""

_CLIPS = frozenset({"Relu", "Clip"})


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """Nodes that are one kernel.

    Attributes:
        nodes: in order; the first one names the unit.
        reads: values from outside that become integers.
        result: what comes out.
        kind: ``weighted``, ``light``, ``move``, ``table``: rows taken out of a constant, or
            ``recurrent``: weights alone are integers.
    """

    nodes: tuple[ir.Node, ...]
    reads: tuple[ir.Value, ...]
    result: ir.Value
    kind: str

    @property
    def name(self) -> str:
        """Name of the first node."""
        return self.nodes[0].name or ""

    @property
    def op(self) -> str:
        """Operator of the first node."""
        return self.nodes[0].op_type


@dataclass(slots=True)
class Layout:
    """The units of a graph and the values that share one scale.

    Attributes:
        units: in the graph's order.
        stored: values that are held as integers.
        float_results: results of units that stay float: only float operators read them.
        groups: a representative for each value that shares its scale with others.
    """

    units: list[Unit] = field(default_factory=list)
    stored: set[ir.Value] = field(default_factory=set)
    float_results: set[ir.Value] = field(default_factory=set)
    groups: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def group(self, value: ir.Value) -> ir.Value:
        """Return the value that stands for all that share its scale."""
        while value in self.groups:
            value = self.groups[value]
        return value

    def members(self) -> dict[ir.Value, list[ir.Value]]:
        """List the values of each group."""
        found: dict[ir.Value, list[ir.Value]] = {}
        for value in self.stored:
            found.setdefault(self.group(value), []).append(value)
        return found

    def join(self, a: ir.Value, b: ir.Value) -> None:
        """Let two values share one scale."""
        a, b = self.group(a), self.group(b)
        if a is not b:
            self.groups[b] = a


def lay_out(model: ir.Model, limits: Quantization, kept: AbstractSet[str] = frozenset()) -> Layout:
    """Choose the units of the main graph.

    Args:
        model: normalised.
        limits: what the target computes with integers.
        kept: names of units that stay float.
    """
    units = _select(model.graph, limits, kept)
    units = _prune(units)
    layout = Layout(units)
    read = {v for u in units for v in u.reads}
    for unit in units:
        layout.stored.update(unit.reads)
        for out in _results(unit):
            may_float = unit.kind == "table" or (
                unit.op in limits.float_results and unit.kind != "move"
            )
            if may_float and out not in read:
                layout.float_results.add(out)
            else:
                layout.stored.add(out)
    for unit in units:
        if unit.kind == "move" or unit.op in limits.joined:
            for value in (*unit.reads, *_results(unit)):
                layout.join(unit.reads[0], value)
    return layout


def _results(unit: Unit) -> tuple[ir.Value, ...]:
    """Return the results that may be integers; only moves have more than one."""
    if unit.kind == "recurrent":
        return ()
    if unit.kind != "move":
        return (unit.result,)
    return tuple(v for v in unit.nodes[-1].outputs if v.name)


def _select(graph: ir.Graph, limits: Quantization, kept: AbstractSet[str]) -> list[Unit]:
    units: list[Unit] = []
    stored: set[ir.Value] = set()
    taken: set[ir.Node] = set()
    for node in graph:
        if node in taken or node.domain or (node.name or "") in kept:
            continue
        unit = _unit(node, limits, stored)
        if unit is None:
            continue
        units.append(unit)
        taken.update(unit.nodes)
        stored.update(_results(unit))
    return units


def _unit(node: ir.Node, limits: Quantization, stored: AbstractSet[ir.Value]) -> Unit | None:
    if not node.outputs or any(v.name and v.dtype != ir.DataType.FLOAT for v in node.outputs):
        return None
    if is_table(node):
        is_float = limits.activations == FLOAT8
        return None if is_float else Unit((node,), (), node.outputs[0], "table")
    if node.op_type in limits.recurrent:
        result = next((v for v in node.outputs if v.name), None)
        stored_weights = result is not None and stateful_weights(node)
        return Unit((node,), (), result, "recurrent") if result and stored_weights else None
    if node.op_type in limits.moves:
        source = node.inputs[0] if node.inputs else None
        if source is None or source not in stored or not _moves(node):
            return None
        return Unit((node,), (source,), node.outputs[0], "move")
    if node.op_type not in limits.ops:
        return None
    if node.op_type in WEIGHTED:
        return None if limits.flat and not is_flat(node) else _weighted(node)
    reads = tuple(v for v in node.inputs if _is_float(v) and not _is_constant(v) and v is not None)
    if not reads or not all(v in stored for v in reads) or not _is_plain(node):
        return None
    follow = clip_after(node.outputs[0]) if node.op_type in ("Add", "Sub", "Mul") else None
    nodes = (node,) if follow is None else (node, follow)
    return Unit(nodes, reads, nodes[-1].outputs[0], "light")


def is_table(node: ir.Node) -> bool:
    """Whether rows are taken out of a constant that is large enough to be worth storing."""
    if node.op_type != "Gather":
        return False
    tensor, axis = constant(node.inputs[0]), node.attributes.get("axis")
    if tensor is None or len(tensor.shape) != 2 or tensor.size < TABLE:
        return False
    return (axis is None or axis.as_int() == 0) and not _is_constant(node.inputs[1])


def stateful_weights(node: ir.Node) -> tuple[int, ...]:
    """Return the operands of a recurrent operator that are weights; none if one is not constant."""
    operands = (1, 2)
    tensors = [constant(node.inputs[p]) for p in operands]
    large = all(t is not None and t.dtype == ir.DataType.FLOAT and t.size >= TABLE for t in tensors)
    return operands if large else ()


def is_flat(node: ir.Node) -> bool:
    """Whether a node convolves over two axes at most, or multiplies with one matrix, as it is.

    A transposed convolution in groups is none: it is written as several.
    """
    axes = rank(node.inputs[1]) if len(node.inputs) > 1 else None
    groups = node.attributes.get("group")
    parted = node.op_type == "ConvTranspose" and groups is not None and groups.as_int() > 1
    if parted or (node.op_type == "Gemm" and not _is_unscaled(node)):
        return False
    return axes is not None and axes <= (4 if node.op_type in ("Conv", "ConvTranspose") else 2)


def _weighted(node: ir.Node) -> Unit | None:
    x, w = (node.inputs[i] if i < len(node.inputs) else None for i in (0, 1))
    if x is None or w is None or not _is_float(x) or not _is_float(w):
        return None
    if _is_constant(x) or not _is_constant(w) or rank(w) is None:
        return None
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None and not _is_constant(bias):
        return None
    if node.op_type == "Gemm" and not _is_simple_gemm(node):
        return None
    if node.op_type == "MatMul" and (rank(w) or 0) != 2:
        return None
    nodes = [node]
    if node.op_type == "MatMul" and (added := _bias_after(node.outputs[0], w)) is not None:
        nodes.append(added)
    if (clip := clip_after(nodes[-1].outputs[0])) is not None:
        nodes.append(clip)
    return Unit(tuple(nodes), (x,), nodes[-1].outputs[0], "weighted")


def _is_simple_gemm(node: ir.Node) -> bool:
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return _is_unscaled(node) and (bias is None or rank(bias) in (0, 1))


def _is_unscaled(node: ir.Node) -> bool:
    attrs = {k: a.value for k, a in node.attributes.items()}
    ones = attrs.get("alpha", 1.0) == 1.0 and attrs.get("beta", 1.0) == 1.0
    return ones and not attrs.get("transA", 0)


def _only_user(value: ir.Value) -> ir.Node | None:
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output():
        return None
    user = uses[0][0]
    return user if user.graph is value.graph and not user.domain else None


def _bias_after(value: ir.Value, weights: ir.Value) -> ir.Node | None:
    user = _only_user(value)
    if user is None or user.op_type != "Add" or weights.shape is None:
        return None
    other = next((v for v in user.inputs if v is not value), None)
    if other is None or not _is_constant(other) or rank(other) != 1 or other.shape is None:
        return None
    return user if other.shape[0] == weights.shape[-1] else None


def clip_after(value: ir.Value) -> ir.Node | None:
    """Return the clip that alone reads a value, if it is one that a range can stand for."""
    user = _only_user(value)
    if user is None or user.op_type not in _CLIPS:
        return None
    if user.op_type == "Clip" and any(
        v is not None and not _is_constant(v) for v in user.inputs[1:]
    ):
        return None
    # A range has zero in it, so a clip that leaves zero out would still be needed.
    low, high = clip_ends(user)
    return user if low <= 0.0 <= high else None


def clip_ends(node: ir.Node) -> tuple[float, float]:
    """Return the ends of a Relu or of a Clip with constant ends."""
    if node.op_type == "Relu":
        return 0.0, np.inf
    ends = [-np.inf, np.inf]
    for place, value in enumerate(node.inputs[1:3]):
        array = small(value)
        if array is not None and array.size == 1:
            ends[place] = float(array.ravel()[0])
    return ends[0], ends[1]


def _moves(node: ir.Node) -> bool:
    """Whether the operator, as it is set, passes values on or picks among them."""
    attrs = {k: a.value for k, a in node.attributes.items()}
    if node.op_type == "Resize":
        return bool(attrs.get("mode", "nearest") == "nearest")
    if node.op_type == "Pad":
        if attrs.get("mode", "constant") != "constant":
            return True
        filling = node.inputs[2] if len(node.inputs) > 2 else None
        array = None if filling is None else small(filling)
        return filling is None or (array is not None and not array.any())
    if node.op_type == "ReduceMax":
        return len(node.inputs) < 2 or _is_constant(node.inputs[1])
    if node.op_type == "MaxPool":
        return sum(bool(v.name and v.uses()) for v in node.outputs) < 2
    return True


def _is_plain(node: ir.Node) -> bool:
    """Whether the integer kernels know the node as it is set."""
    attrs = {k: a.value for k, a in node.attributes.items()}
    if node.op_type == "Softmax":
        size = rank(node.outputs[0])
        return size is not None and attrs.get("axis", -1) in (-1, size - 1)
    if node.op_type == "ReduceMean":
        return len(node.inputs) > 1 and _is_constant(node.inputs[1])
    if node.op_type in ("Add", "Sub", "Mul"):
        # With one operand there is nothing to add: both are one value or one is not float.
        return all(_is_float(v) for v in node.inputs)
    return True


def _prune(units: list[Unit]) -> list[Unit]:
    """Leave out what no unit reads: rounding it would only lose; a model's output is kept."""
    kept: list[Unit] = []
    wanted: set[ir.Value] = set()
    for unit in reversed(units):
        results = _results(unit)
        read = any(v in wanted or v.is_graph_output() for v in results)
        if unit.kind in ("weighted", "table", "recurrent") or read:
            kept.append(unit)
            wanted.update(unit.reads)
    return kept[::-1]


def _is_float(value: ir.Value | None) -> bool:
    return value is not None and value.dtype == ir.DataType.FLOAT


def _is_constant(value: ir.Value | None) -> bool:
    return constant(value) is not None


def weights_axis(node: ir.Node) -> int:
    """Return the axis of the output channels of a weighted node's weights."""
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1
    if node.op_type == "Gemm":
        attr = node.attributes.get("transB")
        return 0 if attr is not None and attr.as_int() else 1
    return 1


def array_of(value: ir.Value | None) -> Array:
    """Return the values of a constant.

    Raises:
        ValueError: it is none.
    """
    tensor = constant(value)
    if tensor is None:
        raise ValueError(f"{value.name if value is not None else value!r} is not constant")
    return np.asarray(tensor.numpy())


def observed(units: Iterable[Unit]) -> dict[str, ir.Value]:
    """Return the values, by name, whose range matters."""
    found: dict[str, ir.Value] = {}
    for unit in units:
        for value in (*unit.reads, *_results(unit), *parts(unit.result)):
            found[value.name or ""] = value
    return found


def parts(value: ir.Value, steps: int = 6) -> Iterator[ir.Value]:
    """List what is taken out of a value, as it is, before anything is computed with it."""
    for user, place in value.uses() if steps else ():
        if user.op_type not in MOVES or user.domain or place:
            continue
        for out in user.outputs:
            if user.op_type in _PARTING and out.name and _is_float(out):
                yield out
            yield from parts(out, steps - 1)
