"""Windows that slide over spatial axes: what ONNX's padding attributes mean, and TFLite's SAME."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.graph import Size
from edgeinfer.records import dataclass

VALID, SAME = 1, 0
"""The schema's numbers of the two paddings."""


@dataclass(frozen=True, slots=True)
class AxisWindow:
    """One spatial axis.

    Attributes:
        size: Size of the input; None where it is only known at run time.
        kernel: taps.
        stride: between windows.
        dilation: between taps.
        begin: padding before the first element.
        end: padding after the last one.
        same: the padding was asked for as ``SAME_UPPER``, so ``begin`` and ``end`` are only set
            where the size is known.
    """

    size: Size
    kernel: int
    stride: int = 1
    dilation: int = 1
    begin: int = 0
    end: int = 0
    same: bool = False

    @property
    def span(self) -> int:
        """Elements from the first tap to the last."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def padded(self) -> bool:
        """Whether there is any padding."""
        return self.same or self.begin != 0 or self.end != 0

    @property
    def fits_same(self) -> bool:
        """Whether TFLite's SAME pads exactly like this: the odd element at the end."""
        if self.same:
            return True
        if self.size is None:
            total = self.span - 1 if self.stride == 1 else -1
        else:
            total = same_total(self.size, self.stride, self.span)
        return (self.begin, self.end) == (total // 2, total - total // 2)

    def count(self) -> Size:
        """Number of windows."""
        if self.size is None:
            return None
        if self.same:
            return -(-self.size // self.stride)
        return (self.size + self.begin + self.end - self.span) // self.stride + 1

    def trimmed(self) -> AxisWindow:
        """The window without the padding at the end that no tap reaches."""
        count = self.count()
        if self.size is None or count is None or self.same:
            return self
        reach = (count - 1) * self.stride + self.span - self.size - self.begin
        return replace(self, end=max(reach, 0))

    def reaching(self, ceil: bool) -> AxisWindow:
        """Let the last window of a pool with ``ceil_mode`` reach beyond the padding.

        Raises:
            Refusal: how far depends on a dynamic size.
        """
        if not ceil or self.same or self.stride == 1:
            return self.trimmed()
        if self.size is None:
            if self.end + self.stride > self.span:
                raise Refusal("ceil_mode=1 needs known sizes here", "dynamic_shape")
            return replace(self, end=self.end + self.stride - 1)
        count = -(-(self.size + self.begin + self.end - self.span) // self.stride) + 1
        if (count - 1) * self.stride >= self.size + self.begin:
            # A window that starts beyond the input is left out.
            count -= 1
        reach = (count - 1) * self.stride + self.span - self.size - self.begin
        return replace(self, end=max(reach, 0))

    def after(self, begin: int, end: int) -> AxisWindow:
        """The window over an input to which some of the padding was added already."""
        size = None if self.size is None else self.size + begin + end
        return replace(self, size=size, begin=self.begin - begin, end=self.end - end)


def same_total(size: int, stride: int, span: int) -> int:
    """The padding of SAME, both sides together."""
    return max((-(-size // stride) - 1) * stride + span - size, 0)


def windows(
    sizes: Sequence[Size],
    kernel: Sequence[int],
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    auto_pad: str,
) -> list[AxisWindow]:
    """Read ONNX's attributes; one window per spatial axis.

    Raises:
        Refusal: the padding is negative, or depends on a dynamic size.
    """
    n = len(kernel)
    strides = strides or [1] * n
    dilations = dilations or [1] * n
    pads = [0] * (2 * n) if auto_pad != "NOTSET" or not pads else pads
    if min(pads) < 0:
        raise Refusal(f"pads={list(pads)}: must not be negative")
    rows = zip(sizes, kernel, strides, dilations, pads[:n], pads[n:], strict=True)
    found = [AxisWindow(*row) for row in rows]
    if auto_pad in {"SAME_UPPER", "SAME_LOWER"}:
        return [_same(w, auto_pad == "SAME_LOWER") for w in found]
    return found


def _same(w: AxisWindow, lower: bool) -> AxisWindow:
    if w.size is None:
        total = w.span - 1
        if lower and (w.stride != 1 or total % 2):
            raise Refusal("auto_pad=SAME_LOWER needs known sizes", "dynamic_shape")
        return replace(w, same=True)
    total = same_total(w.size, w.stride, w.span)
    less, more = total // 2, total - total // 2
    begin, end = (more, less) if lower else (less, more)
    return replace(w, begin=begin, end=end)
