"""Reductions, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np
import tvm_ffi
from tvm import relax, te, tirx

from edgeinfer.convert.lower.registry import Const, Refusal
from edgeinfer.convert.lower.tvm.builder import Builder, Tensor
from edgeinfer.convert.lower.tvm.ops.arith import convert, function
from edgeinfer.convert.lower.tvm.ops.matrix import reshape
from edgeinfer.convert.lower.tvm.registry import BOOL, FLOATS, NUMBERS, OPS
from edgeinfer.kernels.defs import norms, rows
from edgeinfer.kernels.defs.math import element_type, is_nan

Value = Any


def least(dtype: str) -> Any:
    """Nothing is less than this."""
    if dtype.startswith("float"):
        return tirx.const(-np.inf, dtype) if dtype != "float16" else tirx.const(-65504.0, dtype)
    return tirx.const(int(np.iinfo(dtype).min), dtype)


def greatest(dtype: str) -> Any:
    """Nothing is greater than this."""
    if dtype.startswith("float"):
        return tirx.const(np.inf, dtype) if dtype != "float16" else tirx.const(65504.0, dtype)
    return tirx.const(int(np.iinfo(dtype).max), dtype)


def _pick(low: bool) -> Callable[..., Any]:
    def combine(a: Value, b: Value) -> Value:
        test = a < b if low else a > b
        return tirx.Select(tirx.Or(test, is_nan(a)), a, b)

    return combine


@cache
def share_extremes() -> None:
    """Tell TVM how threads of a GPU combine extremes: by these forms, and no others, it can."""
    register = tvm_ffi.get_global_func("s_tir.schedule.RegisterReducer")
    for low, start in ((False, least), (True, greatest)):
        functions = []
        for part, made in (("combine", _combined(low)), ("start", _started(start))):
            # TVM keeps it until the process ends, when Python can no longer let go of it.
            name = f"edgeinfer.{part}_{'min' if low else 'max'}"
            tvm_ffi.register_global_func(name, made, override=True)
            functions.append(tvm_ffi.get_global_func(name))
        register(1, *functions)


def _combined(low: bool) -> Callable[..., Any]:
    pick = _pick(low)
    return lambda left, right: [pick(left[0], right[0])]


def _started(start: Callable[[str], Any]) -> Callable[..., Any]:
    return lambda values: [start(element_type(values[0]))]


def combining(kind: str) -> Any:
    """Return what joins elements of a reduction; NaN stays the largest and the smallest."""
    if kind in ("sum", "mean"):
        return te.sum
    if kind == "prod":
        return te.comm_reducer(lambda a, b: a * b, lambda t: tirx.const(1, t), name="prod")
    if kind == "max":
        return te.comm_reducer(_pick(False), least, name="max")
    return te.comm_reducer(_pick(True), greatest, name="min")


def reduced(
    g: Builder,
    kind: str,
    x: Tensor,
    axes: Sequence[int],
    *,
    keepdims: bool,
    before: Callable[[Value], Value] | None = None,
    after: Callable[[Value], Value] | None = None,
) -> Tensor:
    """Reduce axes, with something done to each element before and to each result after."""
    axes = sorted({a % x.rank for a in axes}) if x.rank else []
    wide = "float32" if x.dtype == "float16" else x.dtype
    kept = [a for a in range(x.rank) if a not in axes]
    inner = tuple(x.shape[a] for a in kept)
    outer = tuple(1 if a in axes else x.shape[a] for a in range(x.rank)) if keepdims else inner
    if kind in ("max", "min") and any(isinstance(x.shape[a], int) and not x.shape[a] for a in axes):
        return _of_nothing(g, kind, x.dtype, outer)
    lying = as_rows(g, x, axes)
    if lying and kind in norms.KINDS:
        kernel = norms.reduced(g.cpu, *lying, kind, before, after)
        made = g.tir(kernel, [g.expr(reshape(g, x, lying))], (lying[0],))
        return reshape(g, g.wrap(made), outer)
    reducer = combining(kind)

    def compute(data: Any) -> Any:
        over = [te.reduce_axis((0, data.shape[a]), f"r{a}") for a in axes]

        def total(*index: Any) -> Any:
            own = dict(zip(kept, index, strict=True)) | dict(zip(axes, over, strict=True))
            value = data(*(own[a] for a in range(x.rank))).astype(wide)
            value = before(value) if before else value
            return reducer(value, axis=over) if over else value

        sums = te.compute(inner, total, name=kind)
        count: Any = tirx.const(1, "int64")
        for a in axes:
            count = count * data.shape[a]

        def element(*index: Any) -> Any:
            value = sums(*([index[a] for a in kept] if keepdims else index))
            if kind == "mean":
                value = _divided(value, count, wide)
            value = after(value) if after else value
            return value.astype(x.dtype)

        if outer == inner and not after and kind != "mean" and wide == x.dtype:
            return sums
        return te.compute(outer, element, name="result")

    return g.te(compute, x, name=f"reduce_{kind}")


def _of_nothing(g: Builder, kind: str, dtype: str, shape: tuple[Any, ...]) -> Tensor:
    """Return what every element would be more, or less, than."""
    floats = dtype.startswith("float")
    ends = (-np.inf, np.inf) if floats else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    value = np.asarray(ends[kind == "min"], dtype)
    if all(isinstance(size, int) for size in shape):
        return g.const(np.full(shape, value))
    fill = g.const(value)
    return g.te(lambda v: te.compute(shape, lambda *i: v(), name="nothing"), fill, name="nothing")


def as_rows(g: Builder, x: Tensor, axes: Sequence[int]) -> tuple[int, int] | None:
    """Return rows and their length where a kernel over rows can take these axes."""
    first = x.rank - len(axes)
    if not g.on_cpu or x.dtype != "float32" or not x.is_static or not axes:
        return None
    if list(axes) != list(range(first, x.rank)):
        return None
    rows, size = prod(x.shape[:first]), prod(x.shape[first:])
    return (rows, size) if rows and size >= g.cpu.lanes else None


def _divided(value: Value, count: Value, dtype: str) -> Value:
    if "int" in dtype:
        return tirx.truncdiv(value, count.astype(dtype))
    return value / count.astype(dtype)


def _axes(x: Tensor, axes: Const | None, noop: int) -> tuple[int, ...]:
    if axes is None or not axes.array.size:
        return () if noop else tuple(range(x.rank))
    return tuple(int(a) for a in axes.array.reshape(-1))


def _register(
    onnx: str,
    kind: str,
    kinds: Any,
    before: Callable[[Value], Value] | None = None,
    after: str = "",
) -> None:
    @OPS.lower(onnx, dtypes=kinds)
    def lowered(
        g: Builder,
        data: Tensor,
        axes: Const | None = None,
        *,
        keepdims: int,
        noop_with_empty_axes: int,
    ) -> Tensor:
        over = _axes(data, axes, noop_with_empty_axes)
        if data.dtype == "bool":
            whole = reduced(g, kind, convert(g, data, "uint8"), over, keepdims=bool(keepdims))
            return convert(g, whole, "bool")
        if not over and not before and not after:
            return data
        end = None
        if after:
            if "int" in data.dtype:
                raise Refusal(f"{data.dtype} under a root or logarithm", "unsupported_dtype")
            single = function(g, after, data)
            end = single if data.dtype != "float16" else (lambda v: getattr(tirx, after)(v))
        return reduced(g, kind, data, over, keepdims=bool(keepdims), before=before, after=end)

    lowered.__doc__ = f"{onnx} over some axes."


_register("ReduceSum", "sum", NUMBERS)
_register("ReduceMean", "mean", NUMBERS)
_register("ReduceProd", "prod", NUMBERS)
_register("ReduceMax", "max", NUMBERS | BOOL)
_register("ReduceMin", "min", NUMBERS | BOOL)
_register("ReduceL1", "sum", FLOATS, before=tirx.abs)
_register("ReduceSumSquare", "sum", NUMBERS, before=lambda v: v * v)
_register("ReduceLogSum", "sum", FLOATS, after="log")


@OPS.lower("Softmax", dtypes=FLOATS)
def softmax(g: Builder, input: Tensor, *, axis: int) -> Tensor:
    """Exponentials that sum to one, in one kernel."""
    x = input
    if not x.rank:
        raise Refusal("a scalar", "unsupported_rank")
    at = axis % x.rank
    lying = as_rows(g, x, [at])
    if lying and at == x.rank - 1:
        large = prod(lying) >= norms.PARALLEL_ABOVE
        kernel = rows.softmax(g.cpu, *lying, parallel=large and lying[0] > 1)
        return reshape(g, g.wrap(g.tir(kernel, [g.expr(reshape(g, x, lying))], lying)), x.shape)
    wide = "float32" if x.dtype == "float16" else x.dtype
    exp = function(g, "exp", Tensor(wide, ()))
    biggest = te.comm_reducer(_pick(False), least, name="max")

    def compute(data: Any) -> Any:
        shape = list(data.shape)
        rest = [s for a, s in enumerate(shape) if a != at]
        k, j = te.reduce_axis((0, shape[at]), "k"), te.reduce_axis((0, shape[at]), "j")

        def full(index: Sequence[Any], own: Any) -> list[Any]:
            return [*index[:at], own, *index[at:]]

        top = te.compute(
            rest, lambda *i: biggest(data(*full(i, k)).astype(wide), axis=k), name="top"
        )

        def less(*i: Any) -> list[Any]:
            return [*i[:at], *i[at + 1 :]]

        powers = te.compute(
            shape, lambda *i: exp(data(*i).astype(wide) - top(*less(*i))), name="powers"
        )
        total = te.compute(rest, lambda *i: te.sum(powers(*full(i, j)), axis=j), name="total")
        return te.compute(
            shape, lambda *i: (powers(*i) / total(*less(*i))).astype(x.dtype), name="result"
        )

    return g.te(compute, x, name="softmax")


def extreme(g: Builder, x: Tensor, axis: int, *, last: bool, low: bool) -> Tensor:
    """Find where the largest or smallest element along an axis stands; NaN is both, as in NumPy."""
    at = axis % x.rank

    def better(a: Any, b: Any) -> Any:
        first, second = a[1], b[1]
        wins = first < second if low else first > second
        earlier = a[0] > b[0] if last else a[0] < b[0]
        same = tirx.EQ(first, second)
        if "float" in x.dtype:
            wins = tirx.Or(wins, tirx.And(is_nan(first), tirx.Not(is_nan(second))))
            same = tirx.Or(same, tirx.And(is_nan(first), is_nan(second)))
        keep = tirx.Or(wins, tirx.And(same, earlier))
        return tirx.Select(keep, a[0], b[0]), tirx.Select(keep, first, second)

    def start(t0: Any, t1: Any) -> Any:
        nothing = tirx.const(-1 if last else 2**62, "int64")
        return nothing, (greatest if low else least)(x.dtype)

    reducer = te.comm_reducer(lambda a, b: better(a, b), start, name="argmin" if low else "argmax")

    def compute(data: Any) -> Any:
        rest = [s for a, s in enumerate(data.shape) if a != at]
        k = te.reduce_axis((0, data.shape[at]), "k")

        def element(*i: Any) -> Any:
            return reducer((k.var.astype("int64"), data(*i[:at], k, *i[at:])), axis=k)

        indices, _ = te.compute(rest, element, name="extreme")
        return te.compute(rest, lambda *i: indices(*i), name="place")

    return g.te(compute, x, name="arg")


def _arg(onnx: str, low: bool) -> None:
    @OPS.lower(onnx, dtypes=NUMBERS)
    def lowered(
        g: Builder, data: Tensor, *, axis: int, keepdims: int, select_last_index: int
    ) -> Tensor:
        if not data.rank:
            raise Refusal("a scalar", "unsupported_rank")
        result = extreme(g, data, axis, last=bool(select_last_index), low=low)
        if not keepdims:
            return result
        shape = list(data.shape)
        shape[axis % data.rank] = 1
        return g.emit(relax.op.reshape(g.expr(result), shape))

    lowered.__doc__ = "Where the extreme stands along an axis."


_arg("ArgMax", False)
_arg("ArgMin", True)
