from pathlib import Path

import onnx_ir as ir
import pytest

from edgeinfer.convert.lower.precision import read_back
from tests.convert.lower.running import model


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("g (float[2] x) => (float[2] y) <float[1] w = {1}> { y = Add(x, w) }", "fp32"),
        (
            "g (float[2] x) => (float[2] y) "
            "{ a = Cast<to = 10>(x) b = Relu(a) y = Cast<to = 1>(b) }",
            "fp16",
        ),
        (
            "g (float[2] x) => (float[2] y) { a = Cast<to = 10>(x) b = Cast<to=1>(a) y=Relu(b)}",
            "fp16+fp32",
        ),
        ("g (float16[2] x) => (float16[2] y) <float[1] w = {1}> { y = Relu(x) }", "fp16+fp32"),
        ("g (double[2] x) => (double[2] y) { y = Relu(x) }", "fp64"),
        ("g (bfloat16[2] x) => (bfloat16[2] y) { y = Relu(x) }", "bf16"),
        ("g (int64[2] x) => (int64[2] y) { y = Neg(x) }", "fp32"),
        # Weights that are only stored so are read in full, and nothing is rounded.
        (
            "g (float[2] x) => (float[2] y) <float16[2] w = {1, 2}>"
            " { a = Cast<to = 1>(w) y = Add(x, a) }",
            "fp32",
        ),
        (
            "g (float[2] x, float16[2] z) => (float[2] y, float16[2] u) <float16[2] w = {1, 2}>"
            " { a = Cast<to = 1>(w) y = Add(x, a) u = Add(z, w) }",
            "fp16+fp32",
        ),
        (
            "g (float16[2] x, bool c) => (float16[2] y) { y = If(c) <"
            " then_branch = t () => (float16[2] u) { a = Cast<to = 1>(x) u = Cast<to = 10>(a) },"
            " else_branch = e () => (float16[2] v) { v = Identity(x) }> }",
            "fp16+fp32",
        ),
    ],
)
def test_precision_is_what_the_file_holds(text: str, precision: str, tmp_path: Path) -> None:
    ir.save(model(text), tmp_path / "m.onnx")
    assert read_back(tmp_path / "m.onnx")[0] == precision


def test_operators_are_counted_with_their_domain(tmp_path: Path) -> None:
    text = "g (float[2] x) => (float[2] y) { a = Relu(x) b = Relu(a) y = com.microsoft.Gelu(b) }"
    ir.save(model(text), tmp_path / "m.onnx")
    assert read_back(tmp_path / "m.onnx")[1] == {"Relu": 2, "com.microsoft::Gelu": 1}
