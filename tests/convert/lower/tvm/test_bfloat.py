"""bfloat16 on the machine: its bits go in and out, and every result is rounded once."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest

from tests.convert.lower.tvm import run as tvm_run

BRAIN = ml_dtypes.bfloat16
HEAD = '<ir_version: 10, opset_import: ["" : 26]> agraph '
pytest.importorskip("tvm")


def _model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD + text)


def _halfway() -> np.ndarray:
    """float32 around the middle of two neighbours, the largest, infinite and no numbers."""
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F817FFF, 0x00000001, 0x7F7FFFFF], "<u4")
    more = np.array([0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF, 0x80000000], "<u4")
    return np.concatenate([bits, more]).view(np.float32)


def test_casts_round_to_the_nearest_of_two_as_near_to_the_even_one() -> None:
    model = _model(
        "(float[11] x) => (bfloat16[11] y, float[11] z) { y = Cast<to=16>(x) z = Cast<to=1>(y) }"
    )
    x = _halfway()
    found = tvm_run.outputs(model, {"x": x})
    want = x.astype(BRAIN)
    assert found["y"].dtype == BRAIN
    np.testing.assert_array_equal(found["y"].astype(np.float32), want.astype(np.float32))
    np.testing.assert_array_equal(found["z"], want.astype(np.float32))


@pytest.mark.parametrize(("kind", "number"), [("uint16", 4), ("int16", 5), ("float16", 10)])
def test_its_bits_are_those_of_another_type(kind: str, number: int) -> None:
    model = _model(
        f"(bfloat16[3] x) => ({kind}[3] y, bfloat16[3] z) "
        f"{{ y = BitCast<to={number}>(x) z = BitCast<to=16>(y) }}"
    )
    x = np.array([1.5, -2, 1e30], BRAIN)
    found = tvm_run.outputs(model, {"x": x})
    np.testing.assert_array_equal(found["y"], x.view(kind))
    np.testing.assert_array_equal(found["z"], x)


@pytest.mark.parametrize("size", ["4", "n"])
def test_layers_in_fixed_and_in_open_sizes(size: str) -> None:
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(8, 3)).astype(BRAIN)
    model = _model(
        f"(bfloat16[{size}, 8] x) => (bfloat16[{size}, 3] y, bfloat16[{size}, 3] s) "
        "{ m = MatMul(x, w) y = Relu(m) s = Softmax(m) }"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    x = rng.normal(size=(4, 8)).astype(BRAIN)
    found = tvm_run.outputs(model, {"x": x})
    product = (x.astype(np.float32) @ weights.astype(np.float32)).astype(BRAIN)
    np.testing.assert_array_equal(found["y"], np.maximum(product, BRAIN(0)))
    grown = np.exp(product.astype(np.float64))
    want = grown / grown.sum(-1, keepdims=True)
    np.testing.assert_allclose(found["s"].astype(np.float64), want, rtol=2**-8)


def test_turns_that_a_run_counts() -> None:
    model = _model("""(bfloat16[4] x, int64 n) => (bfloat16[4] y) {
        y = Loop(n, , x) <body = b (int64 i, bool on, bfloat16[4] s)
            => (bool go, bfloat16[4] t) { go = Identity(on) t = Mul(s, x) }>
    }""")
    x = np.array([1.0078125, -0.3, 3.0, 1e-3], BRAIN)
    want = x
    for turns in range(4):
        found = tvm_run.outputs(model, {"x": x, "n": np.array(turns)})
        np.testing.assert_array_equal(found["y"], want)
        want = want * x


@pytest.mark.parametrize("size", ["4", "n"])
def test_buffers_are_used_where_they_lie(tmp_path: Path, size: str) -> None:
    model = _model(f"(bfloat16[{size}] x) => (bfloat16[{size}] y) {{ y = Neg(x) }}")
    x, y = np.array([1.5, -2, 3e38, 0], BRAIN), np.zeros(4, BRAIN)
    with_it = tvm_run.load(model, tmp_path).bind({"x": x}, {"y": y})
    with_it()
    np.testing.assert_array_equal(y, -x)
    x[:] = BRAIN(7)
    with_it()
    np.testing.assert_array_equal(y, -x)
