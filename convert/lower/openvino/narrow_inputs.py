"""Bounds of inputs within which OpenVINO's 32 bits hold what 64 do.

The CPU plugin computes int64, uint64 and uint32 in int32. What its inputs hold is checked at each
run; the bounds found here keep sums and products of them in 32 bits too, and what floats are cast
to. Over axes of open size a sum is bounded for as many elements as the input has in a run. It
computes float64 in float32: doubles, and what is cast to them, are taken up to 2^24, so that time
stamps are not rounded by minutes.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import onnx_ir as ir

from edgeinfer.backends.openvino.backend import BOUNDS
from edgeinfer.bundle.values import INTEGERS
from edgeinfer.convert.lower.openvino.whole_numbers import HELD
from edgeinfer.convert.lower.single import walk
from edgeinfer.convert.lower.whole_spans import Span, Spans
from edgeinfer.errors import Remarks

_NARROWED = frozenset({ir.DataType.INT64, ir.DataType.UINT64, ir.DataType.UINT32})

_SIGNED = frozenset({ir.DataType.INT64, ir.DataType.INT32})

_MOST = (1 << 31) - 1

_CANDIDATES = (
    *(_MOST, _MOST - (1 << 26), 3 << 29),
    *(1 << n for n in range(30, 16, -1)),
    *(46340, *(1 << n for n in range(15, 9, -1)), 1000, *(1 << n for n in range(9, -1, -1))),
)
"""The first that will do is taken: all of int32, what has a sum, ..., what has a square."""

_COUNTS = tuple(1 << n for n in range(0, 25, 2))
"""Elements of an input up to which a sum over an axis of open size is looked at by itself."""

_ANY = 1 << 1000
"""More than any float input holds."""

_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16})

Bounds = tuple[int, ...]
"""Lowest and highest value; then, for more elements than each, the same again."""


def input_bounds(model: ir.Model, notes: Remarks) -> dict[str, Bounds]:
    """Return what the inputs may hold from which wide integers are computed, by name."""
    doubled = any(_makes_double(node) for _, node in walk(model))
    asked = _NARROWED | _SIGNED if doubled else _NARROWED
    whole = {v.name: v.dtype for v in model.graph.inputs if v.name and v.dtype in asked}
    doubles = [v.name for v in model.graph.inputs if v.name and _stays_double(v)]
    floats = [v.name for v in model.graph.inputs if v.name and v.dtype in _FLOATS]
    casts = any(
        node.op_type == "Cast" and node.outputs[0].dtype in _NARROWED and _is_float(node)
        for _, node in walk(model)
    )
    if not whole and not casts and not doubles:
        return {}
    floats = floats if casts else []
    ends = [_held(model, whole, floats, n) for n in (_COUNTS[0], _COUNTS[-1])]
    rows = ends[:1]
    if ends[0] != ends[1]:
        rows += [_held(model, whole, floats, n) for n in _COUNTS[1:]]
    found: dict[str, Bounds] = {}
    for name in rows[0]:
        bounds: list[int] = [*rows[0][name]]
        for count, row in zip(_COUNTS, rows[1:], strict=False):
            if row[name] != tuple(bounds[-2:]):
                bounds += [count, *row[name]]
        found[name] = tuple(bounds)
    for name in doubles:
        found[name] = tuple(
            v if place % 3 == 2 else max(-HELD, min(v, HELD))
            for place, v in enumerate(found.get(name, (-HELD, HELD)))
        )
    for name, (low, high, *more) in found.items():
        if high < _MOST or more:
            fewer = f", of many elements between {more[-2]} and {more[-1]}" if more else ""
            notes.add(
                f"input {name!r}: taken between {low} and {high}{fewer}: 64 bits are computed in 32"
            )
    return found


def _first(holds: Callable[[int], bool]) -> int:
    """Return the largest candidate that holds, or the least of all; what holds stays so below."""
    place = bisect.bisect_left(_CANDIDATES, True, key=holds)
    return _CANDIDATES[min(place, len(_CANDIDATES) - 1)]


def _is_float(node: ir.Node) -> bool:
    return any(v is not None and v.dtype in _FLOATS for v in node.inputs[:1])


def _held(
    model: ir.Model, whole: Mapping[str, ir.DataType | None], floats: list[str], elements: int
) -> dict[str, Span]:
    """Return bounds that hold where no open axis has more elements than so many."""
    still = dict.fromkeys(floats, (-1, 1))
    # What leaves 32 bits whatever the inputs hold depends on something else.
    least = {n: _within(d, 1) for n, d in whole.items()}
    always = _leaving(model, {**least, **still}, elements)

    def within(most: int) -> dict[str, Span]:
        return {n: _within(d, most) for n, d in whole.items()}

    def fits(inputs: dict[str, Span]) -> bool:
        return _leaving(model, {**still, **inputs}, elements) <= always

    found = within(_first(lambda most: fits(within(most))))
    for name, dtype in whole.items():
        wider = {**found, name: _within(dtype, _MOST)}
        if wider != found and fits(wider):
            found = wider
    for name in floats:
        if fits({**found, name: (-_ANY, _ANY)}):
            continue
        ends = partial(_with, found, name)
        # The largest float32 below 2^31.
        most = min(_first(lambda most: fits(ends(most))), _MOST - 127)  # noqa: B023 - used at once
        found = ends(most)
    return found


def _with(spans: dict[str, Span], name: str, most: int) -> dict[str, Span]:
    return {**spans, name: (-most, most)}


def constraint(bounds: dict[str, Bounds]) -> dict[str, str]:
    """Return the bounds as a variant's constraint."""
    return {INTEGERS: _text(bounds)} if bounds else {}


def mark(written: Any, bounds: dict[str, Bounds]) -> None:
    """Have the backend hold each run to the bounds."""
    if bounds:
        written.set_rt_info(_text(bounds), [*BOUNDS])


def _text(bounds: dict[str, Bounds]) -> str:
    return json.dumps({name: list(span) for name, span in sorted(bounds.items())})


def _within(dtype: ir.DataType | None, most: int) -> Span:
    if dtype in _SIGNED:
        return -most - (most == _MOST), most
    return 0, most


def _leaving(model: ir.Model, inputs: dict[str, Span], elements: int) -> frozenset[int]:
    """Return the nodes whose integers may leave 32 bits."""
    spans = Spans(inputs, elements)
    found = set()
    for _, node in walk(model):
        if _makes_double(node):
            low, high = -HELD, HELD
        elif any(v.dtype in _NARROWED for v in node.outputs):
            low, high = -_MOST - 1, _MOST
        else:
            continue
        span = spans.before_fitting(node)
        if span is not None and not low <= span[0] <= span[1] <= high:
            found.add(id(node))
    return frozenset(found)


def _stays_double(value: ir.Value) -> bool:
    """Whether float64 is more than rounded once."""
    if value.dtype != ir.DataType.DOUBLE:
        return False
    users = value.uses()
    return value.is_graph_output() or not all(
        u.node.op_type == "Cast" and u.node.outputs[0].dtype == ir.DataType.FLOAT for u in users
    )


def _makes_double(node: ir.Node) -> bool:
    """Whether integers of more than 24 bits become float64."""
    x = node.inputs[0] if node.op_type in ("Cast", "CastLike") else None
    wide = x is not None and x.dtype in _NARROWED | _SIGNED
    return wide and node.outputs[0].dtype == ir.DataType.DOUBLE
