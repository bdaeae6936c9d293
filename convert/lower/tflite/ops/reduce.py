"""Reductions and the positions of extremes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.graph import Shape, Tensor
from edgeinfer.convert.lower.tflite.registry import OPS
from edgeinfer.convert.lower.tflite.widen import NUMBERS, is_real, wider

_MAX_RANK = 6
"""XNNPACK takes up to 6 axes, and with more it fails instead of leaving the operator alone."""

_CODES = {"sum": "SUM", "mean": "MEAN", "prod": "REDUCE_PROD"}

Axes = Sequence[int] | Tensor


def reduced(g: Builder, kind: str, x: Tensor, axes: Axes, keep: bool) -> Tensor:
    """Reduce over axes; ``kind`` as in ``Tensors.reduce``."""
    if kind in ("max", "min"):
        return _extreme(g, x, axes, keep, largest=kind == "max")
    empty = {"sum": 0.0, "prod": 1.0, "mean": np.nan if is_real(x.dtype) else 0.0}[kind]
    return _reduce(g, _CODES[kind], x, axes, keep, empty)


def has_largest(x: Tensor, axes: Axes) -> bool:
    """Whether there are known axes with elements, and not too many for the largest of them."""
    if isinstance(axes, Tensor) or x.dtype != np.float32 or x.rank > _MAX_RANK:
        return False
    return bool(axes) and all(x.shape[a] != 0 for a in axes)


@OPS.lower("ArgMax", dtypes=NUMBERS)
def arg_max(
    g: Builder, data: Tensor, *, axis: int, keepdims: int, select_last_index: int
) -> Tensor:
    """Position of the largest."""
    return _position(g, data, axis, keepdims, select_last_index, largest=True)


@OPS.lower("ArgMin", dtypes=NUMBERS)
def arg_min(
    g: Builder, data: Tensor, *, axis: int, keepdims: int, select_last_index: int
) -> Tensor:
    """Position of the smallest."""
    return _position(g, data, axis, keepdims, select_last_index, largest=False)


def _position(
    g: Builder, x: Tensor, axis: int, keepdims: int, last: int, *, largest: bool
) -> Tensor:
    axis = axis % x.rank
    x = g.cast(x, wider(x.dtype))
    code = "ARG_MAX" if largest else "ARG_MIN"
    if x.dtype == np.int64:
        # There is no kernel for int64, but one that finds the first True.
        top = _reduce(g, "REDUCE_MAX" if largest else "REDUCE_MIN", x, [axis], True, 0)
        x, code = g.binary("EQUAL", x, top), "ARG_MAX"
    along = g.const(axis, np.int32)
    if last:
        x = g.emit("REVERSE_V2", [x, g.const([axis], np.int32)], x.shape)
    rest = [s for i, s in enumerate(x.shape) if i != axis]
    int64 = np.dtype(np.int64)
    found = g.emit(code, [x, along], rest, int64, output_type=int64)
    if last:
        size = g.extent(x, axis)
        end = g.cast(size, np.int64) if isinstance(size, Tensor) else g.const(size, np.int64)
        found = g.binary("SUB", g.binary("SUB", end, 1), found)
    if not keepdims:
        return found
    shape = [1 if i == axis else s for i, s in enumerate(x.shape)]
    return g.emit("EXPAND_DIMS", [found, along], shape)


def _extreme(g: Builder, x: Tensor, axes: Axes, keepdims: bool, *, largest: bool) -> Tensor:
    if x.dtype == np.bool_:
        code, empty = ("REDUCE_ANY", False) if largest else ("REDUCE_ALL", True)
        return _reduce(g, code, x, axes, keepdims, empty)
    if is_real(x.dtype):
        limit: float = -np.inf if largest else np.inf
    else:
        info = np.iinfo(x.dtype)
        limit = info.min if largest else info.max
    wide = g.cast(x, wider(x.dtype))
    # Of an empty set; a bound of the wider type would not fit back.
    found = _reduce(g, "REDUCE_MAX" if largest else "REDUCE_MIN", wide, axes, keepdims, limit)
    return g.cast(found, x.dtype)


def axes_of(x: Tensor, axes: Tensor | None, noop: int) -> list[int] | Tensor:
    """The axes to reduce; a tensor of int32 where they are known only at run time."""
    if axes is None:
        return [] if noop else list(range(x.rank))
    if axes.data is None and axes.shape != (0,):
        return axes
    known = [] if axes.data is None else axes.data.reshape(-1).tolist()
    if not known:
        return [] if noop else list(range(x.rank))
    return sorted({a % x.rank for a in known})


def _reduce(
    g: Builder,
    code: str,
    x: Tensor,
    axes: Axes,
    keepdims: bool,
    empty: float,
) -> Tensor:
    """Reduce; a set that is known to be empty has the value ``empty``."""
    if isinstance(axes, Tensor):
        found = _unknown_axes(g, code, x, axes, keepdims)
        if 0 in x.shape and code in {"REDUCE_MAX", "REDUCE_MIN"}:
            # Any element there is belongs to an empty set; the kernel has finite limits.
            found = g.binary("MINIMUM" if code == "REDUCE_MAX" else "MAXIMUM", found, empty)
        return found
    if axes and _is_empty(x, axes):
        return _filled(g, x, axes, keepdims, empty)
    if x.rank > _MAX_RANK and axes:
        return _collapsed(g, code, x, axes, keepdims)
    return g.reduce(code, x, axes, keepdims)


def _unknown_axes(g: Builder, code: str, x: Tensor, axes: Tensor, keepdims: bool) -> Tensor:
    count = axes.shape[0] if axes.rank == 1 else None
    if count is None or x.rank > _MAX_RANK:
        raise Refusal("axes known only at run time", "requires_constant")
    rank = x.rank if keepdims else x.rank - count
    return g.emit(code, [x, g.cast(axes, np.int32)], [None] * rank, keep_dims=keepdims)


def _reduced(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    if keepdims:
        return tuple(1 if i in axes else s for i, s in enumerate(shape))
    return tuple(s for i, s in enumerate(shape) if i not in axes)


def _is_empty(x: Tensor, axes: Sequence[int]) -> bool:
    return any(x.shape[a] == 0 for a in axes)


def _filled(g: Builder, x: Tensor, axes: Sequence[int], keepdims: bool, value: float) -> Tensor:
    shape = _reduced(x.shape, axes, keepdims)
    if None not in shape:
        return g.const(np.full([s for s in shape if s is not None], value, x.dtype))
    kept = range(x.rank) if keepdims else [i for i in range(x.rank) if i not in axes]
    sizes = [1 if i in axes else g.extent(x, i) for i in kept]
    return g.emit("FILL", [g.shape_vector(sizes), g.const(value, x.dtype)], shape, x.dtype)


def _collapsed(g: Builder, code: str, x: Tensor, axes: Sequence[int], keepdims: bool) -> Tensor:
    """Join neighbouring axes that are all kept or all reduced."""
    if not x.is_static:
        raise Refusal(f"{x.rank} axes of unknown sizes", "unsupported_rank")
    sizes: list[int] = []
    over: list[int] = []
    before: bool | None = None
    for axis, size in enumerate(x.static_shape):
        inside = axis in axes
        if inside == before:
            sizes[-1] *= size
        else:
            sizes.append(size)
            if inside:
                over.append(len(sizes) - 1)
        before = inside
    if len(sizes) > _MAX_RANK:
        raise Refusal(f"{len(sizes)} axes, every other one reduced", "unsupported_rank")
    found = g.reduce(code, g.reshape(x, sizes), over, False)
    shape = _reduced(x.shape, axes, keepdims)
    return g.reshape(found, [s for s in shape if s is not None])
