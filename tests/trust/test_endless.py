"""A loop without an end in an artifact: each command that runs one can be told when to stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import edgeinfer
from edgeinfer.backends.process import isolation
from edgeinfer.bundle.manifest import EngineRequirement, Manifest, SourceRecord, Variant
from edgeinfer.bundle.writer import BundleWriter
from edgeinfer.errors import BackendError
from edgeinfer.runtime.comparison import bench
from edgeinfer.runtime.evaluation import evaluate
from edgeinfer.runtime.verification import verify
from edgeinfer.types import TensorSpec

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(not isolation.SUPPORTED, reason="needs a process of its own")

LOOP = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1, 3] x) => (float[1, 3] y) <int64 turns = {4611686018427387904}, bool go = {1}>
{
    y = Loop (turns, go, x) <body = b (int64 i, bool c, float[1, 3] v) => (bool d, float[1, 3] w) {
        d = Identity (c)
        w = Sin (v)
    }>
}
"""


@pytest.fixture
def endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(isolation.IN_PROCESS, raising=False)
    inputs, outputs = (TensorSpec("x", "float32", (1, 3)),), (TensorSpec("y", "float32", (1, 3)),)
    feeds = {"x": np.ones((1, 3), np.float32)}
    with BundleWriter(tmp_path / "b.edge") as writer:
        file = writer.add_bytes("v/m.onnx", onnx.parser.parse_model(LOOP).SerializeToString())
        vector = writer.add_vector(inputs, outputs, feeds, {"y": feeds["x"]}, "user")
        engine = EngineRequirement("onnxruntime")
        writer.finish(
            Manifest(
                name="m",
                inputs=inputs,
                outputs=outputs,
                vectors=(vector,),
                variants=(Variant("v", "cpu", "onnx", "fp32", (file,), (engine,)),),
                source=SourceRecord("onnx", "m.onnx", "ab" * 32),
            )
        )
    return tmp_path / "b.edge"


def test_eval_ends_it(endless: Path) -> None:
    samples: Any = [{"x": np.ones((1, 3), np.float32), "labels": np.zeros(1, np.int64)}]
    (row,) = evaluate(endless, samples, time_limit_s=0.3).rows
    assert row.quality is None
    assert "no answer for 0.3 s" in row.problem


def test_bench_ends_it(endless: Path) -> None:
    with pytest.raises(BackendError, match=r"no answer for 0\.3 s"):
        bench(endless, runs=1, time_limit_s=0.3)


def test_verify_ends_it(endless: Path) -> None:
    found = verify(endless, time_limit_s=0.3)
    assert not found.passed


def test_a_session_ends_it(endless: Path) -> None:
    with pytest.raises(BackendError):  # noqa: SIM117
        with edgeinfer.load(endless, isolate=True, run_timeout_s=0.3) as session:
            session.run({"x": np.ones((1, 3), np.float32)})
