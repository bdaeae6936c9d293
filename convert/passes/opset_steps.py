"""The steps between operator versions: what ``opset`` applies, as a table.

A step takes a node from the version before to the version it is registered for. Forms that hold
in between need no step. Where the specification left a result open, the step keeps what ONNX
Runtime computes, because that is what users of the older model have seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.families import REDUCTIONS
from edgeinfer.convert.passes.infra import (
    Namer,
    add_initializer,
    attr,
    constant,
    input_at,
    replace_node,
    small,
    used_outputs,
)
from edgeinfer.convert.passes.scan_batches import by_sequence
from edgeinfer.errors import SourceError
from edgeinfer.types import Array


class CannotRaiseError(Exception):
    """A node has no equal in a newer opset; never leaves the passes."""


class Edit:
    """Changes one node, in place or by new nodes."""

    def __init__(self, node: ir.Node, namer: Namer) -> None:
        self.node = node
        self.nodes: list[ir.Node] = []
        self.namer = namer
        self._base = node.outputs[0].name or node.op_type

    def const(self, array: Array, what: str) -> ir.Value:
        """A constant in the node's graph."""
        if self.node.graph is None:
            raise ValueError("the node is in no graph")
        return add_initializer(
            self.node.graph, self.namer.fresh(f"{self._base}_{what}"), np.asarray(array)
        )

    def int64(self, values: Any, what: str) -> ir.Value:
        """A constant of int64, 1-D unless a scalar is given."""
        return self.const(np.asarray(values, np.int64), what)

    def op(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Add a node with one output before the node that is being replaced."""
        new = ir.node(op_type, list(inputs), attributes=attributes or None)
        new.outputs[0].name = self.namer.fresh(f"{self._base}_{op_type}")
        if inputs and inputs[0] is not None and op_type != "Shape":
            new.outputs[0].dtype = inputs[0].dtype  # type: ignore[assignment]
        new.name = self.namer.fresh(f"{self.node.name or self._base}_{op_type}")
        self.nodes.append(new)
        return new.outputs[0]

    def dropout(self) -> tuple[ir.Value, ir.Value]:
        """Add a Dropout of the same data; its data and its mask."""
        data = self.op("Dropout", self.node.inputs[0])
        new = self.nodes[-1]
        new.resize_outputs(2)
        new.outputs[1].name = self.namer.fresh(f"{self._base}_mask")
        new.outputs[1].dtype = ir.DataType.BOOL
        return data, new.outputs[1]

    def become(self, *outputs: ir.Value | None) -> None:
        """Replace the node by the nodes made so far."""
        replace_node(self.node, self.nodes, outputs)

    def add_input(self, index: int, value: ir.Value) -> None:
        """Give the node one more input."""
        if index >= len(self.node.inputs):
            self.node.resize_inputs(index + 1)
        self.node.replace_input_with(index, value)

    def take(self, name: str, default: Any = None) -> Any:
        """Value of an attribute, which is then gone."""
        value = attr(self.node, name, default)
        self.node.attributes.pop(name, None)
        return value


Step = Callable[[ir.Node, Edit], None]
STEPS: dict[tuple[str, int], Step] = {}


def step(version: int, *op_types: str) -> Callable[[Step], Step]:
    """Register a step to ``version`` for some operators."""

    def register(function: Step) -> Step:
        for op_type in op_types:
            if (op_type, version) in STEPS:
                raise ValueError(f"two steps for {op_type} {version}")
            STEPS[op_type, version] = function
        return function

    return register


def _dtype(value: ir.Value | None, node: ir.Node) -> np.dtype[Any]:
    if value is None or value.dtype is None:
        raise CannotRaiseError(f"{node.op_type} {node.name!r}: element type of its input unknown")
    return value.dtype.numpy()


# --- attributes that became inputs -----------------------------------------------------------


@step(13, "Squeeze", "Unsqueeze", "ReduceSum")
@step(18, *sorted(REDUCTIONS - {"ReduceSum"}))
def axes_to_input(node: ir.Node, edit: Edit) -> None:
    """``axes`` became an input; an empty list meant all axes, as leaving it out does."""
    axes = edit.take("axes")
    if axes:
        edit.add_input(1, edit.int64(axes, "axes"))


@step(10, "Slice")
def slice_10(node: ir.Node, edit: Edit) -> None:
    """``starts``, ``ends`` and ``axes`` became inputs."""
    starts, ends, axes = (edit.take(n) for n in ("starts", "ends", "axes"))
    edit.add_input(1, edit.int64(starts, "starts"))
    edit.add_input(2, edit.int64(ends, "ends"))
    if axes is not None:
        edit.add_input(3, edit.int64(axes, "axes"))


@step(10, "TopK")
def topk_10(node: ir.Node, edit: Edit) -> None:
    """``k`` became an input of shape [1]."""
    edit.add_input(1, edit.int64([edit.take("k")], "k"))


@step(11, "Pad")
def pad_11(node: ir.Node, edit: Edit) -> None:
    """``pads`` and ``value`` became inputs."""
    dtype = _dtype(node.inputs[0], node)
    edit.add_input(1, edit.int64(edit.take("pads"), "pads"))
    value = edit.take("value", 0.0)
    if value != 0.0 and attr(node, "mode", "constant") == "constant":
        edit.add_input(2, edit.const(np.asarray(value, dtype), "value"))


@step(11, "Clip")
def clip_11(node: ir.Node, edit: Edit) -> None:
    """``min`` and ``max`` became inputs; float32's limits, their defaults, are still implied."""
    dtype = _dtype(node.inputs[0], node)
    limit = float(np.finfo(np.float32).max)
    for index, (name, default) in enumerate((("min", -limit), ("max", limit)), start=1):
        bound = edit.take(name, default)
        # Wider types have wider limits now; float16 cannot hold this one.
        if abs(bound) < limit or dtype == np.float64:
            edit.add_input(index, edit.const(np.asarray(bound, dtype), name))


@step(13, "Split")
def split_13(node: ir.Node, edit: Edit) -> None:
    """``split`` became an input."""
    sizes = edit.take("split")
    if sizes is not None:
        edit.add_input(1, edit.int64(sizes, "split"))


@step(18, "Split")
def split_18(node: ir.Node, edit: Edit) -> None:
    """Equal parts must now say how many."""
    if input_at(node, 1) is None:
        node.attributes["num_outputs"] = ir.AttrInt64("num_outputs", len(node.outputs))


@step(9, "Upsample")
def upsample_9(node: ir.Node, edit: Edit) -> None:
    """``scales`` became an input."""
    edit.add_input(1, edit.const(np.asarray(edit.take("scales"), np.float32), "scales"))


@step(20, "DFT")
def dft_20(node: ir.Node, edit: Edit) -> None:
    """``axis`` became an input, and its default went from 1 to -2."""
    edit.add_input(2, edit.int64(edit.take("axis", 1), "axis"))


# --- other meaning ---------------------------------------------------------------------------


@step(10, "Dropout")
def dropout_10(node: ir.Node, edit: Edit) -> None:
    """The mask became bool; before it had the type of the data."""
    if _reads_mask(node):
        dtype = node.inputs[0].dtype if node.inputs[0] is not None else None
        if dtype is None:
            raise CannotRaiseError(f"Dropout {node.name!r}: element type of its input unknown")
        data, mask = edit.dropout()
        edit.become(data, edit.op("Cast", mask, to=int(dtype)))


@step(12, "Dropout")
def dropout_12(node: ir.Node, edit: Edit) -> None:
    """``ratio`` became an input that only training reads.

    Outside of training, the mask was all false in ONNX Runtime before and is all true now.
    """
    edit.take("ratio")
    if _reads_mask(node):
        data, mask = edit.dropout()
        edit.become(data, edit.op("Not", mask))


def _reads_mask(node: ir.Node) -> bool:
    return len(node.outputs) > 1 and node.outputs[1] in used_outputs(node)


@step(9, "BatchNormalization")
def batch_normalization_9(node: ir.Node, edit: Edit) -> None:
    """``spatial=0``, statistics per element instead of per channel, went away."""
    if edit.take("spatial", 1) == 1:
        return
    if len(used_outputs(node)) > 1:
        raise CannotRaiseError(f"BatchNormalization {node.name!r}: is in training mode")
    x, scale, bias, mean, var = node.inputs
    dtype = _dtype(x, node)
    epsilon = edit.const(np.asarray(attr(node, "epsilon", 1e-5), dtype), "epsilon")
    deviation = edit.op("Sqrt", edit.op("Add", var, epsilon))
    centred = edit.op("Div", edit.op("Sub", x, mean), deviation)
    y = edit.op("Add", edit.op("Mul", centred, scale), bias)
    edit.become(y, *[None] * (len(node.outputs) - 1))


@step(14, "BatchNormalization")
def batch_normalization_14(node: ir.Node, edit: Edit) -> None:
    """More than one output meant training; now an attribute does."""
    if any(o is not node.outputs[0] for o in used_outputs(node)):
        raise CannotRaiseError(f"BatchNormalization {node.name!r}: is in training mode")
    node.resize_outputs(1)


@step(13, "Softmax", "LogSoftmax", "Hardmax")
def softmax_13(node: ir.Node, edit: Edit) -> None:
    """All axes from ``axis`` (default 1) on were one; now it is one axis (default -1)."""
    x, axis = node.inputs[0], attr(node, "axis", 1)
    if (plain := _single_axis(x, axis)) is not None:
        node.attributes["axis"] = ir.AttrInt64("axis", plain)
        return
    flat = edit.op("Flatten", x, axis=axis)
    result = edit.op(node.op_type, flat, axis=1)
    edit.become(edit.op("Reshape", result, edit.op("Shape", x)))


def _single_axis(x: ir.Value | None, axis: int) -> int | None:
    """The only axis from ``axis`` on that can be longer than one, when that is certain."""
    if x is None or x.shape is None or not -len(x.shape) <= axis < max(len(x.shape), 1):
        return None
    if len(x.shape) == 0:
        return None
    first = axis % len(x.shape)
    long = [i for i in range(first, len(x.shape)) if x.shape[i] != 1]
    if len(long) > 1:
        return None
    single = long[0] if long else first
    return -1 if single == len(x.shape) - 1 else single


@step(10, "Upsample")
def upsample_10(node: ir.Node, edit: Edit) -> None:
    """Upsample became Resize."""
    node.op_type = "Resize"
    node.meta[_GROWS] = True


_GROWS = "edgeinfer.upsample"
"""On a Resize that was an Upsample, whose scales are not below 1."""


@step(11, "Resize")
def resize_11(node: ir.Node, edit: Edit) -> None:
    """Before 11: output index / scale, rounded down when growing and up when shrinking.

    The specification did not say how; this is ONNX Runtime's rule, chosen axis by axis.
    """
    x, scales = node.inputs[0], node.inputs[1]
    mode = attr(node, "mode", "nearest")
    roi = edit.const(np.zeros(0, np.float32), "roi")
    asymmetric: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": "asymmetric"}
    if mode != "nearest":
        edit.become(edit.op("Resize", x, roi, scales, **asymmetric))
        return
    up, down = _factors(scales, edit, grows=_GROWS in node.meta)
    y = x
    if down is not None:
        y = edit.op("Resize", y, roi, down, nearest_mode="ceil", **asymmetric)
    if up is not None or y is x:
        y = edit.op("Resize", y, roi, up or scales, nearest_mode="floor", **asymmetric)
    edit.become(y)


def _factors(
    scales: ir.Value | None, edit: Edit, *, grows: bool
) -> tuple[ir.Value | None, ir.Value | None]:
    """Return by what axes grow and shrink; None where none does."""
    known = small(scales)
    if grows:
        return scales, None
    if known is None:
        one = edit.const(np.ones(1, np.float32), "one")
        return edit.op("Max", scales, one), edit.op("Min", scales, one)
    up, down = np.maximum(known, 1.0), np.minimum(known, 1.0)
    if (up == 1.0).all() or (down == 1.0).all():
        return (None, scales) if (down < 1.0).any() else (scales, None)
    return edit.const(up, "scales_up"), edit.const(down, "scales_down")


@step(13, "Resize")
def resize_13(node: ir.Node, edit: Edit) -> None:
    """``roi`` and ``scales`` became optional, and ``tf_half_pixel_for_nn`` went away.

    (i + 0.5) / s rounded down is (i + 0.5) / s - 0.5 rounded to the nearest, halves up.
    """
    for index in (1, 2):
        tensor = constant(input_at(node, index))
        if tensor is not None and tensor.size == 0:
            node.replace_input_with(index, None)
    if attr(node, "coordinate_transformation_mode") != "tf_half_pixel_for_nn":
        return
    rounding = attr(node, "nearest_mode", "round_prefer_floor")
    if attr(node, "mode", "nearest") != "nearest" or rounding != "floor":
        raise CannotRaiseError(f"Resize {node.name!r}: tf_half_pixel_for_nn with {rounding}")
    for name, value in (
        ("coordinate_transformation_mode", "half_pixel"),
        ("nearest_mode", "round_prefer_ceil"),
    ):
        node.attributes[name] = ir.AttrString(name, value)


@step(11, "Scatter")
def scatter_11(node: ir.Node, edit: Edit) -> None:
    """Scatter was renamed."""
    node.op_type = "ScatterElements"


@step(16, "RoiAlign")
def roi_align_16(node: ir.Node, edit: Edit) -> None:
    """The default coordinates went from the corner to the middle of a pixel."""
    name = "coordinate_transformation_mode"
    if name not in node.attributes:
        node.attributes[name] = ir.AttrString(name, "output_half_pixel")


@step(20, "GridSample")
def grid_sample_20(node: ir.Node, edit: Edit) -> None:
    """The modes lost their ``bi``."""
    names = {"bilinear": "linear", "bicubic": "cubic"}
    mode = attr(node, "mode", "bilinear")
    node.attributes["mode"] = ir.AttrString("mode", names.get(mode, mode))


@step(21, "GroupNormalization")
def group_normalization_21(node: ir.Node, edit: Edit) -> None:
    """``scale`` and ``bias`` went from one per group to one per channel."""
    x, groups = node.inputs[0], attr(node, "num_groups")
    shape = None if x is None else x.shape
    if shape is not None and len(shape) > 1 and isinstance(shape[1], int):
        repeat = edit.int64([1, shape[1] // groups], "repeat")
    else:
        channels = edit.op("Shape", x, start=1, end=2)
        channels.dtype = ir.DataType.INT64
        each = edit.op("Div", channels, edit.int64([groups], "groups"))
        repeat = edit.op("Concat", edit.int64([1], "one"), each, axis=0)
    graph = node.graph
    for index in (1, 2):
        column = edit.op("Unsqueeze", node.inputs[index], edit.int64([1], "axes"))
        wide = edit.op("Tile", column, repeat)
        node.replace_input_with(index, edit.op("Reshape", wide, edit.int64([-1], "flat")))
    if graph is not None:
        graph.insert_before(node, edit.nodes)


@step(9, "Scan")
def scan_9(node: ir.Node, edit: Edit) -> None:
    """Scan lost its batch axis and its sequence lengths."""
    if node.inputs[0] is not None and any(attr(node, "directions", ())):
        raise SourceError(
            f"Scan {node.name!r} of opset 8 reads sequences of own lengths from their ends, which "
            "its version leaves open; export the model at opset 9 or newer"
        )
    results = by_sequence(node, edit.namer)
    made = results[0].producer()
    if made is not None:
        edit.nodes.append(made)
    edit.become(*results)


# --- signatures that changed while the meaning did not ------------------------------------------

_NEW_DEFAULT = "a new attribute whose default is what was done before"
_NEW_OPTIONAL = "a new optional input or output; without it nothing changes"
COMPATIBLE: dict[tuple[str, int], str] = {
    ("ArgMax", 12): _NEW_DEFAULT,
    ("ArgMin", 12): _NEW_DEFAULT,
    ("Attention", 24): _NEW_OPTIONAL,
    ("AveragePool", 10): _NEW_DEFAULT,
    ("AveragePool", 19): _NEW_DEFAULT,
    ("Cast", 19): _NEW_DEFAULT,
    ("Cast", 24): _NEW_DEFAULT,
    ("CastLike", 19): _NEW_DEFAULT,
    ("CastLike", 24): _NEW_DEFAULT,
    ("Constant", 11): "one more way to write a value",
    ("Constant", 12): "more ways to write a value",
    ("DepthToSpace", 11): _NEW_DEFAULT,
    ("DequantizeLinear", 13): "per-axis scales are new; a scalar scale has no axis",
    ("DequantizeLinear", 21): _NEW_DEFAULT,
    ("DequantizeLinear", 23): _NEW_DEFAULT,
    ("GRU", 14): _NEW_DEFAULT,
    ("GatherND", 12): _NEW_DEFAULT,
    ("Gemm", 11): "C became optional",
    ("LSTM", 14): _NEW_DEFAULT,
    ("Loop", 11): "loop-carried values became optional",
    ("LpPool", 18): _NEW_DEFAULT,
    ("MaxPool", 8): _NEW_OPTIONAL,
    ("MaxPool", 10): _NEW_DEFAULT,
    ("OptionalHasElement", 18): "its input became optional",
    ("Pad", 18): _NEW_OPTIONAL,
    ("QuantizeLinear", 13): "per-axis scales are new; a scalar scale has no axis",
    ("QuantizeLinear", 19): _NEW_DEFAULT,
    ("QuantizeLinear", 21): _NEW_DEFAULT,
    ("QuantizeLinear", 23): _NEW_DEFAULT,
    ("RNN", 14): _NEW_DEFAULT,
    ("Reshape", 14): _NEW_DEFAULT,
    ("Resize", 18): _NEW_DEFAULT,
    ("ScatterElements", 16): _NEW_DEFAULT,
    ("ScatterND", 16): _NEW_DEFAULT,
    ("Shape", 15): _NEW_DEFAULT,
    ("TopK", 11): _NEW_DEFAULT,
}
