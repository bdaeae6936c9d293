"""Remainders of floats are exact on every target, whatever the quotient is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeinfer import profiles
from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.bundle.values import KEY
from edgeinfer.convert.lower import LowerOptions, target_for
from edgeinfer.convert.passes import input_specs, normalise, output_specs
from edgeinfer.types import Array
from tests.conformance.everywhere import PLACES, lacking, run

TINY = float(np.finfo(np.float32).tiny)
"""Engines may make zero of what is below."""

EDGES = [1e10, -1e10, 3e38, -1e20, 5.3, -5.3, 1e-10, 0.0, 2**25, -7, 1e30, 0.9999999]

DIVISORS = (3, 1, 0.1, 2 * np.pi, -7.3, 24000, 16777213, 2.0**-90, 2.0**126, 1e-20, 1e-35, 3e38)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if reason := lacking(name):
        pytest.skip(reason)
    return name


def anything(kind: type, count: int, seed: int = 0) -> Array:
    """Finite numbers of all magnitudes."""
    bits = np.random.default_rng(seed).bytes(count * np.dtype(kind).itemsize)
    found: Array = np.frombuffer(bits, kind).copy()
    found[~np.isfinite(found)] = 1
    return found


def model_of(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 21]> ' + text)


def expect(found: Array, right: Array) -> None:
    assert found.dtype == right.dtype
    same = (found == right) | (np.isnan(found) & np.isnan(right)) | (np.abs(right) < TINY)
    assert same.all(), (found[~same][:5], right[~same][:5])


@pytest.mark.sample(each=("place", "divisor"))
@pytest.mark.parametrize("divisor", DIVISORS)
def test_a_constant_divisor(place: str, divisor: float) -> None:
    x = np.concatenate([np.array(EDGES, np.float32), anything(np.float32, 500)])
    k = np.float32(divisor)
    text = "g (float[N] x) => (float[N] z) <float k={%.9g}> { z=Mod<fmod=1>(x,k) }"
    model = model_of(text % k)
    expect(run(place, model, {"x": x}).outputs["z"], np.fmod(x, k))


def test_several_ways_in_one_model(place: str) -> None:
    """What a loop takes had the name of a value outside, which OpenVINO's reader took for it."""
    x = np.concatenate([np.array(EDGES, np.float32), anything(np.float32, 50)])
    divisors = [np.float32(d) for d in (3, 3e38, 1e-35, 0.1, -7.3)]
    nodes = " ".join(f"y{i} = Mod<fmod=1>(x, k{i})" for i in range(len(divisors)))
    known = ", ".join(f"float k{i} = {{{d:.9g}}}" for i, d in enumerate(divisors))
    outputs = ", ".join(f"float[N] y{i}" for i in range(len(divisors)))
    model = model_of(f"g (float[N] x) => ({outputs}) <{known}> {{ {nodes} }}")
    answers = run(place, model, {"x": x})
    assert not answers.refused
    for i, divisor in enumerate(divisors):
        expect(answers.outputs[f"y{i}"], np.fmod(x, divisor))


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_a_divisor_of_the_run(place: str, kind: type) -> None:
    x, y = anything(kind, 700), anything(kind, 700, 1)
    y[:100] = np.random.default_rng(2).standard_normal(100)
    y[y == 0] = 1
    name = "float" if kind is np.float32 else "float16"
    model = model_of(f"g ({name}[N] x, {name}[N] y) => ({name}[N] z) {{ z=Mod<fmod=1>(x,y) }}")
    expect(run(place, model, {"x": x, "y": y}).outputs["z"], np.fmod(x, y))


def test_operands_of_two_shapes(place: str) -> None:
    x, y = anything(np.float32, 30).reshape(-1, 1), np.array([[3, 0.1, 7e9, 1e-8]], np.float32)
    model = model_of("g (float[N,1] x, float[1,M] y) => (float[N,M] z) { z=Mod<fmod=1>(x,y) }")
    expect(run(place, model, {"x": x, "y": y}).outputs["z"], np.fmod(x, y))


def test_a_vector_of_divisors(place: str) -> None:
    x, y = anything(np.float32, 30).reshape(-1, 3), np.array([3, 0.1, 8], np.float32)
    model = model_of(
        "g (float[N,3] x) => (float[N,3] z) <float[3] k={3,0.1,8}> { z=Mod<fmod=1>(x,k) }"
    )
    expect(run(place, model, {"x": x}).outputs["z"], np.fmod(x, y))


def test_what_has_no_remainder(place: str) -> None:
    nan, inf = np.nan, np.inf
    x = np.array([5, -5, inf, -inf, 0, 5, -7, nan, 5], np.float32)
    y = np.array([inf, -inf, 3, 3, 0, 0, 0, 3, nan], np.float32)
    model = model_of("g (float[N] x, float[N] y) => (float[N] z) { z=Mod<fmod=1>(x,y) }")
    answers = run(place, model, {"x": x, "y": y})
    # Sessions refuse NaN where the artifact says that it would be lost.
    taken = len(x) if KEY not in answers.constraints else len(x) - 2
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(answers.outputs["z"][:taken], np.fmod(x, y)[:taken])


def test_doubles() -> None:
    if reason := lacking("litert"):
        pytest.skip(reason)
    x, y = anything(np.float64, 40), anything(np.float64, 40, 1)
    x[:3], y[:3] = (1e300, 1e17 + 2, -5.3), (3, 0.1, 2.1)
    model = model_of("g (double[40] x, double[40] y) => (double[40] z) { z=Mod<fmod=1>(x,y) }")
    expect(run("litert", model, {"x": x, "y": y}).outputs["z"], np.fmod(x, y))


@pytest.mark.parametrize("place", ["openvino", "coreml", "litert", "tvm"])
def test_the_sign_of_the_divisor(place: str) -> None:
    if reason := lacking(place):
        pytest.skip(reason)
    x, y = (
        np.array([7, -7, 7, -7, 1e10, -1e10, -6], np.float32),
        np.array([3, 3, -3, -3, 7, 7, 3], np.float32),
    )
    model = model_of("g (float[7] x, float[7] y) => (float[7] z) { z=Mod<fmod=0>(x,y) }")
    np.testing.assert_array_equal(run(place, model, {"x": x, "y": y}).outputs["z"], np.mod(x, y))


def test_half_precision_keeps_it_in_single(tmp_path: Path) -> None:
    if reason := lacking("coreml"):
        pytest.skip(reason)
    source = ir.from_proto(
        model_of("g (float[5] x) => (float[5] z) <float k={6.2831853}> { z=Mod<fmod=1>(x,k) }")
    )
    made = target_for("mlprogram").lower(
        normalise(source).model, profiles.load("ios"), LowerOptions(precision="fp16"), tmp_path
    )
    artifact = Artifact(made.format, made.files[0], input_specs(source), output_specs(source))
    x = np.array([60000, -12345.6, 7, 0.5, 3000.25], np.float32)
    executable = registry.get("coreml-reference").load(artifact, LoadOptions())
    found = executable.run({"x": x})["z"]
    executable.close()
    np.testing.assert_allclose(found, np.fmod(x, np.float32(6.2831853)), atol=1e-5)
