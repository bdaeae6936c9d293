"""Sessions that share the memory of their runs, measured in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import onnx_ir as ir
import pytest

from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.onnxruntime.backend import OnnxRuntimeBackend

MODEL = """<ir_version: 10, opset_import: ["" : 21]>
g (float[N,256] x) => (float[N,1024] y) {
  up = Concat<axis = 1>(x, x, x, x, x, x, x, x)
  a = Exp(up)
  b = Relu(a)
  y, rest = Split<axis = 1, num_outputs = 2>(b)
}"""
SCRIPT = """
import json, sys
import numpy as np
from pathlib import Path
from edgeinfer.machine import pages
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.onnxruntime.backend import OnnxRuntimeBackend
from edgeinfer.machine.pages import resident_mb

artifact = Artifact("onnx", Path(sys.argv[1]), (), ())
options = LoadOptions(threads=1, pooled=sys.argv[2] == "pooled")
models = [OnnxRuntimeBackend().load(artifact, options) for _ in range(6)]
answers = []
small, large = np.zeros((4, 256), np.float32), np.ones((8000, 256), np.float32)
for model in models:
    model.run({"x": small})
pages.give_back()
before = resident_mb()
for model in models:
    answers.append(float(model.run({"x": large})["y"].sum()))
after = resident_mb() - before
for model in models[1:]:
    model.close()
pages.give_back()
again = float(models[0].run({"x": large})["y"].sum())
pages.give_back()
print(json.dumps([after, resident_mb() - before, answers, again]))
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    graph = ir.from_onnx_text(MODEL)
    path = tmp_path / "model.onnx"
    ir.save(graph, path)
    return path


def _measured(model: Path, kind: str) -> tuple[float, float, list[float], float]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(model), kind], capture_output=True, text=True, check=True
    )
    after, left, answers, again = json.loads(done.stdout)
    return after, left, answers, again


def test_six_sessions_take_the_memory_of_one(model: Path) -> None:
    alone, _, expected, _ = _measured(model, "alone")
    pooled, left, answers, again = _measured(model, "pooled")
    assert answers == expected
    assert again == expected[0]
    assert alone > 4 * pooled, (alone, pooled)
    # What no run uses is given back when it is requested.
    assert left < 0.2 * alone, (left, alone)


def test_only_who_asks_is_in_the_pool(model: Path) -> None:
    artifact = Artifact("onnx", model, (), ())
    backend = OnnxRuntimeBackend()
    assert not backend.load(artifact, LoadOptions()).pooled
    assert backend.load(artifact, LoadOptions(pooled=True)).pooled
