"""Run ONNX node cases through source, passes, a lowering and its engine.

A child process of its own: engines end the process on some files. Appends a JSON line to a file
when a case starts and one with its outcome, and leaves out the cases that have one. A case is tried
as it is; where that is refused, once more with the inputs that are parameters (a shape, axes,
weights) as initializers.

For TVM ``EDGEINFER_NODES_MACHINE`` names another instruction set than x86-64-v3, such as ``sm_90``.
An error of a GPU ends the process, since nothing can be said of what comes after it.
``EDGEINFER_NODES_EMULATED=1`` has the CPU stand in for the GPU.

Usage: lowered_worker.py TARGET SOURCE FIRST STEP FILE [OPERATOR ...]
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from tests.conformance.node_cases import (
    SOURCES,
    Case,
    differences,
    freeze,
    given_names,
    line_of,
    operators,
    parameters,
    plain,
)

AGAIN = 75
"""Exit status that asks for the next case in another process."""

Run = Callable[[dict[str, Any]], Mapping[str, Any]]


def outcome(target: str, case: Case) -> str:
    """Return ``right``, or ``refused``, ``wrong``, ``error``, ``unrunnable`` and what was said."""
    _, model, data_sets, rtol, atol = case
    first = _try(target, model, data_sets, rtol, atol)
    named = parameters(model)
    # Several data sets of a case share one model, so one that is frozen has one set.
    if not first.startswith("refused") or not named or len(data_sets) > 1:
        return first
    inputs, outputs = data_sets[0]
    feeds = {n: plain(v) for n, v in zip(given_names(model), inputs, strict=False)}
    fixed = {n: v for n, v in feeds.items() if n in named and v is not None}
    if any(isinstance(v, list) for v in fixed.values()):
        return first
    rest = [v for n, v in feeds.items() if n not in fixed]
    return _try(target, freeze(model, fixed), [(rest, outputs)], rtol, atol)


def _try(target: str, model: onnx.ModelProto, data_sets: Any, rtol: float, atol: float) -> str:
    from edgeinfer.errors import EdgeInferError, UnsupportedError

    with tempfile.TemporaryDirectory() as folder:
        try:
            runs = list(_READY[target](model, data_sets, Path(folder)))
        except UnsupportedError as e:
            return f"refused: {e.problems[0].reason}: {line_of(e.problems[0])}"
        except EdgeInferError as e:
            return f"refused: {type(e).__name__}: {line_of(e)}"
        except Exception as e:
            return f"error: {type(e).__name__}: {line_of(e)}"
        for inputs, outputs in data_sets:
            named = zip(given_names(model), inputs, strict=False)
            feeds = {n: np.asarray(plain(v)) for n, v in named if v is not None}
            for run in runs:
                try:
                    got = run(feeds)
                except Exception as e:
                    if "for which the package was proven to be right" in str(e):
                        # What a package cannot hold is refused where it is given.
                        return f"refused: at the input: {line_of(e)}"
                    return f"unrunnable: {line_of(e)}"
                found = list(differences(model, outputs, got, rtol, atol))
                if found:
                    return f"wrong: {found[0]}"
    return "right"


def _tflite(model: onnx.ModelProto, data_sets: Any, folder: Path) -> Iterator[Run]:
    """With XNNPACK and without."""
    from edgeinfer.convert.lower.target import LowerOptions
    from edgeinfer.convert.lower.tflite.target import TfliteTarget
    from edgeinfer.convert.passes import normalise
    from edgeinfer.convert.sources import read
    from tests.convert.lower.tflite.run import profile, run_here

    normal = normalise(read(model).model).model
    made = TfliteTarget().lower(normal, profile(), LowerOptions(), folder)
    content = made.files[0].read_bytes()
    for xnnpack in (True, False):
        yield partial(run_here, content, xnnpack=xnnpack, threads=1)


def _coreml(model: onnx.ModelProto, data_sets: Any, folder: Path) -> Iterator[Run]:
    """Where a refusal asks for bounds of integers, they are those of the case's own data."""
    from edgeinfer.errors import UnsupportedError

    try:
        ready = coreml_package(model, folder, {})
    except UnsupportedError as e:
        if "declare what integer inputs hold" not in str(e):
            raise
        ready = coreml_package(model, folder, _bounds(model, data_sets))
    yield ready.run


def _bounds(model: onnx.ModelProto, data_sets: Any) -> dict[str, tuple[int, int]]:
    bounds: dict[str, tuple[int, int]] = {}
    for inputs, _ in data_sets:
        for value, given in zip(model.graph.input, inputs, strict=False):
            array = np.asarray(plain(given))
            if array.dtype.kind in "iu" and array.size:
                low, high = bounds.get(value.name, (int(array.min()), int(array.max())))
                bounds[value.name] = (min(low, int(array.min())), max(high, int(array.max())))
    return bounds


def coreml_package(
    model: onnx.ModelProto, folder: Path, integers: dict[str, tuple[int, int]]
) -> Any:
    """Lower for the newest system and open the package in the evaluator."""
    from edgeinfer.backends.coreml_reference.backend import CoreMLReferenceBackend
    from edgeinfer.convert.lower.coreml.deployment import deployment
    from edgeinfer.convert.lower.coreml.options import CoreMLOptions
    from edgeinfer.convert.lower.coreml.target import CoreMLTarget

    newest = CoreMLOptions(deployment=deployment("iOS18"), integers=integers)
    return _opened(CoreMLTarget(newest), "ios", CoreMLReferenceBackend(), model, folder)


def _coreai(model: onnx.ModelProto, data_sets: Any, folder: Path) -> Iterator[Run]:
    from edgeinfer.backends.coreai.backend import CoreAIBackend
    from edgeinfer.convert.lower.coreai.target import CoreAITarget
    from edgeinfer.errors import LoadError

    try:
        yield _opened(CoreAITarget(), "macos27", CoreAIBackend(), model, folder).run
    except LoadError as e:
        raise RuntimeError(str(e)) from e


def _opened(target: Any, profile: str, backend: Any, model: onnx.ModelProto, folder: Path) -> Any:
    from edgeinfer import profiles
    from edgeinfer.backends.base import Artifact, LoadOptions
    from edgeinfer.convert.lower.target import LowerOptions
    from edgeinfer.convert.passes import input_specs, normalise, output_specs

    source = ir.from_proto(model)
    normal = normalise(ir.from_proto(model)).model
    made = target.lower(normal, profiles.load(profile), LowerOptions(), folder)
    artifact = Artifact(made.format, made.files[0], input_specs(source), output_specs(source))
    return backend.load(artifact, LoadOptions())


def _tvm(model: onnx.ModelProto, data_sets: Any, folder: Path) -> Iterator[Run]:
    from tests.convert.lower.tvm.run import MACHINE, load

    machine = os.environ.get("EDGEINFER_NODES_MACHINE", MACHINE)
    yield load(model, folder, threads=1, machine=machine).run


_READY = {"tflite": _tflite, "coreml": _coreml, "coreai": _coreai, "tvm": _tvm}
"""What runs a lowered case; several ways to run it where an engine has several."""


def main(
    target: str, source: str, first: int, step: int, file: Path, wanted: Sequence[str]
) -> None:
    """Run every ``step``-th case from ``first`` that has no outcome, of the wanted operators."""
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    if os.environ.get("EDGEINFER_NODES_EMULATED"):
        from tests import cuda_emulator

        cuda_emulator.start()
    # LiteRT writes to stdout now and then.
    os.dup2(2, 1)
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    done = {line["name"] for line in lines if "ours" in line}
    cases = [c for c in SOURCES[source]() if not wanted or operators(c) & set(wanted)]
    with file.open("a", encoding="utf-8") as answers:
        for case in cases[first::step]:
            if case[0] in done:
                continue
            print(json.dumps({"name": case[0]}), file=answers, flush=True)
            found = outcome(target, case)
            print(json.dumps({"name": case[0], "ours": found}), file=answers, flush=True)
            if "CUDA" in found and found.startswith(("error", "unrunnable")):
                os._exit(AGAIN)


if __name__ == "__main__":
    _target, _source, _first, _step, _file, *_operators = sys.argv[1:]
    main(_target, _source, int(_first), int(_step), Path(_file), _operators)
