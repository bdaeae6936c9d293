"""What sums and products round off is part of a model, on every target.

Compilers take constants that follow each other for one, and a sum less one of its parts for the
other part.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from edgeinfer.types import Array
from tests.conformance.everywhere import PLACES, lacking, run

CONV = "t = Conv<pads = [1, 1, 1, 1]>(x, w)"

ROWS = {
    "rounded": "t = Add(x, m) y = Sub(t, m)",
    "rounded_from_below": "t = Sub(x, m) y = Add(t, m)",
    "rounded_by_its_opposite": "t = Add(x, m) y = Add(t, n)",
    "rounded_twice_opposite": "t = Sub(m, x) y = Sub(m, t)",
    "opposite": "t = Neg(x) u = Add(m, t) v = Sub(u, m) y = Neg(v)",
    "two_steps": "t = Add(x, m) u = Add(t, m) v = Sub(u, m) y = Sub(v, m)",
    "each_channel": "t = Add(x, one) u = Add(t, ms) y = Sub(u, ms)",
    "summed": "y = Sum(x, m, n)",
    "halved": "t = Add(x, m) u = Mul(t, half) y = Sub(u, mhalf)",
    "positive": "t = Relu(x) u = Add(t, m) y = Sub(u, m)",
    "scaled": "t = Mul(x, two) u = Add(t, m) y = Sub(u, m)",
    "quantized": "t = Div(x, half) u = Add(t, m) v = Sub(u, m) c = Clip(v, lo, hi) "
    "y = Mul(c, half)",
    "of_255": "s = Sigmoid(x) t = Mul(s, most) u = Add(t, m) v = Sub(u, m) y = Div(v, most)",
    "huge": "t = Mul(b, big) y = Mul(t, big)",
    "less_the_first": "t = Add(x, b) y = Sub(t, x)",
    "less_the_second": "t = Add(x, b) y = Sub(t, b)",
    "from_the_first": "t = Add(x, b) y = Sub(x, t)",
    "twice_from": "t = Sub(x, b) y = Sub(x, t)",
    "error_of_a_sum": "s = Add(x, b) t = Sub(s, x) u = Sub(s, t) v = Sub(x, u) w1 = Sub(b, t) "
    "y = Add(v, w1)",
    "upper_digits": "t = Mul(x, split) u = Sub(t, x) y = Sub(t, u)",
    "cancelled": "p = Mul(x, b) q = Mul(b, x) y = Sub(p, q)",
    "opposite_products": "p = Mul(x, b) q = Mul(b, x) r = Neg(q) y = Add(p, r)",
    "error_of_a_product": "p = Mul(x, b) q = Mul(b, x) s = Add(q, q) t = Sub(s, p) y = Sub(t, p)",
    "less_a_square": "p = Mul(b, b) q = Pow(b, two) y = Sub(p, q)",
    "conv": f"{CONV} u = Add(t, m) y = Sub(u, m)",
    "conv_each_channel": f"{CONV} u = Add(t, ms) y = Sub(u, ms)",
    "conv_opposite": f"{CONV} u = Add(t, m) y = Add(u, n)",
    "conv_scaled": f"{CONV} s = Mul(t, half) u = Add(s, m) v = Sub(u, m) y = Mul(v, two)",
    "conv_normalised": f"{CONV} s = BatchNormalization<epsilon = 0.0>(t, two3, half3, zero3, one3) "
    "u = Add(s, m) y = Sub(u, m)",
    "conv_transposed": "t = ConvTranspose(x, wt) u = Add(t, m) y = Sub(u, m)",
    "product": "f = Reshape(x, flat) t = MatMul(f, wm) u = Add(t, m) y = Sub(u, m)",
}
"""Where ``y`` is the result; x and b are (2, 3, 4, 4)."""

_BY_ROUNDING = {"of_255"}
"""Rows with a quotient, which engines may round otherwise in the last place."""

_ONE_ROUNDING = {"cancelled", "opposite_products", "error_of_a_product", "less_a_square"}
"""Rows that OpenVINO rounds once: its plugin makes one operation of a product and a sum."""


def _model(rows: dict[str, str]) -> onnx.ModelProto:
    numbers = np.random.default_rng(3)

    def weights(*shape: int) -> str:
        values = numbers.integers(-3, 4, shape) / 4
        return f"{list(shape)} ".replace(" ", "") + "{0} = {{" + ",".join(map(str, values.ravel()))

    arrays = {"w": weights(3, 3, 3, 3), "wt": weights(3, 2, 2, 2), "wm": weights(48, 4)}
    known = "".join(f", float{text.format(name)}}}" for name, text in arrays.items())
    body = ""
    for row, text in rows.items():
        made = set(re.findall(r"(\w+) = (?=[A-Z])", text))
        names = "|".join(made)
        body += re.sub(rf"\b({names})\b", rf"{row}_\1", text) + "\n"
    outputs = ", ".join(f"float {row}_y" for row in rows)
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[2,3,4,4] x, float[2,3,4,4] b) => ({outputs})
        <float m = {{12582912.0}}, float n = {{-12582912.0}}, float mhalf = {{6291456.0}},
        float[3,1,1] ms = {{12582912.0, 8388608.0, 25165824.0}}, float one = {{1.0}},
        float half = {{0.5}}, float two = {{2.0}}, float most = {{255.0}}, float split = {{4097.0}},
        float big = {{1e20}}, float lo = {{-4.0}}, float hi = {{3.0}},
        float[3] two3 = {{2,2,2}}, float[3] half3 = {{0.5,0.5,0.5}}, float[3] zero3 = {{0,0,0}},
        float[3] one3 = {{1,1,1}}, int64[2] flat = {{2, 48}}{known}>
        {{ {body} }}"""
    )
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return model


def _feeds() -> dict[str, Array]:
    numbers = np.random.default_rng(0)
    # Sixteenths less a little: every product is exact, and nothing lies halfway.
    x = numbers.integers(-200, 200, (2, 3, 4, 4)) / 16 + 1 / 256
    b = numbers.standard_normal((2, 3, 4, 4)) * 1e-3
    return {"x": x.astype(np.float32), "b": b.astype(np.float32)}


@pytest.mark.parametrize("place", PLACES)
def test_what_is_rounded_off_stays_away(place: str) -> None:
    if reason := lacking(place):
        pytest.skip(reason)
    model, feeds = _model(ROWS), _feeds()
    right = dict(zip(ROWS, ReferenceEvaluator(model).run(None, feeds), strict=True))
    answers = run(place, model, feeds)
    assert not answers.refused
    wrong = []
    for row, expected in right.items():
        found = answers.outputs[f"{row}_y"]
        close = found == expected
        if row in _ONE_ROUNDING and place == "openvino":
            close = np.isclose(found, expected, rtol=0, atol=1e-7)
        if row in _BY_ROUNDING:
            close = np.isclose(found, expected, rtol=1e-6, atol=0)
        if not close.all():
            wrong.append(f"{row}: {found[~close][:2]} for {expected[~close][:2]}")
    assert not wrong


SIGNS: dict[str, Callable[[Array], Array]] = {
    "Add(x, zero)": lambda x: x + np.float32(0.0),
    "Sub(x, minus)": lambda x: x - np.float32(-0.0),
    "Add(x, minus)": lambda x: x + np.float32(-0.0),
    "Sub(x, zero)": lambda x: x - np.float32(0.0),
    "Mul(x, zero)": lambda x: x * np.float32(0.0),
    "Mul(x, minus)": lambda x: x * np.float32(-0.0),
    "Div(zero, x)": lambda x: np.float32(0.0) / x,
    "Div(minus, x)": lambda x: np.float32(-0.0) / x,
}


# coremltools takes equal numbers for one, LiteRT's own kernels stop at the largest.
@pytest.mark.parametrize("place", ["onnxruntime", "openvino", "litert", "tvm"])
@np.errstate(all="ignore")
def test_zeros_are_no_neutral_numbers(place: str) -> None:
    if reason := lacking(place):
        pytest.skip(reason)
    outputs = ", ".join(f"float[6] y{i}" for i in range(len(SIGNS)))
    body = " ".join(f"t{i} = {r} y{i} = Reciprocal(t{i})" for i, r in enumerate(SIGNS))
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21]> g (float[6] x) => ({outputs}) '
        f"<float zero = {{0.0}}, float minus = {{-0.0}}> {{ {body} }}"
    )
    x = np.array([-0.0, 0.0, 1, -1, np.inf, -np.inf], np.float32)
    found = run(place, model, {"x": x}).outputs
    for i, row in enumerate(SIGNS):
        np.testing.assert_array_equal(found[f"y{i}"], 1 / SIGNS[row](x), err_msg=row)


ODD: dict[str, Callable[[Array], Array]] = {
    "Neg(x)": np.negative,
    "Mul(x, less)": np.negative,
    "Div(x, less)": np.negative,
    **dict.fromkeys(
        (
            *(
                "Round(x)",
                "Ceil(x)",
                "Tanh(x)",
                "Sin(x)",
                "Tan(x)",
                "Sinh(x)",
                "Asinh(x)",
                "Erf(x)",
            ),
            *("Elu(x)", "Celu(x)", "Selu(x)", "LeakyRelu(x)", "Softsign(x)", "Atan(x)", "Sqrt(x)"),
            *("Mod<fmod = 1>(x, two)", "Where(yes, x, one)", "Atanh(x)", "Transpose(x)"),
        ),
        np.positive,
    ),
    "PRelu(x, less)": lambda x: np.where(x < 0, -x, x),
    "Shrink<lambd = 0.5>(x)": np.abs,
    "ThresholdedRelu(x)": np.abs,
    "Sub(zero, x)": lambda x: np.float32(0) - x,
    "Add(x, zero)": lambda x: x + np.float32(0),
    "Sign(x)": lambda x: x + np.float32(0),
    "Abs(x)": np.abs,
}
"""What there is of zeros: numbers of the same sign."""


@pytest.mark.parametrize("place", PLACES)
@np.errstate(all="ignore")
def test_a_quotient_by_zero_has_its_sign(place: str) -> None:
    if reason := lacking(place):
        pytest.skip(reason)
    outputs = ", ".join(f"float[4] y{i}, float[4] z{i}" for i in range(len(ODD)))
    body = " ".join(
        f"t{i} = {r} y{i} = Reciprocal(t{i}) m{i} = Mul(t{i}, two) z{i} = Div(one, m{i})"
        for i, r in enumerate(ODD)
    )
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 22]> g (float[4] x, bool[4] yes) => ({outputs}) '
        f"<float zero = {{0}}, float one = {{1}}, float two = {{2}}, float less = {{-1}}>"
        f"{{ {body} }}"
    )
    x = np.array([-0.0, 0.0, 0.0, -0.0], np.float32)
    answers = run(place, model, {"x": x, "yes": np.array([True, True, True, True])})
    assert not answers.refused
    for i, (row, definition) in enumerate(ODD.items()):
        for name in (f"y{i}", f"z{i}"):
            found = answers.outputs[name]
            np.testing.assert_array_equal(
                np.sign(found), np.sign(1 / definition(x)), err_msg=f"{row}: {found}"
            )


@pytest.mark.parametrize("place", PLACES)
def test_a_constant_that_a_convolution_takes_stays_for_others(place: str) -> None:
    """coremltools negates it in place; of halves it could not, and ended in an error."""
    if reason := lacking(place):
        pytest.skip(reason)
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]> g (float16[1,2,3,3] x)
        => (float16[1,2,3,3] y, float16[1,2,3,3] z)
        { t = Conv(x, w) y = Sub(t, c) z = Add(x, c) }"""
    )
    weights = np.arange(1, 5, dtype=np.float16).reshape(2, 2, 1, 1)
    for name, array in {"w": weights, "c": weights[0]}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    answers = run(place, model, {"x": np.ones((1, 2, 3, 3), np.float16)})
    assert answers.outputs["y"][0, :, 0, 0].tolist() == [2, 5]
    assert answers.outputs["z"][0, :, 0, 0].tolist() == [2, 3]
