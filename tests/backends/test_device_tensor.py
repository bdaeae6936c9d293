"""Tensors on an NVIDIA device: the way they take, here with memory of the host in their place."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import edgeinfer
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.device_tensor import DeviceFeeds, DeviceTensor, is_on_device, taken
from edgeinfer.backends.engines import import_onnxruntime
from edgeinfer.backends.onnxruntime import cuda
from edgeinfer.backends.onnxruntime.backend import OnnxRuntimeBackend, OnnxRuntimeExecutable
from edgeinfer.errors import InputError, RunError, UsageError
from edgeinfer.runtime.bound import input_buffers, output_buffers
from edgeinfer.runtime.inputs import InputCheck
from edgeinfer.types import Array, TensorSpec
from tests.cli.conftest import write_bundle

INPUTS = (TensorSpec("x", "float32", ("n", 3)), TensorSpec("w", "float32", (3, 2)))
OUTPUTS = (TensorSpec("y", "float32", ("n", 2)),)
HAS_GPU = any(d.kind == "gpu" for d in OnnxRuntimeBackend().probe().devices)
gpu = pytest.mark.skipif(not HAS_GPU, reason="needs an NVIDIA GPU and onnxruntime-gpu")


class Elsewhere:
    """A tensor that says it lies on a device."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.streams: list[object] = []

    def __dlpack__(self, *, stream: object = None) -> object:
        self.streams.append(stream)
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


def there(array: Array) -> Any:
    """Return it as lying on a device; ``Any``, as what DLPack shares has no type of its own."""
    return Elsewhere(array)


def opened(folder: Path, device: str = "cpu") -> OnnxRuntimeExecutable:
    path = folder / "model.onnx"
    text = (
        '<ir_version: 10, opset_import: ["" : 21]> g (float[n,3] x, float[3,2] w) => '
        "(float[n,2] y) { y = MatMul(x, w) }"
    )
    onnx.save(onnx.parser.parse_model(text), path)
    options = LoadOptions(device="gpu" if device == "gpu" else "cpu")
    return OnnxRuntimeBackend().load(Artifact("onnx", path, INPUTS, OUTPUTS), options)


@pytest.fixture
def executable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OnnxRuntimeExecutable:
    """On the CPU, taken for a GPU; the engine's ``cuda`` memory is the host's."""
    made = opened(tmp_path)
    made._on_gpu = True
    waited: list[str] = []
    nothing = SimpleNamespace(
        wait=lambda: waited.append("wait"), pin=lambda _: None, close=lambda: None
    )
    monkeypatch.setattr("edgeinfer.machine.cuda.Transfers", lambda _: nothing)
    monkeypatch.setattr(cuda, "_DEVICE", "cpu")
    monkeypatch.setattr(cuda, "plain_run_options", lambda _: None)
    return made


def test_a_run_reads_tensors_where_they_are_and_leaves_results_there(
    executable: OnnxRuntimeExecutable,
) -> None:
    x, w = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((3, 2), np.float32)
    given = there(x)
    feeds = InputCheck(INPUTS, there=True)({"x": given, "w": w})
    assert isinstance(feeds, DeviceFeeds)
    assert feeds["x"].address == x.ctypes.data
    assert given.streams == [1]
    result: Any = executable.run(feeds)["y"]
    assert isinstance(result, DeviceTensor)
    assert (result.shape, result.dtype) == ((2, 2), np.dtype("float32"))
    np.testing.assert_array_equal(result.numpy(), x @ w)
    np.testing.assert_array_equal(np.asarray(result), x @ w)
    shared = np.from_dlpack(result)
    del result
    np.testing.assert_array_equal(shared, x @ w)


def test_bound_tensors_are_read_and_written_in_place(executable: OnnxRuntimeExecutable) -> None:
    x, w = np.zeros((2, 3), np.float32), np.ones((3, 2), np.float32)
    y = np.zeros((2, 2), np.float32)
    given = {"x": there(x), "w": there(w)}
    ins = input_buffers(INPUTS, given, there=True)
    outs = output_buffers(INPUTS, OUTPUTS, ins, {"y": there(y)}, there=True)
    bound = executable.bind(ins, outs)
    for step in (1, 2):
        x[...] = step
        bound()
        np.testing.assert_array_equal(y, x @ w)


def test_buffers_that_overlap_on_the_device_are_refused() -> None:
    x, w = np.zeros((2, 3), np.float32), np.ones((3, 2), np.float32)
    ins = input_buffers(INPUTS, {"x": there(x), "w": w}, there=True)
    overlapping = x.reshape(3, 2)[:2]
    with pytest.raises(UsageError, match="shared with 'x'"):
        output_buffers(INPUTS, OUTPUTS, ins, {"y": there(overlapping)}, there=True)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((2, 3)), "expected float32, received float64"),
        (np.ones((3, 3), np.float32).T[:2], r"not contiguous; call \.contiguous\(\)"),
        (np.ones((2, 4), np.float32), "size 3 in axis 1"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused(array: Array, message: str) -> None:
    w = np.ones((3, 2), np.float32)
    with pytest.raises(InputError, match=message):
        InputCheck(INPUTS, there=True)({"x": there(array), "w": w})


def test_elements_of_a_device_are_not_looked_at_in_silence() -> None:
    check = InputCheck(INPUTS, check_finite=True, there=True)
    x, w = np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)
    with pytest.raises(InputError, match="elements can be looked at"):
        check({"x": there(x), "w": w})


def test_an_engine_on_the_cpu_takes_no_tensor_of_a_device(tmp_path: Path) -> None:
    value = taken(Elsewhere(np.ones((2, 3), np.float32)))
    feeds = DeviceFeeds(x=value, w=np.ones((3, 2), np.float32))
    with pytest.raises(RunError, match="the engine runs on the CPU"):
        opened(tmp_path).run(feeds)


def test_a_session_gives_and_takes_torch_tensors(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with edgeinfer.load(write_bundle(tmp_path / "m.edge"), measure=False) as session:
        x = torch.rand(2, 2, 2, 3)
        y = torch.from_dlpack(session.run({"image": x})["scores"])
        torch.testing.assert_close(y, x.mean(dim=(1, 2)))
        out = torch.zeros(2, 3)
        bound = session.bind({"image": x}, {"scores": out})
        x.mul_(2)
        bound()
        torch.testing.assert_close(out, x.mean(dim=(1, 2)))


def test_a_version_without_dlpack_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgeinfer.backends import device_tensor

    old = SimpleNamespace(OrtValue=object)
    monkeypatch.setattr(device_tensor, "import_onnxruntime", lambda: old)
    with pytest.raises(TypeError, match="takes no tensors by DLPack"):
        taken(Elsewhere(np.ones(2, np.float32)))


def test_what_lies_on_a_device_is_told_apart() -> None:
    assert is_on_device(Elsewhere(np.ones(2)))
    assert not is_on_device(np.ones(2))
    assert not is_on_device([1, 2])
    value = import_onnxruntime().OrtValue.ortvalue_from_numpy(np.ones(2, np.float32))
    assert not is_on_device(value)


@gpu
def test_torch_tensors_on_the_device(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    bundle = write_bundle(tmp_path / "m.edge")
    with edgeinfer.load(bundle, device="gpu", measure=False) as session:
        x = torch.rand(2, 2, 2, 3, device="cuda")
        for _ in range(3):
            result: Any = session.run({"image": x})["scores"]
            y = torch.from_dlpack(result)
            assert y.is_cuda
            torch.testing.assert_close(y, x.mean(dim=(1, 2)))
            np.testing.assert_allclose(result.numpy(), y.cpu().numpy())
            x.mul_(1.5)
        out = torch.zeros(2, 3, device="cuda")
        bound = session.bind({"image": x}, {"scores": out})
        for _ in range(4):
            x.uniform_()
            bound()
            torch.testing.assert_close(out, x.mean(dim=(1, 2)))
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            late = torch.rand(2, 2, 2, 3, device="cuda")
            for _ in range(50):
                late = late * 1.01
            got: Any = session.run({"image": late})["scores"]
        torch.cuda.synchronize()
        torch.testing.assert_close(torch.from_dlpack(got), late.mean(dim=(1, 2)))
        mixed = session.bind({"image": x}, {"scores": np.zeros((2, 3), np.float32)})
        np.testing.assert_allclose(mixed()["scores"], x.mean(dim=(1, 2)).cpu().numpy(), rtol=1e-5)
