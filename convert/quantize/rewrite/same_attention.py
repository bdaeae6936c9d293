"""Attention between integers, in operators that give the same bits in every engine.

Queries, keys and values are made floats by a scale of one, so that products of them are integers,
which float32 adds exactly in any order; what the scales were is in the weights before them. A
weight of a softmax is then a function of an integer, rounded to an integer again: engines, whose
exponentials differ in the last bits, agree on it where none is near to halfway, and a factor by
which none is, is looked for.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.families import MOVES
from edgeinfer.convert.passes.infra import (
    Namer,
    add_initializer,
    attr,
    constant,
    is_op,
    rank,
    small,
    static_shape,
)
from edgeinfer.convert.passes.rewrite import ReplacementBuilder
from edgeinfer.convert.quantize.calibrate.ranges import Scale
from edgeinfer.convert.quantize.units import Layout, Unit, array_of
from edgeinfer.records import dataclass

_EIGHTS = frozenset({"int8", "uint8"})

_MOST = 2.0**24
"""Below it float32 knows every integer."""

_USUAL = 48
"""Steps that a value has, more than most, in the sums that are to be exact."""

_FINEST, _COARSEST = 1024.0, 256.0
"""Parts of the largest weight of a row."""

_TRIED = 96
"""Factors that are looked at; in thousands of weights one or two are near to halfway."""

_SMALLEST = 2e-5
"""Of a step of a score. With less there are too many different weights to look at."""

_WHOLE = 2.0**30
"""What is divided by a sum of weights; the quotient is rounded."""

_HIDDEN = -1e30
"""Steps of a score that is masked; in float32, to which nothing can be added."""

_LEAST_HIDDEN = -1e4
"""From which on a constant that stands in place of a score masks it."""


Step = tuple[ir.Node, int]


@dataclass(frozen=True, slots=True)
class AttentionSite:
    """Where one is.

    Attributes:
        softmax: the operator.
        product: Product of queries and keys.
        sums: Sums of weights and values.
        steps: between product and softmax, in order, with the operand that the scores are.
        sources: queries, keys and values where they are integers.
        factor: Factor of the scores, found before the product.
        passed: multiplications with one number before the product, which are left out.
    """

    softmax: ir.Node
    product: ir.Node
    sums: ir.Node
    steps: tuple[Step, ...]
    sources: tuple[ir.Value, ir.Value, ir.Value]
    factor: float
    passed: tuple[ir.Node, ...]


def attentions(
    layout: Layout, scales: Mapping[ir.Value, Scale], graph: ir.Graph
) -> list[AttentionSite]:
    """Find those whose queries, keys and values are integers that nothing else reads."""
    made = {u.result: u for u in layout.units if u.kind == "weighted"}
    found: list[AttentionSite] = []
    for node in graph:
        one = _attention(node, made, scales) if is_op(node, "Softmax") else None
        if one is not None:
            found.append(one)
    return [one for one in found if _step(one, scales) >= _SMALLEST]


def _step(one: AttentionSite, scales: Mapping[ir.Value, Scale]) -> float:
    """Return what a score of one is worth."""
    query, key, _ = (scales[v].scale for v in one.sources)
    step = one.factor * query * key
    for node, _ in one.steps:
        number = _number(node) if node.op_type in ("Mul", "Div") else None
        step *= 1.0 if number is None else number[0]
    return step


def _attention(
    node: ir.Node, made: Mapping[ir.Value, Unit], scales: Mapping[ir.Value, Scale]
) -> AttentionSite | None:
    out, size = node.outputs[0], rank(node.outputs[0])
    sums = _only_user(out)
    if out in scales or size is None or attr(node, "axis", -1) not in (-1, size - 1):
        return None
    if sums is None or not is_op(sums, "MatMul") or sums.inputs[0] is not out:
        return None
    chain = _chain(node.inputs[0])
    if chain is None:
        return None
    product, steps = chain
    ends = [_source(v, scales) for v in (*product.inputs, sums.inputs[1])]
    if any(e is None for e in ends):
        return None
    known = [e for e in ends if e is not None]
    inside = {product, sums, *(n for _, nodes, _ in known for n in nodes)}
    for source, nodes, _ in known:
        unit, values = made.get(source), [source, *(o for n in nodes for o in n.outputs)]
        if unit is None or scales[source].dtype not in _EIGHTS or not _scalable(unit):
            return None
        if any(v.is_graph_output() or any(u not in inside for u, _ in v.uses()) for v in values):
            return None
    factor = known[0][2] * known[1][2]
    if known[2][2] != 1.0 or not factor > 0.0:
        return None
    passed = tuple(n for _, nodes, _ in known for n in nodes if n.op_type in ("Mul", "Div"))
    sources = known[0][0], known[1][0], known[2][0]
    return AttentionSite(node, product, sums, steps, sources, factor, passed)


def _only_user(value: ir.Value | None) -> ir.Node | None:
    if value is None or value.is_graph_output():
        return None
    uses = list(value.uses())
    return uses[0][0] if len(uses) == 1 else None


def _chain(value: ir.Value | None) -> tuple[ir.Node, tuple[Step, ...]] | None:
    """Return the product of two values before a softmax and what lies between, in order."""
    node = value.producer() if value is not None else None
    if node is None or _only_user(value) is None:
        return None
    if is_op(node, "MatMul"):
        return node, ()
    for place in _places(node):
        before = _chain(node.inputs[place])
        if before is not None:
            return before[0], (*before[1], (node, place))
    return None


def _places(node: ir.Node) -> Sequence[int]:
    """Return which operands of a node scores can be."""
    if is_op(node, "Mul", "Div"):
        number = _number(node)
        return () if number is None else (number[1],)
    if is_op(node, "Add"):
        return (0, 1)
    if is_op(node, "Where"):
        hidden = (small(node.inputs[3 - place]) for place in (1, 2))
        low = [h is not None and h.size == 1 and h.ravel()[0] <= _LEAST_HIDDEN for h in hidden]
        return [place for place, fits in zip((1, 2), low, strict=True) if fits]
    return ()


def _number(node: ir.Node) -> tuple[float, int] | None:
    """Return the number that a node multiplies with, and which operand is multiplied."""
    for place in (0, 1) if node.op_type == "Mul" else (0,):
        array = small(node.inputs[1 - place])
        if array is not None and array.size == 1 and rank(node.outputs[0]) != 0:
            number = float(array.ravel()[0])
            if number > 0.0 and math.isfinite(number):
                return (number if node.op_type == "Mul" else 1.0 / number), place
    return None


def _source(
    value: ir.Value | None, scales: Mapping[ir.Value, Scale]
) -> tuple[ir.Value, list[ir.Node], float] | None:
    """Follow moves and products with numbers up to a value that is held as integers."""
    nodes: list[ir.Node] = []
    factor = 1.0
    while value is not None and value not in scales:
        node = value.producer()
        if node is None:
            return None
        place = 0
        if is_op(node, "Mul", "Div"):
            number = _number(node)
            if number is None:
                return None
            factor, place = factor * number[0], number[1]
        elif not is_op(node, *MOVES):
            return None
        nodes.append(node)
        value = node.inputs[place]
    return None if value is None else (value, nodes, factor)


def _scalable(unit: Unit) -> bool:
    """Whether a factor on the weights is one on the result."""
    return all(n.op_type in ("MatMul", "Gemm", "Conv", "Add", "Relu") for n in unit.nodes)


def level(
    found: Sequence[AttentionSite],
    layout: Layout,
    scales: dict[ir.Value, Scale],
    model: ir.Model,
) -> dict[ir.Value, float]:
    """Move the scales of queries, keys and values into the weights before them, in place.

    Returns:
        By value, what it was divided by.
    """
    namer, made = Namer(model), {u.result: u for u in layout.units if u.kind == "weighted"}
    before: dict[ir.Value, float] = {}
    for value in {v: None for one in found for v in one.sources}:
        scale = scales[value].scale
        before[value] = scale
        scales[value] = replace(scales[value], scale=1.0)
        for node in made[value].nodes:
            for place, operand in enumerate(node.inputs):
                if operand is None or constant(operand) is None:
                    continue
                name = namer.fresh(f"{operand.name or 'weights'}.level")
                array = (array_of(operand).astype(np.float64) / scale).astype(np.float32)
                node.replace_input_with(place, add_initializer(model.graph, name, array))
    return before


def write_attention(
    model: ir.Model, found: Sequence[AttentionSite], before: Mapping[ir.Value, float]
) -> int:
    """Rewrite attention whose operands have a scale of one, in place; returns how many.

    Given::

        p = Softmax(q @ k * c + mask); y = p @ v

    Result::

        n = q @ k + Round(mask / c); w = Round(Exp((n - max(n)) * c) * K)
        y = w @ v * Round(2**30 / sum(w)) * 2**-30
    """
    namer = Namer(model)
    for one in found:
        for node in one.passed:
            number = _number(node)
            if number is not None:
                source = node.inputs[number[1]]
                for user, place in list(node.outputs[0].uses()):
                    user.replace_input_with(place, source)
        build = ReplacementBuilder(namer, one.sums.outputs[0].name or "attention")
        query, key, value = (before[v] for v in one.sources)
        _build(one, one.factor * query * key, value, build)
        build.commit(model.graph, one.sums)
    return len(found)


def _build(
    one: AttentionSite, factor: float, value_scale: float, build: ReplacementBuilder
) -> None:
    def number(value: float, hint: str = "c") -> ir.Value:
        return build.const(np.asarray(value, np.float32), hint)

    scores = one.product.outputs[0]
    for node, place in one.steps:
        if is_op(node, "Add"):
            mask = node.inputs[1 - place]
            steps = build.op("Mul", mask, number(1.0 / factor, "steps"))
            steps = build.op("Max", steps, number(_HIDDEN, "hidden"))
            scores = build.op("Add", scores, build.op("Round", steps))
        elif is_op(node, "Where"):
            operands: list[ir.Value | None] = [node.inputs[0], number(_HIDDEN), number(_HIDDEN)]
            operands[place] = scores
            scores = build.op("Where", *operands)
        elif (known := _number(node)) is not None:
            factor *= known[0]
    shape = static_shape(one.softmax.outputs[0])
    step = np.float32(factor)
    parts = parts_of_weight(float(step), shape[-1] if shape else None)
    axes = build.const(np.array([-1]), "axes")
    largest = build.op("ReduceMax", scores, axes, keepdims=1)
    less = build.op("Mul", build.op("Sub", scores, largest), number(float(step), "step"))
    weights = build.op("Round", build.op("Mul", build.op("Exp", less), number(parts, "parts")))
    total = build.op("ReduceSum", weights, axes, keepdims=1)
    inverse = build.op("Round", build.op("Div", number(_WHOLE, "whole"), total))
    sums = build.op("MatMul", weights, one.sums.inputs[1])
    y = build.op("Mul", sums, inverse)
    build.op("Mul", y, number(value_scale / _WHOLE, "value"))


@functools.cache
def parts_of_weight(step: float, keys: int | None) -> float:
    """Return what the largest weight of a row is, so that no weight is near to halfway.

    Args:
        step: what a score of one is worth.
        keys: that a row has a weight for; None where that is not known.
    """
    most = min(_FINEST, max(_COARSEST, _MOST / (_USUAL * (keys or 512))))
    reach = math.log(2.0 * most) + 0.1
    count = int(reach / max(step, _SMALLEST)) + 1
    scores = -np.arange(count, dtype=np.float32) * np.float32(step)
    weights = np.exp(scores.astype(np.float64))
    best, chosen = -1.0, most
    for factor in np.linspace(0.75 * most, most, _TRIED, dtype=np.float32):
        steps = weights * float(factor)
        near = np.abs(steps - np.floor(steps) - 0.5) / np.maximum(steps, 0.25)
        if (away := float(near.min())) > best:
            best, chosen = away, float(factor)
    return chosen
