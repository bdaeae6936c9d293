"""bfloat16: what is stored, what is computed, and where it is refused."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import openvino
import pytest

import edgeinfer
from edgeinfer import profiles
from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.openvino import floats
from edgeinfer.convert import passes
from edgeinfer.convert.lower import target_for
from edgeinfer.convert.lower.target import Lowered, LowerOptions
from edgeinfer.convert.verify.evaluate import Evaluator
from edgeinfer.errors import NotAvailableError, UsageError, VerifyError
from edgeinfer.types import Array
from tests.convert.quantize.conftest import graph

HAS_IT = floats.has_bf16(openvino.Core())
needs_it = pytest.mark.skipif(not HAS_IT, reason="this processor does not compute in bf16")
RNG = np.random.default_rng(0)
WEIGHTS = RNG.normal(size=(64, 64)).astype(np.float32)
X = RNG.normal(size=(8, 64)).astype(np.float32)


def net(body: str = "> { y = MatMul(x, w) }", **arrays: Array) -> ir.Model:
    head = """<ir_version: 10, opset_import: ["" : 24]>
        net (float[8,64] x) => (float[8,64] y) <float[64,64] w"""
    return passes.normalise(graph(head + body, w=WEIGHTS, **arrays)).model


def lowered(model: ir.Model, folder: Path, precision: str = "bf16") -> Lowered:
    profile = profiles.load("openvino")
    return target_for("openvino_ir").lower(model, profile, LowerOptions(precision), folder)


def artifact(model: ir.Model, made: Lowered) -> Artifact:
    specs = passes.input_specs(model), passes.output_specs(model)
    return Artifact("openvino_ir", made.files[0], *specs, made.precision)


def run(model: ir.Model, made: Lowered, x: Array) -> Array:
    executable = registry.get("openvino").load(artifact(model, made), LoadOptions(threads=1))
    try:
        return np.array(executable.run({"x": x})["y"])
    finally:
        executable.close()


def test_weights_take_two_bytes_and_the_file_says_so(tmp_path: Path) -> None:
    made = lowered(net(), tmp_path)
    assert made.precision == "bf16+fp32"
    assert made.files[1].stat().st_size == WEIGHTS.size * 2
    model = openvino.Core().read_model(made.files[0])
    assert floats.wanted(model) == "bf16"
    assert "bf16: 1 weights are stored in two bytes an element" in made.notes


@needs_it
def test_the_processor_computes_in_bf16(tmp_path: Path) -> None:
    model = net()
    made = lowered(model, tmp_path)
    assert any("steps of the plan compute in bf16" in n for n in made.notes)
    x, w = (a.astype(ml_dtypes.bfloat16).astype(np.float64) for a in (X, WEIGHTS))
    single, exact, found = X @ WEIGHTS, x @ w, run(model, made, X)
    # As far from single precision as rounded operands are, and no further from their product.
    assert np.abs(found - single).max() > 1e-2
    np.testing.assert_allclose(found, exact, rtol=2.0**-8, atol=1e-3)
    judged = Evaluator(model, wide=False, halved="bfloat16").run({"x": X})["y"]
    np.testing.assert_allclose(found, judged, rtol=2.0**-7, atol=2e-2)


@needs_it
def test_a_model_without_products_is_not_said_to_be_bf16(tmp_path: Path) -> None:
    model = passes.normalise(
        graph(
            """<ir_version: 10, opset_import: ["" : 24]>
            net (int64[8] x) => (int64[8] y) { y = Add(x, x) }"""
        )
    ).model
    with pytest.raises(UsageError, match="computes no operator of this model in bf16"):
        lowered(model, tmp_path)


def test_other_processors_refuse_the_file_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(floats, "has_bf16", lambda core, device="CPU": False)
    model = net()
    made = lowered(model, tmp_path)
    with pytest.raises(NotAvailableError, match=r"in bf16, and CPU here has no such arithmetic"):
        registry.get("openvino").load(artifact(model, made), LoadOptions())


@pytest.mark.parametrize("lowest", [float(np.finfo(np.float32).min), -1e38])
def test_a_row_that_is_masked_throughout_is_not_nan(lowest: float, tmp_path: Path) -> None:
    mask = np.zeros((8, 64), np.float32)
    mask[3] = lowest
    model = net(", float[8,64] m> { b = Add(x, m) s = Softmax(b) y = MatMul(s, w) }", m=mask)
    made = lowered(model, tmp_path)
    stored = openvino.Core().read_model(made.files[0])
    constants = [n for n in stored.get_ops() if n.get_type_name() == "Constant"]
    short = [n for n in constants if n.get_element_type() == openvino.Type.bf16]
    # The interface shows bfloat16 as float16: the bits are what counts.
    values = [np.asarray(n.data).view(np.uint16).view(ml_dtypes.bfloat16) for n in short]
    assert len(values) == 2
    assert all(np.isfinite(v.astype(np.float32)).all() for v in values)
    if HAS_IT:
        assert np.isfinite(run(model, made, X)).all()


@pytest.mark.parametrize("real", [pytest.param(True, marks=needs_it), False])
def test_a_conversion_is_judged_in_bf16_arithmetic(
    real: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if real:
        monkeypatch.delenv("EDGEINFER_IN_PROCESS")
    else:
        monkeypatch.setattr(floats, "has_bf16", lambda core, device="CPU": False)
    path = tmp_path / "net.onnx"
    ir.save(net(), path)
    done = edgeinfer.export(path, tmp_path / "n.edge", targets=["openvino"], precision="bf16")
    (variant,) = done.manifest.variants
    assert variant.precision == "bf16+fp32"
    (result,) = done.report.variants
    ran = [e.backend for e in result.engines if not e.skipped]
    assert ran == (["openvino"] if real else ["half-arithmetic"])
    assert any("inputs in bf16 arithmetic" in n for n in result.notes)


def test_what_bf16_ruins_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A difference of numbers that agree in more digits than bfloat16 has."""
    monkeypatch.setattr(floats, "has_bf16", lambda core, device="CPU": False)
    far = np.full((8, 64), 4096.0, np.float32)
    path = tmp_path / "net.onnx"
    ir.save(net(", float[8,64] f> { a = MatMul(x, w) b = Add(a, f) y = Sub(b, f) }", f=far), path)
    with pytest.raises(VerifyError, match="half-arithmetic"):
        edgeinfer.export(path, tmp_path / "n.edge", targets=["openvino"], precision="bf16")
