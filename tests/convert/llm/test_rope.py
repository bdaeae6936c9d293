"""Frequencies of turned pairs, as configurations of strangers state them."""

from typing import Any

import numpy as np
import pytest

from edgeinfer.convert.llm.rope import RopeError, divided, rope

LONG = {"rope_type": "longrope", "short_factor": [0.0, 1.0], "long_factor": [1.0, 1.0]}


@pytest.mark.parametrize(
    ("base", "scaling"),
    [
        (0.0, None),
        (float("nan"), None),
        (10_000.0, {"rope_type": "linear", "factor": 0.0}),
        (10_000.0, {**LONG, "original_max_position_embeddings": 8, "factor": 1.0}),
    ],
)
@pytest.mark.filterwarnings("error")
def test_frequencies_that_are_none_are_refused(base: float, scaling: dict[str, Any] | None) -> None:
    with pytest.raises(RopeError, match=r"frequencies of its rope are not finite"):
        rope(base, 4, scaling, 8)


@pytest.mark.filterwarnings("error")
def test_factors_of_nothing_are_refused() -> None:
    made = rope(10_000.0, 4, None, 8)
    assert made.frequencies == pytest.approx((1.0, 0.01))
    with pytest.raises(RopeError, match="are not finite"):
        divided(made, np.array([0.0, 1.0], np.float32))
