"""Masks of integers that DeBERTa multiplies and subtracts, for all that an input may hold."""

import json
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.bundle.values import INTEGERS
from edgeinfer.errors import UnsupportedError
from tests.convert.lower.coreml.run import evaluate, lower

MASKS = """g (int64[2,4] m) => (bool[2,4,4] y, bool[2,4] z)
    <int64 one = {1}, int64[1] rows = {2}, int64[1] columns = {1}> {
    r = Unsqueeze(m, rows) c = Unsqueeze(m, columns) p = Mul(r, c) y = Cast<to = 9>(p)
    s = Sub(one, m) z = Cast<to = 9>(s) }"""


def test_flags_of_products_and_differences_need_no_declaration(tmp_path: Path) -> None:
    made = lower(MASKS, tmp_path)
    whole = [-(1 << 31), (1 << 31) - 1]
    assert json.loads(made.constraints[INTEGERS]) == {"m": whole}
    m = np.array([[1, 0, 1, 1], [*whole, 1 << 16, 0]], np.int64)
    found = evaluate(MASKS, made, {"m": m})
    np.testing.assert_array_equal(found["y"], m[:, :, None] * m[:, None] != 0)
    np.testing.assert_array_equal(found["z"], m != 1)


def test_a_number_that_others_read_is_proven_as_before(tmp_path: Path) -> None:
    made = "p = Mul(x, x) q = Mul(p, x) y = Cast<to = 9>(q)"
    with pytest.raises(UnsupportedError, match="may leave int32"):
        lower(f"g (int64[3] x) => (bool[3] y) {{ {made} }}", tmp_path)
