"""Integers of 64 bits that grow: the right value or an error, never one that wrapped around."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import edgeinfer
from edgeinfer.errors import RunError
from edgeinfer.types import Array
from tests.conformance.everywhere import lacking

STAMPS = np.array([[1790000031, -1790000001, 16777217], [1790000001, 33554433, 2]])
PLACES = np.array([[0, 0, 0], [1, 1, 1]])
CASES: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "products": ("y = MatMul(x, t)", lambda x: x @ PLACES.T * 1000),
    "factors": ("y = ReduceProd<keepdims=0>(x, last)", lambda x: x.prod(1)),
    "added": (
        'y = ScatterElements<axis=1, reduction="add">(x, places, x)',
        lambda x: (
            x + np.stack([[r.sum(), 0, 0] if i == 0 else [0, r.sum(), 0] for i, r in enumerate(x)])
        ),
    ),
    "the largest of three": ("d = Add(x, x) y = Max(x, x, d)", lambda x: np.maximum(x, 2 * x)),
    "after the first ones": (
        "v, i = TopK(x, last) y = Add(v, v)",
        lambda x: 2 * x.max(1, keepdims=True),
    ),
    "beside a border": (
        "p = Pad(x, pads) y = Add(p, p)",
        lambda x: 2 * np.pad(x, ((0, 0), (1, 0))),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_openvino_gives_the_value_or_an_error(case: str, tmp_path: Path) -> None:
    if why := lacking("openvino"):
        pytest.skip(why)
    body, right = CASES[case]
    turned = ", ".join(str(v * 1000) for v in PLACES.T.ravel())
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (int64[2,3] x) => (int64[a,b] y) '
        f"<int64[3,2] t = {{{turned}}}, int64[1] last = {{1}}, int64[4] pads = {{0,1,0,0}}, "
        f"int64[2,3] places = {{0,0,0,1,1,1}}> {{ {body} }}"
    )
    if case == "factors":
        model.graph.output[0].type.tensor_type.shape.dim.pop()
    onnx.save(model, tmp_path / "m.onnx")
    made = edgeinfer.export(tmp_path / "m.onnx", tmp_path / "m.edge", targets=["openvino"])
    with edgeinfer.load(made.path, measure=False) as session:
        small = STAMPS % 50
        np.testing.assert_array_equal(session.run({"x": small})["y"], right(small))
        with pytest.raises(RunError, match="64-bit integers in 32 bits"):
            session.run({"x": STAMPS})
