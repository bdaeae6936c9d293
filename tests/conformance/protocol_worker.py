"""Run ONNX node cases through a backend and through its engine alone, and compare the bits.

A process of its own, for an engine may abort on an odd graph. Prints a line of JSON a case.

Usage: python -m tests.conformance.protocol_worker FIRST STEP BACKEND...
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.engines import import_onnxruntime, import_openvino
from edgeinfer.errors import BackendError
from tests.conformance.node_cases import suite

Feeds = dict[str, np.ndarray]
Engine = Callable[[Path, Feeds], list[Any]]


def plain_onnxruntime(path: Path, feeds: Feeds) -> list[Any]:
    """Run with the engine's own public call and the options that the backend sets."""
    ort = import_onnxruntime()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def plain_openvino(path: Path, feeds: Feeds) -> list[Any]:
    """Run with the engine's own public call and the options that the backend sets."""
    core = import_openvino().Core()
    config = {
        "INFERENCE_NUM_THREADS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
        "EXECUTION_MODE_HINT": "ACCURACY",
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = core.compile_model(str(path), "CPU", config)
    return list(compiled.create_infer_request().infer(feeds).values())


def plain_reference(path: Path, feeds: Feeds) -> list[Any]:
    """Run with the evaluator's own public call."""
    from onnx.reference import ReferenceEvaluator

    return list(ReferenceEvaluator(str(path)).run(None, feeds))


ENGINES: dict[str, Engine] = {
    "onnxruntime": plain_onnxruntime,
    "openvino": plain_openvino,
    "reference": plain_reference,
}


def through_backend(name: str, path: Path, feeds: Feeds) -> list[Any]:
    """Run through the protocol."""
    artifact = Artifact("onnx", path, (), ())
    executable = registry.get(name).load(artifact, LoadOptions(threads=1))
    return list(executable.run(feeds).values())


def compare(name: str, path: Path, feeds: Feeds, expected: list[Any]) -> str:
    """Return the verdict on a case.

    ``same`` bits; ``neither`` runs; ``refused: why`` by the backend only; ``more``: run by the
    backend only; ``engine``: they differ, and the plain engine is wrong; ``differs: how``.
    """
    try:
        plain = ENGINES[name](path, feeds)
    except Exception:  # the engine's own refusal, of any kind
        plain = None
    try:
        received = through_backend(name, path, feeds)
    except BackendError as error:
        return "neither" if plain is None else f"refused: {error}"
    if plain is None:
        return "more"
    faults = [f for p, r in zip(plain, received, strict=True) if (f := fault(p, r))]
    if not faults:
        return "same"
    right = all(close(e, p) for e, p in zip(expected, plain, strict=True))
    return f"differs: {faults}" if right else "engine"


def close(expected: Any, received: Any) -> bool:
    """Whether an output is what the case says."""
    expected, received = np.asarray(expected), np.asarray(received)
    if expected.shape != received.shape or expected.dtype != received.dtype:
        return False
    if expected.dtype.kind in "OUT":
        return bool((expected.astype(str) == received.astype(str)).all())
    return np.allclose(expected, received, rtol=1e-3, atol=1e-5, equal_nan=True)


def fault(expected: Any, received: np.ndarray) -> str:
    """Say in what two outputs differ."""
    expected = np.asarray(expected)
    if expected.shape != received.shape:
        return f"shape {received.shape} for {expected.shape}"
    if expected.dtype.kind in "OUT" or received.dtype.kind in "OUT":
        return "" if (expected.astype(str) == received.astype(str)).all() else "texts"
    if received.dtype.name == "bfloat16" and expected.dtype == np.float16:
        expected = expected.view(received.dtype)  # openvino shows the bits as float16
    if expected.dtype != received.dtype:
        return f"{received.dtype} for {expected.dtype}"
    same = np.array_equal(expected, received) or expected.tobytes() == received.tobytes()
    return "" if same or np.array_equal(expected, received, equal_nan=True) else "values"


def main(first: int, step: int, backends: list[str]) -> None:
    """Print two lines a case and backend: before it runs, and with the verdict."""
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    cases = sorted(suite(), key=lambda case: case.name)[first::step]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        for case in cases:
            path.write_bytes(case.model.SerializeToString())
            names = [value.name for value in case.model.graph.input]
            inputs, outputs = ([array(v) for v in side] for side in case.data_sets[0])
            feeds = dict(zip(names, inputs, strict=False))
            for name in backends:
                say(backend=name, case=case.name, verdict="crash")
                say(backend=name, case=case.name, verdict=compare(name, path, feeds, outputs))


def say(**record: str) -> None:
    """Print a line of JSON."""
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


def array(value: Any) -> Any:
    """Return a value as the evaluator wants it: an array, or a list of arrays."""
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
