"""Calls joined to one batch: the values, and who works meanwhile."""

from __future__ import annotations

import sys
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from edgeinfer.runtime.batches import joined


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "int64", "bool", "complex64", ml_dtypes.bfloat16]
)
def test_joined_is_what_numpy_joins(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    for shapes in ([(1, 600), (3, 600)], [(2, 3, 401), (1, 3, 401)], [(700,), (0,), (1,)]):
        arrays = [rng.integers(0, 2, shape).astype(dtype) for shape in shapes]
        np.testing.assert_array_equal(joined(arrays), np.concatenate(arrays), strict=True)
    turned = [rng.integers(0, 9, (40, 30)).astype(dtype).T for _ in range(2)]
    np.testing.assert_array_equal(joined(turned), np.concatenate(turned), strict=True)


def test_texts_are_joined() -> None:
    arrays = [np.array([["a"] * 600], object), np.array([["bc"] * 600], object)]
    assert joined(arrays).tolist() == [["a"] * 600, ["bc"] * 600]


def test_no_other_thread_works_between_join_and_run() -> None:
    arrays = [np.zeros((1, 50_000), np.float32) for _ in range(16)]
    gate, came = threading.Lock(), threading.Event()
    gate.acquire()

    def come() -> None:
        gate.acquire()
        came.set()

    other = threading.Thread(target=come)
    other.start()
    before = sys.getswitchinterval()
    # From here on it works only where this thread lets it.
    sys.setswitchinterval(1000.0)
    try:
        gate.release()
        for _ in range(100):
            joined(arrays)
        was_let_in = came.is_set()
    finally:
        sys.setswitchinterval(before)
        other.join()
    assert not was_let_in
