"""Choose scales with which every engine rounds to the same integers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.constants import evaluate_node
from edgeinfer.convert.quantize.calibrate.ranges import Scale
from edgeinfer.convert.quantize.rewrite.tie_free_scales import (
    curve_off_ties,
    exact_multiples,
    sum_off_ties,
)
from edgeinfer.convert.quantize.units import Layout
from edgeinfer.types import Array

_CURVES = frozenset({
    *("Celu", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish"),
    *("Selu", "Sigmoid", "Softplus", "Softsign", "Swish", "Tanh"),
})  # fmt: skip
"""Functions of one number: of an integer of 8 bits they have 256 values."""


def settle(
    layout: Layout, scales: dict[ir.Value, Scale], model: ir.Model, *, symmetric: bool = False
) -> None:
    """Move scales of 8-bit integers a little, in place.

    Where zero is inside of the range, multiples of the scale become exact. (A value of one sign,
    which may be a constant, keeps its end and needs no shift, nor do symmetric integers.) No sum of
    two integers and no function of one of them is rounded from near to halfway. That no product is,
    is the part of the weights' scales.
    """
    groups = {v: tuple(g) for g in layout.members().values() for v in g}
    for value, scale in scales.items():
        if not symmetric and scale.zero not in scale.ends:
            scales[value] = replace(
                scale, scale=exact_multiples(scale.scale, scale.zero - scale.ends[0])
            )
    # A clip is left out by engines where the integers end just where it does.
    fixed = {groups[v] for v in groups if (n := v.producer()) is not None and n.op_type == "Clip"}
    _part_sums(layout, scales, groups, fixed)
    _part_curves(layout, scales, groups, fixed, model)


def _move(scales: dict[ir.Value, Scale], group: Iterable[ir.Value], scale: float) -> None:
    for value in group:
        scales[value] = replace(scales[value], scale=float(np.float32(scale)))


def _part_sums(
    layout: Layout,
    scales: dict[ir.Value, Scale],
    groups: dict[ir.Value, tuple[ir.Value, ...]],
    fixed: set[tuple[ir.Value, ...]],
) -> None:
    """Let scales grow a little, so that no sum of two integers is rounded from halfway."""
    for unit in layout.units:
        if unit.op != "Add" or unit.kind != "light" or len(unit.reads) != 2:
            continue
        values = (*unit.reads, unit.result)
        if any(v not in scales for v in values) or len({groups[v] for v in values}) < 3:
            continue
        first, other, result = values
        if groups[other] in fixed:
            first, other = other, first
        moved = groups[other], groups[result]
        if not fixed & {*moved}:
            found = sum_off_ties(*(scales[v].scale for v in (first, other, result)))
            for group, scale in zip(moved, found or (), strict=False):
                _move(scales, group, scale)
        fixed |= {groups[v] for v in values}


def _part_curves(
    layout: Layout,
    scales: dict[ir.Value, Scale],
    groups: dict[ir.Value, tuple[ir.Value, ...]],
    fixed: set[tuple[ir.Value, ...]],
    model: ir.Model,
) -> None:
    """Let scales of functions of an integer grow a little, in the graph's order."""
    made = {unit.result for unit in layout.units if unit.kind != "recurrent"}
    for node in model.graph:
        if node.domain or node.op_type not in _CURVES or len(node.outputs) != 1:
            continue
        x, result = node.inputs[0], node.outputs[0]
        if x not in made or x not in scales or result not in scales or groups[result] in fixed:
            continue
        if groups[result] == groups[x] or any(v is not None for v in node.inputs[1:]):
            continue
        values = _values(node, scales[x], model)
        if values is not None:
            own = scales[result]
            shift = own.zero - own.ends[0]
            _move(scales, groups[result], curve_off_ties(values, own.scale, shift))
        fixed |= {groups[x], groups[result]}


def _values(node: ir.Node, scale: Scale, model: ir.Model) -> Array | None:
    """Return a function of each integer there is."""
    low, high = scale.ends
    steps = np.arange(low, high + 1) - scale.zero
    given = (steps * np.float64(scale.scale)).astype(np.float32)
    found = evaluate_node(node, dict(model.opset_imports), [given])
    return None if found is None else found[0]
