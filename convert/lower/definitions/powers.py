"""Sums of powers over windows: what is summed up is divided by its largest element first.

A power of a float32 leaves float32 long before the root of the sum does: from 1e19 on for a square,
from 7e12 on for a cube, and likewise below.
"""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from edgeinfer.convert.lower.core.window import AxisWindow, windows
from edgeinfer.convert.lower.definitions.body import Body, attribute, input_at
from edgeinfer.convert.lower.registry import Refusal

_TAPS = 256
"""Elements of a window along an axis; each is an operator or three."""

_END = int(np.iinfo(np.int64).max)


def lp_pool(node: ir.Node) -> onnx.FunctionProto | None:
    """Take the length over one axis after the other, tap by tap.

    Given: ``y = LpPool<kernel_shape=[2, 1], p=3>(x)``
    Result::

        a = Abs(x); s = a[:, :, :-1]; t = a[:, :, 1:]; m = Clip(Max(s, t), least, most)
        y = Mul(Pow(Sum(Div(s, m) ** 3, Div(t, m) ** 3), 1 / 3), m)
    """
    x = input_at(node, 0)
    if x is None or x.shape is None or x.dtype is None:
        return None
    strides, dilations, pads = (attribute(node, n, None) for n in ("strides", "dilations", "pads"))
    sizes = [d if isinstance(d, int) else None for d in x.shape[2:]]
    try:
        kernel, auto_pad = attribute(node, "kernel_shape", ()), attribute(node, "auto_pad", "")
        asked = windows(sizes, kernel, strides, dilations, pads, auto_pad)
        axes = asked.explicit().reaching(attribute(node, "ceil_mode", 0))
    except Refusal:
        return None
    if any(w.kernel > _TAPS and w.count() != 1 for w in axes):
        return None
    steps = _Lengths(node, x.dtype, int(attribute(node, "p", 2)))
    found = steps.padded(steps.op("Abs", "i0"), axes)
    for axis, window in enumerate(axes, 2):
        found = steps.along(found, axis, window)
    steps.give(0, found)
    return steps.function()


def global_lp_pool(node: ir.Node) -> onnx.FunctionProto | None:
    """Take the length of each channel.

    Given: ``y = GlobalLpPool<p=3>(x)``
    Result::

        a = Abs(x); m = Clip(ReduceMax(a, [2, 3]), least, most)
        y = Mul(Pow(ReduceSum(Div(a, m) ** 3, [2, 3]), 1 / 3), m)
    """
    x = input_at(node, 0)
    if x is None or x.shape is None or x.dtype is None:
        return None
    steps = _Lengths(node, x.dtype, int(attribute(node, "p", 2)))
    axes = range(2, len(x.shape))
    steps.give(0, steps.over(steps.op("Abs", "i0"), *axes) if axes else steps.op("Abs", "i0"))
    return steps.function()


class _Lengths(Body):
    """Writes roots of sums of powers of what is not negative."""

    def __init__(self, node: ir.Node, kind: ir.DataType, power: int) -> None:
        super().__init__(node, whole=True)
        self._dtype, self._power = kind.numpy(), power
        limits = ml_dtypes.finfo(self._dtype)  # type: ignore[no-untyped-call]
        self.limits = float(limits.smallest_normal), float(limits.max)

    def number(self, number: float) -> str:
        """Return a constant of the operand's type."""
        return self.const(np.asarray(number).astype(self._dtype))

    def padded(self, x: str, axes: tuple[AxisWindow, ...]) -> str:
        """Put zeros around."""
        if not any(w.padded for w in axes):
            return x
        around = [0, 0, *(w.begin for w in axes), 0, 0, *(w.end for w in axes)]
        return self.op("Pad", x, self.const(around), self.number(0))

    def along(self, x: str, axis: int, w: AxisWindow) -> str:
        """Return the length of each window of one axis."""
        if w.kernel > 1 and w.count() == 1 and w.dilation == 1:
            return self.over(self.tap(x, axis, w, 0, w.kernel), axis)
        taps = [self.tap(x, axis, w, i * w.dilation, 1) for i in range(w.kernel)]
        if len(taps) == 1:
            return taps[0]
        if self._power == 1:
            return self.op("Sum", *taps)
        largest = self._held(self.op("Max", *taps))
        powers = [self._raised(self.op("Div", tap, largest)) for tap in taps]
        return self._rooted(self.op("Sum", *powers), largest)

    def over(self, x: str, *axes: int) -> str:
        """Return the length of whole axes, which stay."""
        along = self.const(list(axes))
        if self._power == 1:
            return self.op("ReduceSum", x, along, keepdims=1)
        largest = self._held(self.op("ReduceMax", x, along, keepdims=1))
        total = self.op("ReduceSum", self._raised(self.op("Div", x, largest)), along, keepdims=1)
        return self._rooted(total, largest)

    def tap(self, x: str, axis: int, w: AxisWindow, first: int, width: int) -> str:
        """Return what lies so far behind the begin of each window."""
        last = first + width - w.span
        if not first and not last and w.stride == 1:
            return x
        step = 1 if width > 1 else w.stride
        numbers = (self.const([n]) for n in (first, last or _END, axis, step))
        return self.op("Slice", x, *numbers)

    def _held(self, largest: str) -> str:
        """Neither zero nor infinity, which would make NaN of what they divide."""
        return self.op("Clip", largest, *(self.number(v) for v in self.limits))

    def _raised(self, x: str) -> str:
        """Multiply: no rounding of a logarithm, and faster."""
        found, square, rest = "", x, self._power
        while rest:
            if rest % 2:
                found = self.op("Mul", found, square) if found else square
            rest //= 2
            square = self.op("Mul", square, square) if rest else square
        return found

    def _rooted(self, total: str, largest: str) -> str:
        if self._power == 2:
            return self.op("Mul", self.op("Sqrt", total), largest)
        return self.op("Mul", self.op("Pow", total, self.number(1 / self._power)), largest)


def local_response(node: ir.Node) -> onnx.FunctionProto | None:
    """Divide by the squares of neighbouring channels, taken of what the largest one divides.

    Given: ``y = LRN<size=2, beta=b>(float[N,3,H,W] x)``
    Result::

        m = Max(ReduceMax(Abs(x), [1]), 1); s = Mul(x, sqrt(alpha / 2) / Sqrt(m))
        p = Pad(Mul(s, s), [0, 1], axes=[1]); q = p[:, 0:-1] + p[:, 1:] + bias / m
        y = Div(Div(x, Pow(q, b)), Pow(m, b))
    """
    x = input_at(node, 0)
    if x is None or x.shape is None or x.dtype is None or x.shape[1] == 0:
        return None
    size, power = int(attribute(node, "size", 1)), float(attribute(node, "beta", 0.75))
    steps = _Lengths(node, x.dtype, 2)
    channels = steps.const([1])
    magnitude = steps.op("Abs", "i0")
    # Infinity, and what is no number, spoil their own windows alone.
    is_finite = steps.op("Less", magnitude, steps.number(math.inf))
    magnitude = steps.op("Where", is_finite, magnitude, steps.number(0))
    largest = steps.op("ReduceMax", magnitude, channels, keepdims=1)
    offset, alpha = (float(attribute(node, n, v)) for n, v in (("bias", 1.0), ("alpha", 1e-4)))
    low, high = steps.limits
    ends = (steps.number(v) for v in (max(min(abs(offset), 1.0), low), high))
    largest = steps.op("Clip", largest, *ends)
    root = steps.number(math.sqrt(abs(alpha) / size))
    part = steps.op("Mul", "i0", steps.op("Div", root, steps.op("Sqrt", largest)))
    around = steps.const([(size - 1) // 2, size // 2])
    squares = steps.op("Mul", part, part if alpha > 0 else steps.op("Neg", part))
    total = steps.op("Pad", squares, around, steps.number(0), channels) if size > 1 else squares
    taps = [steps.tap(total, 1, AxisWindow(None, size), i, 1) for i in range(size)]
    bias = steps.op("Div", steps.number(offset), largest)
    base = steps.op("Sum", *taps, bias)
    found = steps.op("Div", "i0", _power(steps, base, power))
    steps.give(0, steps.op("Div", found, _power(steps, largest, power)))
    return steps.function()


def _power(steps: _Lengths, x: str, power: float) -> str:
    """Raise; quarters are roots, which are faster."""
    if power not in (0.5, 0.75):
        return steps.op("Pow", x, steps.number(power))
    root = steps.op("Sqrt", x)
    return root if power == 0.5 else steps.op("Mul", root, steps.op("Sqrt", root))
