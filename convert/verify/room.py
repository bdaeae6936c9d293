"""The memory that a model's own values take, before any of them is computed."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir

from edgeinfer.convert.passes.inference import infer, without_weights
from edgeinfer.errors import SourceError
from edgeinfer.machine.cgroup import read_limits
from edgeinfer.machine.facts import free_mb

_WIDE = 8
"""Bytes of an element: floats are computed in 64 bits."""

_SHARE = 2
"""An operator's own memory is as much again as what it takes and gives."""


def check_room(model: ir.Model, root: Path = Path("/")) -> None:
    """Refuse a model whose values cannot be held at once by whoever computes them one by one.

    Open sizes of inputs count as one, so what is refused would fail with any of them, and so do
    sizes that are not known even then.

    Args:
        model: whose shapes were inferred.
        root: Root of the file system that tells what memory is free.

    Raises:
        SourceError: names the largest value.
    """
    free = free_mb(root, read_limits(root))
    if free is None:
        return
    least = _least_shapes(model)

    def shape_of(value: ir.Value) -> list[int | ir.SymbolicDim]:
        return list(least.get(value.name or "", value.shape) or ())

    needed, largest = _peak(
        model.graph,
        lambda v: _WIDE * math.prod(d if isinstance(d, int) else 1 for d in shape_of(v)),
    )
    if largest is not None and _SHARE * needed > free << 20:
        sizes = shape_of(largest)
        raise SourceError(
            f"to check it, value {largest.name!r} {sizes} and what is needed next to it "
            f"take {_SHARE * needed / 1e9:.1f} GB, and {free / 1e3:.1f} GB are free; give smaller "
            "inputs (--input-shape), or convert it on a machine with more memory"
        )


def _least_shapes(model: ir.Model) -> dict[str, ir.Shape]:
    """Return the shapes of a graph's values with every open size of its inputs one, by name."""
    if all(isinstance(d, int) for value in model.graph.inputs for d in value.shape or ()):
        return {}
    small = without_weights(model)
    for value in small.graph.inputs:
        if value.shape is not None:
            value.shape = ir.Shape([d if isinstance(d, int) else 1 for d in value.shape])
    values = [value for node in small.graph for value in node.outputs]
    for value in values:
        if value.shape is not None:
            value.shape = ir.Shape([d if isinstance(d, int) else None for d in value.shape])
    try:
        infer(small, strict=False)
    # onnx raises RuntimeError subclasses of its own; a model may not take sizes of one.
    except Exception:
        return {}
    return {v.name: v.shape for v in values if v.name and v.shape is not None}


def _peak(graph: ir.Graph, bytes_of: Callable[[ir.Value], int]) -> tuple[int, ir.Value | None]:
    """Return the most bytes that are held at once, and the largest value of the node there."""
    last = {value: node for node in graph for value in node.inputs if value is not None}
    kept = {value for value in graph.outputs if value is not None}
    held: dict[ir.Value, int] = {value: bytes_of(value) for value in graph.inputs}
    total, most, largest = sum(held.values()), 0, None
    for node in graph:
        given = {value for value in node.inputs if value is not None}
        new = {value: bytes_of(value) for value in node.outputs if value not in held}
        held |= new
        total += sum(new.values())
        # Weights are widened while an operator takes them.
        beside = sum(bytes_of(value) for value in given if value not in held)
        if total + beside > most:
            most = total + beside
            largest = max((*node.outputs, *given), key=bytes_of, default=None)
        for value in given:
            if last[value] is node and value not in kept:
                total -= held.pop(value, 0)
    return most, largest
