"""Values of an image at positions between its elements."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from tvm import te, tirx

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tvm.builder import Builder, Tensor
from edgeinfer.convert.lower.tvm.ops.arith import convert
from edgeinfer.convert.lower.tvm.registry import FLOATS, OPS

_CUBIC = -0.75


@OPS.lower("GridSample", dtypes=FLOATS)
def grid_sample(
    g: Builder, X: Tensor, grid: Tensor, *, align_corners: int, mode: str, padding_mode: str
) -> Tensor:
    """Sample at positions from -1 to 1, the last of which is the last axis."""
    if X.dtype == "float64" or grid.dtype == "float64":
        raise Refusal("float64", "unsupported_dtype")
    axes = X.rank - 2
    if mode == "cubic" and axes != 2:
        raise Refusal(f"cubic over {axes} axes")
    x, coordinates = convert(g, X, "float32"), convert(g, grid, "float32")
    outer = grid.shape[1:-1]
    shape = (*X.shape[:2], *outer)
    aligned = bool(align_corners)

    def compute(data: Any, at: Any) -> Any:
        sizes = [data.shape[2 + a] for a in range(axes)]

        def element(*index: Any) -> Any:
            batch, channel, *place = index
            where = [
                _place(at(batch, *place, tirx.const(axes - 1 - a, "int64")), sizes[a], aligned)
                for a in range(axes)
            ]
            how = padding_mode, aligned
            taps = [_taps(w, s, mode, how) for w, s in zip(where, sizes, strict=True)]

            def read(at: Sequence[Any]) -> Any:
                held = [_bounded(a, s) for a, s in zip(at, sizes, strict=True)]
                value = data(batch, channel, *held)
                if padding_mode != "zeros":
                    return value
                there = tirx.all(*(tirx.all(a >= 0, a < s) for a, s in zip(at, sizes, strict=True)))
                return tirx.Select(there, value, tirx.const(0, "float32"))

            total: Any = tirx.const(0, "float32")
            for chosen in product(*taps):
                weight: Any = tirx.const(1, "float32")
                for one, _ in chosen:
                    weight = weight * one
                total = total + weight * read([a for _, a in chosen])
            return total

        return te.compute(shape, element, name="grid_sample")

    return convert(g, g.te(compute, x, coordinates, name="grid_sample"), X.dtype)


def _number(value: float) -> Any:
    return tirx.const(value, "float32")


def _place(value: Any, size: Any, aligned: bool) -> Any:
    """From -1 to 1 to the middle of elements."""
    wide = tirx.Cast("float32", size)
    if aligned:
        return (value + _number(1)) * _number(0.5) * (wide - _number(1))
    return ((value + _number(1)) * wide - _number(1)) * _number(0.5)


def _taps(place: Any, size: Any, mode: str, how: tuple[str, bool]) -> list[tuple[Any, Any]]:
    """Weights and the elements that they are for, along one axis."""
    padding, aligned = how
    if mode != "cubic":
        # Border and reflection apply to the place, and for cubic to each element.
        place = _inside(place, size, padding, aligned)
    # Far away, and of what is no number, every place is outside alike.
    place = tirx.Select(place > _number(-1e6), tirx.min(place, _number(1e6)), _number(-1e6))
    if mode == "nearest":
        return [(_number(1), tirx.Cast("int64", tirx.nearbyint(place)))]
    low = tirx.floor(place)
    part = place - low
    first = tirx.Cast("int64", low)
    if mode != "cubic":
        return [(_number(1) - part, first), (part, first + 1)]
    weights = [_cubic(part + _number(1)), _cubic(part)]
    weights += [_cubic(_number(1) - part), _cubic(_number(2) - part)]
    elements = []
    for i in range(-1, 3):
        element = first + i
        if padding != "zeros":
            held = _inside(tirx.Cast("float32", element), size, padding, aligned)
            element = tirx.Cast("int64", tirx.nearbyint(held))
        elements.append(element)
    return list(zip(weights, elements, strict=True))


def _cubic(distance: Any) -> Any:
    """The kernel of Keys, for distances up to 2."""
    a, d = _CUBIC, distance
    near = ((_number(a + 2) * d - _number(a + 3)) * d) * d + _number(1)
    far = ((_number(a) * d - _number(5 * a)) * d + _number(8 * a)) * d - _number(4 * a)
    return tirx.Select(d <= _number(1), near, far)


def _inside(place: Any, size: Any, padding: str, aligned: bool) -> Any:
    """Move a place into the image."""
    wide = tirx.Cast("float32", size)
    if padding == "border":
        return tirx.max(_number(0), tirx.min(place, wide - _number(1)))
    if padding != "reflection":
        return place
    low, high = (_number(0), wide - _number(1)) if aligned else (_number(-0.5), wide - _number(0.5))
    span = high - low
    # An image of one element has nothing between its ends.
    span = tirx.Select(span > _number(0), span, _number(1))
    away = tirx.abs(place - low)
    turns = tirx.floor(away / span)
    # Far away the difference is larger than its terms are exact to.
    rest = tirx.max(tirx.min(away - turns * span, span), _number(0))
    even = tirx.floor(turns * _number(0.5)) * _number(2) >= turns
    return tirx.Select(even, rest + low, high - rest)


def _bounded(place: Any, size: Any) -> Any:
    return tirx.max(tirx.const(0, "int64"), tirx.min(place, tirx.Cast("int64", size) - 1))
