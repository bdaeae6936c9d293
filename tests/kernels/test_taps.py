"""Convolutions with many taps along an axis, which are gathered in a loop."""

import numpy as np
import pytest

pytest.importorskip("tvm")

from edgeinfer.kernels.defs import conv  # isort: skip
from tests.kernels.run import compiled, cpu, misaligned  # isort: skip
from edgeinfer.types import Array  # isort: skip

NAME = "x86-64-v3"

WINDOWS = {
    "inside": conv.ConvWindow(1, 1, 6, 1, (1, 200), (1, 40), (1, 3), (1, 1), (0, 0, 0, 0)),
    "border": conv.ConvWindow(1, 1, 6, 1, (1, 100), (1, 40), (1, 2), (1, 2), (0, 30, 0, 25)),
    "one side": conv.ConvWindow(1, 2, 6, 1, (1, 90), (1, 33), (1, 1), (1, 1), (0, 0, 0, 32)),
    "tall": conv.ConvWindow(2, 3, 7, 1, (30, 11), (20, 3), (2, 1), (1, 1), (4, 1, 5, 1)),
    "tall inside": conv.ConvWindow(1, 2, 6, 1, (24, 30), (18, 18), (3, 2), (1, 1), (0, 0, 0, 0)),
    "both": conv.ConvWindow(1, 2, 7, 1, (40, 60), (20, 33), (1, 2), (1, 1), (3, 16, 0, 16)),
    "patches": conv.ConvWindow(1, 3, 8, 1, (32, 48), (16, 16), (16, 16), (1, 1), (0, 0, 0, 0)),
    "large window": conv.ConvWindow(1, 2, 7, 1, (20, 21), (11, 9), (2, 3), (1, 1), (5, 4, 3, 4)),
    "groups": conv.ConvWindow(1, 4, 12, 2, (5, 70), (2, 24), (1, 2), (1, 1), (1, 5, 0, 7)),
    "mostly border": conv.ConvWindow(1, 1, 6, 1, (1, 2), (1, 30), (1, 1), (1, 1), (0, 29, 0, 29)),
    "border beyond the output": conv.ConvWindow(
        1, 2, 3, 1, (2, 1), (1, 3), (1, 1), (1, 1), (0, 9, 0, 0)
    ),
}


def _expected(x: Array, weights: Array, w: conv.ConvWindow) -> Array:
    top, left, bottom, right = w.pads
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    windows = np.lib.stride_tricks.sliding_window_view(
        padded, [(k - 1) * d + 1 for k, d in zip(w.kernel, w.dilations, strict=True)], axis=(2, 3)
    )
    seen = windows[
        :, :, :: w.strides[0], :: w.strides[1], :: w.dilations[0], :: w.dilations[1]
    ].reshape(w.batch, w.groups, -1, *w.out, *w.kernel)
    parts = weights.reshape(w.groups, w.filters // w.groups, -1, *w.kernel).astype(np.float64)
    summed: Array = np.einsum("ngchwij,gfcij->ngfhw", seen, parts)
    return summed.reshape(w.batch, w.filters, *w.out)


@pytest.mark.sample(3)
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_many_taps_give_the_same_numbers(window: conv.ConvWindow) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((window.batch, window.channels, *window.size)).astype(np.float32)
    sizes = (window.filters, window.channels // window.groups, *window.kernel)
    weights = rng.standard_normal(sizes).astype(np.float32)
    assert not window.is_depthwise
    kernel = conv.conv(cpu(NAME), window, extra={}, finish=lambda: lambda value, *_: value)
    out = misaligned(np.zeros((window.batch, window.filters, np.prod(window.out)), np.float32))
    flat = misaligned(x.reshape(window.batch, window.channels, -1))
    compiled(kernel, NAME)(flat, misaligned(conv.pack(weights, window, cpu(NAME))), out)
    want = _expected(x, weights, window)
    np.testing.assert_allclose(out.reshape(want.shape), want, rtol=2e-4, atol=2e-4)


def test_a_long_filter_is_no_long_code() -> None:
    def lines(taps: int) -> int:
        window = conv.ConvWindow(1, 1, 36, 1, (1, 11217), (1, taps), (1, 64), (1, 1), (0, 0, 0, 0))
        made = conv.conv(cpu(NAME), window, extra={}, finish=lambda: lambda value, *_: value)
        return str(made.script()).count("\n")

    # One line for each tap, and there were two, would be more.
    assert lines(256) < 500
    assert lines(1000) < 500


def test_a_large_window_is_no_long_code() -> None:
    """A vision transformer's first layer: 256 copies, each of a row, took LLVM minutes."""
    window = conv.ConvWindow(1, 3, 192, 1, (224, 224), (16, 16), (16, 16), (1, 1), (0, 0, 0, 0))
    made = conv.conv(cpu(NAME), window, extra={}, finish=lambda: lambda value, *_: value)
    assert str(made.script()).count("\n") < 800
