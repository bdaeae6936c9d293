"""Declared shapes that are not true.

ONNX Runtime ignores a false declaration with a warning, so such models run; but every pass and
every other engine believes it. What shape inference proves wrong is replaced. What it cannot know
is tried on zeros where that is cheap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from edgeinfer.convert.passes.inference import infer, stand_in
from edgeinfer.convert.sources.quiet import quiet_logging
from edgeinfer.convert.sources.shapes_of_a_run import shapes_of_a_run
from edgeinfer.errors import Remarks

_Dims = tuple[int | None, ...]
_Key = tuple[str, str]


def check_declared_shapes(model: ir.Model, notes: Remarks) -> None:
    """Replace every declared shape that contradicts the graph, with a note for each output."""
    inferred = _infer(model)
    wrong_inside = 0
    doubtful = []
    for key, value in _declared(model):
        declared, truth = _dims(value), inferred.get(key)
        if truth is not None and _contradict(declared, truth):
            if value.is_graph_output():
                notes.add(_line(value, truth, "the graph gives"))
            else:
                wrong_inside += 1
            _correct(value, truth)
        elif value.graph is model.graph and value.is_graph_output() and _unproven(declared, truth):
            doubtful.append(value)
    if wrong_inside:
        notes.add(f"declared shapes of {wrong_inside} inner tensors contradict the graph; replaced")
    if doubtful:
        _try(model, doubtful, notes)


def _declared(model: ir.Model) -> Iterator[tuple[_Key, ir.Value]]:
    """What nodes make and whose shape is declared, with a key that a clone shares."""
    for number, graph in enumerate(model.graphs()):
        for node in graph:
            for value in node.outputs:
                if value.shape is not None:
                    yield (str(number), value.name or ""), value


def _dims(value: ir.Value) -> _Dims:
    shape = value.shape if value.shape is not None else ()
    return tuple(dim if isinstance(dim, int) else None for dim in shape)


def _infer(model: ir.Model) -> dict[_Key, _Dims]:
    """Shapes that follow from the inputs alone; empty where inference fails."""
    bare = model.clone()
    for _, value in list(_declared(bare)):
        value.shape = None
    stand_in(bare)
    with quiet_logging():
        infer(bare, strict=False)
    return {key: _dims(value) for key, value in _declared(bare)}


def _contradict(declared: _Dims, truth: Sequence[int | None]) -> bool:
    if len(declared) != len(truth):
        return True
    pairs = zip(declared, truth, strict=True)
    return any(d is not None and t is not None and d != t for d, t in pairs)


def _unproven(declared: _Dims, truth: _Dims | None) -> bool:
    """Whether a size is declared that inference could not derive."""
    if truth is None:
        return True
    return any(d is not None and t is None for d, t in zip(declared, truth, strict=True))


def _correct(value: ir.Value, truth: Sequence[int | None]) -> None:
    """Keep the axes (and their names) that may be true."""
    declared = _dims(value)
    if value.shape is None or len(declared) != len(truth):
        value.shape = ir.Shape(truth)
        return
    value.shape = ir.Shape(
        t if d is not None and t is not None and d != t else old
        for d, t, old in zip(declared, truth, value.shape, strict=True)
    )


def _line(value: ir.Value, truth: Sequence[int | None], how: str) -> str:
    stated = ", ".join(
        str(d) if isinstance(d, int) else str(d.value or "?") for d in value.shape or ()
    )
    found = ", ".join("?" if d is None else str(d) for d in truth)
    return f"output {value.name!r} is declared as [{stated}], {how} [{found}]; replaced"


def _try(model: ir.Model, doubtful: list[ir.Value], notes: Remarks) -> None:
    """Run the model once on zeros; sizes that a run contradicts are unknown from then on."""
    shapes = shapes_of_a_run(model, [value.name or "" for value in doubtful])
    for value, actual in zip(doubtful, shapes, strict=False):
        declared = _dims(value)
        if not _contradict(declared, actual):
            continue
        notes.add(_line(value, actual, "a trial run gives"))
        if len(declared) != len(actual):
            value.shape = ir.Shape([None] * len(actual)) if _ranks_are_fixed(model) else None
        elif value.shape is not None:
            value.shape = ir.Shape(
                None if d is not None and d != a else old
                for d, a, old in zip(declared, actual, value.shape, strict=True)
            )


def _ranks_are_fixed(model: ir.Model) -> bool:
    """Whether no rank can follow from sizes or data, as far as can be known."""
    # An integer input may be the axes of a Squeeze.
    if any(v.dtype is not None and v.dtype.is_integer() for v in model.graph.inputs):
        return False
    return not any(
        node.op_type == "If"
        or (node.op_type == "Squeeze" and len(node.inputs) < 2 and "axes" not in node.attributes)
        for graph in model.graphs()
        for node in graph
    )
