"""What is particular to OpenVINO; everything else is in the conformance kit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edgeinfer.backends.base import Artifact, Device, LoadOptions
from edgeinfer.backends.engines import import_openvino
from edgeinfer.backends.openvino import backend as module
from edgeinfer.backends.openvino.backend import OpenVinoBackend
from edgeinfer.backends.openvino.running import may_fail
from edgeinfer.errors import LoadError, NotAvailableError, RunError
from edgeinfer.types import TensorSpec
from tests.backends.conftest import Write

pytest.importorskip("openvino")


def load(artifact: Artifact, **options: Any) -> Any:
    return OpenVinoBackend().load(artifact, LoadOptions(**options))


def test_undescribed_model_is_described_by_the_engine(write: Write) -> None:
    executable = load(write("(float[N,3] x) => (bool[N,3] y) { y = IsNaN(x) }"))
    assert executable.inputs == (TensorSpec("x", "float32", (None, 3)),)
    assert executable.outputs == (TensorSpec("y", "bool", (None, 3)),)


def test_strings_are_refused(write: Write) -> None:
    with pytest.raises(LoadError, match="input 's' has elements <Type: 'string'>"):
        load(write("(string[2] s) => (string[2] y) { y = Identity(s) }"))


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_integers_beyond_32_bits_are_refused(write: Write, value: int) -> None:
    executable = load(write("(int64[2] x) => (int64[2] y) { y = Identity(x) }"))
    assert executable.run({"x": np.array([2**31 - 1, -(2**31)])})["y"].tolist() == [
        2**31 - 1,
        -(2**31),
    ]
    x = np.array([0, value])
    with pytest.raises(RunError, match="input 'x': openvino computes 64-bit integers in 32 bits"):
        executable.run({"x": x})
    with pytest.raises(RunError, match="32 bits"):
        executable.bind({"x": x}, {"y": x.copy()})()


def test_optimisation_cannot_be_switched_off(write: Write) -> None:
    with pytest.raises(LoadError, match="cannot switch its graph optimisation off"):
        load(write("(float[2] x) => (float[2] y) { y = Neg(x) }"), optimize=False)


def test_precise_asks_for_full_precision(write: Write) -> None:
    artifact = write("(float[2] x) => (float[2] y) { y = Neg(x) }")
    compiled = load(artifact, threads=2)._compiled
    hidden = {"CPU_RUNTIME_CACHE_CAPACITY"}
    got = {k: compiled.get_property(k) for k in module._config(LoadOptions()).keys() - hidden}
    assert got["INFERENCE_PRECISION_HINT"].get_type_name() == "f32"
    assert got["EXECUTION_MODE_HINT"].name == "ACCURACY"
    assert got["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == 0
    assert got["KV_CACHE_PRECISION"].get_type_name() == "f32"
    assert got["INFERENCE_NUM_THREADS"] == 2
    assert got["ENABLE_CPU_PINNING"] is False


def test_threads_are_divided_among_runs_that_go_on_at_once(write: Write) -> None:
    executable = load(write("(float[2] x) => (float[2] y) { y = Neg(x) }"), threads=2, callers=2)
    compiled = executable._compiled
    assert compiled.get_property("NUM_STREAMS") == 2
    assert compiled.get_property("INFERENCE_NUM_THREADS") == 2
    x = np.asarray([1, 2], np.float32)
    with ThreadPoolExecutor(4) as pool:
        for y in pool.map(lambda k: executable.run({"x": x * k})["y"], range(16)):
            assert y.shape == (2,)
    np.testing.assert_array_equal(executable.run({"x": x})["y"], -x)


def test_without_precise_the_engine_chooses() -> None:
    config = module._config(LoadOptions(precise=False, threads=1))
    assert config.keys() == {
        "PERFORMANCE_HINT",
        "INFERENCE_NUM_THREADS",
        "ENABLE_CPU_PINNING",
        "CPU_RUNTIME_CACHE_CAPACITY",
    }


def test_other_devices_get_no_cpu_options() -> None:
    config = module._config(LoadOptions(device="npu", extra={"NPU_TURBO": "YES"}))
    assert config == {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "EXECUTION_MODE_HINT": "ACCURACY",
        "NPU_TURBO": "YES",
    }


def test_unknown_property_is_refused(write: Write) -> None:
    artifact = write("(float[2] x) => (float[2] y) { y = Neg(x) }")
    with pytest.raises(LoadError, match="NO_SUCH_PROPERTY"):
        load(artifact, extra={"NO_SUCH_PROPERTY": "1"})


def test_devices_are_mapped_by_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    class Core:
        available_devices = ("CPU", "GPU.0", "GPU.1", "NPU", "HETERO")

        def get_property(self, device: str, name: str) -> str:
            return f"Intel {device} of {name}"

    monkeypatch.setattr(module, "_core", Core)
    devices = OpenVinoBackend().probe().devices
    assert [(d.kind, d.index) for d in devices] == [("gpu", 0), ("gpu", 1), ("npu", 0), ("cpu", 0)]
    assert devices[1] == Device("gpu", "Intel GPU.1 of FULL_DEVICE_NAME", 1)
    assert module._device_name(LoadOptions(device="gpu")) == "GPU.0"


def test_a_card_of_others_is_no_device_of_openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    class Core:
        available_devices = ("CPU", "GPU.0", "GPU.1")

        def get_property(self, device: str, name: str) -> str:
            return {
                "GPU.0": "NVIDIA H200 (dGPU)",
                "GPU.1": "Intel(R) Arc(TM) A770 Graphics (dGPU)",
            }.get(device, "AMD EPYC")

    monkeypatch.setattr(module, "_core", Core)
    assert [(d.kind, d.index) for d in OpenVinoBackend().probe().devices] == [
        ("gpu", 1),
        ("cpu", 0),
    ]
    assert module._device_name(LoadOptions(device="gpu")) == "GPU.1"


def test_absent_npu_says_what_to_do(write: Write) -> None:
    with pytest.raises(NotAvailableError, match=r"no device 'npu' here.*needs the vendor's driver"):
        load(write("(float[2] x) => (float[2] y) { y = Neg(x) }"), device="npu")


@pytest.mark.parametrize("damage", ["missing", "half"])
def test_weights_of_an_ir_must_be_whole(tmp_path: Path, damage: str) -> None:
    text = (
        '<ir_version: 10, opset_import: ["" : 21]> g (float[4] x) => (float[4] y) {y = Add(x, w)}'
    )
    model = onnx.parser.parse_model(text)
    w = np.random.default_rng(0).standard_normal(4).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    onnx.save(model, tmp_path / "model.onnx")
    openvino = import_openvino()
    source = openvino.Core().read_model(str(tmp_path / "model.onnx"))
    openvino.save_model(source, str(tmp_path / "model.xml"), compress_to_fp16=False)
    weights = tmp_path / "model.bin"
    artifact = Artifact("openvino_ir", tmp_path / "model.xml", (), ())
    assert load(artifact).run({"x": np.zeros(4, np.float32)})["y"].tolist() == w.tolist()
    whole = weights.read_bytes()
    weights.unlink() if damage == "missing" else weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LoadError, match=r"model\.xml"):
        load(artifact)


def test_smaller_result_than_the_buffer_is_an_error(write: Write) -> None:
    """The engine alone fills the first rows and says nothing."""
    executable = load(write("(float[4] x) => (int64[1,N] y) { y = NonZero(x) }"))
    y = np.full((1, 4), 9)
    x = np.ones(4, np.float32)
    bound = executable.bind({"x": x}, {"y": y})
    bound()
    assert y.tolist() == [[0, 1, 2, 3]]
    x[1] = 0
    with pytest.raises(RunError, match=r"buffer has shape \(1, 4\), the result \(1, 3\)"):
        bound()


def test_messages_leave_the_engines_source_out(write: Write) -> None:
    artifact = write("(float[2] x) => (float[2] y) { y = Acme(x) }")
    with pytest.raises(LoadError) as caught:
        load(artifact)
    assert "Exception from" not in str(caught.value)
    assert "Acme" in str(caught.value)


def test_requests_are_reused(write: Write) -> None:
    executable = load(write("(float[2] x) => (float[2] y) { y = Neg(x) }"))
    for _ in range(5):
        executable.run({"x": np.zeros(2, np.float32)})
    assert len(executable._idle) == 1
    with pytest.raises(RunError):
        executable.run({"x": np.zeros(3, np.float32)})
    executable.run({"x": np.zeros(2, np.float32)})
    assert len(executable._idle) == 1


def test_large_strided_input_outlives_the_call(write: Write) -> None:
    """The request does not own its inputs: the copy of a strided one was freed before the run."""
    executable = load(
        write(
            "(float[2,64,64,64] a, float[2,64,64,64] b) => (float[2,64,64,64] y) { y = Sub(a, b) }"
        )
    )
    rng = np.random.default_rng(0)
    a, b = (rng.random((64, 64, 64, 2), np.float32).transpose(3, 2, 1, 0) for _ in range(2))
    for _ in range(3):
        np.testing.assert_array_equal(executable.run({"a": a, "b": b})["y"], a - b)


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_while_running_is_raised(write: Write, threads: int) -> None:
    """With one thread the engine's own call gives an empty result and no error."""
    executable = load(
        write("(float[A,B] x, float[B,C] w) => (float[A,C] y) { r = MatMul(x, w) y = Relu(r) }"),
        threads=threads,
    )
    x = np.ones((2, 3), np.float32)
    with pytest.raises(RunError):
        executable.run({"x": x, "w": np.ones((4, 2), np.float32)})
    assert executable.run({"x": x, "w": np.ones((3, 2), np.float32)})["y"].shape == (2, 2)


STATIC = "(float[4,3] x, int64[2,1] i, float[2,3] u) => (float[4,3] y) { y = ScatterND(x, i, u) }"


@pytest.mark.parametrize("threads", [1, 2])
def test_a_place_beyond_the_end_is_raised_where_sizes_are_fixed(write: Write, threads: int) -> None:
    executable = load(write(STATIC), threads=threads)
    x, u = np.zeros((4, 3), np.float32), np.ones((2, 3), np.float32)
    with pytest.raises(RunError):
        executable.run({"x": x, "i": np.array([[99], [0]]), "u": u})
    y = executable.run({"x": x, "i": np.array([[1], [2]]), "u": u})["y"]
    np.testing.assert_array_equal(y[:, 0], [0, 1, 1, 0])


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ("(float[2,3] x) => (float[2,3] y) { y = Relu(x) }", False),
        ("(uint8[2,3] x) => (float[2,3] y) { c = Cast<to=1>(x) y = Relu(c) }", False),
        (
            "(float[2,3] x) => (float[3,2] y) { s = Shape(x) i = Constant<value_ints=[1,0]>() "
            "t = Gather(s, i) y = Reshape(x, t) }",
            False,
        ),
        ("(float[N,3] x) => (float[N,3] y) { y = Relu(x) }", True),
        (STATIC, True),
        ("(float[4,3] x, int64[2] i) => (float[2,3] y) { y = Gather(x, i) }", True),
        (
            "(float[2,3] x) => (int64[2,1] y) { y = ArgMax<axis=1>(x) }",
            False,
        ),
        (
            "(int32[1,4] x) => (bool[2,2] y) { s = Constant<value_ints=[2,2]>() "
            "r = Reshape(x, s) c = Constant<value_int=7>() d = Cast<to=6>(c) y = Equal(r, d) }",
            False,
        ),
        (
            "(int64[4] x) => (int64[1] y) { i = Constant<value_ints=[2]>() y = Gather(x, i) }",
            False,
        ),
        ("(float[2,3] x, int64[2] s) => (float[A,B] y) { y = Reshape(x, s) }", True),
        (
            "(float[4,3] x, int64[2] i) => (float[2,3] y) { j = Add(i, i) y = Gather(x, j) }",
            True,
        ),
    ],
)
def test_runs_that_may_bring_an_error_are_known(write: Write, text: str, may: bool) -> None:
    model = import_openvino().Core().read_model(write(text).path)
    assert may_fail(model) == may


def test_large_results_belong_to_the_caller(write: Write) -> None:
    """The engine writes them where they stay; the next run writes elsewhere."""
    executable = load(write("(float[1,64,64,8] x) => (float[1,64,64,8] y) { y = Neg(x) }"))
    x = np.ones((1, 64, 64, 8), np.float32)
    first = executable.run({"x": x})["y"]
    second = executable.run({"x": 2 * x})["y"]
    assert first.flags.owndata
    np.testing.assert_array_equal(first, -x)
    np.testing.assert_array_equal(second, -2 * x)
    executable.close()
    np.testing.assert_array_equal(first, -x)


def test_a_load_on_the_cpu_asks_for_no_other_device(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To list devices loads the plugins and drivers of all."""

    def never(_: object) -> list[str]:
        raise AssertionError("devices were listed")

    monkeypatch.setattr(module, "_names", never)
    executable = load(write("(float[1,2] x) => (float[1,2] y) { y = Relu(x) }"))
    assert executable.run({"x": np.ones((1, 2), np.float32)})["y"].tolist() == [[1.0, 1.0]]
