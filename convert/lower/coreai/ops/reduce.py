"""Reductions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.registry import BOOL, FLOATS, NUMBERS, OPS, in_single
from edgeinfer.convert.lower.coreai.tensor import Tensor
from edgeinfer.convert.lower.ops import norm
from edgeinfer.convert.lower.registry import Const, Refusal

Body = Callable[[Builder, Tensor, list[int], bool], Tensor]


def _plain(name: str) -> Body:
    return lambda g, x, axes, keep: g.reduce(name, x, axes, keep)


def _extreme(name: str) -> Body:
    def body(g: Builder, x: Tensor, axes: list[int], keep: bool) -> Tensor:
        if x.dtype != np.bool_:
            return g.reduce(name, x, axes, keep)
        found = g.reduce(name, g.cast(x, np.uint8), axes, keep)
        # Of no element the least or the largest number is left.
        return g.binary("greater", found, 0)

    return body


def _l1(g: Builder, x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return g.reduce("sum", x if x.dtype.kind == "u" else g.unary("abs_", x), axes, keep)


def _square(g: Builder, x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return g.reduce("sum", g.binary("mul", x, x), axes, keep)


def _l2(g: Builder, x: Tensor, axes: list[int], keep: bool) -> Tensor:
    if not x.is_float:
        raise Refusal("roots of integers", "unsupported_dtype")
    from edgeinfer.convert.lower.coreai.portable import Portable

    if not axes or any(x.shape[a] == 0 for a in axes):
        return g.unary("sqrt", _square(g, x, axes, keep))
    made = norm.length(Portable(g), x, axes)
    return made if keep else g.drop_axes(made, axes)


def _log_sum(g: Builder, x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return g.unary("log", g.reduce("sum", x, axes, keep))


def _log_sum_exp(g: Builder, x: Tensor, axes: list[int], keep: bool) -> Tensor:
    top = g.reduce("max", x, axes)
    # An infinite maximum would leave inf - inf.
    finite = g.binary("equal", g.binary("sub", top, top), 0)
    base = g.select(finite, top, g.const(np.zeros((), x.dtype)))
    total = g.reduce("sum", g.unary("exp", g.binary("sub", x, base)), axes)
    made = g.binary("add", g.unary("log", total), base)
    return made if keep or not axes else g.drop_axes(made, axes)


_BODIES: dict[str, tuple[Body, object]] = {
    "ReduceSum": (_plain("sum"), NUMBERS),
    "ReduceMean": (_plain("mean"), FLOATS),
    "ReduceMax": (_extreme("max"), NUMBERS | BOOL),
    "ReduceMin": (_extreme("min"), NUMBERS | BOOL),
    "ReduceProd": (_plain("product"), NUMBERS),
    "ReduceL1": (_l1, NUMBERS),
    "ReduceL2": (_l2, FLOATS),
    "ReduceSumSquare": (_square, NUMBERS),
    "ReduceLogSum": (_log_sum, FLOATS),
    "ReduceLogSumExp": (_log_sum_exp, FLOATS),
}


def _register(op: str, body: Body, dtypes: object) -> None:
    def lowering(
        g: Builder,
        data: Tensor,
        axes: Const | None = None,
        *,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Tensor:
        chosen = [int(a) for a in np.ravel(axes.array)] if axes is not None else []
        if not chosen and not noop_with_empty_axes:
            chosen = list(range(data.rank))
        if not chosen and noop_with_empty_axes and op in ("ReduceSum", "ReduceMax", "ReduceMin"):
            return data
        places = [a % data.rank for a in chosen] if data.rank else []
        return body(g, data, places, bool(keepdims))

    whole = lowering if op in ("ReduceMax", "ReduceMin") else in_single(lowering)
    OPS.lower(op, since=13, dtypes=frozenset(dtypes))(whole)  # type: ignore[call-overload]


for _op, (_body, _dtypes) in _BODIES.items():
    _register(_op, _body, _dtypes)


def _arg(g: Builder, x: Tensor, axis: int, keepdims: int, last: int) -> Tensor:
    axis %= x.rank
    if x.dtype == np.float16:
        # Of half-precision values it was wrong on a Neural Engine at the end of a graph:
        # https://github.com/apple/coreai-torch/issues/116
        x = g.cast(x, np.float32)
    source = g.reverse(x, [axis]) if last else x
    place = g.cast(g.call("argmax", source, np.int32(axis)), np.int64)
    if last:
        top = g.extent(x, axis)
        top = g.const(np.int64(top)) if isinstance(top, int) else top
        place = g.binary("sub", g.binary("sub", top, 1), place)
    return place if keepdims else g.drop_axes(place, [axis])


@OPS.lower("ArgMax", since=13, dtypes=NUMBERS)
def arg_max(
    g: Builder, data: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
) -> Tensor:
    return _arg(g, data, axis, keepdims, select_last_index)


@OPS.lower("ArgMin", since=13, dtypes=NUMBERS)
def arg_min(
    g: Builder, data: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
) -> Tensor:
    if data.is_float:
        return _arg(g, g.neg(data), axis, keepdims, select_last_index)
    # The complement turns the order of integers around, also at the ends of the type.
    turned = g.binary("bitwise_xor", data, data.dtype.type(np.array(-1).astype(data.dtype)))
    return _arg(g, turned, axis, keepdims, select_last_index)
