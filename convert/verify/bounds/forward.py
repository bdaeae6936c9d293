"""What results lie between, given what operands do: one transfer function for each operator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.families import MOVES
from edgeinfer.convert.verify.bounds.node import BoundedNode
from edgeinfer.convert.verify.bounds.span import ANY, Span
from edgeinfer.types import Array

Forward = Callable[[BoundedNode], Span | tuple[Span, ...] | None]

HANDED_ON = MOVES | {"Cast", "CenterCropPad", "Dropout", "Trilu"}
"""Operators that hand the elements of their first operand on as they are, some perhaps as zeros."""

_WITH_ZEROS = frozenset({"Trilu", "CenterCropPad", "Dropout"})


def forward(op: BoundedNode) -> tuple[Span, ...]:
    """Return what each output lies between, as far as its operator and its type say."""
    rule = FORWARD.get(op.node.op_type)
    if op.node.op_type in HANDED_ON:
        found = _moved(op)
    elif rule is None or op.node.domain not in ("", "ai.onnx"):
        found = None
    else:
        with np.errstate(all="ignore"):
            found = rule(op)
    spans = found if isinstance(found, tuple) else (found or ANY,)
    spans = (*spans, *[ANY] * (len(op.node.outputs) - len(spans)))
    return tuple(
        _plain(s).meet(_of_type(v.dtype)) for s, v in zip(spans, op.node.outputs, strict=False)
    )


def of_constant(array: Array) -> Span:
    """Return the interval of a constant, of each element by itself where there are few."""
    if array.dtype.kind not in "biuf" or not array.size:
        return ANY
    wide = array.astype(np.float64)
    if array.size > 4096 or not np.isfinite(wide).all():
        return Span.of(wide.min(), wide.max())
    return Span(wide, wide)


def _plain(span: Span) -> Span:
    """Infinity less infinity says nothing."""
    low, high = span.low, span.high
    if np.isnan(low).any() or np.isnan(high).any():
        return Span(np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high))
    return span


def _of_type(dtype: ir.DataType | None) -> Span:
    if dtype == ir.DataType.BOOL:
        return Span.of(0, 1)
    if dtype in (ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.UINT16, ir.DataType.INT16):
        info = np.iinfo(dtype.numpy())
        return Span.of(float(info.min), float(info.max))
    if dtype in (ir.DataType.UINT32, ir.DataType.UINT64):
        return Span.of(0, np.inf)
    return ANY


def _moved(op: BoundedNode) -> Span | tuple[Span, ...]:
    span = op.span(0)
    if op.node.op_type in _WITH_ZEROS:
        return span.join(Span.of(0, 0))
    if op.node.op_type == "Cast":
        if op.is_whole(0) or op.node.outputs[0].dtype in (None, ir.DataType.BOOL):
            return span
        whole = op.node.outputs[0].dtype is not None and op.node.outputs[0].dtype.is_integer()
        return Span(np.trunc(span.low), np.trunc(span.high)) if whole else span
    outputs = len(op.node.outputs)
    full = None if span.is_scalar else span.full(op.shape(0))
    if full is None or any(op.has(i) and op.const(i) is None for i in range(1, op.count)):
        return (span.hull(),) * outputs
    others = [op.const(i) for i in range(1, op.count)]
    lows, highs = op.evaluated(full.low, *others), op.evaluated(full.high, *others)
    if lows is None or highs is None:
        return (span.hull(),) * outputs
    return tuple(Span.of(a, b) for a, b in zip(lows, highs, strict=True))


def _all_inputs(op: BoundedNode) -> Span:
    found = [op.span(i).hull() for i in range(op.count) if op.has(i)]
    out = found[0] if found else ANY
    for span in found[1:]:
        out = out.join(span)
    return out


def _concat(op: BoundedNode) -> Span:
    parts = [op.span(i) for i in range(op.count)]
    fulls = [p.full(op.shape(i)) for i, p in enumerate(parts)]
    axis = op.attr("axis", 0)
    if all(p.is_scalar for p in parts) and len({(p.least, p.most) for p in parts}) == 1:
        return parts[0]
    if any(f is None for f in fulls) or sum(f.low.size for f in fulls if f is not None) > 4096:
        return _all_inputs(op)
    known = [f for f in fulls if f is not None]
    return Span(
        np.concatenate([f.low for f in known], axis), np.concatenate([f.high for f in known], axis)
    )


def _pair(combine: Callable[[Span, Span], Span]) -> Forward:
    def rule(op: BoundedNode) -> Span:
        a, b = op.span(0), op.span(1)
        try:
            return combine(a, b)
        except ValueError:
            return combine(a.hull(), b.hull())

    return rule


def _add(a: Span, b: Span) -> Span:
    return Span(a.low + b.low, a.high + b.high)


def _sub(a: Span, b: Span) -> Span:
    return Span(a.low - b.high, a.high - b.low)


def _mul(a: Span, b: Span) -> Span:
    ends = [_times(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    low = np.minimum.reduce(np.broadcast_arrays(*ends))
    high = np.maximum.reduce(np.broadcast_arrays(*ends))
    return Span(low, high)


def _times(x: Array, y: Array) -> Array:
    # Zero times what is not bounded is zero: the bound is of a number, which is finite.
    return np.where((x == 0) | (y == 0), 0.0, x * y)


def _div(op: BoundedNode) -> Span:
    a, b = op.span(0).hull(), op.span(1).hull()
    if b.least <= 0 <= b.most:
        return a if op.is_whole(0) and b.least >= 0 and a.least >= 0 else ANY
    ends = [x / y for x in (a.least, a.most) for y in (b.least, b.most)]
    found = Span.of(np.nanmin(ends), np.nanmax(ends))
    return Span(np.trunc(found.low), np.trunc(found.high)) if op.is_whole(0) else found


def _mod(op: BoundedNode) -> Span:
    a, b = op.span(0).hull(), op.span(1).hull()
    most = max(abs(b.least), abs(b.most))
    if not np.isfinite(most):
        return ANY
    top = most - 1 if op.is_whole(0) else most
    if not op.attr("fmod", 0):
        return Span.of(0 if b.least > 0 else -top, top if b.most > 0 else 0)
    return Span.of(-top if a.least < 0 else 0, top if a.most > 0 else 0)


def _clip(op: BoundedNode) -> Span:
    x = op.span(0)
    low = op.number(1) if op.has(1) else op.attr("min", -np.inf)
    high = op.number(2) if op.has(2) else op.attr("max", np.inf)
    low, high = (-np.inf if low is None else low), (np.inf if high is None else high)
    return Span(np.clip(x.low, low, high), np.clip(x.high, low, high))


def _many(combine: Callable[[Array, Array], Array]) -> Forward:
    def rule(op: BoundedNode) -> Span:
        spans = [op.span(i) for i in range(op.count) if op.has(i)]
        out = spans[0]
        for other in spans[1:]:
            try:
                out = Span(combine(out.low, other.low), combine(out.high, other.high))
            except ValueError:
                a, b = out.hull(), other.hull()
                out = Span(combine(a.low, b.low), combine(a.high, b.high))
        return out

    return rule


def _abs(op: BoundedNode) -> Span:
    x = op.span(0)
    ends = np.abs(x.low), np.abs(x.high)
    inside = (x.low <= 0) & (x.high >= 0)
    return Span(np.where(inside, 0.0, np.minimum(*ends)), np.maximum(*ends))


def _steps(step: Callable[[Array], Array]) -> Forward:
    return lambda op: Span(np.asarray(step(op.span(0).low)), np.asarray(step(op.span(0).high)))


def _between(low: float, high: float) -> Forward:
    return lambda _: Span.of(low, high)


def _shape(op: BoundedNode) -> Span | None:
    shape = op.shape(0)
    if shape is None:
        return Span.of(0, np.inf)
    start, end = op.attr("start", 0), op.attr("end", len(shape))
    kept = shape[start:end]
    return Span.of(
        [0 if d is None else d for d in kept], [np.inf if d is None else d for d in kept]
    )


def _range(op: BoundedNode) -> Span:
    start, limit, delta = (op.span(i).hull() for i in range(3))
    if delta.least > 0:
        top = limit.most - 1 if op.is_whole(0) else limit.most
        return Span.of(start.least, max(start.least, top))
    return start.join(limit)


def _position(op: BoundedNode) -> Span:
    axis = op.attr("axis", 0)
    size = op.size(0, int(axis))
    return Span.of(0, np.inf if size is None else max(0, size - 1))


def _ranked(op: BoundedNode) -> tuple[Span, ...]:
    size = op.size(0, int(op.attr("axis", -1)))
    return op.span(0).hull(), Span.of(0, np.inf if size is None else max(0, size - 1))


def _nonzero(op: BoundedNode) -> Span:
    shape = op.shape(0)
    if shape is None or any(d is None for d in shape):
        return Span.of(0, np.inf)
    return Span.of([[0]] * len(shape), [[max(0, (d or 0) - 1)] for d in shape])


def reduced(op: BoundedNode) -> int | None:
    """Return over how many elements a reduction goes."""
    shape = op.shape(0)
    axes = op.const(1) if op.count > 1 and op.has(1) else op.attr("axes")
    if op.count > 1 and op.has(1) and axes is None:
        return None
    if axes is None or not len(np.ravel(axes)):
        return op.elements(0)
    sizes = [op.size(0, int(a)) for a in np.ravel(axes)]
    if shape is None or any(s is None for s in sizes):
        return None
    return int(np.prod([s or 0 for s in sizes], dtype=np.int64))


def _summed(op: BoundedNode) -> Span:
    x = op.span(0).hull()
    count = reduced(op)
    if count is None:
        return Span.of(0 if x.least >= 0 else -np.inf, 0 if x.most <= 0 else np.inf)
    return Span(_times(x.low, np.asarray(count)), _times(x.high, np.asarray(count)))


def _running(op: BoundedNode) -> Span:
    x, axis = op.span(0).hull(), op.number(1)
    size = None if axis is None else op.size(0, int(axis))
    most = np.inf if size is None else size
    return Span.of(
        0 if x.least >= 0 else x.least * most, x.most if x.most <= 0 else x.most * most
    ).join(x)


def _one_hot(op: BoundedNode) -> Span:
    return op.span(2).hull()


def _filled(op: BoundedNode) -> Span:
    value = op.node.attributes.get("value")
    if value is None:
        return Span.of(0, 0)
    return of_constant(np.asarray(value.as_tensor().numpy())).hull()


def _either(op: BoundedNode) -> Span:
    return op.span(1).hull().join(op.span(2).hull())


def _scattered(op: BoundedNode) -> Span | None:
    if op.attr("reduction", "none") not in ("none", "max", "min"):
        return None
    return op.span(0).hull().join(op.span(2).hull())


def _padded(op: BoundedNode) -> Span:
    if op.attr("mode", "constant") != "constant":
        return op.span(0).hull()
    filling = op.number(2) if op.has(2) else 0.0
    return ANY if filling is None else op.span(0).hull().join(Span.of(filling, filling))


def _hull(op: BoundedNode) -> Span:
    return op.span(0).hull()


def _powered(op: BoundedNode) -> Span:
    exponent = op.number(1)
    return Span.of(0, np.inf) if exponent is not None and exponent % 2 == 0 else ANY


_truth = _between(0, 1)

FORWARD: dict[str, Forward] = {
    **dict.fromkeys(
        (
            *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Not", "And", "Or"),
            *("Xor", "IsNaN", "IsInf", "Sigmoid", "Softmax", "HardSigmoid", "EyeLike"),
        ),
        _truth,
    ),
    **dict.fromkeys(("Tanh", "Sin", "Cos", "Erf", "Sign", "Softsign"), _between(-1, 1)),
    **dict.fromkeys(("ReduceMax", "ReduceMin", "ReduceMean", "MaxPool", "AveragePool"), _hull),
    **dict.fromkeys(("GlobalMaxPool", "GlobalAveragePool"), _hull),
    **dict.fromkeys(("Size", "NonMaxSuppression"), _between(0, np.inf)),
    **dict.fromkeys(("Sqrt", "Exp", "Softplus"), _between(0, np.inf)),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceSumSquare"), _between(0, np.inf)),
    **dict.fromkeys(("ScatterND", "ScatterElements", "Scatter"), _scattered),
    **dict.fromkeys(("ArgMax", "ArgMin"), _position),
    "Abs": _abs,
    "Add": _pair(_add),
    "Ceil": _steps(np.ceil),
    "Clip": _clip,
    "Concat": _concat,
    "ConstantOfShape": _filled,
    "CumSum": _running,
    "Div": _div,
    "Floor": _steps(np.floor),
    "Max": _many(np.maximum),
    "Min": _many(np.minimum),
    "Mod": _mod,
    "Mul": _pair(_mul),
    "Neg": lambda op: Span(-op.span(0).high, -op.span(0).low),
    "NonZero": _nonzero,
    "OneHot": _one_hot,
    "Pad": _padded,
    "Pow": _powered,
    "Range": _range,
    "ReduceSum": _summed,
    "Relu": _steps(lambda x: np.maximum(x, 0.0)),
    "Round": _steps(np.rint),
    "Shape": _shape,
    "Sub": _pair(_sub),
    "TopK": _ranked,
    "Where": _either,
}
"""By operator of the default domain; results of others are bounded by their type alone."""
