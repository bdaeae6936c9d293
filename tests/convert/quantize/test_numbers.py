"""Numbers at the edges, on the engine of each target."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer import profiles
from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.convert import passes
from edgeinfer.convert.lower import LowerOptions, target_for
from edgeinfer.convert.quantize.calibrate.ranges import Range
from edgeinfer.convert.quantize.calibration import Quantizer, Settings, limits_of
from edgeinfer.convert.quantize.recipe import METHODS, Method, recipe
from edgeinfer.convert.quantize.rewrite import qdq
from edgeinfer.media.samples import open_data
from edgeinfer.types import TensorSpec
from tests.convert.quantize.conftest import graph
from tests.processor import skip_where_openvino_saturates

TARGETS = {
    "onnxruntime": ("onnx", "onnxruntime"),
    "openvino": ("openvino_ir", "openvino"),
    "rpi4": ("tflite", "litert"),
    "ios": ("mlprogram", "coreml-reference"),
}


def lower(model: ir.Model, target: str, folder: Path) -> Artifact:
    folder.mkdir(parents=True, exist_ok=True)
    profile = profiles.load(target)
    made = target_for(TARGETS[target][0]).lower(model, profile, LowerOptions("fp32"), folder)
    return Artifact(
        made.format, made.files[0], passes.input_specs(model), passes.output_specs(model)
    )


def run(model: ir.Model, target: str, folder: Path, *feeds: np.ndarray) -> list[np.ndarray]:
    backend = registry.get(TARGETS[target][1])
    if reason := backend.probe().reason:
        pytest.skip(reason)
    executable = backend.load(lower(model, target, folder), LoadOptions(threads=1))
    try:
        name = model.graph.inputs[0].name or ""
        return [next(iter(executable.run({name: f}).values())) for f in feeds]
    finally:
        executable.close()


def convolution(weights: np.ndarray, bias: np.ndarray, side: int = 4) -> ir.Model:
    n, c = weights.shape[:2]
    return graph(
        f"""<ir_version: 10, opset_import: ["" : 24]>
        net (float[1,{c},{side},{side}] x) => (float[1,{n},{side},{side}] y)
        <float[{n},{c},1,1] w, float[{n}] b>
        {{ y = Conv(x, w, b) }}""",
        w=weights.astype(np.float32),
        b=bias.astype(np.float32),
    )


@pytest.mark.parametrize("target", TARGETS)
def test_a_channel_of_zeros_is_its_bias_and_tiny_channels_are_no_nan(
    target: str, tmp_path: Path
) -> None:
    if target == "openvino":
        skip_where_openvino_saturates()
    weights = np.zeros((4, 2, 1, 1))
    weights[1] = 1.0
    weights[2] = 1e-38
    bias = np.array([3.0, 0.0, 1.0, 0.0])
    model = convolution(weights, bias)
    limits = limits_of(profiles.load(target), TARGETS[target][0])
    ranges = {"x": Range(-1.0, 1.0), "y": Range(-2.0, 3.0)}
    written = qdq.write(model, limits, ranges).model
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(1, 2, 4, 4)
    (y,) = run(written, target, tmp_path, x)
    step = 5 / 255 if target != "ios" else 6 / 254
    np.testing.assert_allclose(y[0, 0], 3.0, atol=step)
    np.testing.assert_allclose(y[0, 1], x.sum(axis=1)[0], atol=1.1 * step + 2 / 255)
    np.testing.assert_allclose(y[0, 2], 1.0, atol=step)
    np.testing.assert_allclose(y[0, 3], 0.0, atol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_a_dead_channel_keeps_the_sign_of_its_bias(target: str, tmp_path: Path) -> None:
    """Its weights are next to nothing: its bias takes all the steps that 32 bits leave."""
    weights = np.random.default_rng(0).normal(size=(4, 24, 1, 1))
    weights[0] *= 1e-8
    bias = np.array([-2.5689, 0.1, -0.1, 0.0])
    model = convolution(weights, bias)
    ranges = {"x": Range(-40.0, 46.0), "y": Range(-100.0, 100.0)}
    profile = profiles.load(target)
    written = qdq.write(model, limits_of(profile, TARGETS[target][0]), ranges).model
    inputs = [np.full((1, 24, 4, 4), v, np.float32) for v in (-40.0, 0.0, 46.0)]
    for found in run(written, target, tmp_path, *inputs):
        np.testing.assert_allclose(found[:, 0], -2.5689, atol=0.5)


@pytest.mark.sample(5)
@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("target", TARGETS)
def test_transposed_convolutions_in_groups(target: str, groups: int, tmp_path: Path) -> None:
    """Their weights have the output channels of one group, their bias those of all."""
    rng = np.random.default_rng(0)
    each = 8 // groups
    model = graph(
        f"""<ir_version: 10, opset_import: ["" : 24]>
        net (float[1,8,6,6] x) => (float[1,8,12,12] y) <float[8,{each},2,2] w, float[8] b>
        {{ y = ConvTranspose<strides=[2,2], group={groups}>(x, w, b) }}""",
        w=rng.normal(size=(8, each, 2, 2)).astype(np.float32),
        b=rng.normal(size=8).astype(np.float32),
    )
    x = rng.normal(size=(1, 8, 6, 6)).astype(np.float32)
    (wanted,) = run(model, target, tmp_path / "float", x)
    limits = limits_of(profiles.load(target), TARGETS[target][0])
    size = float(np.abs(wanted).max())
    ranges = {"x": Range(float(x.min()), float(x.max())), "y": Range(-size, size)}
    (y,) = run(qdq.write(model, limits, ranges).model, target, tmp_path / "int", x)
    assert np.abs(y - wanted).max() < 0.03 * size


@pytest.mark.parametrize("value", [1e30, 1e-30])
def test_inputs_of_any_size_are_calibrated(value: float, tmp_path: Path) -> None:
    """Squares of the larger ones leave single precision: weights go to the nearest then."""
    rng = np.random.default_rng(0)
    model = convolution(rng.normal(size=(8, 16)).reshape(8, 16, 1, 1), np.zeros(8))
    spec = TensorSpec("x", "float32", (1, 16, 4, 4))
    samples = [{"x": np.float32(value) * rng.normal(size=(1, 16, 4, 4))} for _ in range(32)]
    data = open_data([{n: a.astype(np.float32) for n, a in s.items()} for s in samples], [spec])
    quantizer = Quantizer(model, recipe("static_wi8_ai8"), Settings(force=True))
    limits = limits_of(profiles.load("onnxruntime"), "onnx")
    quantizer.calibrate(data, [limits], [spec])
    written = quantizer.write(limits).model
    for value_ in written.graph.initializers.values():
        assert value_.const_value is not None
        assert np.isfinite(value_.const_value.numpy().astype(np.float64)).all()


@pytest.mark.parametrize("target", TARGETS)
def test_a_constant_input_is_exact(target: str, tmp_path: Path) -> None:
    for value in (0.0, -4.0):
        model = convolution(np.eye(2)[:, :, None, None], np.zeros(2))
        x = np.full((1, 2, 4, 4), value, np.float32)
        spec = TensorSpec("x", "float32", (1, 2, 4, 4))
        quantizer = Quantizer(model, recipe("static_wi8_ai8"), Settings(force=True))
        limits = limits_of(profiles.load(target), TARGETS[target][0])
        quantizer.calibrate(open_data([{"x": x}], [spec]), [limits], [spec])
        (y,) = run(quantizer.write(limits).model, target, tmp_path / str(value), x)
        np.testing.assert_allclose(y, value, rtol=1e-5)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("method", "target"),
    [*((m, "onnxruntime") for m in METHODS), *(("entropy", t) for t in list(TARGETS)[1:])],
)
def test_an_outlier_of_100_sigma(method: Method, target: str, tmp_path: Path) -> None:
    """Ordinary inputs stay good where the outlier is clipped; minmax keeps it and pays in steps."""
    rng = np.random.default_rng(0)
    model = convolution(np.eye(2)[:, :, None, None], np.zeros(2), 16)
    samples = rng.normal(size=(512, 1, 2, 16, 16)).astype(np.float32)
    samples[7, 0, 0, 0, 0] = 100.0
    spec = TensorSpec("x", "float32", (1, 2, 16, 16))
    settings = Settings(method=method, force=True)
    quantizer = Quantizer(model, recipe("static_wi8_ai8"), settings)
    limits = limits_of(profiles.load(target), TARGETS[target][0])
    data = open_data([{"x": s} for s in samples], [spec])
    quantizer.calibrate(data, [limits], [spec])
    ordinary, extreme = run(quantizer.write(limits).model, target, tmp_path, samples[0], samples[7])
    error = float(np.abs(ordinary - samples[0]).max())
    assert np.isfinite(extreme).all()
    if method == "minmax":
        assert extreme[0, 0, 0, 0] == pytest.approx(100.0, rel=0.01)
        assert 0.05 < error < 0.9
    elif method in ("percentile", "entropy"):
        assert error < 0.1
        assert extreme[0, 0, 0, 0] < 30.0
    else:
        # The one clipped element is weighed against finer steps of all the others.
        assert error < 0.9
        assert quantizer.ranges["x"].high > 15.0


_EMULATED = """
import sys
sys.path[:0] = {paths!r}
import numpy as np
from pathlib import Path
from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, LoadOptions
artifact = Artifact("onnx", Path({model!r}), (), ())
for precise in (True, False):
    executable = registry.get("onnxruntime").load(artifact, LoadOptions(threads=1, precise=precise))
    print(float(executable.run({{"x": np.full((1, 2), 255, np.float32)}})["y"][0, 0]))
"""


@pytest.mark.slow
def test_sums_do_not_saturate_on_avx2_without_vnni(tmp_path: Path) -> None:
    """255 times 127, twice, on a Haswell; ``QEMU`` names the emulator, for instance of Debian."""
    emulator = os.environ.get("QEMU") or shutil.which("qemu-x86_64")
    if emulator is None or not sys.platform.startswith("linux"):
        pytest.skip("needs qemu-x86_64 (Debian: qemu-user), which emulates AVX2 without VNNI")
    model = graph(
        """<ir_version: 10, opset_import: ["" : 24]>
        net (float[1,2] x) => (float[1,1] y) <float[2,1] w, float[1] b> { y = Gemm(x, w, b) }""",
        w=np.full((2, 1), 127.0, np.float32),
        b=np.zeros(1, np.float32),
    )
    limits = limits_of(profiles.load("onnxruntime"), "onnx")
    ranges = {"x": Range(0.0, 255.0), "y": Range(0.0, 64770.0)}
    artifact = lower(qdq.write(model, limits, ranges).model, "onnxruntime", tmp_path / "out")
    program = _EMULATED.format(paths=[p for p in sys.path if p], model=str(artifact.path))
    python = os.path.realpath(sys.executable)
    done = subprocess.run(
        [emulator, "-cpu", "Haswell", python, "-c", program],
        capture_output=True,
        text=True,
        timeout=500,
        check=True,
    )
    precise, plain = map(float, done.stdout.split())
    assert precise == 64770.0
    # It is the rule that helps: without it this processor loses half of the sum.
    assert plain < 64000.0
