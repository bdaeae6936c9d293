"""Resize against ONNX Runtime: every mode and coordinate, at fixed and open sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import UnsupportedError
from tests.convert.lower.tflite.run import check, lower, ops
from tests.convert.lower.tflite.together import rows

RNG = np.random.default_rng(0)
PLACES = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]


def some(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def graph(sizes: str, given: str, call: str, **attributes: str) -> str:
    said = ", ".join(f'{k}="{v}"' for k, v in attributes.items())
    rank = len(sizes.split(","))
    out = ",".join("abcde"[:rank])
    return f"g (float[{sizes}] x) => (float[{out}] y) <{given}> {{ y = Resize<{said}>({call}) }}"


@rows("place", PLACES)
@rows("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_nearest_to_sizes(rounding: str, place: str) -> None:
    how = {"coordinate_transformation_mode": place, "nearest_mode": rounding}
    text = graph("1,2,5,6", "int64[4] z = {1, 2, 9, 4}", "x, , , z", **how)
    check(text, {"x": some(1, 2, 5, 6)})


def test_ties_that_only_a_run_knows_are_refused() -> None:
    text = graph("1,2,n,m", "int64[4] z = {1, 2, 9, 4}", "x, , , z", mode="nearest")
    with pytest.raises(UnsupportedError, match="round_prefer_floor"):
        lower(text)


@rows(("sizes", "factors"), [("2,3,6", "1, 1, 1.5"), ("1,2,3,4,5", "1,1,2,2,2")])
@rows("mode", ["nearest", "linear"])
def test_lines_and_volumes(mode: str, sizes: str, factors: str) -> None:
    shape = [int(s) for s in sizes.split(",")]
    given = f"float[{len(shape)}] s = {{{factors}}}"
    check(graph(sizes, given, "x, , s", mode=mode), {"x": some(*shape)})


def test_kernels_are_used_where_they_agree() -> None:
    given = "float[4] s = {1, 1, 2, 2}"
    x = {"x": some(1, 3, 4, 4)}
    near = ops(check(graph("1,3,4,4", given, "x, , s", mode="nearest"), x))
    even = ops(check(graph("1,3,4,4", given, "x, , s", mode="linear"), x))
    assert "RESIZE_NEAREST_NEIGHBOR" in near
    assert "GATHER" not in near
    assert "RESIZE_BILINEAR" in even
    assert "GATHER" not in even


def test_what_engines_disagree_on_is_refused() -> None:
    how = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    with pytest.raises(UnsupportedError, match="engines disagree"):
        lower(graph("1,1,2,4", "float[4] s = {1, 1, 0.6, 0.6}", "x, , s", **how))
    how = {"nearest_mode": "round_prefer_ceil", "coordinate_transformation_mode": "asymmetric"}
    with pytest.raises(UnsupportedError, match="equally near"):
        lower(graph("1,1,1,7", "int64[4] z = {1, 1, 1, 4}", "x, , , z", **how))
