"""Activations, against ONNX Runtime and ONNX's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import UnsupportedError
from tests.convert.lower.tflite.run import lower, ops
from tests.convert.lower.tflite.single import agree, f32, single
from tests.convert.lower.tflite.together import rows

X = np.concatenate([np.linspace(-9, 9, 33), [0, -0.5, 0.5, 1e-4, -1e-4]]).astype(np.float32)
RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("low", "high", "code"),
    [
        (0, None, "RELU"),
        (0, 6, "RELU6"),
        (-1, 1, "RELU_N1_TO_1"),
        (0, 1, "RELU_0_TO_1"),
        (0.5, 2.5, "MINIMUM"),
        (None, 3, "MINIMUM"),
        (3, -3, "MINIMUM"),
    ],
)
def test_clip_by_constants(low: float | None, high: float | None, code: str) -> None:
    bounds = [None if b is None else np.array(b, np.float32) for b in (low, high)]
    data = agree("Clip", X, *bounds, constants=(1, 2))
    assert ops(data)[-1] == code


def test_clip_by_computed_bounds() -> None:
    agree("Clip", X, np.array(-0.5, np.float32), np.array(2, np.float32))


@rows("dtype", [np.int32, np.int64, np.int8, np.uint8])
def test_clip_and_relu_of_integers(dtype: Any) -> None:
    x = np.arange(-6, 7).astype(dtype)
    agree("Clip", x, np.array(2, dtype), np.array(4, dtype), constants=(1, 2))
    if dtype not in (np.int64, np.uint8):
        agree("Relu", x)


@rows("shape", [(2, 3, 4, 5), (3, 1, 1), (5,), (1,), (1, 3, 1, 5)])
@rows("constants", [(1,), ()])
def test_prelu_broadcasts_its_slope(shape: tuple[int, ...], constants: tuple[int, ...]) -> None:
    x = RNG.normal(size=(2, 3, 4, 5)).astype(np.float32)
    agree("PRelu", x, RNG.normal(size=shape).astype(np.float32), constants=constants)


def test_prelu_of_integers() -> None:
    agree("PRelu", np.arange(-4, 4, dtype=np.int32), np.array([3], np.int32), like="reference")


def test_softmax_of_many_axes() -> None:
    agree("Softmax", RNG.normal(size=(2,) * 7).astype(np.float32), axis=3, both=False)


def test_softmax_of_large_and_masked_scores() -> None:
    agree("Softmax", f32([1e4, 0, -1e4], [-np.inf, 0, 1], [-3e38] * 3), both=False)


def test_half_precision_is_rounded_once() -> None:
    x = X.astype(np.float16)
    want = (1 / (1 + np.exp(-x.astype(np.float32)))).astype(np.float16)
    agree("Sigmoid", x, want={"y0": want}, rtol=1e-3)


def test_celu_refuses_what_has_no_meaning() -> None:
    with pytest.raises(UnsupportedError, match="must be positive"):
        lower(single("Celu", [X], alpha=-1.0))
