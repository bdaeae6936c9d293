"""Readers of activations, arithmetic, comparisons and other elementwise operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.convert.sources.tflite.reading import Array, floats, ops, rng, same

PLAIN = """ABS CEIL COS ELU EXP FLOOR HARD_SWISH LOGISTIC NEG RELU RELU6 RELU_0_TO_1 RELU_N1_TO_1
ROUND SIGN SIN SQUARE TANH L2_NORMALIZATION LOG_SOFTMAX ZEROS_LIKE"""
UNARY: dict[str, dict[str, Any]] = {
    **{code: {} for code in PLAIN.split()},
    "GELU": {"approximate": False},
    "LEAKY_RELU": {"alpha": 0.2},
    "SOFTMAX": {"beta": 0.5},
}


@pytest.mark.parametrize("code", UNARY)
def test_one_operand(code: str) -> None:
    x = floats(2, 3, 5) * 3
    x[0, 0, :3] = [0.5, 1.5, -2.5]
    same(lambda g, x: g.emit(code, [x], x.shape, **UNARY[code]), x=x)


@pytest.mark.parametrize("code", ["LOG", "SQRT", "RSQRT"])
def test_one_positive_operand(code: str) -> None:
    same(lambda g, x: g.emit(code, [x], x.shape), x=np.abs(floats(3, 4)) + 0.1)


BINARY = ["ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "FLOOR_DIV"]


@pytest.mark.parametrize("code", [*BINARY, "FLOOR_MOD"])
def test_two_operands_broadcast(code: str) -> None:
    options = {"fused_activation_function": 0} if code in {"ADD", "SUB", "MUL", "DIV"} else {}
    a, b = floats(2, 3, 4) * 5, floats(4)
    same(lambda g, a, b: g.emit(code, [a, b], (2, 3, 4), **options), a=a, b=b)


@pytest.mark.parametrize(
    ("code", "dtype"),
    [("FLOOR_DIV", np.int32), ("FLOOR_MOD", np.int32), ("FLOOR_MOD", np.int64)],
)
def test_whole_numbers_are_divided_downwards(code: str, dtype: Any) -> None:
    a, b = np.array([7, -7, 7, -7, 6, -6, 0], dtype), np.array([2, 2, -2, -2, 3, 3, 5], dtype)
    same(lambda g, a, b: g.emit(code, [a, b], a.shape), a=a, b=b)


@pytest.mark.parametrize("activation", [0, 1, 2, 3, 4])
def test_fused_activations(activation: int) -> None:
    found = same(
        lambda g, a: g.emit(
            "MUL", [a, g.const(np.float32(4))], a.shape, fused_activation_function=activation
        ),
        # Without a kernel for Tanh in MUL, LiteRT leaves the product as it is.
        a=floats(3, 4) if activation != 4 else np.zeros((3, 4), np.float32),
    )
    assert ops(found.model)[1:2] == [[], ["Relu"], ["Clip"], ["Clip"], ["Tanh"]][activation]


def test_prelu_has_a_slope_for_each_channel() -> None:
    slope = np.array([0.1, 0.2, 0.3], np.float32).reshape(1, 1, 3)
    same(lambda g, x: g.emit("PRELU", [x, g.const(slope)], x.shape), x=floats(1, 2, 2, 3))


@pytest.mark.parametrize(
    "code", ["EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"]
)
def test_comparisons(code: str) -> None:
    a, b = np.array([[1, 2], [3, 4]], np.int32), np.array([2, 3], np.int32)
    same(lambda g, a, b: g.emit(code, [a, b], a.shape, np.bool_), a=a, b=b)


@pytest.mark.parametrize("code", ["LOGICAL_AND", "LOGICAL_OR"])
def test_logic(code: str) -> None:
    a, b = np.array([True, True, False]), np.array([True, False, False])
    same(lambda g, a, b: g.emit(code, [a, b], a.shape), a=a, b=b)
    same(lambda g, a: g.emit("LOGICAL_NOT", [a], a.shape), a=a)


def test_choice_of_elements_and_of_rows() -> None:
    a, b = floats(2, 3), -floats(2, 3)
    chosen = np.array([[True, False, True], [False, False, True]])
    same(lambda g, c, a, b: g.emit("SELECT_V2", [c, a, b], (2, 3), a.dtype), c=chosen, a=a, b=b)
    rows = np.array([True, False])
    same(lambda g, c, a, b: g.emit("SELECT", [c, a, b], (2, 3), a.dtype), c=rows, a=a, b=b)


@pytest.mark.parametrize("to", [np.int32, np.bool_, np.int64, np.float32])
def test_casts(to: Any) -> None:
    x: Array = np.array([0.0, 1.7, -1.7, 3.0], np.float32)
    dtype = np.dtype(to)
    same(
        lambda g, x: g.emit("CAST", [x], x.shape, to, in_data_type=x.dtype, out_data_type=dtype),
        x=x,
    )


def test_powers_shifts_and_angles() -> None:
    base, power = np.abs(floats(4)) + 0.5, floats(4)
    same(lambda g, a, b: g.emit("POW", [a, b], a.shape), a=base, b=power)
    y, x = rng().standard_normal((2, 9)).astype(np.float32)
    x[:3], y[0] = 0, 0
    same(lambda g, y, x: g.emit("ATAN2", [y, x], y.shape), y=y, x=x)
    bits = np.array([0, 1, 4, 31], np.int32)
    values = np.array([-5, 5, -(2**31), 2**31 - 1], np.int32)
    same(lambda g, a, b: g.emit("RIGHT_SHIFT", [a, b], a.shape), a=values, b=bits)
    same(lambda g, a, b: g.emit("BITWISE_XOR", [a, b], a.shape), a=values, b=bits)
