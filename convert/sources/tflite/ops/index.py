"""Reading and writing by index."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.sources.tflite.importer import Importer
from edgeinfer.convert.sources.tflite.operand import Operand, Options
from edgeinfer.convert.sources.tflite.registry import READERS

_INDICES = (ir.DataType.INT32, ir.DataType.INT64)


@READERS.reader("GATHER")
def gather(g: Importer, o: Options, x: Operand, indices: Operand) -> ir.Value:
    """Gather, of each batch by itself where batches are named."""
    axis, batch = o.axis % max(x.rank, 1), o.batch_dims % max(indices.rank + 1, 1)
    where = indices.real if indices.dtype in _INDICES else indices.int64()
    if batch == 0:
        return g.emit("Gather", x, where, axis=axis)
    if axis < batch:
        raise ValueError(f"axis {axis} of {batch} batches")
    between, added = axis - batch, indices.rank - batch
    data = x.real
    if between:
        rest = [i for i in range(batch, x.rank) if i != axis]
        data = g.emit("Transpose", data, perm=[*range(batch), axis, *rest])
    points = g.emit("Unsqueeze", indices.int64(), g.shape([-1]))
    y = g.emit("GatherND", data, points, batch_dims=batch)
    if between:
        middle = range(batch + added, batch + added + between)
        new = range(batch, batch + added)
        rank = x.rank + added - 1
        order = [*range(batch), *middle, *new, *range(batch + added + between, rank)]
        y = g.emit("Transpose", y, perm=order)
    return y


@READERS.reader("GATHER_ND")
def gather_nd(g: Importer, o: Options, x: Operand, indices: Operand) -> ir.Value:
    """GatherND."""
    return g.emit("GatherND", x, indices.int64())


@READERS.reader("SCATTER_ND")
def scatter_nd(
    g: Importer, o: Options, indices: Operand, updates: Operand, shape: Operand
) -> ir.Value:
    """Add up what falls on the same place of a tensor of zeros."""
    zeros = g.emit("Expand", np.zeros((), updates.dtype.numpy()), shape.int64())
    return g.emit("ScatterND", zeros, indices.int64(), updates, reduction="add")


@READERS.reader("DYNAMIC_UPDATE_SLICE")
def dynamic_update_slice(
    g: Importer, o: Options, x: Operand, update: Operand, starts: Operand
) -> ir.Value:
    """Write a block at a place that a run decides; it is moved to lie inside."""
    sizes = [s for s in update.shape if s is not None]
    if len(sizes) != update.rank:
        raise Refusal("a block of unknown sizes", "dynamic_shape")
    room = g.emit("Sub", g.emit("Shape", x), g.shape(sizes))
    first = g.emit("Max", g.emit("Min", starts.int64(), room), g.shape([0]))
    grid = np.stack(np.meshgrid(*map(np.arange, sizes), indexing="ij"), -1).astype(np.int64)
    return g.emit("ScatterND", x, g.emit("Add", grid, first), update)


@READERS.reader("ONE_HOT")
def one_hot(
    g: Importer, o: Options, indices: Operand, depth: Operand, on: Operand, off: Operand
) -> ir.Value:
    """Where an index is met; one outside of the range is met nowhere."""
    rank = indices.rank + 1
    axis = o.axis % rank
    shape = [-1 if i == axis else 1 for i in range(rank)]
    if (count := depth.ints()) is not None:
        positions = g.const(np.arange(count[0], dtype=np.int64).reshape(shape))
    else:
        found = g.emit("Range", np.int64(0), depth.int64([]), np.int64(1))
        positions = g.emit("Reshape", found, g.shape(shape))
    wide = g.emit("Unsqueeze", indices.int64(), g.shape([axis]))
    return g.emit("Where", g.emit("Equal", wide, positions), on, off)


@READERS.reader("WHERE")
def where(g: Importer, o: Options, condition: Operand) -> ir.Value:
    """The positions that are not zero, one a row."""
    return g.emit("Transpose", g.emit("NonZero", condition), perm=[1, 0])
