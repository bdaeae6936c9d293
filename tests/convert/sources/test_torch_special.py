"""Functions that PyTorch's exporter leaves as they are: each has the digits of float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgeinfer.convert.sources import read
from tests.convert.lower.running import run

torch = pytest.importorskip("torch")

INF, NAN = torch.inf, torch.nan
ALL = (*np.linspace(-9.3, 9.3, 63), 0, 1, 2, -1e-5, 1e-5, 1e-30, 25, -25, 87, -87, 10, 1.4616321)
POLELESS = tuple(x for x in ALL if x > 1e-10 or (-5.5 < x < -1e-10 and x % 1))
PARTS = (*np.linspace(0, 1, 41), 1e-3, 1e-7, 1e-20, 1e-37, 0.9999999, -0.1, 1.1)
TURNED = (*np.linspace(-1, 1, 41), 1e-30, 1e-7, -0.999, 0.9999999, 2)
ODD = (0, -0.0, INF, -INF, NAN, 3, -4, 1e30, -1e30, 1e-30)


def _read(function: Any, *examples: Any) -> Any:
    def one(self: Any, x: Any) -> Any:
        return function(x)

    def two(self: Any, x: Any, y: Any) -> Any:
        return function(x, y)

    forward = one if len(examples) == 1 else two
    module = type("Special", (torch.nn.Module,), {"forward": forward})().eval()
    return read(module, example_inputs=examples).model


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("function", "points"),
    [
        (torch.lgamma, ALL),
        (torch.special.ndtri, PARTS),
        (torch.erfinv, TURNED),
        (torch.digamma, ALL),
        (lambda x: torch.polygamma(1, x), POLELESS),
        (torch.i0, ALL),
        (torch.special.i0e, (*ALL, 300, 1e30)),
        (torch.special.i1, ALL),
        (torch.special.i1e, (*ALL, 300, 1e30)),
        (lambda x: torch.mvlgamma(x.abs() + 1, 2), ALL),
    ],
)
def test_special_functions(function: Any, points: tuple[float, ...]) -> None:
    """The export was compared on harmless examples, and runs on others."""
    x = torch.tensor(np.array(points, np.float32))
    model = _read(function, torch.full_like(x, 0.75))
    expected = function(x.double()).numpy()
    np.testing.assert_allclose(run(model, {"x": x.numpy()})[0], expected, rtol=2e-6, atol=1e-6)


@pytest.mark.sample(1)
@pytest.mark.parametrize("function", [torch.hypot, torch.copysign, torch.fmax, torch.fmin])
def test_functions_of_two(function: Any) -> None:
    x, y = (
        a.flatten() for a in torch.meshgrid(torch.tensor(ODD), torch.tensor(ODD), indexing="ij")
    )
    model = _read(function, torch.ones_like(x), torch.ones_like(y))
    (found,) = run(model, {"x": x.numpy(), "y": y.numpy()})
    expected = function(x, y).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def _chosen(x: Any) -> Any:
    return (
        x.masked_select(x > 1),
        torch.stack([x, x * 2]).masked_select(x > 1),
        torch.nonzero_static(x > 1, size=2),
        torch.nonzero_static(x > 1, size=9, fill_value=-7),
        *x.sort(stable=True, dim=1),
        *x.sort(stable=True, dim=0, descending=True),
        torch.nn.functional.rrelu(x),
    )


def test_elements_that_are_chosen() -> None:
    x = torch.tensor([[3.0, 1, 1, 3], [2, -2, 5, 5], [2, -1, 5, 3]])
    model = _read(_chosen, x)
    for found, want in zip(run(model, {"x": x.numpy()}), _chosen(x), strict=True):
        np.testing.assert_array_equal(found, want.numpy())


def _windowed(x: Any) -> Any:
    return (
        x * torch.kaiser_window(5),
        x * torch.kaiser_window(5, periodic=False, beta=3.0),
        x.double() * torch.bartlett_window(5, dtype=torch.float64),
    )


def test_windows_of_spectrograms() -> None:
    x = torch.tensor([[3.0, 1, 1, 3, 2]])
    model = _read(_windowed, x)
    for found, want in zip(run(model, {"x": x.numpy()}), _windowed(x), strict=True):
        assert found.dtype == want.numpy().dtype
        np.testing.assert_allclose(found, want.numpy(), rtol=1e-6)
