"""Parts of tensors, and tensors of parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from edgeinfer.convert.lower.registry import Const, Refusal
from edgeinfer.convert.lower.tvm.builder import Builder, Tensor
from edgeinfer.convert.lower.tvm.registry import ALL, OPS


def piece(
    g: Builder, x: Tensor, starts: Sequence[Any], counts: Sequence[Any], steps: Sequence[int]
) -> Tensor:
    """``counts`` elements along each axis from ``starts``, ``steps`` apart."""
    if all(
        isinstance(c, int) and isinstance(s, int) and c == s and t == 1
        for c, s, t in zip(counts, x.shape, steps, strict=True)
    ):
        return x
    if x.data is not None:
        cut = tuple(np.arange(c) * t + s for s, c, t in zip(starts, counts, steps, strict=True))
        return g.const(x.data[np.ix_(*cut)])

    def compute(data: Any) -> Any:
        def element(*index: Any) -> Any:
            at = (
                i * t + s if t != 1 else i + s for i, s, t in zip(index, starts, steps, strict=True)
            )
            return data(*at)

        return te.compute(tuple(counts), element, name="piece")

    return g.te(compute, x, name="piece")


@OPS.lower("Slice", since=13)
def slice_(
    g: Builder,
    data: Tensor,
    starts: Const,
    ends: Const,
    axes: Const | None = None,
    steps: Const | None = None,
) -> Tensor:
    """Every so many elements from one to another."""
    first = [int(v) for v in starts.array.reshape(-1)]
    last = [int(v) for v in ends.array.reshape(-1)]
    along = [int(v) for v in axes.array.reshape(-1)] if axes else list(range(len(first)))
    stride = [int(v) for v in steps.array.reshape(-1)] if steps else [1] * len(first)
    begin: list[Any] = [0] * data.rank
    count: list[Any] = list(data.shape)
    step = [1] * data.rank
    for low, high, axis, jump in zip(first, last, along, stride, strict=True):
        at = axis % data.rank
        begin[at], count[at] = _range(data.shape[at], low, high, jump)
        step[at] = jump
    return piece(g, data, begin, count, step)


def _range(size: Any, low: int, high: int, step: int) -> tuple[Any, Any]:
    if isinstance(size, int):
        start, stop, _ = slice(low, _stop(high, step, size), step).indices(size)
        return start, len(range(start, stop, step))
    if step == 1 and low == 0 and high >= 2**31 - 1:
        return 0, size
    raise Refusal("a part of an open size", "dynamic_shape")


def _stop(high: int, step: int, size: int) -> int | None:
    # Python reads a negative bound from the end; below the first element nothing ends a way back.
    return None if step < 0 and high < -size else high


@OPS.lower("Split", since=18)
def split(
    g: Builder,
    input: Tensor,
    split: Const | None = None,
    *,
    axis: int = 0,
    num_outputs: int | None = None,
) -> tuple[Tensor, ...]:
    """Parts along an axis."""
    at = axis % input.rank
    size = input.shape[at]
    if split is not None:
        sizes = [int(s) for s in split.array.reshape(-1)]
    else:
        count = num_outputs or g.outputs()
        if not isinstance(size, int):
            raise Refusal("an open size in parts", "dynamic_shape")
        each = -(-size // count)
        sizes = [max(0, min(each, size - i * each)) for i in range(count)]
    parts = []
    start = 0
    for part in sizes:
        starts, counts = [0] * input.rank, list(input.shape)
        starts[at], counts[at] = start, part
        parts.append(piece(g, input, starts, counts, [1] * input.rank))
        start += part
    return tuple(parts)


@OPS.lower("Concat", since=13)
def concat(g: Builder, *inputs: Tensor, axis: int) -> Tensor:
    """One after the other along an axis."""
    if len(inputs) == 1:
        return inputs[0]
    if all(t.data is not None for t in inputs):
        return g.const(np.concatenate([np.asarray(t.data) for t in inputs], axis))
    at = axis % inputs[0].rank
    kept = [t for t in inputs if not (isinstance(t.shape[at], int) and t.shape[at] == 0)]
    if len(kept) == 1:
        return kept[0]
    if not kept:
        return inputs[0]
    return g.emit(relax.op.concat([g.expr(t) for t in kept], at))


@OPS.lower("Pad", since=21, dtypes=ALL)
def pad(
    g: Builder,
    data: Tensor,
    pads: Const,
    constant_value: Tensor | None = None,
    axes: Const | None = None,
    *,
    mode: str = "constant",
) -> Tensor:
    """A border; a negative one cuts."""
    along = [int(a) % data.rank for a in axes.array.reshape(-1)] if axes else list(range(data.rank))
    around = [int(p) for p in pads.array.reshape(-1)]
    before, after = [0] * data.rank, [0] * data.rank
    for i, axis in enumerate(along):
        before[axis], after[axis] = around[i], around[i + len(along)]
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise Refusal(f"mode {mode!r}")
    if mode != "constant" and not data.is_static:
        raise Refusal("a repeated border of an open size", "dynamic_shape")
    shape = tuple(s + b + a for s, b, a in zip(data.shape, before, after, strict=True))
    fill = constant_value if constant_value is not None else g.const(np.zeros((), data.dtype))

    def compute(source: Any, *rest: Any) -> Any:
        def element(*index: Any) -> Any:
            at, tests = [], []
            for i, low, high, size in zip(index, before, after, source.shape, strict=True):
                place = i - low if low else i
                if mode != "constant":
                    at.append(_mirrored(place, size, mode) if low > 0 or high > 0 else place)
                    continue
                at.append(place)
                tests += [place >= 0] if low > 0 else []
                tests += [place < size] if high > 0 else []
            value = source(*at)
            if not tests:
                return value
            beyond = (
                rest[0]()
                if rest
                else tirx.const(np.asarray(fill.data).reshape(-1)[0].item(), data.dtype)
            )
            return tirx.if_then_else(tirx.all(*tests), value, beyond)

        return te.compute(shape, element, name="pad")

    known = fill.data is not None and np.all(np.isfinite(fill.data))
    if known:
        return g.te(compute, data, name="pad")
    from edgeinfer.convert.lower.tvm.ops.matrix import reshape

    return g.te(compute, data, reshape(g, fill, ()), name="pad")


def _mirrored(place: Any, size: Any, mode: str) -> Any:
    if mode == "edge":
        return tirx.max(0, tirx.min(place, size - 1))
    if mode == "wrap":
        return tirx.floormod(place, size)
    period = tirx.max(1, 2 * (size - 1))
    turned = tirx.floormod(place, period)
    return tirx.min(turned, period - turned)


@OPS.lower("Trilu", since=14)
def trilu(g: Builder, input: Tensor, k: Const | None = None, *, upper: int = 1) -> Tensor:
    """One side of a diagonal."""
    shift = 0 if k is None else int(k.array.reshape(-1)[0])
    zero = tirx.const(0, input.dtype)

    def compute(data: Any) -> Any:
        def element(*index: Any) -> Any:
            row, column = index[-2].astype("int64") + shift, index[-1].astype("int64")
            keep = column >= row if upper else column <= row
            return tirx.Select(keep, data(*index), zero)

        return te.compute(data.shape, element, name="trilu")

    return g.te(compute, input, name="trilu")
