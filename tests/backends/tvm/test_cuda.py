"""A library as a CUDA graph: what is copied and replayed, with the CPU in place of the card."""

import ctypes
import importlib.util
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

if importlib.util.find_spec("tvm") is None:
    pytest.skip("apache-tvm is not installed", allow_module_level=True)

import tvm

from edgeinfer.backends.testing.cases import graph
from edgeinfer.backends.tvm import cuda as tvm_cuda
from edgeinfer.backends.tvm.cuda import Recorded
from edgeinfer.backends.tvm.library import Library
from edgeinfer.convert.lower.tvm.build import prepared
from edgeinfer.convert.lower.tvm.direct import direct
from edgeinfer.convert.lower.tvm.graph import lower_graph
from edgeinfer.convert.lower.tvm.machines import machine
from edgeinfer.convert.lower.tvm.tuned import Tuning
from edgeinfer.convert.passes import input_specs, normalise, output_specs
from edgeinfer.errors import ClosedError
from edgeinfer.machine import cuda
from edgeinfer.types import Array

W = (np.random.default_rng(0).standard_normal((8, 8)) * 0.4).astype(np.float32)
MODEL = graph(
    """(float[2,8] x) => (float[2,8] y, float[2,8] z) {
        a = MatMul(x, w) b = Tanh(a) c = MatMul(b, w) d = Relu(c)
        e = MatMul(d, w) y = Add(e, b) z = Softmax(d) }""",
    w=W,
)


def expected(x: Array) -> tuple[Array, Array]:
    b = np.tanh(x @ W)
    d = np.maximum(b @ W, 0)
    e = np.exp(d - d.max(axis=-1, keepdims=True))
    return d @ W + b, e / e.sum(axis=-1, keepdims=True)


class Driver:
    """Copies as the driver does; a graph is the work that was recorded."""

    def __init__(self) -> None:
        self.replay: Callable[[], None] = lambda: None
        self.pinned: set[int] = set()

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *_: 0

    def cuMemcpyHtoDAsync_v2(self, to: Any, source: Any, size: Any, _: Any) -> int:  # noqa: N802
        ctypes.memmove(to.value, source.value, size.value)
        return 0

    def cuMemcpyDtoHAsync_v2(self, to: Any, source: Any, size: Any, _: Any) -> int:  # noqa: N802
        ctypes.memmove(to.value, source.value, size.value)
        return 0

    def cuGraphLaunch(self, *_: Any) -> int:  # noqa: N802
        self.replay()
        return 0

    def cuMemHostRegister_v2(self, address: Any, *_: Any) -> int:  # noqa: N802
        self.pinned.add(address.value)
        return 0

    def cuMemHostUnregister(self, address: Any) -> int:  # noqa: N802
        self.pinned.discard(address.value)
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    found = Driver()
    monkeypatch.setattr(cuda, "_driver", lambda: found)
    monkeypatch.setattr(tvm_cuda, "_DEVICE", "cpu")
    return found


@pytest.fixture
def recorded(driver: Driver) -> Recorded:
    model = normalise(ir.from_proto(MODEL)).model
    where, tuning = machine("x86-64-v3"), Tuning()
    lowered = lower_graph(model, where, tuning)
    assert lowered.module is not None
    made = direct(prepared(lowered.module, where, tuning), own_memory=False)
    assert len(made.memory) > 1
    name = str(made.function.attrs["global_symbol"])
    options = {"tirx.disable_storage_rewrite": True}
    with tvm.transform.PassContext(config=options):
        built = tvm.compile(tvm.IRModule({name: made.function}), target=where.target()).jit()
    function = built[name]

    def noted(*arguments: Any) -> None:
        driver.replay = lambda: function(*arguments)
        function(*arguments)

    about = Library(
        kind="direct",
        arch="x86_64",
        system="linux",
        machine="sm_90",
        features=(),
        device="gpu",
        parallel=False,
        inputs=input_specs(model),
        outputs=output_specs(model),
        weights=(),
        tvm="0",
        memory=tuple(made.memory),
    )
    return Recorded(noted, about, made.weights)


def test_each_run_has_its_own_numbers(recorded: Recorded) -> None:
    rng = np.random.default_rng(1)
    for _ in range(3):
        x = rng.standard_normal((2, 8)).astype(np.float32)
        outputs = [np.empty((2, 8), np.float32) for _ in range(2)]
        recorded.run([x], outputs)
        for got, right in zip(outputs, expected(x), strict=True):
            np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-5)


def test_bound_arrays_are_pinned_until_the_call_is_let_go(
    recorded: Recorded, driver: Driver
) -> None:
    x = np.ones((2, 8), np.float32)
    outputs = [np.empty((2, 8), np.float32) for _ in range(2)]
    call = recorded.bound([x], outputs)
    assert driver.pinned == {a.ctypes.data for a in (x, *outputs)}
    x[:] = 0.5
    call()
    np.testing.assert_allclose(outputs[0], expected(x)[0], rtol=1e-5, atol=1e-5)
    del call
    assert driver.pinned == set()


def test_threads_do_not_mix_their_numbers(recorded: Recorded) -> None:
    wrong: list[float] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(20):
            x = rng.standard_normal((2, 8)).astype(np.float32)
            outputs = [np.empty((2, 8), np.float32) for _ in range(2)]
            recorded.run([x], outputs)
            wrong.append(float(np.abs(outputs[0] - expected(x)[0]).max()))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 80
    assert max(wrong) < 1e-5


def test_after_close_it_says_so(recorded: Recorded, tmp_path: Path) -> None:
    outputs = [np.empty((2, 8), np.float32) for _ in range(2)]
    call = recorded.bound([np.ones((2, 8), np.float32)], outputs)
    recorded.close()
    recorded.close()
    with pytest.raises(ClosedError):
        recorded.run([np.ones((2, 8), np.float32)], outputs)
    with pytest.raises(ClosedError):
        call()
