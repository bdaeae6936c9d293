"""Readers of convolutions, pools and resizing: channels last, TFLite's own padding and rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgeinfer.convert.lower.tflite.graph import Graph, Tensor
from tests.convert.sources.tflite.reading import floats, rng, same

SAME, VALID = 0, 1


def _size(size: int, kernel: int, stride: int, dilation: int, padding: int) -> int:
    span = (kernel - 1) * dilation + 1
    return -(-size // stride) if padding == SAME else (size - span) // stride + 1


def _conv(g: Graph, x: Tensor, code: str, padding: int, stride: int, dilation: int) -> Tensor:
    depthwise = code == "DEPTHWISE_CONV_2D"
    w = floats(1, 3, 2, 8) if depthwise else floats(5, 3, 2, 4)
    outs = 8 if depthwise else 5
    height, width = (
        None if s is None else _size(s, k, stride, dilation, padding)
        for s, k in zip(x.shape[1:3], (3, 2), strict=True)
    )
    options: dict[str, Any] = {"padding": padding, "fused_activation_function": 1}
    options |= {"stride_h": stride, "stride_w": stride}
    options |= {"dilation_h_factor": dilation, "dilation_w_factor": dilation}
    if depthwise:
        options["depth_multiplier"] = 2
    shape = [x.shape[0], height, width, outs]
    return g.emit(code, [x, g.const(w), g.const(floats(outs))], shape, **options)


@pytest.mark.parametrize("code", ["CONV_2D", "DEPTHWISE_CONV_2D"])
@pytest.mark.parametrize("padding", [SAME, VALID])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2)])
def test_convolutions(code: str, padding: int, stride: int, dilation: int) -> None:
    same(lambda g, x: _conv(g, x, code, padding, stride, dilation), x=floats(2, 8, 7, 4))


@pytest.mark.parametrize("stride", [1, 2])
def test_padding_of_sizes_that_a_run_decides(stride: int) -> None:
    same(
        lambda g, x: _conv(g, x, "CONV_2D", SAME, stride, 1),
        {"x": floats(2, 9, 6, 4)},
        x=floats(1, 8, 7, 4),
        sizes={"x": (None, None, None, 4)},
    )


def test_groups_are_told_by_the_depth_of_the_weights() -> None:
    options = {"padding": VALID, "stride_h": 1, "stride_w": 1}
    options |= {"dilation_h_factor": 1, "dilation_w_factor": 1}
    w, b = floats(6, 1, 1, 2), floats(6)
    found = same(
        lambda g, x: g.emit("CONV_2D", [x, g.const(w), g.const(b)], (1, 3, 3, 6), **options),
        x=floats(1, 3, 3, 4),
    )
    (conv,) = (n for n in found.model.graph if n.op_type == "Conv")
    assert conv.attributes["group"].as_int() == 2


def test_convolutions_over_three_axes() -> None:
    options = {"padding": SAME, "fused_activation_function": 0}
    options |= {f"stride_{n}": 2 for n in "dhw"} | {f"dilation_{n}_factor": 1 for n in "dhw"}
    w = floats(2, 3, 2, 3, 4)
    same(
        lambda g, x: g.emit(
            "CONV_3D", [x, g.const(w), g.const(floats(4))], (1, 2, 3, 2, 4), **options
        ),
        x=floats(1, 4, 5, 4, 3),
    )


@pytest.mark.parametrize(
    ("padding", "stride", "out"),
    [(SAME, 2, 8), (SAME, 2, 7), (SAME, 1, 4), (VALID, 2, 9), (VALID, 3, 12), (SAME, 3, 11)],
)
def test_transposed_convolutions(padding: int, stride: int, out: int) -> None:
    w = floats(5, 3, 3, 2)
    options = {"padding": padding, "stride_h": stride, "stride_w": stride}

    def build(g: Graph, x: Tensor) -> Tensor:
        shape = g.const([1, out, out, 5], np.int32)
        operands = [shape, g.const(w), x, g.const(floats(5))]
        return g.emit("TRANSPOSE_CONV", operands, (1, out, out, 5), np.float32, **options)

    same(build, x=floats(1, 4, 4, 2))


@pytest.mark.parametrize("padding", [SAME, VALID])
def test_transposed_convolutions_to_a_size_that_a_run_decides(padding: int) -> None:
    w = floats(5, 3, 3, 2)
    options = {"padding": padding, "stride_h": 2, "stride_w": 2}

    def build(g: Graph, shape: Tensor, x: Tensor) -> Tensor:
        operands = [shape, g.const(w), x, g.const(floats(5))]
        return g.emit("TRANSPOSE_CONV", operands, (None, None, None, 5), np.float32, **options)

    first = (
        np.array([1, 8, 8, 5], np.int32) if padding == SAME else np.array([1, 9, 9, 5], np.int32)
    )
    same(build, shape=first, x=floats(1, 4, 4, 2))


@pytest.mark.parametrize("code", ["MAX_POOL_2D", "AVERAGE_POOL_2D", "L2_POOL_2D"])
@pytest.mark.parametrize("padding", [SAME, VALID])
def test_pools(code: str, padding: int) -> None:
    height, width = (_size(s, k, 2, 1, padding) for s, k in ((7, 3), (6, 2)))
    options = {"padding": padding, "stride_h": 2, "stride_w": 2, "filter_height": 3}
    options |= {"filter_width": 2, "fused_activation_function": 0}
    same(lambda g, x: g.emit(code, [x], (1, height, width, 3), **options), x=floats(1, 7, 6, 3))


def test_local_response_normalisation() -> None:
    options = {"radius": 2, "bias": 1.5, "alpha": 0.3, "beta": 0.75}
    same(
        lambda g, x: g.emit("LOCAL_RESPONSE_NORMALIZATION", [x], x.shape, **options),
        x=floats(1, 2, 2, 9),
    )


@pytest.mark.parametrize("code", ["RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"])
@pytest.mark.parametrize(("aligned", "centred"), [(False, False), (True, False), (False, True)])
def test_resizing_to_any_size(code: str, aligned: bool, centred: bool) -> None:
    options = {"align_corners": aligned, "half_pixel_centers": centred}

    def build(g: Graph, x: Tensor) -> list[Tensor]:
        sizes = [(10, 3), (5, 7), (4, 4), (1, 1), (13, 11), (3, 8)]
        return [
            g.emit(code, [x, g.const(size, np.int32)], (1, *size, 2), **options) for size in sizes
        ]

    same(build, x=floats(1, 5, 7, 2))


def test_blocks_of_depth_and_space() -> None:
    x = rng().integers(0, 99, (1, 4, 6, 8)).astype(np.float32)
    same(lambda g, x: g.emit("DEPTH_TO_SPACE", [x], (1, 8, 12, 2), block_size=2), x=x)
    same(lambda g, x: g.emit("SPACE_TO_DEPTH", [x], (1, 2, 3, 32), block_size=2), x=x)


def test_blocks_of_batches_and_space() -> None:
    def build(g: Graph, x: Tensor) -> Tensor:
        block = g.const([2, 3], np.int32)
        pads = g.const([[1, 0], [0, 2]], np.int32)
        y = g.emit("SPACE_TO_BATCH_ND", [x, block, pads], (6, 3, 3, 2))
        y = g.emit("RELU", [y], y.shape)
        return g.emit("BATCH_TO_SPACE_ND", [y, block, pads], (1, 5, 7, 2))

    same(build, x=floats(1, 5, 7, 2))
