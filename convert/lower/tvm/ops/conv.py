"""Convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from edgeinfer.convert.lower.core import window as sliding
from edgeinfer.convert.lower.core.window import AxisWindow, TransposedWindow, Windows
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tvm.builder import Builder, Tensor
from edgeinfer.convert.lower.tvm.fuse import Loops, waiting
from edgeinfer.convert.lower.tvm.ops.arith import convert
from edgeinfer.convert.lower.tvm.ops.matrix import reshape
from edgeinfer.convert.lower.tvm.ops.spectrum import as_transform
from edgeinfer.convert.lower.tvm.registry import FLOATS, OPS
from edgeinfer.convert.lower.tvm.tuned import title_of
from edgeinfer.kernels.defs import conv as kernel
from edgeinfer.types import Array


@sliding.conv(OPS, "Conv", dtypes=FLOATS)
def conv(
    g: Builder, X: Tensor, W: Tensor, B: Tensor | None, asked: Windows, *, group: int
) -> Tensor:
    """Convolution over any number of spatial axes."""
    w = asked.explicit()
    if not all(isinstance(s, int) for s in W.shape):
        raise Refusal("weights of open size", "dynamic_shape")
    if X.rank < 3:
        raise Refusal(f"an input of rank {X.rank}", "unsupported_rank")
    if X.dtype == "float16":
        wide = convolve(g, convert(g, X, "float32"), convert(g, W, "float32"), w, group)
        result = convert(g, wide, "float16")
    else:
        result = convolve(g, X, W, w, group)
    return result if B is None else with_bias(g, result, B)


def with_bias(g: Builder, x: Tensor, bias: Tensor) -> Tensor:
    """Add one number to each channel."""
    shape = (bias.shape[0], *(1,) * (x.rank - 2))
    wide = reshape(g, bias, shape)
    if bias.data is not None and isinstance(x.shape[0], int) and x.shape[0] > 1:
        wide = g.const(np.tile(np.asarray(wide.data), (x.shape[0], *(1,) * (x.rank - 1))))
    return g.map(lambda v, b: v + b, x, wide)


def convolve(g: Builder, x: Tensor, weight: Tensor, w: Windows, group: int) -> Tensor:
    """Convolve without a bias.

    Raises:
        Refusal: the window is larger than its input.
    """
    static = x.is_static and prod(x.shape) and prod(weight.shape)
    outs = [axis.count() for axis in w]
    if any(isinstance(o, int) and o < 1 for o in outs):
        raise Refusal("a window larger than its input")
    if x.dtype == "float32" and static and weight.data is not None and w.rank <= 2:
        spectrum = as_transform(g, x, np.asarray(weight.data), w, group)
        if spectrum is not None:
            return spectrum
        return _own(g, x, np.asarray(weight.data), w, group)
    if g.machine.cuda and w.rank == 2 and x.dtype == "float32":
        return g.op(
            relax.op.nn.conv2d,
            x,
            weight,
            strides=w.strides,
            padding=(*w.begin, *w.end),
            dilation=w.dilations,
            groups=group,
        )
    return _plain(g, x, weight, w, group)


def _own(g: Builder, x: Tensor, weight: Array, w: Windows, group: int) -> Tensor:
    def two(values: Sequence[int], fill: int) -> tuple[int, int]:
        return (values[0], values[1]) if w.rank == 2 else (fill, values[0])

    taps = weight
    if not g.on_cpu and group == 1:
        return _flat(g, x, taps, w)
    if w.rank == 1:
        weight = weight[:, :, None, :]
    window = kernel.ConvWindow(
        batch=x.shape[0],
        channels=x.shape[1],
        filters=weight.shape[0],
        groups=group,
        size=two(x.shape[2:], 1),
        kernel=(weight.shape[2], weight.shape[3]),
        strides=two(w.strides, 1),
        dilations=two(w.dilations, 1),
        pads=(*two(w.begin, 0), *two(w.end, 0)),
    )
    shape = (window.batch, window.filters, *window.out[2 - w.rank :])
    plane = (window.batch, window.channels, prod(window.size))
    stored = (window.batch, window.filters, prod(window.out))
    cpu = g.cpu
    packed = relax.const(kernel.pack(weight, window, cpu), "float32")
    source = g.expr(reshape(g, x, plane))
    return waiting(
        g,
        shape,
        ((0, 1), tuple(range(2, 2 + w.rank))),
        stored,
        lambda: [source, packed],
        lambda extra, finish: kernel.conv(cpu, window, extra=extra, finish=finish),
        loops=_loops(g, x, taps, w, group),
    )


def _loops(g: Builder, x: Tensor, weight: Array, w: Windows, group: int) -> Loops:
    stride = "/" + "x".join(map(str, w.strides)) if max(w.strides) > 1 else ""
    sizes = (x.shape, weight.shape, stride, f"groups {group}" if group > 1 else "")
    return Loops(
        title_of("conv", sizes),
        (tuple(x.shape), tuple(weight.shape)),
        lambda data, taps: _padded(data, taps, w, group),
        lambda: [g.expr(x), relax.const(np.ascontiguousarray(weight), "float32")],
    )


def _flat(g: Builder, x: Tensor, weight: Array, w: Windows) -> Tensor:
    """Write a convolution as a product of its filters with the pixels, for a GPU.

    Weights have their filters last, so that threads read several at once.
    """
    outs = [axis.count() for axis in w]
    shape = (x.shape[0], weight.shape[0], *outs)
    points = weight[0, 0].size == 1 and set(w.strides) == {1} and not any((*w.begin, *w.end))
    source = reshape(g, x, (*x.shape[:2], prod(x.shape[2:]))) if points else x
    taps = np.ascontiguousarray(np.moveaxis(weight, 0, -1))
    if points:
        taps = taps.reshape(weight.shape[1::-1])
    stride = "/" + "x".join(map(str, w.strides)) if max(w.strides) > 1 else ""
    given = g.expr(source)

    def product(data: Any, filters: Any) -> Any:
        return _points(data, filters) if points else _pixels(data, filters, w, outs)

    flat = (*shape[:2], prod(outs))
    axes = ((0, 1), tuple(range(2, x.rank)))
    sizes = (tuple(source.shape), tuple(taps.shape))

    def unused(*_: Any) -> Any:
        raise NotImplementedError("a GPU has no kernel of this kind")

    return waiting(
        g,
        shape,
        axes,
        flat,
        lambda: [],
        unused,
        loops=Loops(
            title_of("conv", (x.shape, weight.shape, stride)),
            sizes,
            product,
            lambda: [given, relax.const(taps, "float32")],
            flat,
        ),
    )


def _points(data: Any, taps: Any) -> Any:
    channels, filters = (int(s) for s in taps.shape)
    c = te.reduce_axis((0, channels), "c")
    return te.compute(
        (data.shape[0], filters, data.shape[2]),
        lambda n, f, p: te.sum(data(n, c, p) * taps(c, f), axis=c),
        name="flat",
    )


def _pixels(data: Any, taps: Any, w: Windows, outs: Sequence[int]) -> Any:
    sizes = [int(s) for s in data.shape[2:]]
    c = te.reduce_axis((0, int(taps.shape[0])), "c")
    ks = [te.reduce_axis((0, k), f"k{a}") for a, k in enumerate(w.kernel)]

    def element(n: Any, f: Any, p: Any) -> Any:
        place = [p] if w.rank == 1 else [p // outs[1], p % outs[1]]
        at, tests = [], []
        for a, q in enumerate(place):
            at.append(q * w.strides[a] + ks[a] * w.dilations[a] - w.begin[a])
            if w.begin[a] or w.end[a]:
                tests += [at[a] >= 0, at[a] < sizes[a]]
        value = data(n, c, *at)
        if tests:
            value = tirx.if_then_else(tirx.all(*tests), value, tirx.const(0.0, data.dtype))
        return te.sum(value * taps(c, *ks, f), axis=[c, *ks])

    return te.compute((data.shape[0], int(taps.shape[-1]), prod(outs)), element, name="flat")


def _padded(data: Any, taps: Any, w: Windows, group: int) -> Any:
    """Write a convolution with its border as a step of its own."""
    channels, filters = (int(s) for s in (taps.shape[1], taps.shape[0]))
    sizes = [int(s) for s in data.shape[2:]]
    if any((*w.begin, *w.end)):
        full = [s + b + a for s, b, a in zip(sizes, w.begin, w.end, strict=True)]

        def border(n: Any, c: Any, *place: Any) -> Any:
            at = [p - b for p, b in zip(place, w.begin, strict=True)]
            inside = [t for i, s in zip(at, sizes, strict=True) for t in (i >= 0, i < s)]
            return tirx.if_then_else(
                tirx.all(*inside), data(n, c, *at), tirx.const(0.0, data.dtype)
            )

        source = te.compute((data.shape[0], data.shape[1], *full), border, name="border")
    else:
        source = data
    c = te.reduce_axis((0, channels), "c")
    ks = [te.reduce_axis((0, k), f"k{a}") for a, k in enumerate(w.kernel)]

    def element(n: Any, f: Any, *place: Any) -> Any:
        first = f // (filters // group) * channels if group > 1 else 0
        at = [p * s + k * d for p, s, k, d in zip(place, w.strides, ks, w.dilations, strict=True)]
        return te.sum(source(n, first + c, *at) * taps(f, c, *ks), axis=[c, *ks])

    outs = [axis.count() for axis in w]
    return te.compute((data.shape[0], filters, *outs), element, name="conv")


def _plain(g: Builder, x: Tensor, weight: Tensor, w: Windows, group: int) -> Tensor:
    channels, filters = weight.shape[1], weight.shape[0]
    outs = [axis.count() for axis in w]
    zero = tirx.const(0, x.dtype)

    def compute(data: Any, taps: Any) -> Any:
        c = te.reduce_axis((0, channels), "c")
        ks = [te.reduce_axis((0, k), f"k{a}") for a, k in enumerate(w.kernel)]

        def element(n: Any, f: Any, *place: Any) -> Any:
            first = f // (filters // group) * channels
            at = [
                p * w.strides[a] + k * w.dilations[a] - w.begin[a]
                for a, (p, k) in enumerate(zip(place, ks, strict=True))
            ]
            inside = [
                t
                for a, i in enumerate(at)
                if w.begin[a] or w.end[a]
                for t in (i >= 0, i < data.shape[2 + a])
            ]
            value = data(n, first + c, *at)
            if inside:
                value = tirx.if_then_else(tirx.all(*inside), value, zero)
            return te.sum(value * taps(f, c, *ks), axis=[c, *ks])

        return te.compute((data.shape[0], filters, *outs), element, name="conv")

    g.naive.append("conv")
    return g.te(compute, x, weight, name="conv")


@sliding.conv(OPS, "ConvTranspose", dtypes=FLOATS)
def conv_transpose(
    g: Builder, X: Tensor, W: Tensor, B: Tensor | None, at: list[TransposedWindow], *, group: int
) -> Tensor:
    """The input with zeros between its elements, convolved with the flipped weights."""
    if W.data is None:
        raise Refusal("weights must be constant", "requires_constant")
    taps = _flipped(np.asarray(W.data), group)
    low = [w.span - 1 - w.begin for w in at]
    high = [w.span - 1 - w.cut for w in at]
    x = convert(g, X, "float32") if X.dtype == "float16" else X
    x = _stuffed(g, x, [w.stride for w in at], low, high)
    w = Windows(
        AxisWindow(s, a.kernel, 1, a.dilation) for s, a in zip(x.shape[2:], at, strict=True)
    )
    result = convert(g, convolve(g, x, g.const(taps.astype(x.dtype)), w, group), X.dtype)
    return result if B is None else with_bias(g, result, B)


def _flipped(w: Array, group: int) -> Array:
    """(in, out of a group, ...) to (out, in of a group, ...), each window flipped."""
    channels, per = w.shape[:2]
    parts = w.reshape(group, channels // group, per, *w.shape[2:])
    swapped = parts.swapaxes(1, 2).reshape(group * per, channels // group, *w.shape[2:])
    turn = (slice(None), slice(None), *(slice(None, None, -1),) * (w.ndim - 2))
    return np.ascontiguousarray(swapped[turn])


def _stuffed(
    g: Builder, x: Tensor, step: Sequence[int], low: Sequence[int], high: Sequence[int]
) -> Tensor:
    """Put zeros between elements and around them; a negative border cuts."""

    def grown(sizes: Sequence[Any]) -> list[Any]:
        rows = zip(sizes, step, low, high, strict=True)
        return [(s - 1) * t + 1 + lo + hi for s, t, lo, hi in rows]

    known = [s for s in grown(x.shape[2:]) if isinstance(s, int)]
    if any(s < 1 for s in known):
        raise Refusal("nothing is left of the output")

    def compute(data: Any) -> Any:
        sizes = grown(data.shape[2:])

        def element(n: Any, c: Any, *place: Any) -> Any:
            tests, at = [], []
            for a, p in enumerate(place):
                q = p - low[a]
                tests += [q >= 0, q < (data.shape[2 + a] - 1) * step[a] + 1]
                if step[a] > 1:
                    tests.append(tirx.floormod(q, step[a]) == 0)
                at.append(tirx.floordiv(q, step[a]) if step[a] > 1 else q)
            return tirx.if_then_else(tirx.all(*tests), data(n, c, *at), tirx.const(0, x.dtype))

        return te.compute((data.shape[0], data.shape[1], *sizes), element, name="stuffed")

    return g.te(compute, x, name="stuffed")
