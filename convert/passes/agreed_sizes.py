"""Open sizes of inputs that can only be one number: an operator ties them to a fixed one."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from edgeinfer.convert.passes.infra import attr, input_at, is_op

_RECURRENT = ("LSTM", "GRU", "RNN")

Size = tuple[ir.Value, int]
"""One axis of a value."""


def agreed_sizes(model: ir.Model) -> dict[str, list[int | None]]:
    """Find the sizes without which the model does not run.

    Given: ``float[frames,batch,8] x, float[1,1,4] h; y = GRU(x, w, r, "", "", h)``
    Result: ``{"x": [None, 1, 8]}``: the state is of batch 1, so is the data

    Only operators that always run are asked.

    Returns:
        Shapes to bind by input, None for sizes that stay as declared; inputs without a find are
        left out.
    """
    known = _numbers(model.graph)
    found: dict[str, list[int | None]] = {}
    for value in model.graph.inputs:
        if value.shape is None or not any(_symbol(value, a) in known for a in _axes(value)):
            continue
        shape = [_number(value, a) for a in _axes(value)]
        found[value.name or ""] = [
            known.get(_symbol(value, a)) if size is None else size for a, size in enumerate(shape)
        ]
    return found


def _numbers(graph: ir.Graph) -> dict[str | None, int]:
    """Map names of sizes to what they must be."""
    known: dict[str | None, int] = {}
    for node in graph:
        for sizes in _ties(node):
            numbers = {n for value, axis in sizes if (n := _number(value, axis)) is not None}
            names = {s for value, axis in sizes if (s := _symbol(value, axis)) is not None}
            if len(numbers) == 1:
                for name in names:
                    known.setdefault(name, min(numbers))
    return known


def _ties(node: ir.Node) -> Iterator[list[Size]]:
    """Yield groups of sizes that are equal wherever the operator runs."""
    if is_op(node, *_RECURRENT):
        batch = 0 if attr(node, "layout", 0) else 1
        pairs = [(0, batch), (4, 0), (5, batch), (6, batch)]
        yield [(v, a) for at, a in pairs if (v := input_at(node, at)) is not None]
    elif is_op(node, "Concat"):
        parts = [v for v in node.inputs if v is not None and v.shape is not None]
        rank = len(_axes(parts[0])) if parts else 0
        joined = int(attr(node, "axis", 0)) % rank if rank else 0
        for axis in range(rank):
            if axis != joined:
                yield [(v, axis) for v in parts]


def _axes(value: ir.Value) -> range:
    return range(len(value.shape or ()))


def _number(value: ir.Value, axis: int) -> int | None:
    if value.shape is None or axis >= len(value.shape):
        return None
    size = value.shape[axis]
    return size if isinstance(size, int) else None


def _symbol(value: ir.Value, axis: int) -> str | None:
    if value.shape is None or axis >= len(value.shape):
        return None
    size = value.shape[axis]
    return size.value if isinstance(size, ir.SymbolicDim) else None
