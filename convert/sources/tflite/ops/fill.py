"""Padding, filling and repeating."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.sources.tflite.importer import Importer
from edgeinfer.convert.sources.tflite.operand import Operand, Options
from edgeinfer.convert.sources.tflite.registry import READERS

_REFLECT = 0


@READERS.reader("PAD", "PADV2")
def pad(
    g: Importer, o: Options, x: Operand, amounts: Operand, value: Operand | None = None
) -> ir.Value:
    """Pad with zeros or a value."""
    filler = None if value is None else value.real
    return g.emit("Pad", x, _columns(g, amounts), filler, mode="constant")


@READERS.reader("MIRROR_PAD")
def mirror_pad(g: Importer, o: Options, x: Operand, amounts: Operand) -> ir.Value:
    """Pad with the mirror image, without or with the edge itself."""
    if o.mode == _REFLECT:
        return g.emit("Pad", x, _columns(g, amounts), mode="reflect")
    values = np.asarray(amounts.known("amounts of symmetric padding")).reshape(-1, 2)
    y = x.real
    for axis, (before, after) in enumerate(values.tolist()):
        size = x.shape[axis]
        if not before and not after:
            continue
        if size is None:
            raise Refusal("symmetric padding of an unknown size", "dynamic_shape")
        indices = np.pad(np.arange(size), (before, after), mode="symmetric")
        y = g.emit("Gather", y, g.shape(indices.tolist()), axis=axis)
    return y


def _columns(g: Importer, amounts: Operand) -> ir.Value:
    """From pairs for each axis to all beginnings, then all ends."""
    known = amounts.const
    if known is not None:
        return g.shape(known.reshape(-1, 2).T.ravel().tolist())
    transposed = g.emit("Transpose", amounts.int64(), perm=[1, 0])
    return g.emit("Reshape", transposed, g.shape([-1]))


@READERS.reader("FILL")
def fill(g: Importer, o: Options, shape: Operand, value: Operand) -> ir.Value:
    """One value in every place."""
    return g.emit("Expand", value, shape.int64())


@READERS.reader("BROADCAST_TO")
def broadcast_to(g: Importer, o: Options, x: Operand, shape: Operand) -> ir.Value:
    """Expand."""
    return g.emit("Expand", x, shape.int64())


@READERS.reader("TILE")
def tile(g: Importer, o: Options, x: Operand, repeats: Operand) -> ir.Value:
    """Tile."""
    return g.emit("Tile", x, repeats.int64())


@READERS.reader("RANGE")
def range_(g: Importer, o: Options, start: Operand, limit: Operand, delta: Operand) -> ir.Value:
    """Range."""
    ends = [g.emit("Reshape", v, g.shape([])) for v in (start, limit, delta)]
    return g.emit("Range", *ends)
