"""Sampling against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import UnsupportedError
from tests.convert.lower.tflite.run import check, lower
from tests.convert.lower.tflite.together import rows

RNG = np.random.default_rng(0)


def some(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


@rows("align", [0, 1])
@rows("padding", ["zeros", "border", "reflection"])
@rows("mode", ["linear", "nearest", "cubic"])
def test_grid_sample(mode: str, padding: str, align: int) -> None:
    text = (
        "g (float[2,3,5,4] x, float[2,a,b,2] g) => (float[2,3,a,b] y) { y = GridSample<"
        f'mode="{mode}", padding_mode="{padding}", align_corners={align}>(x, g) }}'
    )
    grid = (RNG.random((2, 3, 4, 2)) * 4 - 2).astype(np.float32)
    check(text, {"x": some(2, 3, 5, 4), "g": grid}, rtol=2e-5)


@rows("mode", ["linear", "nearest"])
def test_grid_sample_of_volumes(mode: str) -> None:
    text = (
        "g (float[1,2,3,4,5] x, float[1,2,3,4,3] g) => (float[1,2,2,3,4] y) "
        f'{{ y = GridSample<mode="{mode}">(x, g) }}'
    )
    grid = (RNG.random((1, 2, 3, 4, 3)) * 2.4 - 1.2).astype(np.float32)
    check(text, {"x": some(1, 2, 3, 4, 5), "g": grid}, rtol=2e-5)


@rows("align", [0, 1])
@rows("batch", [1, 2])
def test_affine_grid(align: int, batch: int) -> None:
    text = (
        f"g (float[n,2,3] t) => (float[n,4,5,2] y) <int64[4] s = {{{batch}, 1, 4, 5}}> "
        f"{{ y = AffineGrid<align_corners={align}>(t, s) }}"
    )
    check(text, {"t": some(batch, 2, 3)})


@rows("align", [0, 1])
@rows("batch", [1, 2])
def test_affine_grid_of_volumes(align: int, batch: int) -> None:
    text = (
        f"g (float[n,3,4] t) => (float[n,2,4,5,3] y) <int64[5] s = {{{batch}, 1, 2, 4, 5}}> "
        f"{{ y = AffineGrid<align_corners={align}>(t, s) }}"
    )
    check(text, {"t": some(batch, 3, 4)})


def test_max_unpool() -> None:
    text = (
        "g (float[1,1,2,2] x, int64[1,1,2,2] i) => (float[1,1,4,4] y) "
        "{ y = MaxUnpool<kernel_shape=[2,2], strides=[2,2]>(x, i) }"
    )
    check(text, {"x": some(1, 1, 2, 2), "i": np.array([[[[5, 7], [13, 15]]]])})


def test_the_largest_of_samples_that_depend_on_a_regions_size_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="another number of samples"):
        lower(
            "g (float[1,1,4,4] x, float[2,4] r, int64[2] b) => (float[2,1,1,1] y) "
            '{ y = RoiAlign<mode="max">(x, r, b) }'
        )
