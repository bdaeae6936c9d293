"""Angles, quotients and remainders as PyTorch has them, where its exporter has them otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edgeinfer.convert.sources import read
from tests.convert.lower.running import run

torch = pytest.importorskip("torch")


def module(forward: Callable[..., Any]) -> Any:
    made = type(forward.__name__, (torch.nn.Module,), {"forward": forward})
    return made().eval()


INF, NAN = torch.inf, torch.nan
UPPER = torch.tensor(
    [
        [1, 0.3, 0.7, -1, -0.3, 6],
        [0, -0.0, 1e4, -1e4, INF, -INF],
        [1e30, -1e30, 3.7, -3.7, 1e-3, NAN],
        [5, -5, 7.5, -7.5, 0.1, -0.1],
        [0, -0.0, 0, -0.0, 2, 1e-30],
    ]
)
LOWER = torch.tensor(
    [
        [0.1, 0.1, 0.1, 0.1, -0.1, -0.1],
        [-0.0, -0.0, 3.7, 3.7, 2, 2],
        [3.7, 3.7, 3.7, 3.7, INF, 1],
        [0, 0, INF, -INF, -0.0, -INF],
        [-3, -3, 3, 3, 2, -1e30],
    ]
)
LONG = torch.tensor([[16777217, -16777217, 2147483647, -2147483647, 1790000031, 7, -7]])
BY = torch.tensor([[1, 1, 2, 2, 3, -2, 2]])


def _floats(self: Any, x: Any, y: Any) -> Any:
    return (
        torch.atan2(x, y),
        torch.remainder(x, y),
        torch.remainder(x, 0.1),
        torch.remainder(5.5, y),
        x // y,
        torch.div(x, 0.1, rounding_mode="floor"),
        torch.div(x, y, rounding_mode="trunc"),
        torch.signbit(x),
        torch.special.erfcx(x.clamp(-5, 1e4)),
    )


def _integers(self: Any, x: Any, y: Any) -> Any:
    return (
        torch.remainder(x, y),
        torch.remainder(x, -3),
        torch.remainder(7, y),
        x // y,
        torch.div(x, y, rounding_mode="floor"),
        torch.div(x, y, rounding_mode="trunc"),
        torch.div(x, 3, rounding_mode="trunc"),
        torch.signbit(x),
    )


@pytest.mark.parametrize(
    ("forward", "x", "y"),
    [(_floats, UPPER, LOWER), (_integers, LONG, BY), (_integers, LONG.int(), BY.int())],
)
def test_quotients(forward: Any, x: Any, y: Any) -> None:
    examples = (x.clone(), y.clone())
    if x.is_floating_point():
        examples = (torch.rand(x.shape) + 1, torch.rand(y.shape) + 1)
    model = read(module(forward), example_inputs=examples).model
    names = [str(value.name) for value in model.graph.inputs]
    found = run(model, dict(zip(names, (x.numpy(), y.numpy()), strict=True)))
    for i, (one, want) in enumerate(zip(found, forward(None, x, y), strict=True)):
        assert one.dtype == want.numpy().dtype
        np.testing.assert_allclose(one, want.numpy(), 2e-7, 0, err_msg=f"output {i}")


def _long_numbers(self: Any, x: Any) -> Any:
    full = torch.full((6,), 0.1, dtype=torch.float64)
    found = (x * 0.1, 0.1 - x, x / 0.3, x.clamp(0.1, 0.7), torch.where(x > 1, x, 0.1), x + full)
    more = (x % 0.1, x.masked_fill(x > 1, 0.1), torch.full_like(x, 0.1), x.log2(), x.log10())
    return *found, *more, torch.rad2deg(x), x.new_full((6,), 0.1)


def test_numbers_keep_the_digits_of_float64() -> None:
    x = torch.linspace(0.25, 1.5, 24, dtype=torch.float64).reshape(4, 6)
    model = read(module(_long_numbers), example_inputs=(x,)).model
    found = run(model, {str(model.graph.inputs[0].name): x.numpy()})
    for i, (one, want) in enumerate(zip(found, _long_numbers(None, x), strict=True)):
        np.testing.assert_allclose(one, want.numpy(), 1e-12, 1e-15, err_msg=f"output {i}")


def _bounded(self: Any, x: Any, y: Any) -> Any:
    inside = (x.clamp(0, 0.5), x.clamp(-0.5, 2), torch.clamp(x, max=1.5, min=-1), x.clamp(-1, 1))
    return *inside, y.clamp(0, 2.5), y.clamp(1, 2), x.clamp(min=0), x.clip(0, 6.5)


def _mixed(self: Any, x: Any, y: Any) -> Any:
    mask = (1.0 - x) * -10000.0
    others = (
        torch.rsub(x, 2.5, alpha=2),
        x // 1.5,
        7.5 // (x + 9),
        1 - x,
        x - 1.5,
        2.5 - y,
        7.5 // y,
    )
    return mask, *others, 1.0 - (x > 0).to(torch.uint8)


def test_numbers_before_integers() -> None:
    x, y = torch.arange(-4, 8).reshape(3, 4), torch.linspace(0.3, 8, 12).reshape(3, 4)
    model = read(module(_mixed), example_inputs=(x, y)).model
    names = [str(value.name) for value in model.graph.inputs]
    found = run(model, dict(zip(names, (x.numpy(), y.numpy()), strict=True)))
    for one, want in zip(found, _mixed(None, x, y), strict=True):
        assert one.dtype == want.numpy().dtype
        np.testing.assert_array_equal(one, want.numpy())


def test_bounds_of_two_types() -> None:
    x, y = torch.linspace(-3, 8, 12).reshape(3, 4), torch.arange(-4, 8).reshape(3, 4)
    model = read(module(_bounded), example_inputs=(x, y)).model
    names = [str(value.name) for value in model.graph.inputs]
    found = run(model, dict(zip(names, (x.numpy(), y.numpy()), strict=True)))
    for one, want in zip(found, _bounded(None, x, y), strict=True):
        assert one.dtype == want.numpy().dtype
        np.testing.assert_array_equal(one, want.numpy())
