"""Comparisons of a number with itself, which models write to find NaN."""

import importlib.util

import numpy as np
import onnx
import pytest

if importlib.util.find_spec("tvm") is None:
    pytest.skip("apache-tvm is not installed", allow_module_level=True)

from tests.convert.lower.tvm.run import outputs

X = np.array([1, -2, np.inf, np.nan, 0], np.float32)


@pytest.mark.parametrize("dtype", ["float", "double"])
def test_nan_is_not_equal_to_itself(dtype: str) -> None:
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g ({dtype}[5] x) => (bool[5] e, bool[5] g, bool[5] l, bool[5] n, {dtype}[5] y)
        <{dtype} zero = {{0}}> {{
            e = Equal(x, x) g = GreaterOrEqual(x, x) l = LessOrEqual(x, x) n = Not(e)
            y = Where(e, x, zero) }}"""
    x = X.astype("float64" if dtype == "double" else "float32")
    found = outputs(onnx.parser.parse_model(text), {"x": x})
    is_number = ~np.isnan(x)
    for name in "egl":
        np.testing.assert_array_equal(found[name], is_number)
    np.testing.assert_array_equal(found["n"], ~is_number)
    np.testing.assert_array_equal(found["y"], np.where(is_number, x, 0))
