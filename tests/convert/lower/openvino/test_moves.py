"""Elements that change their places on OpenVINO keep every bit."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.verify.evaluate import Evaluator
from edgeinfer.types import Array
from tests.conformance.everywhere import PLACES, lacking, run_each
from tests.convert.lower.running import lower, model, ops, run_openvino

pytest.importorskip("openvino")

WIDE = np.array([[1790000031, 5, -1790000031, 16777217], [2**31 - 1, -(2**31) + 1, -7, 33554433]])


def computed(text: str, folder: Path, *feeds: Array) -> Array:
    return run_openvino(lower(model(text), folder, "openvino").files[0], *feeds)[0]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_reversed_sequences_keep_integers(dtype: str, tmp_path: Path) -> None:
    text = (
        f"g ({dtype}[2,4] x, int64[2] n) => ({dtype}[2,4] y)"
        " { y = ReverseSequence<batch_axis = 0, time_axis = 1>(x, n) }"
    )
    x = WIDE.astype(dtype)
    found = computed(text, tmp_path, x, np.array([4, 2]))
    np.testing.assert_array_equal(found, [x[0, ::-1], x[1, [1, 0, 2, 3]]])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_enlarged_pictures_of_integers_keep_them(dtype: str, tmp_path: Path) -> None:
    text = (
        f"g ({dtype}[1,1,2,4] x) => ({dtype}[1,1,4,8] y) <float[4] s = {{1, 1, 2, 2}}>"
        ' { y = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric",'
        ' nearest_mode = "floor">(x, , s) }'
    )
    x = WIDE.astype(dtype)
    found = computed(text, tmp_path, x[None, None])
    np.testing.assert_array_equal(found[0, 0], x.repeat(2, 0).repeat(2, 1))


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", ["int32", "int64", "float"])
@pytest.mark.parametrize("amounts", ["{1, 0, 0, 2}", "{-1, 1, 0, -2}"])
def test_a_border_has_the_value_of_the_run(dtype: str, amounts: str, tmp_path: Path) -> None:
    text = (
        f"g ({dtype}[2,4] x, {dtype} v) => ({dtype}[A,B] y) <int64[4] p = {amounts}>"
        " { y = Pad(x, p, v) }"
    )
    x = WIDE.astype("float32" if dtype == "float" else dtype)
    for value in (0, 7, 1790000031):
        v = np.array(value, x.dtype)
        if amounts[1] == "-":
            right = np.pad(x[1:, :2], ((0, 0), (1, 0)), constant_values=v)
        else:
            right = np.pad(x, ((1, 0), (0, 2)), constant_values=v)
        np.testing.assert_array_equal(computed(text, tmp_path, x, v), right)


def test_a_known_value_that_float32_does_not_hold_is_chosen_apart(tmp_path: Path) -> None:
    text = (
        "g (int64[2,4] x) => (int64[3,4] y) <int64[4] p = {0, 0, 1, 0}, int64 v = {1790000031}>"
        " { y = Pad(x, p, v) }"
    )
    found = computed(text, tmp_path, WIDE)
    np.testing.assert_array_equal(found, np.pad(WIDE, ((0, 1), (0, 0)), constant_values=1790000031))


def test_ordinary_borders_are_left_alone(tmp_path: Path) -> None:
    text = (
        "g (float[2,4] x) => (float[3,4] y) <int64[4] p = {0, 0, 1, 0}, float v = {3}>"
        " { y = Pad(x, p, v) }"
    )
    assert lower(model(text), tmp_path, "openvino").ops["Pad"] == 1
    assert ops(model(text)) == ["Pad"]


BORDERS = {
    "number": "y = Pad(d, p, half)",
    "number below the integers": "h = Pad(d, p, low) y = Relu(h)",
    "behind a product": "m = Mul(d, two) y = Pad(m, p, half)",
    "behind a pool": "m = MaxPool<kernel_shape = [2]>(d) y = Pad(m, p, half)",
    "joined": "h = Pad(d, p, half) f = Pad(x, p, low) y = Concat<axis = 1>(h, f)",
    "rounded again": "h = Pad(d, p, half) q = QuantizeLinear(h, s, z)"
    " y = DequantizeLinear(q, s, z)",
    "mean": "y = AveragePool<kernel_shape = [3], pads = [1, 1], count_include_pad = 1>(d)",
    "mean of a sum": "m = Add(d, half)"
    " y = AveragePool<kernel_shape = [3], pads = [1, 1], count_include_pad = 1>(m)",
    "mean of a product": "w = DequantizeLinear(i, two) c = Conv(d, w) q = QuantizeLinear(c, s, z)"
    " e = DequantizeLinear(q, s, z)"
    " y = AveragePool<kernel_shape = [3], pads = [1, 1], count_include_pad = 1>(e)",
}


@pytest.mark.parametrize("place", [p for p in PLACES if p != "litert-without-xnnpack"])
def test_borders_behind_integers_are_what_they_are(place: str) -> None:
    if reason := lacking(place):
        pytest.skip(reason)
    x = np.round(np.random.default_rng(0).standard_normal((1, 2, 6)) * 8).astype(np.float32) / 4
    cases, right = {}, {}
    for zero in (0, 5):
        for name, body in BORDERS.items():
            text = f"""g (float[1,2,6] x) => (float[A,B,C] y) <
                float s = {{0.25}}, int8 z = {{{zero}}}, float half = {{1.5}},
                float low = {{-3000.5}}, float two = {{2}},
                int8[2,2,3] i = {{1, -2, 3, 1, 0, 2, -1, 1, 1, 0, 2, -2}},
                int64[6] p = {{0, 0, 1, 0, 0, 2}}> {{
                q0 = QuantizeLinear(x, s, z) d = DequantizeLinear(q0, s, z) {body} }}"""
            whole = model(text)
            (right[f"{name} {zero}"],) = Evaluator(whole, wide=True).run({"x": x}).values()
            cases[f"{name} {zero}"] = ir.to_proto(whole), {"x": x}
    wrong = {}
    for name, case in cases.items():
        got = run_each(place, {name: case})[name].outputs["y"]
        if got.shape != right[name].shape or not np.allclose(got, right[name], 1e-4, 1e-4):
            wrong[name] = got
    assert not wrong


@pytest.mark.parametrize("place", [p for p in PLACES if p != "litert-without-xnnpack"])
def test_borders_begin_again_at_the_other_end(place: str) -> None:
    if reason := lacking(place):
        pytest.skip(reason)
    x = np.random.default_rng(0).standard_normal((1, 3, 2, 4)).astype(np.float32)
    cases = {}
    rows = [
        (sizes, pads)
        for sizes in ("1,3,2,4", "N,3,H,W")
        for pads in ((0, 0, 1, 0, 0, 1, 0, 2), (0, 2, 0, 3, 0, 3, 0, 1), (0, 5, 0, 0, 0, 0, 0, 0))
    ]
    for sizes, pads in rows:
        numbers = ", ".join(map(str, pads))
        text = f"""g (float[{sizes}] x) => (float[A,B,C,D] y) <int64[8] p = {{{numbers}}}> {{
            [y] y = Pad<mode = "wrap">(x, p) }}"""
        cases[f"{sizes} {pads}"] = ir.to_proto(model(text)), {"x": x}
    for (_, pads), (name, answers) in zip(rows, run_each(place, cases).items(), strict=True):
        right = np.pad(x, list(zip(pads[:4], pads[4:], strict=True)), mode="wrap")
        np.testing.assert_array_equal(answers.outputs["y"], right, err_msg=name)
