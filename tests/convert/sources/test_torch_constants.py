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


def test_a_number_that_does_nothing_is_left_out() -> None:
    model = read(Nothing(), example_inputs=(torch.ones(3),)).model
    assert [op for op in ops(model) if op != "Identity"] == ["Relu"]
