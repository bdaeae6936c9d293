"""What ``keep`` leaves: the graph of each stage, as each of them saw it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import edgeinfer
from edgeinfer.errors import OutputError, UnsupportedError, UsageError

GRAPH = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y)
<float[4, 3, 3, 3] w = {WEIGHTS}>
{ c = Conv (x, w)  d = Dropout (c)  y = Relu (d) }
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    weights = ", ".join(f"{(i * 37 % 101) / 50 - 1:.2f}" for i in range(108))
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(GRAPH.replace("WEIGHTS", weights)), path)
    return path


def run(path: Path, feed: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: feed})
    return np.asarray(found)


def test_every_stage_is_there_and_can_be_run(model: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    smooth = np.cumsum(rng.standard_normal((32, 3, 8, 8)), axis=-1).astype(np.float32)
    np.savez(tmp_path / "c.npz", x=smooth)
    keep = tmp_path / "kept"
    edgeinfer.export(
        model,
        tmp_path / "m.edge",
        targets=["onnxruntime"],
        precision="static_wi8_ai8",
        calibration=tmp_path / "c.npz",
        keep=keep,
    )
    names = sorted(p.name for p in keep.iterdir())
    assert names[:2] == ["1-read.onnx", "2-normalised.onnx"]
    assert names[2:] == [
        "3-given-onnxruntime-onnx-static_wi8_ai8.onnx",
        "4-onnxruntime-onnx-static_wi8_ai8",
    ]
    ops = {n: {node.op_type for node in onnx.load(keep / n).graph.node} for n in names[:3]}
    assert "Dropout" in ops["1-read.onnx"]
    assert "Dropout" not in ops["2-normalised.onnx"]
    assert "QuantizeLinear" in ops[names[2]]
    feed = rng.standard_normal((1, 3, 8, 8)).astype(np.float32)
    right = run(model, feed)
    for name in names[:2]:
        np.testing.assert_allclose(run(keep / name, feed), right, rtol=1e-5, atol=1e-5)
    artifact = next((keep / names[3]).glob("*.onnx"))
    assert np.abs(run(artifact, feed) - right).max() < 0.1 * np.abs(right).max()


def test_what_failed_is_kept(tmp_path: Path) -> None:
    text = GRAPH.replace("w = {WEIGHTS}", "w").replace("<float[4, 3, 3, 3] w>", "")
    text = text.replace("(float[1, 3, 8, 8] x)", "(float[1, 3, 8, 8] x, float[4, 3, 3, 3] w)")
    text = text.replace("y = Relu (d)", "e = test.own.Strange (d)  y = Relu (e)")
    text = text.replace('["" : 17]', '["" : 17, "test.own" : 1]')
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    with pytest.raises(UnsupportedError):
        edgeinfer.export(
            tmp_path / "m.onnx", tmp_path / "m.edge", targets=["rpi5"], keep=tmp_path / "kept"
        )
    assert (tmp_path / "kept" / "1-read.onnx").exists()
    assert not (tmp_path / "m.edge").exists()


def test_a_folder_that_holds_something_is_refused(model: Path, tmp_path: Path) -> None:
    def keep(folder: Path) -> None:
        edgeinfer.export(model, tmp_path / "m.edge", targets=["onnxruntime"], keep=folder)

    with pytest.raises(UsageError, match="the folder is not empty"):
        keep(tmp_path)
    with pytest.raises(UsageError, match="is no folder"):
        keep(model)
    with pytest.raises(OutputError, match="does not exist"):
        keep(tmp_path / "none" / "kept")
