"""Scales with which engines round to the same integers."""

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import constant
from edgeinfer.convert.quantize.calibrate.ranges import Range
from edgeinfer.convert.quantize.calibration import limits_of
from edgeinfer.convert.quantize.rewrite import qdq
from edgeinfer.profiles import load
from tests.convert.quantize.conftest import graph

RNG = np.random.default_rng(0)
RANGES = {
    "x": Range(-2.9, 3.1),
    "l": Range(-5.3, 4.7),
    "g": Range(-0.17, 4.7),
    "m": Range(-6.1, 7.3),
}
TEXT = """<ir_version: 10, opset_import: ["" : 20]>
    net (float[1,16] x) => (float[1,8] m)
    <float[16,12] w, float[12] b, float[12,8] v>
    {
      p = MatMul(x, w)
      l = Add(p, b)
      g = Gelu(l)
      m = MatMul(g, v)
    }"""


def written(target: str, format: str) -> ir.Model:
    model = graph(
        TEXT,
        w=RNG.normal(size=(16, 12)).astype(np.float32),
        b=RNG.normal(size=12).astype(np.float32),
        v=RNG.normal(size=(12, 8)).astype(np.float32),
    )
    return qdq.write(model, limits_of(load(target), format), RANGES).model


def scale_behind(model: ir.Model, name: str) -> tuple[float, int]:
    """Return the scale and the zero point by which a value is rounded."""
    node = next(n for n in model.graph if n.op_type == "QuantizeLinear" and n.name == f"{name}.q")
    scale, zero = (constant(v) for v in node.inputs[1:3])
    assert scale is not None
    assert zero is not None
    return float(scale.numpy()), int(zero.numpy())


def test_floats_made_of_integers_are_exact() -> None:
    """A product with the difference, and a shift behind the product, give the same float32."""
    model = written("rpi4", "tflite")
    steps = np.arange(-128, 128)
    for name in "xlgm":
        scale, zero = scale_behind(model, name)
        exact = (steps - zero) * scale
        single = np.float32(scale)
        np.testing.assert_array_equal((steps - zero).astype(np.float32) * single, exact)
        shift = np.float32(-zero) * single
        np.testing.assert_array_equal(steps.astype(np.float32) * single + shift, exact)


def test_a_function_of_an_integer_is_not_near_to_halfway() -> None:
    model = written("rpi4", "tflite")
    (before, zero), (after, _) = (scale_behind(model, name) for name in "lg")
    x = (np.arange(-128, 128) - zero) * before
    from math import erf, sqrt

    steps = np.array([0.5 * v * (1 + erf(v / sqrt(2))) for v in x]) / after
    away = np.abs(steps - np.floor(steps) - 0.5).min()
    assert away > 2e-3
    assert 1.0 - 1e-3 < after / ((4.7 + 0.17) / 255) < 1.0 + 3e-3


def test_a_bias_that_stays_float_is_whole_steps_of_its_product() -> None:
    """Else a part of a step would bring back ties that the scales have none of."""
    model = written("openvino", "openvino_ir")
    added = next(n for n in model.graph if n.op_type == "Add")
    bias = next(b for v in added.inputs if (b := constant(v)) is not None).numpy()
    product = next(n for n in model.graph if n.op_type == "MatMul")
    read, weights = (v.producer() for v in product.inputs if v is not None)
    assert read is not None
    assert weights is not None
    steps = [constant(n.inputs[1]) for n in (read, weights)]
    size = steps[0].numpy() * steps[1].numpy()  # type: ignore[union-attr]
    whole = bias / size
    np.testing.assert_allclose(whole, np.rint(whole), atol=1e-3)
    assert np.abs(np.rint(whole)).max() > 100
