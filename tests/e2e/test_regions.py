"""Regions of a graph as machine code, from the command to the run."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

pytest.importorskip("tvm", reason="apache-tvm is not installed")

import edgeinfer
from edgeinfer.convert.lower.regions.setting import machine_here
from edgeinfer.errors import BundleError
from tests import zoo

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        platform.machine() != "x86_64" or not machine_here() or shutil.which("gcc") is None,
        reason="no code is made for this machine",
    ),
]

OPS = ("Exp", "Sqrt", "Tanh", "Abs", "Neg", "Sin")


def _chain(path: Path, count: int = 36) -> Path:
    """A row of small steps, each of which costs the engine a call."""
    nodes, last = [], "x"
    for index in range(count):
        op = OPS[index % len(OPS)]
        nodes.append(helper.make_node(op, [last], [f"v{index}"], name=f"n{index}"))
        last = f"v{index}"
        if op == "Neg":
            nodes.append(helper.make_node("Softmax", [last], [f"{last}s"], axis=-1))
            last = f"{last}s"
    nodes.append(helper.make_node("Identity", [last], ["y"]))
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 64]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), path)
    return path


CODE = ("--machine-code", "regions", "--regions-time", "40")


def _convert(model: Path, bundle: Path | str, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edgeinfer", "convert", str(model), "-t", "cpu"]
    return subprocess.run(
        [*command, *CODE, "-o", str(bundle), *more],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_a_row_of_small_steps_runs_as_code(tmp_path: Path) -> None:
    bundle = tmp_path / "chain.edge"
    done = _convert(_chain(tmp_path / "chain.onnx"), bundle)
    assert done.returncode == 0, done.stderr
    with edgeinfer.load(bundle, backend="onnxruntime") as session:
        report = str(session.report())
        x = np.random.default_rng(0).standard_normal((1, 64)).astype(np.float32)
        found = session.run({"x": x})["y"]
    # Faster by so much that it is chosen whatever else this machine does.
    assert "cpu-onnx_tvm-fp32 on onnxruntime" in report.splitlines()[0]
    wanted = x
    for index in range(36):
        op = OPS[index % len(OPS)]
        with np.errstate(invalid="ignore"):
            wanted = -wanted if op == "Neg" else getattr(np, op.lower())(wanted)
        if op == "Neg":
            shifted = np.exp(wanted - wanted.max())
            wanted = shifted / shifted.sum()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    opened = edgeinfer.Bundle.open(bundle)
    (variant,) = [v for v in opened.manifest.variants if v.format == "onnx_tvm"]
    assert variant.accuracy["y"]
    assert [Path(f.path).name for f in variant.files] == [
        "model.onnx",
        "regions.so",
        "regions.json",
    ]
    told = json.loads(opened.paths(variant)[2].read_text("utf-8"))
    assert any(t["kept"] and t["alone"]["rounds"] >= 9 for t in told["trials"])
    assert told["final"]["gain"] > 1.03


def test_a_changed_library_is_not_opened(tmp_path: Path) -> None:
    bundle = tmp_path / "chain"
    done = _convert(_chain(tmp_path / "chain.onnx"), f"{bundle}/")
    assert done.returncode == 0, done.stderr
    library = next(bundle.rglob("regions.so"))
    data = bytearray(library.read_bytes())
    data[len(data) // 2] ^= 1
    library.write_bytes(bytes(data))
    with pytest.raises(BundleError, match="regions"):
        edgeinfer.load(bundle)


@pytest.mark.models
def test_a_real_model_is_written_with_or_without_and_says_why(tmp_path: Path) -> None:
    bundle = tmp_path / "vad.edge"
    done = _convert(zoo.fetch("silero-vad-openvino-16k.onnx"), bundle)
    assert done.returncode == 0, done.stderr
    formats = {v.format for v in edgeinfer.Bundle.open(bundle).manifest.variants}
    kept = "onnx_tvm" in formats
    # What pays depends on the machine and on what else it does; either is told.
    assert kept or "(onnx_tvm) was left out: " in done.stdout
