"""Weights behind a flattened image in the order of channels-last images."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.passes import normalise
from edgeinfer.convert.passes.flatten_last import FlattenLast
from edgeinfer.convert.passes.layout import SPATIAL
from tests.convert.lower.tflite.run import check, ops

HEADER = '<ir_version: 10, opset_import: ["" : 24]>'
NUMBERS = [f"{v:.2f}" for v in np.random.default_rng(0).normal(size=36 * 3)]
NET = """g (float[N,2,4,5] x) => (float[N,3] y)
<float[3,2,3,3] k = {KERNEL}, float[18,3] w = {WEIGHTS}, float[3] b = {1, 2, 3}> {
    c = Conv(x, k) p = Relu(c) BODY }""".replace("KERNEL", ", ".join(NUMBERS[:54])).replace(
    "WEIGHTS", ", ".join(NUMBERS[54:])
)
BODIES = {
    "flatten": "f = Flatten(p) y = Gemm(f, w, b)",
    "reshape": "s = Constant<value_ints=[0,-1]>() f = Reshape(p, s) y = MatMul(f, w)",
    "weights the other way": "v = Transpose(w) f = Flatten(p) y = Gemm<transB=1>(f, v)",
    "a sum": "q = Add(p, p) f = Flatten(q) y = MatMul(f, w)",
}


def feeds(n: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(n).normal(size=(n, 2, 4, 5)).astype(np.float32)}


def rewritten(text: str) -> int:
    model = normalise(ir.from_onnx_text(HEADER + text)).model
    FlattenLast(SPATIAL)(model)
    return sum(node.op_type == "Transpose" for node in model.graph)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_flattened_picture_is_not_transposed(body: str) -> None:
    text = NET.replace("BODY", body)
    data = check(text, feeds(1), feeds(3))
    # The model's own input, whose channels are first.
    assert ops(data).count("TRANSPOSE") == 1
    assert rewritten(text) == 1


@pytest.mark.parametrize(
    "body",
    [
        "f = Flatten(p) g = Relu(f) h = Gemm(f, w, b) r = ReduceSum(g) y = Add(h, r)",
        "f = Flatten(p) v = Identity(w) u = Mul(v, b) z = ReduceSum(x) t = Mul(u, z)"
        " y = MatMul(f, t)",
    ],
    ids=["another reader", "weights that are computed"],
)
def test_what_others_see_stays_in_its_order(body: str) -> None:
    text = NET.replace("BODY", body)
    assert rewritten(text) == 0
    check(text, feeds(2))


def test_a_picture_that_is_no_result_of_a_convolution_stays() -> None:
    text = NET.replace("BODY", "z = Relu(x) f = Flatten(z) y = MatMul(f, m)").replace(
        "float[18,3] w = {", "float[40,3] m = {" + ", ".join(["0.5"] * 66) + ", "
    )
    assert rewritten(text) == 0


def test_an_output_of_the_model_stays() -> None:
    text = NET.replace("(float[N,3] y)", "(float[N,3] y, float[N,18] f)")
    assert rewritten(text.replace("BODY", BODIES["flatten"])) == 0
