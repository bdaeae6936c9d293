"""Weights that several nodes read are stored once, in every format, and engines still agree."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from benchmarks.precision_agree import ENGINES, answered, shared_limits
from edgeinfer import profiles
from edgeinfer.convert import passes
from edgeinfer.convert.lower import target_for
from edgeinfer.convert.lower.target import LowerOptions
from edgeinfer.convert.quantize.calibration import Quantizer, Settings, limits_of
from edgeinfer.convert.quantize.recipe import recipe
from edgeinfer.convert.quantize.rewrite.shared_weights import commons
from edgeinfer.convert.quantize.rewrite.weights import store
from edgeinfer.convert.quantize.units import lay_out, weights_axis
from edgeinfer.media.samples import open_data
from tests.convert.quantize.conftest import graph
from tests.processor import skip_where_openvino_saturates

ROWS, WIDTH = 600, 48
FORMATS = {
    "onnx": "onnxruntime",
    "openvino_ir": "openvino",
    "tflite": "rpi4",
    "mlprogram": "ios",
}


def towers() -> tuple[ir.Model, list[dict[str, np.ndarray]]]:
    """Two images through one tower; the second one's values are three times as large."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.normal(size=(16, 4, 3, 3)) / 6,
        "w2": rng.normal(size=(32, 16, 3, 3)) / 12,
        "w3": rng.normal(size=(512, 32)) / 22,
        "c1": rng.normal(size=16) * 0.2,
        "c2": rng.normal(size=32) * 0.2,
    }
    sides = "\n".join(
        f"""{s}1 = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>({s}, w1, c1)
        {s}2 = Relu({s}1)
        {s}3 = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>({s}2, w2, c2)
        {s}4 = Relu({s}3)
        {s}5 = Flatten({s}4)
        {s}6 = MatMul({s}5, w3)"""
        for s in "ab"
    )
    text = f"""<ir_version: 10, opset_import: ["" : 24]>
    siamese (float[1,4,16,16] a, float[1,4,16,16] b) => (float[1,64] y)
    <float[16,4,3,3] w1, float[32,16,3,3] w2, float[512,32] w3, float[16] c1, float[32] c2>
    {{ {sides}
      y = Concat<axis = 1>(a6, b6) }}"""
    model = graph(text, **{n: v.astype(np.float32) for n, v in weights.items()})
    shape = (1, 4, 16, 16)
    feeds = [
        {
            "a": (np.rint(rng.normal(size=shape) * 64) / 64).astype(np.float32),
            "b": (np.rint(rng.normal(size=shape) * 64) / 64 * 3).astype(np.float32),
        }
        for _ in range(12)
    ]
    return passes.normalise(model).model, feeds


def speller() -> tuple[ir.Model, list[dict[str, np.ndarray]]]:
    """An embedding whose transpose is the last product, as exporters write it: two constants."""
    rng = np.random.default_rng(1)
    table = (rng.normal(size=(ROWS, WIDTH)) * 0.3).astype(np.float32)
    inner = (rng.normal(size=(WIDTH, WIDTH)) / np.sqrt(WIDTH)).astype(np.float32)
    text = f"""<ir_version: 10, opset_import: ["" : 24]>
    speller (int64[1,8] ids) => (float[1,8,{ROWS}] y)
    <float[{ROWS},{WIDTH}] table, float[{WIDTH},{WIDTH}] inner, float[{WIDTH},{ROWS}] turned>
    {{
      e = Gather(table, ids)
      h = MatMul(e, inner)
      r = Relu(h)
      s = Add(e, r)
      y = MatMul(s, turned)
    }}"""
    model = graph(text, table=table, inner=inner, turned=np.ascontiguousarray(table.T))
    feeds = [{"ids": rng.integers(0, ROWS, (1, 8))} for _ in range(16)]
    return passes.normalise(model).model, feeds


NETS = {"towers": towers, "speller": speller}


@functools.cache
def quantizer(net: str, precision: str = "static_wi8_ai8") -> tuple[Quantizer, list[Any]]:
    model, feeds = NETS[net]()
    specs = passes.input_specs(model)
    found = Quantizer(model, recipe(precision), Settings(force=True))
    every = [limits_of(profiles.load(p), f) for f, p in FORMATS.items()]
    found.calibrate(open_data(feeds, specs), [*every, *shared_limits().values()], specs)
    return found, feeds


@pytest.mark.parametrize("net", NETS)
def test_every_engine_answers_alike(net: str) -> None:
    skip_where_openvino_saturates()
    found, feeds = quantizer(net)
    limits = shared_limits()
    written = {e: found.write(limits[e]).model for e in ENGINES}
    answers = {e: answered(m, e, feeds)["y"] for e, m in written.items()}
    wanted = answered(found.model, "onnxruntime", feeds)["y"]
    wrong = np.sum((answers["onnxruntime"] - wanted) ** 2) / np.sum(wanted**2)
    assert wrong < 2e-3
    for a, b in itertools.combinations(answers, 2):
        assert np.array_equal(answers[a], answers[b]), (a, b, np.mean(answers[a] != answers[b]))


@pytest.mark.sample(10)
@pytest.mark.parametrize("precision", ["fp32", "static_wi8_ai8", "weight_only_wi8_afp32"])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("net", NETS)
def test_a_file_has_each_weight_once(net: str, format: str, precision: str, tmp_path: Path) -> None:
    profile = profiles.load(FORMATS[format])
    if precision == "fp32":
        model, width = NETS[net]()[0], 4
    else:
        made, width = quantizer(net, precision)[0], 1
        model = made.write(limits_of(profile, format)).model
    lowered = target_for(format).lower(model, profile, LowerOptions("fp32"), tmp_path)
    size = sum(f.stat().st_size for f in lowered.files)
    once = {"towers": 576 + 4608 + 512 * 32, "speller": ROWS * WIDTH + WIDTH * WIDTH}[net]
    # Next to the weights there are scales, names and the operators: 28 to 45 kB in all formats.
    assert once * width < size < once * width + 46_000
    twice = {"towers": 2 * once, "speller": once + ROWS * WIDTH}[net]
    assert width == 1 or size < twice * width


def test_scales_of_each_node_are_off_ties_and_integers_are_shared() -> None:
    found, _ = quantizer("towers")
    model = found.write(limits_of(profiles.load("onnxruntime"), "onnx")).model
    stored = [v for v in model.graph.initializers.values() if v.dtype == ir.DataType.INT8]
    large = [v for v in stored if len(v.shape or ()) > 1]
    assert sorted(tuple(v.const_value.shape) for v in large if v.const_value) == [
        *((16, 4, 3, 3), (32, 16, 3, 3), (512, 32)),
    ]
    for value in large:
        scales = [
            n.inputs[1].const_value.numpy()
            for n, _ in value.uses()
            if n.inputs[1] is not None and n.inputs[1].const_value is not None
        ]
        assert len(scales) == 2
        assert np.abs(scales[0] / scales[1] - 1).max() < 6e-3


def test_integers_are_those_of_the_weights_and_no_more_than_a_step_off() -> None:
    found, _ = quantizer("towers")
    limits = limits_of(profiles.load("onnxruntime"), "onnx")
    units = lay_out(found.model, limits).units
    known = commons(units, weights_axis, lambda unit: None)
    assert len(known) == 3
    for (value, axis), member in known.items():
        array = value.const_value.numpy() if value.const_value is not None else None
        assert array is not None
        plain = store(array, axis)
        assert np.array_equal(member.common.stored.values, plain.values)
        for per_step in (0.37, 11.3, 1e-9):
            made = member.scaled(per_step)
            assert made is not None
            off = np.abs(made.floats() - array) / plain.wide_scale()
            assert off.max() < 0.9


def test_a_bias_that_needs_larger_scales_is_asked_of_all_nodes() -> None:
    found, _ = quantizer("towers")
    units = lay_out(found.model, limits_of(profiles.load("onnxruntime"), "onnx")).units
    asked = iter([1e3, 1e10] * 9)
    known = commons(units, weights_axis, lambda unit: np.full(1, next(asked)))
    for (value, axis), member in known.items():
        array = value.const_value.numpy() if value.const_value is not None else None
        assert array is not None
        # Of 1e10 steps a bias would leave 32 bits; scales are four times what weights need.
        assert (member.common.stored.scale > 2 * store(array, axis).scale).all()


def test_a_table_beside_a_float_product_stays_as_it_was() -> None:
    found, _ = quantizer("speller")
    limits = limits_of(profiles.load("onnxruntime"), "onnx")
    last = [n.name or "" for n in found.model.graph if n.op_type == "MatMul"][-1]
    model = found.write(limits, kept=frozenset({last})).model
    tables = [n for n in model.graph if n.op_type == "Gather"]
    assert len(tables) == 1
    source = tables[0].inputs[0]
    assert source is not None
    assert source.dtype == ir.DataType.UINT8


@pytest.mark.parametrize("net", NETS)
def test_products_with_scales_of_each_run_open_where_engines_are_told_to_be_exact(
    net: str,
) -> None:
    found, feeds = quantizer(net, "dynamic_wi8_afp32")
    model = found.write(limits_of(profiles.load("onnxruntime"), "onnx")).model
    assert any(n.op_type == "MatMulInteger" for n in model.graph)
    wanted = answered(found.model, "onnxruntime", feeds)["y"]
    answer = answered(model, "onnxruntime", feeds)["y"]
    assert 0 < np.sum((answer - wanted) ** 2) < 1e-3 * np.sum(wanted**2)
