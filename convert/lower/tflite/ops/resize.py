"""Resize: the kernels where they compute just that, weighted rows elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeinfer.convert.lower.registry import Const, Refusal
from edgeinfer.convert.lower.resample import keeping_ratio
from edgeinfer.convert.lower.tflite.builder import Builder, Extent, broadcast
from edgeinfer.convert.lower.tflite.graph import Size, Tensor
from edgeinfer.convert.lower.tflite.registry import ANY, NHWC, OPS
from edgeinfer.convert.lower.tflite.resample import FLAGS, How, Taps, agrees, matrix, taps
from edgeinfer.convert.lower.tflite.sizes import (
    around,
    as_bits,
    axis_of,
    compute,
    counting,
    extents,
    known,
    merge,
    narrow,
    reform,
    scalar,
)
from edgeinfer.records import dataclass
from edgeinfer.types import Array

_GATHERED = 4
"""Taps up to which rows are gathered and weighted; more are one matrix product."""

_KERNEL_KINDS = ("float32", "int32", "int8", "uint8", "int16")
_MOVED_AS = {"bool": np.int8, "float64": np.int64, "uint32": np.int32, "uint16": np.int16}


@dataclass(frozen=True, slots=True)
class Axis:
    """What happens along one axis.

    Attributes:
        index: Index of the axis.
        size: before.
        out: after; None where it is known only at run time.
        scale: None where it is the ratio of the sizes.
        roi: start and end in normalised coordinates.
        target: the size after, as the graph knows it.
    """

    index: int
    size: Size
    out: Size
    scale: float | None
    roi: tuple[float, float]
    target: Extent

    @property
    def ratio(self) -> float:
        """The scale that coordinates are computed with."""
        if self.scale is not None or self.size is None or self.out is None:
            return self.scale or 0.0
        return float(np.float32(self.out) / np.float32(self.size))


def _resize(
    g: Builder,
    x: Tensor,
    roi: Const | None = None,
    scales: Const | None = None,
    sizes: Tensor | None = None,
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
    how = How(
        mode,
        coordinate_transformation_mode,
        nearest_mode,
        cubic_coeff_a,
        bool(exclude_outside) and mode == "cubic",
        bool(antialias) and mode != "nearest",
    )
    chosen = [axis_of(a, x.rank) for a in (axes if axes is not None else range(x.rank))]
    planned = _plan(g, x, chosen, roi, scales, sizes, keep_aspect_ratio_policy)
    crops = how.transform == "tf_crop_and_resize"
    planned = [p for p in planned if crops or p.size is None or p.out != p.size or p.ratio != 1]
    if how.transform == "align_corners" and any(_is_ambiguous(p) for p in planned):
        raise Refusal("align_corners with a scale that gives no whole size: engines disagree")
    own = x.dtype
    if mode == "nearest":
        bits = _MOVED_AS.get(own.name)
        inner = x if bits is None else as_bits(g, x, np.dtype(bits))
    elif own.name in ("float32", "float16"):
        inner = g.cast(x, np.float32)
    else:
        raise Refusal(f"mode {mode!r} of {own}", "unsupported_dtype")
    outside: Tensor | None = None
    for group in _groups(planned):
        inner = _apply_group(g, inner, how, group)
    if crops:
        outside = _outside(g, inner.rank, how, planned)
        if outside is not None:
            value = g.const(extrapolation_value, inner.dtype)
            shape = broadcast(outside.shape, inner.shape)
            inner = g.emit("SELECT_V2", [outside, value, inner], shape, inner.dtype)
    return as_bits(g, inner, own) if mode == "nearest" else g.cast(inner, own)


def _is_ambiguous(axis: Axis) -> bool:
    # The standard's reference divides by the exact product less one, ONNX Runtime by the size.
    if axis.scale is None or axis.size is None:
        return axis.scale is not None and axis.scale != int(axis.scale)
    return axis.out != float(np.float32(axis.scale) * np.float32(axis.size))


for _domain in ("", NHWC):
    OPS.lower("Resize", domain=_domain, dtypes=ANY)(_resize)


def _plan(
    g: Builder,
    x: Tensor,
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
    if scales is not None and scales.array.size:
        factors = scales.array.ravel().tolist()
        return [_scaled(g, x, a, f, r) for a, f, r in zip(axes, factors, spans, strict=True)]
    if sizes is None:
        raise Refusal("neither scales nor sizes")
    if policy != "stretch":
        return _keeping_ratio(x, axes, sizes, spans, policy)
    if sizes.data is None:
        small = narrow(g, sizes)
        picked = [g.gather(small, g.const(i, np.int32), 0) for i in range(len(axes))]
        rows = zip(axes, picked, spans, strict=True)
        return [Axis(a, x.shape[a], None, None, r, target) for a, target, r in rows]
    outs = [int(s) for s in sizes.data.ravel()]
    return [
        Axis(a, x.shape[a], out, None, r, out) for a, out, r in zip(axes, outs, spans, strict=True)
    ]


def _scaled(g: Builder, x: Tensor, axis: int, factor: float, roi: tuple[float, float]) -> Axis:
    size = x.shape[axis]
    if size is not None:
        out = int(np.floor(np.float32(size) * np.float32(factor)))
        return Axis(axis, size, out, factor, roi, out)
    length = g.extent(x, axis)
    target: Extent
    if factor == int(factor):
        target = compute(g, "MUL", length, int(factor))
    else:
        product = g.binary("MUL", g.cast(scalar(g, length), np.float32), factor)
        target = g.cast(g.unary("FLOOR", product), np.int32)
    return Axis(axis, None, None, factor, roi, target)


def _keeping_ratio(
    x: Tensor, axes: list[int], sizes: Tensor, spans: list[tuple[float, float]], policy: str
) -> list[Axis]:
    if sizes.data is None:
        raise Refusal("input 'sizes' must be constant", "requires_constant")
    have = [x.shape[a] for a in axes]
    if None in have:
        raise Refusal("sizes must be known to keep their ratio", "dynamic_shape")
    before = [h for h in have if h is not None]
    outs, scale = keeping_ratio([int(w) for w in sizes.data.ravel()], before, policy)
    rows = zip(axes, before, outs, spans, strict=True)
    return [Axis(a, h, out, scale, r, out) for a, h, out, r in rows]


def _groups(axes: list[Axis]) -> list[list[Axis]]:
    """Pairs of neighbouring axes, from the back, and what is left alone."""
    rest = sorted(axes, key=lambda a: a.index)
    groups: list[list[Axis]] = []
    while rest:
        last = rest.pop()
        if rest and rest[-1].index == last.index - 1:
            groups.append([rest.pop(), last])
        else:
            groups.append([last])
    return groups


def _apply_group(g: Builder, x: Tensor, how: How, group: list[Axis]) -> Tensor:
    if x.dtype.name in _KERNEL_KINDS:
        for flags in FLAGS:
            if all(agrees(how, flags, a.size, a.out, a.scale) for a in group):
                return _kernel(g, x, how, flags, group)
    if len(group) == 2:
        for axis in group:
            x = _apply_group(g, x, how, [axis])
        return x
    axis = group[0]
    if axis.size is None or axis.out is None:
        return _apply_at_run_time(g, x, how, axis)
    found = taps(how, axis.size, axis.out, axis.ratio, axis.roi)
    return _apply_taps(g, x, found, axis.index, axis.size)


def _kernel(g: Builder, x: Tensor, how: How, flags: tuple[bool, bool], group: list[Axis]) -> Tensor:
    """Planes of the two axes; everything before them is batch, everything after is channels."""
    first, last = group[0].index, group[-1].index
    groups = [range(first), [first], [last] if last > first else [], range(last + 1, x.rank)]
    plain = x.rank == 4 and (first, last) == (1, 2)
    planes = x if plain else merge(g, x, groups)
    high = group[0].target
    wide: Extent = group[1].target if last > first else 1
    code = "RESIZE_NEAREST_NEIGHBOR" if how.mode == "nearest" else "RESIZE_BILINEAR"
    shape = (planes.shape[0], *known([high, wide]), planes.shape[3])
    options = {"align_corners": flags[0], "half_pixel_centers": flags[1]}
    out = g.emit(code, [planes, g.shape_vector([high, wide])], shape, **options)
    if plain:
        out.quantization = x.quantization
        return out
    sizes = extents(g, x)
    for axis in group:
        sizes[axis.index] = axis.target
    return reform(g, out, sizes)


def _apply_taps(g: Builder, x: Tensor, found: Taps, axis: int, size: int) -> Tensor:
    if found.source.shape[1] == 1:
        return g.gather(x, g.const(found.source[:, 0]), axis)
    if found.source.shape[1] > _GATHERED:
        return _multiply(g, x, matrix(found, size), axis)
    total: Tensor | None = None
    for source, weight in zip(found.source.T, found.weights.T, strict=True):
        if not weight.any():
            continue
        form = [-1 if a == axis else 1 for a in range(x.rank)]
        part = g.gather(x, g.const(source), axis)
        if not (weight == 1).all():
            part = g.binary("MUL", part, g.const(weight.reshape(form)))
        total = part if total is None else g.binary("ADD", total, part)
    if total is None:
        raise Refusal("no input has a weight")
    return total


def _multiply(g: Builder, x: Tensor, weights: Array, axis: int) -> Tensor:
    sizes = extents(g, x)
    rows = merge(g, x, around(x.rank, axis))
    shape = (rows.shape[0], len(weights), rows.shape[2])
    options = {"adj_x": False, "adj_y": False, "asymmetric_quantize_inputs": False}
    out = g.emit("BATCH_MATMUL", [g.const(weights[None]), rows], shape, np.float32, **options)
    sizes[axis] = len(weights)
    return reform(g, out, sizes)


def _outside(g: Builder, rank: int, how: How, axes: list[Axis]) -> Tensor | None:
    mask = np.zeros((1,) * rank, np.bool_)
    for axis in axes:
        if axis.size is None or axis.out is None:
            raise Refusal("sizes must be known to crop", "dynamic_shape")
        found = taps(how, axis.size, axis.out, axis.ratio, axis.roi)
        mask = mask | found.outside.reshape([-1 if a == axis.index else 1 for a in range(rank)])
    return g.const(mask) if mask.any() else None


def _apply_at_run_time(g: Builder, x: Tensor, how: How, axis: Axis) -> Tensor:
    """The same coordinates, computed when the model runs."""
    if how.mode == "cubic" or how.antialias:
        raise Refusal(f"mode {how.mode!r} with sizes known at run time only", "dynamic_shape")
    if how.mode == "nearest" and how.rounding.startswith("round") and axis.scale is None:
        detail = f"nearest_mode {how.rounding!r} with sizes known at run time only"
        raise Refusal(
            detail, "dynamic_shape", hint="what only rounding decides, engines disagree on"
        )
    size = g.cast(scalar(g, g.extent(x, axis.index)), np.float32)
    place = _coordinates(g, how, axis, size)
    top = g.binary("SUB", size, 1.0)
    if how.mode == "nearest":
        nearest = _clipped(g, _rounded(g, how.rounding, place), top)
        return g.gather(x, g.cast(nearest, np.int32), axis.index)
    place = _clipped(g, place, top)
    low = g.unary("FLOOR", place)
    form: list[Extent] = [1] * x.rank
    form[axis.index] = axis.target
    share = g.reshape(g.binary("SUB", place, low), form)
    high = g.binary("MINIMUM", g.binary("ADD", low, 1.0), top)
    parts = [g.gather(x, g.cast(t, np.int32), axis.index) for t in (low, high)]
    kept = g.binary("MUL", parts[0], g.binary("SUB", 1.0, share))
    return g.binary("ADD", kept, g.binary("MUL", parts[1], share))


def _coordinates(g: Builder, how: How, axis: Axis, size: Tensor) -> Tensor:
    steps = g.cast(counting(g, axis.target), np.float32)
    out = g.cast(scalar(g, axis.target), np.float32)
    scale = g.binary("DIV", out, size) if axis.scale is None else g.const(axis.scale, np.float32)
    if how.transform == "asymmetric":
        return g.binary("DIV", steps, scale)
    if how.transform == "align_corners":
        # A single element lies at 0: the divisor is no longer 0 then.
        last = g.binary("MAXIMUM", g.binary("SUB", out, 1.0), 1.0)
        return g.binary("DIV", g.binary("MUL", steps, g.binary("SUB", size, 1.0)), last)
    half = g.binary("SUB", g.binary("DIV", g.binary("ADD", steps, 0.5), scale), 0.5)
    if how.transform == "half_pixel":
        return half
    if how.transform == "pytorch_half_pixel":
        many = g.binary("GREATER", out, 1.0)
        return g.emit("SELECT_V2", [many, half, g.const(0, np.float32)], half.shape, np.float32)
    raise Refusal(f"{how.transform!r} with sizes known at run time only", "dynamic_shape")


def _rounded(g: Builder, rounding: str, place: Tensor) -> Tensor:
    match rounding:
        case "floor":
            return g.unary("FLOOR", place)
        case "ceil":
            return g.unary("CEIL", place)
        case "round_prefer_floor" | "round_prefer_ceil":
            # Adding a half would round what lies just below one.
            low = g.unary("FLOOR", place)
            share = g.binary("SUB", place, low)
            over = "GREATER" if rounding == "round_prefer_floor" else "GREATER_EQUAL"
            return g.binary("ADD", low, g.cast(g.binary(over, share, 0.5), np.float32))
    raise Refusal(f"nearest_mode {rounding!r}")


def _clipped(g: Builder, place: Tensor, top: Tensor) -> Tensor:
    return g.binary("MINIMUM", g.binary("MAXIMUM", place, 0.0), top)
