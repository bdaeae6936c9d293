"""Write scales into the graph: ``QuantizeLinear`` and ``DequantizeLinear`` around each unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field, replace

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.dead_code import RemoveDeadCode
from edgeinfer.convert.passes.infra import Namer, add_initializer, constant
from edgeinfer.convert.passes.shapes import InferShapes
from edgeinfer.convert.quantize.calibrate.histogram import Histogram
from edgeinfer.convert.quantize.calibrate.ranges import Range, Scale, scale_of
from edgeinfer.convert.quantize.rewrite.exact_scales import settle
from edgeinfer.convert.quantize.rewrite.same_attention import attentions, level, write_attention
from edgeinfer.convert.quantize.rewrite.same_norms import write_norms
from edgeinfer.convert.quantize.rewrite.shared_weights import Member, commons
from edgeinfer.convert.quantize.rewrite.weights import (
    StoredIntegers,
    mark,
    store,
    store_bias,
    store_floats,
)
from edgeinfer.convert.quantize.units import (
    STATEFUL_AXIS,
    Layout,
    Unit,
    array_of,
    lay_out,
    stateful_weights,
    weights_axis,
)
from edgeinfer.profiles.schema import FLOAT8, Quantization
from edgeinfer.records import dataclass
from edgeinfer.types import Array

_TYPES = {
    "int8": ir.DataType.INT8,
    "uint8": ir.DataType.UINT8,
    "int16": ir.DataType.INT16,
    FLOAT8: ir.DataType.FLOAT8E4M3FN,
}


_EIGHTS = frozenset({"int8", "uint8"})

_AS_FAR = 1.25
"""Ends of a table's range are as far from zero as each other up to this ratio."""


@dataclass(frozen=True, slots=True)
class WrittenScales:
    """A graph with scales in it.

    Attributes:
        model: a copy of what was given.
        units: operator and name of each unit that computes with integers.
        scales: by name of a value in the source graph.
        float_nodes: operator and name of the nodes with weights that stayed float.
        divided: by name of a value in the source graph, by what it is smaller in the copy.
    """

    model: ir.Model
    units: tuple[tuple[str, str], ...]
    scales: dict[str, Scale]
    float_nodes: tuple[tuple[str, str], ...] = ()
    divided: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Writer:
    model: ir.Model
    limits: Quantization
    scales: dict[ir.Value, Scale]
    namer: Namer
    biases: Mapping[str, Array]
    _read: dict[ir.Value, ir.Value] = field(default_factory=dict)
    _parameters: dict[tuple[float, int, str], tuple[ir.Value, ir.Value]] = field(
        default_factory=dict
    )
    tied: dict[tuple[ir.Value, int | None], Member] = field(default_factory=dict)
    _constants: dict[object, ir.Value] = field(default_factory=dict)

    def dequantized(self, value: ir.Value) -> ir.Value:
        """Return the value after its rounding to integers."""
        if value not in self._read:
            self._read[value] = self._round(value, self.scales[value])
        return self._read[value]

    def _round(self, value: ir.Value, scale: Scale) -> ir.Value:
        factor, zero = self._parameter(scale)
        quantize = ir.node("QuantizeLinear", [value, factor, zero])
        dequantize = ir.node("DequantizeLinear", [quantize.outputs[0], factor, zero])
        self._name(quantize, f"{value.name}.q", _TYPES[scale.dtype], value)
        self._name(dequantize, f"{value.name}.dq", ir.DataType.FLOAT, value)
        graph, maker = self.model.graph, value.producer()
        if maker is None:
            graph.insert_before(graph[0], [quantize, dequantize])
        else:
            graph.insert_after(maker, [quantize, dequantize])
        return dequantize.outputs[0]

    def _name(self, node: ir.Node, name: str, dtype: ir.DataType, like: ir.Value) -> None:
        out = node.outputs[0]
        out.name = self.namer.fresh(name)
        node.name = out.name
        out.type = ir.TensorType(dtype)
        out.shape = None if like.shape is None else like.shape.copy()

    def _parameter(self, scale: Scale) -> tuple[ir.Value, ir.Value]:
        key = (scale.scale, scale.zero, scale.dtype)
        if key not in self._parameters:
            name = self.namer.fresh("quantization.scale")
            factor = add_initializer(self.model.graph, name, np.array(scale.scale, np.float32))
            name = self.namer.fresh("quantization.zero")
            zero = add_initializer(self.model.graph, name, np.array(scale.zero, scale.dtype))
            self._parameters[key] = factor, zero
        return self._parameters[key]

    def constant(self, stored: StoredIntegers, name: str, before: ir.Node) -> ir.Value:
        """Add integers and the node that gives them back as floats."""
        graph = self.model.graph
        values = self._integers(stored, name)
        scale = add_initializer(graph, self.namer.fresh(f"{name}.scale"), stored.scale)
        inputs = [values, scale]
        if stored.values.dtype != np.int32 and not self.limits.bare_weights:
            zeros = np.zeros(stored.scale.shape, stored.values.dtype)
            inputs.append(add_initializer(graph, self.namer.fresh(f"{name}.zero"), zeros))
        attributes = {} if stored.axis is None else {"axis": stored.axis}
        node = ir.node("DequantizeLinear", inputs, attributes)
        self._name(node, f"{name}.dq", ir.DataType.FLOAT, values)
        graph.insert_before(before, node)
        return node.outputs[0]

    def _integers(self, stored: StoredIntegers, name: str) -> ir.Value:
        """Add integers; those that several nodes read with scales of their own are added once."""
        graph, namer = self.model.graph, self.namer
        known = next((m for m in self.tied.values() if m.holds(stored.values)), None)
        if known is None:
            return add_initializer(graph, namer.fresh(f"{name}.int"), stored.values)
        transposed = stored.values is not known.common.stored.values
        key = ("integers", known.common.value, transposed)
        if key not in self._constants:
            # A format that can transpose it when it is opened stores it once
            # (``lower/transposed_weights.py``).
            array = np.ascontiguousarray(stored.values)
            self._constants[key] = add_initializer(graph, namer.fresh(f"{name}.int"), array)
        return self._constants[key]

    def bias(self, unit: Unit) -> Array | None:
        """Return the bias of a convolution or product, one number for each channel."""
        node, place = unit.nodes[0], self._bias_place(unit)
        found = None if place is None else self.biases.get(unit.name)
        if place is not None and found is None:
            found = array_of(place[0].inputs[place[1]])
        channels = array_of(node.inputs[1]).shape[weights_axis(node)] * _parts(node)
        return None if found is None else np.broadcast_to(found.ravel(), (channels,))

    def steps(self, unit: Unit) -> Array | None:
        """Return the bias over the scale of the activations."""
        flat = self.bias(unit)
        return None if flat is None else flat.astype(np.float64) / self.scales[unit.reads[0]].scale

    def weighted(self, unit: Unit) -> None:
        """Quantize the weights and the bias of a convolution or product."""
        node = unit.nodes[0]
        x, w = unit.reads[0], node.inputs[1]
        place, flat = self._bias_place(unit), self.bias(unit)
        axis, scale = self.axis(node), self.scales[x]
        name = (w.name if w is not None else "") or "weights"
        if scale.dtype == FLOAT8:
            stored = store_floats(array_of(w), axis, name=name)
        else:
            per_step = self._per_step(scale, self.scales.get(unit.result))
            member = None if w is None else self.tied.get((w, axis))
            shared = None if member is None else member.scaled(per_step)
            stored = shared or store(
                array_of(w), axis, bias_steps=self.steps(unit), name=name, per_step=per_step
            )
        node.replace_input_with(1, self._shared(stored, name))
        node.replace_input_with(0, self.dequantized(x))
        if place is not None and flat is not None:
            self._write_bias(place, flat, scale, stored, node)

    @staticmethod
    def _per_step(before: Scale, after: Scale | None) -> float | None:
        """Return by what sums of products are multiplied, but for the scale of the weights."""
        eights = after is not None and {before.dtype, after.dtype} <= _EIGHTS
        return float(before.scale) / float(after.scale) if eights and after is not None else None

    def _shared(self, stored: StoredIntegers, name: str) -> ir.Value:
        """Use the integers of a weight that several nodes read once only."""
        key = (name, stored.axis, stored.scale.tobytes())
        if key not in self._constants:
            self._constants[key] = self.constant(stored, name, self.model.graph[0])
        return self._constants[key]

    def _write_bias(
        self,
        place: tuple[ir.Node, int],
        flat: Array,
        scale: Scale,
        stored: StoredIntegers,
        node: ir.Node,
    ) -> None:
        user, index = place
        name = user.inputs[index].name if user.inputs[index] is not None else "bias"  # type: ignore[union-attr]
        if scale.dtype not in ("int16", FLOAT8):
            per_channel = stored.scale
            if per_channel.ndim == 0:
                per_channel = np.full(flat.size, per_channel, np.float32)
            made = store_bias(flat, scale.scale, per_channel)
            if user is node and not self.limits.float_bias:
                user.replace_input_with(index, self.constant(made, name or "bias", node))
                return
            # A part of a product's step would bring back ties that the scales have none of.
            flat = made.floats()
        # The sum behind a product is the engine's to fuse; 16-bit data has a 64-bit bias, and
        # products of floats have floats.
        fresh = add_initializer(
            self.model.graph, self.namer.fresh(f"{name}.bias"), flat.astype(np.float32)
        )
        user.replace_input_with(index, fresh)

    def _bias_place(self, unit: Unit) -> tuple[ir.Node, int] | None:
        node = unit.nodes[0]
        if len(node.inputs) > 2 and node.inputs[2] is not None:
            return node, 2
        for user in unit.nodes[1:]:
            if user.op_type == "Add":
                return user, next(i for i, v in enumerate(user.inputs) if constant(v) is not None)
        return None

    def axis(self, node: ir.Node) -> int | None:
        """Return the axis of the channels of a node's weights; None with one scale for all."""
        if node.op_type not in self.limits.per_channel:
            return None
        return None if _parts(node) > 1 else weights_axis(node)

    def light(self, unit: Unit) -> None:
        """Quantize the operands of a lighter operator; constants get a scale of their own."""
        node = unit.nodes[0]
        for index, value in enumerate(node.inputs):
            if value is None:
                continue
            if value in unit.reads:
                node.replace_input_with(index, self.dequantized(value))
            elif value.dtype == ir.DataType.FLOAT and constant(value) is not None:
                node.replace_input_with(index, self._operand(value, node, unit))

    def table(self, unit: Unit) -> None:
        """Store the rows that are taken out of a constant as integers."""
        node, out = unit.nodes[0], unit.result
        source = node.inputs[0]
        array, name = array_of(source), (source.name if source is not None else "") or "table"
        scale = self.scales.get(out)
        member = None if source is None else self.tied.get((source, 0))
        if member is None and scale is not None and "Gather" in self.limits.moves:
            bare = self.limits.bare_weights and scale.dtype == "uint8" and scale.zero == 128
            kept = replace(scale, zero=0, dtype="int8") if bare else scale
            low, high = kept.ends
            steps = np.clip(np.rint(array / np.float32(kept.scale)) + kept.zero, low, high)
            stored = add_initializer(
                self.model.graph, self.namer.fresh(f"{name}.int"), steps.astype(kept.dtype)
            )
            take = self._after(node, "Gather", [stored, node.inputs[1]], f"{out.name}.q", out)
            operands = [take.outputs[0], *self._parameter(kept)[: 1 if bare else 2]]
            made = self._after(take, "DequantizeLinear", operands, f"{out.name}.dq", out)
            self._read[out] = made.outputs[0]
            return
        # A scale for each row: with one for each column OpenVINO writes beyond its memory.
        made_rows = self._rows(array, name, member, scale)
        if not self.limits.late_tables:
            node.replace_input_with(0, self._shared(made_rows, name))
            return
        graph = self.model.graph
        stored = self._integers(made_rows, name)
        steps = made_rows.scale.reshape(-1, 1)
        factor = add_initializer(graph, self.namer.fresh(f"{name}.scale"), steps)
        take = self._after(node, "Gather", [stored, node.inputs[1]], f"{out.name}.q", out)
        cast = self._after(take, "Cast", [take.outputs[0]], f"{out.name}.f", out)
        own = self._after(cast, "Gather", [factor, node.inputs[1]], f"{out.name}.s", None)
        both = [cast.outputs[0], own.outputs[0]]
        rows = self._after(own, "Mul", both, f"{out.name}.dq", out).outputs[0]
        if scale is not None:
            # What reads the table's rows still looks for them by their value; see ``finish``.
            self._read[out] = self._round(rows, scale)
            return
        for user, index in list(out.uses()):
            user.replace_input_with(index, rows)
        if out.is_graph_output():
            self._replace_output(out, rows)

    def _rows(
        self, array: Array, name: str, member: Member | None, after: Scale | None
    ) -> StoredIntegers:
        """Return a table with a scale for each row, and the integers of a product if it has them.

        Rows are whole steps of what they are rounded to, or nearly: none is rounded from halfway.
        """
        if member is not None:
            per_step = 1.0 / after.scale if after is not None and after.dtype in _EIGHTS else None
            shared = member.scaled(per_step, exact=per_step is None)
            if shared is not None:
                return shared
        return store(array, 0, name=name, exact=True)

    def _after(
        self,
        place: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        like: ir.Value | None,
    ) -> ir.Node:
        """Add a node behind another one; it gives floats unless it takes integers only."""
        attributes = {"to": int(ir.DataType.FLOAT)} if op_type == "Cast" else {}
        node = ir.node(op_type, inputs, attributes)
        source = inputs[0]
        kind = ir.DataType.FLOAT
        if op_type == "Gather" and source is not None and source.dtype is not None:
            kind = source.dtype
        out = node.outputs[0]
        out.name = node.name = self.namer.fresh(name)
        out.type = ir.TensorType(kind)
        out.shape = None if like is None or like.shape is None else like.shape.copy()
        self.model.graph.insert_after(place, node)
        return node

    def recurrent(self, unit: Unit) -> None:
        """Store the weights of an operator with a state, one scale for each row of a gate."""
        node = unit.nodes[0]
        for place in stateful_weights(node):
            value = node.inputs[place]
            name = (value.name if value is not None else "") or "weights"
            stored = store(array_of(value), STATEFUL_AXIS, name=name)
            node.replace_input_with(place, made := self._shared(stored, name))
            mark(made, "dynamic")

    def _operand(self, value: ir.Value, node: ir.Node, unit: Unit) -> ir.Value:
        array = array_of(value).astype(np.float32)
        span = Range(float(min(array.min(initial=0), 0)), float(max(array.max(initial=0), 0)))
        dtype = self.scales[unit.reads[0]].dtype
        # Symmetric, as weights are: the one form that every target reads.
        scale = scale_of(span, dtype, symmetric=True)
        if node.op_type in self.limits.joined:
            scale = self.scales[unit.reads[0]]
        low, high = scale.ends
        steps = np.clip(np.rint(array / np.float32(scale.scale)) + scale.zero, low, high)
        graph, name = self.model.graph, value.name or "constant"
        made = add_initializer(graph, self.namer.fresh(f"{name}.int"), steps.astype(dtype))
        factor, zero = self._parameter(scale)
        dequantize = ir.node("DequantizeLinear", [made, factor, zero])
        self._name(dequantize, f"{name}.dq", ir.DataType.FLOAT, made)
        graph.insert_before(node, dequantize)
        return dequantize.outputs[0]

    def finish(self, layout: Layout) -> None:
        """Let float operators and outputs read what integers were rounded to."""
        units = (u for u in layout.units if u.kind != "recurrent")
        made = {v for u in units for v in u.nodes[-1].outputs if v in layout.stored}
        for value in sorted(made, key=lambda v: v.name or ""):
            rounded = self.dequantized(value)
            maker = rounded.producer()
            source = maker.inputs[0] if maker is not None else None
            rounding = source.producer() if source is not None else None
            for user, index in list(value.uses()):
                if user is not rounding:
                    user.replace_input_with(index, rounded)
            if value.is_graph_output():
                self._replace_output(value, rounded)

    def _replace_output(self, value: ir.Value, rounded: ir.Value) -> None:
        outputs = self.model.graph.outputs
        for index, output in enumerate(list(outputs)):
            if output is value:
                outputs[index] = rounded
        name = value.name
        value.name = self.namer.fresh(f"{name}.float")
        rounded.name = name


def write(
    model: ir.Model,
    limits: Quantization,
    ranges: Mapping[str, Range],
    *,
    bits: int = 8,
    kept: AbstractSet[str] = frozenset(),
    biases: Mapping[str, Array] | None = None,
    lengths: Mapping[str, Histogram] | None = None,
) -> WrittenScales:
    """Return a copy with every unit between rounded operands.

    Args:
        model: normalised; it is not modified.
        limits: what the target computes with integers.
        ranges: by name of a value.
        bits: Number of bits of activations, 8 or 16.
        kept: names of units that stay float.
        biases: corrected biases, by name of the unit.
        lengths: Lengths of the vectors that are normalised, by name of the normalisation.
    """
    model = model.clone()
    layout = lay_out(model, limits, kept)
    scales = _scales(model, layout, limits, {**ranges, **_tables(layout, ranges)}, bits)
    named = {v.name or "": s for v, s in scales.items()}
    weighted = {u.nodes[0] for u in layout.units if u.kind == "weighted"}
    left = tuple(
        (n.op_type, n.name or "")
        for n in model.graph
        if n.op_type in limits.ops and n not in weighted and _has_weights(n)
    )
    names = tuple((u.op, u.name) for u in layout.units if u.kind != "move")
    same = limits.same_bits and bits == 8 and limits.activations in _EIGHTS
    found = attentions(layout, scales, model.graph) if same else []
    before = level(found, layout, scales, model)
    own = {
        u.name: biases[u.name] / before.get(u.result, 1.0)
        for u in layout.units
        if biases and u.name in biases
    }
    writer = _Writer(model, limits, scales, Namer(model), own)
    if limits.activations != FLOAT8:
        writer.tied = commons(layout.units, writer.axis, writer.steps)
    for unit in layout.units:
        if unit.kind == "weighted":
            writer.weighted(unit)
        elif unit.kind == "table":
            writer.table(unit)
        elif unit.kind == "recurrent":
            writer.recurrent(unit)
        else:
            writer.light(unit)
    writer.finish(layout)
    if same and weighted:
        made = write_attention(model, found, before) + write_norms(model, lengths or {})
        if made:
            InferShapes()(model)
    RemoveDeadCode()(model)
    return WrittenScales(model, names, named, left, {v.name or "": s for v, s in before.items()})


def _tables(layout: Layout, ranges: Mapping[str, Range]) -> dict[str, Range]:
    """Let the range of what comes out of a table cover the rows that calibration did not take."""
    found = {}
    for unit in layout.units:
        if unit.kind == "table":
            array, name = array_of(unit.nodes[0].inputs[0]), unit.result.name or ""
            whole = Range(min(0.0, float(array.min())), max(0.0, float(array.max())))
            found[name] = ranges[name].joined(whole) if name in ranges else whole
    return found


def _parts(node: ir.Node) -> int:
    """Return into how many groups the axis of output channels is parted: of one alone it holds."""
    groups = node.attributes.get("group")
    return groups.as_int() if node.op_type == "ConvTranspose" and groups is not None else 1


def _has_weights(node: ir.Node) -> bool:
    return any(
        v is not None and (t := constant(v)) is not None and t.size > 64 for v in node.inputs[1:2]
    )


def _scales(
    model: ir.Model,
    layout: Layout,
    limits: Quantization,
    ranges: Mapping[str, Range],
    bits: int,
) -> dict[ir.Value, Scale]:
    dtype = "int16" if bits == 16 else limits.activations
    tables = {unit.result for unit in layout.units if unit.kind == "table"}
    found: dict[ir.Value, Scale] = {}
    for members in layout.members().values():
        spans = [ranges[v.name or ""] for v in members if v.name in ranges]
        if not spans:
            names = ", ".join(repr(v.name) for v in members)
            raise KeyError(f"no range was measured for {names}")
        span = spans[0]
        for other in spans[1:]:
            span = span.joined(other)
        # What is as far from zero on both sides needs no zero point: on a Xeon with AMX OpenVINO
        # took twice as long for a net with one between its table and its convolution.
        ends = sorted((-span.low, span.high))
        centred = not tables.isdisjoint(members) and ends[1] <= _AS_FAR * ends[0]
        scale = scale_of(span, dtype, symmetric=limits.symmetric or centred)
        found.update(dict.fromkeys(members, scale))
    if dtype in _EIGHTS:
        settle(layout, found, model, symmetric=limits.symmetric)
    return found
