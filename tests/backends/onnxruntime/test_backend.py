"""What is particular to ONNX Runtime; everything else is in the conformance kit."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from edgeinfer.backends.base import Artifact, Device, LoadOptions
from edgeinfer.backends.engines import import_onnxruntime
from edgeinfer.backends.onnxruntime import backend as module
from edgeinfer.backends.onnxruntime.backend import OnnxRuntimeBackend
from edgeinfer.errors import LoadError, NotAvailableError
from edgeinfer.machine import cuda
from edgeinfer.types import TensorSpec
from tests.backends.conftest import Write


def load(artifact: Artifact, **options: Any) -> Any:
    return OnnxRuntimeBackend().load(artifact, LoadOptions(**options))


def test_undescribed_model_is_described_by_the_engine(write: Write) -> None:
    executable = load(write("(float[N,3] x, float[?] z) => (int64[1] y) { y = Shape(z) }"))
    assert executable.inputs == (
        TensorSpec("x", "float32", ("N", 3)),
        TensorSpec("z", "float32", (None,)),
    )
    assert executable.outputs == (TensorSpec("y", "int64", (1,)),)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("(seq(float[2]) x) => (int64 y) { y = SequenceLength(x) }", r"seq\(tensor\(float\)\)"),
        ("(optional(float[2]) x) => (bool y) { y = OptionalHasElement(x) }", "optional"),
    ],
)
def test_what_has_no_array_is_refused(write: Write, text: str, kind: str) -> None:
    with pytest.raises(LoadError, match=f"input 'x' is {kind}.*which has no array"):
        load(write(text))


def test_weights_in_another_file(tmp_path: Path) -> None:
    text = (
        '<ir_version: 10, opset_import: ["" : 21]> g (float[4] x) => (float[4] y) {y = Add(x, w)}'
    )
    model = onnx.parser.parse_model(text)
    w = np.arange(4, dtype=np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    artifact = Artifact("onnx", path, (), ())
    y = load(artifact).run({"x": np.ones(4, np.float32)})["y"]
    assert y.tolist() == [1, 2, 3, 4]
    (tmp_path / "w.bin").write_bytes(b"\0" * 3)
    with pytest.raises(LoadError, match="onnxruntime refuses"):
        load(artifact)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(LoadError, match="onnxruntime refuses"):
        load(artifact)


def test_input_with_a_default_may_be_described_or_not(tmp_path: Path) -> None:
    """An initializer that is also an input keeps its value when nobody describes it."""
    text = '<ir_version: 3, opset_import: ["" : 7]> g (float[1] x, float[1] w) => (float[1] y)'
    model = onnx.parser.parse_model(text + " <float[1] w = {5}> { y = Add(x, w) }")
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    executable = load(Artifact("onnx", path, (), ()))
    assert [spec.name for spec in executable.inputs] == ["x"]
    assert executable.run({"x": np.ones(1, np.float32)})["y"].tolist() == [6]


def test_optimisation_is_off_when_asked(write: Write) -> None:
    artifact = write("(float[2] x) => (float[2] y) { a = Identity(x) b = Identity(a) y = Neg(b) }")
    sessions = [load(artifact, optimize=optimize)._session for optimize in (True, False)]
    levels = [s.get_session_options().graph_optimization_level.name for s in sessions]
    assert levels == ["ORT_ENABLE_ALL", "ORT_DISABLE_ALL"]


def test_options_reach_the_engine(write: Write) -> None:
    artifact = write("(float[2] x) => (float[2] y) { y = Neg(x) }")
    extra = {"session.set_denormal_as_zero": "1", "session.x64quantprecision": "0"}
    settings = load(artifact, threads=3, spinning=True, extra=extra)._session.get_session_options()
    assert settings.intra_op_num_threads == 3
    assert settings.inter_op_num_threads == 1
    entries = ("session.intra_op.allow_spinning", *extra)
    assert [settings.get_session_config_entry(e) for e in entries] == ["1", "1", "0"]


def test_threads_are_divided_among_runs_that_go_on_at_once(write: Write) -> None:
    artifact = write("(float[2] x) => (float[2] y) { y = Neg(x) }")
    for threads, callers, each in ((4, 1, 4), (4, 2, 2), (4, 4, 1), (2, 4, 1)):
        settings = load(artifact, threads=threads, callers=callers)._session.get_session_options()
        assert settings.intra_op_num_threads == each


def test_absent_gpu_says_what_to_do(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeinfer.machine.cuda.cuda_devices", lambda: ())
    with pytest.raises(NotAvailableError, match="'gpu' here, only cpu; needs an NVIDIA driver"):
        load(write("(float[2] x) => (float[2] y) { y = Neg(x) }"), device="gpu")


@pytest.mark.filterwarnings("ignore:Specified provider:UserWarning")
def test_gpu_that_the_engine_declines_is_no_fallback(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The build lists CUDA and the driver a card, but the provider cannot be created.

    Where there is a card, because there is no hundredth.
    """
    ort = import_onnxruntime()
    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(ort, "get_available_providers", lambda: providers)
    monkeypatch.setattr("edgeinfer.machine.cuda.cuda_devices", lambda: (Device("gpu", "card"),))
    assert [d.kind for d in OnnxRuntimeBackend().probe().devices] == ["gpu", "cpu"]
    artifact = write("(float[2] x) => (float[2] y) { y = Neg(x) }")
    with pytest.raises(LoadError, match=r"CPU EP has been explicitly disabled|device"):
        load(artifact, device="gpu", extra={"device_id": "99"})


def test_gpu_session_forbids_the_cpu() -> None:
    config, provider = module._split_extra(LoadOptions(device="gpu"))
    assert config["session.disable_cpu_ep_fallback"] == "1"
    assert provider == {"use_tf32": "0"}
    options = LoadOptions(
        device="gpu",
        precise=False,
        extra={"session.disable_cpu_ep_fallback": "0", "enable_cuda_graph": "1"},
    )
    config, provider = module._split_extra(options)
    assert config["session.disable_cpu_ep_fallback"] == "0"
    assert provider == {"use_tf32": "1", "enable_cuda_graph": "1"}


def test_public_api_serves_when_the_private_one_is_gone(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = np.array([1, -2], np.float32), np.zeros(2, np.float32)
    artifact = write("(float[2] x) => (float[2] y) { y = Neg(x) }")
    native = load(artifact)
    assert native._run.__self__ is native._session._sess
    monkeypatch.setattr(module, "_raw", lambda session, method: getattr(session, method))
    public = load(artifact)
    assert public._run.__self__ is public._session
    assert public.run({"x": x})["y"].tolist() == [-1, 2]
    bound = public.bind({"x": x}, {"y": y})
    bound()
    assert y.tolist() == [-1, 2]


def test_missing_private_method_gives_the_public_one() -> None:
    public = SimpleNamespace(run=lambda: "public", _sess=SimpleNamespace())
    assert module._raw(public, "run")() == "public"
    public._sess.run = lambda: "native"
    assert module._raw(public, "run")() == "native"
    del public._sess
    assert module._raw(public, "run")() == "public"


def test_absent_engine_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ImportError("libstdc++.so.6: version `GLIBCXX_3.4.32'\nnot found")

    monkeypatch.setattr(module, "import_onnxruntime", broken)
    probe = OnnxRuntimeBackend().probe()
    assert not probe.available
    assert probe.reason == (
        "onnxruntime cannot be imported: libstdc++.so.6: version `GLIBCXX_3.4.32' not found; "
        "pip install 'edgeinfer[onnxruntime]'"
    )


def test_closing_frees_the_session(write: Write) -> None:
    import weakref

    artifact = write("(float[2] x) => (float[2] y) { y = Neg(x) }")
    executable = load(artifact, threads=4)
    x = np.zeros(2, np.float32)
    bound = executable.bind({"x": x}, {"y": x.copy()})
    session = weakref.ref(executable._session)
    before = threading.active_count()
    executable.close()
    assert session() is None
    assert bound.inputs["x"] is x
    assert threading.active_count() <= before


def test_a_product_with_dequantized_blocks_is_exact(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    q = rng.integers(0, 16, (128, 64))
    scales = rng.random((4, 64)).astype(np.float32)
    text = (
        '<ir_version: 10, opset_import: ["": 21]> g (float[1,128] x) => (float[1,64] y) '
        "{ w = DequantizeLinear<axis=0, block_size=32>(q, s) y = MatMul(x, w) }"
    )
    model = onnx.parser.parse_model(text)
    held = onnx.helper.make_tensor("q", onnx.TensorProto.UINT4, q.shape, q.ravel())
    model.graph.initializer.extend([held, onnx.numpy_helper.from_array(scales, "s")])
    onnx.save(model, tmp_path / "model.onnx")
    x = rng.standard_normal((1, 128)).astype(np.float32)
    got = load(Artifact("onnx", tmp_path / "model.onnx", (), ())).run({"x": x})["y"]
    want = x.astype(np.float64) @ (q * np.repeat(scales, 32, axis=0))
    assert np.abs(got - want).max() < 1e-5 * np.abs(want).max()


def test_tf32_is_for_gpus_that_have_it(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = LoadOptions("gpu")
    artifact = write("(float[2] x) => (float[2] y) { y = Neg(x) }")
    told = replace(artifact, computed_in="tf32")
    assert module._told(artifact, gpu) is gpu
    monkeypatch.setattr(cuda, "compute_capability", lambda: "8.6")
    assert module._split_extra(module._told(told, gpu))[1]["use_tf32"] == "1"
    monkeypatch.setattr(cuda, "compute_capability", lambda: "7.5")
    with pytest.raises(NotAvailableError, match=r"in tf32, .* from compute capability 8.0 on"):
        module._told(told, gpu)
    with pytest.raises(NotAvailableError, match="computed in tf32, which it does on NVIDIA's"):
        OnnxRuntimeBackend().load(replace(artifact, computed_in="tf32"), LoadOptions())
    with pytest.raises(LoadError, match="computes only in tf32, not in 'bf16'"):
        OnnxRuntimeBackend().load(replace(artifact, computed_in="bf16"), LoadOptions())


@pytest.mark.parametrize(
    ("precision", "tf32"), [("fp32", "0"), ("fp16+fp32", "0"), ("fp16", "1"), ("bf16", "1")]
)
def test_tensor_cores_are_for_halves_where_no_product_is_single(
    write: Write, precision: str, tf32: str
) -> None:
    artifact = replace(write("(float[2] x) => (float[2] y) { y = Neg(x) }"), precision=precision)
    asked = module._told(artifact, LoadOptions("gpu"))
    assert module._split_extra(asked)[1]["use_tf32"] == tf32
    assert module._told(artifact, LoadOptions()) == LoadOptions()
