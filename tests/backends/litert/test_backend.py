"""What is particular to LiteRT, and the conformance kit on files that our lowering writes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.backends.base import Artifact, Coverage, Device, LoadOptions
from edgeinfer.backends.litert import delegates, trial
from edgeinfer.backends.litert.backend import LitertBackend
from edgeinfer.backends.process import guard
from edgeinfer.backends.testing import Subject, conformance
from edgeinfer.backends.testing.subject import describe
from edgeinfer.errors import LoadError, NotAvailableError, RunError, UnsupportedError
from edgeinfer.types import TensorSpec

pytest.importorskip("ai_edge_litert")

from edgeinfer.convert.lower.target import LowerOptions
from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.graph import TensorQuantization
from edgeinfer.convert.lower.tflite.target import TfliteTarget
from edgeinfer.convert.lower.tflite.writer import write
from edgeinfer.convert.passes import normalise
from edgeinfer.profiles.schema import PRECISIONS, Profile

PROFILE = Profile("any", "any", ("linux",), (), ("tflite",), ("litert",), tuple(PRECISIONS))

Save = Callable[..., Artifact]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(trial.TRIALS, "remembered", {})


@cache
def written(model: bytes) -> bytes:
    """Lower a model once, however many checks of the kit ask for it."""
    import onnx

    source = ir.from_proto(onnx.load_from_string(model))
    with tempfile.TemporaryDirectory() as folder:
        try:
            TfliteTarget().lower(normalise(source).model, PROFILE, LowerOptions(), Path(folder))
        except UnsupportedError:
            # What cannot be written is a file that cannot be loaded.
            return b""
        return Path(folder, "model.tflite").read_bytes()


def make_artifact(model: bytes, folder: Path) -> Artifact:
    path = folder / "model.tflite"
    path.write_bytes(written(model))
    return Artifact("tflite", path, *describe(model))


TRIED: dict[str, str] = {}
"""How trials of the kit's files ended, which are the same ones in many checks."""


@pytest.fixture
def tried_once(own_cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial.TRIALS, "remembered", TRIED)


KNOWN = {
    "check_numbers_of_special_values": "LiteRT 2.3 takes values below the normal range for zero",
}


@pytest.mark.usefixtures("tried_once")
@conformance([Subject(LitertBackend(), make_artifact, KNOWN)])
def test_conformance(subject: Subject, check: Any, tmp_path: Path) -> None:
    check(subject, tmp_path)


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Return a function that writes what a function builds; the names are the tensors'."""

    def save(build: Callable[[Builder], None], name: str = "model.tflite") -> Artifact:
        graph = Builder()
        build(graph)
        write(
            graph,
            tmp_path / name,
            input_names=[t.name for t in graph.inputs],
            output_names=[t.name for t in graph.outputs],
        )
        return Artifact("tflite", tmp_path / name, (), ())

    return save


def test_a_result_of_rank_0_is_an_array(tmp_path: Path) -> None:
    """The engine gives a number, which is no answer to a caller that was promised an array."""
    text = """<ir_version: 10, opset_import: ["" : 24]>
    net (float[2, 3] x) => (float y) { y = ReduceMax <keepdims = 0> (x) }"""
    model = ir.to_proto(ir.from_onnx_text(text)).SerializeToString()
    artifact = make_artifact(model, tmp_path)
    loaded = guard.load(LitertBackend(), artifact, LoadOptions())
    x = np.array([[1, -2, 3], [0, 7, 5]], np.float32)
    y = loaded.run({"x": x})["y"]
    assert isinstance(y, np.ndarray)
    assert y.shape == ()
    assert y.dtype == np.float32
    assert float(y) == 7.0
    out = np.zeros((), np.float32)
    loaded.bind({"x": x}, {"y": out})()
    assert float(out) == 7.0
    loaded.close()


def _negation(g: Builder, shape: tuple[int | None, ...] = (None, 3)) -> None:
    x = g.tensor(shape, np.float32, "x")
    y = g.unary("NEG", x)
    y.name = "y"
    g.inputs, g.outputs = [x], [y]


def _unscaled(g: Builder) -> None:
    """int8 without a scale: the kernel divides by nothing and ends the process."""
    a, b = (g.tensor((2,), np.int8, name) for name in "ab")
    y = g.binary("ADD", a, b)
    y.name = "y"
    g.inputs, g.outputs = [a, b], [y]


def load(artifact: Artifact, **options: Any) -> Any:
    return LitertBackend().load(artifact, LoadOptions(**options))


def test_undescribed_model_is_described_by_the_engine(save: Save) -> None:
    executable = load(save(_negation))
    assert executable.inputs == (TensorSpec("x", "float32", (None, 3)),)
    assert executable.outputs == (TensorSpec("y", "float32", (None, 3)),)


def test_sizes_change_and_the_tensors_are_allocated_only_then(
    save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable = load(save(_negation))
    engine = executable._idle[0].interpreter
    calls = []
    plain = engine.allocate_tensors

    def counted() -> None:
        calls.append(1)
        plain()

    monkeypatch.setattr(engine, "allocate_tensors", counted)
    for rows in (1, 2, 2, 2, 0, 1):
        x = np.ones((rows, 3), np.float32)
        np.testing.assert_array_equal(executable.run({"x": x})["y"], -x)
    assert len(calls) == 3
    with pytest.raises(RunError, match=r"expected .* received shape \(1, 4\)"):
        executable.run({"x": np.ones((1, 4), np.float32)})
    assert len(executable._idle) == 1


def test_a_convolution_larger_than_the_files_own_sizes_runs_at_larger_ones(save: Save) -> None:
    def convolution(g: Builder) -> None:
        x = g.tensor((1, None, None, 1), np.float32, "x")
        kernel = g.const(np.ones((1, 3, 3, 1), np.float32))
        bias = g.const(np.zeros(1, np.float32))
        options = {"padding": 1, "stride_w": 1, "stride_h": 1, "fused_activation_function": 0}
        dilation = {"dilation_w_factor": 1, "dilation_h_factor": 1}
        y = g.emit("CONV_2D", [x, kernel, bias], (1, None, None, 1), **options, **dilation)
        y.name = "y"
        g.inputs, g.outputs = [x], [y]

    executable = load(save(convolution))
    with pytest.raises(RunError, match="litert failed"):
        executable.run({"x": np.ones((1, 1, 1, 1), np.float32)})
    for size in (3, 5):
        x = np.ones((1, size, size, 1), np.float32)
        want = np.full((1, size - 2, size - 2, 1), 9.0, np.float32)
        np.testing.assert_array_equal(executable.run({"x": x})["y"], want)


def test_file_that_ends_the_process_is_refused(save: Save) -> None:
    artifact = save(_unscaled)
    with pytest.raises(LoadError, match=r"ends the process: SIG(ABRT|FPE)"):
        load(artifact)


def test_trial_is_remembered_by_content(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = save(_unscaled, "bad.tflite"), save(_negation, "good.tflite")
    with pytest.raises(LoadError, match="ends the process"):
        load(bad)
    load(good)
    monkeypatch.setattr(trial.TRIALS, "attempt", lambda *_: pytest.fail("tried again"))
    trial.TRIALS.remembered.clear()
    with pytest.raises(LoadError, match="ends the process"):
        load(bad)
    load(good)
    copy = good.path.with_name("copy.tflite")
    copy.write_bytes(good.path.read_bytes())
    load(Artifact("tflite", copy, (), ()))


def test_without_a_cache_files_are_tried_all_the_same(
    save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(LoadError, match="ends the process"):
        load(save(_unscaled))


def test_trial_can_be_switched_off(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial.TRIALS, "attempt", lambda *_: pytest.fail("tried"))
    load(save(_negation), extra={"trial": "off"})


def test_custom_operator_is_named(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = save(_negation)
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf(artifact.path.read_bytes(), 0)
    code = model.operatorCodes[0]
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.CUSTOM
    code.customCode = b"ONNX_LSTM"
    import flatbuffers

    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    artifact.path.write_bytes(bytes(builder.Output()))
    with pytest.raises(LoadError, match="it needs the custom operator 'ONNX_LSTM'"):
        load(artifact)


def test_xnnpack_is_a_choice(save: Save) -> None:
    def delegated(**options: Any) -> bool:
        engine = load(save(_negation), **options)._idle[0].interpreter
        return any(op["op_name"] == "DELEGATE" for op in engine._get_ops_details())

    assert delegated()
    assert not delegated(optimize=False)
    assert not delegated(extra={"xnnpack": "off"})
    with pytest.raises(LoadError, match="contradicts"):
        delegated(optimize=False, extra={"xnnpack": "on"})


def test_it_is_told_what_xnnpack_takes(save: Save) -> None:
    def mixed(g: Builder) -> None:
        _negation(g, (2, 3))
        for code in ("SIGN", "ABS", "SIGN"):
            g.outputs = [g.unary(code, g.outputs[0])]

    whole, part = load(save(_negation)), load(save(mixed, "mixed.tflite"))
    assert whole.coverage() == Coverage("XNNPACK", 1, 1)
    assert whole.coverage().whole
    assert part.coverage().left == ("SIGN", "SIGN")
    assert str(part.coverage()) == "XNNPACK takes 2 of 4 operators in 2 partitions; not: SIGN 2"
    # A look changes nothing.
    x = np.ones((4, 3), np.float32)
    np.testing.assert_array_equal(whole.run({"x": x})["y"], -x)
    assert whole.coverage().whole
    assert load(save(_negation), optimize=False).coverage() is None
    whole.close()
    assert whole.coverage() is None


@pytest.mark.parametrize(
    ("extra", "fault"),
    [
        ({"xnnpack": "yes"}, "expected on or off, received 'yes'"),
        ({"xnpack": "on"}, "unknown options xnpack"),
        ({"delegate": "magic"}, "no delegate is named 'magic'; there are gpu"),
        ({"delegate": "edgetpu"}, "delegate 'edgetpu' runs on a npu"),
        ({"delegate": "/nowhere/libx.so"}, r"/nowhere/libx\.so"),
        ({"delegate.cache": "1"}, "no delegate is named"),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_bad_options_are_refused(save: Save, extra: dict[str, str], fault: str) -> None:
    with pytest.raises(LoadError, match=fault):
        load(save(_negation), extra=extra)


def test_only_a_delegate_that_may_be_here_is_looked_for_by_other_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def find_library(name: str) -> str:
        asked.append(name)
        return "found"

    monkeypatch.setattr("ctypes.util.find_library", find_library)
    (tmp_path / "loader").write_bytes(b"libc.so.6\0libarmnnDelegate.so.29\0")
    (tmp_path / "libvx_delegate.so").touch()
    monkeypatch.setattr(delegates, "_LOADER", tmp_path / "loader")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path}")
    named = [library for _, library in delegates.DELEGATES.values()]
    found = {library: delegates._place.__wrapped__(library) for library in named}
    assert [library for library in named if found[library]] == asked
    assert asked == ["vx_delegate", "armnnDelegate"]
    monkeypatch.setattr(delegates, "_LOADER", tmp_path / "none")
    assert delegates._place.__wrapped__("edgetpu") == "found"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_delegates_of_this_machine_are_devices(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"edgetpu": "libedgetpu.so.1", "QnnTFLiteDelegate": "libQnn.so"}
    monkeypatch.setattr(delegates, "_place", lambda library: here.get(library, ""))
    devices = LitertBackend().probe().devices
    assert [(d.kind, d.index, d.name) for d in devices] == [
        ("npu", 0, "delegate edgetpu"),
        ("npu", 1, "delegate qnn"),
        ("cpu", 0, "any"),
    ]
    assert delegates.library_of("", "npu") == "libedgetpu.so.1"
    assert delegates.library_of("qnn", "npu") == "libQnn.so"
    with pytest.raises(LoadError, match="libedgetpu"):
        load(save(_negation), device="npu", extra={"trial": "off"})
    monkeypatch.setattr(delegates, "_place", lambda _: "")
    assert LitertBackend().probe().devices == (Device("cpu", "any"),)
    with pytest.raises(NotAvailableError, match="needs the vendor's delegate library"):
        load(save(_negation), device="npu")


def test_fused_lstm_forgets_between_runs(save: Save) -> None:
    def build(g: Builder) -> None:
        rng = np.random.default_rng(0)
        x = g.tensor((3, 1, 2), np.float32, "x")
        weights = [g.const(rng.standard_normal((4, 2)), np.float32) for _ in range(4)]
        weights += [g.const(rng.standard_normal((4, 4)), np.float32) for _ in range(4)]
        bias = [g.const(np.zeros(4), np.float32) for _ in range(4)]
        states = [g.tensor((1, 4), np.float32) for _ in range(2)]
        for state in states:
            state.is_variable = True
        none = [None] * 3
        operands = [x, *weights, *none, *bias, None, None, *states, *[None] * 4]
        y = g.emit(
            "UNIDIRECTIONAL_SEQUENCE_LSTM",
            operands,
            (3, 1, 4),
            fused_activation_function=4,
            time_major=True,
        )
        y.name = "y"
        g.inputs, g.outputs = [x], [y]

    for options in ({}, {"optimize": False}):
        executable = load(save(build), **options)
        x = np.ones((3, 1, 2), np.float32)
        first = executable.run({"x": x})["y"]
        assert np.abs(first).max() > 0.1
        np.testing.assert_array_equal(executable.run({"x": x})["y"], first)
        y = np.zeros((3, 1, 4), np.float32)
        bound = executable.bind({"x": x}, {"y": y})
        for _ in range(2):
            bound()
            np.testing.assert_array_equal(y, first)


def test_quantized_tensors_are_handed_over_as_stored(save: Save) -> None:
    def build(g: Builder) -> None:
        x = g.tensor((4,), np.int8, "x")
        x.quantization = TensorQuantization(np.array([0.5]), np.array([3]))
        y = g.reshape(x, [2, 2])
        y.name = "y"
        g.inputs, g.outputs = [x], [y]

    x = np.array([-128, -1, 0, 127], np.int8)
    assert load(save(build)).run({"x": x})["y"].tolist() == [[-128, -1], [0, 127]]


def test_nothing_is_printed(save: Save) -> None:
    artifact = save(_negation)
    code = (
        "import sys\nfrom pathlib import Path\nimport numpy as np\n"
        "from edgeinfer.backends.base import Artifact, LoadOptions\n"
        "from edgeinfer.backends.litert.backend import LitertBackend\n"
        "a = Artifact('tflite', Path(sys.argv[1]), (), ())\n"
        "LitertBackend().load(a, LoadOptions()).run({'x': np.ones((2, 3), np.float32)})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(artifact.path)],
        capture_output=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.stdout + done.stderr == b""


def test_stderr_of_others_survives_a_load(save: Save, capfd: pytest.CaptureFixture[str]) -> None:
    with trial._silence():
        os.write(2, b"INFO: of the engine\nof another thread\n")
    assert capfd.readouterr().err == "of another thread\n"


def test_without_the_engine_the_reason_has_the_install_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("ai_edge_litert", "ai_edge_litert.interpreter", "tflite_runtime"):
        monkeypatch.setitem(sys.modules, name, None)
    probe = LitertBackend().probe()
    assert not probe.available
    assert probe.reason == "litert not installed; pip install 'edgeinfer[litert]'"


def test_bfloat16_goes_in_and_comes_out(tmp_path: Path) -> None:
    import ml_dtypes
    import onnx

    text = """<ir_version: 10, opset_import: ["" : 24]>
        g (bfloat16[3] x) => (bfloat16[3] y) { y = Add(x, x) }"""
    artifact = make_artifact(onnx.parser.parse_model(text).SerializeToString(), tmp_path)
    x = np.array([1, -2.5, 300], ml_dtypes.bfloat16)
    result = LitertBackend().load(artifact, LoadOptions()).run({"x": x})["y"]
    assert result.dtype == x.dtype
    assert (result == x + x).all()


ALONE = """
import sys
from pathlib import Path
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.litert import LitertBackend
model = LitertBackend().load(Artifact("tflite", Path(sys.argv[1]), (), ()), LoadOptions())
print(model.inputs[0].dtype, "ml_dtypes" in sys.modules)
"""


@pytest.mark.parametrize("kind", ["bfloat16", "float"])
def test_the_package_of_bfloat16_is_imported_where_there_is_such_an_array(
    kind: str, tmp_path: Path
) -> None:
    import onnx

    text = f"""<ir_version: 10, opset_import: ["" : 24]>
        g ({kind}[3] x) => ({kind}[3] y) {{ y = Add(x, x) }}"""
    artifact = make_artifact(onnx.parser.parse_model(text).SerializeToString(), tmp_path)
    command = [sys.executable, "-c", ALONE, str(artifact.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    wide = kind == "float"
    assert done.stdout.split() == ["float32" if wide else "bfloat16", str(not wide)]
