"""Which shapes outputs have in a run on zeros, in a process with bounds of memory and time.

A graph of a few bytes may make values of any size, and one node may have no end.
"""

from __future__ import annotations

import math
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.backends.engines import has_onnxruntime, import_onnxruntime
from edgeinfer.backends.process import child, isolation
from edgeinfer.backends.process.trial import limit_memory
from edgeinfer.convert import onnx_file
from edgeinfer.errors import NotAvailableError
from edgeinfer.types import Array

_PROBE_BYTES = 256 << 20
"""Weights above this are not worth a trial run for a declaration."""

_SECONDS = 3
"""Of processor time for all runs."""

_PATIENCE_S = 60.0
"""Until the process is given up, however busy the machine is."""

_TIMES, _SPARE = 6, 128 << 20
"""Bytes that a run may take for each byte of the model, and besides."""

_SIZES = ((2, 32), (2, 2), (1, 1))
"""Sizes for unknown first axes and for all others; the first that runs is used."""

_MODULE = "edgeinfer.convert.sources.shapes_of_a_run"

_Shapes = list[tuple[int, ...]]


def shapes_of_a_run(model: ir.Model, outputs: list[str]) -> _Shapes:
    """Return the shapes of outputs; none when a run is not cheap or no size works."""
    tensors = [
        v.const_value for v in model.graph.initializers.values() if v.const_value is not None
    ]
    if sum(t.nbytes for t in tensors) > _PROBE_BYTES:
        return []
    with tempfile.TemporaryDirectory(prefix="edgeinfer-") as folder:
        path = Path(folder) / "model.onnx"
        try:
            onnx_file.save(model, path)
        # A model that cannot be written keeps its declarations, lowering will tell.
        except Exception:
            return []
        if isolation.is_expendable():
            # It may start no other, and is ended by whoever waits for it.
            with _less_memory(path):
                return _run(path, outputs)
        return _apart(path, outputs) if isolation.apart() else _run(path, outputs)


def _apart(path: Path, outputs: list[str]) -> _Shapes:
    try:
        process = child.Child(_MODULE, keep_errors=True)
    except NotAvailableError:
        return []
    try:
        process.send((str(path), outputs))
        found: _Shapes = process.receive(_PATIENCE_S, form=_Shapes)
    except (TimeoutError, child.ChildEndedError):
        return []
    finally:
        process.kill()
    return found


def _answer() -> None:
    connection, _ = child.connect()
    path, outputs = child.read(connection)
    if has_onnxruntime():
        import_onnxruntime()
    _limit_time()
    with _less_memory(Path(path)):
        found = _run(Path(path), outputs)
    child.answer(connection, found)


@contextmanager
def _less_memory(path: Path) -> Iterator[None]:
    """Let a run take so much more than is taken already."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    limit_memory(_TIMES * path.stat().st_size + _SPARE)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _limit_time() -> None:
    import resource

    used, most = math.ceil(time.process_time()), resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (used + _SECONDS, most))


def _run(path: Path, outputs: list[str]) -> _Shapes:
    model = ir.load(path)
    if not has_onnxruntime():
        try:
            return _evaluated(model, outputs)
        except MemoryError:
            return []
    ort = import_onnxruntime()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    run = ort.RunOptions()
    run.log_severity_level = 4
    try:
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    # ONNX Runtime has no common error class.
    except Exception:
        return []
    # A loop may have no end; in this process nothing else ends it.
    timer = threading.Timer(_SECONDS, setattr, (run, "terminate", True))
    timer.start()
    try:
        return _tried(session, model, outputs, run)
    finally:
        timer.cancel()


def _tried(session: Any, model: ir.Model, outputs: list[str], run: Any) -> _Shapes:
    for first, other in _SIZES:
        try:
            results = session.run(outputs, _zeros(model, first, other), run)
        # The same: this size does not fit the model.
        except Exception:
            continue
        return [np.shape(r) for r in results]
    return []


def _evaluated(model: ir.Model, outputs: list[str]) -> _Shapes:
    """Find the same by an evaluation in NumPy."""
    from edgeinfer.convert.verify.evaluate import CannotEvaluate, Evaluator

    evaluator, left = Evaluator(model, wide=False), float(_SECONDS)
    for first, other in _SIZES:
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


if __name__ == "__main__":
    _answer()
