"""Resize: Core ML's operators where they compute just that, positions and weights elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeinfer.convert.lower.coreml.builder import Builder, Extent
from edgeinfer.convert.lower.coreml.ops.shape import partly
from edgeinfer.convert.lower.coreml.registry import ALL, OPS
from edgeinfer.convert.lower.coreml.tensor import Tensor
from edgeinfer.convert.lower.registry import Const, Refusal
from edgeinfer.convert.lower.resample import F32, How, Taps, matrix, taps
from edgeinfer.records import dataclass
from edgeinfer.types import Array

_HALF = frozenset({"half_pixel", "pytorch_half_pixel", "half_pixel_symmetric"})


@dataclass(frozen=True, slots=True)
class Axis:
    """What happens along one axis.

    Attributes:
        index: Index of the axis.
        size: before; None where it is known only at run time.
        out: after, likewise.
        scale: None where it is the ratio of the sizes.
        roi: start and end in normalised coordinates.
    """

    index: int
    size: int | None
    out: int | None
    scale: float | None
    roi: tuple[float, float]

    @property
    def ratio(self) -> float:
        """The scale that coordinates are computed with."""
        if self.scale is not None or self.size is None or self.out is None:
            return self.scale or 0.0
        return float(F32(self.out) / F32(self.size))

    @property
    def times(self) -> int | None:
        """The whole factor by which it grows; None where it is no whole one."""
        ratio = self.ratio
        whole = ratio >= 1 and ratio == int(ratio)
        exact = self.size is None or self.out is None or self.out == self.size * int(ratio)
        return int(ratio) if whole and exact else None


@OPS.lower("Resize", dtypes=ALL)
def resize(
    g: Builder,
    X: Tensor,
    roi: Const | None = None,
    scales: Const | None = None,
    sizes: Tensor | None = None,
    *,
    antialias: int,
    axes: Sequence[int] | None,
    coordinate_transformation_mode: str,
    cubic_coeff_a: float,
    exclude_outside: int,
    extrapolation_value: float,
    keep_aspect_ratio_policy: str,
    mode: str,
    nearest_mode: str,
) -> Tensor:
    """Upsampling by whole factors; else a gather, or a product with the weights, an axis."""
    how = How(
        mode,
        coordinate_transformation_mode,
        nearest_mode,
        cubic_coeff_a,
        bool(exclude_outside) and mode == "cubic",
        bool(antialias) and mode != "nearest",
    )
    if mode != "nearest" and not X.is_float:
        raise Refusal(f"mode {mode!r} of {X.dtype}", "unsupported_dtype")
    chosen = [a % X.rank for a in (axes if axes is not None else range(X.rank))]
    if sizes is not None and keep_aspect_ratio_policy == "stretch":
        late = _late(g, X, how, dict(zip(chosen, partly(g, sizes), strict=True)))
        if late is not None:
            return late
    planned = _plan(g, X, how, chosen, roi, scales, sizes, keep_aspect_ratio_policy)
    crops = how.transform == "tf_crop_and_resize"
    planned = [p for p in planned if crops or p.out != p.size or p.out is None]
    planned = [p for p in planned if p.out is not None or p.scale != 1.0]
    if how.transform == "align_corners" and any(_is_ambiguous(p) for p in planned):
        raise Refusal("align_corners with a scale that gives no whole size: engines disagree")
    whole = _whole_factors(g, X, how, planned)
    if whole is not None:
        return whole
    out = X
    for axis in planned:
        out = _apply(g, out, how, axis)
    if crops:
        out = _extrapolated(g, out, how, planned, extrapolation_value)
    return g.same(out) if out is X else out


_SAMPLED = {**dict.fromkeys(_HALF, "UNALIGN_CORNERS"), "align_corners": "STRICT_ALIGN_CORNERS"}


def _late(g: Builder, x: Tensor, how: How, sizes: dict[int, Extent]) -> Tensor | None:
    """Interpolate the last two axes to dynamic sizes, where one operator does."""
    moving = {
        a: size
        for a, size in sizes.items()
        if not g.keeps(a) and not (isinstance(size, int) and size == x.shape[a])
    }
    known = all(isinstance(s, int) and isinstance(x.shape[a], int) for a, s in moving.items())
    last = (x.rank - 2, x.rank - 1)
    if known or not x.is_float or not g.offers("resize") or any(a not in last for a in moving):
        return None
    if how.mode != "linear" or how.antialias or how.transform not in _SAMPLED:
        return None
    source = x
    if how.transform == "pytorch_half_pixel":
        for axis, size in moving.items():
            source = _first_alone(g, source, axis, size)
    made = g.emit(
        "resize",
        x=source,
        shape=g.vector([moving.get(a, g.extent(x, a)) for a in last]),
        resized_dims=np.uint32(2),
        interpolation_mode="LINEAR",
        sampling_mode=_SAMPLED[how.transform],
    )
    shape = [x.shape[a] if a not in moving else made.shape[a] for a in range(x.rank)]
    g.know_shape(made, shape)
    return made


def _first_alone(g: Builder, x: Tensor, axis: int, size: Extent) -> Tensor:
    """Leave the first element only of what becomes one element: PyTorch takes no mean there."""
    if isinstance(size, int):
        return g.part(x, axis, 0, 1) if size == 1 else x
    before = g.extent(x, axis)
    whole = g.const(before, np.int32) if isinstance(before, int) else before
    one = g.binary("equal", size, 1)
    return g.part(x, axis, 0, g.select(one, g.const(1, np.int32), whole))


def _is_ambiguous(axis: Axis) -> bool:
    if axis.scale is None or axis.size is None:
        return axis.scale is not None and axis.scale != int(axis.scale)
    return axis.out != float(F32(axis.scale) * F32(axis.size))


def _plan(
    g: Builder,
    x: Tensor,
    how: How,
    axes: list[int],
    roi: Const | None,
    scales: Const | None,
    sizes: Tensor | None,
    policy: str,
) -> list[Axis]:
    given = roi.array.ravel().tolist() if roi is not None and roi.array.size else None
    spans = [
        (0.0, 1.0) if given is None else (given[i], given[i + len(axes)]) for i in range(len(axes))
    ]
    have = [s if isinstance(s, int) else None for s in (x.shape[a] for a in axes)]
    if scales is not None and scales.array.size:
        factors = [float(f) for f in scales.array.ravel()]
        outs = [
            None if h is None else int(np.floor(F32(h) * F32(f)))
            for h, f in zip(have, factors, strict=True)
        ]
        rows = zip(axes, have, outs, factors, spans, strict=True)
        return [Axis(*row) for row in rows]
    if sizes is None:
        raise Refusal("neither scales nor sizes")
    wanted = [e if isinstance(e, int) else None for e in partly(g, sizes)]
    if policy != "stretch":
        return _keeping_ratio(axes, have, wanted, spans, policy)
    known = g.given(0)
    if known is not None:
        wanted = [known[a] for a in axes]
    known_or_not = zip(axes, have, wanted, spans, strict=True)
    moving = [Axis(a, h, w, None, r) for a, h, w, r in known_or_not if not g.keeps(a)]
    if all(axis.size is not None and axis.out is not None for axis in moving):
        return moving
    late = "to a dynamic size"
    if how.mode == "nearest" and how.rounding.startswith("round"):
        words = f"nearest_mode {how.rounding!r} {late}: engines disagree on what lies halfway"
        raise Refusal(words, "dynamic_shape", "fix the sizes with --input-shape")
    raise Refusal(f"resizes {late}", "dynamic_shape")


def _keeping_ratio(
    axes: list[int],
    have: list[int | None],
    wanted: list[int | None],
    spans: list[tuple[float, float]],
    policy: str,
) -> list[Axis]:
    pairs = [(w, h) for w, h in zip(wanted, have, strict=True) if w is not None and h is not None]
    if len(pairs) < len(axes):
        raise Refusal("sizes must be known to keep their ratio", "dynamic_shape")
    factors = [F32(w) / F32(h) for w, h in pairs]
    scale = float(min(factors) if policy == "not_larger" else max(factors))
    outs = [int(np.floor(F32(scale) * F32(h) + F32(0.5))) for _, h in pairs]
    rows = zip(axes, pairs, outs, spans, strict=True)
    return [Axis(a, h, out, scale, r) for a, (_, h), out, r in rows]


def _whole_factors(g: Builder, x: Tensor, how: How, axes: list[Axis]) -> Tensor | None:
    """Upsample the last two axes by whole factors, which Core ML's own operators do."""
    if not x.is_float or x.rank not in (3, 4) or not axes or how.antialias:
        return None
    factors = {a.index: a.times for a in axes}
    last = (x.rank - 2, x.rank - 1)
    if any(a not in last for a in factors) or None in factors.values():
        return None
    high, wide = (factors.get(a) or 1 for a in last)
    if how.mode == "nearest" and _repeats(how, axes):
        return g.emit(
            "upsample_nearest_neighbor", x=x, scale_factor_height=high, scale_factor_width=wide
        )
    if how.mode != "linear" or how.transform not in (*_HALF, "align_corners"):
        return None
    align = how.transform == "align_corners"
    return g.emit(
        "upsample_bilinear",
        x=x,
        scale_factor_height=high,
        scale_factor_width=wide,
        align_corners=align,
    )


def _repeats(how: How, axes: list[Axis]) -> bool:
    """Whether every element is just repeated."""
    for axis in axes:
        times = axis.times or 1
        for size in (axis.size,) if axis.size is not None else (1, 2, 3, 5, 8, 13, 33):
            try:
                found = taps(how, size, size * times, float(times))
            except Refusal:
                return False
            if not (found.source[:, 0] == np.arange(size * times) // times).all():
                return False
    return True


def _apply(g: Builder, x: Tensor, how: How, axis: Axis) -> Tensor:
    if axis.size is None or axis.out is None:
        raise Refusal("resizes a dynamic size by a part", "dynamic_shape")
    found = taps(how, axis.size, axis.out, axis.ratio, axis.roi)
    if found.source.shape[1] == 1:
        moved = g.cast(x, np.int32) if x.dtype == np.bool_ else x
        where = g.const(found.source[:, 0], np.int32)
        out = g.emit("gather", x=moved, indices=where, axis=axis.index, span=x.span)
        return g.cast(out, x.dtype)
    return _weighted(g, x, matrix(found, axis.size), axis.index)


def _weighted(g: Builder, x: Tensor, weights: Array, axis: int) -> Tensor:
    """Multiply an axis by its weights, as the last or the last but one of the tensor."""
    if axis == x.rank - 1:
        return g.emit("matmul", x=x, y=g.const(weights.T, x.dtype))
    if axis == x.rank - 2:
        return g.emit("matmul", x=g.const(weights, x.dtype), y=x)
    perm = [a for a in range(x.rank) if a != axis] + [axis]
    moved = _weighted(g, g.transpose(x, perm), weights, x.rank - 1)
    return g.transpose(moved, [perm.index(a) for a in range(x.rank)])


def _extrapolated(g: Builder, x: Tensor, how: How, axes: list[Axis], value: float) -> Tensor:
    mask = np.zeros((1,) * x.rank, np.bool_)
    for axis in axes:
        found: Taps = taps(how, axis.size or 0, axis.out or 0, axis.ratio, axis.roi)
        mask = mask | found.outside.reshape([-1 if a == axis.index else 1 for a in range(x.rank)])
    if not mask.any():
        return x
    return g.select(g.const(mask, np.bool_), g.const(value, x.dtype), x)
