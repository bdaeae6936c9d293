"""Layers that are known to lose with 8 bits, and why: what the search tries first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import constant
from edgeinfer.convert.quantize.calibrate.histogram import Histogram, Spreads
from edgeinfer.convert.quantize.calibrate.ranges import Range
from edgeinfer.convert.quantize.search.layers import Layer
from edgeinfer.convert.quantize.units import WEIGHTED as _WEIGHTED
from edgeinfer.convert.quantize.units import Layout, Unit, array_of, parts

UNLIKE = 8.0
"""How many times wider than the narrowest operand of a Concat the widest one may be: three of the
eight bits of the narrowest are then gone."""

UNLIKE_INSIDE = 64.0
"""Likewise where layers with weights follow: two of the eight bits are left."""

_EACH = frozenset({"Add", "Clip", "Div", "Mul", "Relu", "Sub"})
"""Operators that parts may be taken out behind."""

_LOBES = {"HardSwish": 0.375, "Swish": 0.278, "Mish": 0.309, "Gelu": 0.17}
"""How deep the lobe below zero is of activations that have one."""

USUAL_STEPS = 5.0
"""Steps of eight bits that the root of the mean square of a product's results must have: with
fewer, a few results that are far larger than the others take the steps of all. In MiniLM the second
product of each block has 2.3 to 4.1 of them, all others 7.7 to 34."""

LOBE_STEPS = 8
"""Steps of eight bits that a lobe must have: with fewer, what it means is rounded away."""

LEAST_STEPS = 0.5
"""Steps that the least deviation of a channel must have at the end of a model: with fewer, what
rounding leaves of it is within 5 dB of what rounding does."""

LEAST_SHARE = 1e-5
"""Steps below which a channel is constant but for rounding."""

_STEPS = 255
_ENDS = "first or last layer with weights"

_FRAGILE = {
    "Softmax": "its small probabilities are below one step",
    "Sigmoid": "its ends are below one step",
}


def layers(
    units: Sequence[Unit],
    ranges: Mapping[str, Range],
    seen: Mapping[str, Histogram] | None = None,
) -> list[Layer]:
    """List the units that may stay float, with what they cost and what is known against them.

    Args:
        units: Units of one target.
        ranges: by name of a value.
        seen: what was observed of them.
    """
    chosen = [u for u in units if u.kind != "move"]
    costs = [_cost(u) for u in chosen]
    total = sum(costs) or 1.0
    ends = {u.name for u in _ends(chosen)}
    found = []
    for unit, cost in zip(chosen, costs, strict=True):
        loud = _outliers(unit, ranges, seen or {})
        rule = loud or _rule(unit, ranges, ends)
        found.append(Layer(unit.name, unit.op, cost / total, rule, bool(loud)))
    return found


def _rule(unit: Unit, ranges: Mapping[str, Range], ends: set[str]) -> str:
    if (times := _unlike(unit, ranges)) > UNLIKE:
        return f"joins ranges that differ {times:.0f} times: one scale cannot serve both"
    if unit.op in _FRAGILE:
        return _FRAGILE[unit.op]
    if lobe := _lobe(unit, ranges):
        return lobe
    if unit.name in ends:
        joined = _joined(unit.result, 6)
        return "head of a detector: joined with others" if joined else _ENDS
    return ""


def apart(units: Sequence[Unit], ranges: Mapping[str, Range]) -> dict[str, str]:
    """Say which units never share a scale, and why: their parts have too little in common.

    With one scale for coordinates in pixels and a score, the score takes one value. At the end of a
    model that is what comes out; further inside layers follow that may do without the smaller one,
    so that more of its bits may go.

    Args:
        units: Units of one target.
        ranges: by name of a value.
    """
    found = {}
    for unit in units:
        at_end = _reaches_output(unit.result, 6)
        most = UNLIKE if at_end else UNLIKE_INSIDE
        if at_end and (factors := _unlike_factors(unit)) > UNLIKE:
            found[unit.name] = (
                f"{unit.op} {unit.name!r} stays float: its factors differ {factors:.0f} times, and "
                "one scale cannot serve all of its results"
            )
        elif unit.kind != "move" and (times := _unlike_parts(unit.result, ranges)) > most:
            found[unit.name] = (
                f"{unit.op} {unit.name!r} stays float: parts of its result differ {times:.0f} "
                "times in range, and one scale cannot serve all"
            )
        elif (times := _unlike(unit, ranges)) > most:
            found[unit.name] = (
                f"{unit.op} {unit.name!r} stays float: what it joins differs {times:.0f} times in "
                "range, and one scale cannot serve both"
            )
    return found


def crowded(
    layout: Layout, ranges: Mapping[str, Range], spreads: Mapping[str, Spreads], bits: int
) -> dict[str, str]:
    """Say which units at the end of a model have channels that vary by less than a step.

    One layer that gives coordinates in pixels and a score has one scale for both, and the score
    takes one value, or three. Where nothing reaches beyond one all channels are shares of one unit.

    Args:
        layout: what a target holds as integers.
        ranges: by name of a value.
        spreads: likewise, of those that become outputs.
        bits: Bits of an activation.
    """
    found = {}
    for unit in layout.units:
        spread = spreads.get(unit.result.name or "")
        if spread is None or unit.kind == "move" or unit.result not in layout.stored:
            continue
        step = _width(unit.result, ranges) / (2**bits - 1)
        least = spread.least()
        if spread.largest > 1.0 and LEAST_SHARE * step < least < LEAST_STEPS * step:
            found[unit.name] = (
                f"{unit.op} {unit.name!r} stays float: a channel of its result varies by "
                f"{least / step:.2g} of a step of {bits} bits, and one scale cannot serve all"
            )
    return found


def ends(units: Sequence[Unit]) -> set[str]:
    """Return names of values that become outputs without further weights."""
    return {u.result.name or "" for u in units if u.kind != "move" and _reaches_output(u.result, 6)}


def _unlike(unit: Unit, ranges: Mapping[str, Range]) -> float:
    """Return how many times wider the widest operand of a Concat is than the narrowest."""
    if unit.op != "Concat":
        return 1.0
    widths = [w for v in unit.reads if (w := _width(v, ranges)) > 0]
    return max(widths) / min(widths) if widths else 1.0


def _unlike_parts(value: ir.Value, ranges: Mapping[str, Range], steps: int = 6) -> float:
    """Return how many times wider a result is than the narrowest part that is taken out of it."""
    widths = [w for v in parts(value) if (w := _width(v, ranges)) > 0]
    found = [_width(value, ranges) / min(widths)] if widths else [1.0]
    for user, _ in value.uses() if steps else ():
        # What is added, or multiplied with, is for all channels alike, or has rules of its own.
        others = [v for v in user.inputs if v is not None and v is not value]
        if user.op_type in _EACH and all(constant(v) is not None for v in others):
            found.append(_unlike_parts(user.outputs[0], ranges, steps - 1))
    return max(found)


def _unlike_factors(unit: Unit) -> float:
    """Return how many times larger the largest constant factor of a product is than the least."""
    if unit.op not in ("Mul", "Div"):
        return 1.0
    factors = [c.numpy() for v in unit.nodes[0].inputs if (c := constant(v)) is not None]
    sizes = [np.abs(f[f != 0]).astype(np.float64) for f in factors]
    return max((float(s.max() / s.min()) for s in sizes if s.size), default=1.0)


def _outliers(unit: Unit, ranges: Mapping[str, Range], seen: Mapping[str, Histogram]) -> str:
    """Say whether a few results of a product take the steps of all others."""
    values, width = seen.get(unit.result.name or ""), _width(unit.result, ranges)
    if unit.kind != "weighted" or values is None or width <= 0:
        return ""
    steps = values.usual * _STEPS / width
    if steps >= USUAL_STEPS:
        return ""
    return f"its usual results have {steps:.1f} of {_STEPS} steps, a few are far larger"


def _lobe(unit: Unit, ranges: Mapping[str, Range]) -> str:
    """Say whether an activation's lobe below zero is lost among the steps of a wide range.

    Either side of the activation counts: what goes in has no finer steps than what comes out.
    """
    users = [user for user, _ in unit.result.uses()]
    for node in (unit.nodes[0], *users):
        depth = _LOBES.get(node.op_type)
        if depth is None or node.domain:
            continue
        width = _width(unit.result, ranges)
        steps = depth * _STEPS / width if width > 0 else math.inf
        if steps < LOBE_STEPS:
            return f"{node.op_type}'s lobe below zero has {steps:.1f} of {_STEPS} steps"
    return ""


def _joined(value: ir.Value, steps: int) -> bool:
    """Whether a value reaches an output through a Concat."""
    if steps == 0:
        return False
    for user, _ in value.uses():
        if user.op_type == "Concat":
            return True
        if user.op_type not in _WEIGHTED and any(_joined(v, steps - 1) for v in user.outputs):
            return True
    return False


def _width(value: ir.Value, ranges: Mapping[str, Range]) -> float:
    span = ranges.get(value.name or "")
    return span.width if span is not None else 0.0


def _ends(units: Sequence[Unit]) -> list[Unit]:
    weighted = [u for u in units if u.kind == "weighted"]
    last = [u for u in weighted if _reaches_output(u.result, 6)]
    return [*weighted[:1], *last]


def _reaches_output(value: ir.Value, steps: int) -> bool:
    """Whether no further weights come between a value and an output."""
    if value.is_graph_output():
        return True
    if steps == 0:
        return False
    for user, _ in value.uses():
        if user.op_type in _WEIGHTED:
            continue
        if any(_reaches_output(v, steps - 1) for v in user.outputs):
            return True
    return False


def _cost(unit: Unit) -> float:
    """Return the multiplications of a unit; free sizes count as one."""
    node, result = unit.nodes[0], unit.result
    dims = [d if isinstance(d, int) else 1 for d in result.shape] if result.shape else [1]
    size = float(math.prod(dims))
    if unit.kind == "recurrent":
        # Each result is a row of four, three or one gates' products with the input and the state.
        gates, columns = (int(d) for d in array_of(node.inputs[1]).shape[1:])
        return size / max(1, dims[-1]) * gates * (columns + dims[-1])
    if unit.kind != "weighted" or constant(node.inputs[1]) is None:
        return size * 0.1
    weights = [int(d) for d in array_of(node.inputs[1]).shape]
    if node.op_type == "Conv":
        return size * math.prod(weights[1:])
    if node.op_type == "ConvTranspose":
        return size * math.prod(weights) / max(1, weights[1])
    return size * max(weights)
