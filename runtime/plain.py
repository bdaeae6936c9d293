"""The engines as one would call them without edgeinfer, to compare with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edgeinfer.backends.engines import import_onnxruntime, import_openvino
from edgeinfer.backends.openvino import floats
from edgeinfer.errors import LoadError, UsageError
from edgeinfer.machine.cgroup import available_cpus
from edgeinfer.types import Array

Call = Callable[[], object]

PRECISION = "INFERENCE_PRECISION_HINT"
PRECISIONS = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
"""What OpenVINO calls the precisions it computes in."""


def plain_call(
    engine: str,
    path: Path,
    inputs: Sequence[Array],
    threads: int | None,
    *,
    defaults: bool = False,
    computed_in: str = "",
) -> tuple[Call, str]:
    """Open a file with an engine and return a call that runs it once.

    With the engine's own defaults there also comes what it does by itself that edgeinfer does not:
    the two are no like for like then.

    Args:
        engine: a name in ``ENGINES``.
        path: Path of the model.
        inputs: in the model's order.
        threads: Threads of the engine; None is its own default.
        defaults: leave everything to the engine; else it computes in the precision that edgeinfer
            computes in, and its threads do not spin between runs.
        computed_in: floats that edgeinfer tells the engine to compute the file in.

    Raises:
        LoadError: the engine refuses it.
        UsageError: the engine has no plain form here.
    """
    if engine not in ENGINES:
        raise UsageError(f"no plain call of {engine!r}; known: {', '.join(ENGINES)}")
    try:
        return ENGINES[engine](path, inputs, threads, None if defaults else computed_in)
    # Each engine raises its own classes, which cannot be named without importing it.
    except Exception as e:
        raise LoadError(f"plain {engine}: {' '.join(str(e).split())}") from e


def _onnxruntime(
    path: Path, inputs: Sequence[Array], threads: int | None, computed_in: str | None
) -> tuple[Call, str]:
    onnxruntime = import_onnxruntime()

    defaults = computed_in is None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if threads is not None:
        options.intra_op_num_threads = threads
    if not defaults:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    feeds = {i.name: array for i, array in zip(session.get_inputs(), inputs, strict=True)}
    # One thread is the caller's own, and does not wait for work.
    alone = (threads or available_cpus()) == 1
    spins = defaults and not alone
    return lambda: session.run(None, feeds), "threads spin between runs" if spins else ""


def _openvino(
    path: Path, inputs: Sequence[Array], threads: int | None, computed_in: str | None
) -> tuple[Call, str]:
    openvino = import_openvino()

    options: dict[str, Any] = {} if threads is None else {"INFERENCE_NUM_THREADS": threads}
    core = openvino.Core()
    read = core.read_model(str(path))
    if computed_in is not None:
        asked = floats.config_of(core, floats.wanted(read, computed_in), "CPU")
        options |= asked or {PRECISION: "f32"}
    model = core.compile_model(read, "CPU", options)
    request = model.create_infer_request()
    feeds = dict(enumerate(inputs))
    # On CPUs with AMX it takes less precision than the model has, unasked.
    name = model.get_property(PRECISION).get_type_name()
    says = f"computes in {PRECISIONS.get(name, name)}" if computed_in is None else ""
    return lambda: request.infer(feeds), says


ENGINES = {"onnxruntime": _onnxruntime, "openvino": _openvino}
