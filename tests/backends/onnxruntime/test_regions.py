"""Graphs whose regions are operators of a library."""

from __future__ import annotations

import platform
import shutil
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.onnxruntime import regions_trial
from edgeinfer.backends.onnxruntime.backend import OnnxRuntimeBackend
from edgeinfer.backends.onnxruntime.regions import LIBRARY, TOLD
from edgeinfer.backends.tvm import library as tvm_library
from edgeinfer.backends.tvm.backend import TvmBackend
from edgeinfer.convert.lower.tvm.machines import machine
from edgeinfer.errors import LoadError, RunError
from edgeinfer.types import Array
from tests.convert.lower.regions.made import MACHINE, model, region, written

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64"
    or not set(machine(MACHINE).features) <= tvm_library.cpu_features(),
    reason="no code is made for this machine",
)

CHECK_RUNS = regions_trial.check_runs

# Two regions; the second one's loop is large enough for several threads.
TEXT = """(float[N,4] x, float[4,4] w) => (float[4,4] y, float[512,512] t)
<float[4,4] a, float[4,4] b, float[4,4] c, float[512,512] p, float[512,512] q,
 int64[2] size = {512, 512}, float o = {0.5}>
{ a = MatMul(x, w)  b = Relu(a)  c = Tanh(b)  y = Neg(c)
  p = Expand(o, size)  q = Exp(p)  t = Sqrt(q) }"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("regions")
    source = model(TEXT)
    made = [region(source, ["b", "c"], "Region0"), region(source, ["q"], "Region1")]
    written(source, made, path)
    return path


@pytest.fixture
def made(folder: Path, tmp_path: Path) -> Artifact:
    shutil.copytree(folder, tmp_path / "copy")
    return Artifact("onnx_tvm", tmp_path / "copy" / "model.onnx", (), ())


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(regions_trial.TRIALS, "remembered", {})
    # A trial takes a process of its own; one test below has it.
    monkeypatch.setattr(regions_trial, "check_runs", lambda *_: None)


def _feeds(rows: int = 4) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {
        "x": rng.standard_normal((rows, 4)).astype(np.float32),
        "w": rng.standard_normal((4, 4)).astype(np.float32),
    }


def _expected(feeds: dict[str, Array]) -> dict[str, Array]:
    y = -np.tanh(np.maximum(feeds["x"] @ feeds["w"], 0))
    return {"y": y, "t": np.full((512, 512), np.exp(0.25), np.float32)}


@pytest.mark.parametrize("threads", [1, 2])
def test_numbers(made: Artifact, threads: int) -> None:
    executable = OnnxRuntimeBackend().load(made, LoadOptions(threads=threads))
    feeds = _feeds()
    for name, wanted in _expected(feeds).items():
        np.testing.assert_allclose(executable.run(feeds)[name], wanted, rtol=1e-5, atol=1e-6)
    buffers = {"y": np.empty((4, 4), np.float32), "t": np.empty((512, 512), np.float32)}
    executable.bind(feeds, buffers)()
    for name, wanted in _expected(feeds).items():
        np.testing.assert_allclose(buffers[name], wanted, rtol=1e-5, atol=1e-6)
    executable.close()


def test_scalars_integers_and_truth_cross_a_border(tmp_path: Path) -> None:
    source = model(
        """(float[2,3] x, int64[2,3] i, bool[2,3] m) => (float s, int64[2,3] j, bool[2,3] g)
        <float[2,3] a, int64[2,3] k, float[2,3] b, float h>
        { a = Abs(x)  s = ReduceSum<keepdims=0>(a)  k = Add(i, i)  j = Where(m, k, i)
          h = Sqrt(s)  b = Mul(a, h)  g = Greater(b, a) }"""
    )
    made = written(source, [region(source, [n.name or "" for n in source.graph])], tmp_path)
    rng = np.random.default_rng(0)
    feeds: dict[str, Array] = {
        "x": rng.standard_normal((2, 3)).astype(np.float32),
        "i": rng.integers(-9, 9, (2, 3)),
        "m": rng.integers(0, 2, (2, 3)).astype(np.bool_),
    }
    found = OnnxRuntimeBackend().load(made, LoadOptions(threads=1)).run(feeds)
    wanted = np.abs(feeds["x"])
    assert found["s"].shape == ()
    np.testing.assert_allclose(found["s"], wanted.sum(), rtol=1e-6)
    np.testing.assert_array_equal(found["j"], np.where(feeds["m"], 2 * feeds["i"], feeds["i"]))
    np.testing.assert_array_equal(found["g"], wanted * np.sqrt(wanted.sum()) > wanted)


def test_several_threads_run_several_sessions(made: Artifact) -> None:
    backend = OnnxRuntimeBackend()

    def once(seed: int) -> bool:
        executable = backend.load(made, LoadOptions(threads=2))
        feeds = {k: v + np.float32(seed) for k, v in _feeds().items()}
        wanted = _expected(feeds)
        return all(
            np.allclose(executable.run(feeds)[name], wanted[name], rtol=1e-5, atol=1e-6)
            for name in wanted
            for _ in range(10)
        )

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(once, range(12)))


def test_another_size_is_refused(made: Artifact) -> None:
    executable = OnnxRuntimeBackend().load(made, LoadOptions(threads=1))
    with pytest.raises(RunError, match="another size than the region was made for"):
        executable.run(_feeds(rows=5))
    # It goes on.
    feeds = _feeds()
    np.testing.assert_allclose(executable.run(feeds)["y"], _expected(feeds)["y"], rtol=1e-5)


def test_the_profile_names_regions(made: Artifact) -> None:
    beside = made.path.with_name(TOLD)
    beside.write_text('{"trials": [{"name": "Region0", "nodes": ["b", "c"], "kept": true}]}')
    told = OnnxRuntimeBackend().profile(made, LoadOptions(threads=1), _feeds(), runs=4)
    nodes = {op.kind: op.nodes for op in told.operators}
    assert nodes["Region0"] == ("b", "c")
    assert nodes["Region1"] == ("Region1",)
    beside.write_text("[")
    told = OnnxRuntimeBackend().profile(made, LoadOptions(threads=1), _feeds(), runs=4)
    assert {op.kind: op.nodes for op in told.operators}["Region0"] == ("Region0",)


def test_without_its_library_a_graph_is_refused(made: Artifact) -> None:
    made.path.with_name(LIBRARY).unlink()
    with pytest.raises(LoadError, match=r"regions\.so: its description is damaged"):
        OnnxRuntimeBackend().load(made, LoadOptions())


def test_a_graph_alone_is_no_plain_one(made: Artifact) -> None:
    with pytest.raises(LoadError, match=r"edgeinfer\.regions"):
        OnnxRuntimeBackend().load(replace(made, format="onnx"), LoadOptions())


@pytest.mark.parametrize("cut", [0, 10, 5000, -1, -30])
def test_damaged_libraries_are_refused(made: Artifact, cut: int) -> None:
    library = made.path.with_name(LIBRARY)
    library.write_bytes(library.read_bytes()[:cut])
    with pytest.raises(LoadError, match=r"onnxruntime|tvm refuses"):
        OnnxRuntimeBackend().load(made, LoadOptions())


def test_code_for_another_cpu_is_refused(made: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tvm_library, "cpu_features", lambda: frozenset({"sse2"}))
    with pytest.raises(LoadError, match="code for x86-64-v3; this CPU lacks avx, avx2"):
        OnnxRuntimeBackend().load(made, LoadOptions())


def test_a_library_of_regions_is_no_model(made: Artifact) -> None:
    path = made.path.with_name(LIBRARY)
    with pytest.raises(LoadError, match="it holds operators for ONNX Runtime"):
        TvmBackend().load(Artifact("tvm", path, (), ()), LoadOptions())


def test_code_that_ends_its_process_is_refused(
    made: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regions_trial, "check_runs", CHECK_RUNS)
    executable = OnnxRuntimeBackend().load(made, LoadOptions(threads=1))
    executable.close()
    library = made.path.with_name(LIBRARY)
    data = bytearray(library.read_bytes())
    # No instruction of the code is left, its description is.
    end = tvm_library.read(library)
    assert end.kind == "regions"
    text = _section(bytes(data), b".text")
    data[text] = b"\xcc" * (text.stop - text.start)
    fresh = library.with_name("damaged.so")
    fresh.write_bytes(bytes(data))
    fresh.replace(library)
    with pytest.raises(LoadError, match="ends the process: SIG"):
        OnnxRuntimeBackend().load(made, LoadOptions(threads=1))


def _section(data: bytes, name: bytes) -> slice:
    """Where a section of an ELF file of 64 bits lies."""
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    rows = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    strings = rows[names][4]
    for row in rows:
        if data[strings + row[0] :].startswith(name + b"\0"):
            return slice(row[4], row[4] + row[5])
    raise ValueError(name)
