"""Bound runs on an NVIDIA GPU: in order with a fake device here, for real where there is one."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.onnxruntime import cuda as module
from edgeinfer.backends.onnxruntime.backend import OnnxRuntimeBackend
from edgeinfer.errors import ClosedError
from edgeinfer.types import Array

HAS_GPU = any(d.kind == "gpu" for d in OnnxRuntimeBackend().probe().devices)
gpu = pytest.mark.skipif(not HAS_GPU, reason="needs an NVIDIA GPU and onnxruntime-gpu")

Log = list[tuple[Any, ...]]


class FakeTransfers:
    def __init__(self, log: Log, memory: dict[int, Array]) -> None:
        self.log, self.memory = log, memory

    def pin(self, array: Array) -> None:
        self.log.append(("pin", array.nbytes))

    def to_device(self, address: int, array: Array) -> None:
        self.log.append(("in", address))
        self.memory[address][...] = array

    def wait(self) -> None:
        self.log.append(("wait",))

    def to_host(self, array: Array, address: int) -> None:
        self.log.append(("out", address))
        array[...] = self.memory[address]

    def close(self) -> None:
        self.log.append(("close",))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Log]:
    """A session whose model negates what lies on the "device"."""
    log: Log = []
    memory: dict[int, Array] = {}
    bound: dict[str, int] = {}

    def on_device(array: Array) -> Any:
        address = 1000 + len(memory)
        memory[address] = np.zeros_like(array)
        return SimpleNamespace(data_ptr=lambda: address)

    def run(_: Any, settings: Any) -> None:
        log.append(("run", settings.get_run_config_entry("gpu_graph_id")))
        memory[bound["y"]][...] = -memory[bound["x"]]

    def bind(name: str, value: Any) -> None:
        bound[name] = value.data_ptr()

    monkeypatch.setattr(
        "edgeinfer.machine.cuda.Transfers", lambda index: FakeTransfers(log, memory)
    )
    monkeypatch.setattr(module, "_on_device", on_device)
    binding = SimpleNamespace(bind_ortvalue_input=bind, bind_ortvalue_output=bind)
    infos = [SimpleNamespace(name="Cuda")]
    return SimpleNamespace(
        io_binding=lambda: binding,
        run_with_iobinding=run,
        get_inputs=lambda: [SimpleNamespace(name="x")],
        get_input_memory_infos=lambda: infos,
    ), log


def test_each_call_copies_in_runs_and_copies_out(fake: tuple[Any, Log]) -> None:
    session, log = fake
    x, y = np.zeros(2, np.float32), np.zeros(2, np.float32)
    bound = module.CudaBound(session, {"x": x}, {"y": y})
    assert log == [("pin", 8), ("pin", 8)]
    for step in (1, 2):
        log.clear()
        x[...] = step
        bound()
        assert y.tolist() == [-step, -step]
        assert [entry[0] for entry in log] == ["in", "wait", "run", "out"]
    bound.release()
    assert log[-1] == ("close",)
    with pytest.raises(ClosedError):
        bound()
    assert bound.outputs["y"] is y


def test_each_binding_has_a_graph_of_its_own(fake: tuple[Any, Log]) -> None:
    session, log = fake
    x = np.zeros(2, np.float32)
    for _ in range(2):
        module.CudaBound(session, {"x": x}, {"y": x.copy()})()
    first, second = (entry[1] for entry in log if entry[0] == "run")
    assert first != second
    assert "-1" not in (first, second)


Load = Callable[[str], Any]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def opened(graph: str) -> Any:
        head = '<ir_version: 10, opset_import: ["" : 21]> g '
        path = tmp_path / "model.onnx"
        onnx.save(onnx.parser.parse_model(head + graph), path)
        return OnnxRuntimeBackend().load(Artifact("onnx", path, (), ()), LoadOptions(device="gpu"))

    return opened


@gpu
def test_runs_and_bound_runs_of_several_sizes_mix(load: Load) -> None:
    executable = load("(float[n,3] x, float[3,4] w) => (float[n,4] y) { y = MatMul(x, w) }")
    rng = np.random.default_rng(0)
    w = rng.standard_normal((3, 4), np.float32)
    bounds = []
    for n in (1, 5, 2):
        x, y = rng.standard_normal((n, 3), np.float32), np.zeros((n, 4), np.float32)
        bounds.append((executable.bind({"x": x, "w": w}, {"y": y}), x, y))
    for _ in range(4):
        for bound, x, y in bounds:
            x[...] = rng.standard_normal(x.shape, np.float32)
            bound()
            np.testing.assert_allclose(y, x @ w, rtol=1e-5, atol=1e-6)
            got = executable.run({"x": x + 1, "w": w})["y"]
            np.testing.assert_allclose(got, (x + 1) @ w, rtol=1e-5, atol=1e-6)
    executable.close()
    with pytest.raises(ClosedError):
        bounds[0][0]()


@gpu
def test_control_flow_runs_without_a_graph(load: Load) -> None:
    executable = load(
        "(bool c, float[2] x) => (float[2] y) { y = If(c) <then_branch = t () => (float[2] a)"
        " { a = Neg(x) }, else_branch = e () => (float[2] b) { b = Abs(x) }> }"
    )
    x, y = np.array([1, -2], np.float32), np.zeros(2, np.float32)
    c = np.zeros((), bool)
    bound = executable.bind({"c": c, "x": x}, {"y": y})
    for value, want in ((True, -x), (False, abs(x)), (True, -x)):
        c[...] = value
        bound()
        np.testing.assert_array_equal(y, want)
        np.testing.assert_array_equal(executable.run({"c": c, "x": x})["y"], want)


@gpu
@pytest.mark.parametrize("dtype", ["float16", "int32", "int64", "bool", "uint8"])
def test_element_types(load: Load, dtype: str) -> None:
    executable = load(f"({dtype}[4] x) => ({dtype}[4] y) {{ y = Identity(x) }}")
    x = np.array([0, 1, 1, 0]).astype(dtype)
    y = np.zeros_like(x)
    bound = executable.bind({"x": x}, {"y": y})
    for _ in range(3):
        bound()
        np.testing.assert_array_equal(y, x)
        x[...] = x[::-1].copy()
