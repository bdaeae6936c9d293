"""Channels last or first by choice: the interface changes, the answers do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeinfer.convert.passes import normalise
from edgeinfer.convert.sources import read
from edgeinfer.convert.sources.channels import letters, move_channels
from edgeinfer.convert.verify import Vector
from edgeinfer.convert.verify.oracles import Oracles
from edgeinfer.errors import UsageError
from tests.convert.lower.tflite.run import expected, lower, ops, outputs

NET = """<ir_version: 10, opset_import: ["" : 20]>
net (float[1,2,5,6] x, float[1,2] s) => (float[1,3,5,6] y, float[1,2] t)
<float[3,2,1,1] w = {1, 2, 3, 4, 5, 6}> {
  c = Conv(x, w)
  y = Relu(c)
  t = Neg(s)
}"""


def net() -> ir.Model:
    model = ir.from_onnx_text(NET)
    onnx.checker.check_model(ir.to_proto(model))
    return model


def feeds() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"x": (1, 2, 5, 6), "s": (1, 2)}
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


def shapes(model: ir.Model) -> dict[str, list[int]]:
    values = (*model.graph.inputs, *model.graph.outputs)
    return {str(v.name): list(v.shape.numpy()) if v.shape else [] for v in values}


def test_inputs_and_outputs_get_another_layout() -> None:
    model, given = net(), feeds()
    want = expected(net(), given)
    assert move_channels(model, ["x", "y"], []) == {"x": (0, 3, 1, 2), "y": (0, 3, 1, 2)}
    assert shapes(model)["x"] == [1, 5, 6, 2]
    assert shapes(model)["y"] == [1, 5, 6, 3]
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    got = expected(model, {**given, "x": given["x"].transpose(0, 2, 3, 1)})
    np.testing.assert_allclose(got["y"].transpose(0, 3, 1, 2), want["y"], rtol=1e-6)
    np.testing.assert_array_equal(got["t"], want["t"])


def test_there_and_back_is_the_same_model() -> None:
    model, given = net(), feeds()
    move_channels(model, ["x", "y"], [])
    move_channels(model, [], ["x", "y"])
    assert shapes(model) == shapes(net())
    assert "Transpose" not in [n.op_type for n in normalise(model).model.graph]
    np.testing.assert_allclose(expected(model, given)["y"], expected(net(), given)["y"], rtol=1e-6)


def test_tflite_needs_no_transpose_then() -> None:
    model = net()
    assert ops(lower(model)).count("TRANSPOSE") == 2
    move_channels(model, ["x", "y"], [])
    data, given = lower(model), feeds()
    assert "TRANSPOSE" not in ops(data)
    got = outputs(data, {**given, "x": given["x"].transpose(0, 2, 3, 1)})
    want = expected(net(), given)["y"]
    np.testing.assert_allclose(got["y"].transpose(0, 3, 1, 2), want, rtol=1e-5, atol=1e-5)


def test_an_input_that_is_an_output_too() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[1,2,3] x) => (float[1,2,3] y) '
        "{ y = Identity(x) }"
    )
    move_channels(model, ["x"], [])
    x = np.arange(6, dtype=np.float32).reshape(1, 3, 2)
    np.testing.assert_array_equal(expected(model, {"x": x})["y"], x.transpose(0, 2, 1))


def test_a_file_of_another_format_answers_in_the_new_layout(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(lower(net()))
    source = read(path)
    source.move_channels(["x", "y"], [])
    assert source.layouts == {"x": "NHWC", "y": "NHWC"}
    given = feeds()
    vector = Vector({**given, "x": np.ascontiguousarray(given["x"].transpose(0, 2, 3, 1))}, "test")
    with Oracles(source.model, original=source.original) as oracles:
        (answer,) = oracles.expected([vector]).answers
    assert answer.agreed == ("litert", "float64")
    want = expected(net(), given)["y"].transpose(0, 2, 3, 1)
    np.testing.assert_allclose(answer.outputs["y"], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("last", "first", "words"),
    [
        (["q"], [], "no input or output 'q'; there are 'x', 's', 'y', 't'"),
        (["s"], [], "'s' has no axes but batch and channels"),
        (["x"], ["x"], "cannot be both"),
    ],
)
def test_what_makes_no_sense_is_refused(last: list[str], first: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        move_channels(net(), last, first)


def test_letters() -> None:
    assert [letters(n, True) for n in (3, 4, 5, 6)] == ["NWC", "NHWC", "NDHWC", None]
    assert [letters(n, False) for n in (3, 4, 5)] == ["NCW", "NCHW", "NCDHW"]
