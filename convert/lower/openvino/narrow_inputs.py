"""Bounds of integer inputs within which OpenVINO's 32 bits hold every integer of 64.

The CPU plugin computes int64, uint64 and uint32 in int32. What its inputs hold is checked at each
run; the bounds found here keep sums and products of them in 32 bits too.
"""

from __future__ import annotations

import json
from typing import Any

import onnx_ir as ir

from edgeinfer.backends.openvino import BOUNDS
from edgeinfer.bundle.values import INTEGERS
from edgeinfer.convert.lower.single import walk
from edgeinfer.convert.lower.whole_spans import Span, Spans
from edgeinfer.errors import Notes

_NARROWED = frozenset({ir.DataType.INT64, ir.DataType.UINT64, ir.DataType.UINT32})

_MOST = (1 << 31) - 1

_CANDIDATES = (_MOST, (1 << 30) - 1, 1 << 28, 1 << 24, 1 << 20, 46340, 1000)
"""Tried in turn: all of int32, what has a sum, ..., what has a square."""


def input_bounds(model: ir.Model, notes: Notes) -> dict[str, Span]:
    """Return what the wide integer inputs may hold, by name."""
    names = {v.name: v.dtype for v in model.graph.inputs if v.name and v.dtype in _NARROWED}
    if not names:
        return {}
    # What leaves 32 bits whatever the inputs hold depends on something else.
    always = _leaving(model, {n: _within(d, 1) for n, d in names.items()})
    found = {n: _within(d, _MOST) for n, d in names.items()}
    for most in _CANDIDATES:
        found = {n: _within(d, most) for n, d in names.items()}
        if _leaving(model, found) <= always:
            break
    for name, dtype in names.items():
        wider = {**found, name: _within(dtype, _MOST)}
        if wider != found and _leaving(model, wider) <= always:
            found = wider
    for name, span in found.items():
        if span[1] < _MOST:
            notes.add(
                f"input {name!r}: taken between {span[0]} and {span[1]}: int64 is computed in 32 "
                "bits"
            )
    return found


def constraint(bounds: dict[str, Span]) -> dict[str, str]:
    """Return the bounds as a variant's constraint."""
    return {INTEGERS: _text(bounds)} if bounds else {}


def mark(written: Any, bounds: dict[str, Span]) -> None:
    """Have the backend hold each run to the bounds."""
    if bounds:
        written.set_rt_info(_text(bounds), [*BOUNDS])


def _text(bounds: dict[str, Span]) -> str:
    return json.dumps({name: list(span) for name, span in sorted(bounds.items())})


def _within(dtype: ir.DataType | None, most: int) -> Span:
    if dtype == ir.DataType.INT64:
        return -most - (most == _MOST), most
    return 0, most


def _leaving(model: ir.Model, inputs: dict[str, Span]) -> frozenset[int]:
    """Return the nodes whose integers may leave 32 bits."""
    spans = Spans(inputs)
    found = set()
    for _, node in walk(model):
        if not any(v.dtype in _NARROWED for v in node.outputs):
            continue
        span = spans.before_fitting(node)
        if span is not None and not -_MOST - 1 <= span[0] <= span[1] <= _MOST:
            found.add(id(node))
    return frozenset(found)
