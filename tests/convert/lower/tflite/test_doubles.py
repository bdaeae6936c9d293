"""Arithmetic of float64 and uint64, against NumPy, to the last places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from edgeinfer.errors import UnsupportedError
from tests.convert.lower.tflite.run import lower, outputs
from tests.convert.lower.tflite.single import Array, single

RNG = np.random.default_rng(0)
ODD = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, -1e-310, 1.7e308, 1, -1, 0.5, 3, 1e16, 2.5, -2.5]
)
LARGE = 2.0**52 + 1


def spread(count: int) -> Array:
    return RNG.standard_normal(count) * 10.0 ** RNG.integers(-300, 300, count)


A = np.concatenate([np.repeat(ODD, ODD.size), spread(200), RNG.standard_normal(200)])
B = np.concatenate([np.tile(ODD, ODD.size), spread(200), RNG.standard_normal(200)])
X = np.concatenate([ODD, [LARGE, -LARGE], RNG.uniform(-750, 750, 300), RNG.uniform(0.5, 2, 100)])
WHOLE = np.concatenate(
    [
        RNG.integers(0, 2**64, 100, dtype=np.uint64),
        np.array([0, 1, 2, 2**63, 2**63 - 1, 2**64 - 1, 2**53 + 1, 2**24 + 1], np.uint64),
        RNG.integers(0, 100, 50, dtype=np.uint64),
    ]
)


def run(op: str, *inputs: Array, constants: tuple[int, ...] = (), **attributes: Any) -> Array:
    model = single(op, list(inputs), constants=constants, **attributes)
    feeds = {f"x{i}": x for i, x in enumerate(inputs) if i not in constants}
    data = lower(model)
    found = [outputs(data, feeds, xnnpack=xnnpack)["y0"] for xnnpack in (True, False)]
    # Estimates in float32 end in the same place, or in the next one.
    fast = found[0]
    tolerance = 3e-16 if fast.dtype == np.float64 else 0
    # NumPy 1.26 compares no bfloat16.
    wide = [a.astype(np.float32) if a.dtype.name == "bfloat16" else a for a in found]
    np.testing.assert_allclose(wide[0], wide[1], rtol=tolerance)
    return fast


def same(got: Array, want: Array, ulps: float) -> None:
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    with np.errstate(all="ignore"):
        off = np.abs(got - want) / np.spacing(np.abs(want))
    equal = (got == want) | (np.isnan(got) & np.isnan(want))
    bad = ~equal & ~(off <= ulps)
    assert not bad.any(), (got[bad][:3], want[bad][:3])


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("op", "function", "ulps"),
    [
        ("Add", np.add, 0),
        ("Sub", np.subtract, 0),
        ("Mul", np.multiply, 0),
        ("Div", np.divide, 1),
        ("Max", np.maximum, 0),
        ("Min", np.minimum, 0),
    ],
)
def test_two_doubles(op: str, function: Callable[..., Array], ulps: float) -> None:
    with np.errstate(all="ignore"):
        same(run(op, A, B), function(A, B), ulps)
        small = A[-6:].reshape(2, 3), B[-3:]
        same(run(op, *small), function(*small), ulps)
        same(run(op, A, np.array(3.0), constants=(1,)), function(A, 3.0), ulps)


@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("Equal", np.equal),
        ("Greater", np.greater),
        ("Less", np.less),
        ("GreaterOrEqual", np.greater_equal),
        ("LessOrEqual", np.less_equal),
    ],
)
def test_comparisons_of_doubles(op: str, function: Callable[..., Array]) -> None:
    np.testing.assert_array_equal(run(op, A, B, types=[np.bool_]), function(A, B))


@pytest.mark.parametrize(
    ("op", "function", "ulps"),
    [
        ("Neg", np.negative, 0),
        ("Abs", np.abs, 0),
        ("Sqrt", np.sqrt, 1),
        ("Exp", np.exp, 2),
        ("Log", np.log, 2),
        ("Round", np.round, 0),
        ("Floor", np.floor, 0),
        ("Ceil", np.ceil, 0),
        ("Sign", np.sign, 0),
    ],
)
def test_one_double(op: str, function: Callable[..., Array], ulps: float) -> None:
    with np.errstate(all="ignore"):
        same(run(op, X), function(X), ulps)


@pytest.mark.sample(8)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("ReduceSum", np.sum),
        ("ReduceMean", np.mean),
        ("ReduceProd", np.prod),
        ("ReduceMax", np.max),
        ("ReduceMin", np.min),
    ],
)
def test_reductions_of_doubles(op: str, function: Callable[..., Array], size: int) -> None:
    x = RNG.standard_normal((3, size, 2))
    got = run(op, x, np.array([1]), constants=(1,), keepdims=0)
    np.testing.assert_allclose(got, function(x, axis=1), rtol=1e-14, atol=1e-15)


def test_products_of_matrices_of_doubles() -> None:
    a, b = RNG.standard_normal((2, 3, 5)), RNG.standard_normal((5, 4))
    np.testing.assert_allclose(run("MatMul", a, b), a @ b, rtol=1e-13)


def test_softmax_of_doubles() -> None:
    x = RNG.standard_normal((2, 5)) * 400
    want = np.exp(x - x.max(1, keepdims=True))
    got = run("Softmax", x)
    np.testing.assert_allclose(got, want / want.sum(1, keepdims=True), rtol=1e-13)


def test_sums_of_doubles_over_sizes_that_only_a_run_knows_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="over a dynamic size"):
        lower(single("ReduceSum", [A, np.array([0])], constants=[1], dynamic=True))


def test_functions_that_nothing_stands_for_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="double"):
        lower(single("Tanh", [A]))


def test_doubles_of_sizes_that_only_a_run_knows() -> None:
    data = lower(single("Add", [np.zeros((2, 3)), np.zeros((1, 3))], dynamic=True))
    for shapes in (((2, 3), (1, 3)), ((4, 1), (1, 5))):
        a, b = (RNG.standard_normal(s) for s in shapes)
        np.testing.assert_array_equal(outputs(data, {"x0": a, "x1": b})["y0"], a + b)


@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("Add", np.add),
        ("Sub", np.subtract),
        ("Mul", np.multiply),
        ("Max", np.maximum),
        ("Min", np.minimum),
    ],
)
def test_two_uint64(op: str, function: Callable[..., Array]) -> None:
    other = RNG.permutation(WHOLE)
    np.testing.assert_array_equal(run(op, WHOLE, other), function(WHOLE, other))


def test_quotients_and_remainders_of_uint64() -> None:
    divisor = np.maximum(RNG.permutation(WHOLE), 1)
    np.testing.assert_array_equal(run("Div", WHOLE, divisor), WHOLE // divisor)
    np.testing.assert_array_equal(run("Mod", WHOLE, divisor), WHOLE % divisor)


@pytest.mark.parametrize(("op", "function"), [("Less", np.less), ("Equal", np.equal)])
def test_comparisons_of_uint64(op: str, function: Callable[..., Array]) -> None:
    other = RNG.permutation(WHOLE)
    np.testing.assert_array_equal(run(op, WHOLE, other, types=[np.bool_]), function(WHOLE, other))


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.float16, np.int32, np.uint8, np.int64, np.bool_]
)
def test_uint64_as_another_type(dtype: Any) -> None:
    kind = np.dtype(dtype)
    with np.errstate(over="ignore"):
        want = WHOLE.astype(kind)
    got = run("Cast", WHOLE, types=[kind], to=_number(kind))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8, np.bool_])
def test_another_type_as_uint64(dtype: Any) -> None:
    values = [0, 1.5, 3e9, 9.3e18, 1.8e19] if np.dtype(dtype).kind == "f" else [0, 1, 77]
    x = np.array(values).astype(dtype)
    got = run("Cast", x, types=[np.uint64], to=_number(np.dtype(np.uint64)))
    np.testing.assert_array_equal(got, x.astype(np.uint64))


def test_bfloat16_is_computed_in_float32() -> None:
    x = RNG.standard_normal(50).astype(ml_dtypes.bfloat16)
    want = np.exp(x.astype(np.float32)).astype(ml_dtypes.bfloat16)
    got = run("Exp", x).astype(np.float32)
    # An exponential that lies between two of them may be off by float32's last place.
    np.testing.assert_allclose(got, want.astype(np.float32), rtol=2**-7)
    assert (got == want.astype(np.float32)).mean() > 0.9


def _number(dtype: np.dtype[Any]) -> int:
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(dtype))
