"""The memory that a model's own values take, before any of them is computed."""

from __future__ import annotations

import math
from pathlib import Path

import onnx_ir as ir

from edgeinfer.errors import SourceError
from edgeinfer.machine.cgroup import read_limits
from edgeinfer.machine.facts import free_mb

_WIDE = 8
"""Bytes of an element: floats are computed in 64 bits."""

_SHARE = 2
"""An operator's own memory is as much again as what it takes and gives."""


def check_room(model: ir.Model, root: Path = Path("/")) -> None:
    """Refuse a model whose values cannot be held at once by whoever computes them one by one.

    Sizes that are not known count as one, so what is refused would fail with any of them.

    Args:
        model: whose shapes were inferred.
        root: of the file system that tells what memory is free.

    Raises:
        SourceError: names the largest value.
    """
    free = free_mb(root, read_limits(root))
    if free is None:
        return
    needed, largest = _peak(model.graph)
    if largest is not None and _SHARE * needed > free << 20:
        sizes = list(largest.shape or ())
        raise SourceError(
            f"to check it, value {largest.name!r} {sizes} and what is needed beside it "
            f"take {_SHARE * needed / 1e9:.1f} GB, and {free / 1e3:.1f} GB are free; give smaller "
            "inputs (--input-shape), or convert it on a machine with more memory"
        )


def _peak(graph: ir.Graph) -> tuple[int, ir.Value | None]:
    """Return the most bytes that are held at once, and the largest value of the node there."""
    last = {value: node for node in graph for value in node.inputs if value is not None}
    kept = {value for value in graph.outputs if value is not None}
    held: dict[ir.Value, int] = {value: _bytes(value) for value in graph.inputs}
    total, most, largest = sum(held.values()), 0, None
    for node in graph:
        given = {value for value in node.inputs if value is not None}
        new = {value: _bytes(value) for value in node.outputs if value not in held}
        held |= new
        total += sum(new.values())
        # Weights are widened while an operator takes them.
        beside = sum(_bytes(value) for value in given if value not in held)
        if total + beside > most:
            most = total + beside
            largest = max((*node.outputs, *given), key=_bytes, default=None)
        for value in given:
            if last[value] is node and value not in kept:
                total -= held.pop(value, 0)
    return most, largest


def _bytes(value: ir.Value) -> int:
    if value.shape is None:
        return 0
    return _WIDE * math.prod(size if isinstance(size, int) else 1 for size in value.shape)
