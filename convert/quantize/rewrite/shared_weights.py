"""Weights that several nodes read: integers are stored once, each node has scales of its own.

A scale of a weight is shifted by a thousandth so that no product is rounded from halfway, and by
how much depends on the scales around the node. Integers need not follow: with scales that differ by
so little the same ones will do, as a thousandth of a weight is an eighth of a step at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.transposed_constants import twins
from edgeinfer.convert.quantize.rewrite.tie_free_scales import off_ties
from edgeinfer.convert.quantize.rewrite.weights import StoredIntegers, exact_scale, store
from edgeinfer.convert.quantize.units import Unit, array_of
from edgeinfer.records import dataclass
from edgeinfer.types import Array

SHARED = 256
"""Elements from which constants with the same bytes are stored once."""

APART = frozenset({"MatMulInteger", "ConvInteger"})
"""Operators that each have weights of their own: ONNX Runtime 1.32 changes their sign under one
name for each, and refuses a file where two read the same (``session.x64quantprecision``)."""

_APART = 3e-3
"""How far a scale may be from that by which integers were chosen; beyond, a node has its own."""


@dataclass(frozen=True, slots=True)
class Common:
    """One weight that several nodes read.

    Attributes:
        value: the one whose integers are written.
        stored: its integers, and scales before any shift.
    """

    value: ir.Value
    stored: StoredIntegers


@dataclass(frozen=True, slots=True)
class Member:
    """How one value takes part.

    Attributes:
        common: what it shares.
        transposed: it is the transpose of what is written.
    """

    common: Common
    transposed: bool

    def holds(self, values: Array) -> bool:
        """Whether these are the very integers, transposed or not."""
        mine = self.common.stored.values
        return values is mine or values.base is mine

    def scaled(self, per_step: float | None, *, exact: bool = False) -> StoredIntegers | None:
        """Return the integers with scales for one node, as that node reads them; None if too far.

        Args:
            per_step: as for ``weights.store``.
            exact: likewise.
        """
        base = self.common.stored
        single = exact_scale(base.scale) if exact else base.scale
        if per_step is not None:
            factors = off_ties(base.scale.astype(np.float64) * per_step)
            single = np.asarray(factors / per_step, np.float32).reshape(base.scale.shape)
            if np.abs(single / base.scale - 1.0).max(initial=0.0) > _APART:
                return None
        made = replace(base, scale=single)
        if not self.transposed or made.axis is None:
            return made
        return StoredIntegers(made.values.T, made.scale, 1 - made.axis)


def commons(
    units: Iterable[Unit],
    axis_of: Callable[[ir.Node], int | None],
    steps_of: Callable[[Unit], Array | None],
) -> dict[tuple[ir.Value, int | None], Member]:
    """Find weights that are read more than once, by value and axis of the channels.

    Args:
        units: that become integers.
        axis_of: the channels of a node's weights; None with one scale for all.
        steps_of: bias over the scale of the activations.
    """
    readers: dict[tuple[ir.Value, int | None], list[Unit]] = {}
    for unit in units:
        if unit.kind not in ("weighted", "table"):
            continue
        value = unit.nodes[0].inputs[0 if unit.kind == "table" else 1]
        axis = 0 if unit.kind == "table" else axis_of(unit.nodes[0])
        if value is not None:
            readers.setdefault((value, axis), []).append(unit)
    tables = {k for k, us in readers.items() if any(u.kind == "table" for u in us)}
    # What rows are taken from is what is written: a table cannot be transposed at no cost.
    order = sorted(readers, key=lambda k: k not in tables)
    transposed = twins([v for v, _ in order])
    found: dict[tuple[ir.Value, int | None], Member] = {}
    for key in order:
        value, axis = key
        twin = None if axis not in (0, 1) else (transposed.get(value), 1 - axis)
        if key in found:
            continue
        others = [twin] if twin is not None and twin in readers and twin not in found else []
        users = [u for k in (key, *others) for u in readers[k]]
        if len(users) < 2 or not np.isfinite(array_of(value)).all():
            continue
        needed = [steps_of(u) for u in users if u.kind == "weighted"]
        largest = [np.abs(s) for s in needed if s is not None]
        # Scales of a node may be smaller than those that the integers are chosen by.
        steps = np.max(largest, axis=0) * (1.0 + _APART) if largest else None
        common = Common(value, store(array_of(value), axis, bias_steps=steps))
        found[key] = Member(common, transposed=False)
        found.update({k: Member(common, transposed=True) for k in others})
    return found


def transposed_weights(nodes: Iterable[ir.Node]) -> Mapping[ir.Value, ir.Value]:
    """Return the tables and weights among nodes' operands that are each other's transposes."""
    operands = {"Gather": 0, "MatMul": 1, "Gemm": 1}
    known = [n for n in nodes if not n.domain and n.op_type in operands]
    found = [n.inputs[operands[n.op_type]] for n in known]
    return twins([v for v in found if v is not None])
