"""Operators with a state: their weights are integers on every target that can use them."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer import profiles
from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.convert import passes
from edgeinfer.convert.lower import target_for
from edgeinfer.convert.lower.target import LowerOptions
from edgeinfer.convert.quantize import readback
from edgeinfer.convert.quantize.calibrate.ranges import Range
from edgeinfer.convert.quantize.calibration import limits_of
from edgeinfer.convert.quantize.rewrite import qdq
from edgeinfer.convert.quantize.search.rules import layers
from edgeinfer.convert.quantize.units import lay_out
from tests.convert.quantize.conftest import graph

TARGETS = [
    ("onnxruntime", "onnx", "onnxruntime", "dynamic/int8"),
    ("android", "tflite", "litert", "dynamic/int8"),
    ("ios", "mlprogram", "coreml-reference", "fp32/int8"),
]
X = np.random.default_rng(1).normal(size=(1, 1, 40)).astype(np.float32)


def net() -> ir.Model:
    """An LSTM whose result a product with weights reads, and the model gives too."""
    rng = np.random.default_rng(0)
    shapes = {"w": (1, 192, 40), "r": (1, 192, 48), "b": (1, 384), "m": (48, 16)}
    return passes.normalise(
        graph(
            """<ir_version: 10, opset_import: ["" : 22]>
            net (float[1,1,40] x) => (float[1,16] y, float[1,1,48] h)
            <float[1,192,40] w, float[1,192,48] r, float[1,384] b, float[48,16] m, int64[1] a>
            { q, h = LSTM<hidden_size=48>(x, w, r, b) flat = Squeeze(h, a) y = MatMul(flat, m) }""",
            a=np.zeros(1, np.int64),
            **{n: (0.2 * rng.normal(size=s)).astype(np.float32) for n, s in shapes.items()},
        )
    ).model


RANGES = {"h": Range(-0.7, 0.7), "flat": Range(-0.7, 0.7), "y": Range(-2.0, 2.0)}


@pytest.mark.parametrize(("target", "format", "engine", "kind"), TARGETS)
def test_weights_are_stored_as_integers_and_results_stay(
    tmp_path: Path, target: str, format: str, engine: str, kind: str
) -> None:
    model, profile = net(), profiles.load(target)
    written = qdq.write(model, limits_of(profile, format), RANGES)
    assert next(op for op, _ in written.units) == "LSTM"
    specs = passes.input_specs(model), passes.output_specs(model)
    found, sizes = [], []
    for index, each in enumerate((model, written.model)):
        folder = tmp_path / str(index)
        folder.mkdir()
        lowered = target_for(format).lower(each, profile, LowerOptions("fp32"), folder)
        artifact = Artifact(format, lowered.files[0], *specs)
        executable = registry.get(engine).load(artifact, LoadOptions(threads=1))
        found.append({k: np.array(v) for k, v in executable.run({"x": X}).items()})
        executable.close()
        sizes.append(sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()))
    assert kind in readback.counts(readback.layers(lowered.files[0], format))
    assert sizes[1] < 0.45 * sizes[0]
    for name, right in found[0].items():
        noise = np.square(right - found[1][name]).sum()
        assert 0 < noise < 10**-2.5 * np.square(right).sum()


def test_a_layer_that_is_kept_has_its_floats() -> None:
    model = net()
    limits = limits_of(profiles.load("android"), "tflite")
    (name,) = (n.name for n in model.graph if n.op_type == "LSTM")
    written = qdq.write(model, limits, RANGES, kept={name or ""}).model
    (node,) = (n for n in written.graph if n.op_type == "LSTM")
    assert all(v is not None and v.const_value is not None for v in node.inputs[1:4])


def test_its_products_are_its_cost() -> None:
    model = net()
    units = lay_out(model, limits_of(profiles.load("android"), "tflite")).units
    costs = {y.op: y.cost for y in layers(units, RANGES)}
    assert costs["LSTM"] / costs["MatMul"] == pytest.approx(192 * (40 + 48) / (48 * 16))


def test_the_parts_of_a_gru_that_resets_first_stay_integers(tmp_path: Path) -> None:
    """Its gates and its new state are two products, each with the scales of its own rows."""
    rng = np.random.default_rng(0)
    shapes = {"w": (1, 144, 40), "r": (1, 144, 48), "b": (1, 288)}
    model = passes.normalise(
        graph(
            """<ir_version: 10, opset_import: ["" : 22]>
            net (float[2,1,40] x) => (float[2,1,1,48] q, float[1,1,48] h)
            <float[1,144,40] w, float[1,144,48] r, float[1,288] b>
            { q, h = GRU<hidden_size=48>(x, w, r, b) }""",
            **{n: (0.2 * rng.normal(size=s)).astype(np.float32) for n, s in shapes.items()},
        )
    ).model
    profile = profiles.load("android")
    written = qdq.write(model, limits_of(profile, "tflite"), {}).model
    lowered = target_for("tflite").lower(written, profile, LowerOptions("fp32"), tmp_path)
    # One product of the inputs; two of the state at each of two steps.
    assert readback.counts(readback.layers(lowered.files[0], "tflite")) == {"dynamic/int8": 5}
