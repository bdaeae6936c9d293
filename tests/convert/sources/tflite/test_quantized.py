"""Quantized tensors: the file's scales around each operator, at most a step off its kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgeinfer
from edgeinfer.convert.lower.tflite.graph import Graph, Tensor, TensorQuantization
from edgeinfer.convert.sources.tflite import read_file
from edgeinfer.convert.sources.tflite.ops.conv import HYBRID
from edgeinfer.convert.verify import Vector
from edgeinfer.convert.verify.oracles import Oracles
from tests.convert.lower.tflite.run import ops as tflite_ops
from tests.convert.lower.tflite.run import outputs as run_litert
from tests.convert.sources.tflite.reading import (
    Array,
    floats,
    ops,
    rng,
    run_onnx,
    same,
    scale,
    written,
)


def _stored(g: Graph, values: Array, q: TensorQuantization, dtype: Any = np.int8) -> Tensor:
    """A constant as a file stores it."""
    shape = [1] * values.ndim
    if q.scale.size > 1:
        shape[q.axis] = -1
    factor = q.scale.reshape(shape) if q.scale.size > 1 else q.scale[0]
    zero = q.zero_point.reshape(shape) if q.scale.size > 1 else q.zero_point[0]
    limits = np.iinfo(dtype)
    steps = np.clip(np.rint(values / factor) + zero, limits.min, limits.max).astype(dtype)
    tensor = g.const(steps)
    tensor.quantization = q
    return tensor


def _as(tensor: Tensor, q: TensorQuantization) -> Tensor:
    tensor.quantization = q
    return tensor


def _bias(
    g: Graph, values: Array, x: TensorQuantization, w: TensorQuantization, dtype: Any
) -> Tensor:
    steps = np.rint(values / (x.scale[0] * w.scale)).astype(dtype)
    return _as(g.const(steps), scale(x.scale[0] * w.scale))


CONV = {"padding": 0, "stride_h": 2, "stride_w": 2, "fused_activation_function": 1}
CONV |= {"dilation_h_factor": 1, "dilation_w_factor": 1}
INTEGERS = {"int8": (-5, np.int32), "int16": (0, np.int64)}


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("depthwise", [False, True])
def test_convolutions_with_a_scale_for_each_channel(kind: str, depthwise: bool) -> None:
    zero, wide = INTEGERS[kind]
    step = 0.02 if kind == "int8" else 1e-4
    own, out = scale(step, zero), scale(3 * step, zero)
    axis = 3 if depthwise else 0
    of_w = scale(np.linspace(0.005, 0.02, 4), axis=axis)
    weights = floats(1, 3, 3, 4) if depthwise else floats(4, 3, 3, 4)

    def build(g: Graph, x: Tensor) -> Tensor:
        w, b = _stored(g, weights, of_w), _bias(g, floats(4), own, of_w, wide)
        code = "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D"
        options = {**CONV, "depth_multiplier": 1} if depthwise else CONV
        return _as(g.emit(code, [x, w, b], (1, 3, 3, 4), x.dtype, **options), out)

    x = rng().integers(-100, 100, (1, 6, 6, 4)).astype(kind)
    found = same(build, x=x, scales={"x": own}, steps=1)
    names = ops(found.model)
    assert names.count("QuantizeLinear") == 1
    assert names.count("DequantizeLinear") == 3
    (weight,) = (
        n
        for n in found.model.graph
        if n.op_type == "DequantizeLinear"
        and (source := n.inputs[0]) is not None
        and len(source.shape or ()) == 4
        and source.is_initializer()
    )
    assert weight.attributes["axis"].as_int() == 0


def test_uint8_with_one_scale_for_all_channels() -> None:
    own, of_w, out = scale(0.02, 128), scale(0.01, 120), scale(0.05, 100)

    def build(g: Graph, x: Tensor) -> Tensor:
        w = _stored(g, floats(5, 8), of_w, np.uint8)
        b = _bias(g, floats(5), own, of_w, np.int32)
        options = {"fused_activation_function": 0, "weights_format": 0, "keep_num_dims": False}
        return _as(g.emit("FULLY_CONNECTED", [x, w, b], (3, 5), x.dtype, **options), out)

    x = rng().integers(0, 255, (3, 8)).astype(np.uint8)
    same(build, x=x, scales={"x": own}, steps=1)


@pytest.mark.parametrize(
    ("activation", "out", "ops_after"),
    [
        (1, scale(0.05, -128), []),
        (1, scale(0.05, 0), ["Relu"]),
        (3, scale(6 / 255, -128), []),
        (3, scale(0.05, -128), ["Clip"]),
    ],
)
def test_an_activation_that_storing_does_already_is_left_out(
    activation: int, out: TensorQuantization, ops_after: list[str]
) -> None:
    x, y = rng().integers(-128, 127, (2, 4, 5)).astype(np.int8)
    options = {"fused_activation_function": activation}
    found = same(
        lambda g, a, b: _as(g.emit("ADD", [a, b], a.shape, **options), out),
        x=x,
        y=y,
        scales={"x": scale(0.05, -3), "y": scale(0.04, 4)},
        steps=1,
    )
    assert [n for n in ops(found.model) if n in ("Relu", "Clip")] == ops_after


@pytest.mark.parametrize("code", ["ADD", "SUB", "MUL"])
def test_sums_and_products(code: str) -> None:
    a, b, out = scale(0.02, -3), scale(0.03, 4), scale(0.05, 1)
    x, y = rng().integers(-128, 127, (2, 4, 5)).astype(np.int8)
    same(
        lambda g, a, b: _as(g.emit(code, [a, b], a.shape, fused_activation_function=0), out),
        x=x,
        y=y,
        scales={"x": a, "y": b},
        steps=1,
    )


@pytest.mark.parametrize("code", ["LOGISTIC", "TANH", "HARD_SWISH", "RELU"])
def test_activations(code: str) -> None:
    own = scale(0.05, 10)
    out = {"LOGISTIC": scale(1 / 256, -128), "TANH": scale(1 / 128, 0)}.get(code, scale(0.05, -20))
    x = np.arange(-128, 128, dtype=np.int8).reshape(16, 16)
    same(lambda g, x: _as(g.emit(code, [x], x.shape), out), x=x, scales={"x": own}, steps=1)


def test_moves_of_values_are_exact() -> None:
    own = scale(0.05, 10)
    options = {"padding": 1, "stride_h": 2, "stride_w": 2, "filter_height": 2, "filter_width": 2}
    options["fused_activation_function"] = 0

    def build(g: Graph, x: Tensor) -> list[Tensor]:
        pads = g.const([[0, 0], [1, 1], [1, 1], [0, 0]], np.int32)
        padded = _as(g.emit("PAD", [x, pads], (1, 6, 6, 2)), own)
        pooled = g.emit("MAX_POOL_2D", [padded], (1, 3, 3, 2), **options)
        flat = g.emit("RESHAPE", [_as(pooled, own)], (1, 18), new_shape=[1, 18])
        return [_as(flat, own)]

    x = rng().integers(-128, 127, (1, 4, 4, 2)).astype(np.int8)
    same(build, x=x, scales={"x": own}, steps=0)


def test_to_integers_to_others_and_back() -> None:
    first, second = scale(0.02, 5), scale(0.05, 100)

    def build(g: Graph, x: Tensor) -> list[Tensor]:
        a = _as(g.emit("QUANTIZE", [x], x.shape, np.int8), first)
        b = _as(g.emit("QUANTIZE", [a], x.shape, np.uint8), second)
        return [g.emit("DEQUANTIZE", [a], x.shape, np.float32), b]

    same(build, x=floats(4, 7), steps=1)


def test_halves_stand_for_floats() -> None:
    halves = floats(5, 4).astype(np.float16)
    options = {"fused_activation_function": 0, "weights_format": 0, "keep_num_dims": False}

    def build(g: Graph, x: Tensor) -> Tensor:
        w = g.emit("DEQUANTIZE", [g.const(halves)], halves.shape, np.float32)
        return g.emit("FULLY_CONNECTED", [x, w, None], (3, 5), **options)

    found = same(build, x=floats(3, 4))
    kinds = {v.const_value.dtype.name for v in found.model.graph.initializers.values()}  # type: ignore[union-attr]
    assert kinds == {"FLOAT16"}


def test_bytes_of_float_operators_are_read_as_weights() -> None:
    of_w = scale(np.linspace(0.005, 0.02, 5))
    weights = floats(5, 4) * 0.2
    options = {"fused_activation_function": 0, "weights_format": 0, "keep_num_dims": False}

    def build(g: Graph, x: Tensor) -> Tensor:
        w = _stored(g, weights, of_w)
        return g.emit("FULLY_CONNECTED", [x, w, g.const(floats(5))], (3, 5), **options)

    # The kernel rounds its data to 8 bits, which is not what the model says.
    feeds = {"x": floats(3, 4)}
    found = same(build, rtol=2e-2, x=feeds["x"])
    assert HYBRID in found.notes.lines
    factor = of_w.scale[:, None]
    exact = floats(3, 4) @ (np.rint(weights / factor) * factor).T + floats(5)
    got = run_onnx(found.model, feeds)["y0"]
    np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-5)


def test_the_oracle_takes_weights_of_bytes_at_their_word(tmp_path: Path) -> None:
    def build(g: Graph, x: Tensor) -> Tensor:
        w = _stored(g, floats(5, 4) * 0.2, scale(np.linspace(0.005, 0.02, 5)))
        options = {"fused_activation_function": 0, "weights_format": 0, "keep_num_dims": False}
        return g.emit("FULLY_CONNECTED", [x, w, None], (3, 5), **options)

    feeds = {"x": floats(3, 4)}
    found = read_file(written(tmp_path / "m.tflite", build, feeds))
    with Oracles(found.model, original=found.original) as oracles:
        (answer,) = oracles.expected([Vector(feeds, "test")]).answers
    assert answer.agreed == ("litert", "float64")
    np.testing.assert_allclose(answer.outputs["y0"], run_onnx(found.model, feeds)["y0"], rtol=1e-5)


def test_integers_are_judged_as_integers_and_written_again_as_they_were(tmp_path: Path) -> None:
    own, out = scale(0.02, -5), scale(0.06, -128)
    of_w = scale(np.linspace(0.005, 0.02, 4))

    def build(g: Graph, x: Tensor) -> Tensor:
        q = _as(g.emit("QUANTIZE", [x], x.shape, np.int8), own)
        w, b = _stored(g, floats(4, 3, 3, 4), of_w), _bias(g, floats(4), own, of_w, np.int32)
        y = _as(g.emit("CONV_2D", [q, w, b], (1, 3, 3, 4), np.int8, **CONV), out)
        return g.emit("DEQUANTIZE", [y], y.shape, np.float32)

    feeds = {"x": floats(1, 6, 6, 4)}
    path = written(tmp_path / "m.tflite", build, feeds)
    made = edgeinfer.export(path, tmp_path / "m.edge", targets=("cpu", "rpi5"))
    precisions = {v.format: v.precision for v in made.manifest.variants}
    assert precisions["tflite"] == "static_wi8_ai8"
    assert "wi8" in precisions["onnx"]
    with edgeinfer.Bundle.open(made.path) as bundle:
        (again,) = (v for v in bundle.manifest.variants if v.format == "tflite")
        files = {f.path: bundle.read(f) for f in again.files}
    (data,) = files.values()
    assert tflite_ops(data) == ["QUANTIZE", "CONV_2D", "DEQUANTIZE"]
    np.testing.assert_array_equal(
        next(iter(run_litert(data, feeds, xnnpack=False).values())),
        next(iter(run_litert(path, feeds, xnnpack=False).values())),
    )
