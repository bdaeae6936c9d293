"""Another layout of inputs and outputs, by choice: channels last or first.

A bundle has one signature, so the model itself changes: every target, every oracle and the record
of preprocessing then agree on it. A transpose stands between the new input and the graph; formats
that want channels last cancel it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from edgeinfer.errors import UsageError

Perm = tuple[int, ...]

_SPATIAL = "DHW"


def move_channels(model: ir.Model, last: Sequence[str], first: Sequence[str]) -> dict[str, Perm]:
    """Change the layout of inputs and outputs, in place.

    Args:
        model: as read.
        last: names of those that have channels on axis 1 and are to have them on the last axis.
        first: names of those that have them last and are to have them on axis 1.

    Returns:
        By name, the order that turns the new layout into the old one.

    Raises:
        UsageError: a name is unknown or was given for both, or has no such axes.
    """
    graph = model.graph
    inputs = {v.name: v for v in graph.inputs if not v.is_initializer()}
    outputs = {v.name: v for v in graph.outputs}
    moved: dict[str, Perm] = {}
    for names, option in ((last, "channels last"), (first, "channels first")):
        for name in dict.fromkeys(names):
            value = inputs.get(name) or outputs.get(name)
            if value is None:
                known = ", ".join(repr(n) for n in (*inputs, *outputs))
                raise UsageError(f"{option}: no input or output {name!r}; there are {known}")
            if name in moved:
                raise UsageError(f"{name!r}: channels cannot be both last and first")
            rank = None if value.shape is None else len(value.shape)
            if rank is None or rank < 3:
                raise UsageError(f"{option}: {name!r} has no axes but batch and channels")
            to_first = (0, rank - 1, *range(1, rank - 1))
            to_last = (0, *range(2, rank), 1)
            back, there = (to_first, to_last) if names is last else (to_last, to_first)
            if name in inputs:
                _new_input(graph, value, back, there)
            else:
                _new_output(graph, value, there)
            moved[name] = back
    return moved


def letters(rank: int, last: bool) -> str | None:
    """The name of a layout, e.g. ``NHWC``; None above three spatial axes."""
    spatial = _SPATIAL[5 - rank :] if 3 <= rank <= 5 else ""
    if not spatial:
        return None
    return f"N{spatial}C" if last else f"NC{spatial}"


def _new_input(graph: ir.Graph, old: ir.Value, back: Perm, there: Perm) -> None:
    name = old.name or ""
    old.name = _free(graph, f"{name}/inner")
    new = ir.Value(name=name, type=old.type, shape=_permuted(old, there))
    node = ir.node("Transpose", [new], {"perm": list(back)}, name=_free(graph, f"{name}/layout"))
    made = node.outputs[0]
    made.name, made.type, made.shape = old.name, old.type, old.shape
    old.replace_all_uses_with(made, replace_graph_outputs=True)
    graph.inputs[list(graph.inputs).index(old)] = new
    first = next(iter(graph), None)
    if first is None:
        graph.append(node)
    else:
        graph.insert_before(first, node)


def _new_output(graph: ir.Graph, old: ir.Value, there: Perm) -> None:
    name = old.name or ""
    place = list(graph.outputs).index(old)
    if not old.is_graph_input():
        old.name = _free(graph, f"{name}/inner")
    node = ir.node("Transpose", [old], {"perm": list(there)}, name=_free(graph, f"{name}/layout"))
    new = node.outputs[0]
    new.name, new.type, new.shape = name, old.type, _permuted(old, there)
    graph.append(node)
    graph.outputs[place] = new


def _permuted(value: ir.Value, perm: Perm) -> ir.Shape | None:
    return None if value.shape is None else ir.Shape([value.shape[p] for p in perm])


def _free(graph: ir.Graph, base: str) -> str:
    taken = set(_names(graph))
    name, count = base, 1
    while name in taken:
        count += 1
        name = f"{base}_{count}"
    return name


def _names(graph: ir.Graph) -> Iterable[str | None]:
    yield from (v.name for v in (*graph.inputs, *graph.initializers.values()))
    for node in graph.all_nodes():
        yield node.name
        yield from (v.name for v in node.outputs)
