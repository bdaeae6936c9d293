"""Other shapes and orders of the same values."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.sources.tflite.importer import Importer
from edgeinfer.convert.sources.tflite.operand import Operand, Options
from edgeinfer.convert.sources.tflite.ops.window import channels_first, channels_last
from edgeinfer.convert.sources.tflite.registry import READERS


@READERS.reader("RESHAPE")
def reshape(g: Importer, o: Options, x: Operand, shape: Operand | None = None) -> ir.Value:
    """Reshape; the operand wins over the option."""
    if shape is not None and shape.ints() is None:
        return g.emit("Reshape", x, shape.int64())
    given = o.new_shape
    if shape is not None:
        wanted = shape.known("the shape")
    else:
        wanted = [] if isinstance(given, int) or given is None else [int(d) for d in given]
    # A size of zero is one in TFLite; in ONNX it stands for the operand's own.
    return g.emit("Reshape", x, g.shape(wanted), allowzero=1 if 0 in wanted else None)


@READERS.reader("SQUEEZE")
def squeeze(g: Importer, o: Options, x: Operand) -> ir.Value:
    """Drop the axes that are named, or all of size one."""
    given = o.squeeze_dims
    named = [] if isinstance(given, int) or given is None else [int(a) for a in given]
    if not named and None in x.shape:
        raise Refusal("which axes have one element is not known", "dynamic_shape")
    axes = named or [i for i, s in enumerate(x.shape) if s == 1]
    return g.emit("Squeeze", x, g.shape(axes)) if axes else g.emit("Identity", x)


@READERS.reader("EXPAND_DIMS")
def expand_dims(g: Importer, o: Options, x: Operand, axis: Operand) -> ir.Value:
    """Unsqueeze."""
    return g.emit("Unsqueeze", x, g.shape(axis.known("the axis")))


@READERS.reader("TRANSPOSE")
def transpose(g: Importer, o: Options, x: Operand, perm: Operand) -> ir.Value:
    """Transpose."""
    order = [p % x.rank for p in perm.known("the order of the axes")]
    if sorted(order) != list(range(x.rank)):
        raise ValueError(f"the order {order} of {x.rank} axes")
    return x.transposed(order)


@READERS.reader("SHAPE")
def shape(g: Importer, o: Options, x: Operand) -> ir.Value:
    """Shape."""
    found = g.emit("Shape", x)
    return found if o.dtype == ir.DataType.INT64 else g.emit("Cast", found, to=o.dtype)


@READERS.reader("RANK")
def rank(g: Importer, o: Options, x: Operand) -> ir.Value:
    """The number of axes."""
    return g.emit("Cast", g.emit("Size", g.emit("Shape", x)), to=o.dtype)


@READERS.reader("CONCATENATION")
def concatenation(g: Importer, o: Options, *parts: Operand) -> ir.Value:
    """Concat."""
    joined = g.emit("Concat", *parts, axis=o.axis)
    return g.activate(joined, o)


@READERS.reader("PACK")
def pack(g: Importer, o: Options, *parts: Operand) -> ir.Value:
    """Join along a new axis."""
    # Shapes are put together so: elements become vectors without a node where they are constant.
    wide = [
        p.const.reshape(1)
        if p.rank == 0 and p.const is not None
        else g.emit("Unsqueeze", p, g.shape([o.axis]))
        for p in parts
    ]
    return g.emit("Concat", *wide, axis=o.axis)


@READERS.reader("UNPACK")
def unpack(g: Importer, o: Options, x: Operand) -> list[ir.Value]:
    """Take apart along an axis, which is dropped."""
    if o.num == 1:
        return [g.emit("Squeeze", x, g.shape([o.axis]))]
    parts = g.emit_many("Split", o.num, x, axis=o.axis, num_outputs=o.num)
    return [g.emit("Squeeze", p, g.shape([o.axis])) for p in parts]


@READERS.reader("DEPTH_TO_SPACE", "SPACE_TO_DEPTH")
def blocks(g: Importer, o: Options, x: Operand) -> ir.Value:
    """DepthToSpace or SpaceToDepth; blocks come before channels in both formats."""
    data = channels_first(g, x, 4)
    if o.code == "DEPTH_TO_SPACE":
        y = g.emit("DepthToSpace", data, blocksize=o.block_size, mode="DCR")
    else:
        y = g.emit("SpaceToDepth", data, blocksize=o.block_size)
    return channels_last(g, y, 4)


@READERS.reader("SPACE_TO_BATCH_ND")
def space_to_batch_nd(
    g: Importer, o: Options, x: Operand, block: Operand, pads: Operand
) -> ir.Value:
    """Pad, and let each place of a block be a batch of its own."""
    sizes, factors = _static(x), block.known("the block")
    ends = np.asarray(pads.known("the padding")).reshape(-1, 2)
    count = len(factors)
    if min(factors, default=1) < 1 or ends.shape[0] != count or count >= len(sizes):
        raise ValueError(f"blocks {factors}, padding {ends.tolist()}")
    rest = len(sizes) - 1 - count
    y = x.real
    if ends.any():
        wide = np.concatenate([[[0, 0]], ends, [[0, 0]] * rest])
        y = g.emit("Pad", y, g.shape(wide.T.ravel().tolist()))
    inner = [s + int(e.sum()) for s, e in zip(sizes[1:], ends, strict=False)]
    parts = [n for s, f in zip(inner, factors, strict=True) for n in (s // f, f)]
    y = g.emit("Reshape", y, g.shape([sizes[0], *parts, *sizes[1 + count :]]))
    order = [2 * i + 2 for i in range(count)] + [0] + [2 * i + 1 for i in range(count)]
    y = g.emit("Transpose", y, perm=order + [2 * count + 1 + i for i in range(rest)])
    batch = sizes[0] * math.prod(factors)
    smaller = [s // f for s, f in zip(inner, factors, strict=True)]
    return g.emit("Reshape", y, g.shape([batch, *smaller, *sizes[1 + count :]]))


@READERS.reader("BATCH_TO_SPACE_ND")
def batch_to_space_nd(
    g: Importer, o: Options, x: Operand, block: Operand, crops: Operand
) -> ir.Value:
    """Put the batches back into the blocks they came from, and cut the edges off."""
    sizes, factors = _static(x), block.known("the block")
    ends = np.asarray(crops.known("what is cut off")).reshape(-1, 2)
    count = len(factors)
    if min(factors, default=1) < 1 or ends.shape[0] != count or count >= len(sizes):
        raise ValueError(f"blocks {factors}, cuts {ends.tolist()}")
    batch = sizes[0] // math.prod(factors)
    y = g.emit("Reshape", x, g.shape([*factors, batch, *sizes[1:]]))
    order = [count] + [n for i in range(count) for n in (count + 1 + i, i)]
    rest = range(2 * count + 1, len(sizes) + count)
    y = g.emit("Transpose", y, perm=[*order, *rest])
    wide = [s * f for s, f in zip(sizes[1:], factors, strict=False)]
    y = g.emit("Reshape", y, g.shape([batch, *wide, *sizes[1 + count :]]))
    if not ends.any():
        return y
    starts = [int(e[0]) for e in ends]
    stops = [s - int(e[1]) for s, e in zip(wide, ends, strict=True)]
    axes = g.shape(range(1, 1 + count))
    return g.emit("Slice", y, g.shape(starts), g.shape(stops), axes)


def _static(x: Operand) -> Sequence[int]:
    sizes = [s for s in x.shape if s is not None]
    if len(sizes) != x.rank:
        raise Refusal("an operand of unknown sizes", "dynamic_shape")
    return sizes
