"""Open sizes that are worked out from others."""

from __future__ import annotations

import numpy as np
import onnx

from tests.convert.lower.tvm.run import outputs

HEAD = '<ir_version: 10, opset_import: ["": 20]> g '


def test_a_multiple_of_an_open_size_is_divided() -> None:
    """Five neighbours of each sample in one row, and in rows of five again."""
    text = (
        "(float[n,5] x) => (float[n,5] y) <int64[1] one = {-1}, int64[2] rows = {-1, 5}> "
        "{ flat = Reshape(x, one) twice = Mul(flat, flat) y = Reshape(twice, rows) }"
    )
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    found = outputs(onnx.parser.parse_model(HEAD + text), {"x": x})
    np.testing.assert_array_equal(found["y"], x * x)


def test_rows_of_a_scan_with_an_open_batch() -> None:
    text = (
        "(float[n,3] x) => (float[k,n] y) <float[2,3] rows = {1, 2, 3, 4, 5, 6}, int64[1] a = {1}> "
        "{ s, y = Scan<num_scan_inputs = 1, body = b (float[n,3] v, float[3] row) "
        "=> (float[n,3] vo, float[n] r) { vo = Identity(v) d = Sub(v, row) "
        "r = ReduceSumSquare<keepdims = 0>(d, a) }>(x, rows) }"
    )
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    found = outputs(onnx.parser.parse_model(HEAD + text), {"x": x})
    rows = np.arange(1, 7, dtype=np.float32).reshape(2, 1, 3)
    np.testing.assert_allclose(found["y"], ((x - rows) ** 2).sum(-1), rtol=1e-5)
