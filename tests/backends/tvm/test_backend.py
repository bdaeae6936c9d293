"""What is particular to TVM's libraries, and the conformance kit on what our lowering writes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if importlib.util.find_spec("tvm") is None:
    pytest.skip("apache-tvm is not installed", allow_module_level=True)

from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.testing import Subject, conformance
from edgeinfer.backends.testing.cases import graph
from edgeinfer.backends.testing.subject import describe
from edgeinfer.backends.tvm import backend as module
from edgeinfer.backends.tvm import library, trial
from edgeinfer.backends.tvm.backend import TvmBackend
from edgeinfer.errors import LoadError, UnsupportedError
from tests.convert.lower.tvm.run import artifact


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(trial.TRIALS, "remembered", {})
    # A trial takes a process of its own; one test below has it.
    monkeypatch.setattr(module, "check_runs", lambda *_: None)


@cache
def written(model: bytes) -> bytes:
    """Compile a model once, however many checks of the kit ask for it."""
    import onnx

    with tempfile.TemporaryDirectory() as folder:
        try:
            return artifact(onnx.load_from_string(model), Path(folder)).path.read_bytes()
        except UnsupportedError:
            # What cannot be written is a file that cannot be loaded.
            return b""


def make_artifact(model: bytes, folder: Path) -> Artifact:
    path, made = folder / "model.so", folder / "made"
    # A file that is loaded must not change.
    made.write_bytes(written(model))
    made.replace(path)
    return Artifact("tvm", path, *describe(model))


@conformance([Subject(TvmBackend(), make_artifact)])
def test_conformance(subject: Subject, check: Any, tmp_path: Path) -> None:
    check(subject, tmp_path)


MODEL = graph("(float[1,3] x) => (float[1,3] y) { y = Relu(x) }")
FEEDS = {"x": np.array([[-1, 2, np.nan]], np.float32)}


@pytest.fixture
def made(tmp_path: Path) -> Artifact:
    return artifact(MODEL, tmp_path)


def test_describes_itself(made: Artifact) -> None:
    executable = TvmBackend().load(Artifact("tvm", made.path, (), ()), LoadOptions())
    assert str(executable.inputs[0]) == "x: float32[1, 3]"
    np.testing.assert_array_equal(executable.run(FEEDS)["y"], [[0, 2, np.nan]])


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")
def test_the_callers_thread_stays_free_to_run_anywhere(tmp_path: Path) -> None:
    # Large enough for parallel loops, which TVM binds to cores, the calling thread with them.
    model = graph("(float[512,512] x) => (float[512,512] y) { h = MatMul(x, x) y = Relu(h) }")
    path = artifact(model, tmp_path)
    before = os.sched_getaffinity(0)
    executable = TvmBackend().load(path, LoadOptions(threads=1))
    executable.run({"x": np.ones((512, 512), np.float32)})
    assert os.sched_getaffinity(0) == before


def test_code_for_another_cpu_is_refused_before_it_is_mapped(
    made: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "cpu_features", lambda: frozenset({"sse2", "fma"}))
    with pytest.raises(LoadError, match="code for x86-64-v3; this CPU lacks avx, avx2"):
        TvmBackend().load(made, LoadOptions())
    data = bytearray(made.path.read_bytes())
    data[18] = 183
    made.path.write_bytes(bytes(data))
    with pytest.raises(
        LoadError, match="it is code for aarch64 and linux, this is x86_64 and linux"
    ):
        TvmBackend().load(made, LoadOptions())


@pytest.mark.parametrize("change", [b'"kind": "direct"', b'"inputs": [{', b'"weights": ['])
def test_damaged_descriptions_are_refused(made: Artifact, change: bytes) -> None:
    data = made.path.read_bytes()
    assert change in data
    made.path.write_bytes(data.replace(change, b"x" * len(change)))
    with pytest.raises(LoadError, match="its description is damaged"):
        TvmBackend().load(made, LoadOptions())


def test_a_description_of_another_version_says_what_to_do(made: Artifact) -> None:
    data = made.path.read_bytes()
    made.path.write_bytes(data.replace(b'"parallel": ', b'"parallels":'))
    with pytest.raises(LoadError, match=r"lacks 'parallel': another version .* convert the model"):
        TvmBackend().load(made, LoadOptions())


def test_a_kind_of_another_version_says_what_to_do(made: Artifact) -> None:
    data = made.path.read_bytes()
    made.path.write_bytes(data.replace(b'"kind": "direct"', b'"kind": "drctor"'))
    with pytest.raises(LoadError, match=r"'drctor' for 'cpu'.* another version .* convert the"):
        TvmBackend().load(made, LoadOptions())


def test_a_weight_outside_the_file_is_refused(tmp_path: Path) -> None:
    found = artifact(
        graph("(float[1,3] x) => (float[1,2] y) { y = MatMul(x, w) }", w=np.ones((3, 2), "f4")),
        tmp_path,
    )
    about = library.read(found.path)
    assert about.weights[0].offset % library.ALIGNMENT == 0
    offset = str(about.weights[0].offset).encode()
    data = found.path.read_bytes()
    head, tail = data[:-4096], data[-4096:]
    changed = tail.replace(b'"offset": ' + offset, b'"offset": ' + b"9" * len(offset))
    assert changed != tail
    found.path.write_bytes(head + changed)
    with pytest.raises(LoadError, match="damaged"):
        TvmBackend().load(found, LoadOptions())


def test_a_library_that_ends_the_process_is_refused(
    made: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytearray(made.path.read_bytes())
    # Garbage where the code lies; the description is left alone.
    start = data.index(b"\x55\x48") if b"\x55\x48" in data else 4096
    data[start : start + 4096] = b"\x0f\x0b" * 2048
    made.path.write_bytes(bytes(data))
    monkeypatch.setattr(module, "check_runs", trial.check_runs)
    with pytest.raises(LoadError, match=r"ends the process|refuses"):
        TvmBackend().load(made, LoadOptions())


def test_options(made: Artifact) -> None:
    with pytest.raises(LoadError, match="unknown options speed; there is trial"):
        TvmBackend().load(made, LoadOptions(extra={"speed": "1"}))
    with pytest.raises(LoadError, match="expected on or off, received 'maybe'"):
        TvmBackend().load(made, LoadOptions(extra={"trial": "maybe"}))


def test_arrays_of_any_alignment_that_cannot_be_written(made: Artifact) -> None:
    executable = TvmBackend().load(made, LoadOptions())
    raw = np.zeros(64, np.uint8)[1 : 1 + 12]
    x = raw.view(np.float32).reshape(1, 3) if raw.ctypes.data % 4 == 0 else np.ones((1, 3), "f4")
    x[...] = FEEDS["x"]
    x.flags.writeable = False
    np.testing.assert_array_equal(executable.run({"x": x})["y"], [[0, 2, np.nan]])


def test_the_compiler_is_not_loaded(made: Artifact) -> None:
    code = (
        "import sys; from edgeinfer.backends.tvm.backend import TvmBackend;"
        "from edgeinfer.backends.base import Artifact, LoadOptions; import numpy as np;"
        "from pathlib import Path;"
        f"e = TvmBackend().load(Artifact('tvm', Path({str(made.path)!r}), (), ()), "
        "LoadOptions(extra={'trial': 'off'}));"
        "e.run({'x': np.ones((1, 3), np.float32)});"
        "print('tvm' in sys.modules, 'torch' in sys.modules,"
        " 'libtvm_compiler' in Path('/proc/self/maps').read_text())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False False\n"
