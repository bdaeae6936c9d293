"""Images in other sizes, axis by axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import floor
from typing import Any

import numpy as np
from tvm import te, tirx

from edgeinfer.convert.lower import resample
from edgeinfer.convert.lower.registry import Const, Refusal
from edgeinfer.convert.lower.tvm.builder import Builder, Tensor
from edgeinfer.convert.lower.tvm.ops.arith import convert
from edgeinfer.convert.lower.tvm.registry import ALL, OPS
from edgeinfer.records import dataclass


@dataclass(frozen=True, slots=True)
class _Axis:
    """What happens along one axis.

    Attributes:
        index: Index of the axis.
        size: before.
        out: after.
        scale: None where it is the ratio of the sizes.
        roi: start and end in normalised coordinates.
    """

    index: int
    size: int
    out: int
    scale: float | None
    roi: tuple[float, float]

    @property
    def ratio(self) -> float:
        """The scale that coordinates are computed with."""
        return float(np.float32(self.out / self.size)) if self.scale is None else self.scale


@OPS.lower("Resize", dtypes=ALL)
def resize(
    g: Builder,
    X: Tensor,
    roi: Const | None = None,
    scales: Const | None = None,
    sizes: Const | None = None,
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
    """Nearest, linear or cubic."""
    if mode != "nearest" and not X.dtype.startswith("float"):
        raise Refusal(f"mode {mode!r} of {X.dtype}", "unsupported_dtype")
    how = resample.How(
        mode,
        coordinate_transformation_mode,
        nearest_mode,
        cubic_coeff_a,
        bool(exclude_outside),
        bool(antialias),
    )
    along = [a % X.rank for a in axes] if axes is not None else list(range(X.rank))
    planned = _plan(X, along, roi, scales, sizes, keep_aspect_ratio_policy)
    crops = how.transform == "tf_crop_and_resize"
    wide = mode != "nearest" and X.dtype == "float16"
    result = convert(g, X, "float32") if wide else X
    masks = []
    for axis in planned:
        if not crops and axis.ratio == 1 and axis.out == axis.size:
            continue
        if how.transform == "align_corners" and _is_ambiguous(axis):
            raise Refusal("align_corners with a scale that gives no whole size: engines disagree")
        found = resample.taps(how, axis.size, axis.out, axis.ratio, axis.roi)
        masks += [(axis.index, found.outside)] if crops else []
        result = _summed(g, result, axis, found)
    return convert(g, _outside(g, result, masks, extrapolation_value), X.dtype)


def _is_ambiguous(axis: _Axis) -> bool:
    # The standard's reference divides by the exact product less one, ONNX Runtime by the size.
    return axis.scale is not None and axis.out != float(np.float32(axis.scale) * axis.size)


def _plan(
    x: Tensor,
    axes: list[int],
    roi: Const | None,
    scales: Const | None,
    sizes: Const | None,
    policy: str,
) -> list[_Axis]:
    """Return the axes that have other sizes; what is known only at run time has a definition."""
    given = roi.array.ravel().tolist() if roi is not None and roi.array.size else None
    factors = None if scales is None or not scales.array.size else scales.array.ravel().tolist()
    planned = []
    for k, axis in enumerate(axes):
        size, span = x.shape[axis], (0.0, 1.0)
        if factors is not None and factors[k] == 1 and given is None:
            continue
        if not isinstance(size, int):
            raise Refusal("an open size", "dynamic_shape")
        if given is not None:
            span = given[k], given[k + len(axes)]
        if factors is not None:
            out = floor(np.float32(size) * np.float32(factors[k]))
            planned.append(_Axis(axis, size, out, factors[k], span))
        elif sizes is not None:
            planned.append(_Axis(axis, size, int(sizes.array.ravel()[k]), None, span))
        else:
            raise Refusal("neither scales nor sizes")
    if factors is not None or policy == "stretch":
        return planned
    wanted, have = [a.out for a in planned], [a.size for a in planned]
    outs, scale = resample.keeping_ratio(wanted, have, policy)
    return [replace(a, out=out, scale=scale) for a, out in zip(planned, outs, strict=True)]


def _summed(g: Builder, x: Tensor, axis: _Axis, t: resample.Taps) -> Tensor:
    """Sum the taps of one axis."""
    at, (out, count) = axis.index, t.source.shape
    shape = (*x.shape[:at], out, *x.shape[at + 1 :])
    kind = x.dtype if x.dtype.startswith("float") else "float32"
    plain = count == 1 and bool(np.all(t.weights == 1))
    weights = [] if plain else [g.const(t.weights.astype(kind))]

    def compute(data: Any, places: Any, *factors: Any) -> Any:
        def element(*index: Any) -> Any:
            value: Any = None
            for tap in range(count):
                k = tirx.const(tap, "int64")
                place = places(index[at], k).astype("int64")
                one = data(*index[:at], place, *index[at + 1 :])
                one = one * factors[0](index[at], k) if factors else one
                value = one if value is None else value + one
            return value

        return te.compute(shape, element, name="resize")

    return g.te(compute, x, g.const(t.source.astype(np.int32)), *weights, name="resize")


def _outside(g: Builder, x: Tensor, masks: list[tuple[int, Any]], value: float) -> Tensor:
    """Put a value where what was cut out lies beyond the image."""
    for axis, mask in masks:
        if mask.any():
            form = [-1 if a == axis else 1 for a in range(x.rank)]
            beyond, fill = g.const(mask.reshape(form)), g.const(np.asarray(value, x.dtype))
            x = g.map(tirx.Select, beyond, fill, x)
    return x
