"""Run ONNX node cases through source, passes, TVM lowering and the backend.

A child process of its own: machine code may end the process. Prints one JSON line when a case
starts and one when it ends. A case is tried as it is; where that is refused, once more with the
inputs that are parameters (a shape, axes, weights) as initializers.

``EDGEINFER_NODES_MACHINE`` names another instruction set than x86-64-v3, such as ``sm_90``. An
error of a GPU ends the process, since nothing can be said of what comes behind it.
``EDGEINFER_NODES_EMULATED=1`` has the CPU stand in for the GPU.

Usage: tvm_worker.py suite|golden FIRST STEP SKIP
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

from tests import cuda_emulator
from tests.conformance.node_worker import Case, golden, plain, suite
from tests.conformance.tflite_worker import _differences, freeze, parameters
from tests.convert.lower.tvm.run import MACHINE, load

WHERE = os.environ.get("EDGEINFER_NODES_MACHINE", MACHINE)
AGAIN = 75
"""Exit status that asks for the next case in another process."""


def outcome(case: Case) -> str:
    """Return ``right``, ``refused: REASON: ...``, ``wrong: ...`` or ``error: ...``."""
    _, model, data_sets, rtol, atol = case
    first = _try(model, data_sets, rtol, atol)
    named = parameters(model)
    # Several data sets of a case share one model, so one that is frozen has one set.
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
            ready = load(model, Path(folder), threads=1, machine=WHERE)
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


def _line(error: Any) -> str:
    return " ".join(str(error).split())[:300]


def main(source: str, first: int, step: int, skip: int) -> None:
    """Run every ``step``-th case from ``first``, without the first ``skip`` of them."""
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    if os.environ.get("EDGEINFER_NODES_EMULATED"):
        cuda_emulator.start()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    cases = suite() if source == "suite" else golden()
    for case in cases[first::step][skip:]:
        print(json.dumps({"start": case[0]}), file=answers, flush=True)
        found = outcome(case)
        print(json.dumps({"ours": found}), file=answers, flush=True)
        if "CUDA" in found and found.startswith(("error", "unrunnable")):
            os._exit(AGAIN)


if __name__ == "__main__":
    main(sys.argv[1], *(int(a) for a in sys.argv[2:5]))
