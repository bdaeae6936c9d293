"""Models from before opset 7."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeinfer.errors import UnsupportedError
from tests.convert.lower.tflite.run import lower, outputs

X = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)


def model(body: str, constants: str = "", opset: int = 6) -> ir.Model:
    text = f"""<ir_version: 3, opset_import: ["" : {opset}]>
        g (float[2,3,4] x) => (float[2,3,4] y) {constants} {{ {body} }}"""
    proto = onnx.parser.parse_model(text)
    for tensor in proto.graph.initializer:
        info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        proto.graph.input.append(info)
    made: ir.Model = ir.from_proto(proto)
    return made


SLOPES = "<float[3] s = {0.1, 0.5, -2}>"
K = np.array([0.1, 0.5, -2], np.float32)[:, None]


@pytest.mark.parametrize(
    ("made", "want"),
    [
        (model("y = Relu(x)"), np.maximum(X, 0)),
        (model("y = PRelu(x, s)", SLOPES), np.where(X < 0, X * K, X)),
        (model("y = Add<broadcast=1>(x, t)", "<float[4] t = {1, 2, 3, 4}>"), X + np.arange(1, 5)),
        (model("y = Sub(x, x)"), X - X),
    ],
    ids=["Relu", "PRelu", "Add", "Sub"],
)
def test_mean_what_they_meant(made: ir.Model, want: np.ndarray) -> None:
    np.testing.assert_allclose(outputs(lower(made), {"x": X})["y"], want, rtol=1e-6)


@pytest.mark.parametrize(
    ("body", "said"),
    [("y = PRelu(x, x)", "not constant"), ("y = Add<axis=1, broadcast=1>(x, s)", "cannot raise")],
)
def test_what_the_converter_does_not_know_is_told(body: str, said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        lower(model(body, SLOPES))
