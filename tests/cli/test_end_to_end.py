"""The real converter and engines through the command line, on a model small enough to wait for."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edgeinfer.media import read_arrays

# As users run it, in the processes that it starts.
pytestmark = pytest.mark.usefixtures("conversions_apart")

NAMES = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1, 4] x) => (float[1, 4] y)
{ y = Tanh (x) }
"""


def test_the_main_job_without_a_terminal(cli: Any, model: Path, tmp_path: Path) -> None:
    bundle, given, saved = tmp_path / "m.edge", tmp_path / "in.npz", tmp_path / "out.npz"
    x = np.random.default_rng(0).random((3, 2, 2, 3), dtype=np.float32)
    np.savez(given, image=x)
    for _ in range(2):
        told = cli("convert", model, "--target", "cpu", "-o", bundle, "--overwrite", "--quiet")
        assert (told.code, told.out, told.err) == (0, "", "")
    assert cli("convert", model, "--target", "cpu", "-o", bundle).code == 2
    told = cli("run", bundle, given, "-o", saved, "--quiet")
    assert (told.code, told.out, told.err) == (0, "", "")
    np.testing.assert_allclose(read_arrays(saved)["scores"], x.mean(axis=(1, 2)), rtol=1e-5)
    assert cli("verify", bundle).code == 0
    assert cli("bench", bundle, given, "--runs", "5").code == 0


@pytest.mark.sweep
def test_names_with_quotes_and_slashes(cli: Any, tmp_path: Path) -> None:
    graph = onnx.parser.parse_model(NAMES)
    odd = '{"1": "a/b"}'
    graph.graph.output[0].name = graph.graph.node[0].output[0] = odd
    graph.graph.input[0].name = graph.graph.node[0].input[0] = "in/x:0"
    onnx.save(graph, str(tmp_path / "odd.onnx"))
    np.savez(tmp_path / "in.npz", **{"in/x:0": np.ones((1, 4), np.float32)})  # type: ignore[arg-type]
    bundle = tmp_path / "odd.edge"
    assert cli("convert", tmp_path / "odd.onnx", "-t", "cpu", "-o", bundle, "-q").code == 0
    assert cli("run", bundle, tmp_path / "in.npz", "-o", tmp_path / "out.npz", "-q").code == 0
    np.testing.assert_allclose(read_arrays(tmp_path / "out.npz")[odd], np.tanh(1), rtol=1e-5)


def test_a_folder_and_a_fixed_size(cli: Any, model: Path, tmp_path: Path) -> None:
    told = cli(
        *("convert", model, "-t", "onnxruntime", "-o", f"{tmp_path}/folder/"),
        *("--input-shape", "image=4,?,?,?", "--json"),
    )
    assert told.code == 0, told.err
    assert json.loads(told.out)["inputs"][0]["shape"] == [4, 2, 2, 3]
    assert (tmp_path / "folder" / "manifest.json").is_file()
    report = tmp_path / "report.html"
    assert cli("inspect", tmp_path / "folder", "--report", report).code == 0
    assert report.read_text().startswith("<!")


def test_a_model_is_benchmarked_against_the_plain_engine(cli: Any, model: Path) -> None:
    told = cli("bench", model, "--runs", "5", "--json", "--backend", "onnxruntime")
    rows = json.loads(told.out)["rows"]
    assert {(r["variant"], r["engine"]) for r in rows} == {
        ("cpu-onnx-fp32", "onnxruntime"),
        ("colours.onnx", "plain onnxruntime"),
    }


@pytest.mark.sweep
def test_a_torch_module_named_by_its_callable(cli: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "def make():\n"
        "    return torch.nn.Linear(4, 2).eval(), (torch.zeros(2, 4),), {'input': {0: 'batch'}}\n"
    )
    bundle = tmp_path / "net.edge"
    told = cli("convert", f"{tmp_path}/net.py:make", "-t", "onnxruntime", "-o", bundle, "--json")
    assert told.code == 0, told.err
    assert json.loads(told.out)["inputs"] == [
        {"name": "input", "dtype": "float32", "shape": ["batch", 4], "layout": None}
    ]


@pytest.mark.parametrize("content", [b"", b"hello", b"\x08\x07\x12\x04test", b"\x89HDF\r\n\x1a\n"])
@pytest.mark.parametrize("command", ["convert", "check", "bench"])
def test_what_is_no_model(cli: Any, tmp_path: Path, content: bytes, command: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    target = () if command == "bench" else ("-t", "cpu")
    result = cli(command, path, *target)
    assert (result.code, result.out) == (1, "")
    assert result.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.sample(1)
@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["int", "term"]
)
def test_an_interrupted_conversion_leaves_nothing(
    model: Path, tmp_path: Path, number: int, code: int
) -> None:
    place, temporary = tmp_path / "place", tmp_path / "temporary"
    place.mkdir()
    temporary.mkdir()
    script = (
        "from edgeinfer.convert.pipeline import stages\n"
        "import time\n"
        "def slow(*_, **__):\n"
        "    print('up', flush=True)\n"
        "    time.sleep(60)\n"
        "stages.verify_variant = slow\n"
        "from edgeinfer.cli import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", script, "convert", str(model), "-t", "cpu", "-o", "m.edge"]
    env = {**os.environ, "TMPDIR": str(temporary)}
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        cwd=place,
        env=env,
        # A background job of a shell ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(timeout=20) == code
    assert [*place.iterdir(), *temporary.iterdir()] == []
