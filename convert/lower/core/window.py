"""Windows that slide over spatial axes: what ONNX's attributes of convolutions and pools mean.

Worked out once for all targets; a target writes what it is given. The lowerings of these operators
are registered by ``pool``, ``conv`` and ``conv_transpose``, which read the attributes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

from edgeinfer.convert.lower.registry import Refusal, Registry
from edgeinfer.convert.lower.signature import of_schema
from edgeinfer.records import dataclass

Lowering = Callable[..., Any]
_ATTRIBUTES = ("auto_pad", "dilations", "pads", "strides")


@dataclass(frozen=True, slots=True)
class AxisWindow:
    """One spatial axis.

    Attributes:
        size: Size of the input: a number, or None or an expression of the target where it is
            dynamic.
        kernel: Taps.
        stride: Elements between windows.
        dilation: Elements between taps.
        begin: Padding before the first element.
        end: Padding after the last one.
        same: ``SAME_UPPER`` or ``SAME_LOWER`` where that padding depends on a dynamic size;
            ``begin`` and ``end`` are 0 then.
    """

    size: Any
    kernel: int
    stride: int = 1
    dilation: int = 1
    begin: int = 0
    end: int = 0
    same: str = ""

    @property
    def is_known(self) -> bool:
        """Whether the size is a number."""
        return isinstance(self.size, int)

    @property
    def span(self) -> int:
        """Elements from the first tap to the last."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def padded(self) -> bool:
        """Whether there is any padding."""
        return bool(self.same) or self.begin != 0 or self.end != 0

    def count(self) -> Any:
        """Number of windows; None where it is dynamic and the target has no expressions."""
        if self.size is None:
            return None
        if self.same:
            return -(-self.size // self.stride)
        return (self.size + (self.begin + self.end - self.span)) // self.stride + 1

    @property
    def may_start_behind(self) -> bool:
        """Whether rounding up may add a window that holds no element of the input."""
        if not self.is_known:
            return self.end + self.stride > self.span
        data = self.size + self.begin
        return bool(-(-(data + self.end - self.span) // self.stride) * self.stride >= data)

    def trimmed(self) -> AxisWindow:
        """The window without the padding at the end that no tap reaches."""
        if not self.is_known or self.same:
            return self
        return self._counted(self.count())

    def reaching(self, ceil: object) -> AxisWindow:
        """Let the last window of a pool with ``ceil_mode`` reach beyond the padding.

        Raises:
            Refusal: how far depends on a dynamic size.
        """
        if not ceil or self.same or self.stride == 1:
            return self.trimmed()
        if not self.is_known:
            if self.may_start_behind:
                raise Refusal("ceil_mode=1 needs known sizes here", "dynamic_shape")
            return replace(self, end=self.end + self.stride - 1)
        count = -(-(self.size + self.begin + self.end - self.span) // self.stride) + 1
        # A window that starts beyond the input is left out.
        return self._counted(count - ((count - 1) * self.stride >= self.size + self.begin))

    def _counted(self, count: int) -> AxisWindow:
        reach = (count - 1) * self.stride + self.span - self.size - self.begin
        return replace(self, end=max(reach, 0))

    def after(self, begin: int, end: int) -> AxisWindow:
        """The window over an input to which some of the padding was added already."""
        size = self.size + begin + end if self.is_known else self.size
        return replace(self, size=size, begin=self.begin - begin, end=self.end - end)


class Windows(tuple[AxisWindow, ...]):
    """One window per spatial axis."""

    __slots__ = ()

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self)

    @property
    def kernel(self) -> tuple[int, ...]:
        """Taps of each axis."""
        return tuple(w.kernel for w in self)

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides of each axis."""
        return tuple(w.stride for w in self)

    @property
    def dilations(self) -> tuple[int, ...]:
        """Dilations of each axis."""
        return tuple(w.dilation for w in self)

    @property
    def begin(self) -> tuple[int, ...]:
        """Padding before each axis."""
        return tuple(w.begin for w in self)

    @property
    def end(self) -> tuple[int, ...]:
        """Padding after each axis."""
        return tuple(w.end for w in self)

    @property
    def same(self) -> str:
        """``SAME_UPPER`` or ``SAME_LOWER`` where padding depends on a dynamic size."""
        return next((w.same for w in self if w.same), "")

    @property
    def padded(self) -> bool:
        """Whether any axis has padding."""
        return any(w.padded for w in self)

    @property
    def dilated(self) -> bool:
        """Whether any axis has gaps between its taps."""
        return any(w.dilation != 1 for w in self)

    def reaching(self, ceil: object) -> Windows:
        """Apply ``ceil_mode`` to each axis."""
        return Windows(w.reaching(ceil) for w in self)

    @property
    def rounds_up(self) -> bool:
        """Whether ``ceil_mode`` is nothing but rounding up, whatever the open sizes are.

        ONNX leaves out a window that starts behind the input and the padding before it.
        """
        return not any(w.may_start_behind for w in self)

    def explicit(self) -> Windows:
        """Return the windows where all padding is numbers.

        Raises:
            Refusal: it depends on a dynamic size.
        """
        if self.same:
            raise Refusal(f"auto_pad={self.same} needs known sizes here", "dynamic_shape")
        return self


def same_total(size: int, stride: int, span: int) -> int:
    """The padding of SAME, both sides together."""
    return max((-(-size // stride) - 1) * stride + span - size, 0)


def windows(
    sizes: Sequence[Any],
    kernel: Sequence[int],
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    auto_pad: str,
) -> Windows:
    """Read ONNX's attributes.

    Raises:
        Refusal: the numbers of axes differ, or padding is negative.
    """
    n = len(kernel)
    if len(sizes) != n:
        raise Refusal(f"{n} kernel sizes for {len(sizes)} spatial axes", "unsupported_rank")
    pads = [0] * (2 * n) if auto_pad not in ("NOTSET", "") or not pads else pads
    if min(pads, default=0) < 0:
        raise Refusal(f"pads={list(pads)}: must not be negative")
    rows = zip(
        sizes, kernel, strides or [1] * n, dilations or [1] * n, pads[:n], pads[n:], strict=True
    )
    found = Windows(AxisWindow(*row) for row in rows)
    return Windows(_same(w, auto_pad) for w in found) if "SAME" in auto_pad else found


def _same(w: AxisWindow, auto_pad: str) -> AxisWindow:
    if not w.is_known and w.stride != 1:
        return replace(w, same=auto_pad)
    total = same_total(w.size, w.stride, w.span) if w.is_known else w.span - 1
    begin, end = _halves(total, auto_pad)
    return replace(w, begin=begin, end=end)


def _halves(total: int, auto_pad: str) -> tuple[int, int]:
    """The odd one at the end for SAME_UPPER, else at the beginning."""
    less, more = total // 2, total - total // 2
    return (less, more) if auto_pad == "SAME_UPPER" else (more, less)


@dataclass(frozen=True, slots=True)
class TransposedWindow:
    """One spatial axis of a transposed convolution.

    The full result has ``(size - 1) * stride + span`` elements. ONNX keeps a part of it that starts
    at the padding, or lets it grow at the end by ``output_padding``.

    Attributes:
        size: Size of the input.
        kernel: Taps.
        stride: Elements between the results of neighbours.
        dilation: Elements between taps.
        begin: Elements of the full result dropped before the first one kept.
        cut: Elements dropped after the last one kept; negative where zeros are added.
    """

    size: Any
    kernel: int
    stride: int = 1
    dilation: int = 1
    begin: int = 0
    cut: int = 0

    @property
    def span(self) -> int:
        """Elements from the first tap to the last."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def growth(self) -> int:
        """The kept result has ``size * stride + growth`` elements."""
        return self.span - self.stride - self.begin - self.cut

    @property
    def out(self) -> int | None:
        """Elements kept; None where that is dynamic."""
        return self.size * self.stride + self.growth if isinstance(self.size, int) else None

    @property
    def whole(self) -> TransposedWindow:
        """The axis with nothing dropped."""
        return replace(self, begin=0, cut=0)


def transposed_windows(
    sizes: Sequence[Any],
    kernel: Sequence[int],
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    auto_pad: str,
    output_padding: Sequence[int] | None,
    output_shape: Sequence[int] | None,
) -> list[TransposedWindow]:
    """Read ONNX's attributes of a transposed convolution.

    Raises:
        Refusal: the numbers of axes differ, or a wanted size needs one that is dynamic.
    """
    plain = windows(sizes, kernel, strides, dilations, pads, "VALID" if output_shape else "NOTSET")
    given = [TransposedWindow(w.size, w.kernel, w.stride, w.dilation) for w in plain]
    extra = list(output_padding or [0] * len(given))
    if output_shape:
        wanted = list(output_shape)[-len(given) :]
        return [_to_size(*row, auto_pad) for row in zip(given, extra, wanted, strict=True)]
    if "SAME" in auto_pad:
        return [_same_size(w, more, auto_pad) for w, more in zip(given, extra, strict=True)]
    around = [(0, 0) if auto_pad == "VALID" else (w.begin, w.end) for w in plain]
    rows = zip(given, around, extra, strict=True)
    return [replace(w, begin=begin, cut=end - more) for w, (begin, end), more in rows]


def _same_size(w: TransposedWindow, extra: int, auto_pad: str) -> TransposedWindow:
    # Nothing is added where strides go beyond the kernel, as in ONNX Runtime.
    begin, end = _halves(max(w.span - w.stride + extra, 0), auto_pad)
    return replace(w, begin=begin, cut=end - extra)


def _to_size(w: TransposedWindow, extra: int, wanted: int, auto_pad: str) -> TransposedWindow:
    if not isinstance(w.size, int):
        raise Refusal("output_shape needs an input of known size", "dynamic_shape")
    total = (w.size - 1) * w.stride + w.span + extra - wanted
    begin, end = _halves(max(total, 0), auto_pad)
    # A size beyond the full one is filled up with zeros at the end.
    return replace(w, begin=begin, cut=end - extra + min(total, 0))


def pool(ops: Registry, op: str, *, first: int = 2, **about: Any) -> Callable[[Lowering], Lowering]:
    """Register a pool: it takes the builder, the input, its windows and what else it reads.

    Args:
        ops: The target's table.
        op: The operator.
        first: The first spatial axis.
        **about: Domain and element types of the entry.
    """

    def register(body: Lowering) -> Lowering:
        @wraps(body)
        def lowered(g: Any, x: Any, *, kernel_shape: Sequence[int], **given: Any) -> Any:
            sizes = x.shape[first : len(x.shape) - 2 + first]
            taken = [given.pop(n) for n in ("strides", "dilations", "pads", "auto_pad")]
            return body(g, x, windows(sizes, kernel_shape, *taken), **given)

        return _added(ops, op, body, lowered, ["kernel_shape", *_ATTRIBUTES], about)

    return register


def conv(ops: Registry, op: str, *, first: int = 2, **about: Any) -> Callable[[Lowering], Lowering]:
    """Register a convolution: it takes the builder, its operands, its windows, ``group``.

    Args:
        ops: The target's table.
        op: The operator; a transposed one takes ``TransposedWindow``s.
        first: The first spatial axis.
        **about: Domain and element types of the entry.
    """
    is_transposed = op == "ConvTranspose"
    more = ("output_padding", "output_shape") if is_transposed else ()
    make: Callable[..., Any] = transposed_windows if is_transposed else windows

    def register(body: Lowering) -> Lowering:
        @wraps(body)
        def lowered(g: Any, x: Any, w: Any, b: Any = None, **given: Any) -> Any:
            kernel = w.shape[2:]
            if not all(isinstance(size, int) for size in kernel):
                raise Refusal("weights of dynamic size", "dynamic_shape")
            sizes = x.shape[first : len(x.shape) - 2 + first]
            taken = [given.pop(n) for n in ("strides", "dilations", "pads", "auto_pad", *more)]
            return body(g, x, w, b, make(sizes, kernel, *taken), **given)

        return _added(ops, op, body, lowered, [*_ATTRIBUTES, *more], about)

    return register


def _added(
    ops: Registry,
    op: str,
    body: Lowering,
    lowered: Lowering,
    reads: list[str],
    about: dict[str, Any],
) -> Lowering:
    own = [
        p.name
        for p in inspect.signature(body).parameters.values()
        if p.kind is inspect.Parameter.KEYWORD_ONLY
    ]

    ops.add(op, lowered, of_schema(op), [*reads, *own], (), **about)
    return body
