"""What convolutions and pools share: where a window starts and ends."""

from __future__ import annotations

from collections.abc import Sequence

from edgeinfer.convert.lower.coreml.tensor import Shape
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.records import dataclass


@dataclass(frozen=True, slots=True)
class SpatialWindow:
    """A sliding window over the spatial axes.

    Attributes:
        kernel: elements along each axis.
        strides: steps.
        dilations: distances between elements.
        begin: padding before each axis.
        end: padding behind.
        same: ``same`` or ``same_lower`` where the padding depends on dynamic sizes.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    same: str = ""

    @property
    def pad_type(self) -> str:
        """MIL's name of the padding."""
        if self.same:
            return self.same
        return "custom" if any(self.begin) or any(self.end) else "valid"

    @property
    def pad(self) -> list[int] | None:
        """MIL's list: begin and end of each axis."""
        if self.pad_type != "custom":
            return None
        return [p for pair in zip(self.begin, self.end, strict=True) for p in pair]

    def reach(self, axis: int) -> int:
        """Elements that a window spans, with the gaps of its dilation."""
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1


def window_of(
    shape: Shape,
    kernel: Sequence[int],
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    auto_pad: str,
) -> SpatialWindow:
    """Work out a window over an input of this shape (batch and channel first).

    Raises:
        Refusal: the numbers of axes differ, or a padding is negative.
    """
    count = len(shape) - 2
    if len(kernel) != count or not 1 <= count <= 3:
        raise Refusal(f"{len(kernel)} kernel sizes for {count} spatial axes", "unsupported_rank")
    strides = tuple(strides or ()) or (1,) * count
    dilations = tuple(dilations or ()) or (1,) * count
    pads = tuple(pads or ()) or (0,) * (2 * count)
    begin, end, same = tuple(pads[:count]), tuple(pads[count:]), ""
    if auto_pad == "VALID":
        begin = end = (0,) * count
    elif auto_pad != "NOTSET":
        sizes = shape[2:]
        if all(isinstance(s, int) for s in sizes):
            pairs = [
                _same(s, (k - 1) * d + 1, t, auto_pad)
                for s, k, d, t in zip(sizes, kernel, dilations, strides, strict=True)
            ]
            begin, end = tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
        else:
            begin = end = (0,) * count
            same = "same" if auto_pad == "SAME_UPPER" else "same_lower"
    if min((*begin, *end), default=0) < 0:
        raise Refusal("negative padding")
    return SpatialWindow(tuple(kernel), strides, dilations, begin, end, same)


def _same(size: int, reach: int, stride: int, auto_pad: str) -> tuple[int, int]:
    total = max((-(-size // stride) - 1) * stride + reach - size, 0)
    less = total // 2
    return (less, total - less) if auto_pad == "SAME_UPPER" else (total - less, less)
