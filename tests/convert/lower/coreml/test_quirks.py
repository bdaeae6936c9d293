"""Patterns that compute units get wrong: rewritten, kept in fp32, or told of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.coreml_reference.package import open_package
from edgeinfer.backends.coreml_reference.program import TensorType
from edgeinfer.convert.lower.coreml.quirks import FAULTS
from edgeinfer.convert.lower.target import Lowered
from tests.convert.lower.coreml.run import check, floats, lower

WEIGHTS = "float[4,3] w = {1.0,-2.0,0.5,0.1,3.0,-0.3,2.0,0.7,-1.5,0.2,0.4,0.9}"
TURNED = WEIGHTS.replace("[4,3]", "[3,4]")
BIAS = "float[3] b = {0.5,-0.25,1.0}"

PRODUCTS = {
    "gemm": f"<{WEIGHTS}, {BIAS}> {{m = Gemm(x, w, b)",
    "turned": f"<{TURNED}, {BIAS}> {{m = Gemm<transB=1>(x, w, b)",
    "product": f"<{WEIGHTS}> {{m = MatMul(x, w)",
    "sum": f"<{WEIGHTS}, {BIAS}> {{p = MatMul(x, w) m = Add(b, p)",
}


def ranks(made: Lowered) -> list[int]:
    """How many axes the product, the hard sigmoid and its product have."""
    kinds = ("matmul", "linear", "sigmoid_hard", "mul")
    operations = open_package(made.files[0]).function().block.operations
    types = [o.type for op in operations if op.type in kinds for o in op.outputs]
    return [len(t.shape or ()) for t in types if isinstance(t, TensorType)]


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("rows", ["2", "n"])
def test_a_product_before_hard_swish_has_four_axes_in_half_precision(
    product: str, rows: str, tmp_path: Path
) -> None:
    body = PRODUCTS[product]
    text = f"g (float[{rows},4] x) => (float[{rows},3] y) {body} y = HardSwish(m)}}"
    made = lower(text, tmp_path, precision="fp16")
    assert any(n.startswith("ane-flat-product-hard-swish: 1 products") for n in made.notes)
    assert ranks(made) == [4, 4, 4]
    check(text, {"x": floats(2, 4)}, precision="fp16", rtol=4e-3)
    # In single precision the Neural Engine has no part in it.
    (tmp_path / "single").mkdir()
    assert ranks(lower(text, tmp_path / "single")) == [2, 2, 2]


@pytest.mark.parametrize(
    "body",
    [
        f"<{WEIGHTS}> {{m = MatMul(x, w) y = HardSwish(m) z = Relu(m)}}",
        f"<{WEIGHTS}> {{m = MatMul(x, w) y = HardSigmoid(m) z = Relu(x)}}",
    ],
)
def test_other_products_stay_as_they_are(body: str, tmp_path: Path) -> None:
    kind = "2,3" if "Relu(m)" in body else "2,4"
    text = f"g (float[2,4] x) => (float[2,3] y, float[{kind}] z) {body}"
    assert "ane-flat" not in str(lower(text, tmp_path, precision="fp16").notes)


def test_every_fault_has_a_source_and_a_name_of_its_own() -> None:
    assert len({f.id for f in FAULTS}) == len(FAULTS)
    assert all(f.source and f.what and f.ops for f in FAULTS)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_positions_at_the_end_are_of_single_precision_values(op: str, tmp_path: Path) -> None:
    text = (
        f"g (float[2,4] x) => (float[2,3] q, int64[2] y) <{WEIGHTS}, {BIAS}> {{m = MatMul(x, w) "
        f"p = Sigmoid(m) q = Mul(p, b) y = {op}<axis=1, keepdims=0>(q)}}"
    )
    made = lower(text, tmp_path, precision="fp16")
    block = open_package(made.files[0].parent).function().block
    kinds = {
        v.name: v.type.dtype
        for o in block.operations
        for v in o.outputs
        if isinstance(v.type, TensorType)
    }
    (last,) = [o for o in block.operations if o.type == f"reduce_{op.lower()}"]
    assert [kinds[str(name)] for name in last.inputs["x"]] == ["float32"]
    assert "float16" in kinds.values()


def test_squares_of_rms_norms_stay_in_single_precision() -> None:
    x = np.full((2, 64), 300, np.float32)
    text = (
        "g (float[2,64] x) => (float[2,64] y) <float[64] s = {SCALES}> {y = RMSNormalization(x, s)}"
    )
    text = text.replace("SCALES", ",".join(["1.5"] * 64))
    check(text, {"x": x}, precision="fp16", rtol=2e-3)


def test_a_variance_by_the_squares_mean_stays_in_single_precision() -> None:
    """As some frameworks write norms out: large numbers whose difference is small."""
    x = (100 + floats(2, 64)).astype(np.float32)
    text = (
        "g (float[2,64] x) => (float[2,64] y) <int64[1] a = {1}, float e = {0.001}> "
        "{m = ReduceMean(x, a) q = Mul(x, x) s = ReduceMean(q, a) t = Mul(m, m) v = Sub(s, t) "
        "w = Add(v, e) r = Sqrt(w) d = Sub(x, m) y = Div(d, r)}"
    )
    check(text, {"x": x}, precision="fp16", rtol=0.03)


def test_a_padding_that_is_an_output_stays_before_another() -> None:
    text = "g (float[2,3] x) => (float[2,5] y, float[4,5] z) <int64[4] a = {0,1,0,1}, "
    text += "int64[4] b = {1,0,1,0}> { y = Pad(x, a) z = Pad(y, b) }"
    check(text, {"x": floats(2, 3)})
