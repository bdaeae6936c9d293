"""Pools."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.registry import FLOATS, OPS, in_single
from edgeinfer.convert.lower.coreai.tensor import Shape, Tensor
from edgeinfer.convert.lower.coreai.window import padding
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.records import dataclass

_BYTES = frozenset({ir.DataType.INT8, ir.DataType.UINT8})


@dataclass(frozen=True, slots=True)
class _Windows:
    """Where the windows of a pool lie; each list has a value for each spatial axis.

    Attributes:
        kernel: size of a window.
        step: elements from one window to the next.
        spread: elements from one tap of a window to the next.
        before: what is added in front of the input.
        after: what is added behind it.
        extra: what ``ceil_mode`` adds behind that; no window starts there.
    """

    kernel: tuple[int, ...]
    step: tuple[int, ...]
    spread: tuple[int, ...]
    before: list[int]
    after: list[int]
    extra: list[int]

    @property
    def behind(self) -> list[int]:
        return [a + e for a, e in zip(self.after, self.extra, strict=True)]

    def pad(self, g: Builder, x: Tensor, fill: float = 0) -> Tensor:
        return g.pad(x, [0, 0, *self.before], [0, 0, *self.behind], fill)


def _plan(
    x: Tensor,
    kernel: tuple[int, ...],
    strides: tuple[int, ...] | None,
    dilations: tuple[int, ...] | None,
    auto_pad: str,
    pads: tuple[int, ...] | None,
    ceil_mode: int,
) -> _Windows:
    spatial = x.rank - 2
    if not 1 <= spatial <= 3:
        raise Refusal(f"{spatial} spatial axes", "unsupported_rank")
    step, spread = strides or (1,) * spatial, dilations or (1,) * spatial
    sizes = x.shape[2:]
    before, after = padding(sizes, kernel, step, spread, auto_pad, pads)
    extra = [0] * spatial
    if ceil_mode:
        extra = _ceiled(sizes, kernel, step, spread, before, after)
    return _Windows(kernel, step, spread, before, after, extra)


def _ceiled(
    sizes: Shape, kernel: Sequence[int], step: Sequence[int], spread: Sequence[int],
    before: Sequence[int], after: Sequence[int],
) -> list[int]:  # fmt: skip
    """What ceil_mode adds behind each axis; no window starts in what is added."""
    extra = []
    for size, k, s, d, b, a in zip(sizes, kernel, step, spread, before, after, strict=True):
        if size is None:
            if s == 1:
                extra.append(0)
                continue
            raise Refusal("ceil_mode needs known sizes", "dynamic_shape")
        full = size + b + a - (k - 1) * d - 1
        count = -(-full // s) + 1
        if (count - 1) * s >= size + b:
            count -= 1
        extra.append(max((count - 1) * s - full, 0))
    return extra


def _words(values: Sequence[int], fill: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.array([fill, *values] if len(values) == 1 else list(values), np.uint32)


def _pool(g: Builder, op: str, x: Tensor, at: _Windows) -> Tensor:
    spatial = x.rank - 2
    line = g.insert_axes(x, [2]) if spatial == 1 else x
    sizes = (_words(at.kernel, 1), _words(at.step, 1), _words(at.spread, 1))
    suffix = "3d" if spatial == 3 else "2d"
    if op == "sum":
        made = g.call(f"sumpool{suffix}", line, *sizes)
    else:
        out: list[int | None] = list(line.shape[:2])
        for size, k, s, d in zip(line.shape[2:], *(v.tolist() for v in sizes), strict=True):
            out.append(None if size is None else (size - (k - 1) * d - 1) // s + 1)
        kind = g.type_of(x.dtype, tuple(out))
        made = g.call(f"maxpool{suffix}", kind, line, *sizes, np.bool_(False))
    return g.drop_axes(made, [2]) if spatial == 1 else made


@OPS.lower("MaxPool", dtypes=FLOATS | _BYTES)
def max_pool(
    g: Builder,
    X: Tensor,
    *,
    auto_pad: str,
    ceil_mode: int,
    dilations: tuple[int, ...] | None,
    kernel_shape: tuple[int, ...],
    pads: tuple[int, ...] | None,
    strides: tuple[int, ...] | None,
) -> Tensor:
    at = _plan(X, kernel_shape, strides, dilations, auto_pad, pads, ceil_mode)
    if not X.is_float:
        # Half precision holds every integer of 8 bits.
        return g.cast(_pool(g, "max", at.pad(g, g.cast(X, np.float16), -128.0), at), X.dtype)
    return _pool(g, "max", at.pad(g, X, float(np.finfo(X.dtype).min)), at)


@OPS.lower("AveragePool", dtypes=FLOATS)
@in_single
def average_pool(
    g: Builder,
    X: Tensor,
    *,
    auto_pad: str,
    ceil_mode: int,
    count_include_pad: int,
    dilations: tuple[int, ...] | None,
    kernel_shape: tuple[int, ...],
    pads: tuple[int, ...] | None,
    strides: tuple[int, ...] | None,
) -> Tensor:
    at = _plan(X, kernel_shape, strides, dilations, auto_pad, pads, ceil_mode)
    total = _pool(g, "sum", at.pad(g, X), at)
    padded = any(at.before) or any(at.after)
    if not any(at.extra) and (not padded or count_include_pad):
        return g.binary("mul", total, 1 / int(np.prod(kernel_shape)))
    sizes = [g.extent(X, a) for a in range(2, X.rank)]
    ones = g.expand(g.const(np.ones((1, 1, *[1] * len(sizes)), X.dtype)), [1, 1, *sizes])
    if count_include_pad:
        ones = g.pad(ones, [0, 0, *at.before], [0, 0, *at.after], 1)
        ones = g.pad(ones, [0] * X.rank, [0, 0, *at.extra])
    else:
        ones = at.pad(g, ones)
    return g.binary("divide", total, _pool(g, "sum", ones, at))


@OPS.lower("LpPool", dtypes=FLOATS)
@in_single
def lp_pool(
    g: Builder,
    X: Tensor,
    *,
    auto_pad: str,
    ceil_mode: int,
    dilations: tuple[int, ...] | None,
    kernel_shape: tuple[int, ...],
    p: int,
    pads: tuple[int, ...] | None,
    strides: tuple[int, ...] | None,
) -> Tensor:
    at = _plan(X, kernel_shape, strides, dilations, auto_pad, pads, ceil_mode)
    return _root(g, _pool(g, "sum", at.pad(g, _power(g, X, p)), at), p)


def _power(g: Builder, x: Tensor, p: int) -> Tensor:
    size = g.unary("abs_", x)
    return size if p == 1 else g.binary("pow", size, float(p))


def _root(g: Builder, x: Tensor, p: int) -> Tensor:
    return x if p == 1 else g.binary("pow", x, 1 / p)
