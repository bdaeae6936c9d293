"""Integers of floats that nothing bounds, where only which constant they are matters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeinfer.errors import UnsupportedError
from tests.convert.lower.coreml.run import evaluate, lower

X = np.array([-1e20, -3e9, -2.7, 0.2, 1.9, 2.0, 7.5, 3e9, 1e20, np.nan], np.float32)


def test_numbers_that_are_only_compared(tmp_path: Path) -> None:
    text = (
        "g (float[10] x) => (bool[10,3] y, bool[10] z) <int64[3] c = {-2, 1, 2}, int64 d = {5}, "
        "int64[1] a = {1}> { i = Cast<to=7>(x) u = Unsqueeze(i, a) y = Equal(u, c) z = Less(i, d) }"
    )
    found = evaluate(text, lower(text, tmp_path), {"x": X})
    whole = np.trunc(np.where(np.isnan(X), -(2.0**63), X.astype(np.float64)))
    np.testing.assert_array_equal(found["y"], whole[:, None] == np.array([-2, 1, 2]))
    np.testing.assert_array_equal(found["z"], whole < 5)


def test_numbers_that_say_where_to_read(tmp_path: Path) -> None:
    text = (
        "g (float[4] x) => (float[4] y) <float[3] t = {0.5, 1.5, 2.5}> "
        "{ i = Cast<to=7>(x) y = Gather(t, i) }"
    )
    x = np.array([2.9, 0, 1, -1], np.float32)
    found = evaluate(text, lower(text, tmp_path), {"x": x})
    np.testing.assert_array_equal(found["y"], np.array([2.5, 0.5, 1.5, 2.5], np.float32))


@pytest.mark.parametrize(
    "rest",
    [
        "y = Add(i, i)",
        "y = Identity(i)",
        "b = Constant<value_int=2147483600>() e = Equal(i, b) y = Cast<to=7>(e)",
    ],
)
def test_numbers_that_are_used_otherwise_stay_refused(tmp_path: Path, rest: str) -> None:
    text = f"g (float[4] x) => (int64[4] y) {{ i = Cast<to=7>(x) {rest} }}"
    with pytest.raises(UnsupportedError, match="nothing bounds"):
        lower(text, tmp_path)


def test_what_fills_an_open_size_is_known(tmp_path: Path) -> None:
    text = (
        "g (float[n,2] x) => (int64[n,2] y) <int64 a = {0}> { s = Shape(x) "
        "o = ConstantOfShape<value = float[1] {3}>(s) y = Cast<to=7>(o) }"
    )
    found = evaluate(text, lower(text, tmp_path), {"x": np.zeros((4, 2), np.float32)})
    np.testing.assert_array_equal(found["y"], np.full((4, 2), 3))
