"""Quantized operators of ONNX and of ONNX Runtime on every target, next to ONNX Runtime itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from edgeinfer.convert.passes.split_quantized import SPLITS
from edgeinfer.types import Array
from tests.conformance.everywhere import PLACES, lacking, run, run_each

HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]> g'
SCALES = (
    "float xs = {0.02}, float ws = {0.03}, float ys = {0.05}, float ps = {0.00390625}, "
    "uint8 xz = {120}, uint8 wz = {90}, uint8 yz = {100}, uint8 pz = {0}"
)

CASES: dict[str, tuple[str, str, str]] = {
    "QLinearSigmoid": ("uint8[2,6] x", "uint8[2,6] y", "QLinearSigmoid(x, xs, xz, ps, pz)"),
    "QLinearLeakyRelu": (
        "uint8[2,6] x",
        "uint8[2,6] y",
        "QLinearLeakyRelu <alpha = 0.2> (x, xs, xz, ys, yz)",
    ),
    "QLinearAdd": (
        "uint8[2,6] x, uint8[6] w",
        "uint8[2,6] y",
        "QLinearAdd(x, xs, xz, w, ws, wz, ys, yz)",
    ),
    "QLinearMul": (
        "uint8[2,6] x, uint8[6] w",
        "uint8[2,6] y",
        "QLinearMul(x, xs, xz, w, ws, wz, ys, yz)",
    ),
    "QLinearSoftmax": (
        "uint8[2,6] x",
        "uint8[2,6] y",
        "QLinearSoftmax <axis = -1, opset = 13> (x, xs, xz, ps, pz)",
    ),
    "QLinearConcat": (
        "uint8[2,3] x, uint8[2,4] w",
        "uint8[2,7] y",
        "QLinearConcat <axis = 1> (ys, yz, x, xs, xz, w, ws, wz)",
    ),
    "QLinearWhere": (
        "bool[2,6] c, uint8[2,6] x, uint8[6] w",
        "uint8[2,6] y",
        "QLinearWhere(c, x, xs, xz, w, ws, wz, ys, yz)",
    ),
    "QLinearAveragePool": (
        "uint8[1,3,6,6] x",
        "uint8[1,3,4,3] y",
        "QLinearAveragePool <kernel_shape = [3, 2], strides = [1, 2]> (x, xs, xz, ys, yz)",
    ),
    "QLinearGlobalAveragePool": (
        "uint8[2,3,5,5] x",
        "uint8[2,3,1,1] y",
        "QLinearGlobalAveragePool(x, xs, xz, ys, yz)",
    ),
    "QLinearGlobalAveragePool, channels last": (
        "uint8[2,5,5,3] x",
        "uint8[2,1,1,3] y",
        "QLinearGlobalAveragePool <channels_last = 1> (x, xs, xz, ys, yz)",
    ),
    "QLinearConv": (
        "uint8[1,2,6,6] x",
        "uint8[1,3,6,6] y",
        "QLinearConv <pads = [1, 1, 1, 1]> (x, xs, xz, k, ks, kz, big, yz, kb)",
    ),
    "QLinearConv, channels last": (
        "uint8[1,6,6,2] x",
        "uint8[1,6,6,3] y",
        "QLinearConv <pads = [1, 1, 1, 1], channels_last = 1> "
        "(x, xs, xz, k, ks, k0, big, yz, kb)",
    ),
    "QLinearConv, zero points": (
        "uint8[1,2,6,6] x",
        "uint8[1,3,4,4] y",
        "QLinearConv(x, xs, xz, k, ks, kz, big, yz)",
    ),
    "QGemm": (
        "uint8[4,6] x",
        "uint8[4,3] y",
        "QGemm <transB = 1> (x, xs, xz, m, ws, wz, kb, big, yz)",
    ),
    "QGemm, factor": (
        "uint8[4,6] x",
        "uint8[4,3] y",
        "QGemm <transB = 1, alpha = 0.5> (x, xs, xz, m, ws, wz, kb, big, yz)",
    ),
    "QGemm, floats": (
        "uint8[4,6] x",
        "float[4,3] y",
        "QGemm <transB = 1> (x, xs, xz, m, ws, wz, kb)",
    ),
    "QLinearMatMul": (
        "uint8[2,3,4,6] x, uint8[2,3,6,5] w",
        "uint8[2,3,4,5] y",
        "QLinearMatMul(x, xs, xz, w, ws, wz, big, yz)",
    ),
}  # fmt: skip


def _constants() -> str:
    rng = np.random.default_rng(3)
    kernel, matrix = rng.integers(0, 256, 54), rng.integers(0, 256, 18)
    numbers: dict[str, Sequence[float] | Array] = {
        "uint8[3,2,3,3] k": kernel,
        "uint8[3,6] m": matrix,
        "float[3] ks": [0.01, 0.02, 0.03],
        "uint8[3] kz": [100, 128, 3],
        "uint8[3] k0": [128, 128, 128],
        "int32[3] kb": [100, -500, 7],
        "float big": [0.9],
    }
    return ", ".join(f"{k} = {{{', '.join(map(str, v))}}}" for k, v in numbers.items())


@cache
def _case(name: str) -> tuple[onnx.ModelProto, dict[str, Array], Array]:
    given, result, call = CASES[name]
    standard = call.startswith(
        ("QLinearConv <pads = [1, 1, 1, 1]> ", "QLinearConv(", "QLinearMatMul")
    )
    domain = "" if standard else "com.microsoft."
    model = onnx.parser.parse_model(
        f"{HEAD} ({given}) => ({result}) <{SCALES}, {_constants()}> {{ y = {domain}{call} }}"
    )
    rng, feeds = np.random.default_rng(0), dict[str, Array]()
    for value in model.graph.input:
        sizes = [d.dim_value for d in value.type.tensor_type.shape.dim]
        is_bool = value.type.tensor_type.elem_type == onnx.TensorProto.BOOL
        feeds[value.name] = (
            rng.integers(0, 2, sizes).astype(bool)
            if is_bool
            else rng.integers(0, 256, sizes, np.uint8)
        )
    options = ort.SessionOptions()
    # Without VNNI its kernels saturate, unless it may store weights in another way.
    options.add_session_config_entry("session.x64quantprecision", "1")
    (right,) = ort.InferenceSession(model.SerializeToString(), options).run(None, feeds)
    return model, feeds, right


@pytest.mark.parametrize("place", PLACES)
def test_quantized_operators(place: str) -> None:
    if reason := lacking(place):
        pytest.skip(reason)
    answers = run_each(place, {name: _case(name)[:2] for name in CASES})
    for name, answer in answers.items():
        right = _case(name)[2]
        (found,) = answer.outputs.values()
        assert found.dtype == right.dtype, name
        # A tie may be rounded to either side.
        step = 1 if right.dtype == np.uint8 else 1e-4
        off = np.abs(found.astype(np.float64) - right.astype(np.float64)).max()
        assert off <= step, name


def test_a_mean_of_integers() -> None:
    """ONNX Runtime has a schema for it and no kernel."""
    model = ir.from_onnx_text(
        f"{HEAD} (uint8[2,6] x) => (uint8[2,1] y) <{SCALES}> "
        "{ y = com.microsoft.QLinearReduceMean <axes = [1], keepdims = 1> (x, xs, xz, ys, yz) }"
    )
    x = np.random.default_rng(0).integers(0, 256, (2, 6), np.uint8)
    right = np.rint(((x - 120.0) * 0.02).mean(1, keepdims=True) / 0.05) + 100
    for place in PLACES:
        if place == "onnxruntime" or lacking(place):
            continue
        (found,) = run(place, ir.to_proto(model), {"x": x}).outputs.values()
        assert np.abs(found.astype(int) - right).max() <= 1


def test_all_that_are_split_are_here() -> None:
    """``ConvInteger`` and ``MatMulInteger`` have tests of their own."""
    here = {name.partition(",")[0] for name in CASES} | {"QLinearReduceMean"}
    assert {op for _, op in SPLITS} - {"ConvInteger", "MatMulInteger"} == here


def test_ranks_that_show_one_after_the_other() -> None:
    """What ONNX does not define has no rank before it is written out."""
    text = f"""{HEAD} (uint8[2,3,4] x, uint8[4,3] w) => (uint8[2,3,3] y)
        <{SCALES}, float[3] vs = {{0.1, 0.2, 0.3}}, uint8[3] vz = {{1, 2, 3}}> {{
        a = com.microsoft.QLinearAdd(w, ws, wz, w, ws, wz, ys, yz)
        y = QLinearMatMul(x, xs, xz, a, vs, vz, ys, yz) }}"""
    x, w = (np.random.default_rng(0).integers(0, 256, s, np.uint8) for s in ((2, 3, 4), (4, 3)))
    model = onnx.parser.parse_model(text)
    right = None
    for place in PLACES:
        if lacking(place):
            continue
        (found,) = run(place, model, {"x": x, "w": w}).outputs.values()
        right = found.astype(int) if right is None else right
        assert np.abs(found.astype(int) - right).max() <= 1, place
