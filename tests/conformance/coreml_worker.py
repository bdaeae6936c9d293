"""Run ONNX node cases through source, passes, Core ML lowering and the reference evaluator.

A child process of its own, as for the other targets. Appends one JSON line for each case to a
file, and leaves out the cases that the file has already. A case is tried as it is; where that is
refused, once more with the inputs that are parameters (a shape, axes, weights) as initializers.
Where the refusal asks for bounds of integers, they are those of the case's data.

Usage: coreml_worker.py suite|golden FIRST STEP FILE
"""

from __future__ import annotations

import json
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


def outcome(case: Case) -> tuple[str, bool]:
    """Return ``right``, ``refused: REASON: ...``, ``wrong: ...``, ... and whether frozen."""
    _, model, data_sets, rtol, atol = case
    first = _try(model, data_sets, rtol, atol)
    named = parameters(model)
    # Several data sets of a case share one model, so one that is frozen has one set.
    if not first.startswith("refused") or not named or len(data_sets) > 1:
        return first, False
    names = [i.name for i in model.graph.input]
    inputs, outputs = data_sets[0]
    feeds = {n: plain(v) for n, v in zip(names, inputs, strict=False)}
    fixed = {n: v for n, v in feeds.items() if n in named and v is not None}
    if any(isinstance(v, list) for v in fixed.values()):
        return first, False
    rest = [v for n, v in feeds.items() if n not in fixed]
    return _try(freeze(model, fixed), [(rest, outputs)], rtol, atol), True


def _try(model: onnx.ModelProto, data_sets: Any, rtol: float, atol: float) -> str:
    from edgeinfer.errors import EdgeInferError, UnsupportedError

    with tempfile.TemporaryDirectory() as folder:
        try:
            ready = _declared(model, data_sets, Path(folder))
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
                if "for which the package was proven to be right" in str(e):
                    # What a package cannot hold is refused where it is given.
                    return f"refused: at the input: {_line(e)}"
                return f"unrunnable: {_line(e)}"
            found = list(_differences(model, outputs, got, rtol, atol))
            if found:
                return f"wrong: {found[0]}"
    return "right"


def _declared(model: onnx.ModelProto, data_sets: Any, folder: Path) -> Any:
    """Lower; where that asks for bounds of integers, with those of the case's own data."""
    from edgeinfer.errors import UnsupportedError

    try:
        return _lowered(model, folder, {})
    except UnsupportedError as e:
        if "declare what integer inputs hold" not in str(e):
            raise
    bounds: dict[str, tuple[int, int]] = {}
    for inputs, _ in data_sets:
        for value, given in zip(model.graph.input, inputs, strict=False):
            array = np.asarray(plain(given))
            if array.dtype.kind in "iu" and array.size:
                low, high = bounds.get(value.name, (int(array.min()), int(array.max())))
                bounds[value.name] = (min(low, int(array.min())), max(high, int(array.max())))
    return _lowered(model, folder, bounds)


def _lowered(model: onnx.ModelProto, folder: Path, integers: dict[str, tuple[int, int]]) -> Any:
    from edgeinfer import profiles
    from edgeinfer.backends.base import Artifact, LoadOptions
    from edgeinfer.backends.coreml_reference.backend import CoreMLReferenceBackend
    from edgeinfer.convert.lower.coreml.deployment import deployment
    from edgeinfer.convert.lower.coreml.options import CoreMLOptions
    from edgeinfer.convert.lower.coreml.target import CoreMLTarget
    from edgeinfer.convert.lower.target import LowerOptions
    from edgeinfer.convert.passes import input_specs, normalise, output_specs

    normal = normalise(ir.from_proto(model)).model
    newest = CoreMLOptions(deployment=deployment("iOS18"), integers=integers)
    made = CoreMLTarget(newest).lower(normal, profiles.load("ios"), LowerOptions(), folder)
    source = ir.from_proto(model)
    artifact = Artifact(made.format, made.files[0], input_specs(source), output_specs(source))
    return CoreMLReferenceBackend().load(artifact, LoadOptions())


def _line(error: Any) -> str:
    return " ".join(str(error).split())[:300]


def main(source: str, first: int, step: int, file: Path) -> None:
    """Run every ``step``-th case from ``first`` that the file does not have."""
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    done = {json.loads(line)["name"] for line in file.read_text("utf-8").splitlines()}
    cases = suite() if source == "suite" else golden()
    with file.open("a", encoding="utf-8") as answers:
        for case in cases[first::step]:
            if case[0] in done:
                continue
            ours, frozen = outcome(case)
            print(json.dumps({"name": case[0], "ours": ours, "frozen": frozen}), file=answers)
            answers.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
