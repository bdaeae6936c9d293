"""Resizing, an axis at a time: each output is a weighted sum of inputs that are known now."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.registry import FLOATS, NUMBERS, OPS
from edgeinfer.convert.lower.coreai.tensor import Tensor
from edgeinfer.convert.lower.registry import Const, Refusal
from edgeinfer.convert.lower.resample import How, Taps, matrix, taps
from edgeinfer.types import Array


@OPS.lower("Resize", dtypes=NUMBERS)
def resize(
    g: Builder,
    x: Tensor,
    roi: Const | None = None,
    scales: Const | None = None,
    sizes: Const | None = None,
    *,
    antialias: int,
    axes: tuple[int, ...] | None,
    coordinate_transformation_mode: str,
    cubic_coeff_a: float,
    exclude_outside: int,
    keep_aspect_ratio_policy: str,
    mode: str,
    nearest_mode: str,
) -> Tensor:
    if coordinate_transformation_mode == "tf_crop_and_resize":
        raise Refusal("tf_crop_and_resize")
    places = [a % x.rank for a in axes] if axes is not None else list(range(x.rank))
    how = How(
        mode,
        coordinate_transformation_mode,
        nearest_mode,
        cubic_coeff_a,
        bool(exclude_outside),
        bool(antialias),
    )
    factors = [float(s) for s in scales.array] if scales and scales.array.size else None
    if factors is not None:
        for axis, factor in zip(places, factors, strict=True):
            _check_corners(how, x.shape[axis], factor)
            x = _by_factor(g, x, axis, factor, how)
        return x
    if sizes is None:
        raise Refusal("neither scales nor sizes")
    wanted = [int(s) for s in sizes.array]
    have = [x.shape[a] for a in places]
    if any(s is None and h != s for s, h in zip(have, wanted, strict=True)):
        raise Refusal("dynamic sizes of an input", "dynamic_shape")
    ratios = [w / (h or 1) for w, h in zip(wanted, have, strict=True)]
    if keep_aspect_ratio_policy != "stretch":
        one = min(ratios) if keep_aspect_ratio_policy == "not_larger" else max(ratios)
        ratios = [one] * len(ratios)
        wanted = [int(np.floor(one * (h or 1) + 0.5)) for h in have]
    for axis, out, ratio in zip(places, wanted, ratios, strict=True):
        x = _axis(g, x, axis, out, ratio, how)
    return x


def _check_corners(how: How, size: int | None, factor: float) -> None:
    if how.transform != "align_corners" or factor == 1:
        return
    wanted = float(np.float32(factor) * np.float32(1 if size is None else size))
    if wanted != int(wanted):
        raise Refusal("align_corners with a scale that gives no whole size: engines disagree")


def _by_factor(g: Builder, x: Tensor, axis: int, factor: float, how: How) -> Tensor:
    size = x.shape[axis]
    if factor == 1:
        return x
    if size is not None:
        return _axis(g, x, axis, int(np.floor(np.float32(factor) * size)), factor, how)
    whole = int(factor)
    if whole != factor or how.mode not in ("nearest", "linear"):
        raise Refusal("a dynamic axis grows by a fraction", "dynamic_shape")
    if how.mode == "nearest":
        _check_repeats(how, whole)
        return _repeated(g, x, axis, whole)
    if how.transform not in ("half_pixel", "pytorch_half_pixel"):
        raise Refusal(f"{how.transform} on a dynamic axis", "dynamic_shape")
    return _blended(g, x, axis, whole)


def _check_repeats(how: How, factor: int) -> None:
    """Whether each input is repeated, whatever the size is."""
    probe = taps(how, 7, 7 * factor, float(factor)).source[:, 0]
    if not np.array_equal(probe, np.repeat(np.arange(7), factor)):
        raise Refusal("nearest neighbours that depend on the size", "dynamic_shape")


def _repeated(g: Builder, x: Tensor, axis: int, factor: int) -> Tensor:
    sizes = g.extents(x)
    wide = g.insert_axes(x, [axis + 1])
    spread = g.expand(wide, [*sizes[: axis + 1], factor, *sizes[axis + 1 :]])
    return g.reshape(spread, [*sizes[:axis], -1, *sizes[axis + 1 :]])


def _blended(g: Builder, x: Tensor, axis: int, factor: int) -> Tensor:
    """Each output between its input and a neighbour; the edges are repeated."""
    size = g.extent(x, axis)
    around = [0] * x.rank
    around[axis] = 1
    wide = g.pad(x, around, around, mode="replicate")
    end = size + 2 if isinstance(size, int) else g.binary("add", size, 2)
    stop = size + 1 if isinstance(size, int) else g.binary("add", size, 1)
    before, after = g.part(wide, axis, 0, size), g.part(wide, axis, 2, end)
    here = g.part(wide, axis, 1, stop)
    parts = []
    for index in range(factor):
        place = (index + 0.5) / factor - 0.5
        other = before if place < 0 else after
        mixed = g.binary("add", g.binary("mul", here, 1 - abs(place)),
                         g.binary("mul", other, abs(place)))  # fmt: skip
        parts.append(g.insert_axes(mixed, [axis + 1]))
    sizes = g.extents(x)
    return g.reshape(g.concat(parts, axis + 1), [*sizes[:axis], -1, *sizes[axis + 1 :]])


def _axis(g: Builder, x: Tensor, axis: int, out: int, scale: float, how: How) -> Tensor:
    size = x.shape[axis]
    if size is None:
        raise Refusal("dynamic sizes of an input", "dynamic_shape")
    if size == out and scale == 1:
        return x
    found = taps(how, size, out, scale)
    if how.mode == "nearest":
        return _nearest(g, x, axis, found, size, out)
    if x.dtype not in [d.numpy() for d in FLOATS]:
        raise Refusal("weighted sums of integers", "unsupported_dtype")
    weights = matrix(found, size).astype(x.dtype)
    return _weighted(g, x, axis, weights)


def _nearest(g: Builder, x: Tensor, axis: int, found: Taps, size: int, out: int) -> Tensor:
    places = found.source[:, 0]
    if out % size == 0 and np.array_equal(places, np.repeat(np.arange(size), out // size)):
        return _repeated(g, x, axis, out // size)
    return g.take(x, g.const(places.astype(np.int64)), axis)


def _weighted(g: Builder, x: Tensor, axis: int, weights: Array) -> Tensor:
    if axis == x.rank - 1:
        return g.binary("batch_matmul", x, weights_of(g, weights.T))
    if axis == x.rank - 2:
        return g.binary("batch_matmul", weights_of(g, weights), x)
    order = [a for a in range(x.rank) if a != axis] + [axis]
    made = g.binary("batch_matmul", g.transpose(x, order), weights_of(g, weights.T))
    return g.transpose(made, list(np.argsort(order)))


def weights_of(g: Builder, weights: Array) -> Tensor:
    return g.const(np.ascontiguousarray(weights))
