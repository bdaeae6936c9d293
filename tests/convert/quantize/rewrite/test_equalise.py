import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from edgeinfer.convert.quantize.calibrate.observe import observe
from edgeinfer.convert.quantize.rewrite.equalise import equalise_layers, normalised_products, smooth
from edgeinfer.convert.quantize.units import array_of
from tests.convert.quantize.conftest import graph


def run(model: ir.Model, x: np.ndarray) -> np.ndarray:
    proto = ir.to_proto(model).SerializeToString()
    session = onnxruntime.InferenceSession(proto, providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None, {"x": x})[0]
    return found


def depthwise(clip: str = "Relu(a)") -> ir.Model:
    rng = np.random.default_rng(0)
    spread = 10.0 ** rng.uniform(-2, 1, 8)
    return graph(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        net (float[1,3,8,8] x) => (float[1,4,8,8] y)
        <float[8,3,1,1] w1, float[8] b1, float[8,1,3,3] w2, float[8] b2, float[4,8,1,1] w3,
         float zero, float six>
        {{
          a = Conv(x, w1, b1)
          ar = {clip}
          c = Conv<group=8, pads=[1,1,1,1]>(ar, w2, b2)
          y = Conv(c, w3)
        }}""",
        w1=(rng.normal(size=(8, 3, 1, 1)) * spread[:, None, None, None]).astype(np.float32),
        b1=rng.normal(size=8).astype(np.float32),
        w2=rng.normal(size=(8, 1, 3, 3)).astype(np.float32),
        b2=rng.normal(size=8).astype(np.float32),
        w3=(rng.normal(size=(4, 8, 1, 1)) / spread[None, :, None, None]).astype(np.float32),
        **(
            {"zero": np.array(0, np.float32), "six": np.array(6, np.float32)}
            if "zero" in clip
            else {}
        ),
    )


def spread_of(model: ir.Model, op_index: int, axis: int) -> float:
    node = [n for n in model.graph if n.op_type == "Conv"][op_index]
    weights = np.moveaxis(np.abs(array_of(node.inputs[1])), axis, 0)
    largest = weights.reshape(len(weights), -1).max(axis=1)
    return float(largest.max() / largest.min())


def test_convolutions_in_a_row_compute_the_same_with_even_channels() -> None:
    model = depthwise()
    x = np.random.default_rng(1).normal(size=(1, 3, 8, 8)).astype(np.float32)
    before, wide = run(model, x), spread_of(model, 0, 0)
    assert equalise_layers(model) == 2
    np.testing.assert_allclose(run(model, x), before, rtol=1e-4, atol=1e-4)
    assert spread_of(model, 0, 0) < wide / 5


def test_a_clip_at_six_is_no_place_to_even_out() -> None:
    model = depthwise("Clip(a, zero, six)")
    assert equalise_layers(model) == 1
    first = next(n for n in model.graph if n.op_type == "Conv")
    assert first.inputs[1] is not None
    assert first.inputs[1].name == "w1"


def test_what_something_else_reads_is_left_alone() -> None:
    model = graph(
        """<ir_version: 10, opset_import: ["" : 21]>
        net (float[1,2,4,4] x) => (float[1,2,4,4] y, float[1,2,4,4] z)
        <float[2,2,1,1] w1, float[2,2,1,1] w2>
        { a = Conv(x, w1)  y = Conv(a, w2)  z = Relu(a) }""",
        w1=np.ones((2, 2, 1, 1), np.float32),
        w2=np.ones((2, 2, 1, 1), np.float32),
    )
    assert equalise_layers(model) == 0


def transformer(op: str) -> ir.Model:
    rng = np.random.default_rng(0)
    scale = np.ones(16, np.float32)
    scale[3] = 60.0
    norm = "LayerNormalization(x, g, b)" if op == "LayerNormalization" else f"{op}(x, g)"
    second = "float[16] b," if op == "LayerNormalization" else ""
    weights = {"b": rng.normal(size=16).astype(np.float32)} if second else {}
    return graph(
        f"""<ir_version: 10, opset_import: ["" : 24]>
        net (float[1,5,16] x) => (float[1,5,8] y)
        <float[16] g, {second} float[16,8] q, float[16,8] k>
        {{ n = {norm}  a = MatMul(n, q)  c = MatMul(n, k)  y = Add(a, c) }}""",
        g=scale,
        q=rng.normal(size=(16, 8)).astype(np.float32),
        k=rng.normal(size=(16, 8)).astype(np.float32),
        **weights,
    )


@pytest.mark.parametrize("op", ["LayerNormalization", "RMSNormalization"])
def test_outliers_behind_a_norm_move_into_the_weights(op: str) -> None:
    model = transformer(op)
    rng = np.random.default_rng(1)
    feeds = [{"x": rng.normal(size=(1, 5, 16)).astype(np.float32)} for _ in range(8)]
    names = normalised_products(model)
    assert names == ["n"]
    seen = observe(model, names, {"n": -1}, lambda: iter(feeds))
    before = [run(model, f["x"]) for f in feeds]
    assert smooth(model, seen.channels) == 1
    for feed, expected in zip(feeds, before, strict=True):
        np.testing.assert_allclose(run(model, feed["x"]), expected, rtol=1e-4, atol=1e-3)
    after = observe(model, names, {"n": -1}, lambda: iter(feeds))

    def ratio(largest: np.ndarray) -> float:
        return float(largest.max() / np.median(largest))

    assert ratio(after.channels["n"].largest) < ratio(seen.channels["n"].largest) / 3
