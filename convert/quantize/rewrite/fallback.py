"""Narrow forms for the layers that an accuracy budget keeps from 8-bit integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.dead_code import RemoveDeadCode
from edgeinfer.convert.passes.infra import Namer, add_initializer, constant
from edgeinfer.convert.quantize.calibrate.ranges import Range, Scale, scale_of
from edgeinfer.convert.quantize.rewrite.weight_only import is_product, measured
from edgeinfer.convert.quantize.rewrite.weights import mark, store
from edgeinfer.convert.quantize.units import WEIGHTED, array_of, clip_after, weights_axis
from edgeinfer.profiles.schema import Quantization
from edgeinfer.types import Array

FORMS: dict[str, str] = {
    "wi8": "weights alone in 8 bits",
    "ai16": "weights in 8 bits, activations in 16",
    "dynamic": "8 bits, activations with a scale of their own in each run",
    "fp16": "weights in half precision",
    "fp32": "float",
}
"""What may become of such a layer, and how to say it."""

SMALLEST = 256
"""Weights of fewer elements stay as they are: they would save nothing."""


def apply(
    model: ir.Model,
    kept: AbstractSet[str],
    form: str,
    limits: Quantization,
    ranges: Mapping[str, Range],
) -> int:
    """Rewrite kept layers in place.

    Args:
        model: written with scales; kept layers are float in it.
        kept: their names.
        form: one of ``FORMS``.
        limits: Limits of the target.
        ranges: by name of a value.

    Returns:
        How many layers have the form now.
    """
    if form == "fp32":
        return 0
    write: Callable[[_Writer, ir.Node], bool] = {
        "wi8": _Writer.alone,
        "ai16": _Writer.wide,
        "dynamic": _Writer.dynamic,
        "fp16": _Writer.half,
    }[form]
    writer = _Writer(model, limits, ranges)
    done = sum(write(writer, n) for n in list(model.graph) if n.name in kept and _fits(n))
    RemoveDeadCode()(model)
    return done


def candidates(model: ir.Model, kept: AbstractSet[str]) -> list[str]:
    """Return the names of the kept layers that a form can be given to."""
    return [n.name or "" for n in model.graph if n.name in kept and _fits(n)]


def _fits(node: ir.Node) -> bool:
    if node.domain or node.op_type not in WEIGHTED or len(node.inputs) < 2:
        return False
    tensor = constant(node.inputs[1])
    if tensor is None or tensor.size < SMALLEST or tensor.dtype != ir.DataType.FLOAT:
        return False
    return len(tensor.shape) == 2 or node.op_type in ("Conv", "ConvTranspose")


class _Writer:
    """Rewrites layers of one model."""

    def __init__(self, model: ir.Model, limits: Quantization, ranges: Mapping[str, Range]) -> None:
        self._model, self._limits, self._ranges = model, limits, ranges
        self._namer = Namer(model)

    def alone(self, node: ir.Node) -> bool:
        """Store the weights in 8 bits; they are floats again before they are used."""
        self.narrow(node)
        mark(node.inputs[1], "float")
        return True

    def narrow(self, node: ir.Node) -> bool:
        """Store the weights in 8 bits."""
        weights = node.inputs[1]
        name = (weights.name if weights is not None else "") or "weights"
        groups = node.attributes.get("group")
        grouped = node.op_type == "ConvTranspose" and groups is not None and groups.as_int() > 1
        per_channel = node.op_type in self._limits.per_channel and not grouped
        made = store(array_of(weights), weights_axis(node) if per_channel else None, name=name)
        operands = [self._add(f"{name}.int", made.values), self._add(f"{name}.scale", made.scale)]
        if not self._limits.bare_weights:
            zeros = np.zeros(made.scale.shape, made.values.dtype)
            operands.append(self._add(f"{name}.zero", zeros))
        attributes = {} if made.axis is None else {"axis": made.axis}
        dequantize = ir.node("DequantizeLinear", operands, attributes)
        self._before(node, 1, dequantize, f"{name}.dq", ir.DataType.FLOAT)
        return True

    def dynamic(self, node: ir.Node) -> bool:
        """Let activations be measured in each run, where the target has a kernel for it."""
        if self._limits.format == "onnx":
            fits = is_product(node)
            if fits:
                measured(self._model, node, self._namer)
            return fits
        self.narrow(node)
        mark(node.inputs[1], "dynamic")
        return True

    def half(self, node: ir.Node) -> bool:
        """Store the weights in half precision, if it holds them."""
        weights = node.inputs[1]
        array = array_of(weights)
        if not np.abs(array).max(initial=0) < np.finfo(np.float16).max:
            return False
        name = (weights.name if weights is not None else "") or "weights"
        stored = self._add(f"{name}.half", array.astype(np.float16))
        cast = ir.node("Cast", [stored], {"to": int(ir.DataType.FLOAT)})
        self._before(node, 1, cast, f"{name}.single", ir.DataType.FLOAT)
        return True

    def wide(self, node: ir.Node) -> bool:
        """Round what goes in and what comes out to 16 bits, and the weights to 8."""
        source, last = node.inputs[0], node
        if (clip := clip_after(node.outputs[0])) is not None:
            last = clip
        result = last.outputs[0]
        before = self._scale(_origin(source)) if source is not None else None
        after = self._scale(result.name or "")
        if source is None or before is None or after is None or result.is_graph_output():
            return False
        self.narrow(node)
        node.replace_input_with(0, self._rounded(source, before, node, after=False))
        uses = list(result.uses())
        rounded = self._rounded(result, after, last, after=True)
        for user, index in uses:
            user.replace_input_with(index, rounded)
        return True

    def _scale(self, name: str) -> Scale | None:
        span = self._ranges.get(name)
        return None if span is None else scale_of(span, "int16")

    def _rounded(self, value: ir.Value, scale: Scale, node: ir.Node, *, after: bool) -> ir.Value:
        name = value.name or "value"
        factor = self._add(f"{name}.scale16", np.array(scale.scale, np.float32))
        zero = self._add(f"{name}.zero16", np.array(0, np.int16))
        quantize = ir.node("QuantizeLinear", [value, factor, zero])
        dequantize = ir.node("DequantizeLinear", [quantize.outputs[0], factor, zero])
        kinds = ((quantize, "q16", ir.DataType.INT16), (dequantize, "dq16", ir.DataType.FLOAT))
        for made, suffix, kind in kinds:
            out = made.outputs[0]
            out.name = made.name = self._namer.fresh(f"{name}.{suffix}")
            out.type = ir.TensorType(kind)
            out.shape = None if value.shape is None else value.shape.copy()
        place = self._model.graph.insert_after if after else self._model.graph.insert_before
        place(node, [quantize, dequantize])
        return dequantize.outputs[0]

    def _add(self, name: str, array: Array) -> ir.Value:
        return add_initializer(self._model.graph, self._namer.fresh(name), array)

    def _before(
        self, node: ir.Node, index: int, made: ir.Node, name: str, dtype: ir.DataType
    ) -> None:
        old, out = node.inputs[index], made.outputs[0]
        out.name = made.name = self._namer.fresh(name)
        out.type = ir.TensorType(dtype)
        out.shape = None if old is None or old.shape is None else old.shape.copy()
        self._model.graph.insert_before(node, made)
        node.replace_input_with(index, out)


def _origin(value: ir.Value) -> str:
    """Return the name of the float value that a rounded one is of."""
    maker = value.producer()
    if maker is not None and maker.op_type == "DequantizeLinear" and maker.inputs[0] is not None:
        rounding = maker.inputs[0].producer()
        if rounding is not None and rounding.op_type == "QuantizeLinear":
            first = rounding.inputs[0]
            return (first.name if first is not None else "") or ""
    return value.name or ""
