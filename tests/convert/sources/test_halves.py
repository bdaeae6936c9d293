"""Ends of a model in half precision: the bundle takes and gives it, and no cast is left."""

from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnx_ir as ir
import pytest

import edgeinfer
from edgeinfer.convert.pipeline.entry import ExportResult, export
from edgeinfer.convert.sources.halves import exchange_halves
from edgeinfer.errors import UsageError
from tests.convert.lower.running import check, model, ops, run

TEXT = """
<ir_version: 10, opset_import: ["" : 20]>
agraph (float[2,16] x) => (float[2,16] y) {
    a = MatMul(x, w)
    y = Relu(a)
}
"""


def net() -> ir.Model:
    return model(
        "g (float[2,4] x, int64[2] k) => (float[2,4] y, float[2,4] z) { y = Neg(x) z = Exp(x) }"
    )


def test_all_that_are_floats_or_those_that_are_named() -> None:
    whole = net()
    assert exchange_halves(whole, [""]) == ("x", "y", "z")
    check(whole)
    dtypes = [v.dtype.name for v in (*whole.graph.inputs, *whole.graph.outputs) if v.dtype]
    assert dtypes == ["FLOAT16", "INT64", "FLOAT16", "FLOAT16"]
    some = net()
    assert exchange_halves(some, ["z"]) == ("z",)
    assert [v.dtype for v in some.graph.outputs] == [ir.DataType.FLOAT, ir.DataType.FLOAT16]
    assert [v.name for v in (*some.graph.inputs, *some.graph.outputs)] == ["x", "k", "y", "z"]
    x = np.linspace(-1, 1, 8, dtype=np.float16).reshape(2, 4)
    y, z = run(whole, {"x": x, "k": np.zeros(2, np.int64)})
    np.testing.assert_array_equal(y, -x)
    np.testing.assert_array_equal(z, np.exp(x.astype(np.float32)).astype(np.float16))


def test_an_input_that_is_an_output_goes_through() -> None:
    whole = model("g (float[2] x) => (float[2] y) { y = Identity(x) }")
    whole.graph.outputs[0] = whole.graph.inputs[0]
    exchange_halves(whole, ["x"])
    assert [v.dtype for v in whole.graph.inputs] == [ir.DataType.FLOAT16]
    assert "Cast" in ops(whole)


@pytest.mark.parametrize("name", ["k", "nobody"])
def test_what_is_no_float_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"io dtype of '{name}': no float32 input or output"):
        exchange_halves(net(), [name])


def converted(folder: Path, target: str, precision: str = "") -> ExportResult:
    proto = onnx.parser.parse_model(TEXT)
    weights = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(proto, folder / "m.onnx")
    return export(
        *(folder / "m.onnx", f"{folder}/m.edge/"),
        targets=(target,),
        io_dtypes={"": "float16"},
        input_ranges={"x": (-4.0, 4.0)},
        precision=precision,
    )


def test_a_half_file_for_a_gpu_has_no_cast_left(tmp_path: Path) -> None:
    made = converted(tmp_path, "cuda", precision="fp16")
    assert {s.dtype for s in (*made.manifest.inputs, *made.manifest.outputs)} == {"float16"}
    (variant,) = made.manifest.variants
    file = onnx.load(made.path / variant.files[0].path)
    assert [n.op_type for n in file.graph.node] == ["MatMul", "Relu"]
    assert variant.precision == "fp16"


def test_a_session_takes_and_gives_halves(tmp_path: Path) -> None:
    made = converted(tmp_path, "openvino")
    x = np.ones((2, 16), np.float16)
    with edgeinfer.load(made.path) as session:
        assert session(x).dtype == np.float16  # type: ignore[union-attr]
