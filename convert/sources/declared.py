"""Declared shapes that are not true.

ONNX Runtime ignores a false declaration with a warning, so such models run; but every pass and
every other engine believes it. What shape inference proves wrong is replaced. What it cannot know
is tried on zeros where that is cheap.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from edgeinfer.backends.engines import has_onnxruntime, import_onnxruntime
from edgeinfer.convert import onnx_file
from edgeinfer.convert.passes.inference import infer, stand_in
from edgeinfer.convert.sources.quiet import quiet_logging
from edgeinfer.errors import Remarks
from edgeinfer.types import Array

_PROBE_BYTES = 256 << 20
"""Weights above this are not worth a trial run for a declaration."""

_PROBE_SECONDS = 3.0

_PROBE_SIZES = ((2, 32), (2, 2), (1, 1))
"""Sizes for unknown first axes and for all others; the first that runs is used."""

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
    shapes = _run_shapes(model, [value.name or "" for value in doubtful])
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


def _run_shapes(model: ir.Model, outputs: list[str]) -> list[tuple[int, ...]]:
    """Shapes of the outputs in a run; empty when a run is not cheap or no size works."""
    tensors = [
        v.const_value for v in model.graph.initializers.values() if v.const_value is not None
    ]
    if sum(t.nbytes for t in tensors) > _PROBE_BYTES:
        return []
    if not has_onnxruntime():
        return _evaluated_shapes(model, outputs)
    ort = import_onnxruntime()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    run = ort.RunOptions()
    run.log_severity_level = 4
    timer = threading.Timer(_PROBE_SECONDS, setattr, (run, "terminate", True))
    timer.start()
    try:
        with tempfile.TemporaryDirectory(prefix="edgeinfer-") as folder:
            path = Path(folder) / "model.onnx"
            onnx_file.save(model, path)
            session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        for first, other in _PROBE_SIZES:
            try:
                results = session.run(outputs, _zeros(model, first, other), run)
            except Exception:
                # ONNX Runtime has no common error class; this size does not fit the model.
                continue
            return [np.shape(r) for r in results]
    except Exception:
        # The same: a model that does not load here keeps its declarations, lowering will tell.
        return []
    finally:
        timer.cancel()
    return []


def _evaluated_shapes(model: ir.Model, outputs: list[str]) -> list[tuple[int, ...]]:
    """The same by an evaluation in NumPy."""
    from edgeinfer.convert.verify.evaluate import CannotEvaluate, Evaluator

    evaluator, left = Evaluator(model, wide=False), _PROBE_SECONDS
    for first, other in _PROBE_SIZES:
        start = time.thread_time()
        try:
            found = evaluator.run(_zeros(model, first, other), seconds=left, wanted=outputs)
        except (CannotEvaluate, ValueError):
            # The second is of sizes of -1, which some writers mean for open ones.
            left -= time.thread_time() - start
            continue
        return [np.shape(found[name]) for name in outputs]
    return []


def _zeros(model: ir.Model, first: int, other: int) -> dict[str, Array]:
    sizes: dict[str, int] = {}
    feeds = {}
    for value in model.graph.inputs:
        dims = []
        for axis, dim in enumerate(value.shape if value.shape is not None else ()):
            size = first if axis == 0 else other
            if isinstance(dim, int):
                size = dim
            elif dim.value:
                size = sizes.setdefault(dim.value, size)
            dims.append(size)
        kind = value.dtype if value.dtype is not None else ir.DataType.FLOAT
        dtype = object if kind == ir.DataType.STRING else kind.numpy()
        feeds[value.name or ""] = (
            np.full(dims, "", dtype) if dtype is object else np.zeros(dims, dtype)
        )
    return feeds
