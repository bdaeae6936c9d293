from __future__ import annotations

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")

from edgeinfer.convert.llm.pack import rounded  # noqa: E402
from edgeinfer.convert.llm.pipeline import prepared  # noqa: E402
from edgeinfer.convert.llm.plan import stacked  # noqa: E402
from edgeinfer.convert.llm.source import floats  # noqa: E402
from edgeinfer.errors import UsageError  # noqa: E402

VALUES = np.random.default_rng(0).standard_normal((8, 128)).astype(np.float32)


@pytest.mark.parametrize(("bits", "block"), [(4, 32), (4, 64), (8, 32)])
def test_rounded_weights_are_near(bits: int, block: int) -> None:
    """No worse than rounding to even steps up to the largest weight of a block."""
    found = rounded(VALUES, bits, block)
    assert found.group == block
    assert found.scales.numbers.dtype == np.float16
    steps = np.abs(VALUES.reshape(8, -1, block)).max(-1) / 2 ** (bits - 1)
    error = np.square(found.float32() - VALUES).mean()
    assert error < 1.05 * np.square(steps).mean() / 12
    assert found.low <= found.values.min() <= found.values.max() <= found.high


def test_zeros_and_powers_of_two_stay_exact() -> None:
    values = np.zeros((2, 64), np.float32)
    values[0, :8] = np.arange(-8, 0) * 0.5
    assert np.array_equal(rounded(values, 4, 32).float32(), values)


def test_a_block_that_divides_no_row_is_a_smaller_one() -> None:
    assert rounded(VALUES[:, :96], 4, 64).group == 32


@pytest.mark.parametrize(("precision", "most"), [("fp16", 5e-4), ("bf16", 4e-3), ("fp32", 0.0)])
def test_floats_are_rounded_to_nearest(precision: str, most: float) -> None:
    given = {"blk.0.attn_q": floats(VALUES), "output_norm": floats(VALUES[0])}
    made = prepared(given, precision, 32)
    assert (np.abs(made["blk.0.attn_q"].float32() - VALUES) <= most * np.abs(VALUES)).all()
    assert made["output_norm"].kind == "F32"


def test_what_float16_cannot_hold_is_refused() -> None:
    with pytest.raises(UsageError, match="beyond its range"):
        prepared({"blk.0.attn_q": floats(VALUES * 1e6)}, "fp16", 32)


def test_ends_keep_eight_bits() -> None:
    given = {name: floats(VALUES) for name in ("token_embd", "output", "blk.0.attn_q")}
    made = prepared(given, "w4", 32)
    assert [made[n].high for n in given] == [127, 127, 7]


def test_experts_have_their_gates_above_their_inputs() -> None:
    gates, ups = VALUES.reshape(2, 4, 128), -VALUES.reshape(2, 4, 128)
    for made in (
        stacked(floats(gates), floats(ups), 2),
        stacked(rounded(VALUES, 8, 32), rounded(-VALUES, 8, 32), 2),
    ):
        found = made.float32().reshape(2, 2, 4, 128)
        np.testing.assert_allclose(found[:, 0], gates, atol=0.03)
        np.testing.assert_allclose(found[:, 1], ups, atol=0.03)
