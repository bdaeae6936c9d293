"""Our convolutions give ONNX Runtime's numbers for every attribute."""

import importlib
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from edgeinfer.convert.verify.operators import OPERATORS
from edgeinfer.types import Array

CONV: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 3, 9, 8), (4, 3, 3, 3), {}),
    ((2, 3, 9, 8), (4, 3, 3, 2), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    ((1, 40, 7, 7), (6, 40, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 40, 7, 7), (6, 40, 1, 1), {"strides": [2, 2]}),
    ((1, 8, 9, 9), (8, 1, 3, 3), {"group": 8, "pads": [1, 1, 1, 1]}),
    ((1, 4, 9, 9), (8, 1, 3, 3), {"group": 4, "dilations": [2, 2]}),
    ((1, 6, 9, 9), (4, 3, 3, 3), {"group": 2, "dilations": [2, 1]}),
    ((1, 80, 9, 9), (4, 40, 3, 3), {"group": 2}),
    ((1, 2, 11, 5), (3, 2, 4, 3), {"auto_pad": "SAME_UPPER", "strides": [3, 2]}),
    ((1, 2, 11, 5), (3, 2, 4, 3), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    ((1, 2, 11, 5), (3, 2, 4, 3), {"auto_pad": "VALID"}),
    ((2, 3, 50), (5, 3, 7), {"strides": [3], "pads": [2, 3]}),
    ((1, 2, 5, 6, 7), (3, 2, 2, 3, 2), {"pads": [1, 0, 1, 0, 1, 0]}),
]

TRANSPOSE: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 3, 5, 4), (3, 4, 3, 3), {}),
    ((2, 3, 5, 4), (3, 4, 3, 2), {"strides": [2, 3], "pads": [1, 0, 1, 1]}),
    ((1, 3, 5, 4), (3, 4, 3, 3), {"strides": [2, 2], "output_padding": [1, 1]}),
    ((1, 4, 5, 4), (4, 3, 3, 3), {"group": 2, "dilations": [2, 1]}),
    ((1, 3, 5, 4), (3, 2, 3, 3), {"strides": [3, 3], "output_shape": [14, 13]}),
    ((1, 3, 5, 4), (3, 2, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((1, 3, 5, 4), (3, 2, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ((1, 3, 9), (3, 2, 4), {"strides": [2], "pads": [1, 1]}),
]


def by_engine(op: str, inputs: list[Array], attrs: dict[str, Any]) -> Array:
    names = [f"x{i}" for i in range(len(inputs))]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op, names, ["y"], **attrs)],
        "g",
        [
            onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, x.shape)
            for n, x in zip(names, inputs, strict=True)
        ],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
    )
    imports = [onnx.helper.make_opsetid("", 20)]
    m = onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)
    session = ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    result: Array = session.run(None, dict(zip(names, inputs, strict=True)))[0]
    return result


@pytest.mark.parametrize(
    ("op", "x", "w", "attrs"),
    [("Conv", *c) for c in CONV] + [("ConvTranspose", *c) for c in TRANSPOSE],
)
def test_numbers(op: str, x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    maps = w[0] if op == "Conv" else w[1] * attrs.get("group", 1)
    inputs = [rng.standard_normal(s).astype(np.float32) for s in (x, w, (maps,))]
    (got,) = OPERATORS[op](attrs, 20, [a.astype(np.float64) for a in inputs])
    np.testing.assert_allclose(got, by_engine(op, inputs, attrs), atol=1e-4)


def test_large_column_buffers_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 3, 30, 20)), rng.standard_normal((4, 3, 3, 3))
    (whole,) = OPERATORS["Conv"]({}, 20, [x, w])
    module = importlib.import_module("edgeinfer.numerics.convolution")
    monkeypatch.setattr(module, "_COLUMNS_BYTES", 20_000)
    (parts,) = OPERATORS["Conv"]({}, 20, [x, w])
    np.testing.assert_allclose(whole, parts, atol=1e-12)
