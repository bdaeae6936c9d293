"""Constants close to 0 and 1 do what they say: PyTorch's exporter took them for 0 and 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgeinfer.convert.sources import read
from tests.convert.lower.running import ops, run

torch = pytest.importorskip("torch")


class Near(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Each number below was left out; only examples at 0 or beyond 1e4 would have shown it."""

    def forward(self, x: Any) -> Any:
        return (
            torch.log(x + 1e-12),
            1 / (1e-9 + x),
            x - 1e-10,
            (x * 1.000005 - x) * 1e6,
            (x / 1.000005 - x) * 1e6,
        )


class Nothing(torch.nn.Module):  # type: ignore[misc, name-defined]
    def forward(self, x: Any) -> Any:
        return torch.relu((x * 1.0 + 0.0) / 1.0 - 0.0)


def test_a_number_close_to_another_one_stays() -> None:
    x = torch.tensor([0, 1e-12, 3e-9, 1, 1e4])
    model = read(Near(), example_inputs=(x + 1,)).model
    found = run(model, {"x": x.numpy()})
    for got, want in zip(found, Near()(x), strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-6)


class Refined(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Each chain becomes one ``Clip``, with bounds that the optimiser names after what it reads."""

    def forward(self, x: Any) -> Any:
        low = x.clamp(min=0, max=1).clamp(min=0.25)
        return low, x.clamp(min=-1, max=0.5).clamp(min=0.125)


def test_bounds_of_two_chains_that_read_one_tensor_are_kept_apart() -> None:
    x = torch.linspace(-2, 2, 33)
    model = read(Refined(), example_inputs=(x,)).model
    for got, want in zip(run(model, {"x": x.numpy()}), Refined()(x), strict=True):
        np.testing.assert_array_equal(got, want.numpy())


def test_a_number_that_does_nothing_is_left_out() -> None:
    model = read(Nothing(), example_inputs=(torch.ones(3),)).model
    assert [op for op in ops(model) if op != "Identity"] == ["Relu"]
