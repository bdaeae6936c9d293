"""Which node two oracles disagree about."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx_ir as ir

from edgeinfer.backends.engines import has_onnxruntime
from edgeinfer.convert.verify.evaluate import CannotEvaluate, Evaluator
from edgeinfer.convert.verify.witness import Abstains, Numpy, OnnxRuntime, Witness
from edgeinfer.metrics import Budget, check, compare
from edgeinfer.types import Array, Feeds

_AT_MOST_BYTES = 1 << 30
"""More activations than this are not held at once just to name a node."""

_AT_MOST_SECONDS = 60.0
"""CPU time for them, where ONNX Runtime is not installed."""


def save_for_engines(model: ir.Model, folder: Path) -> Path:
    """Write a model with its weights beside it, so that no size is too large; return the path."""
    path = folder / "model.onnx"
    ir.save(model, path, external_data="weights.bin", size_threshold_bytes=1024)
    return path


def disputed_node(model: ir.Model, feeds: Feeds, budget: Budget) -> str | None:
    """Name the first node where oracle A and our evaluation differ on the same inputs.

    Each node is evaluated on what oracle A computed before it, so an error upstream does not
    blame the nodes below. Returns an empty string when every node agrees, None when nobody can
    tell.
    """
    seen = all_values(model, feeds)
    if not seen:
        return None
    evaluator = Evaluator(model, wide=True)
    for index, node in enumerate(evaluator.graph):
        expected = {str(v.name): seen[str(v.name)] for v in node.outputs if str(v.name) in seen}
        try:
            results = evaluator.run_node(index, seen)
        except CannotEvaluate:
            continue
        for name, value in expected.items():
            if isinstance(value, np.ndarray) and isinstance(results.get(name), np.ndarray):
                result = results[name].astype(value.dtype)
                if check(compare(value, result), budget):
                    return f"{node.op_type} {node.name!r}"
    return ""


def all_values(model: ir.Model, feeds: Feeds) -> dict[str, Array]:
    """Return every value of the main graph as oracle A computes it; empty if it cannot.

    That is ONNX Runtime, and where it is not installed ONNX's own operators.
    """
    exposed = model.clone()
    known = {v.name for v in exposed.graph.outputs}
    for node in exposed.graph:
        for value in node.outputs:
            if value.name and value.name not in known and value.uses():
                exposed.graph.outputs.append(value)
    total = _size(exposed)
    if total > _AT_MOST_BYTES:
        return {}
    with tempfile.TemporaryDirectory(prefix="edgeinfer-") as folder:
        try:
            engine: Witness
            if has_onnxruntime():
                engine = OnnxRuntime(save_for_engines(exposed, Path(folder)))
            else:
                engine = Numpy(exposed, wide=False, own=False, seconds=_AT_MOST_SECONDS)
            results = engine.run(feeds)
            engine.close()
        except Abstains:
            return {}
    return {**results, **feeds}


def _size(model: ir.Model) -> int:
    """Bytes of all outputs whose shapes are known."""
    total = 0
    for value in model.graph.outputs:
        if value.shape is not None and value.dtype is not None and value.shape.is_static():
            total += int(np.prod(value.shape.numpy())) * max(1, int(value.dtype.itemsize))
    return total
