"""Whole numbers of a model in Core ML's int32: what is proven, and what is asked of the caller.

An integer of 64 bits is int32 in a package. What the package's inputs may hold is enforced: by the
type itself, and by edgeinfer's backends where a narrower bound was declared. From there on every
value is proven to stay in int32, through loops too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.families import MOVES
from edgeinfer.convert.lower.coreml.ports import Port
from edgeinfer.convert.lower.coreml.tensor import EXACT, WHOLE, Span, limits
from edgeinfer.errors import UsageError
from edgeinfer.records import dataclass

_HALF = (1 << 30) - 1

CANDIDATES: tuple[Span, ...] = (
    *((-_HALF, _HALF), (-EXACT, EXACT), (0, _HALF), (0, EXACT)),
    *((-most, most) for most in (46340, 1000, 100, 9)),
)
"""What a refusal tries out, to say which bounds would do, the widest first: half of int32, what
float32 counts to, either as sizes and positions are, what has a square, what is usual, and what
has powers."""

_SUMS = frozenset({"CumSum", "ReduceSum"})

WIDTH = 4
"""Bytes of the widest integers that Core ML has."""

BOUNDS = "edgeinfer.integers"
"""Metadata key: JSON with the lowest and highest value of integer inputs, by the model's names."""

_WIDENINGS = 4
"""Before the span of what a loop carries is taken to be all of int32."""

Place = tuple[str, int]
"""A loop, by the name of its first output, and which of the values that it carries."""


class WiderError(Exception):
    """A loop's turn makes integers that it was not known to start from."""

    def __init__(self, place: Place, span: Span) -> None:
        self.place, self.span = place, span
        super().__init__(f"{place}: {span}")


@dataclass(slots=True)
class Proofs:
    """What integers lie between where no operator says it.

    Attributes:
        declared: bounds of the model's integer inputs, by name.
        others: bounds of all other integer inputs.
        only_wide: they are of those inputs whose type is wider than int32.
        carried: what each value of a loop was found to lie between.
    """

    declared: Mapping[str, Span] = field(default_factory=dict)
    others: Span = WHOLE
    only_wide: bool = False
    carried: dict[Place, Span] = field(default_factory=dict)
    _counts: dict[Place, int] = field(default_factory=dict)

    def span_of(self, port: Port) -> Span:
        """What an integer input may hold.

        Raises:
            UsageError: what was declared leaves its type, or int32.
        """
        own = limits(port.dtype)
        low, high = self.declared.get(port.source, self.others)
        if port.source not in self.declared:
            if self.only_wide and np.dtype(port.dtype).itemsize <= WIDTH:
                return own
            return max(low, own[0]), min(high, own[1])
        if not own[0] <= low <= high <= own[1]:
            raise UsageError(
                f"integers of input {port.source!r}: expected bounds between {own[0]} and {own[1]},"
                f" received {low}..{high}"
            )
        return low, high

    def widen(self, found: WiderError) -> None:
        """Record what an iteration makes, for the next attempt."""
        count = self._counts[found.place] = self._counts.get(found.place, 0) + 1
        self.carried[found.place] = found.span if count < _WIDENINGS else WHOLE


def summed(model: ir.Model) -> dict[str, np.dtype[Any]]:
    """Integer inputs that are summed over axes of open sizes, with their types, by name.

    As masks are for lengths and positions. How far such a sum goes follows from the largest size,
    so that bounds of the elements may be low although nothing strange is asked of them.
    """
    found = {}
    for node in model.graph.all_nodes():
        x = node.inputs[0] if node.op_type in _SUMS and not node.domain else None
        if x is None or (x.shape is not None and x.shape.is_static()):
            continue
        for value in (v for v in _origins(x) if v.is_graph_input()):
            if value.name and value.dtype is not None and value.dtype.is_integer():
                found[value.name] = np.dtype(value.dtype.numpy())
    return found


def _origins(value: ir.Value) -> Iterator[ir.Value]:
    """Return the values of whose elements it consists, in whatever type."""
    node = value.producer()
    if node is None or node.op_type not in MOVES | {"Cast", "Concat"}:
        yield value
        return
    for operand in node.inputs if node.op_type == "Concat" else node.inputs[:1]:
        if operand is not None:
            yield from _origins(operand)


def declared_inputs(ports: Sequence[Port], proofs: Proofs) -> dict[str, Span]:
    """The bounds by the model's input names that a run has to be held to.

    They are those that were declared, and int32's of types that hold more.

    Raises:
        UsageError: bounds were declared of what is no integer input.
    """
    found = {}
    known = {p.source for p in ports if p.kind == "int32" and p.dtype != np.bool_}
    if strange := sorted(proofs.declared.keys() - known):
        raise UsageError(f"integers: there is no integer input {strange[0]!r}")
    for port in ports:
        if port.kind != "int32" or port.dtype == np.bool_:
            continue
        wide = np.iinfo(port.dtype)
        low, high = proofs.span_of(port)
        if low > int(wide.min) or high < int(wide.max):
            found[port.source] = (low, high)
    return found


def as_text(bounds: Mapping[str, Span]) -> str:
    """Bounds by input name, as a package's metadata and a bundle's manifest hold them."""
    return json.dumps({name: list(span) for name, span in sorted(bounds.items())})
