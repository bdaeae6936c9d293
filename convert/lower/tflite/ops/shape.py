"""Shapes: the same elements in another arrangement."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder, Extent
from edgeinfer.convert.lower.tflite.doubles import broadcast_sizes
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.registry import ANY, NHWC, OPS
from edgeinfer.convert.lower.tflite.sizes import (
    around,
    axis_of,
    carried,
    compute,
    constant,
    extents,
    known,
    known_product,
    merge,
    narrow,
    product,
    reform,
    shape_tensor,
)

DELEGATE_RANK = 6
"""XNNPACK 2.3.0 claims concatenations and splits of any rank and then fails beyond this one."""

TRANSPOSE_RANK = 8

_WHOLE = ANY - {
    *(ir.DataType.FLOAT16, ir.DataType.INT16, ir.DataType.UINT16),
}
"""The kernels that move between depth and space take no elements of two bytes."""


@OPS.lower("Reshape", dtypes=ANY)
def reshape(g: Builder, data: Tensor, shape: Tensor, *, allowzero: int) -> Tensor:
    """RESHAPE; zeros copy a size of the operand, also where the shape is computed."""
    if shape.data is None:
        return _reshape_at_run_time(g, data, shape, bool(allowzero))
    given = [int(s) for s in shape.data.ravel()]
    if not allowzero and (added := _inserted(data, given)):
        for axis in added:
            data = g.insert_axis(data, axis)
        return data
    sizes: list[Extent] = [
        g.extent(data, axis) if size == 0 and not allowzero else size
        for axis, size in enumerate(given)
    ]
    if -1 not in sizes:
        return reform(g, data, sizes)
    rest = product(g, [s for s in sizes if s != -1])
    total = known_product(data.shape)
    if isinstance(rest, int) and total is not None:
        sizes[sizes.index(-1)] = total // rest if rest else 0
    elif rest == 0:
        raise Refusal("-1 and a size of 0 in a tensor of unknown size", "dynamic_shape")
    return g.reshape(data, sizes)


def _inserted(data: Tensor, given: Sequence[int]) -> list[int]:
    """Axes of size one that a reshape only adds; none where it does more, or sizes are known.

    The sizes need not be requested then, where several are open.
    """
    if data.shape.count(None) < 2:
        return []
    added: list[int] = []
    for place, size in enumerate(given):
        at = place - len(added)
        stays = at < data.rank and (size == data.shape[at] or (size == 0 and at == place))
        if not stays and size == 1:
            added.append(place)
        elif not stays:
            return []
    return added if len(given) - len(added) == data.rank else []


def _reshape_at_run_time(g: Builder, data: Tensor, shape: Tensor, allowzero: bool) -> Tensor:
    rank = shape.shape[0]
    if rank is None:
        raise Refusal("the rank of the result is only known at run time", "dynamic_shape")
    target = narrow(g, shape)
    if not allowzero and data.rank:
        own = shape_tensor(g, data)
        if rank < data.rank:
            own = g.slice(own, [0], [rank], [1])
        elif rank > data.rank:
            own = g.pad(own, [(0, rank - data.rank)])
        copied = g.binary("EQUAL", target, 0)
        target = g.emit("SELECT_V2", [copied, own, target], (rank,), np.int32)
    return g.emit("RESHAPE", [data, target], (None,) * rank)


@OPS.lower("Flatten", dtypes=ANY)
def flatten(g: Builder, input: Tensor, *, axis: int) -> Tensor:
    """RESHAPE to two axes."""
    at = axis if axis >= 0 else axis + input.rank
    return merge(g, input, [range(at), range(at, input.rank)])


@OPS.lower("Squeeze", dtypes=ANY)
def squeeze(g: Builder, data: Tensor, axes: Tensor | None = None) -> Tensor:
    """RESHAPE, or SQUEEZE where several sizes are open."""
    listed = constant(axes, "axes")
    if listed is None:
        if not data.is_static:
            raise Refusal("without axes, every size must be known", "dynamic_shape")
        listed = [i for i, s in enumerate(data.shape) if s == 1]
    gone = sorted({axis_of(a, data.rank) for a in listed})
    if any(data.shape[a] not in (1, None) for a in gone):
        raise Refusal("only axes of size 1 can be removed")
    shape = [s for i, s in enumerate(data.shape) if i not in gone]
    if shape.count(None) <= 1 and 0 not in shape:
        return g.reshape(data, [-1 if s is None else s for s in shape])
    out = g.emit("SQUEEZE", [data], shape, squeeze_dims=gone) if gone else data
    out.quantization = data.quantization
    return out


@OPS.lower("Unsqueeze", dtypes=ANY)
def unsqueeze(g: Builder, data: Tensor, axes: Tensor) -> Tensor:
    """RESHAPE, or EXPAND_DIMS where several sizes are open."""
    listed = constant(axes, "axes")
    rank = data.rank + len(listed)
    out = data
    for axis in sorted(axis_of(a, rank) for a in listed):
        if data.is_static:
            shape = list(out.static_shape)
            out = g.reshape(out, [*shape[:axis], 1, *shape[axis:]])
        else:
            out = g.insert_axis(out, axis)
    return out


@OPS.lower("Transpose", dtypes=ANY)
def transpose(g: Builder, data: Tensor, *, perm: Sequence[int] | None) -> Tensor:
    """TRANSPOSE, in steps where there are more axes than it takes."""
    order = list(perm) if perm is not None else list(range(data.rank))[::-1]
    if data.rank <= TRANSPOSE_RANK or order == list(range(data.rank)):
        return g.transpose(data, order)
    return _transpose_wide(g, data, order)


def _transpose_wide(g: Builder, x: Tensor, order: list[int]) -> Tensor:
    """Axes that stay neighbours move as one; if they are too many, one after the other."""
    if not x.is_static:
        raise Refusal(f"rank {x.rank} with sizes known at run time only", "unsupported_rank")
    final = [x.static_shape[p] for p in order]
    kept = [a for a in order if x.shape[a] != 1]
    runs: list[list[int]] = []
    live = sorted(kept)
    for axis in kept:
        place = live.index(axis)
        if runs and place and runs[-1][-1] == live[place - 1]:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    before = sorted(runs)
    sizes = {run[0]: int(np.prod([x.static_shape[a] for a in run])) for run in runs}
    y = g.reshape(x, [sizes[r[0]] for r in before])
    if len(runs) <= TRANSPOSE_RANK:
        y = g.transpose(y, [before.index(r) for r in runs])
        return g.reshape(y, final)
    now = [r[0] for r in before]
    for run in reversed(runs):
        place = now.index(run[0])
        lead = int(np.prod([sizes[r] for r in now[:place]]))
        y = g.transpose(g.reshape(y, [lead, sizes[run[0]], -1]), [1, 0, 2])
        now.insert(0, now.pop(place))
    return g.reshape(y, final)


@OPS.lower("Concat", dtypes=ANY)
@carried()
def concat(g: Builder, *inputs: Tensor, axis: int) -> Tensor:
    """CONCATENATION, of three axes where there are more than XNNPACK takes."""
    at = axis_of(axis, inputs[0].rank)
    if inputs[0].rank <= DELEGATE_RANK:
        return g.concat(inputs, at)
    groups = around(inputs[0].rank, at)
    joined = g.concat([merge(g, t, groups) for t in inputs], 1)
    return _spread(g, joined, extents(g, inputs[0]), at)


def _spread(g: Builder, merged: Tensor, sizes: list[Extent], axis: int) -> Tensor:
    """Undo ``merge`` of the axes around one, whose size is that of the merged tensor."""
    return reform(g, merged, [*sizes[:axis], g.extent(merged, 1), *sizes[axis + 1 :]])


@OPS.lower("Split", dtypes=ANY)
@carried(bool=np.int8)
def split(
    g: Builder, input: Tensor, split: Tensor | None = None, *, num_outputs: int | None, axis: int
) -> list[Tensor]:
    """SPLIT of equal parts, SPLIT_V of others."""
    at = axis_of(axis, input.rank)
    sizes = _split_sizes(g, input, split, num_outputs, at)
    if input.rank <= DELEGATE_RANK:
        return _split(g, input, sizes, at)
    own = extents(g, input)
    parts = _split(g, merge(g, input, around(input.rank, at)), sizes, 1)
    return [_spread(g, part, own, at) for part in parts]


def _split_sizes(
    g: Builder, x: Tensor, given: Tensor | None, count: int | None, axis: int
) -> list[Extent] | Tensor:
    if given is not None:
        return given if given.data is None else [int(s) for s in given.data.ravel()]
    if count is None:
        raise Refusal("neither sizes nor a number of parts")
    size = g.extent(x, axis)
    # All parts but the last are equal; the last one is what remains.
    part = compute(g, "FLOOR_DIV", compute(g, "ADD", size, count - 1), count)
    last = compute(g, "SUB", size, compute(g, "MUL", part, count - 1))
    return [part] * (count - 1) + [last]


def _split(g: Builder, x: Tensor, sizes: list[Extent] | Tensor, axis: int) -> list[Tensor]:
    if isinstance(sizes, list) and all(isinstance(s, int) for s in sizes):
        plain = [s for s in sizes if isinstance(s, int)]
        if x.shape[axis] is None and len(set(plain)) == 1 and len(plain) > 1:
            # SPLIT would cut whatever comes into equal parts.
            plain_sizes = g.const(plain, np.int32)
            return _split_v(g, x, plain_sizes, known(sizes), axis)
        return g.split(x, plain, axis)
    if isinstance(sizes, list):
        return _split_v(g, x, g.shape_vector(sizes), known(sizes), axis)
    count = sizes.shape[0]
    if count is None:
        raise Refusal("the number of parts is only known at run time", "dynamic_shape")
    return _split_v(g, x, narrow(g, sizes), (None,) * count, axis)


def _split_v(
    g: Builder, x: Tensor, lengths: Tensor, sizes: tuple[int | None, ...], axis: int
) -> list[Tensor]:
    parts = [g.tensor((*x.shape[:axis], s, *x.shape[axis + 1 :]), x.dtype) for s in sizes]
    where = g.const(axis, np.int32)
    g.add("SPLIT_V", [x, lengths, where], parts, num_splits=len(parts))
    return parts


@OPS.lower("Identity", dtypes=ANY)
def identity(g: Builder, input: Tensor) -> Tensor:
    """Nothing."""
    return input


@OPS.lower("Dropout", dtypes=ANY)
def dropout(
    g: Builder, data: Tensor, ratio: Tensor | None = None, training_mode: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Nothing happens at inference; the mask is all ones."""
    if training_mode is not None and any(constant(training_mode, "training_mode")):
        raise Refusal("training_mode draws random numbers")
    ones = g.const(True, np.bool_)
    if data.is_static:
        return data, g.const(np.ones(data.static_shape, np.bool_))
    mask = g.emit("FILL", [shape_tensor(g, data), ones], data.shape, np.bool_)
    return data, mask


@OPS.lower("DepthToSpace", domain=NHWC, dtypes=_WHOLE)
@carried(bool=np.uint8)
def depth_to_space(g: Builder, input: Tensor, *, blocksize: int, mode: str) -> Tensor:
    """DEPTH_TO_SPACE, whose order of channels is DCR; CRD gathers them before."""
    n, h, w, c = input.shape
    if c is None:
        raise Refusal("the number of channels must be known", "dynamic_shape")
    depth = c // blocksize**2
    x = input
    if mode == "CRD":
        # TFLite's order is DCR: positions in the block outside, channels inside.
        order = np.arange(c, dtype=np.int32).reshape(depth, -1).T.ravel()
        x = g.gather(x, g.const(order), 3)
    shape = (n, _times(h, blocksize), _times(w, blocksize), depth)
    return g.emit("DEPTH_TO_SPACE", [x], shape, block_size=blocksize)


@OPS.lower("SpaceToDepth", domain=NHWC, dtypes=_WHOLE)
@carried(bool=np.uint8)
def space_to_depth(g: Builder, input: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """SPACE_TO_DEPTH, whose order of channels is DCR; CRD gathers them after."""
    n, h, w, c = input.shape
    shape = (n, _over(h, blocksize), _over(w, blocksize), _times(c, blocksize**2))
    y = g.emit("SPACE_TO_DEPTH", [input], shape, block_size=blocksize)
    if mode != "CRD":
        return y
    if c is None:
        raise Refusal("the number of channels must be known", "dynamic_shape")
    order = np.arange(c * blocksize**2, dtype=np.int32).reshape(-1, c).T.ravel()
    return g.gather(y, g.const(order), 3)


def _times(size: int | None, factor: int) -> int | None:
    return None if size is None else size * factor


def _over(size: int | None, factor: int) -> int | None:
    return None if size is None else size // factor


@OPS.lower("Shape", dtypes=ANY)
def shape(g: Builder, data: Tensor, *, end: int | None, start: int) -> Tensor:
    """SHAPE, or a constant."""
    chosen = range(data.rank)[slice(start, end)]
    sizes = [data.shape[a] for a in chosen]
    if None not in sizes:
        return g.const(sizes, np.int64)
    whole = shape_tensor(g, data, np.int64)
    if len(sizes) == data.rank:
        return whole
    return g.slice(whole, [chosen.start], [chosen.stop], [1])


@OPS.lower("Size", dtypes=ANY)
def size(g: Builder, data: Tensor) -> Tensor:
    """The product of SHAPE, or a constant."""
    total = known_product(data.shape)
    if total is not None:
        return g.const(total, np.int64)
    return g.reduce("REDUCE_PROD", shape_tensor(g, data, np.int64), [0], False)


@OPS.lower("Tile", dtypes=ANY)
def tile(g: Builder, input: Tensor, repeats: Tensor) -> Tensor:
    """TILE."""
    counts = [None] * input.rank if repeats.data is None else repeats.data.ravel().tolist()
    if all(c == 1 for c in counts):
        return input
    shape = [
        None if s is None or c is None else s * c for s, c in zip(input.shape, counts, strict=True)
    ]
    return g.emit("TILE", [input, narrow(g, repeats)], shape)


@OPS.lower("Expand", dtypes=ANY)
def expand(g: Builder, input: Tensor, shape: Tensor) -> Tensor:
    """BROADCAST_TO, also of shapes that are computed."""
    if shape.data is None:
        return _expand_at_run_time(g, input, shape)
    wanted = [int(s) for s in shape.data.ravel()]
    rank = max(len(wanted), input.rank)
    wanted = [1] * (rank - len(wanted)) + wanted
    own: list[Extent] = [*[1] * (rank - input.rank), *extents(g, input)]
    sizes = [have if want == 1 else want for have, want in zip(own, wanted, strict=True)]
    if known(sizes) == input.shape and input.is_static:
        return input
    if rank == input.rank and all(w == 1 for w in wanted):
        return input
    return g.emit("BROADCAST_TO", [input, g.shape_vector(sizes)], known(sizes))


def _expand_at_run_time(g: Builder, x: Tensor, shape: Tensor) -> Tensor:
    length = shape.shape[0]
    if length is None:
        raise Refusal("the rank of the result is only known at run time", "dynamic_shape")
    rank = max(length, x.rank)
    target = narrow(g, shape)
    if x.rank:
        target = broadcast_sizes(g, shape_tensor(g, x), target)
    own = (1,) * (rank - x.rank) + x.shape
    sizes = [s if s is not None and s > 1 else None for s in own]
    return g.emit("BROADCAST_TO", [x, target], sizes)
