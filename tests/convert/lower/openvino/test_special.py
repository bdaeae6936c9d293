"""Where the engine loses NaN and infinity, and that what is believed to be right is right."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from edgeinfer.convert.lower.openvino.special import _RIGHT, input_constraint
from tests.convert.lower.running import lower, model, run, run_openvino

pytest.importorskip("openvino")


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("(float[3] x) => (float[3] y) { y = Neg(x) }", None),
        ("(float[3] x) => (float[3] y) { y = Relu(x) }", "not_nan"),
        ("(float[3] x) => (float[3] y) { a = Relu(x) y = Softmax(a) }", "below_infinity"),
        ("(float[3] x) => (int64[3] y) { y = Cast<to = 7>(x) }", "finite"),
        ("(float[3] x) => (float16[3] y) { y = Cast<to = 10>(x) }", None),
        ("(double[3] x) => (double[3] y) { y = Neg(x) }", "finite"),
        ("(float[3] x) => (float[3] y) { y = Shrink(x) }", "finite"),
        ("(int32[3] x) => (int32[3] y) { y = Max(x, x) }", None),
        ("(float[3] x, int64[3] k) => (float[3] y, int64[3] z) { y = Neg(x) z = Max(k, k) }", None),
        (
            "(float[3] x) => (float[3] y) <float[2] t = {1.0, 2.0}> { n = IsNaN(x)"
            " i = Cast<to = 7>(n) g = Gather(t, i) y = Softmax(g) }",
            None,
        ),
        (
            "(float[3] x) => (float[3] y) <float[3] m = {1.0, 2.0, 3.0}> { n = IsNaN(x)"
            " f = Where(n, m, x) y = Softmax(f) }",
            "not_infinite",
        ),
        (
            "(float[3] x) => (float[3] y) <float[3] m = {1.0, 2.0, 3.0}> { n = IsNaN(x)"
            " f = Where(n, m, x) y = Neg(f) }",
            None,
        ),
        (
            "(float[3] x, float[3] m) => (float[3] y) { n = IsNaN(x) f = Where(n, m, x)"
            " y = Softmax(f) }",
            "below_infinity",
        ),
        (
            "(float[3] x, float[3] w) => (float[3] y, float[3] z) <float[3] m = {1.0, 2.0, 3.0}>"
            " { n = IsNaN(x) f = Where(n, m, x) y = Softmax(f) z = Relu(w) }",
            "finite",
        ),
        (
            "(float[3] x, bool c) => (float[3] y) { y = If(c) <then_branch = t () => (float[3] a)"
            " { a = Relu(x) }, else_branch = e () => (float[3] b) { b = Neg(x) }> }",
            "not_nan",
        ),
    ],
)
def test_strictest_operator_counts(text: str, level: str | None) -> None:
    assert input_constraint(model(f"g {text}")).get("inputs") == level


def test_lowering_writes_it(tmp_path: Path) -> None:
    graph = model("g (float[3] x) => (float[3] y) { y = Relu(x) }")
    assert lower(graph, tmp_path, "openvino").constraints == {"inputs": "not_nan"}
    assert lower(graph, tmp_path, "onnxruntime").constraints == {}


def unary() -> list[str]:
    one = []
    for op in sorted(_RIGHT):
        schema = onnx.defs.get_schema(op)
        if schema.min_input == 1 and op not in (
            "AveragePool",
            "MaxPool",
            "ArgMax",
            "Einsum",
            "IsInf",
            "IsNaN",
        ):
            one.append(op)
    return one


@pytest.mark.parametrize("size", [3, 16, 37])
def test_operators_said_to_be_right_keep_nan_and_infinity(size: int, tmp_path: Path) -> None:
    ops = unary()
    outputs = ", ".join(f"float[A{n},B{n}] y{n}" for n in range(len(ops)))
    nodes = " ".join(f"y{n} = {op}(x)" for n, op in enumerate(ops))
    graph = model(f"g (float[2,{size}] x) => ({outputs}) {{ {nodes} }}")
    path = lower(graph, tmp_path, "openvino").files[0]
    for value in (np.nan, np.inf, -np.inf):
        x = np.linspace(0.1, 0.9, 2 * size, dtype=np.float32).reshape(2, size)
        x[0, ::2] = value
        answers = zip(ops, run_openvino(path, x), run(graph, {"x": x}), strict=True)
        for op, got, right in answers:
            np.testing.assert_allclose(got, right, 1e-3, 1e-4, err_msg=op)
