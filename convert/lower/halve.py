"""Floats of two bytes, with single-precision islands where these would spoil the numbers.

Which operators are such islands depends on the engine; constants that the type cannot hold,
sums that are too long for it and nodes that were named make islands everywhere. Inputs and outputs
keep the source's types.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set as AbstractSet

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from edgeinfer.convert.lower.mask_inputs import clamp_mask_inputs
from edgeinfer.convert.lower.single import WHOLE
from edgeinfer.convert.passes.clean_cast import CleanCast
from edgeinfer.convert.passes.infra import Namer
from edgeinfer.errors import Remarks
from edgeinfer.records import dataclass
from edgeinfer.types import Array

LARGEST = 65504.0
SMALLEST_NORMAL = 2.0**-14
MASKED = -32752.0
"""What a mask's "minus infinity" (-1e9, the lowest float32) becomes: half the lowest half-precision
number, so that a score added to it cannot overflow and a fully masked row stays free of NaN."""

LONG_SUM = 8192
"""Products of this length or more are summed in single precision."""

_WHOLE = frozenset(
    getattr(ir.DataType, name)
    for name in ("BOOL", *(f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)))
)

_MASKING = frozenset({"Add", "Sub", "Mul", "Where", "Attention"})


@dataclass(frozen=True, slots=True)
class HalfType:
    """A type of two bytes.

    Attributes:
        name: Name of the precision.
        dtype: Element type of values.
        largest: finite number.
        smallest: normal number.
        masked: what "minus infinity" of a mask becomes.
        long_sum: length from which products are summed in single precision; 0 where none are.
        least: what a positive lower bound becomes that the type rounds to zero, against which it
            stands; 0 where such operators stay in single precision.
    """

    name: str
    dtype: ir.DataType
    largest: float
    smallest: float
    masked: float
    long_sum: int
    least: float = 0.0

    @property
    def spelled(self) -> str:
        """The type, as ONNX's schemas spell it."""
        return f"tensor({self.dtype.name.lower()})"


FP16 = HalfType("fp16", ir.DataType.FLOAT16, LARGEST, SMALLEST_NORMAL, MASKED, LONG_SUM)

_BFLOAT = ml_dtypes.finfo(ml_dtypes.bfloat16)  # type: ignore[no-untyped-call]
BF16 = HalfType(
    "bf16", ir.DataType.BFLOAT16, float(_BFLOAT.max), float(_BFLOAT.smallest_normal), -1e38, 0
)
"""Single precision's range with eight of its 24 bits: its products are always summed in single
precision, and only the last numbers before infinity, of which masks are made, are out of range."""


def halve(
    model: ir.Model,
    islands: AbstractSet[str],
    keep: AbstractSet[str],
    notes: Remarks,
    *,
    bridges: AbstractSet[str] = frozenset(),
    kind: HalfType = FP16,
) -> None:
    """Convert the main graph, in place.

    Args:
        model: normalised.
        islands: operators that stay in single precision.
        keep: names of nodes, or of their results, that do.
        notes: gets the names of those that did.
        bridges: islands that take and give either precision, so that a cast next to them goes.
        kind: the type.
    """
    for name in clamp_mask_inputs(model, kind.masked):
        low = _short(kind.masked)
        notes.add(f"{kind.name}: mask {name!r}: what is below {low} becomes {low}")
    chosen = _choose(model, islands, keep, kind)
    _join_islands(model, chosen, bridges)
    _Rewriter(model, chosen, notes, kind).run()
    # Ends of the model may be in the type already, with casts of their own.
    CleanCast()(model)
    floats = [n for n in model.graph if n.op_type != "Cast" and _has_float(n, kind)]
    alone = Counter(n.op_type for n in floats if n not in chosen)
    if alone:
        listed = ", ".join(f"{op} {count}" for op, count in sorted(alone.items()))
        notes.add(f"{kind.name}: {sum(alone.values())} of {len(floats)} nodes stay fp32: {listed}")


def _short(number: float) -> str:
    return f"{number:.0f}" if abs(number) < 1e6 else f"{number:.2g}"


def _has_float(node: ir.Node, kind: HalfType) -> bool:
    kinds = (ir.DataType.FLOAT, kind.dtype)
    return any(v is not None and v.dtype in kinds for v in (*node.inputs, *node.outputs))


def _choose(
    model: ir.Model, islands: AbstractSet[str], keep: AbstractSet[str], kind: HalfType
) -> set[ir.Node]:
    """Return the nodes that may run in the type."""
    opset = model.opset_imports.get("", 0)
    return {
        node
        for node in model.graph
        if not node.domain
        and node.op_type not in islands
        and WHOLE not in node.metadata_props
        and (node.name or "") not in keep
        and not any(v.name in keep for v in node.outputs)
        and _halves(node, opset, kind)
        and not any(_spoiled(node, v, kind) for v in node.inputs)
        and not _is_long_sum(node, kind)
    }


def _halves(node: ir.Node, opset: int, kind: HalfType) -> tuple[list[int], list[int]] | None:
    """Return which inputs and outputs change their type, or None when the operator cannot."""
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    able = {
        c.type_param_str for c in schema.type_constraints if kind.spelled in c.allowed_type_strs
    }
    ins = [
        i
        for i, v in enumerate(node.inputs)
        if v is not None
        and v.dtype == ir.DataType.FLOAT
        and _formal(schema.inputs, i).type_str in able
    ]
    changed = {_formal(schema.inputs, i).type_str for i in ins}
    floats = [i for i, v in enumerate(node.outputs) if v.name and v.dtype == ir.DataType.FLOAT]
    outs = [i for i in floats if _formal(schema.outputs, i).type_str in changed]
    untyped = any(v.name and v.dtype is None for v in node.outputs)
    return (ins, outs) if ins and outs == floats and not untyped else None


def _formal(formals: object, index: int) -> onnx.defs.OpSchema.FormalParameter:
    items = list(formals)  # type: ignore[call-overload]
    return items[min(index, len(items) - 1)]


def _spoiled(node: ir.Node, value: ir.Value | None, kind: HalfType) -> bool:
    """Whether a constant operand loses its meaning in the type."""
    if value is None or value.const_value is None or value.dtype != ir.DataType.FLOAT:
        return False
    array = np.abs(value.const_value.numpy())
    finite = array[np.isfinite(array) & (array > 0)]
    if finite.size == 0:
        return False
    if finite.max() > kind.largest:
        masking = node.op_type in _MASKING
        return not (masking and _is_mask(value.const_value.numpy(), kind.largest))
    if kind.least and _is_floor(node, value):
        return False
    return bool(np.mean(finite < kind.smallest) > 0.5)


def _is_floor(node: ir.Node, value: ir.Value) -> bool:
    """Whether an operand is one number above zero that results are kept from falling below."""
    if value.const_value is None or value.const_value.size != 1:
        return False
    bounds = node.inputs[1:2] if node.op_type == "Clip" else node.inputs
    is_bound = node.op_type in ("Clip", "Max") and any(v is value for v in bounds)
    return is_bound and bool(value.const_value.numpy().item() > 0)


def only_masks(node: ir.Node, value: ir.Value) -> bool:
    """Whether an operand is a constant that says "far below everything" to an operator."""
    if value.const_value is None or value.dtype != ir.DataType.FLOAT:
        return False
    if node.op_type not in _MASKING:
        return False
    array = value.const_value.numpy()
    return bool(np.any(array < -LARGEST)) and _is_mask(array, LARGEST)


def _is_mask(array: Array, largest: float) -> bool:
    """Whether a constant says "far below everything" and else holds ordinary numbers."""
    huge = np.abs(array) > largest
    return bool(np.all(array[huge] < 0))


def _is_long_sum(node: ir.Node, kind: HalfType) -> bool:
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    if not kind.long_sum or weight is None or weight.shape is None:
        return False
    dims = [d if isinstance(d, int) else 0 for d in weight.shape]
    if node.op_type == "MatMul":
        return len(dims) > 1 and dims[-2] >= kind.long_sum
    if node.op_type == "Gemm":
        transposed = "transB" in node.attributes and node.attributes["transB"].as_int()
        return dims[1 if transposed else 0] >= kind.long_sum
    return node.op_type == "Conv" and int(np.prod(dims[1:])) >= kind.long_sum


def _join_islands(model: ir.Model, chosen: set[ir.Node], bridges: AbstractSet[str]) -> None:
    """Take back nodes without weights between islands: the casts cost more than they save."""
    while True:
        back = {n for n in chosen if not _has_weights(n) and _is_surrounded(n, chosen, bridges)}
        if not back:
            return
        chosen -= back


def _has_weights(node: ir.Node) -> bool:
    constants = [v.const_value for v in node.inputs if v is not None]
    return any(c is not None and c.size > 64 for c in constants)


def _is_surrounded(node: ir.Node, chosen: set[ir.Node], bridges: AbstractSet[str]) -> bool:
    makers = [v.producer() for v in node.inputs if v is not None and v.dtype == ir.DataType.FLOAT]
    users = [user for v in node.outputs for user, _ in v.uses()]
    beside = [n for n in (*makers, *users) if n is not None]
    return not any(n in chosen or n.op_type in bridges for n in beside)


class _Rewriter:
    """Changes types and puts casts at the borders, one for each value and direction."""

    def __init__(
        self, model: ir.Model, chosen: set[ir.Node], notes: Remarks, kind: HalfType
    ) -> None:
        self.model, self.graph, self.chosen, self.notes = model, model.graph, chosen, notes
        self.kind = kind
        self.namer = Namer(model)
        self.halved: dict[ir.Value, ir.Value] = {}
        opset = model.opset_imports.get("", 0)
        # Decided before any type changes; afterwards the nodes no longer look the same.
        self.sides = {n: s for n in chosen if (s := _halves(n, opset, kind)) is not None}

    def run(self) -> None:
        """Rewrite the graph."""
        nodes = [node for node in self.graph if node in self.chosen]
        for node in nodes:
            for index in self.sides[node][0]:
                value = node.inputs[index]
                if value is not None:
                    node.replace_input_with(index, self._half(value))
        for node in nodes:
            self._outputs(node)

    def _half(self, value: ir.Value) -> ir.Value:
        """Return the form of an operand in two bytes."""
        maker = value.producer()
        if maker in self.chosen:
            return value
        if value not in self.halved:
            constant = value.const_value is not None and not value.is_graph_input()
            self.halved[value] = self._constant(value) if constant else self._cast_down(value)
        return self.halved[value]

    def _constant(self, value: ir.Value) -> ir.Value:
        if value.const_value is None:
            raise ValueError(f"{value.name!r} is not constant")
        array = value.const_value.numpy()
        kind = self.kind
        if np.any(low := np.isfinite(array) & (array < -kind.largest)):
            array = np.where(low, np.float32(kind.masked), array)
            end, masked = _short(-kind.largest), _short(kind.masked)
            self.notes.add(f"{kind.name}: {value.name!r}: values below {end} became {masked}")
        if array.size == 1 and 0 < array.item() < kind.least:
            array = np.full_like(array, kind.least)
        name = self.namer.fresh(f"{value.name}.{kind.name}")
        tensor = ir.tensor(array.astype(kind.dtype.numpy()), name=name)
        half = ir.Value(
            name=name,
            shape=value.shape,
            type=ir.TensorType(kind.dtype),
            const_value=tensor,
        )
        self.graph.register_initializer(half)
        return half

    def _cast_down(self, value: ir.Value) -> ir.Value:
        maker = value.producer()
        source = None if maker is None or maker.op_type != "Cast" else maker.inputs[0]
        # What was a whole number needs no float in between.
        start = value if source is None or source.dtype not in _WHOLE else source
        cast, half = self._cast(start, self.kind.dtype, f"{value.name}.{self.kind.name}")
        if maker is None:
            self.graph.insert_before(self.graph[0], cast)
        else:
            self.graph.insert_after(maker, cast)
        return half

    def _cast(self, value: ir.Value, to: ir.DataType, name: str) -> tuple[ir.Node, ir.Value]:
        cast = ir.node("Cast", [value], {"to": to.value})
        made = cast.outputs[0]
        made.name, made.dtype, made.shape = self.namer.fresh(name), to, value.shape
        return cast, made

    def _outputs(self, node: ir.Node) -> None:
        for index in self.sides[node][1]:
            value = node.outputs[index]
            # A new type: a clone shares its types with the source, and ``dtype`` writes into them.
            value.type = ir.TensorType(self.kind.dtype)
            single = [(user, i) for user, i in value.uses() if not self._takes_half(user, i)]
            if not single and not value.is_graph_output():
                continue
            cast, full = self._cast(value, ir.DataType.FLOAT, f"{value.name}.fp32")
            for user, i in single:
                user.replace_input_with(i, full)
            self.graph.insert_after(node, cast)
            if value.is_graph_output():
                self._give_out(value, full)

    def _takes_half(self, user: ir.Node, index: int) -> bool:
        return user in self.chosen and index in self.sides[user][0]

    def _give_out(self, value: ir.Value, full: ir.Value) -> None:
        for index, output in enumerate(self.graph.outputs):
            if output is value:
                self.graph.outputs[index] = full
        full.name, value.name = value.name, self.namer.fresh(f"{value.name}.{self.kind.name}")
