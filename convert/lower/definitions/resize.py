"""Resize by dynamic sizes or scales: indices along an axis, gathered and weighted."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from edgeinfer.convert.lower.definitions.body import (
    Body,
    attribute,
    cubic_shares,
    input_at,
    raised,
    scaled,
)

_FLOAT, _INT32 = ir.DataType.FLOAT.value, ir.DataType.INT32.value
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE})


def resize(node: ir.Node) -> onnx.FunctionProto | None:
    """Gather along each axis; None where all is known, or where engines do not agree.

    Given: ``y = Resize<mode="linear">(x, , , sizes)`` of one axis
    Result::

        place = (Range(0, sizes) + 0.5) / (sizes / Shape(x)) - 0.5
        low = Floor(place); far = place - low
        y = Gather(x, low) * (1 - far) + Gather(x, low + 1) * far
    """
    x, mode = node.inputs[0], attribute(node, "mode", "nearest")
    transform = attribute(node, "coordinate_transformation_mode", "half_pixel")
    if x is None or x.shape is None or x.dtype is None or transform == "tf_crop_and_resize":
        return None
    if mode != "nearest" and (x.dtype not in _FLOATS or attribute(node, "antialias", 0)):
        return None
    rounds = attribute(node, "nearest_mode", "round_prefer_floor").startswith("round")
    # Of ratios of sizes, rounding decides what lies halfway; of parts, where the corners are.
    if _given(node, 2):
        factors = _known(node, 2)
        whole = factors is not None and all(f == int(f) for f in factors)
        disagree = transform == "align_corners" and not whole
    else:
        disagree = mode == "nearest" and rounds
    if disagree:
        return None
    axes = [a % len(x.shape) for a in attribute(node, "axes", range(len(x.shape)))]
    moving = [(k, a) for k, a in enumerate(axes) if not _stays(node, k, a)]
    if all(_is_known(node, a) for _, a in moving):
        return None
    body = Body(node)
    sizes = {a: _size(body, x, a) for a in axes}
    scales = _scales(node, body, axes, sizes)
    found = "i0"
    for k, axis in moving:
        found = _along(node, body, found, axis, len(x.shape), (k, sizes[axis], scales))
    body.give(0, found)
    return body.function()


def _given(node: ir.Node, index: int) -> ir.Value | None:
    """An input that is there and not empty."""
    value = input_at(node, index)
    empty = value is not None and value.shape is not None and list(value.shape) == [0]
    return None if empty else value


def _known(node: ir.Node, index: int) -> list[float] | None:
    value = _given(node, index)
    constant = None if value is None else value.const_value
    return None if constant is None else [float(v) for v in constant.numpy().reshape(-1)]


def _stays(node: ir.Node, k: int, axis: int) -> bool:
    """Whether an axis is known to keep its size, and so its elements."""
    factors = _known(node, 2)
    if factors is not None:
        return factors[k] == 1.0
    before, after = (None if v is None else v.shape for v in (node.inputs[0], node.outputs[0]))
    if before is None or after is None or _given(node, 2) is not None:
        return False
    size = before[axis]
    return size == after[axis] and (isinstance(size, int) or size.value is not None)


def _is_known(node: ir.Node, axis: int) -> bool:
    """Whether sizes before and after are known now."""
    x, index = node.inputs[0], 2 if _given(node, 2) is not None else 3
    size = None if x is None or x.shape is None else x.shape[axis]
    return isinstance(size, int) and _known(node, index) is not None


def _size(body: Body, x: ir.Value, axis: int) -> str:
    """The size of an axis before: int32, one element."""
    size = None if x.shape is None else x.shape[axis]
    if isinstance(size, int):
        return body.op("Cast", body.const([size]), to=_INT32)
    return body.op("Cast", body.op("Shape", "i0", start=axis, end=axis + 1), to=_INT32)


def _scales(node: ir.Node, body: Body, axes: list[int], sizes: dict[int, str]) -> str:
    """The factor of each axis that coordinates are computed with."""
    if _given(node, 2) is not None:
        return "i2"
    before = body.op("Concat", *(sizes[a] for a in axes), axis=0)
    ratio = body.op("Div", body.op("Cast", "i3", to=_FLOAT), body.op("Cast", before, to=_FLOAT))
    policy = attribute(node, "keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return ratio
    return body.op("ReduceMin" if policy == "not_larger" else "ReduceMax", ratio, keepdims=1)


def _out(node: ir.Node, body: Body, k: int, size: str, scale: str) -> str:
    """The size of an axis after: int32, one element."""
    kept = attribute(node, "keep_aspect_ratio_policy", "stretch") != "stretch"
    if _given(node, 2) is None and not kept:
        return body.op("Cast", body.part("i3", k), to=_INT32)
    product = body.op("Mul", body.op("Cast", size, to=_FLOAT), scale)
    if _given(node, 2) is None:
        product = raised(body, product, 0.5)
    return body.op("Cast", body.op("Floor", product), to=_INT32)


def _along(
    node: ir.Node, body: Body, x: str, axis: int, rank: int, about: tuple[int, str, str]
) -> str:
    """Resize one axis."""
    k, size, scales = about
    kept = attribute(node, "keep_aspect_ratio_policy", "stretch") != "stretch"
    scale = scales if kept and _given(node, 2) is None else body.part(scales, k)
    out = _out(node, body, k, size, scale)
    place = _places(node, body, size, out, scale)
    last = raised(body, body.op("Cast", size, to=_FLOAT), -1.0)
    mode = attribute(node, "mode", "nearest")
    if mode == "nearest":
        return _gathered(body, x, _rounded(node, body, place), last, axis)
    base = body.op("Floor", place)
    far = body.op("Sub", place, base)
    if mode == "linear":
        offsets = [(0, body.op("Sub", body.const(1.0), far)), (1, far)]
    else:
        shares = cubic_shares(body, far, attribute(node, "cubic_coeff_a", -0.75))
        offsets = list(zip(range(-1, 3), shares, strict=True))
    taps = [(raised(body, base, float(o)), share) for o, share in offsets]
    if mode == "cubic" and attribute(node, "exclude_outside", 0):
        taps = _inside(body, taps, last)
    total = ""
    for where, share in taps:
        wide = body.op("CastLike", share, x)
        if axis + 1 < rank:
            wide = body.op("Unsqueeze", wide, body.const(list(range(1, rank - axis))))
        part = body.op("Mul", _gathered(body, x, where, last, axis), wide)
        total = body.op("Add", total, part) if total else part
    return total


def _places(node: ir.Node, body: Body, size: str, out: str, scale: str) -> str:
    """Where each element lies in the input."""
    ends = (body.reshape(body.op("Cast", body.const([v]), to=_INT32)) for v in (0, 1))
    zero, one = ends
    counted = body.op("Cast", body.op("Range", zero, body.reshape(out), one), to=_FLOAT)
    before, after = (body.op("Cast", s, to=_FLOAT) for s in (size, out))
    transform = attribute(node, "coordinate_transformation_mode", "half_pixel")
    if transform == "asymmetric":
        return body.op("Div", counted, scale)
    if transform == "align_corners":
        steps = body.op("Max", raised(body, after, -1.0), body.const(1.0))
        return body.op("Div", body.op("Mul", counted, raised(body, before, -1.0)), steps)
    half = raised(body, body.op("Div", raised(body, counted, 0.5), scale), -0.5)
    if transform == "pytorch_half_pixel":
        several = body.op("Greater", after, body.const(1.0))
        return body.op("Where", several, half, body.const(0.0))
    kept = attribute(node, "keep_aspect_ratio_policy", "stretch") != "stretch"
    # With a ratio of sizes nothing is missing on either side.
    if transform == "half_pixel_symmetric" and (kept or _given(node, 2) is not None):
        share = body.op("Div", after, body.op("Mul", scale, before))
        missing = body.op("Sub", body.const(1.0), share)
        return body.op("Add", body.op("Mul", scaled(body, before, 0.5), missing), half)
    return half


def _rounded(node: ir.Node, body: Body, place: str) -> str:
    """The neighbour that a place stands for."""
    match attribute(node, "nearest_mode", "round_prefer_floor"):
        case "floor":
            return body.op("Floor", place)
        case "ceil":
            return body.op("Ceil", place)
        case "round_prefer_ceil":
            # Adding a half would round what lies just below one.
            low = body.op("Floor", place)
            up = body.op("GreaterOrEqual", body.op("Sub", place, low), body.const(0.5))
            return body.op("Add", low, body.op("Cast", up, to=_FLOAT))
    return body.op("Ceil", raised(body, place, -0.5))


def _inside(body: Body, taps: list[tuple[str, str]], last: str) -> list[tuple[str, str]]:
    """Let positions outside count nothing, and the others what is left."""
    held = []
    for where, share in taps:
        above = body.op("GreaterOrEqual", where, body.const(0.0))
        inside = body.op("And", above, body.op("LessOrEqual", where, last))
        held.append(body.op("Mul", share, body.op("Cast", inside, to=_FLOAT)))
    total = body.op("Sum", *held)
    return [(where, body.op("Div", h, total)) for (where, _), h in zip(taps, held, strict=True)]


def _gathered(body: Body, x: str, where: str, last: str, axis: int) -> str:
    """Take elements at positions, the nearest for those outside."""
    held = body.op("Min", body.op("Max", where, body.const(0.0)), last)
    return body.op("Gather", x, body.op("Cast", held, to=_INT32), axis=axis)
