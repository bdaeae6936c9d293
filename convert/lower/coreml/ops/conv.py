"""Convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from edgeinfer.convert.lower.coreml.builder import Builder
from edgeinfer.convert.lower.coreml.ops.window import SpatialWindow, window_of
from edgeinfer.convert.lower.coreml.registry import FLOATS, OPS
from edgeinfer.convert.lower.coreml.tensor import Tensor
from edgeinfer.convert.lower.registry import Refusal


@OPS.lower("Conv", dtypes=FLOATS)
def conv(
    g: Builder,
    X: Tensor,
    W: Tensor,
    B: Tensor | None = None,
    *,
    auto_pad: str,
    dilations: Sequence[int] | None,
    group: int,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
) -> Tensor:
    """conv; a bias known only at run time is added afterwards."""
    window = window_of(X.shape, W.shape[2:], strides, dilations, pads, auto_pad)
    known = B is not None and B.data is not None
    out = g.emit(
        "conv",
        x=X,
        weight=W,
        bias=B if known else None,
        strides=window.strides,
        dilations=window.dilations,
        groups=group,
        pad_type=window.pad_type,
        pad=window.pad,
    )
    return out if known or B is None else _add_bias(g, out, B)


def _add_bias(g: Builder, x: Tensor, bias: Tensor) -> Tensor:
    return g.binary("add", x, g.reshape(bias, [1, -1, *(1 for _ in x.shape[2:])]))


def _is_packed(x: Tensor) -> bool:
    """Whether a value is made of stored integers when the package is opened."""
    maker = None if x.variable is None else x.variable.op
    return maker is not None and str(maker.op_type).startswith("constexpr")


@OPS.lower("ConvTranspose", dtypes=FLOATS)
def conv_transpose(
    g: Builder,
    X: Tensor,
    W: Tensor,
    B: Tensor | None = None,
    *,
    auto_pad: str,
    dilations: Sequence[int] | None,
    group: int,
    output_padding: Sequence[int] | None,
    output_shape: Sequence[int] | None,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
) -> Tensor:
    """conv_transpose; what it would have to pad, it pads with zeros before the bias."""
    if W.data is None and not _is_packed(W):
        raise Refusal("weights known only at run time", "requires_constant")
    window = window_of(X.shape, W.shape[2:], strides, dilations, pads, "NOTSET")
    begin, end = _crops(X, window, auto_pad, output_padding, output_shape)
    short = min((*begin, *end), default=0) < 0
    known = B is not None and B.data is not None and not short
    crop = [max(c, 0) for pair in zip(begin, end, strict=True) for c in pair]
    out = g.emit(
        "conv_transpose",
        x=X,
        weight=W,
        bias=B if known else None,
        strides=window.strides,
        dilations=window.dilations,
        groups=group,
        pad_type="custom" if any(crop) else "valid",
        pad=crop if any(crop) else None,
    )
    if short:
        more = [max(-c, 0) for pair in zip(begin, end, strict=True) for c in pair]
        out = g.emit("pad", x=out, pad=more, mode="constant", constant_val=0.0)
    return out if known or B is None else _add_bias(g, out, B)


def _crops(
    x: Tensor,
    window: SpatialWindow,
    auto_pad: str,
    output_padding: Sequence[int] | None,
    output_shape: Sequence[int] | None,
) -> tuple[list[int], list[int]]:
    """What is cut off the full result before and behind each axis; negative where zeros go."""
    count = len(window.kernel)
    extra = tuple(output_padding or ()) or (0,) * count
    if auto_pad in ("NOTSET", "VALID") and not output_shape:
        begin = window.begin if auto_pad == "NOTSET" else (0,) * count
        end = window.end if auto_pad == "NOTSET" else (0,) * count
        return list(begin), [e - o for e, o in zip(end, extra, strict=True)]
    begin_all, end_all = [], []
    for axis in range(count):
        stride = window.strides[axis]
        if output_shape:
            size = x.shape[axis + 2]
            if not isinstance(size, int):
                raise Refusal("output_shape for a dynamic size", "dynamic_shape")
            wanted = tuple(output_shape)[-count:][axis]
            total = stride * (size - 1) + extra[axis] + window.reach(axis) - wanted
        else:
            total = extra[axis] + window.reach(axis) - stride
            if total < 0:
                raise Refusal(f"{auto_pad} with steps beyond the kernel: engines disagree")
        less = total // 2
        first = less if auto_pad == "SAME_UPPER" else total - less
        # What is missing is added behind.
        first = max(first, 0) if total >= 0 else 0
        begin_all.append(first)
        end_all.append(total - first - extra[axis])
    return begin_all, end_all
