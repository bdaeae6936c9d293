"""Pictures in other sizes, axis by axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from tvm import te, tirx

from edgeinfer.convert.lower import resample
from edgeinfer.convert.lower.registry import Const, Refusal
from edgeinfer.convert.lower.tvm.builder import Builder, Tensor
from edgeinfer.convert.lower.tvm.registry import OPS

_KINDS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.UINT8, ir.DataType.INT8})


@OPS.lower("Resize", since=19, dtypes=_KINDS)
def resize(
    g: Builder,
    X: Tensor,  # noqa: N803
    roi: Const | None = None,
    scales: Const | None = None,
    sizes: Const | None = None,
    *,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:
    """Nearest, linear or cubic."""
    if keep_aspect_ratio_policy != "stretch":
        raise Refusal(f"keep_aspect_ratio_policy {keep_aspect_ratio_policy!r}")
    if mode != "nearest" and X.dtype not in ("float32", "float64"):
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
    if coordinate_transformation_mode == "tf_crop_and_resize":
        raise Refusal("tf_crop_and_resize")
    result = X
    for i, axis in enumerate(along):
        size = X.shape[axis]
        scale = _scale(scales, sizes, i, size)
        if scale == 1:
            continue
        if not isinstance(size, int):
            raise Refusal("an open size", "dynamic_shape")
        given = sizes is not None and sizes.array.size
        out = int(sizes.array[i]) if sizes is not None and given else int(np.floor(size * scale))
        if coordinate_transformation_mode == "align_corners" and out != size * scale and not given:
            raise Refusal("align_corners with a scale that gives no whole size: engines disagree")
        result = _axis(g, result, axis, resample.taps(how, size, out, scale))
    return result


def _scale(scales: Const | None, sizes: Const | None, i: int, size: Any) -> float:
    if scales is not None and scales.array.size:
        return float(scales.array[i])
    if sizes is None or not isinstance(size, int):
        raise Refusal("an open size", "dynamic_shape")
    return float(np.float32(int(sizes.array[i]) / size))


def _axis(g: Builder, x: Tensor, axis: int, t: resample.Taps) -> Tensor:
    """Sum the taps of one axis."""
    out, count = t.source.shape
    shape = (*x.shape[:axis], out, *x.shape[axis + 1 :])
    source = g.const(t.source.astype(np.int32))
    weights = g.const(t.weights.astype(x.dtype if x.dtype.startswith("float") else "float32"))
    plain = count == 1 and bool(np.all(t.weights == 1))

    def compute(data: Any, places: Any, *factors: Any) -> Any:
        def element(*index: Any) -> Any:
            value: Any = None
            for tap in range(count):
                k = tirx.const(tap, "int64")
                at = places(index[axis], k).astype("int64")
                one = data(*index[:axis], at, *index[axis + 1 :])
                one = one if plain else one * factors[0](index[axis], k)
                value = one if value is None else value + one
            return value

        return te.compute(shape, element, name="resize")

    if plain:
        return g.te(compute, x, source, name="resize")
    return g.te(compute, x, source, weights, name="resize")


@OPS.lower("Upsample", since=9, dtypes=_KINDS)
def upsample(g: Builder, X: Tensor, scales: Const, *, mode: str = "nearest") -> Tensor:  # noqa: N803
    """``Resize`` as it was."""
    return resize(
        g,
        X,
        None,
        scales,
        mode=mode,
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
