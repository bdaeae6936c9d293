"""Convolutions."""

from __future__ import annotations

from typing import Any

from edgeinfer.convert.lower.core import window as sliding
from edgeinfer.convert.lower.core.window import TransposedWindow, Windows
from edgeinfer.convert.lower.coreml.builder import Builder
from edgeinfer.convert.lower.coreml.registry import FLOATS, OPS
from edgeinfer.convert.lower.coreml.tensor import Tensor
from edgeinfer.convert.lower.registry import Refusal


@sliding.conv(OPS, "Conv", dtypes=FLOATS)
def conv(g: Builder, X: Tensor, W: Tensor, B: Tensor | None, at: Windows, *, group: int) -> Tensor:
    """conv; a bias known only at run time is added afterwards."""
    known = B is not None and B.data is not None
    out = g.emit("conv", x=X, weight=W, bias=B if known else None, groups=group, **placed(X, at))
    return out if known or B is None else _add_bias(g, out, B)


def placed(x: Tensor, at: Windows) -> dict[str, Any]:
    """MIL's arguments of where windows lie.

    Raises:
        Refusal: Core ML has no windows of this rank.
    """
    checked_rank(x)
    padding: dict[str, Any] = {"pad_type": "valid", "pad": None}
    if at.same:
        padding["pad_type"] = "same" if at.same == "SAME_UPPER" else "same_lower"
    elif at.padded:
        pads = [p for w in at for p in (w.begin, w.end)]
        padding = {"pad_type": "custom", "pad": pads}
    return {"strides": at.strides, "dilations": at.dilations, **padding}


def checked_rank(x: Tensor) -> None:
    """Refuse other than one, two or three spatial axes.

    Raises:
        Refusal: there are.
    """
    if not 1 <= x.rank - 2 <= 3:
        raise Refusal(f"{x.rank - 2} spatial axes", "unsupported_rank")


def _add_bias(g: Builder, x: Tensor, bias: Tensor) -> Tensor:
    return g.binary("add", x, g.reshape(bias, [1, -1, *(1 for _ in x.shape[2:])]))


def _is_packed(x: Tensor) -> bool:
    """Whether a value is made of stored integers when the package is opened."""
    maker = None if x.variable is None else x.variable.op
    return maker is not None and str(maker.op_type).startswith("constexpr")


@sliding.conv(OPS, "ConvTranspose", dtypes=FLOATS)
def conv_transpose(
    g: Builder, X: Tensor, W: Tensor, B: Tensor | None, at: list[TransposedWindow], *, group: int
) -> Tensor:
    """conv_transpose; what it would have to pad, it pads with zeros before the bias."""
    if W.data is None and not _is_packed(W):
        raise Refusal("weights known only at run time", "requires_constant")
    checked_rank(X)
    begin, end = [w.begin for w in at], [w.cut for w in at]
    short = min((*begin, *end), default=0) < 0
    known = B is not None and B.data is not None and not short
    crop = [max(c, 0) for pair in zip(begin, end, strict=True) for c in pair]
    out = g.emit(
        "conv_transpose",
        x=X,
        weight=W,
        bias=B if known else None,
        strides=tuple(w.stride for w in at),
        dilations=tuple(w.dilation for w in at),
        groups=group,
        pad_type="custom" if any(crop) else "valid",
        pad=crop if any(crop) else None,
    )
    if short:
        more = [max(-c, 0) for pair in zip(begin, end, strict=True) for c in pair]
        out = g.emit("pad", x=out, pad=more, mode="constant", constant_val=0.0)
    return out if known or B is None else _add_bias(g, out, B)
