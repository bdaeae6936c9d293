"""Run ONNX node cases through source, passes, Core AI lowering and Apple's runtime on the CPU.

Each case runs in a fork of this process, which the runtime may end. Appends one JSON line for each
case to a file, and leaves out the cases that the file has already. A case is tried as it is; where
that is refused, once more with the inputs that are parameters as initializers.

Usage: coreai_worker.py suite|golden FIRST STEP FILE
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from tests.conformance.node_worker import Case, golden, plain, suite
from tests.conformance.tflite_worker import _differences, freeze, parameters


def outcome(case: Case) -> str:
    """Return ``right``, ``refused: REASON: ...``, ``wrong: ...`` or ``unrunnable: ...``."""
    _, model, data_sets, rtol, atol = case
    first = _try(model, data_sets, rtol, atol)
    named = parameters(model)
    if not first.startswith("refused") or not named or len(data_sets) > 1:
        return first
    names = [i.name for i in model.graph.input]
    inputs, outputs = data_sets[0]
    feeds = {n: plain(v) for n, v in zip(names, inputs, strict=False)}
    fixed = {n: v for n, v in feeds.items() if n in named and v is not None}
    if any(isinstance(v, list) for v in fixed.values()):
        return first
    rest = [v for n, v in feeds.items() if n not in fixed]
    return _try(freeze(model, fixed), [(rest, outputs)], rtol, atol)


def _try(model: onnx.ModelProto, data_sets: Any, rtol: float, atol: float) -> str:
    from edgeinfer.errors import EdgeInferError, UnsupportedError

    with tempfile.TemporaryDirectory() as folder:
        try:
            ready = _lowered(model, Path(folder))
        except UnsupportedError as e:
            return f"refused: {e.problems[0].reason}: {_line(e.problems[0])}"
        except EdgeInferError as e:
            return f"refused: {type(e).__name__}: {_line(e)}"
        except Exception as e:
            return f"error: {type(e).__name__}: {_line(e)}"
        for inputs, outputs in data_sets:
            names = [i.name for i in model.graph.input]
            feeds = {n: plain(v) for n, v in zip(names, inputs, strict=False)}
            try:
                got = ready.run({k: np.asarray(v) for k, v in feeds.items() if v is not None})
            except Exception as e:
                return f"unrunnable: {_line(e)}"
            found = list(_differences(model, outputs, got, rtol, atol))
            if found:
                return f"wrong: {found[0]}"
    return "right"


def _lowered(model: onnx.ModelProto, folder: Path) -> Any:
    from edgeinfer import profiles
    from edgeinfer.backends.base import Artifact, LoadOptions
    from edgeinfer.backends.coreai.backend import CoreAIBackend
    from edgeinfer.convert.lower.coreai.target import CoreAITarget
    from edgeinfer.convert.lower.target import LowerOptions
    from edgeinfer.convert.passes import input_specs, normalise, output_specs
    from edgeinfer.errors import LoadError

    normal = normalise(ir.from_proto(model)).model
    made = CoreAITarget().lower(normal, profiles.load("macos27"), LowerOptions(), folder)
    source = ir.from_proto(model)
    artifact = Artifact(made.format, made.files[0], input_specs(source), output_specs(source))
    try:
        return CoreAIBackend().load(artifact, LoadOptions())
    except LoadError as e:
        raise RuntimeError(str(e)) from e


def _line(error: Any) -> str:
    return " ".join(str(error).split())[:300]


def forked(case: Case) -> str:
    """The outcome of a case, or the signal that ended it."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        with os.fdopen(writer, "w", encoding="utf-8") as pipe:
            pipe.write(outcome(case))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as pipe:
        found = pipe.read()
    _, status = os.waitpid(child, 0)
    return found or f"unrunnable: the process ended with {os.waitstatus_to_exitcode(status)}"


def main(source: str, first: int, step: int, file: Path) -> None:
    """Run every ``step``-th case from ``first`` that the file does not have."""
    from edgeinfer.backends.engines import import_coreai

    import_coreai()
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    done = {json.loads(line)["name"] for line in file.read_text("utf-8").splitlines()}
    cases = suite() if source == "suite" else golden()
    with file.open("a", encoding="utf-8") as out:
        for case in cases[first::step]:
            if case[0] not in done:
                out.write(json.dumps({"name": case[0], "ours": forked(case)}) + "\n")
                out.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
