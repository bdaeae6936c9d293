"""Categories, against ONNX Runtime's kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from edgeinfer.convert.lower.tabular import undefined
from edgeinfer.types import Array
from tests.convert.lower.running import run
from tests.convert.lower.tabular.tables import check_definition, defined, one_node, samples

RNG = np.random.default_rng(0)
WHOLE = RNG.integers(-5, 12, (6, 2))
FLOATS = samples(RNG, 12, 2)


@pytest.mark.parametrize(
    "x", [WHOLE, WHOLE[:, 0], FLOATS, FLOATS.astype(np.float64)], ids=lambda x: str(x.dtype)
)
def test_one_hot(x: Array) -> None:
    check_definition(one_node("OneHotEncoder", x, cats_int64s=[-2, 0, 1, 7]), x)


def test_the_last_of_equal_categories_counts() -> None:
    check_definition(one_node("OneHotEncoder", WHOLE, cats_int64s=[1, 2, 1]), WHOLE)


@pytest.mark.parametrize(
    ("x", "ml", "about"),
    [
        (WHOLE, 2, {"keys_int64s": [5, -2, 9], "values_int64s": [1, 2, 3], "default_int64": -7}),
        (WHOLE, 2, {"keys_int64s": [5, -2, 9], "values_int64s": [1, 2, 3]}),
        (WHOLE, 2, {"keys_int64s": [2, 3, 4], "values_floats": [0.5, 0.25, 0.125]}),
        (WHOLE, 2, {"keys_int64s": [1, 2, 1], "values_floats": [4.0, 5.0, 6.0]}),
        (FLOATS, 2, {"keys_floats": [0.0, 1.0, np.nan], "values_int64s": [5, 6, 7]}),
        (FLOATS, 4, {"keys_floats": [0.0, 1.0, np.nan], "values_int64s": [5, 6, 7]}),
        (FLOATS, 2, {"keys_floats": [0.0, 1.0], "values_floats": [5.0, 6.0], "default_float": 9.0}),
    ],
)
def test_label_encoder(x: Array, ml: int, about: dict[str, Any]) -> None:
    check_definition(one_node("LabelEncoder", x, ml=ml, **about), x)


def test_tables_given_as_tensors() -> None:
    # ONNX Runtime has no kernel for these types; NumPy says what they mean.
    x = np.asarray([[0.0, np.nan, 3.0, -1.0]])
    node = one_node(
        "LabelEncoder",
        x,
        ml=4,
        keys_tensor=numpy_helper.from_array(np.asarray([0.0, np.nan, 3.0])),
        values_tensor=numpy_helper.from_array(np.asarray([5, 6, 7], np.int16)),
        default_tensor=numpy_helper.from_array(np.asarray([9], np.int16)),
    )
    made = defined(node)
    assert made is not None
    np.testing.assert_array_equal(run(made, {"x": x})[0], np.asarray([[5, 6, 7, 9]], np.int16))


@pytest.mark.parametrize("shape", [(5, 4), (4,)])
def test_array_feature_extractor(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    node = helper.make_node("ArrayFeatureExtractor", ["x", "i"], ["y"], domain="ai.onnx.ml")
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(np.asarray([3, 0, 1]), "i")],
    )
    imports = [helper.make_opsetid("", 24), helper.make_opsetid("ai.onnx.ml", 1)]
    model = ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=10))
    made = defined(model)
    assert made is not None
    found, want = run(made, {"x": x})[0], run(model, {"x": x})[0]
    assert found.shape == want.shape
    np.testing.assert_array_equal(found, want)


def test_strings_have_no_definition() -> None:
    node = one_node("OneHotEncoder", WHOLE, cats_strings=["a", "b"])
    assert defined(node) is None


def test_what_has_no_definition_says_why() -> None:
    def only(zeros: int) -> ir.Node:
        model = one_node("OneHotEncoder", WHOLE, cats_int64s=[1, 2], zeros=zeros)
        (node,) = model.graph if isinstance(model, ir.Model) else ir.from_proto(model).graph
        return node

    assert undefined(only(1)) == ""
    assert "handle_unknown='ignore'" in undefined(only(0))
