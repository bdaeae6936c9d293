"""What the process that searches draws, for a GPU; nothing is built and no GPU is needed."""

import math

import numpy as np
import pytest

pytest.importorskip("tvm")

from edgeinfer.convert.lower.tvm.machines import machine
from edgeinfer.kernels.tuning import search

# Each second value of an image with a border, per channel: the form MobileNet has four times.
STRIDED = """
@T.prim_func(s_tir=True)
def main(
    x: T.Buffer((1, 96, 114, 114), "float32"),
    w: T.Buffer((96, 3, 3), "float32"),
    y: T.Buffer((1, 96, 56, 56), "float32"),
):
    T.func_attr({"tirx.noalias": True})
    for n, f, i, j, k, l in T.grid(1, 96, 56, 56, 3, 3):
        with T.sblock("conv"):
            vn, vf, vi, vj, vk, vl = T.axis.remap("SSSSRR", [n, f, i, j, k, l])
            with T.init():
                y[vn, vf, vi, vj] = T.float32(0.0)
            y[vn, vf, vi, vj] = (
                y[vn, vf, vi, vj] + x[vn, vf, vi * 2 + vk, vj * 2 + vl] * w[vf, vk, vl]
            )
"""


@pytest.mark.parametrize("extent", [1, 7, 56, 96, 997, 1000])
def test_a_tile_is_of_its_axis(extent: int) -> None:
    rng = np.random.default_rng(0)
    tiles = [search._tile(extent, rng) for _ in range(50)]
    assert {math.prod(tile) for tile in tiles} == {extent}
    assert {len(tile) for tile in tiles} == {5}


def test_most_orders_of_a_strided_convolution_fit_into_a_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search, "_POOL", 6)
    made = search.ScheduleSearch()
    made.setup(machine("sm_90").description(1), 1)
    assert made.open(STRIDED, True, []) > 0
    # Without bounds on the tiles it was none of sixty.
    assert len(made._pool()) == 6
