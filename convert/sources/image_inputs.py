"""Inputs that take pixels: what makes numbers of them becomes part of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import Namer, add_initializer
from edgeinfer.errors import UsageError
from edgeinfer.types import Array, ImageInput, Preprocessing


def raw(record: ImageInput) -> ImageInput:
    """Return the record of an input that takes pixels as they are."""
    return replace(record, scale=1.0, mean=(0.0,), std=(1.0,))


def take_pixels(
    model: ir.Model, names: Sequence[str], records: Mapping[str, Preprocessing]
) -> None:
    """Let inputs take pixels of 0 to 255 instead of what is made of them, in place.

    Given: ``y = Conv(x, w)``
    Result: ``y = Conv(Add(Mul(x, scale / std), -mean / std), w)``

    Args:
        model: as read.
        names: Names of the inputs.
        records: how an image becomes each of them.

    Raises:
        UsageError: an input is unknown, is no image of floats, or has no record.
    """
    inputs = {v.name: v for v in model.graph.inputs if not v.is_initializer()}
    for name in dict.fromkeys(names):
        if name not in inputs:
            known = ", ".join(repr(n) for n in inputs)
            raise UsageError(f"image {name!r}: no such input; there are {known}")
        record = records.get(name)
        if not isinstance(record, ImageInput):
            raise UsageError(
                f"image {name!r}: --preprocessing must say how an image becomes this input"
            )
        _check(inputs[name], record)
        _insert(model, inputs[name], record)


def _check(value: ir.Value, record: ImageInput) -> None:
    channels = 1 if record.color == "GRAY" else 3
    dims = list(value.shape or ())
    if record.layout != "NCHW":
        raise UsageError(f"image {value.name!r}: expected the layout NCHW: use --channels-first")
    floats = value.dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16)
    if len(dims) != 4 or dims[1] != channels or not floats:
        kind = value.dtype.name.lower() if value.dtype is not None else "?"
        raise UsageError(
            f"image {value.name!r}: expected floats [1, {channels}, height, width] for "
            f"{record.color}, the model has {kind}{dims}"
        )


def _insert(model: ir.Model, value: ir.Value, record: ImageInput) -> None:
    graph = model.graph
    factor, shift = _line(record)
    if (factor == 1).all() and (shift == 0).all():
        return
    dtype = np.float16 if value.dtype == ir.DataType.FLOAT16 else np.float32
    namer = Namer(model)
    users = [(node, index) for node, index in value.uses()]
    made, nodes = value, []
    for op, array in (("Mul", factor), ("Add", shift)):
        operand = add_initializer(
            graph, namer.fresh(f"{value.name}/{op.lower()}"), array.astype(dtype)
        )
        node = ir.node(op, [made, operand])
        made = node.outputs[0]
        made.name = node.name = namer.fresh(f"{value.name}/{op.lower()}.out")
        made.type, made.shape = ir.TensorType(value.dtype or ir.DataType.FLOAT), value.shape
        nodes.append(node)
    for node, index in users:
        node.replace_input_with(index, made)
    for place, output in enumerate(graph.outputs):
        if output is value:
            graph.outputs[place] = made
    first = next(iter(graph), None)
    for node in nodes:
        if first is None:
            graph.append(node)
        else:
            graph.insert_before(first, node)


def _line(record: ImageInput) -> tuple[Array, Array]:
    """Return what pixels are multiplied with, and what is added, for each channel."""
    count = 1 if record.color == "GRAY" else 3
    mean, std = (
        np.resize(np.asarray(v, np.float64), count).reshape(1, count, 1, 1)
        for v in (record.mean, record.std)
    )
    return record.scale / std, -mean / std
