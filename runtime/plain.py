"""The engines as one would call them without edgeinfer, to compare with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from edgeinfer.backends.checks import available_cpus
from edgeinfer.backends.engines import import_onnxruntime, import_openvino
from edgeinfer.errors import LoadError, UsageError
from edgeinfer.types import Array

Call = Callable[[], object]

PRECISIONS = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
"""What OpenVINO calls the precisions it computes in."""


def plain_call(
    engine: str, path: Path, inputs: Sequence[Array], threads: int | None
) -> tuple[Call, str]:
    """Open a file with an engine's defaults and return a call that runs it once.

    With it comes what the engine does by itself that ours does not: the two are no like for like.

    Args:
        engine: a name in ``ENGINES``.
        path: of the model.
        inputs: in the model's order.
        threads: of the engine; None is its own default.

    Raises:
        LoadError: the engine refuses it.
        UsageError: the engine has no plain form here.
    """
    if engine not in ENGINES:
        raise UsageError(f"no plain call of {engine!r}; known: {', '.join(ENGINES)}")
    try:
        return ENGINES[engine](path, inputs, threads)
    # Each engine raises its own classes, which cannot be named without importing it.
    except Exception as e:
        raise LoadError(f"plain {engine}: {' '.join(str(e).split())}") from e


def _onnxruntime(path: Path, inputs: Sequence[Array], threads: int | None) -> tuple[Call, str]:
    onnxruntime = import_onnxruntime()

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if threads is not None:
        options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    feeds = {i.name: array for i, array in zip(session.get_inputs(), inputs, strict=True)}
    # One thread is the caller's own, and does not wait for work.
    alone = (threads or available_cpus()) == 1
    return lambda: session.run(None, feeds), "" if alone else "threads spin between runs"


def _openvino(path: Path, inputs: Sequence[Array], threads: int | None) -> tuple[Call, str]:
    openvino = import_openvino()

    options = {} if threads is None else {"INFERENCE_NUM_THREADS": threads}
    model = openvino.Core().compile_model(str(path), "CPU", options)
    request = model.create_infer_request()
    feeds = dict(enumerate(inputs))
    # On CPUs with AMX it takes less precision than the model has, unasked.
    name = model.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    return lambda: request.infer(feeds), f"computes in {PRECISIONS.get(name, name)}"


ENGINES = {"onnxruntime": _onnxruntime, "openvino": _openvino}
