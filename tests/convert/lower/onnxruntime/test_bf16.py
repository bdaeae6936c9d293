"""bfloat16 for NVIDIA's GPUs: what is written, what is judged, and where it is refused."""

from __future__ import annotations

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

import edgeinfer
from edgeinfer import profiles
from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.convert import passes
from edgeinfer.convert.lower import target_for
from edgeinfer.convert.lower.target import Lowered, LowerOptions
from edgeinfer.convert.verify.evaluate import Evaluator
from edgeinfer.convert.verify.half import run_file
from edgeinfer.errors import NotAvailableError, UnsupportedError, UsageError, VerifyError
from edgeinfer.types import Array
from tests.convert.quantize.conftest import graph

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 8, 6, 6)).astype(np.float32)
HEAD = """<ir_version: 10, opset_import: ["" : 24]>
    net (float[2,8,6,6] x) => (float[2,8,6,6] y)"""


def net(body: str, far: float = 4096.0) -> ir.Model:
    arrays: dict[str, Array] = {
        "w": RNG.normal(size=(8, 8, 1, 1)).astype(np.float32),
        "b": RNG.normal(size=8).astype(np.float32),
        "low": np.array(0, np.float32),
        "high": np.array(6, np.float32),
        "far": np.full((2, 8, 6, 6), far, np.float32),
    }
    used = {n: a for n, a in arrays.items() if re.search(rf"[(, ]{n}[,) ]", body)}
    shapes = ", ".join(f"float{[*a.shape] or ''} {n}" for n, a in used.items())
    return passes.normalise(graph(f"{HEAD} <{shapes}> {body}", **used)).model


def lowered(model: ir.Model, folder: Path, target: str) -> Lowered:
    options = LowerOptions("bf16")
    return target_for("onnx").lower(model, profiles.load(target), options, folder)


def kinds(path: Path) -> dict[str, str]:
    nodes = [n for n in ir.load(path).graph if n.op_type != "Cast"]
    return {n.op_type: n.outputs[0].dtype.name for n in nodes if n.outputs[0].dtype}


BODY = """{
    c = Conv(x, w, b) d = Clip(c, low, high) e = MaxPool<kernel_shape = [1, 1]>(d) y = Swish(e)
}"""


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("cuda", {"Conv": "B", "Max": "B", "Min": "B", "MaxPool": "F", "Sigmoid": "B", "Mul": "B"}),
        ("jetson-orin", {"Conv": "B", "Clip": "B", "MaxPool": "B", "Sigmoid": "B", "Mul": "B"}),
    ],
)
def test_what_the_engine_has_kernels_for_is_bfloat16(
    target: str, expected: dict[str, str], tmp_path: Path
) -> None:
    model = net(BODY)
    made = lowered(model, tmp_path, target)
    found = kinds(made.files[0])
    assert {op: found[op][0] for op in expected} == expected
    assert made.precision.split("+")[0] == "bf16"
    onnx.checker.check_model(onnx.load(made.files[0]), full_check=True)
    stored = ir.load(made.files[0])
    assert stored.opset_imports[""] >= 22, "convolutions take bfloat16 from here on"
    assert [v.dtype for v in (*stored.graph.inputs, *stored.graph.outputs)] == [
        ir.DataType.FLOAT
    ] * 2
    rounded = Evaluator(model, wide=False, halved="bfloat16").run({"x": X})["y"]
    got = run_file(made.files[0], {"x": X})["y"]
    np.testing.assert_allclose(got, np.float32(rounded), rtol=2.0**-6, atol=2.0**-6)
    exact = Evaluator(model, wide=True).run({"x": X})["y"]
    assert 1e-3 < np.abs(got - exact).max() < 0.2


def test_every_operator_of_the_cuda_profile_takes_bfloat16_in_the_standard() -> None:
    for op in profiles.load("cuda").bf16_ops:
        schema = onnx.defs.get_schema(op, 24)
        assert any("tensor(bfloat16)" in c.allowed_type_strs for c in schema.type_constraints), op


def test_range_is_that_of_single_precision(tmp_path: Path) -> None:
    """What needs islands in half precision: 1e6 and its square."""
    made = lowered(net("{ a = Add(x, far) y = Mul(a, far) }", 1e6), tmp_path, "jetson-orin")
    assert kinds(made.files[0]) == {"Add": "BFLOAT16", "Mul": "BFLOAT16"}
    got = run_file(made.files[0], {"x": X})["y"]
    np.testing.assert_allclose(got, 1e12, rtol=2.0**-7)


@pytest.mark.parametrize("lowest", [float(np.finfo(np.float32).min), -1e38])
def test_a_row_that_is_masked_throughout_is_not_nan(lowest: float, tmp_path: Path) -> None:
    made = lowered(net("{ a = Add(x, far) y = Softmax(a) }", lowest), tmp_path, "cuda")
    (mask,) = (
        v.const_value.numpy()
        for v in ir.load(made.files[0]).graph.initializers.values()
        if v.const_value is not None and v.const_value.size > 8
    )
    assert mask.dtype == ml_dtypes.bfloat16
    assert np.isfinite(mask.astype(np.float32)).all()
    np.testing.assert_allclose(run_file(made.files[0], {"x": X})["y"], 1 / 6, rtol=2.0**-7)


def test_a_conversion_is_judged_in_bf16_and_the_cpu_refuses_the_file(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    model = net("{ c = Conv(x, w, b) y = Relu(c) }")
    ir.save(model, path)
    done = edgeinfer.export(
        path, tmp_path / "n.edge", targets=["cuda", "jetson-thor"], precision="bf16"
    )
    assert [v.precision for v in done.manifest.variants] == ["bf16", "bf16"]
    for result in done.report.variants:
        assert [e.backend for e in result.engines if not e.skipped] == ["half-arithmetic"]
        assert any("inputs in bf16 arithmetic" in n for n in result.notes)
        assert not any("ran the same graph" in n for n in result.notes)
    file = lowered(model, tmp_path, "cuda").files[0]
    specs = passes.input_specs(model), passes.output_specs(model)
    with pytest.raises(NotAvailableError, match=r"CPU provider has no kernels.*NVIDIA GPU"):
        registry.get("onnxruntime").load(Artifact("onnx", file, *specs, "bf16"), LoadOptions())


def test_what_bf16_ruins_is_mended_or_refused(tmp_path: Path) -> None:
    """A difference of numbers that agree in more digits than bfloat16 has."""
    path = tmp_path / "net.onnx"
    ir.save(net("{ a = Add(x, far) d = Sub(a, far) c = Conv(d, w) y = Relu(c) }"), path)
    done = edgeinfer.export(path, tmp_path / "n.edge", targets=["cuda"], precision="bf16")
    (change,) = [c for c in done.report.changes if c.stage == "half precision"]
    assert change.lines[0].startswith("bf16: the first 2 of 4 nodes stay fp32")
    # All of this model would have to stay so.
    ir.save(net("{ a = Conv(x, w) d = Add(a, far) y = Sub(d, far) }"), path)
    with pytest.raises((VerifyError, UsageError)):
        edgeinfer.export(path, tmp_path / "n.edge", targets=["cuda"], precision="bf16")


def test_a_source_in_bfloat16_asks_for_what_the_device_lacks(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 24]>
        net (bfloat16[2,3] x, float[2] z) => (bfloat16[2,3] y, float[2] u)
        { y = LeakyRelu(x) u = Exp(z) }"""
    model = passes.normalise(graph(text)).model
    with pytest.raises((UnsupportedError, UsageError)):
        lowered(model, tmp_path, "cuda")


@pytest.mark.parametrize("target", ["cpu", "rpi5", "tvm-x86-64-v3"])
def test_a_source_in_bfloat16_is_computed_in_float32_and_rounded(
    target: str, tmp_path: Path
) -> None:
    w = RNG.normal(size=(8, 3)).astype(ml_dtypes.bfloat16)
    text = """<ir_version: 10, opset_import: ["" : 22]>
        net (bfloat16[n,8] x, float[n,3] z) => (bfloat16[n,3] y) <bfloat16[8,3] w>
        { a = MatMul(x, w) b = Cast<to=16>(z) c = Add(a, b) y = Relu(c) }"""
    path = tmp_path / "model.onnx"
    ir.save(graph(text, w=w), path)
    x = RNG.normal(size=(5, 8)).astype(ml_dtypes.bfloat16)
    z = RNG.normal(size=(5, 3)).astype(np.float32)
    made = edgeinfer.export(path, tmp_path / "m.edge", targets=[target])
    product = (x.astype(np.float32) @ w.astype(np.float32)).astype(ml_dtypes.bfloat16)
    want = np.maximum(product + z.astype(ml_dtypes.bfloat16), ml_dtypes.bfloat16(0))
    for backend in {"onnx": "onnxruntime", "tflite": "litert", "tvm": "tvm"}.items():
        if backend[0] not in {v.format for v in made.manifest.variants}:
            continue
        with edgeinfer.load(made.path, backend=backend[1], measure=False) as session:
            found = session.run({"x": x, "z": z})["y"]
        assert found.dtype == want.dtype
        np.testing.assert_allclose(found.astype(float), want.astype(float), rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("target", ["cpu", "rpi4", "android", "ios", "tvm-x86-64-v3"])
def test_other_targets_refuse_by_name_and_say_what_is_as_small(target: str, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=rf"'bf16': not possible on {target}; all requested targets can do"
    ):
        edgeinfer.export(net("{ y = Relu(x) }"), tmp_path / "n", targets=[target], precision="bf16")
