"""What a user gets wrong: one clear line, the right exit code, and nothing half-written.

Every case is a process of its own, as in a terminal.
"""

import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

WEIGHTS = 300_000


def edgeinfer(*argv: object, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edgeinfer", *map(str, argv)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, **options)


def assert_refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    (line,) = _without_stages(done.stderr)
    assert line.startswith("edgeinfer: ")
    for word in words:
        assert word in done.stderr


def _without_stages(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if not line.startswith("stage ")]


def model() -> onnx.ModelProto:
    """``y = Tanh (x + bias)`` with weights that do not fit on a tiny disk."""
    bias = np.random.default_rng(0).normal(size=WEIGHTS).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "bias"], ["sum"]), helper.make_node("Tanh", ["sum"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, WEIGHTS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, WEIGHTS])],
        [numpy_helper.from_array(bias, "bias")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def ctranslate2() -> bytes:
    """The head of a CTranslate2 ``model.bin``: version, name and revision of the model's kind."""
    name = b"TransformerSpec\0"
    return struct.pack("<IH", 6, len(name)) + name + struct.pack("<II", 7, 1) + bytes(64)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``net.onnx`` and its bundle ``net.edge``."""
    folder = tmp_path_factory.mktemp("place")
    onnx.save(model(), str(folder / "net.onnx"))
    done = edgeinfer("convert", "net.onnx", "-t", "onnxruntime", "-q", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


NOT_MODELS = {
    "cut": ("net.onnx", model().SerializeToString()[:-4000], "truncated ONNX model"),
    "text": ("notes.onnx", b"these are notes\n" * 20, "a text file, not a model"),
    "empty": ("net.onnx", b"", "empty file"),
    "ctranslate2": ("model.bin", ctranslate2(), "a CTranslate2 model"),
    "keras": ("net.h5", b"\x89HDF\r\n\x1a\n" + bytes(200), "a Keras HDF5 model"),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("case", NOT_MODELS)
def test_what_is_no_model(case: str, tmp_path: Path) -> None:
    name, content, words = NOT_MODELS[case]
    (tmp_path / name).write_bytes(content)
    done = edgeinfer("convert", name, "-t", "cpu", "-o", "m.edge", cwd=tmp_path)
    assert_refused(done, 1, f"{name}: ", words)
    assert [p.name for p in tmp_path.iterdir()] == [name]


def _array(change: str) -> dict[str, Any]:
    x = np.zeros((1, WEIGHTS), np.float32)
    if change == "nan":
        x[0, 5] = np.nan
    shapes = {"shape": x[:, :100], "dtype": x.astype(np.float64), "objects": np.array([None])}
    return {"image" if change == "name" else "x": shapes.get(change, x)}


BAD_ARRAYS = {
    "shape": (1, "expected size 300000 in axis 1", "[1, 100]"),
    "dtype": (1, "input 'x': expected float32, received float64"),
    "nan": (1, "expected finite values", "the first at [0, 5]"),
    "objects": (1, "in.npz"),
    "name": (1, "input 'image': expected an input of the model ('x')", "in.npz"),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_arrays_that_do_not_fit(case: str, place: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", **_array(case))
    done = edgeinfer("run", place / "net.edge", "in.npz", "-o", "out.npz", cwd=tmp_path)
    code, *words = BAD_ARRAYS[case]
    assert_refused(done, int(code), *map(str, words))
    assert [p.name for p in tmp_path.iterdir()] == ["in.npz"]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("convert", "net.onnx", "-t", "toaster", "-o", "m.edge"), "unknown target 'toaster'"),
        (("convert", "net.onnx", "-t", "onnxruntime"), "net.edge: exists"),
        (("convert", "gone.onnx", "-t", "cpu"), "gone.onnx: no such file"),
        (("run", "net.edge", "in.npz", "-b", "abacus"), "unknown backend 'abacus'"),
        (("run", "net.edge", "."), ".: is a folder; name the files in it"),
        (("run", "gone.edge", "in.npz"), "gone.edge: no such file"),
    ],
)
def test_names_that_are_not_there(argv: tuple[str, ...], words: str, place: Path) -> None:
    np.savez(place / "in.npz", **_array(""))
    before = {p.name: p.stat().st_mtime_ns for p in place.iterdir()}
    assert_refused(edgeinfer(*argv, cwd=place), 2, words)
    assert {p.name: p.stat().st_mtime_ns for p in place.iterdir()} == before


@pytest.mark.sample(2)
@pytest.mark.parametrize("command", ["run", "verify", "inspect", "bench"])
@pytest.mark.parametrize("damage", ["altered", "cut"])
def test_a_damaged_bundle(command: str, damage: str, place: Path, tmp_path: Path) -> None:
    content = bytearray((place / "net.edge").read_bytes())
    if damage == "cut":
        del content[len(content) // 2 :]
    else:
        content[len(content) // 2] ^= 255
    (tmp_path / "m.edge").write_bytes(content)
    np.savez(tmp_path / "in.npz", **_array(""))
    given = ("in.npz",) if command == "run" else ()
    assert_refused(edgeinfer(command, "m.edge", *given, cwd=tmp_path), 1, "m.edge: ", "damaged")


def test_a_folder_that_is_not_there(place: Path, tmp_path: Path) -> None:
    done = edgeinfer("convert", place / "net.onnx", "-t", "cpu", "-o", "gone/m.edge", cwd=tmp_path)
    assert_refused(done, 3, "gone/m.edge: the folder gone does not exist")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
def test_a_folder_that_may_not_be_written(place: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    done = edgeinfer("convert", place / "net.onnx", "-t", "cpu", "-o", "m.edge", cwd=tmp_path)
    tmp_path.chmod(0o700)
    assert_refused(done, 3, "m.edge", "Permission denied")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 kB, where this machine lets us mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk(place: Path, tiny_disk: Path, tmp_path: Path) -> None:
    bundle, result = tiny_disk / "m.edge", tiny_disk / "out.npz"
    done = edgeinfer("convert", place / "net.onnx", "-t", "onnxruntime", "-o", bundle, cwd=tmp_path)
    assert_refused(done, 3, "m.edge", "No space left on device")
    np.savez(tmp_path / "in.npz", **_array(""))
    done = edgeinfer("run", place / "net.edge", "in.npz", "-o", result, cwd=tmp_path)
    assert_refused(done, 3, "out.npz", "No space left on device")
    assert not list(tiny_disk.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_ctrl_c_half_way(place: Path, tmp_path: Path) -> None:
    source, place, temporary = place / "net.onnx", tmp_path / "place", tmp_path / "temporary"
    targets = [*("-t", "onnxruntime"), *("-t", "openvino"), *("-t", "rpi5")]
    place.mkdir()
    temporary.mkdir()
    process = subprocess.Popen(
        [*(sys.executable, "-m", "edgeinfer", "convert", source, "-o", "m.edge"), *targets],
        cwd=place,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A background job of a shell ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    # Once an artifact lies next to the output, the gate is at work on it.
    while not list(place.rglob("model.*")):
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert _without_stages(err) == ["edgeinfer: interrupted, nothing was written"]
    assert [*place.iterdir(), *temporary.iterdir()] == []
