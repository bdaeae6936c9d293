"""Depthwise convolutions of many taps in parts."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.lower.tflite.split_depthwise import KERNELS, parts_of
from tests.convert.lower.tflite.run import check, model_of, ops

RNG = np.random.default_rng(0)


def net(
    kernel: tuple[int, ...],
    attributes: str,
    size: str = "13,11",
    activation: str = "Identity",
    channels: int = 8,
) -> ir.Model:
    """A depthwise convolution and what follows it."""
    axes = ",".join(map(str, kernel))
    taps = ", ".join(f"{v:.3f}" for v in RNG.normal(size=channels * int(np.prod(kernel))))
    bias = ", ".join(f"{v:.3f}" for v in RNG.normal(size=channels))
    open_sizes = ",".join(["N", str(channels), *["S"] * len(kernel)])
    made: ir.Model = model_of(
        f"""g (float[1,{channels},{size}] x) => (float[{open_sizes}] y)
        <float[{channels},1,{axes}] w = {{{taps}}}, float[{channels}] b = {{{bias}}}> {{
        a = Conv<group={channels}, {attributes}>(x, w, b)
        y = {activation}(a) }}"""
    )
    return made


def image(*shape: int) -> dict[str, np.ndarray]:
    return {"x": RNG.normal(size=shape).astype(np.float32)}


@pytest.mark.parametrize(
    ("kernel", "attributes", "count"),
    [
        ((7, 7), "pads=[3,3,3,3]", 3),
        ((7, 7), "pads=[0,0,0,0]", 3),
        ((7, 7), "pads=[1,2,0,3], strides=[2,3]", 3),
        ((7, 7), 'auto_pad="SAME_UPPER", strides=[2,2]', 3),
        ((7, 7), 'auto_pad="SAME_LOWER", strides=[2,2]', 3),
        ((5, 6), "pads=[4,5,4,5], dilations=[2,2]", 2),
        ((9, 11), "pads=[4,5,4,5], strides=[1,2]", 6),
        ((5, 5), "pads=[2,2,2,2]", 1),
    ],
)
def test_the_parts_give_the_whole(kernel: tuple[int, int], attributes: str, count: int) -> None:
    found = ops(check(net(kernel, attributes), image(1, 8, 13, 11)))
    assert found.count("DEPTHWISE_CONV_2D") == count
    assert found.count("ADD") == count - 1


def test_a_line_of_taps_is_cut_along_it() -> None:
    found = ops(check(net((31,), "pads=[15,15]", "40"), image(1, 8, 40)))
    assert found.count("DEPTHWISE_CONV_2D") == 2


def test_the_last_sum_applies_the_activation() -> None:
    found = ops(check(net((7, 7), "pads=[3,3,3,3]", activation="Relu"), image(1, 8, 13, 11)))
    assert "RELU" not in found


@pytest.mark.parametrize("attributes", ["pads=[3,3,3,3]", "pads=[0,0,0,0], strides=[2,2]"])
def test_open_sizes(attributes: str) -> None:
    model = net((7, 7), attributes, "H,W")
    found = ops(check(model, image(1, 8, 13, 11), image(1, 8, 20, 9)))
    assert found.count("DEPTHWISE_CONV_2D") == 3


def test_half_precision_weights_are_cut_too() -> None:
    data = check(net((7, 7), "pads=[3,3,3,3]"), image(1, 8, 13, 11), rtol=2e-3, precision="fp16")
    assert ops(data).count("DEPTHWISE_CONV_2D") == 3


@pytest.mark.parametrize("kernel", [(7, 7), (6, 6), (1, 31), (31, 31), (26, 1), (13, 3)])
def test_every_tap_is_in_one_part(kernel: tuple[int, int]) -> None:
    seen = np.zeros(kernel, int)
    for top, bottom, left, right in parts_of(*kernel):
        seen[top:bottom, left:right] += 1
        assert (bottom - top) * (right - left) <= KERNELS[-1]
    assert np.all(seen == 1)
