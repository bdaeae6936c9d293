"""Artifacts that take small integers only are judged on small ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import edgeinfer
from edgeinfer.convert.verify.answers import Vector
from edgeinfer.convert.verify.within import within
from edgeinfer.errors import VerifyError

SMALL = {"integers": json.dumps({"x": [-4, 5]})}


def vector(values: list[int], origin: str = "synthetic:natural", *, edge: bool = False) -> Vector:
    return Vector({"x": np.array(values, np.int64)}, origin, edge=edge)


def test_what_lies_outside_is_folded_in() -> None:
    (made,) = within([vector([0, 5, 6, 99, -5, -4])], [SMALL])
    assert made.feeds["x"].tolist() == [0, 5, -4, -1, 5, -4]
    assert made.feeds["x"].dtype == np.int64
    assert not made.edge


def test_one_that_is_taken_is_enough() -> None:
    assert within([vector([99]), vector([3])], [SMALL]) == []
    assert within([vector([99])], [{}]) == []


def test_zeros_at_an_extreme_are_not_enough() -> None:
    found = within([vector([99]), vector([0], "synthetic:zeros", edge=True)], [SMALL, {}])
    assert [v.feeds["x"].tolist() for v in found] == [[-1]]


def test_what_a_user_gave_is_not_changed() -> None:
    assert within([vector([99], "user:a.npz"), vector([99])], [SMALL]) == []


PRODUCT = onnx.parser.parse_model(
    '<ir_version: 10, opset_import: ["" : 21]> g (int64[2,6] x) => (int64[2] y) '
    "<int64[1] a = {1}> { y = ReduceProd <keepdims = 0> (x, a) }"
)
ROWS = np.array([[1, 2, 3, 4, 5, 6], [32, -32, 1, 1, 5, 7]])


@pytest.mark.parametrize("target", ["openvino", "cpu"])
def test_a_product_of_six(target: str, tmp_path: Path) -> None:
    """Made-up integers of 0 to 99 leave what a product of six may hold in 32 bits."""
    pytest.importorskip("openvino")
    onnx.save(PRODUCT, tmp_path / "m.onnx")
    made = edgeinfer.export(tmp_path / "m.onnx", tmp_path / "m.edge", targets=[target])
    with edgeinfer.load(made.path) as session:
        np.testing.assert_array_equal(session.run({"x": ROWS})["y"], ROWS.prod(1))
        assert session.verify().passed


def test_data_that_an_artifact_refuses(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    onnx.save(PRODUCT, tmp_path / "m.onnx")
    data = [{"x": np.full((2, 6), 40)}]
    with pytest.raises(VerifyError, match="every vector holds values"):
        edgeinfer.export(tmp_path / "m.onnx", tmp_path / "m.edge", targets=["openvino"], data=data)
