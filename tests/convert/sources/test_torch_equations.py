"""Systems of equations, inverses and Cholesky's factors as PyTorch has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgeinfer.convert.sources import read
from edgeinfer.errors import SourceError
from tests.convert.lower.running import run

torch = pytest.importorskip("torch")


class Systems(torch.nn.Module):  # type: ignore[misc, name-defined]
    def forward(self, a: Any, b: Any) -> Any:
        positive = a @ a.mT + torch.eye(3)
        return (
            torch.linalg.inv(a),
            torch.linalg.solve(a, b),
            torch.linalg.solve(a[0], b[0, :, 0]),
            torch.linalg.cholesky(positive),
            torch.linalg.cholesky(positive[0], upper=True),
        )


class Large(torch.nn.Module):  # type: ignore[misc, name-defined]
    def forward(self, a: Any) -> Any:
        return torch.linalg.inv(a)


def test_systems_of_equations() -> None:
    """The second and third matrix have zeros where a division without a choice would be by 0."""
    g = torch.Generator().manual_seed(0)
    a = torch.rand(4, 3, 3, generator=g) - 0.5
    a[1] = torch.tensor([[0.0, 1, 0], [0, 0, 2], [4, 0, 0]])
    a[2] = torch.tensor([[1.0, 2, 3], [2, 4, 7], [5, 1, 1]])
    b = torch.rand(4, 3, 2, generator=g)
    eye = torch.eye(3).expand(4, 3, 3).contiguous()
    model = read(Systems(), example_inputs=(eye, b)).model
    found = run(model, {"a": a.numpy(), "b": b.numpy()})
    for one, want in zip(found, Systems()(a.double(), b.double()), strict=True):
        np.testing.assert_allclose(one, want.numpy(), rtol=1e-4, atol=1e-5)


def test_a_large_system_is_refused_in_words() -> None:
    with pytest.raises(SourceError, match="a system of 17 equations; 16 at most have a form"):
        read(Large(), example_inputs=(torch.eye(17),))
