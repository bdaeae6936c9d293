"""What OpenVINO, LiteRT and TVM say of their operators."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.litert.coverage import placement as litert_placement
from edgeinfer.backends.openvino import backend as openvino_module
from edgeinfer.backends.openvino.backend import OpenVinoBackend
from edgeinfer.backends.openvino.operators import placement
from edgeinfer.backends.operators import Elsewhere, Placement, Profiling
from edgeinfer.backends.tvm.operators import FunctionWatch
from edgeinfer.errors import LoadError

Write = Callable[[str], Artifact]

GRAPH = """(float[1, 8, 32, 32] x, float[8, 8, 3, 3] w) => (float[1, 32, 32, 8] y)
{ a = Conv <pads = [1, 1, 1, 1]> (x, w) b = Relu (a) y = Transpose <perm = [0, 2, 3, 1]> (b) }"""


def available(name: str) -> Any:
    backend = registry.get(name)
    if not backend.probe().available:
        pytest.skip(backend.probe().reason)
    return backend


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "litert", "tvm"])
def test_engine_can_say(name: str) -> None:
    assert isinstance(registry.get(name), Profiling)


class TestOpenVino:
    def test_steps_name_the_operators_they_compute(self, write: Write) -> None:
        backend = available("openvino")
        rng = np.random.default_rng(0)
        feeds = {
            "x": rng.normal(size=(1, 8, 32, 32)).astype(np.float32),
            "w": rng.normal(size=(8, 8, 3, 3)).astype(np.float32),
        }
        profile = backend.profile(write(GRAPH), LoadOptions(threads=1), feeds, runs=20)
        assert profile.tool == "OpenVINO's counters"
        kinds = {op.kind: op for op in profile.operators}
        assert kinds["Convolution"].precision == "float32"
        assert kinds["Convolution"].unit == "CPU"
        assert len(kinds["Convolution"].nodes) >= 2, "the fused Relu is named too"
        assert all(op.us is not None and op.us >= 0 for op in profile.operators)
        assert 0 < profile.covered < 1.5

    @staticmethod
    def core(taken: dict[str, dict[str, str]]) -> Any:
        return SimpleNamespace(query_model=lambda model, device: taken[device])

    @staticmethod
    def model(*ops: tuple[str, str]) -> Any:
        made = [
            SimpleNamespace(
                get_friendly_name=lambda name=name: name, get_type_name=lambda kind=kind: kind
            )
            for name, kind in ops
        ]
        return SimpleNamespace(get_ordered_ops=lambda: made)

    MODEL = (("x", "Parameter"), ("conv", "Convolution"), ("top", "TopK"), ("y", "Result"))

    def test_operators_that_a_device_does_not_take_are_named(self) -> None:
        found = placement(self.core({"GPU": {"conv": "GPU"}}), self.model(*self.MODEL), "GPU")
        assert (found.unit, found.ops) == ("GPU", 2)
        reason = "the plugin of GPU does not take it"
        assert found.elsewhere == (Elsewhere("top", "TopK", "no unit", reason),)

    def test_where_they_may_run_on_the_cpu_that_is_told(self) -> None:
        taken = {"HETERO:GPU.0,CPU": {"conv": "GPU.0", "top": "CPU"}}
        found = placement(self.core(taken), self.model(*self.MODEL), "HETERO:GPU.0,CPU")
        assert [(e.name, e.unit) for e in found.elsewhere] == [("top", "CPU")]

    @pytest.mark.parametrize("fallback", [False, True])
    def test_loading_refuses_or_spreads(
        self, write: Write, monkeypatch: pytest.MonkeyPatch, fallback: bool
    ) -> None:
        """A device that the engine has not got here, with a core that says what it would take."""
        available("openvino")
        compiled: list[str] = []

        class Core:
            available_devices = ("CPU", "GPU")

            def query_model(self, model: Any, device: str) -> dict[str, str]:
                hetero = device.startswith("HETERO")
                return {
                    op.get_friendly_name(): "GPU" if op.get_type_name() == "Convolution" else "CPU"
                    for op in model.get_ordered_ops()
                    if hetero or op.get_type_name() == "Convolution"
                }

            def get_property(self, name: str, key: str) -> str:
                return f"Intel {name}"

            def compile_model(self, model: Any, device: str, config: Any) -> Any:
                compiled.append(device)
                raise RuntimeError("stop here")

        monkeypatch.setattr(openvino_module, "_core", Core)
        options = LoadOptions(device="gpu", fallback=fallback)
        with pytest.raises(LoadError) as caught:
            OpenVinoBackend().load(write(GRAPH), options)
        if fallback:
            assert compiled == ["HETERO:GPU,CPU"]
        else:
            assert compiled == []
            assert "do not run on GPU, by OpenVINO's query_model: " in str(caught.value)
            assert "Transpose" in str(caught.value)


class FakeInterpreter:
    """Two operators in a delegate and one outside, as LiteRT lists them."""

    def _get_ops_details(self) -> list[dict[str, Any]]:
        return [
            {"index": 0, "op_name": "CONV_2D", "inputs": [0], "outputs": [1]},
            {"index": 1, "op_name": "RELU", "inputs": [1], "outputs": [2]},
            {"index": 2, "op_name": "TOPK_V2", "inputs": [2], "outputs": [3]},
            {"index": 3, "op_name": "DELEGATE", "inputs": [0], "outputs": [2]},
        ]

    def get_tensor_details(self) -> list[dict[str, Any]]:
        return [{"index": i, "name": f"t{i}", "dtype": np.float32} for i in range(4)]

    def tensor(self, index: int) -> Callable[[], None]:
        if index == 1:
            raise ValueError("no memory")
        return lambda: None


class TestLitert:
    def test_operators_outside_a_delegate_are_named(self) -> None:
        found = litert_placement(FakeInterpreter(), "libgpu.so")
        reason = "libgpu.so has not taken it"
        left = (Elsewhere("t3", "TOPK_V2", "CPU", reason),)
        assert found == Placement("libgpu.so", 3, left, "LiteRT's list of delegated operators")


def test_time_inside_a_function_of_tvm_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 1.0, 3.0, 10.0])
    monkeypatch.setattr("edgeinfer.backends.tvm.operators.time.perf_counter", lambda: next(now))
    watch = FunctionWatch()
    watch(None, "main", True, None)
    watch(None, "conv", True, None)
    watch(None, "conv", False, None)
    watch(None, "main", False, None)
    assert [name for name, _ in watch.steps] == ["conv", "main"]
    assert [us for _, us in watch.steps] == pytest.approx([2e6, 8e6])
