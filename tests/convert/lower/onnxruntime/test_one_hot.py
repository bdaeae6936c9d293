"""OneHot of any element types is the same on every target."""

import itertools

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeinfer.types import Array
from tests.conformance.everywhere import PLACES, lacking, run_each
from tests.convert.lower.running import model

KINDS = {
    "int64": np.int64,
    "int32": np.int32,
    "uint8": np.uint8,
    "float": np.float32,
    "double": np.float64,
    "bool": np.bool_,
    "uint64": np.uint64,
}
TYPES = [
    *itertools.product(("int32", "int64", "float"), ("int64", "float"), ("int64", "bool", "float")),
    ("uint8", "int32", "int32"),
    ("int64", "int64", "double"),
    ("int64", "int64", "uint64"),
    ("int32", "int64", "uint8"),
]
"""Of indices, depth and values."""


@pytest.mark.parametrize("place", [p for p in PLACES if p != "litert-without-xnnpack"])
def test_every_element_type(place: str) -> None:
    if reason := lacking(place):
        pytest.skip(reason)
    cases: dict[str, tuple[onnx.ModelProto, dict[str, np.ndarray]]] = {}
    for index, depth, value in TYPES:
        text = (
            f"g ({index}[2,2] i) => ({value}[2,4,2] y) <{depth} d = {{4}}, {value}[2] v = {{0, 1}}>"
            " { [y] y = OneHot<axis = 1>(i, d, v) }"
        )
        given: Array = np.array([[1, 3], [0, 7]], KINDS[index])
        cases[f"{index} {depth} {value}"] = ir.to_proto(model(text)), {"i": given}
    for name, answers in run_each(place, cases).items():
        if "y" not in answers.outputs:
            # The format has no such element type.
            assert place in ("coreml", "coreai")
            assert name.endswith("double")
            continue
        right: Array = np.zeros((2, 4, 2), KINDS[name.split()[2]])
        right[0, 1, 0] = right[0, 3, 1] = right[1, 0, 0] = 1
        got = answers.outputs["y"]
        assert got.dtype == right.dtype
        np.testing.assert_array_equal(got, right, err_msg=name)
